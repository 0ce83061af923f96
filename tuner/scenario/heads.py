"""A rank's place in its node, and how it goes to others, of a scenario."""

from collections.abc import Collection

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm
from tuner.emulator.connect.network import ORDER, heads_of_rank, network_use
from tuner.emulator.rules.heads import Heads, NetworkUse
from tuner.machine.peer_links import AdapterAccess
from tuner.scenario.resolved import ResolvedScenario

RUNTIME_CONNECT = "NCCL_RUNTIME_CONNECT"  # 0: all algorithms are connected at once, not as calls need them


def heads_of(resolved: ResolvedScenario, rank: int = 0) -> Heads:
    """Heads as a rank knows them. BadInput for graphs that were dumped."""
    view = resolved.view_of(rank)
    at_once = view.environment.number(RUNTIME_CONNECT, 1) == 0

    def network(later: Collection[Algorithm]) -> NetworkUse:
        switched = at_once and view.nvls and view.release.connect.pat_at_once == "or_with_nvls"
        if view.max_local_ranks > 1 and (switched if at_once else Algorithm.PAT in later):
            raise BadInput(
                "adapters and registered buffers of rings: not emulated where PAT connects several ranks per node, as "
                f"{RUNTIME_CONNECT}=0 does with NVLS in 2.31 and later, or a group with PAT; valid: without"
            )
        return network_of(resolved, rank, ORDER if at_once else later)

    return heads_of_rank(resolved.connected, rank, network)


def network_of(resolved: ResolvedScenario, rank: int, later: Collection[Algorithm] = ()) -> NetworkUse:
    """How a rank goes to other nodes, where these algorithms were connected after rings.

    BadInput for graphs that were dumped, and for nodes without a topology.
    """
    place_of = {each: (ranks[0], place) for ranks in resolved.ranks_of for place, each in enumerate(ranks)}

    def access(of: int, adapter: int) -> AdapterAccess:
        first, place = place_of[of]
        links = resolved.view_of(first).links
        if links is None:
            raise BadInput(
                "registered buffers depend on adapters, which only a topology tells; valid without it: plain"
            )
        return links().adapter_of(place, adapter)

    return network_use(resolved.connected, rank, access, later)

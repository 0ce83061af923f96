"""A rank's place in its node, and how it goes to others, of a scenario."""

from functools import partial

from tuner.base.errors import BadInput
from tuner.connect import heads
from tuner.connect.network import network_use
from tuner.emulator.rules.heads import Heads, NetworkUse
from tuner.machine.peer_links import AdapterAccess
from tuner.scenario.resolved import ResolvedScenario

RUNTIME_CONNECT = "NCCL_RUNTIME_CONNECT"  # 0: all algorithms are connected at once, not as calls need them


def heads_of(resolved: ResolvedScenario, rank: int = 0) -> Heads:
    """As a rank knows them. BadInput for graphs that were dumped."""
    return heads.heads_of(resolved.connected, rank, partial(_network, resolved, rank))


def _network(resolved: ResolvedScenario, rank: int) -> NetworkUse:
    """BadInput without a topology, and where it is not known how NCCL connects all algorithms at once."""
    view = resolved.view_of(rank)
    at_once = view.environment.number(RUNTIME_CONNECT, 1) == 0
    place_of = {each: place for ranks in resolved.ranks_of for place, each in enumerate(ranks)}

    def access(of: int, adapter: int) -> AdapterAccess:
        links = resolved.view_of(of).links
        if links is None:
            raise BadInput(
                "registered buffers depend on adapters, which only a topology tells; valid without it: plain"
            )
        return links().adapter_of(place_of[of], adapter)

    return network_use(resolved.connected, rank, access, at_once)

"""What surrounds a rank: the links of its node and others, the order of its peers, its heads and adapters."""

from bisect import bisect_right
from collections.abc import Collection, Iterator
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm
from tuner.base.spelling import option
from tuner.emulator.connect.network import ORDER, heads_of_rank, network_use
from tuner.emulator.p2p.records import P2pContext, PeerChannels, PeerOrder, peer_channels
from tuner.emulator.rules.init import ENABLE, IF_THERE
from tuner.emulator.rules.registered import Heads, NetworkUse
from tuner.machine.adapters import AdapterAccess, PeerLinks
from tuner.scenario.resolved import ResolvedScenario

if TYPE_CHECKING:
    from tuner.scenario.domain import ResolvedDomain, ResolvedPart
    from tuner.scenario.node import ResolvedNode


def p2p_context(resolved: "ResolvedScenario", rank: int = 0) -> P2pContext:
    """The context of the sends and receives of a rank.

    BadInput if there is no such rank, if the graphs were dumped (a dump does not have the links), or if it is not known
    whether NVLink joins hosts.
    """
    if any(kind.scenario.graphs is not None for kind in resolved.kinds):
        raise BadInput(f"sends and receives depend on the links of the topology: remove {option('graphs')}")
    communicator, ranks_of = resolved.view_of(rank), resolved.ranks_of
    order = PeerOrder(communicator, ranks_of, rank)
    links = _links(resolved, rank)
    channels = _channels(resolved, rank, links)
    by_network, beyond = links[0].joined_by_network, frozenset(_beyond_nodes(resolved, rank))
    return P2pContext(communicator, channels, order, by_network, beyond, lambda: _rings(resolved, rank))


def _links(resolved: "ResolvedScenario", rank: int) -> list[PeerLinks]:
    """The links of the rank's node, then those of other kinds of nodes."""
    from tuner.graphs.graphs import peer_links

    several, kinds = sum(count for _, count in resolved.nodes) > 1, {id(node): node for node, _ in resolved.nodes}
    own = next(node for node, ranks in zip(_each(resolved), resolved.ranks_of, strict=True) if rank in ranks)
    others = [node for each, node in kinds.items() if each != id(own)]
    return [peer_links(node.for_search(several), resolved.release.name) for node in (own, *others)]


def _channels(resolved: "ResolvedScenario", rank: int, links: list[PeerLinks]) -> PeerChannels:
    made = resolved.scenario.members
    if made is None or not resolved.shares:
        return peer_channels(resolved.view_of(rank), links)
    of_whole = made.ranks[rank]
    whole = _channels(resolved.whole, of_whole, _links(resolved.whole, of_whole))
    return peer_channels(resolved.view_of(rank), links, whole)


def _beyond_nodes(resolved: "ResolvedScenario", rank: int) -> Iterator[int]:
    """The ranks on other nodes that a rank can reach without the network: those on its host or in its NVLink domain.

    Sources: shmCanConnect, src/transport/shm.cc, and ncclTopoCheckNet, src/graph/paths.cc, v2.30.3-1; p2pCanConnect,
    src/transport/p2p.cc, v2.23.4-1, and v2.20.5-1 and v2.22.3-1, which compare the fabrics of both ranks even if the
    communicator does not use them. BadInput if it is not known whether NVML names a fabric that is not ready.
    """
    data, first_of_host = resolved.release.exchange, _hosts(resolved)
    variables = resolved.view_of(rank).environment
    own_host = bisect_right(first_of_host, rank) - 1
    own = range(first_of_host[own_host], first_of_host[own_host + 1])
    if data.parts_share_memory and variables.c_int("NCCL_SHM_DISABLE", 0) != 1:
        yield from own
    reaches = {
        "never": False,
        "where_used": resolved.uses_domains,
        "unless_off": variables.c_int(ENABLE, IF_THERE) != 0,
        "always": True,
    }
    if reaches[data.fabric_reaches_hosts]:
        ends = [0, *accumulate(resolved.domains or [1] * (len(first_of_host) - 1))]
        domain = bisect_right(ends, own_host) - 1
        joined = range(first_of_host[ends[domain]], first_of_host[ends[domain + 1]])
        node = next(ranks for ranks in resolved.ranks_of if rank in ranks)
        reached = [other for other in joined if other not in own and other not in node]
        if reached and resolved.ranks_without_fabric:
            raise BadInput(
                f"sends and receives are not emulated for NCCL {resolved.release.name} if GPUs have not joined their "
                "NVLink domain: use a later release"
            )
        yield from reached


def _hosts(resolved: "ResolvedScenario") -> list[int]:
    """The first rank of each host, followed by the total number of ranks."""
    sizes = chain.from_iterable(repeat(len(kind.gpu_of_rank), kind.hosts) for kind in resolved.kinds)
    return list(accumulate(sizes, initial=0))


def _rings(resolved: "ResolvedScenario", rank: int) -> list[list[int]]:
    views, rings = resolved.connected.ranks, []
    for channel in range(len(views[rank].channels)):
        ring = [rank]
        while (following := views[ring[-1]].channels[channel].next) != rank:
            ring.append(following)
        rings.append(ring)
    return rings


def _each(resolved: "ResolvedScenario") -> Iterator["ResolvedNode | ResolvedDomain | ResolvedPart"]:
    """Yields each of NCCL's nodes; equal nodes occur repeatedly."""
    for node, count in resolved.nodes:
        for _ in range(count):
            yield node


RUNTIME_CONNECT = "NCCL_RUNTIME_CONNECT"  # with 0, all algorithms are connected at once, not when calls need them


def heads_of(resolved: ResolvedScenario, rank: int = 0) -> Heads:
    """The heads as a rank knows them. BadInput for dumped graphs."""
    view = resolved.view_of(rank)
    at_once = view.environment.number(RUNTIME_CONNECT, 1) == 0

    def network(later: Collection[Algorithm]) -> NetworkUse:
        switched = at_once and view.nvls and view.release.connect.pat_at_once == "or_with_nvls"
        if view.max_local_ranks > 1 and (switched if at_once else Algorithm.PAT in later):
            raise BadInput(
                "registered buffers of rings between nodes are not emulated where PAT connects several ranks per node, "
                f"as {RUNTIME_CONNECT}=0 does with NVLS in 2.31 and later, and as a group with PAT does: remove one of "
                "them"
            )
        return network_of(resolved, rank, ORDER if at_once else later)

    return heads_of_rank(resolved.connected, rank, network)


def network_of(resolved: ResolvedScenario, rank: int, later: Collection[Algorithm] = ()) -> NetworkUse:
    """How a rank uses the network, if the algorithms ``later`` were connected after the rings.

    BadInput for graphs that were dumped, and for nodes without a topology.
    """
    place_of = {each: (ranks[0], place) for ranks in resolved.ranks_of for place, each in enumerate(ranks)}

    def access(of: int, adapter: int) -> AdapterAccess:
        first, place = place_of[of]
        links = resolved.view_of(first).links
        if links is None:
            raise BadInput(
                "picks on registered buffers depend on adapters, which only a topology shows: give one, or use plain "
                "buffers"
            )
        return links().adapter_of(place, adapter)

    return network_use(resolved.connected, rank, access, later)

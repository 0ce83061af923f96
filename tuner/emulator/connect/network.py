"""Connections between nodes: which adapters they use, whether they pass through other GPUs (PXN), and whether they use
GPUDirect RDMA.

Source: ncclTransportRingConnect, ncclTransportTreeConnect, ncclTransportPatConnect, src/transport/generic.cc;
ncclNvlsTreeConnect, src/transport/nvls.cc; sendSetup, recvSetup, src/transport/net.cc, v2.28.9-1.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm
from tuner.emulator.connect.nodes import ChannelAdapter, Connected
from tuner.emulator.rules.registered import Heads, NetworkOf, NetworkUse
from tuner.machine.adapters import AdapterAccess

AccessOf = Callable[[int, int], AdapterAccess]  # how a rank accesses the adapter that has this number in graphs


@dataclass(frozen=True, slots=True)
class NetworkDirection:
    """One direction of a rank's connection to a peer on another node, on one channel."""

    channel: int
    peer: int
    sends: bool  # whether it sends; otherwise it receives
    adapter: ChannelAdapter


def network_use(connected: Connected, rank: int, access_of: AccessOf, later: Collection[Algorithm] = ()) -> NetworkUse:
    """How a rank uses the network: whether and how it reaches other nodes.

    The ring connections of all ranks count, because NCCL tells every rank about them. ``later`` names algorithms that
    NCCL connects after the rings. Of the connections of these algorithms, only the rank's own count, and of those only
    the ones that its rings have not made already.
    """
    of_all = [list(_of_rings(connected, each)) for each in range(len(connected.ranks))]
    own = of_all[rank]
    ways = [(each, way) for each, ways in enumerate(of_all) for way in ways]
    ways += [(rank, way) for way in _of_others(connected, rank, own, later)]
    met = {(each, way.adapter.id, way.sends) for each, way in ways}
    accesses = ((access_of(each, adapter), sends) for each, adapter, sends in met)
    return NetworkUse(
        reached=bool(own),
        relayed=any(way.sends and way.adapter.relay != each for each, way in ways),
        direct=all(access.reads if sends else access.writes for access, sends in accesses),
    )


def _of_rings(connected: Connected, rank: int) -> Iterator[NetworkDirection]:
    for number, channel in enumerate(connected.ranks[rank].channels):
        neighbours = ((channel.next, True), (channel.previous, False))
        yield from _between_nodes(connected, rank, number, channel.ring_adapter, neighbours)


def _of_others(
    connected: Connected, rank: int, rings: Iterable[NetworkDirection], algorithms: Collection[Algorithm]
) -> Iterator[NetworkDirection]:
    """The connections of these algorithms, which share the first connection to a peer on a channel with rings."""
    known = {(way.channel, way.peer, way.sends) for way in rings}
    for algorithm in ORDER:
        for way in OF[algorithm](connected, rank) if algorithm in algorithms else ():
            if (way.channel, way.peer, way.sends) not in known:
                known.add((way.channel, way.peer, way.sends))
                yield way


def _of_trees(connected: Connected, rank: int) -> Iterator[NetworkDirection]:
    for number, channel in enumerate(connected.ranks[rank].channels):
        yield from _both_ways(connected, rank, number, channel.tree_adapter, channel.tree.peers)


def _of_pat(connected: Connected, rank: int) -> Iterator[NetworkDirection]:
    """PAT's connections; NCCL takes their adapters from the tree graph."""
    own = connected.ranks[rank]
    for number, channel in enumerate(own.channels):
        yield from _both_ways(connected, rank, number, channel.tree_adapter, own.pat_peers)


def _of_nvls_trees(connected: Connected, rank: int) -> Iterator[NetworkDirection]:
    for number, nvls in enumerate(connected.ranks[rank].nvls):
        yield from _both_ways(connected, rank, number, nvls.adapter, nvls.tree.peers)


def _both_ways(
    connected: Connected, rank: int, number: int, adapter: ChannelAdapter | None, peers: Iterable[int]
) -> Iterator[NetworkDirection]:
    both = ((peer, sends) for peer in peers for sends in (True, False))
    return _between_nodes(connected, rank, number, adapter, both)


def _between_nodes(
    connected: Connected, rank: int, number: int, adapter: ChannelAdapter | None, peers: Iterable[tuple[int, bool]]
) -> Iterator[NetworkDirection]:
    node_of = connected.node_of_rank
    for peer, sends in peers:
        if adapter is not None and node_of[peer] != node_of[rank]:
            yield NetworkDirection(number, peer, sends, adapter)


OF: Mapping[Algorithm, Callable[[Connected, int], Iterator[NetworkDirection]]] = {
    Algorithm.Tree: _of_trees,
    Algorithm.PAT: _of_pat,
    Algorithm.NVLSTree: _of_nvls_trees,
}
# The order in which they are connected if that happens at once: initTransportsRank, src/init.cc, v2.28.9-1
ORDER = tuple(OF)


# The heads of a rank's node, on which the chunks of NVLS and CollNet depend.


def heads_of_rank(connected: Connected, rank: int = 0, network: NetworkOf | None = None) -> Heads:
    """The heads as a rank knows them. Without NVLS or CollNetDirect, the number of heads is 1."""
    own = connected.ranks[rank]
    direct = own.channels[0].direct
    return Heads(
        nvls=own.nvls[0].heads if own.nvls else 1,
        own_nvls=own.nvls[0].head if own.nvls else None,
        direct=direct.heads if direct else 1,
        own_direct=direct.head if direct else None,
        direct_depth=2 if direct and (direct.up or direct.down) else 1,
        network=network,
    )

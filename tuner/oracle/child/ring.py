"""Marks the connections on every ring as NCCL's transports would: through peers' memory, or by GPUDirect RDMA.

The connections of all ranks are marked, not only those of one rank, because NCCL tells every rank about all of them
(ncclTransportRingConnect, src/transport/generic.cc, v2.28.9-1).
"""

import os
from collections.abc import Iterator

from tuner._native._sim import ffi
from tuner.base.dataclass import dataclass
from tuner.oracle.child.memory import channel, connectors, scalar
from tuner.oracle.child.world import Failure, World

P2P_WRITE, DIRECT_NIC = 0x01, 0x04  # flags of a connection: src/include/device.h, v2.24.3-1
TREE, RING, NVLS = 0, 1, 4  # NCCL_ALGO_*
# The members of channels that have the parent and the children of a rank
TREE_PEERS, NVLS_TREE_PEERS = ("tree.up", "tree.down"), ("nvls.treeUp", "nvls.treeDown")


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a rank's connection on a channel."""

    channel: int
    rank: int
    peer: int
    sends: bool  # whether it sends; otherwise it receives

    @property
    def other(self) -> "_End":
        """The other end of the same connection, which is on the peer."""
        return _End(self.channel, self.peer, self.rank, not self.sends)


@dataclass(frozen=True, slots=True)
class _Met:
    """How an end reaches its adapter: ``direct`` with GPUDirect RDMA, ``relayed`` over another rank's GPU (PXN)."""

    direct: bool
    relayed: bool


def connect(world: World) -> None:
    """Marks the connections of the rings, once. Neighbours that are on one node or joined by NVLink write into each
    other's memory; all other neighbours use their adapters."""
    if world.rings_marked:
        return
    world.rings_marked = True
    members, met = world.symbols.comm.members, dict[_End, _Met]()
    for rank in range(len(world.comms)):
        for end, flags in _of_rings(world, rank):
            if _joined(world, end):
                _mark(flags, P2P_WRITE)
            elif world.symbols.notes_adapters:
                met[end] = _met(world, end, RING)
    if not world.symbols.notes_adapters:
        return
    for rank, comm in enumerate(world.comms):
        for end, flags in _of_rings(world, rank):
            if all(each in met and met[each].direct for each in (end, end.other)):
                _mark(flags, DIRECT_NIC)
        others = dict(_of_others(world, rank, met)) if os.environ.get("NCCL_RUNTIME_CONNECT") == "0" else {}
        noted = [*met.items(), *others.items()]
        ffi.cast("bool *", comm + members["useGdr"].offset)[0] = all(adapter.direct for _, adapter in noted)
        relayed = any(end.sends and adapter.relayed for end, adapter in noted)
        ffi.cast("bool *", comm + members["useNetPXN"].offset)[0] = relayed


def _of_others(world: World, rank: int, rings: dict[_End, _Met]) -> Iterator[tuple[_End, _Met]]:
    """Connections that trees, PAT and NVLSTree add if NCCL connects everything at the start (initTransportsRank,
    src/init.cc)."""
    comm, members = world.comms[rank], world.symbols.comm.members
    channels, nvls, most = (scalar(comm, members[name]) for name in ("nChannels", "nvlsChannels", "maxLocalRanks"))
    met = [(_trees(world, TREE_PEERS, rank, channels), TREE)]
    if most == 1:
        met.append((_pat(len(world.comms), rank, channels), TREE))
    met.append((_trees(world, NVLS_TREE_PEERS, rank, nvls), NVLS))
    known = set(rings)
    for ends, graph in met:
        for end in ends:
            if end not in known and not _joined(world, end):
                known.add(end)
                yield end, _met(world, end, graph)


def _trees(world: World, peers: tuple[str, str], rank: int, channels: int) -> Iterator[_End]:
    """Ends of the connections in a tree, to the children and the parent. NVLSTree's first child is the node's own
    NVSwitch, whose number is not a rank."""
    members, comm = world.symbols.channel.members, world.comms[rank]
    for number in range(channels):
        parent, children = (scalar(channel(world.symbols, comm, number), members[name]) for name in peers)
        for peer in (*children, parent):
            if 0 <= peer < len(world.comms) and peer != rank:
                yield from (_End(number, rank, peer, sends) for sends in (True, False))


def _pat(ranks: int, rank: int, channels: int) -> Iterator[_End]:
    for distance in (1 << bit for bit in range((ranks - 1).bit_length())):
        for peer in ((rank + distance) % ranks, (rank - distance) % ranks):
            for number in range(channels):
                yield from (_End(number, rank, peer, sends) for sends in (True, False))


def _of_rings(world: World, rank: int) -> Iterator[tuple[_End, int]]:
    """The ends of a rank's connections in the rings, each with the address of its flags."""
    symbols, comm = world.symbols, world.comms[rank]
    flags = symbols.connector.members["conn.flags"].offset
    for number in range(scalar(comm, symbols.comm.members["nChannels"])):
        at = channel(symbols, comm, number)
        for neighbour, connector, sends in (("next", "send", True), ("prev", "recv", False)):
            peer = scalar(at, symbols.channel.members[f"ring.{neighbour}"])
            yield _End(number, rank, peer, sends), connectors(symbols, at, peer, connector) + flags


def _joined(world: World, end: _End) -> bool:
    """Whether both ends write into each other's memory: they are on one node, or on cliques (also called nodes) that
    NVLink joins."""
    comm, members = world.comms[end.rank], world.symbols.comm.members
    cross = members.get("p2pCrossClique")
    node_of = ffi.cast("int *", scalar(comm, members["rankToNode"]))  # parts of a host may alternate
    joined = cross is not None and ffi.cast("bool *", comm + cross.offset)[0]
    return bool(joined or node_of[end.peer] == node_of[end.rank])


def _mark(flags: int, flag: int) -> None:
    ffi.cast("int *", flags)[0] |= flag


def _met(world: World, end: _End, graph: int) -> _Met:
    """Asks NCCL itself for the adapter of an end, as src/transport/net.cc does."""
    symbols, comm = world.symbols, world.comms[end.rank]
    adapter, device, proxy, mode = (ffi.new(kind) for kind in ("int64_t *", "int *", "int *", "int *"))
    adapter_of = ffi.cast(
        "int (*)(uintptr_t, int, uintptr_t, int, int, int64_t *, int *, int *)", world.named("ncclTopoGetNetDev")
    )
    check = ffi.cast("int (*)(uintptr_t, int, int64_t, int, int *)", world.named("ncclTopoCheckGdr"))
    graphs = comm + symbols.comm.arrays["graphs"][0] + graph * symbols.graph.bytes
    peer = end.peer if end.sends else end.rank
    result = adapter_of(comm, end.rank, graphs, end.channel, peer, adapter, device, proxy)
    result = result or check(scalar(comm, symbols.comm.members["topo"]), end.rank, adapter[0], int(end.sends), mode)
    if result != 0:
        raise Failure(f"asking for the adapter of channel {end.channel} returned {world.error(result)}")
    return _Met(bool(mode[0]), proxy[0] != end.rank)

"""Marks the connections on every ring as NCCL's transports would: through peers' memory, or by GPUDirect RDMA.

All ranks' connections are marked, as NCCL tells every rank about all of them (ncclTransportRingConnect,
src/transport/generic.cc, v2.28.9-1).
"""

import os
from collections.abc import Iterator

from tuner._native._sim import ffi
from tuner.base.dataclass import dataclass
from tuner.oracle.child.memory import pointer, scalar
from tuner.oracle.child.world import Failure, World
from tuner.oracle.messages import AdapterOffsets, Member

P2P_WRITE, DIRECT_NIC = 0x01, 0x04  # flags of a connection: src/include/device.h, v2.24.3-1
TREE, RING, NVLS, NVLS_TREE = 0, 1, 4, 5  # NCCL_ALGO_*


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a rank's connection on a channel."""

    channel: int
    rank: int
    peer: int
    sends: bool  # whether it sends; otherwise it receives

    @property
    def other(self) -> "_End":
        """The end of the same connection at the peer."""
        return _End(self.channel, self.peer, self.rank, not self.sends)


@dataclass(frozen=True, slots=True)
class _Met:
    """How an end reaches its adapter: ``direct`` with GPUDirect RDMA, ``relayed`` over another rank's GPU (PXN)."""

    direct: bool
    relayed: bool


def connect(world: World) -> None:
    """Marks the connections of the rings, once. Neighbours in a node write into each other's memory; others use their
    adapters."""
    if world.rings_marked:
        return
    world.rings_marked = True
    at, met = world.start.ring.adapters, dict[_End, _Met]()
    for rank in range(len(world.comms)):
        for end, flags in _of_rings(world, rank):
            if _joined(world, end):
                _mark(flags, P2P_WRITE)
            elif at is not None:
                met[end] = _met(world, at, end, RING)
    if at is None:
        return
    for rank, comm in enumerate(world.comms):
        for end, flags in _of_rings(world, rank):
            if all(each in met and met[each].direct for each in (end, end.other)):
                _mark(flags, DIRECT_NIC)
        others = dict(_of_others(world, at, rank, met)) if os.environ.get("NCCL_RUNTIME_CONNECT") == "0" else {}
        noted = [*met.items(), *others.items()]
        ffi.cast("bool *", comm + at.use_gdr)[0] = all(adapter.direct for _, adapter in noted)
        ffi.cast("bool *", comm + at.use_net_pxn)[0] = any(end.sends and adapter.relayed for end, adapter in noted)


def _of_others(world: World, at: AdapterOffsets, rank: int, rings: dict[_End, _Met]) -> Iterator[tuple[_End, _Met]]:
    """Connections that trees, PAT and NVLSTree add if NCCL connects everything at the start (initTransportsRank,
    src/init.cc)."""
    comm, members = world.comms[rank], world.start.comm.members
    channels, nvls, most = (scalar(comm, members[name]) for name in ("nChannels", "nvlsChannels", "maxLocalRanks"))
    met = [(_trees(world, at.trees[TREE], rank, channels), TREE)]
    if most == 1:
        met.append((_pat(len(world.comms), rank, channels), TREE))
    met.append((_trees(world, at.trees[NVLS_TREE], rank, nvls), NVLS))
    known = set(rings)
    for ends, graph in met:
        for end in ends:
            if end not in known and not _joined(world, end):
                known.add(end)
                yield end, _met(world, at, end, graph)


def _trees(world: World, peers: tuple[Member, Member], rank: int, channels: int) -> Iterator[_End]:
    """Ends of the connections in a tree, to the children and the parent. NVLSTree's first child is the node's own
    NVSwitch, whose number is not a rank."""
    at, comm = world.start.ring, world.comms[rank]
    for number in range(channels):
        channel = comm + at.channels + number * at.channel_bytes
        parent, children = (scalar(channel, member) for member in peers)
        for peer in (*children, parent):
            if 0 <= peer < len(world.comms) and peer != rank:
                yield from (_End(number, rank, peer, sends) for sends in (True, False))


def _pat(ranks: int, rank: int, channels: int) -> Iterator[_End]:
    for distance in (1 << bit for bit in range((ranks - 1).bit_length())):
        for peer in ((rank + distance) % ranks, (rank - distance) % ranks):
            for number in range(channels):
                yield from (_End(number, rank, peer, sends) for sends in (True, False))


def _of_rings(world: World, rank: int) -> Iterator[tuple[_End, int]]:
    start, comm = world.start, world.comms[rank]
    at = start.ring
    for number in range(scalar(comm, start.comm.members["nChannels"])):
        channel = comm + at.channels + number * at.channel_bytes
        for neighbour, connectors, sends in ((at.next, at.send, True), (at.prev, at.receive, False)):
            peer = ffi.cast("int *", channel + neighbour)[0]
            record = pointer(pointer(channel + at.peers) + peer * ffi.sizeof("void *"))
            yield _End(number, rank, peer, sends), record + connectors + at.flags


def _joined(world: World, end: _End) -> bool:
    """Whether both ends write into each other's memory: they are on one node, or on cliques (also called nodes) that
    NVLink joins."""
    comm, members = world.comms[end.rank], world.start.comm.members
    cross = members.get("p2pCrossClique")
    node_of = ffi.cast("int *", scalar(comm, members["rankToNode"]))  # parts of a host may alternate
    joined = cross is not None and ffi.cast("bool *", comm + cross.offset)[0]
    return bool(joined or node_of[end.peer] == node_of[end.rank])


def _mark(flags: int, flag: int) -> None:
    ffi.cast("int *", flags)[0] |= flag


def _met(world: World, at: AdapterOffsets, end: _End, graph: int) -> _Met:
    """Asks NCCL itself for the adapter of an end, as src/transport/net.cc does."""
    comm = world.comms[end.rank]
    adapter, device, proxy, mode = (ffi.new(kind) for kind in ("int64_t *", "int *", "int *", "int *"))
    adapter_of = ffi.cast(
        "int (*)(uintptr_t, int, uintptr_t, int, int, int64_t *, int *, int *)", world.base + at.adapter_of
    )
    check = ffi.cast("int (*)(uintptr_t, int, int64_t, int, int *)", world.base + at.check)
    graphs = comm + at.graphs + graph * world.start.graph.bytes
    peer = end.peer if end.sends else end.rank
    result = adapter_of(comm, end.rank, graphs, end.channel, peer, adapter, device, proxy)
    result = result or check(pointer(comm + at.topology), end.rank, adapter[0], int(end.sends), mode)
    if result != 0:
        raise Failure(f"asking for the adapter of channel {end.channel} returned {world.error(result)}")
    return _Met(bool(mode[0]), proxy[0] != end.rank)

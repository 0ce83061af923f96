"""Marks the connections on every ring as the transports would: by peers' memory, or by GPUDirect RDMA.

Of all ranks, as NCCL tells all of them what each one's connections are like (ncclTransportRingConnect,
src/transport/generic.cc, v2.28.9-1).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tuner._native._sim import ffi
from tuner.oracle.child.memory import pointer, scalar
from tuner.oracle.child.world import Failure, World
from tuner.oracle.messages import AdapterOffsets

P2P_WRITE, DIRECT_NIC = 0x01, 0x04  # flags of a connection: src/include/device.h, v2.24.3-1


@dataclass(frozen=True, slots=True)
class _End:
    """One rank's end of a connection on a channel."""

    channel: int
    rank: int
    peer: int
    sends: bool  # else it receives
    flags: int  # their address


@dataclass(frozen=True, slots=True)
class _Met:
    """The adapter of an end: whether it has GPUDirect RDMA, and another rank's GPU in between (PXN)."""

    direct: bool
    relayed: bool


def connect(world: World) -> None:
    """Neighbours of a node write each other's memory; to others it is as NCCL says of the adapter. Once is enough."""
    if world.rings_marked:
        return
    world.rings_marked = True
    at = world.start.ring.adapters
    met: dict[_End, _Met] = {}
    for rank in range(len(world.comms)):
        for end in _ends(world, rank):
            if _joined(world, end):
                _mark(end, P2P_WRITE)
            elif at is not None:
                met[end] = _met(world, at, end)
    if at is None:
        return
    direct = {(end.channel, end.rank, end.peer, end.sends) for end, adapter in met.items() if adapter.direct}
    for end in met:
        both = (end.channel, end.rank, end.peer, end.sends), (end.channel, end.peer, end.rank, not end.sends)
        if direct.issuperset(both):
            _mark(end, DIRECT_NIC)
    for comm in world.comms:
        ffi.cast("bool *", comm + at.use_gdr)[0] = all(adapter.direct for adapter in met.values())
        ffi.cast("bool *", comm + at.use_net_pxn)[0] = any(end.sends and each.relayed for end, each in met.items())


def _ends(world: World, rank: int) -> Iterator[_End]:
    start, comm = world.start, world.comms[rank]
    at = start.ring
    for number in range(scalar(comm, start.comm.members["nChannels"])):
        channel = comm + at.channels + number * at.channel_bytes
        for neighbour, connectors, sends in ((at.next, at.send, True), (at.prev, at.receive, False)):
            peer = ffi.cast("int *", channel + neighbour)[0]
            record = pointer(pointer(channel + at.peers) + peer * ffi.sizeof("void *"))
            yield _End(number, rank, peer, sends, record + connectors + at.flags)


def _joined(world: World, end: _End) -> bool:
    """Whether memory joins both: of a node, or where NVLink joins cliques, which are nodes, too."""
    comm, members = world.comms[end.rank], world.start.comm.members
    cross = members.get("p2pCrossClique")
    node_of = ffi.cast("int *", scalar(comm, members["rankToNode"]))  # parts of a host may take turns
    joined = cross is not None and ffi.cast("bool *", comm + cross.offset)[0]
    return bool(joined or node_of[end.peer] == node_of[end.rank])


def _mark(end: _End, flag: int) -> None:
    ffi.cast("int *", end.flags)[0] |= flag


def _met(world: World, at: AdapterOffsets, end: _End) -> _Met:
    """What NCCL itself says of it, asked as by src/transport/net.cc."""
    comm = world.comms[end.rank]
    adapter, device, proxy, mode = (ffi.new(kind) for kind in ("int64_t *", "int *", "int *", "int *"))
    adapter_of = ffi.cast(
        "int (*)(uintptr_t, int, uintptr_t, int, int, int64_t *, int *, int *)", world.base + at.adapter_of
    )
    check = ffi.cast("int (*)(uintptr_t, int, int64_t, int, int *)", world.base + at.check)
    peer = end.peer if end.sends else end.rank
    result = adapter_of(comm, end.rank, comm + at.graph, end.channel, peer, adapter, device, proxy)
    result = result or check(pointer(comm + at.topology), end.rank, adapter[0], int(end.sends), mode)
    if result != 0:
        raise Failure(f"asking for the adapter of channel {end.channel} returned {world.error(result)}")
    return _Met(bool(mode[0]), proxy[0] != end.rank)

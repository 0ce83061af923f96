"""Marks rank 0's connections on every ring as the transports would: by peers' memory, or by GPUDirect RDMA."""

from dataclasses import dataclass

from tuner._native._sim import ffi
from tuner.oracle.child.memory import pointer, scalar
from tuner.oracle.child.world import Failure, World
from tuner.oracle.messages import AdapterOffsets

P2P_WRITE, DIRECT_NIC = 0x01, 0x04  # flags of a connection: src/include/device.h, v2.24.3-1


def connect(world: World) -> None:
    """Neighbours of its node write each other's memory; to the others it is as NCCL says of the adapter."""
    start, comm = world.start, world.comms[0]
    at = start.ring
    cross = start.comm.members.get("p2pCrossClique")  # NVLink joins cliques, which are nodes, too
    joined = cross is not None and ffi.cast("bool *", comm + cross.offset)[0]
    node_of = ffi.cast("int *", scalar(comm, start.comm.members["rankToNode"]))  # parts of a host may take turns
    direct, relayed = [], []
    for number in range(scalar(comm, start.comm.members["nChannels"])):
        channel = comm + at.channels + number * at.channel_bytes
        for neighbour, end, reads in ((at.next, at.send, True), (at.prev, at.receive, False)):
            rank = ffi.cast("int *", channel + neighbour)[0]
            peer = pointer(channel + at.peers) + rank * ffi.sizeof("void *")
            flags = ffi.cast("int *", pointer(peer) + end + at.flags)
            if joined or node_of[rank] == node_of[0]:
                flags[0] |= P2P_WRITE
            elif at.adapters is not None:
                met = _met(world, at.adapters, number, rank, reads)
                direct.append(met.direct)
                relayed.append(reads and met.relayed)
                flags[0] |= DIRECT_NIC if met.direct else 0
    if at.adapters is not None:
        ffi.cast("bool *", comm + at.adapters.use_gdr)[0] = all(direct)
        ffi.cast("bool *", comm + at.adapters.use_net_pxn)[0] |= any(relayed)


@dataclass(frozen=True, slots=True)
class _Met:
    """The adapter that rank 0 meets a peer by: whether it has GPUDirect RDMA, and another rank's GPU in between."""

    direct: bool
    relayed: bool


def _met(world: World, at: AdapterOffsets, channel: int, peer: int, reads: bool) -> _Met:
    """What NCCL itself says of it, asked as by src/transport/net.cc."""
    comm = world.comms[0]
    adapter, device, proxy, mode = (ffi.new(kind) for kind in ("int64_t *", "int *", "int *", "int *"))
    adapter_of = ffi.cast(
        "int (*)(uintptr_t, int, uintptr_t, int, int, int64_t *, int *, int *)", world.base + at.adapter_of
    )
    check = ffi.cast("int (*)(uintptr_t, int, int64_t, int, int *)", world.base + at.check)
    result = adapter_of(comm, 0, comm + at.graph, channel, peer, adapter, device, proxy)
    result = result or check(pointer(comm + at.topology), 0, adapter[0], int(reads), mode)
    if result != 0:
        raise Failure(f"asking for the adapter of channel {channel} returned {world.error(result)}")
    return _Met(bool(mode[0]), proxy[0] != 0)

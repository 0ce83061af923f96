"""Reads what NCCL noted of connections, or what was marked in their place."""

from collections.abc import Sequence

from tuner._native._sim import ffi
from tuner.oracle.child.memory import pointer
from tuner.oracle.messages import Connections, RankConnections, ReadConnections, RingOffsets


def read(comms: Sequence[int], asked: ReadConnections) -> Connections:
    """Notes of the ranks of these communicators."""
    return Connections(tuple(_of_rank(comm, asked) for comm in comms))


def _of_rank(comm: int, asked: ReadConnections) -> RankConnections:
    at, adapters = asked.ring, asked.ring.adapters
    assert adapters is not None
    numbers = range(ffi.cast("int *", comm + asked.channels)[0])
    channels = [comm + at.channels + number * at.channel_bytes for number in numbers]
    direct, relayed = (ffi.cast("bool *", comm + at)[0] for at in (adapters.use_gdr, adapters.use_net_pxn))
    flags = tuple((_flags(each, at, at.next, at.send), _flags(each, at, at.prev, at.receive)) for each in channels)
    return RankConnections(bool(direct), bool(relayed), flags)


def _flags(channel: int, at: RingOffsets, peer: int, connector: int) -> int:
    rank = ffi.cast("int *", channel + peer)[0]
    record = pointer(pointer(channel + at.peers) + rank * ffi.sizeof("void *"))
    return int(ffi.cast("int *", record + connector + at.flags)[0])

"""Reads scalars and connections from NCCL's own structs, at the offsets that its debug information gives."""

import struct
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tuner._native._sim import ffi
from tuner.oracle.messages import Connections, Member, RankConnections, ReadConnections, RingOffsets, Scalars

_FORMATS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
    "pointer": "Q",
}


def scalars(start: int, members: Mapping[str, Member]) -> Scalars:
    """The scalars of the struct at an address, by path; arrays become lists."""
    return {path: scalar(start, member) for path, member in members.items()}


def scalar(start: int, member: Member) -> Any:
    """A number or pointer; a flat list of them for an array."""
    code = f"={prod(member.dims)}{_FORMATS[member.type]}"
    memory = ffi.buffer(ffi.cast("char *", start + member.offset), struct.calcsize(code))
    values = struct.unpack(code, memory)
    return list(values) if member.dims else values[0]


def pointer(address: int) -> int:
    """The pointer at an address."""
    return int(ffi.cast("uintptr_t *", address)[0])


def connections(comms: Sequence[int], asked: ReadConnections) -> Connections:
    """The connections that NCCL, or the marking of rings, recorded for the ranks of these communicators."""
    return tuple(_of_rank(comm, asked) for comm in comms)


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

"""Reads scalars and connections from NCCL's own structs, at the offsets that its debug information gives."""

import struct
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from tuner._native._sim import ffi
from tuner.oracle.messages import Connections, Member, RankConnections, Scalars, Symbols

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


def channel(symbols: Symbols, comm: int, number: int) -> int:
    """The address of a communicator's channel."""
    return comm + symbols.comm.arrays["channels"][0] + number * symbols.channel.bytes


def connectors(symbols: Symbols, channel: int, peer: int, end: str) -> int:
    """The address of a channel's connectors to a peer; ``end`` is "send" or "recv"."""
    record = pointer(pointer(channel + symbols.channel.members["peers"].offset) + peer * ffi.sizeof("void *"))
    return record + symbols.peer.arrays[end][0]


def connections(symbols: Symbols, comms: Iterable[int]) -> Connections:
    """The connections that NCCL, or the marking of rings, recorded for the ranks of these communicators."""
    return tuple(_of_rank(symbols, comm) for comm in comms)


def _of_rank(symbols: Symbols, comm: int) -> RankConnections:
    direct, relayed, channels = (scalar(comm, symbols.comm.members[n]) for n in ("useGdr", "useNetPXN", "nChannels"))
    flags = []
    for at in (channel(symbols, comm, number) for number in range(channels)):
        flags.append((_flags(symbols, at, "next", "send"), _flags(symbols, at, "prev", "recv")))
    return RankConnections(bool(direct), bool(relayed), tuple(flags))


def _flags(symbols: Symbols, channel: int, neighbour: str, end: str) -> int:
    peer = scalar(channel, symbols.channel.members[f"ring.{neighbour}"])
    return int(scalar(connectors(symbols, channel, peer, end), symbols.connector.members["conn.flags"]))

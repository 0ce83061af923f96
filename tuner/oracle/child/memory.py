"""Reads scalars out of NCCL's own structs, at offsets that its debug information gives."""

import struct
from collections.abc import Mapping
from math import prod
from typing import Any

from tuner._native._sim import ffi
from tuner.oracle.messages import Member, Scalars

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
    """The scalars of the struct at an address, by path; arrays as lists."""
    return {path: scalar(start, member) for path, member in members.items()}


def scalar(start: int, member: Member) -> Any:
    """A number or pointer; a flat list of them where the member is an array."""
    code = f"={prod(member.dims)}{_FORMATS[member.type]}"
    memory = ffi.buffer(ffi.cast("char *", start + member.offset), struct.calcsize(code))
    values = struct.unpack(code, memory)
    return list(values) if member.dims else values[0]


def pointer(address: int) -> int:
    """The pointer at an address."""
    return int(ffi.cast("uintptr_t *", address)[0])

"""Where things are in C structs: in libnccl's, read from its debug information, and in those of the simulated GPUs."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Member:
    """A scalar, or an array of scalars, inside a struct."""

    offset: int  # bytes from the start of the struct
    type: str  # "int32", "uint64", "float32", "bool", "pointer" ...
    dims: tuple[int, ...]  # () for a scalar


@dataclass(frozen=True, slots=True)
class Layout:
    """A struct's scalar members by dotted path; ``arrays`` of structs are (offset, dims) by path."""

    bytes: int
    members: dict[str, Member]
    arrays: dict[str, tuple[int, tuple[int, ...]]]
    structs: dict[str, tuple[int, int]]  # nested structs by path: offset and size in bytes


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct as the compiler laid it out: a number, an array of numbers, or a struct."""

    name: str
    offset: int
    kind: "str | Struct"  # numpy's kind and bytes, such as "f4"
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct as the compiler laid it out, with its own size."""

    bytes: int
    fields: tuple[Field, ...]


def compiled(ffi: Any, name: str) -> Struct:
    """The layout of a struct that a module built by cffi has, by its C name ("struct sim_answer")."""
    return _struct(ffi, ffi.typeof(name))


def _struct(ffi: Any, kind: Any) -> Struct:
    return Struct(ffi.sizeof(kind), tuple(_field(ffi, name, field) for name, field in kind.fields))


def _field(ffi: Any, name: str, field: Any) -> Field:
    kind, dims = field.type, []
    while kind.kind == "array":
        dims.append(kind.length)
        kind = kind.item
    if kind.kind == "struct":
        return Field(name, field.offset, _struct(ffi, kind), tuple(dims))
    return Field(name, field.offset, f"{_letter(ffi, kind)}{ffi.sizeof(kind)}", tuple(dims))


def _letter(ffi: Any, kind: Any) -> str:
    if kind.kind == "pointer":
        return "u"
    if kind.cname in ("float", "double"):
        return "f"
    return "i" if int(ffi.cast(kind, -1)) < 0 else "u"

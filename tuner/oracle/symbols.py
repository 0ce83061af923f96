"""Reads symbols of a libnccl: addresses of its functions, and layouts of its structs.

The wheels' libraries are not stripped: ``.symtab`` names internal functions, and DWARF describes structs. Reading takes
seconds, so the result is cached by the sha256 of the file.
"""

import contextlib
import json
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from tuner.base.dataclass import dataclass
from tuner.base.errors import OracleUnavailable
from tuner.base.expressions import expression
from tuner.base.files import recall_answer, remember_answer
from tuner.base.records import from_json, to_json
from tuner.oracle.messages import SYMMETRIC, Member, StructLayout, StructNumber, Symbols, WorkLayout

DIE: TypeAlias = Any  # an entry of DWARF, in pyelftools' form

STRUCTS = frozenset(
    {
        "ncclDevKernelArgs",  # from 2.22 on
        "ncclDevWorkBatch",
        "ncclDevWorkP2p",
        "ncclDevWorkColl",
        "ncclDevWorkCollReg",
        "ncclDevWorkBcast",
        "ncclWork",  # up to 2.21
        "ncclWorkHeader",
        "ncclWorkElem",
        "ncclWorkElemReg",
        "ncclWorkElemP2p",
        "ncclSymDevArgs",  # for symmetric kernels in 2.27
        "ncclSymkDevWorkArgs",  # later
        "ncclSymkDevWork",
        "ncclSymkChannelWorkRange",
        "ncclTransport",
        "ncclPeerInfo",
    }
)
ENUMERATIONS = frozenset({"ncclDevWorkType", "ncclDevWorkStorageType", "ncclWorkType", "ncclWorkP2PType"})
_STRUCT_TAGS = {"DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type"}
_SIGNED = (5, 6, 13)  # DW_ATE_signed, _signed_char, and the type of a bit field of an int


def layout(struct: DIE) -> WorkLayout:
    """Reads the layout of a struct from the debug information."""
    read = WorkLayout(int(struct.attributes["DW_AT_byte_size"].value), {}, {})
    for path, bit, die in _work_members(struct, "", 0):
        target = _resolved(die)
        if target.tag in _STRUCT_TAGS:
            read.structs[path] = bit // 8
        elif (number := _number(die, target, bit)) is not None:
            read.numbers[path] = number
    return read


def enumeration(die: DIE) -> dict[str, int]:
    """The names and values of an enumeration."""
    return {
        child.attributes["DW_AT_name"].value.decode(): int(child.attributes["DW_AT_const_value"].value)
        for child in die.iter_children()
    }


def _work_members(struct: DIE, prefix: str, start: int) -> Iterator[tuple[str, int, DIE]]:
    """Every member with its path and its first bit; a nested struct is followed by its members."""
    for die in struct.iter_children():
        if die.tag != "DW_TAG_member" or "DW_AT_external" in die.attributes:
            continue
        name, place = (die.attributes.get(f"DW_AT_{what}") for what in ("name", "data_member_location"))
        path = prefix + ("" if name is None else name.value.decode())
        # A union does not state that its members begin at 0
        bit = start + (0 if place is None else 8 * int(place.value))
        if name is not None:
            yield path, bit, die
        target = _resolved(die)
        if target.tag in _STRUCT_TAGS:
            yield from _work_members(target, path if name is None else path + ".", bit)


def _resolved(die: DIE) -> DIE:
    """The type of a member or of an array's elements, after typedefs and qualifiers are resolved."""
    target = die.get_DIE_from_attribute("DW_AT_type")
    while target.tag in ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type"):
        target = target.get_DIE_from_attribute("DW_AT_type")
    return target


def _number(die: DIE, target: DIE, bit: int) -> StructNumber | None:
    if target.tag == "DW_TAG_pointer_type":
        return StructNumber(bit, 64, False)
    if target.tag not in ("DW_TAG_base_type", "DW_TAG_enumeration_type"):
        return None
    signed = target.tag == "DW_TAG_base_type" and target.attributes["DW_AT_encoding"].value in _SIGNED
    if "DW_AT_bit_size" not in die.attributes:
        return StructNumber(bit, 8 * int(target.attributes["DW_AT_byte_size"].value), signed)
    bits = int(die.attributes["DW_AT_bit_size"].value)
    storage = 8 * int(die.attributes.get("DW_AT_byte_size", target.attributes["DW_AT_byte_size"]).value)
    above = int(die.attributes["DW_AT_bit_offset"].value)  # DWARF 4 counts from the highest bit of the storage
    return StructNumber(bit + storage - above - bits, bits, signed)


FORMAT = 10  # version of the cached file; raise it if what is extracted changes

_BASE_NAME = expression(r"^_ZL?(\d+)")
_CLONE = expression(r"\.constprop\.\d+$")
_KERNELS = ("ncclDevKernel_", "ncclKernel_", *SYMMETRIC)
_PREFIXES = ("nccl", "cuda", "get", "setEnv", "bootstrap", "p2pCanConnect", "shmCanConnect")
_OBJECTS = ("netTransport",)
_MAX_DEPTH = 3  # the deepest nested structs that are read; nothing that is needed lies deeper


def load(library: Path, sha256: str, cache: Path) -> Symbols:
    """The symbols of ``library``; from ``cache`` if the library was read before."""
    stored = cache / "symbols" / f"{sha256[:32]}.{FORMAT}.json"
    # The cached file is missing, damaged, or of another form
    with contextlib.suppress(OSError, KeyError, ValueError, TypeError, AttributeError):
        info = stored.stat()
        return _stored(stored, (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    symbols = read(library)
    remember_answer(stored, json.dumps(to_json(symbols)))
    with contextlib.suppress(OSError):  # the folder may not be readable, or the file not removable
        for old in stored.parent.glob(f"{sha256[:32]}.*.json"):
            if old != stored:
                old.unlink()
    return symbols


@lru_cache(8)  # for the libraries that one process asks repeatedly, while the file stays the same
def _stored(file: Path, state: tuple[int, ...]) -> Symbols:
    symbols: Symbols = from_json(Symbols, json.loads(recall_answer(file)))
    return symbols


# What pyelftools raises on files that lie about themselves, besides its own errors
_DAMAGED: tuple[type[Exception], ...] = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError),
    *(MemoryError, OverflowError, RecursionError, struct.error),
)


@contextlib.contextmanager
def opened(library: Path) -> Iterator[Any]:
    """Opens the ELF file ``library``. OracleUnavailable for another kind of file, and if reading finds damage."""
    # pyelftools belongs to an extra; code that only names symbols, such as a dry run of the plugin, does not need it.
    from elftools.common.exceptions import DWARFError, ELFError
    from elftools.elf.elffile import ELFFile

    damaged: tuple[type[Exception], ...] = (ELFError, DWARFError, *_DAMAGED)
    try:
        with library.open("rb") as file:
            yield ELFFile(file)
    except damaged as error:
        raise OracleUnavailable(f"{library} is not an ELF shared object: {error or type(error).__name__}") from None


def read(library: Path) -> Symbols:
    """Reads the symbols of ``library`` from its ``.symtab`` and DWARF, which takes seconds. OracleUnavailable if it is
    no libnccl."""
    with opened(library) as elf:
        functions, kernels, objects = _functions(elf)
        if "ncclGetVersion" not in functions:
            raise OracleUnavailable(f"{library} is not a libnccl: it has no function ncclGetVersion")
        types = _types(elf, library, any(name.startswith(SYMMETRIC) for name in kernels.values()))
    return Symbols(
        functions=functions,
        kernels=kernels,
        anchor=("ncclGetVersion", functions["ncclGetVersion"][0][0]),
        patterns=types.patterns,
        works={name: layout(die) for name, die in types.works.items()},
        enumerations=types.enumerations,
        objects=objects,
        **{field: _layout(types.structs[name]) for field, name in _STRUCTS.items()},
    )


def own_name(symbol: str) -> str:
    """A function's plain name: ``ncclProxyStart`` for ``_Z14ncclProxyStartP8ncclComm``; C names are unchanged."""
    symbol = _CLONE.sub("", symbol)  # the compiler made a copy for constant arguments
    match = _BASE_NAME.match(symbol)
    return symbol if match is None else symbol[match.end() : match.end() + int(match[1])]


def _functions(elf: Any) -> tuple[dict[str, list[tuple[int, int]]], dict[int, str], dict[str, int]]:
    table = elf.get_section_by_name(".symtab")
    assert table is not None
    functions: dict[str, list[tuple[int, int]]] = {}
    kernels: dict[int, str] = {}
    objects: dict[str, int] = {}
    for symbol in table.iter_symbols():
        if symbol["st_info"]["type"] == "STT_OBJECT" and symbol.name in _OBJECTS:
            objects[symbol.name] = symbol["st_value"]
        if symbol["st_info"]["type"] != "STT_FUNC" or symbol["st_value"] == 0:
            continue
        if "." in _CLONE.sub("", symbol.name):
            continue  # a fragment (.cold, .part), not the function itself
        name = own_name(symbol.name)
        if name.startswith(_PREFIXES):
            where = symbol["st_value"], symbol["st_size"]
            for key in {name, symbol.name}:
                if where not in (known := functions.setdefault(key, [])):
                    known.append(where)
        if name.startswith(_KERNELS):
            kernels[symbol["st_value"]] = name
    return functions, kernels, objects


# Together these contain all types that are needed.
_UNITS = (b"init.cc", b"enqueue.cc", b"search.cc", b"allgatherv_sched.cc", b"symmetric_sched.cc")
_STRUCTS = {  # by field of Symbols
    "comm": "ncclComm",
    "graph": "ncclTopoGraph",
    "system": "ncclTopoSystem",
    "operation": "ncclProxyOp",
    "channel": "ncclChannel",
    "peer": "ncclChannelPeer",
    "connector": "ncclConnector",
}


@dataclass(frozen=True, slots=True)
class _Types:
    structs: dict[str, DIE]
    patterns: dict[str, str]
    works: dict[str, DIE]
    enumerations: dict[str, dict[str, int]]

    def are_complete(self, symmetric: bool) -> bool:
        """Whether all needed types were found; ``symmetric``: the library has symmetric kernels."""
        if symmetric and not {"ncclSymkDevWork", "ncclSymDevArgs"} & self.works.keys():
            return False
        wanted = {"ncclDevWorkP2p", "ncclDevWorkBatch"}
        if "ncclDevWorkTypeBcast" in self.enumerations.get("ncclDevWorkType", {}):
            wanted.add("ncclDevWorkBcast")
        has_works = wanted <= self.works.keys() or "ncclWorkElemP2p" in self.works
        return has_works and len(self.structs) == len(_STRUCTS) and bool(self.patterns)


def _types(elf: Any, library: Path, symmetric: bool) -> _Types:
    """The needed structs and the communication patterns, from the debug information."""
    if not elf.has_dwarf_info():
        raise OracleUnavailable(f"{library} has no debug information, which the communicator's layout is read from")
    types = _Types({}, {}, {}, {})
    for unit in elf.get_dwarf_info().iter_CUs():
        name = unit.get_top_DIE().attributes.get("DW_AT_name")
        if name is None or name.value.rpartition(b"/")[2] not in _UNITS:
            continue
        for die in unit.get_top_DIE().iter_children():
            if die.tag in ("DW_TAG_structure_type", "DW_TAG_class_type") and "DW_AT_declaration" not in die.attributes:
                if _name(die) in _STRUCTS.values():
                    types.structs.setdefault(_name(die), die)
                if _name(die) in STRUCTS:
                    types.works.setdefault(_name(die), die)
            elif die.tag == "DW_TAG_enumeration_type":
                values = enumeration(die)
                if "ncclPatternRing" in values:
                    types.patterns.update({str(value): name for name, value in values.items()})
                elif _name(die) in ENUMERATIONS:
                    types.enumerations.setdefault(_name(die), values)
        if types.are_complete(symmetric):
            return types
    raise OracleUnavailable(f"{library} does not describe struct ncclComm in its debug information")


def _layout(struct: DIE) -> StructLayout:
    layout = StructLayout(_value(struct, "DW_AT_byte_size"), {}, {}, {})
    for path, offset, die in _members(struct, "", 0, _MAX_DEPTH):
        target = _resolved(die)
        dims: tuple[int, ...] = ()
        if target.tag == "DW_TAG_array_type":
            dims, target = _dims(target), _resolved(target)
        if target.tag in _STRUCT_TAGS:
            if dims:
                layout.arrays[path] = (offset, dims)
            else:
                layout.structs[path] = (offset, _value(target, "DW_AT_byte_size"))
        elif (name := _scalar(target)) is not None:
            layout.members[path] = Member(offset, name, dims)
    return layout


def _members(struct: DIE, prefix: str, start: int, depth: int) -> Iterator[tuple[str, int, DIE]]:
    """Every data member with its dotted path and offset; a nested struct is followed by its members."""
    for die in struct.iter_children():
        if die.tag != "DW_TAG_member" or "DW_AT_data_member_location" not in die.attributes:
            continue
        path, offset = prefix + _name(die), start + _value(die, "DW_AT_data_member_location")
        yield path, offset, die
        target = _resolved(die)
        if target.tag in _STRUCT_TAGS and depth > 1:
            yield from _members(target, path + ".", offset, depth - 1)


def _dims(array: DIE) -> tuple[int, ...]:
    dims = []
    for child in array.iter_children():
        if child.tag == "DW_TAG_subrange_type":
            bound = child.attributes.get("DW_AT_upper_bound")
            dims.append(0 if bound is None else bound.value + 1)
    return tuple(dims)


def _scalar(die: DIE) -> str | None:
    if die.tag == "DW_TAG_pointer_type":
        return "pointer"
    bits = 8 * _value(die, "DW_AT_byte_size") if "DW_AT_byte_size" in die.attributes else 0
    if die.tag == "DW_TAG_enumeration_type":
        return f"int{bits}"
    if die.tag != "DW_TAG_base_type":
        return None
    kinds = {2: "bool", 4: f"float{bits}", 5: f"int{bits}", 6: f"int{bits}", 7: f"uint{bits}", 8: f"uint{bits}"}
    return kinds.get(_value(die, "DW_AT_encoding"))


def _name(die: DIE) -> str:
    name = die.attributes.get("DW_AT_name")
    return "" if name is None else name.value.decode()


def _value(die: DIE, attribute: str) -> int:
    return int(die.attributes[attribute].value)

"""Where things are in the structs that NCCL hands its kernels, from its debug information, bit fields too."""

from collections.abc import Iterator
from typing import Any

from elftools.dwarf.die import DIE

from tuner.oracle.messages import Number, WorkLayout

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
        "ncclSymDevArgs",  # of symmetric kernels in 2.27
        "ncclSymkDevWorkArgs",  # later
        "ncclSymkDevWork",
        "ncclSymkChannelWorkRange",
        "ncclTransport",
        "ncclPeerInfo",
    }
)
ENUMERATIONS = frozenset({"ncclDevWorkType", "ncclDevWorkStorageType", "ncclWorkType", "ncclWorkP2PType"})
_STRUCTS = {"DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type"}
_SIGNED = (5, 6, 13)  # DW_ATE_signed, _signed_char, and what a bit field of an int is


def layout(struct: DIE) -> WorkLayout:
    """The layout of a struct that the debug information describes."""
    read = WorkLayout(int(struct.attributes["DW_AT_byte_size"].value), {}, {})
    for path, bit, die in _members(struct, "", 0):
        target = _resolved(die)
        if target.tag in _STRUCTS:
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


def from_json(data: dict[str, Any]) -> dict[str, WorkLayout]:
    """What ``dataclasses.asdict`` made of them."""
    return {
        name: WorkLayout(
            each["size_bytes"],
            {path: Number(**number) for path, number in each["numbers"].items()},
            dict(each["structs"]),
        )
        for name, each in data.items()
    }


def _members(struct: DIE, prefix: str, start: int) -> Iterator[tuple[str, int, DIE]]:
    """Every member with its path and its first bit, those of nested structs after their own."""
    for die in struct.iter_children():
        if die.tag != "DW_TAG_member" or "DW_AT_external" in die.attributes:
            continue
        name, place = (die.attributes.get(f"DW_AT_{what}") for what in ("name", "data_member_location"))
        path = prefix + ("" if name is None else name.value.decode())
        bit = start + (0 if place is None else 8 * int(place.value))  # a union does not say that members begin at 0
        if name is not None:
            yield path, bit, die
        target = _resolved(die)
        if target.tag in _STRUCTS:
            yield from _members(target, path if name is None else path + ".", bit)


def _resolved(die: DIE) -> DIE:
    target = die.get_DIE_from_attribute("DW_AT_type")
    while target.tag in ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type"):
        target = target.get_DIE_from_attribute("DW_AT_type")
    return target


def _number(die: DIE, target: DIE, bit: int) -> Number | None:
    if target.tag == "DW_TAG_pointer_type":
        return Number(bit, 64, False)
    if target.tag not in ("DW_TAG_base_type", "DW_TAG_enumeration_type"):
        return None
    signed = target.tag == "DW_TAG_base_type" and target.attributes["DW_AT_encoding"].value in _SIGNED
    if "DW_AT_bit_size" not in die.attributes:
        return Number(bit, 8 * int(target.attributes["DW_AT_byte_size"].value), signed)
    bits = int(die.attributes["DW_AT_bit_size"].value)
    storage = 8 * int(die.attributes.get("DW_AT_byte_size", target.attributes["DW_AT_byte_size"]).value)
    above = int(die.attributes["DW_AT_bit_offset"].value)  # DWARF 4 counts from the highest bit of the storage
    return Number(bit + storage - above - bits, bits, signed)

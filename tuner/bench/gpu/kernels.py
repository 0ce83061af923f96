"""Random data for every rank, and the result that a collective must compute from it: the CUDA source and its
parameters.

Every rank can compute the data of every other rank, so results are checked on the GPU where they are, all of them and
without tolerance. The values are whole numbers so small that sums in any order are exact in the data type. For
products, the values are 1 and -1; in types whose products wrap around, they are 1 and 3.
"""

import struct
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.names import Collective, DataType, Op

OPS = (Op.sum, Op.prod, Op.max, Op.min)
_C_TYPES = {
    DataType.int8: "signed char",
    DataType.uint8: "unsigned char",
    DataType.int32: "int",
    DataType.uint32: "unsigned int",
    DataType.int64: "long long",
    DataType.uint64: "unsigned long long",
    DataType.float16: "unsigned short",
    DataType.float32: "float",
    DataType.float64: "double",
    DataType.bfloat16: "unsigned short",
}
# Bits of the fraction, and the bias of the exponent. Whole numbers up to 2 ** (bits + 1) are exact.
_FLOATS = {
    DataType.float16: (10, 15),
    DataType.bfloat16: (7, 127),
    DataType.float32: (23, 127),
    DataType.float64: (52, 1023),
}
_LARGEST_SPAN = 100

# NVRTC puts its own header before the source and uses one-letter names. 16-bit floats are made from their bits, so that
# no header is needed, and equal means equal to the last bit.
SOURCE = """
typedef unsigned long long u64;

__device__ static u64 mixed(u64 x) {
  x ^= x >> 30; x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27; x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ static long long value(u64 i, u64 rank, u64 seed) {
  u64 random = mixed(mixed(seed * 0x9e3779b97f4a7c15ull + rank) + i);
  if (K_OP == 1) return (random & 1) ? K_FACTOR : 1;
  return (long long)(random % (2 * K_SPAN + 1)) - (K_SIGNED ? K_SPAN : 0);
}

__device__ static K_TYPE encoded(long long v) {
  if (!K_HALF) return (K_TYPE)v;
  u64 size = v < 0 ? 0 - (u64)v : (u64)v, sign = v < 0 ? 0x8000 : 0;
  if (size == 0) return (K_TYPE)0;
  int top = 0;
  while (size >> (top + 1)) top++;
  u64 fraction = top > K_FRACTION ? size >> (top - K_FRACTION) : size << (K_FRACTION - top);
  return (K_TYPE)(sign | ((u64)(top + K_BIAS) << K_FRACTION) | (fraction & ((1ull << K_FRACTION) - 1)));
}

__device__ static K_TYPE expected(u64 i, u64 first, u64 ranks, u64 per_rank, u64 seed) {
  if (per_rank) return encoded(value((first + i) % per_rank, (first + i) / per_rank, seed));
  long long all = value(first + i, 0, seed);
  for (u64 rank = 1; rank < ranks; rank++) {
    long long one = value(first + i, rank, seed);
    if (K_OP == 0) all += one;
    if (K_OP == 1) all = (long long)((u64)all * (u64)one);
    if (K_OP == 2 && one > all) all = one;
    if (K_OP == 3 && one < all) all = one;
  }
  return encoded(all);
}

extern "C" __global__ void fill(K_TYPE *data, u64 count, u64 rank, u64 seed) {
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    data[i] = encoded(value(i, rank, seed));
}

extern "C" __global__ void check(const K_TYPE *data, u64 count, u64 first, u64 ranks, u64 per_rank, u64 seed,
                                 u64 *wrong) {
  u64 step = (u64)gridDim.x * blockDim.x, mine = 0;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    mine += !(data[i] == expected(i, first, ranks, per_rank, seed));
  if (mine) atomicAdd(wrong, mine);
}
"""


@dataclass(frozen=True, slots=True)
class Values:
    """Describes the data of all ranks, which follow from ``seed``."""

    dtype: DataType
    op: Op
    ranks: int
    seed: int


class Check(NamedTuple):
    """The elements with which one rank's result is compared: ``elements`` elements, from ``first`` on.

    ``per_rank`` is how many elements each rank sends; 0 if results combine all ranks' data.
    """

    elements: int
    first: int
    per_rank: int


def definitions(dtype: DataType, op: Op, ranks: int) -> dict[str, str]:
    """The macro definitions with which the source is compiled. BadInput for types and operations that are not
    checked.
    """
    if dtype not in _C_TYPES:
        raise BadInput(f"{dtype.name} is not measured on GPUs; {one_of(each.name for each in _C_TYPES)}")
    if op not in OPS:
        raise BadInput(f"{op.name} is not measured on GPUs; {one_of(each.name for each in OPS)}")
    fraction, bias = _FLOATS.get(dtype, (0, 0))
    return {
        "K_TYPE": _C_TYPES[dtype],
        "K_OP": str(int(op)),
        "K_SPAN": str(span(dtype, ranks)),
        "K_SIGNED": str(int("uint" not in dtype.name)),
        "K_FACTOR": "-1" if dtype in _FLOATS else "3",
        "K_HALF": str(int(dtype in (DataType.float16, DataType.bfloat16))),
        "K_FRACTION": str(fraction),
        "K_BIAS": str(bias),
    }


def span(dtype: DataType, ranks: int) -> int:
    """The span of the values: they are from -span to span, in unsigned types from 0 to 2 * span."""
    exact = 1 << (_FLOATS[dtype][0] + 1) if dtype in _FLOATS else 127
    return max(1, min(_LARGEST_SPAN, exact // ranks))


def checked(collective: Collective, rank: int, ranks: int, count: int) -> Check | None:
    """Which elements of one rank's result are checked; None if the rank has no result.

    ``count`` is the count that is passed to NCCL's function of the collective.
    """
    if collective is Collective.AllGather:
        return Check(count * ranks, 0, count)
    if collective is Collective.ReduceScatter:
        return Check(count, rank * count, 0)
    if collective is Collective.Broadcast:
        return Check(count, 0, count)
    if collective is Collective.Reduce:
        return Check(count, 0, 0) if rank == 0 else None
    return Check(count, 0, 0)


_MAGIC = 0xBA55ED50
_MAGIC_BYTES = struct.pack("<I", _MAGIC)
HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ")
_ARCH, _ARCH_AT = struct.Struct("<I"), 28
CUBIN = 2
LINKED, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """GPU code of one kind and compute capability in a fat binary, and the position of its bytes in the file."""

    kind: int
    arch: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class FatBinary:
    """The GPU code of one source file in a libnccl."""

    begin: int  # where its header begins
    entries: tuple[CodeEntry, ...]
    first: int  # where its entries begin and end
    end: int


def runs_on(library: Path, capability: int) -> bool:
    """Whether the GPU code in a libnccl runs on a compute capability such as 90, as a cubin, or as PTX of an earlier
    one.

    BadInput if the file is not a libnccl.
    """
    place = code_sections(library)[LINKED]
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        entries = {
            (each.kind, each.arch)
            for one in fat_binaries(library, content, *place, thinned=True)
            for each in one.entries
        }
    return any(arch <= capability and (kind != CUBIN or arch // 10 == capability // 10) for kind, arch in entries)


def code_sections(library: Path) -> dict[str, tuple[int, int]]:
    """For each section of GPU code in the file, by name: the positions of its begin and end, in bytes.

    BadInput if the file is not a libnccl.
    """
    from elftools.common.exceptions import ELFError  # from a package of an extra
    from elftools.elf.elffile import ELFFile

    try:
        with library.open("rb") as file:
            elf = ELFFile(file)
            found = {name: elf.get_section_by_name(name) for name in (LINKED, RELOCATABLE)}
            places = {
                name: (section["sh_offset"], section["sh_offset"] + section["sh_size"])
                for name, section in found.items()
                if section is not None
            }
    except (ELFError, OSError) as error:
        raise BadInput(f"{library}: not a libnccl: {error}") from None
    if LINKED not in places:
        raise BadInput(f"{library}: no GPU code in it: no section {LINKED}")
    return places


def fat_binaries(library: Path, content: mmap, begin: int, end: int, *, thinned: bool = False) -> Iterator[FatBinary]:
    """Yields the fat binaries of a section.

    ``thinned``: binaries were removed from the file, so that there may be zeros between the others. BadInput if the
    file's format is not known.
    """
    while begin < end:
        magic, _, header_bytes, size = HEADER.unpack_from(content, begin)
        if magic == 0 and thinned:  # space of a binary that was taken out before this one
            begin = content.find(_MAGIC_BYTES, begin, end)
            if begin < 0:
                return
            continue
        first, after = begin + header_bytes, begin + header_bytes + size
        if magic != _MAGIC or after > end:
            raise BadInput(f"{library}: no fat binary at byte {begin}: a format that is not known")
        yield FatBinary(begin, tuple(_entries(library, content, first, after)), first, after)
        begin = after


def _entries(library: Path, content: mmap, begin: int, end: int) -> Iterator[CodeEntry]:
    while begin < end:
        kind, _, header_bytes, size = _ENTRY.unpack_from(content, begin)
        after = begin + header_bytes + size
        if header_bytes <= _ARCH_AT or after > end:
            raise BadInput(f"{library}: no entry of a fat binary at byte {begin}: a format that is not known")
        yield CodeEntry(kind, _ARCH.unpack_from(content, begin + _ARCH_AT)[0], begin, after)
        begin = after

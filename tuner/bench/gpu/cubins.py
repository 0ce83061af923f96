"""A libnccl with the GPU code of one kind of GPU alone: a tenth of the file's size, to be carried to a machine.

A wheel's libnccl has cubins for every GPU since Pascal: linked ones in the section .nv_fatbin, which CUDA loads, and
those they were linked from in __nv_relfatbin. Each section is a row of fat binaries, each a header and its entries:

    fat binary: magic u32, version u16, bytes of this header u16, bytes of all entries u64
    entry:      kind u16 (1 PTX, 2 cubin), u16, bytes of this header u32, bytes of its content u64, ..., arch u32 at 28

The entries that stay are moved to the front of their fat binary and the rest is zeros, so that every address in the
file stays what it was, symbols and debug information included. The layout was read from libnccl 2.18.1 to 2.32.3, where
it accounts for every byte of both sections.
"""

import hashlib
import re
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from tuner.base.errors import BadInput

_MAGIC = 0xBA55ED50
_MAGIC_BYTES = struct.pack("<I", _MAGIC)
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ")
_ARCH, _ARCH_AT = struct.Struct("<I"), 28
_CUBIN = 2
LINKED, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"


@dataclass(frozen=True, slots=True)
class Thinned:
    """What became of a libnccl: which cubins it kept (``sm_90``), how many bytes of them, and the sha256 of both."""

    gpu: str
    kept: str
    kept_bytes: int
    sha256: str
    thinned_sha256: str


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: int
    arch: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _FatBinary:
    begin: int  # of its header
    entries: tuple[_Entry, ...]
    first: int  # where its entries begin and end
    end: int


def thin(library: Path, out: Path, gpu: str, *, linked_only: bool = False) -> Thinned:
    """Writes ``out``, this libnccl with only the cubins that a GPU such as ``sm_90`` runs.

    These are those of its own compute capability, else of the highest below with the same major number. With
    ``linked_only`` the relocatable ones go, too: CUDA needs them only where it finds no linked one that fits.
    BadInput for a file that is no libnccl, or has none for such a GPU.
    """
    sections = _sections(library)
    shutil.copyfile(library, out)
    with out.open("r+b") as file, mmap(file.fileno(), 0) as content:
        found = {name: list(_fat_binaries(library, content, *place)) for name, place in sections.items()}
        arch = _fitting(
            library, gpu, {each.arch for one in found[LINKED] for each in one.entries if each.kind == _CUBIN}
        )
        kept_bytes = 0
        for name, fat_binaries in found.items():
            for one in fat_binaries:
                fits = not (linked_only and name == RELOCATABLE)
                kept_bytes += _keep(content, one, arch if fits else None)
    return Thinned(gpu, f"sm_{arch}", kept_bytes, _sha256(library), _sha256(out))


def runs_on(library: Path, capability: int) -> bool:
    """Whether the linked GPU code of a libnccl has some for a compute capability such as 90: cubins, or earlier PTX.

    BadInput for a file that is no libnccl.
    """
    place = _sections(library)[LINKED]
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        entries = {
            (each.kind, each.arch)
            for one in _fat_binaries(library, content, *place, thinned=True)
            for each in one.entries
        }
    return any(arch <= capability and (kind != _CUBIN or arch // 10 == capability // 10) for kind, arch in entries)


def _sections(library: Path) -> dict[str, tuple[int, int]]:
    """Where the sections of GPU code begin and end in the file."""
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


def _fat_binaries(library: Path, content: mmap, begin: int, end: int, *, thinned: bool = False) -> Iterator[_FatBinary]:
    while begin < end:
        magic, _, header_bytes, size = _HEADER.unpack_from(content, begin)
        if magic == 0 and thinned:  # what was taken out of the one before
            begin = content.find(_MAGIC_BYTES, begin, end)
            if begin < 0:
                return
            continue
        first, after = begin + header_bytes, begin + header_bytes + size
        if magic != _MAGIC or after > end:
            raise BadInput(f"{library}: no fat binary at byte {begin}: a format that is not known")
        yield _FatBinary(begin, tuple(_entries(library, content, first, after)), first, after)
        begin = after


def _entries(library: Path, content: mmap, begin: int, end: int) -> Iterator[_Entry]:
    while begin < end:
        kind, _, header_bytes, size = _ENTRY.unpack_from(content, begin)
        after = begin + header_bytes + size
        if header_bytes <= _ARCH_AT or after > end:
            raise BadInput(f"{library}: no entry of a fat binary at byte {begin}: a format that is not known")
        yield _Entry(kind, _ARCH.unpack_from(content, begin + _ARCH_AT)[0], begin, after)
        begin = after


def _fitting(library: Path, gpu: str, archs: set[int]) -> int:
    known = ", ".join(f"sm_{arch}" for arch in sorted(archs))
    if (match := re.fullmatch(r"sm_(\d{2,3})", gpu)) is None:
        raise BadInput(f"{gpu!r} is no kind of GPU; {library} has {known}; valid: such as sm_90 for an H100")
    wanted = int(match[1])
    fits = [arch for arch in archs if arch <= wanted and arch // 10 == wanted // 10]
    if not fits:
        raise BadInput(f"{library} has nothing for {gpu}; valid: {known}, and later ones of the same major number")
    return max(fits)


def _keep(content: mmap, one: _FatBinary, arch: int | None) -> int:
    """Moves the cubins of ``arch`` to the front and makes the rest zeros; the bytes of these."""
    kept = b"".join(content[each.begin : each.end] for each in one.entries if (each.kind, each.arch) == (_CUBIN, arch))
    magic, version, header_bytes, _ = _HEADER.unpack_from(content, one.begin)
    _HEADER.pack_into(content, one.begin, magic, version, header_bytes, len(kept))
    content[one.first : one.end] = kept + bytes(one.end - one.first - len(kept))
    return len(kept)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

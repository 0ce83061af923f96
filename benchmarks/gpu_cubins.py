"""A libnccl with the GPU code of one kind of GPU alone, as a bundle carries it."""

import hashlib
import re
import shutil
from mmap import mmap
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.bench.gpu.kernels import CUBIN, HEADER, LINKED, RELOCATABLE, FatBinary, code_sections, fat_binaries


@dataclass(frozen=True, slots=True)
class Thinned:
    """A libnccl that was thinned: which cubins it kept (``sm_90``), how many bytes of them, and the sha256 of both."""

    gpu: str
    kept: str
    kept_bytes: int
    sha256: str
    thinned_sha256: str


def thin(library: Path, out: Path, gpu: str, *, linked_only: bool = False) -> Thinned:
    """Writes ``out``, this libnccl with only the cubins that a GPU such as ``sm_90`` runs.

    These are those of its own compute capability, else of the highest below with the same major number. With
    ``linked_only`` the relocatable ones go, too: CUDA needs them only where it finds no linked one that fits.
    BadInput for a file that is no libnccl, or has none for such a GPU.
    """
    sections = code_sections(library)
    shutil.copyfile(library, out)
    with out.open("r+b") as file, mmap(file.fileno(), 0) as content:
        found = {name: list(fat_binaries(library, content, *place)) for name, place in sections.items()}
        arch = _fitting(
            library, gpu, {each.arch for one in found[LINKED] for each in one.entries if each.kind == CUBIN}
        )
        kept_bytes = 0
        for name, several in found.items():
            for one in several:
                fits = not (linked_only and name == RELOCATABLE)
                kept_bytes += _keep(content, one, arch if fits else None)
    return Thinned(gpu, f"sm_{arch}", kept_bytes, _sha256(library), _sha256(out))


def _fitting(library: Path, gpu: str, archs: set[int]) -> int:
    known = ", ".join(f"sm_{arch}" for arch in sorted(archs))
    if (match := re.fullmatch(r"sm_(\d{2,3})", gpu)) is None:
        raise BadInput(f"{gpu!r} is no kind of GPU; {library} has {known}; valid: such as sm_90 for an H100")
    wanted = int(match[1])
    fits = [arch for arch in archs if arch <= wanted and arch // 10 == wanted // 10]
    if not fits:
        raise BadInput(f"{library} has nothing for {gpu}; valid: {known}, and later ones of the same major number")
    return max(fits)


def _keep(content: mmap, one: FatBinary, arch: int | None) -> int:
    """Moves the cubins of ``arch`` to the front and makes the rest zeros; the bytes of these."""
    kept = b"".join(content[each.begin : each.end] for each in one.entries if (each.kind, each.arch) == (CUBIN, arch))
    magic, version, header_bytes, _ = HEADER.unpack_from(content, one.begin)
    HEADER.pack_into(content, one.begin, magic, version, header_bytes, len(kept))
    content[one.first : one.end] = kept + bytes(one.end - one.first - len(kept))
    return len(kept)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

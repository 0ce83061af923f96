"""What of nccl-tuner is installed on this computer, what is missing, and how to mend that."""

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tuner import release
from tuner.base.errors import OracleUnavailable, TunerError
from tuner.base.extras import EXTRAS, MissingExtra
from tuner.base.files import cache_folder
from tuner.base.native import FOLDER, bindings
from tuner.oracle import library, process

OBJECTS = ("libnccl_tuner_plugin.so", "libnccl_tuner_force.so", "libnccl_tuner_sim.so", "libnccl_tuner_picks.so")
REINSTALL = "pip install --force-reinstall nccl-tuner"
MODULES = {"_plugin": "plugin dry-run", "_force": "measure", "_sim": "oracle and check"}


@dataclass(frozen=True, slots=True)
class Part:
    """Something that may be there."""

    name: str
    state: str
    works: bool
    mend: str = ""  # a command or a sentence; nothing where it works, or cannot be mended here


@dataclass(frozen=True, slots=True)
class ExtraFound:
    """An extra, and what of it is not installed."""

    name: str
    gives: str
    missing: tuple[str, ...]
    install: str


@dataclass(frozen=True, slots=True)
class CachedLibrary:
    """A libnccl in the cache."""

    release: str
    build: str
    path: Path
    bytes: int


@dataclass(frozen=True, slots=True)
class Installation:
    """All of it; :attr:`works` where everything that is installed does, whatever extras are missing."""

    version: str
    python: str
    platform: str
    folder: Path
    parts: tuple[Part, ...]
    extras: tuple[ExtraFound, ...]
    cache: Path
    cached: tuple[CachedLibrary, ...]
    installed_nccl: tuple[CachedLibrary, ...]  # as packages of Python

    @property
    def works(self) -> bool:
        """Whether nothing that is installed has to be mended."""
        return all(part.works or not part.mend for part in self.parts)


def inspect() -> Installation:
    """Looks at this computer. Nothing is changed, fetched or sent."""
    return Installation(
        version=version("nccl-tuner"),
        python=platform.python_version(),
        platform=f"{sys.platform} {platform.machine()}",
        folder=Path(__file__).resolve().parents[1],
        parts=(*_objects(), *_modules(), _oracle(), _cache()),
        extras=tuple(ExtraFound(each.name, each.gives, each.missing, each.install) for each in EXTRAS),
        cache=cache_folder(),
        cached=tuple(_cached()),
        installed_nccl=tuple(_installed()),
    )


def _objects() -> list[Part]:
    return [_object(FOLDER / name) for name in OBJECTS]


def _object(file: Path) -> Part:
    if not file.is_file():
        mend = "reinstall nccl-tuner from its wheel for Linux" if sys.platform == "linux" else ""
        return Part(file.name, "not in this installation", False, mend)
    try:
        ctypes.CDLL(str(file))
    except OSError as error:
        return Part(file.name, f"cannot be loaded: {error}", False, REINSTALL)
    return Part(file.name, str(file), True)


def _modules() -> list[Part]:
    parts = []
    for name, purpose in MODULES.items():
        if not any(FOLDER.glob(f"{name}*.so")):
            continue  # as its object is
        try:
            stale = _other_sources(bindings(name))
            state = "of other sources than its object" if stale else "works"
            parts.append(Part(name, f"for {purpose}: {state}", not stale, REINSTALL if stale else ""))
        except MissingExtra as error:
            parts.append(Part(name, f"for {purpose}: {error}", False))
        except TunerError as error:
            parts.append(Part(name, f"for {purpose}: {error}", False, REINSTALL))
    return parts


def _other_sources(module: Any) -> bool:
    """Whether a module and its object say that they are built from different sources: one is of an older build."""
    if not hasattr(module.lib, "sim_sources"):
        return False
    said = (module.lib.sim_sources(), module.lib.sim_expected_sources())
    return len({bytes(module.ffi.string(each)) for each in said}) > 1


def _oracle() -> Part:
    try:
        process.check_platform()
    except (OracleUnavailable, MissingExtra) as error:
        return Part("oracle", str(error), False)  # an extra, or another computer: nothing is broken
    return Part("oracle", "can run", True)


def _cache() -> Part:
    folder = cache_folder()
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))  # Path's raises: no permission
    if os.access(there, os.W_OK):
        return Part("cache", str(folder), True)
    return Part("cache", f"{folder} cannot be written", False, "set NCCL_TUNER_CACHE to a folder that can")


def _cached() -> list[CachedLibrary]:
    known = [(name, build) for build in library.WHEELS for name in release.names()]
    files = [(name, build, library.cached(name, build)) for name, build in known]
    there = [each for each in files if os.path.isfile(each[2])]
    return [CachedLibrary(name, build, path, path.stat().st_size) for name, build, path in there]


def _installed() -> list[CachedLibrary]:
    found = []
    for build in library.WHEELS:
        name = library.installed_release(build)
        if name is not None and (path := library.installed_file(build)).is_file():
            found.append(CachedLibrary(name, build, path, path.stat().st_size))
    return found

"""Variables by which a process makes its NCCL load a tuner plugin, which differ by release."""

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.records import sha256
from tuner.release import Release

_SEPARATORS = ":;$"  # what LD_LIBRARY_PATH splits at, and where a token such as $ORIGIN begins: ld.so(8)


@dataclass(frozen=True, slots=True)
class LoadingEnvironment:
    """Variables to set, and folders to put first in lists of folders."""

    set: dict[str, str]
    prepend: dict[str, str] = field(default_factory=dict)

    def exports(self) -> list[str]:
        """Lines that a POSIX shell evaluates."""
        lines = [f'export {name}={shlex.quote(folder)}"${{{name}:+:${name}}}"' for name, folder in self.prepend.items()]
        return [*lines, *(f"export {name}={shlex.quote(value)}" for name, value in self.set.items())]


@dataclass(frozen=True, slots=True)
class Interface:
    """``ncclTunerPlugin_v<version>``, the newest that a release looks up: what a plugin is told and asked.

    Source: src/include/nccl_tuner.h and src/include/plugin/tuner/ of the releases that introduced the versions.
    """

    version: int
    keeps_constants: bool  # as a plugin's init left them

    @property
    def says_who_asks(self) -> bool:
        """Whether the plugin learns the communicator at its start."""
        return self.version >= 2

    @property
    def hands_costs(self) -> bool:
        """Whether the plugin is given a cost table to change."""
        return self.version >= 3

    @property
    def knows_registered(self) -> bool:
        """Whether the plugin learns that buffers are registered."""
        return self.version >= 4

    @property
    def hands_constants(self) -> bool:
        """Whether the plugin is given the model's constants to change."""
        return self.version >= 5

    @property
    def says_domains(self) -> bool:
        """Whether the plugin learns the communicator's number of NVLink domains."""
        return self.version >= 5

    @property
    def asks_chunks(self) -> bool:
        """Whether the plugin is asked for the size of chunks."""
        return self.version >= 6


def has_plugins(nccl: Release) -> bool:
    """Whether the release loads tuner plugins."""
    return nccl.plugin is not None


def interface(nccl: Release) -> Interface:
    """The interface that a release uses. BadInput for a release that looks for no tuner plugin."""
    if nccl.plugin is None:
        raise BadInput(f"NCCL {nccl.name} has no tuner plugins; valid: {first(lambda _: True)} and later")
    return Interface(nccl.plugin.api, nccl.plugin.keeps_constants)


def first(holds: Callable[[Interface], bool]) -> str:
    """The first release with such an interface."""
    plugged = filter(has_plugins, map(release.load, release.names()))
    return next(nccl.name for nccl in plugged if holds(interface(nccl)))


def job_settings(live: Path | None, switch: Path | None, timed: bool) -> dict[str, str]:
    """Variables of one job: its start time, on which ranks agree, a folder for counts, and the switch of all jobs.

    ``timed``: the table is valid for some days. BadInput for a switch that does not exist.
    """
    if switch is not None and not switch.is_file():
        raise BadInput(f"{switch}: not there; an empty file that all nodes see is a switch that is on")
    settings = {"NCCL_TUNER_JOB_TIME": str(int(time.time()))} if switch or timed else {}
    for name, path in (("NCCL_TUNER_LIVE", live), ("NCCL_TUNER_SWITCH", switch)):
        if path is not None:
            settings[name] = os.path.abspath(path)
    return settings


def takes_path(nccl: Release, file: Path) -> bool:
    """Whether ``file``, an absolute path, works as NCCL_TUNER_PLUGIN."""
    return nccl.plugin is not None and len(os.fsencode(file)) <= nccl.plugin.longest_path


def environment(
    nccl: Release, file: Path, table: Path | None = None, strict: bool = False, following: str | None = None
) -> LoadingEnvironment:
    """Variables that make ``nccl`` load the plugin in ``file``, and the plugin read ``table``; all paths become
    absolute.

    The plugin accepts the table only with its current content, and asks the tuner ``following`` where the table decides
    nothing: a path, a library's name, or "none". Where a release cannot load a path, it gets the plugin's name, which
    LD_LIBRARY_PATH has to find. BadInput for a release without tuner plugins, and for a file that cannot be found by
    its name then; OSError if there is no such table.
    """
    interface(nccl)
    file = Path(os.path.abspath(file))
    settings = {}
    if table is not None:
        settings = {
            "NCCL_TUNER_TABLE": os.path.abspath(table).replace("%", "%%"),
            "NCCL_TUNER_TABLE_SHA256": sha256(table),
        }
    if strict:
        settings["NCCL_TUNER_STRICT"] = "1"
    if following is not None:
        settings["NCCL_TUNER_NEXT"] = os.path.abspath(following) if "/" in following else following
    if takes_path(nccl, file):
        return LoadingEnvironment({"NCCL_TUNER_PLUGIN": str(file), **settings})
    if not (file.name.startswith("lib") and file.name.endswith(".so")):
        raise BadInput(f"NCCL {nccl.name} finds {file} only if its name is lib*.so")
    folder = str(file.parent)
    if any(mark in folder for mark in _SEPARATORS):
        raise BadInput(
            f"NCCL {nccl.name} finds {file} by LD_LIBRARY_PATH only, which cannot hold this folder; "
            f"valid: one without {' '.join(_SEPARATORS)}"
        )
    return LoadingEnvironment({"NCCL_TUNER_PLUGIN": file.name, **settings}, {"LD_LIBRARY_PATH": folder})

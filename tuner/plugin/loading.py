"""Variables that make NCCL load a tuner plugin; they depend on the release."""

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

# Characters at which LD_LIBRARY_PATH is split, and the beginning of tokens such as $ORIGIN: ld.so(8)
_SEPARATORS = ":;$"


@dataclass(frozen=True, slots=True)
class LoadingEnvironment:
    """Changes of a job's environment that make NCCL load the plugin.

    ``set`` has variables and their values. ``prepend`` has variables that are lists of folders, each with the folder to
    put before the list.
    """

    set: dict[str, str]
    prepend: dict[str, str] = field(default_factory=dict)

    def exports(self) -> list[str]:
        """``export`` lines for a POSIX shell."""
        lines = [f'export {name}={shlex.quote(folder)}"${{{name}:+:${name}}}"' for name, folder in self.prepend.items()]
        return [*lines, *(f"export {name}={shlex.quote(value)}" for name, value in self.set.items())]


@dataclass(frozen=True, slots=True)
class Interface:
    """The newest tuner interface that a release looks up (``ncclTunerPlugin_v<version>``): what NCCL tells a plugin,
    and what it asks.

    Source: src/include/nccl_tuner.h and src/include/plugin/tuner/ of the releases that introduced the versions.
    """

    version: int
    keeps_constants: bool  # NCCL uses the constants as a plugin's init left them

    @property
    def says_who_asks(self) -> bool:
        """Whether NCCL tells the plugin the sizes of the communicator when it starts."""
        return self.version >= 2

    @property
    def hands_costs(self) -> bool:
        """Whether NCCL hands the plugin a cost table to change."""
        return self.version >= 3

    @property
    def knows_registered(self) -> bool:
        """Whether NCCL tells the plugin if buffers are registered."""
        return self.version >= 4

    @property
    def hands_constants(self) -> bool:
        """Whether NCCL hands the plugin the constants of its model to change."""
        return self.version >= 5

    @property
    def says_domains(self) -> bool:
        """Whether NCCL tells the plugin how many NVLink domains the communicator has."""
        return self.version >= 5

    @property
    def asks_chunks(self) -> bool:
        """Whether NCCL asks the plugin for chunk sizes."""
        return self.version >= 6


def has_plugins(nccl: Release) -> bool:
    """Whether the release loads tuner plugins."""
    return nccl.plugin is not None


def interface(nccl: Release) -> Interface:
    """The interface that a release uses. BadInput for a release without tuner plugins."""
    if nccl.plugin is None:
        raise BadInput(f"NCCL {nccl.name} has no tuner plugins: use {first(lambda _: True)} or later")
    return Interface(nccl.plugin.api, nccl.plugin.keeps_constants)


def first(holds: Callable[[Interface], bool]) -> str:
    """Name of the first release whose interface meets the condition ``holds``."""
    plugged = filter(has_plugins, map(release.load, release.names()))
    return next(nccl.name for nccl in plugged if holds(interface(nccl)))


def job_settings(live: Path | None, switch: Path | None, timed: bool) -> dict[str, str]:
    """Variables that are set once for a job, with the same values on all ranks.

    They name the folder ``live`` for counts, the file ``switch`` that turns plugins on and off, and the time at which
    the job starts.

    The time is set if there is a switch, or if ``timed`` is true: the table is only valid on certain days. BadInput for
    a switch that does not exist.
    """
    if switch is not None and not switch.is_file():
        raise BadInput(f"{switch} does not exist: make an empty file that all nodes see, which is a switch that is on")
    settings = {"NCCL_TUNER_JOB_TIME": str(int(time.time()))} if switch or timed else {}
    for name, path in (("NCCL_TUNER_LIVE", live), ("NCCL_TUNER_SWITCH", switch)):
        if path is not None:
            settings[name] = os.path.abspath(path)
    return settings


def takes_path(nccl: Release, file: Path) -> bool:
    """Whether ``file``, an absolute path, works as the value of NCCL_TUNER_PLUGIN."""
    return nccl.plugin is not None and len(os.fsencode(file)) <= nccl.plugin.longest_path


def environment(
    nccl: Release, file: Path, table: Path | None = None, strict: bool = False, following: str | None = None
) -> LoadingEnvironment:
    """Variables that make ``nccl`` load the plugin in ``file`` and make the plugin read ``table``; all paths become
    absolute.

    The plugin only accepts the table if its content is the same as at the time of this call. For calls that the table
    does not decide, it asks the tuner ``following``: a path, a library's name, or "none". A release that cannot load a
    path gets the plugin's name, and LD_LIBRARY_PATH gets its folder. BadInput for a release without tuner plugins, and
    for a file that such a release cannot find by name; OSError if there is no such table.
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
            f"NCCL {nccl.name} finds {file} by LD_LIBRARY_PATH only, which cannot hold this folder: use one without "
            f"{' '.join(_SEPARATORS)}"
        )
    return LoadingEnvironment({"NCCL_TUNER_PLUGIN": file.name, **settings}, {"LD_LIBRARY_PATH": folder})

"""How a process makes its NCCL load a tuner plugin: the variables of its environment, which differ by release."""

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from tuner import release
from tuner.errors import BadInput
from tuner.release import Release

_SEPARATORS = ":;$"  # what LD_LIBRARY_PATH splits at, and where a token such as $ORIGIN begins: ld.so(8)


@dataclass(frozen=True, slots=True)
class Environment:
    """Variables to set, and folders to put before what a list of folders has."""

    set: dict[str, str]
    prepend: dict[str, str] = field(default_factory=dict)

    def exports(self) -> list[str]:
        """Lines that a POSIX shell evaluates."""
        lines = [
            f'export {name}={shlex.quote(folder)}"${{{name}:+:${name}}}"' for name, folder in self.prepend.items()
        ]
        return [*lines, *(f"export {name}={shlex.quote(value)}" for name, value in self.set.items())]


def newest_interface(nccl: Release) -> int:
    """The newest ``ncclTunerPlugin_v<N>`` that the release looks up; BadInput where it looks up none."""
    if "plugin" not in nccl.table:
        first = next(name for name in release.names() if "plugin" in release.load(name).table)
        raise BadInput(f"NCCL {nccl.name} has no tuner plugins; valid: {first} and later")
    return int(nccl.table["plugin"]["api"])


def takes_path(nccl: Release, file: Path) -> bool:
    """Whether ``file``, an absolute path, works as NCCL_TUNER_PLUGIN."""
    longest: int = nccl.table["plugin"]["longest_path"]
    return len(os.fsencode(file)) <= longest


def environment(nccl: Release, file: Path, table: Path | None = None, strict: bool = False) -> Environment:
    """What makes ``nccl`` load the plugin in ``file`` and the plugin read ``table``; all paths become absolute.

    Where a path does not work the plugin goes by its name, which LD_LIBRARY_PATH has to find. BadInput for a release
    without tuner plugins, and for a file that then cannot be found by its name.
    """
    newest_interface(nccl)
    file = Path(os.path.abspath(file))
    settings = {} if table is None else {"NCCL_TUNER_TABLE": os.path.abspath(table)}
    if strict:
        settings["NCCL_TUNER_STRICT"] = "1"
    if takes_path(nccl, file):
        return Environment({"NCCL_TUNER_PLUGIN": str(file), **settings})
    if not (file.name.startswith("lib") and file.name.endswith(".so")):
        raise BadInput(f"NCCL {nccl.name} finds {file} only if its name is lib*.so")
    folder = str(file.parent)
    if any(mark in folder for mark in _SEPARATORS):
        raise BadInput(
            f"NCCL {nccl.name} finds {file} by LD_LIBRARY_PATH only, which cannot hold this folder; "
            f"valid: one without {' '.join(_SEPARATORS)}"
        )
    return Environment({"NCCL_TUNER_PLUGIN": file.name, **settings}, {"LD_LIBRARY_PATH": folder})

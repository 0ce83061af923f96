"""Harmless modules that note that they ran, under the names that Python programs import."""

import importlib.metadata
import sys
from collections.abc import Iterable
from pathlib import Path

_NOTE = "ran.txt"
_NOTES = """import os
with open(os.path.join({folder!r}, {note!r}), "a") as file:
    file.write({name!r} + chr(10))
"""


def importable() -> list[str]:
    """Of the standard library but ``os``, which the notes need, of all that is installed, and of this project."""
    installed = {name for name in importlib.metadata.packages_distributions() if name.isidentifier()}
    own = {"tuner", "nccl_tuner", "pip", "sitecustomize", "usercustomize", "tests"}
    return sorted((sys.stdlib_module_names | installed | own) - {"os"})


def plant(folder: Path, names: Iterable[str] | None = None) -> None:
    """A module of each name, and beside `pip` a package with a main program."""
    for name in importable() if names is None else names:
        text = _NOTES.format(folder=str(folder), note=_NOTE, name=name)
        if name == "pip":
            (folder / name).mkdir(exist_ok=True)
            for file in ("__init__.py", "__main__.py"):
                (folder / name / file).write_text(text)
        else:
            (folder / f"{name}.py").write_text(text)


def that_ran(folder: Path) -> list[str]:
    """Names of those that ran."""
    note = folder / _NOTE
    return sorted(set(note.read_text().split())) if note.is_file() else []

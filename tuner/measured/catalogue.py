"""The files of ``tables/measured``, by name."""

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from tuner.base.errors import BadInput, one_of
from tuner.measured.reader import parse, read
from tuner.measured.records import MeasuredTable


def names() -> tuple[str, ...]:
    """Every table that is shipped."""
    there = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in there if name.endswith(".csv")))


@cache
def load(name: str) -> MeasuredTable:
    """A table that is shipped. BadInput for another name."""
    if name not in names():
        raise BadInput(f"no measured table {name!r}; {one_of(names())}")
    return parse(name, (_folder() / f"{name}.csv").read_text(encoding="utf-8"), f"tables/measured/{name}.csv")


def named_or_read(path: Path) -> MeasuredTable:
    """A table that is shipped by its name, or that of a file. BadMeasurement for a file that is none."""
    return load(str(path)) if str(path) in names() else read(path)


def file_of(path: Path) -> Path:
    """The file of a table that is shipped, where ``path`` is the name of one; else ``path`` itself."""
    return Path(str(_folder() / f"{path}.csv")) if str(path) in names() else path


def _folder() -> Traversable:
    return files("tuner.tables") / "measured"

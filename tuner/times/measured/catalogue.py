"""The files of ``tables/measured``, by name."""

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from tuner.base.errors import BadInput, BadMeasurement, did_you_mean, one_of
from tuner.times.measured.reader import parse, read
from tuner.times.measured.records import MeasuredTable

_WHERE = "; 'nccl-tuner measured list' shows the tables"


def names() -> tuple[str, ...]:
    """Every table that is shipped."""
    there = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in there if name.endswith(".csv")))


@cache
def load(name: str) -> MeasuredTable:
    """A table that is shipped. BadInput for another name."""
    if name not in names():
        raise BadInput(f"no measured table {name!r}; {one_of(names())}{_WHERE}")
    return parse(name, (_folder() / f"{name}.csv").read_text(encoding="utf-8"), f"tables/measured/{name}.csv")


def named_or_read(path: Path) -> MeasuredTable:
    """A table that is shipped by its name, or that of a file. BadMeasurement for a file that is none."""
    return load(str(path)) if str(path) in names() else read(file_of(path))


def file_of(path: Path) -> Path:
    """The file of a table that is shipped, where ``path`` is the name of one; else ``path`` itself.

    BadMeasurement where there is neither.
    """
    if str(path) in names():
        return Path(str(_folder() / f"{path}.csv"))
    if not path.exists():
        raise BadMeasurement(f"{path}: No such file or shipped table{did_you_mean(str(path), names())}{_WHERE}")
    return path


def _folder() -> Traversable:
    return files("tuner.tables") / "measured"

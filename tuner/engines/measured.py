"""Measured times of whole AllReduce calls by engines, as others published them: ``tables/engines/measured.toml``."""

from functools import cache
from typing import Any

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.engines.releases import FOLDER

TABLE = "measured.toml"


@dataclass(frozen=True, slots=True)
class MeasuredAllReduce:
    """The time of an engine's AllReduce in microseconds, measured in a CUDA graph on one node.

    ``engine`` is the release that was measured; a later release may carry the same size with another implementation.
    ``source`` says who published the time.
    """

    engine: str
    gpu: str
    ranks: int
    bytes: int
    time_us: float
    source: str


def measured(engine: str, gpu: str, ranks: int, dtype: str) -> dict[int, MeasuredAllReduce]:
    """The measured times of an engine by size in bytes; empty if this GPU, number of ranks or data type was not
    measured.

    ``gpu`` is a chip's name, such as H100. Nothing is interpolated between the measured sizes.
    """
    table = _table()
    if dtype != table["dtype"]:
        return {}
    return {
        size: MeasuredAllReduce(f"{run['engine']}@{run['release']}", gpu, ranks, size, time_us, table["source"])
        for run in table["run"]
        if (run["engine"], run["gpu"], run["ranks"]) == (engine, gpu, ranks)
        for size, time_us in zip(table["sizes_bytes"], run["time_us"], strict=True)
    }


@cache
def _table() -> dict[str, Any]:
    return tables.toml(tables.folder() / FOLDER / TABLE)

"""Errors of calibrated times between nodes at sites left out of the fit, as benchmarks/sites.py recorded them."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import mean, median
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.tables import folder

ALL = "all"
_ERRORS = ("error", "nccl", "one_factor", "large_error", "large_nccl", "large_one_factor")


@dataclass(frozen=True, slots=True)
class ClassAccuracy:
    """Accuracy over the healthy tables of one class of GPUs, or all, with ``given`` random rows of each table.

    Errors are medians over the tables' medians, as shares: of calibrated times, of NCCL's own times, and of NCCL's
    times with one factor from the same rows. Names with ``large_`` are for sizes from 16 MiB on, None without such
    calls. ``inside``: the mean share of a table's times in their 90 % intervals.
    """

    gpu: str
    given: int
    tables: int
    error: float
    nccl: float
    one_factor: float
    large_error: float | None
    large_nccl: float | None
    large_one_factor: float | None
    inside: float


def accuracy() -> tuple[ClassAccuracy, ...]:
    """Accuracy by class of GPUs, ``all`` first, and by the number of rows given."""
    healthy = [each for each in _kept()["tables"] if each["health"] == "healthy" and each["how"] != "chosen"]
    classes = [ALL, *sorted({_gpu(each) for each in healthy})]
    found = []
    for gpu in classes:
        for given in sorted({each["given"] for each in healthy}):
            of_class = [each for each in healthy if each["given"] == given and gpu in (ALL, _gpu(each))]
            if of_class:
                errors = {name: _median(of_class, name) for name in _ERRORS}
                inside = mean(each["inside"] for each in of_class)
                found.append(ClassAccuracy(gpu, given, len(of_class), inside=inside, **errors))  # type: ignore[arg-type]
    return tuple(found)


def _gpu(table: Mapping[str, Any]) -> str:
    return str(table["table"]).partition("-")[0].upper()


def _median(tables: Sequence[Mapping[str, Any]], name: str) -> float | None:
    known = [each[name] for each in tables if each[name] is not None]
    return float(median(known)) if known else None


@cache
def _kept() -> Mapping[str, Any]:
    kept: Mapping[str, Any] = json.loads((folder() / "sites.json").read_text("utf-8"))
    return kept

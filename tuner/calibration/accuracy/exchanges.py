"""The frozen splits for AllToAll: those that hold out sizes, GPUs or a release."""

from dataclasses import dataclass

import numpy as np

from tuner import measured
from tuner.calibration import point_to_point_fit
from tuner.calibration.accuracy.evaluate import mean_absolute_error
from tuner.calibration.accuracy.splits import Split, splits
from tuner.calibration.measured_calls import Site
from tuner.calibration.point_to_point_fit import MeasuredExchanges
from tuner.timemodel import point_to_point
from tuner.timemodel.features import Which

KINDS = ("sizes", "gpus", "release")


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """The mean absolute error on held-out times of AllToAll, as a share."""

    kind: str
    title: str
    rows: int
    error: float


def run() -> tuple[ExchangeResult, ...]:
    """All splits that there are measured times of AllToAll for."""
    results = []
    for split in splits():
        if split.kind in KINDS and (both := _halves(split)):
            fitted, test = both
            predicted_us = point_to_point.times_us(point_to_point_fit.fit(fitted), test.calls)
            error = mean_absolute_error(predicted_us, test.times_us)
            results.append(ExchangeResult(split.kind, split.title, len(test.rows), error))
    return tuple(results)


def _halves(split: Split) -> tuple[MeasuredExchanges, MeasuredExchanges] | None:
    own = _rows(split.fit[0])
    if own is None:
        return None
    if split.test:
        test = _rows(split.test[0])
        return None if test is None or split.test_rows else (own, test)
    held = _held(own, split)
    return own[~held], own[held]


def _held(rows: MeasuredExchanges, split: Split) -> Which:
    conditions = split.hold_out or {}
    if "sizes" in conditions:
        first, step = conditions["sizes"]
        return np.isin(rows.calls.bytes, np.unique(rows.calls.bytes)[first::step])
    return np.isin(rows.gpus_per_node, list(conditions["gpus_per_node"]))


def _rows(name: str) -> MeasuredExchanges | None:
    table = measured.load(name)
    if any(row.nodes > 1 for row in table.rows):
        return None
    return point_to_point_fit.of_tables([table], [Site(table.header.machine, table.header.nccl)])

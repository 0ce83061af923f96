"""The frozen splits for AllToAll: those that hold out sizes, GPUs or a release."""

import math
from collections.abc import Iterable
from functools import cache

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.times import measured
from tuner.times.calibration import calibrate
from tuner.times.calibration.accuracy.evaluate import Scores, learn_scaled, mean_absolute_error
from tuner.times.calibration.accuracy.splits import Split, splits
from tuner.times.calibration.calibrate import MeasuredExchanges
from tuner.times.placement import Site
from tuner.times.timemodel import point_to_point
from tuner.times.timemodel.features import Array, Which
from tuner.times.timemodel.intervals import CarriedOver, Factors

KINDS = ("sizes", "gpus", "release")


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """The mean absolute error on held-out times of AllToAll, as a share, and what the intervals cover.

    The intervals of a machine's split are learnt from the errors on other machines.
    """

    kind: str
    title: str
    rows: int
    error: float
    coverage: float
    half_width: float


@dataclass(frozen=True, slots=True, eq=False)
class _Predicted:
    split: Split
    error: float
    off: Array  # absolute logarithms
    scatter: float


def run() -> tuple[ExchangeResult, ...]:
    """All splits that there are measured times of AllToAll for."""
    return tuple(_result(each) for each in _all())


def factors() -> Factors:
    """How wide intervals of AllToAll are by what is carried over, in scatters of the calibration."""
    return _learnt(_all())


def _result(predicted: _Predicted) -> ExchangeResult:
    split = predicted.split
    others = [each for each in _all() if each.split.machine != split.machine]
    own = [each for each in _all() if each.split.kind not in {one.split.kind for one in others}]
    learnt = _learnt([*others, *(each for each in own if each.split != split)])
    half = predicted.scatter * math.hypot(*(learnt[kind] for kind in {CarriedOver.sizes, CarriedOver[split.kind]}))
    rows, covered = len(predicted.off), float((predicted.off <= half).mean())
    return ExchangeResult(split.kind, split.title, rows, predicted.error, covered, float(np.sinh(half)))


def _learnt(predicted: Iterable[_Predicted]) -> Factors:
    return learn_scaled(
        Scores(
            CarriedOver[each.split.kind],
            each.split,
            each.split.machine,
            each.off,
            np.full(len(each.off), each.scatter),
            np.full(len(each.off), each.scatter),
        )
        for each in predicted
    )


@cache
def _all() -> tuple[_Predicted, ...]:
    found = []
    for split in splits():
        if split.kind in KINDS and (both := _halves(split)):
            fitted, test = both
            parameters = calibrate.fit_exchanges(fitted)
            predicted_us = point_to_point.times_us(parameters, test.calls)
            error = mean_absolute_error(predicted_us, test.times_us)
            off = np.abs(np.log(predicted_us / test.times_us))
            found.append(_Predicted(split, error, off, calibrate.exchange_scatter(fitted, parameters)))
    return tuple(found)


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
    if any(row.nodes > 1 for row in table.blocks):
        return None
    return calibrate.exchanges_of_tables([table], [Site(table.header.machine, table.header.nccl)])

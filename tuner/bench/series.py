"""Measured times of a combination over sizes, beside those that the model predicts: the records behind pictures."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.times.comparison.compared import Comparison
from tuner.times.comparison.judged import kind_of
from tuner.times.evidence import Evidence
from tuner.times.records.samples import Combination, Point

Row = tuple[int, float, float, float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Arrays over ``bytes``, ascending, [size]; times in us: typical, and its 95 % interval.

    ``predicted_us`` is not a number where the model has no time for it; it has only those of NCCL's own channels.
    """

    combination: Combination
    bytes: NDArray[np.int64]
    measured_us: NDArray[np.float64]
    low_us: NDArray[np.float64]
    high_us: NDArray[np.float64]
    predicted_us: NDArray[np.float64]


def series(comparison: Comparison, kind: Point) -> list[Series]:
    """Of one kind of call. NCCL's own choice counts for what it was, where that was not requested as well.

    What was executed by NCCL's own choice, where the file does not say it, is what the model picks.
    """
    by_combination: dict[Combination, list[Row]] = {}
    for point, evidence in comparison.evidence.items():
        if kind_of(point) == kind:
            for combination, row in _rows(comparison, point, evidence).items():
                by_combination.setdefault(combination, []).append(row)
    return [_series(combination, rows) for combination, rows in sorted(by_combination.items())]


def _rows(comparison: Comparison, point: Point, evidence: Evidence) -> dict[Combination, Row]:
    model = comparison.model
    predicted_us = {} if model is None else model.times_us(point)
    rows = {}
    for column in sorted(evidence.columns, key=lambda column: column is not None):  # what was requested goes last
        combination = column or evidence.executed or (model.pick(point) if model else None)
        if combination is None:
            continue
        if column is None:
            combination = Combination(combination.algorithm, combination.protocol)
        algo_proto = combination.algorithm, combination.protocol
        model_us = np.nan if combination.channels else predicted_us.get(algo_proto, np.nan)
        rows[combination] = (point.bytes, *evidence.band_us(column), model_us)
    return rows


def _series(combination: Combination, rows: list[Row]) -> Series:
    sizes, measured_us, low_us, high_us, predicted_us = np.array(rows).T
    return Series(combination, sizes.astype(np.int64), measured_us, low_us, high_us, predicted_us)

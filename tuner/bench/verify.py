"""Is NCCL's pick the fastest? Files of measurements, judged, as one record."""

import csv
from collections.abc import Mapping
from dataclasses import field
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.frames import Column, Framed, NamedColumn
from tuner.base.names import Collective, DataType, Op, by_name
from tuner.base.records import Files, json_form, paths
from tuner.base.sizes import size_bytes
from tuner.times.compared import (
    Comparison,
    Crossover,
    ModelError,
    Skipped,
    Total,
    VerifiedSize,
    compare,
    kind_of,
    mean_regrets,
)
from tuner.times.evidence import Evidence
from tuner.times.records.samples import Combination, Point

Histogram = Mapping[tuple[Collective, int], float]  # calls by collective and nBytes


@dataclass(frozen=True, slots=True)
class ModelChanges:
    """``bytes`` are the sizes from which the emulated pick is another."""

    collective: Collective
    bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """One file: where the measured best and the emulated pick change, and how well the model knows its times.

    ``origin`` says whose times they are: simulated or measured, of which machine and release.
    ``truncated``: its last line was cut off. ``rank_agreement`` is Kendall's tau of the model's order of combinations,
    by collective. ``histogram`` is the total over the calls of a histogram, if one was given. ``comparison`` has the
    measurements themselves.
    """

    file: Path
    truncated: bool
    crossovers: tuple[Crossover, ...]
    model_changes: tuple[ModelChanges, ...]
    model_errors: tuple[ModelError, ...]
    rank_agreement: Mapping[Collective, float]
    skipped: tuple[Skipped, ...]
    histogram: Total | None = field(metadata=json_form(optional=True))
    origin: str
    comparison: Comparison = field(repr=False, metadata=json_form(omitted=True))


@dataclass(frozen=True, slots=True)
class Verification(Framed):
    """What :func:`verify` says: ``regret_mean`` over all sizes at which something beside NCCL's pick was measured, and
    what of it is beyond the noise; None where nothing was.

    As a frame it has a row for each of ``sizes``.
    """

    regret_mean: float | None
    regret_mean_beyond_noise: float | None
    sizes: tuple[VerifiedSize, ...]
    files: tuple[VerifiedFile, ...]

    def columns(self) -> dict[str, Column]:
        """collective, bytes, pick, pick_us, best, best_us, regret with its interval (NaN: none), and more; [size]."""
        return {
            "collective": NamedColumn(Collective, np.array([one.collective for one in self.sizes])),
            "bytes": np.array([one.bytes for one in self.sizes]),
            "pick": [str(one.pick) for one in self.sizes],
            "pick_us": np.array([one.pick_us for one in self.sizes]),
            "best": [str(one.best) for one in self.sizes],
            "best_us": np.array([one.best_us for one in self.sizes]),
            "regret": np.array([one.regret for one in self.sizes], np.float64),
            "regret_low": np.array([one.regret_low for one in self.sizes], np.float64),
            "regret_high": np.array([one.regret_high for one in self.sizes], np.float64),
            "significant": np.array([one.significant for one in self.sizes]),
            "rounds": np.array([one.rounds for one in self.sizes]),
            "dtype": NamedColumn(DataType, np.array([one.dtype for one in self.sizes])),
            "op": NamedColumn(Op, np.array([one.op for one in self.sizes])),
            "in_place": np.array([one.in_place for one in self.sizes]),
            "graph": np.array([one.graph for one in self.sizes]),
            "file": [str(one.file) for one in self.sizes],
        }


def verify(files: Files, *, histogram: str | PathLike[str] | Histogram | None = None) -> Verification:
    """NCCL's pick against the measured best, for files that ``nccl-tuner measure`` or nccl-tests wrote.

    ``histogram`` says how often which size is called: {(collective, nBytes): calls}, or a CSV of
    collective,bytes,count; each file then has the total over these calls.
    Errors: BadMeasurement for a file of which nothing can be judged, and for calls outside of the measured sizes.
    """
    given = paths(files)
    compared = [compare(path) for path in given]
    calls = read_histogram(Path(histogram)) if isinstance(histogram, str | PathLike) else histogram
    means = mean_regrets([one for comparison in compared for one in comparison.sizes])
    mean, beyond = means if means is not None else (None, None)
    return Verification(
        mean,
        beyond,
        tuple(one for comparison in compared for one in comparison.sizes),
        tuple(_file(path, comparison, calls) for path, comparison in zip(given, compared, strict=True)),
    )


def read_histogram(path: Path) -> dict[tuple[Collective, int], float]:
    """A CSV of collective,bytes,count, with or without that line; sizes as in 64K. BadMeasurement names the line."""
    histogram: dict[tuple[Collective, int], float] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(number, row) for number, row in enumerate(csv.reader(file), start=1) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadMeasurement(f"{path}: {error}") from error
    if rows and rows[0][1][-1].strip() == "count":
        del rows[0]
    for number, row in rows:
        try:
            name, size, count = row
            key = by_name(Collective, name.strip(), "collective"), size_bytes(size)
            calls = float(count)
            if not 0 <= calls < float("inf"):
                raise ValueError(count)
        except (ValueError, BadInput) as error:
            raise BadMeasurement(f"{path}:{number}: not collective,bytes,count: {error}") from None
        histogram[key] = histogram.get(key, 0.0) + calls
    return histogram


def _file(path: Path, comparison: Comparison, calls: Histogram | None) -> VerifiedFile:
    return VerifiedFile(
        path,
        comparison.measurements.truncated,
        tuple(comparison.crossovers()),
        tuple(ModelChanges(kind.collective, tuple(sizes)) for kind, sizes in comparison.model_changes().items()),
        tuple(comparison.model_errors()),
        comparison.rank_agreement(),
        tuple(comparison.skipped),
        None if calls is None else comparison.total(calls),
        comparison.measurements.header.origin,
        comparison,
    )


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

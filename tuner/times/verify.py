"""Checks whether NCCL's picks are the fastest: judges files of measurements, and computes regrets, crossovers and the
model's errors."""

import csv
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base import view
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement, CannotBeJudged, NoAlgorithm, one_of
from tuner.base.frames import Column, Framed, NamedColumn
from tuner.base.names import ALGO_PROTOS, AlgoProto, Algorithm, Collective, DataType, Op, Protocol, by_name
from tuner.base.records import Files, json_form, paths
from tuner.base.sizes import size_bytes
from tuner.base.spelling import spelled
from tuner.emulator.selection import Selection
from tuner.times.compare import crossing, middle, straight
from tuner.times.evidence import Evidence, collect
from tuner.times.measured.formats import read_any
from tuner.times.measured.header import scenario_of
from tuner.times.measured.samples import Combination, Measurements, Point
from tuner.times.picks import JudgedPick, alike, judge

WORD = 4  # in bytes; sizes are multiples of this


class EmulatedModel:
    """Picks and times of the emulator for the communicator that was measured."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._picks: dict[Point, Combination | None] = {}

    def pick(self, point: Point) -> Combination | None:
        """NCCL's pick; None if NCCL has no algorithm for the call."""
        if point not in self._picks:
            try:
                picks = self.selection.pick(point.request, [point.bytes])
            except NoAlgorithm:
                self._picks[point] = None
            else:
                self._picks[point] = Combination(*picks.algo_protos()[0], int(picks.channels[0]))
        return self._picks[point]

    def times_us(self, point: Point) -> dict[AlgoProto, float]:
        """The predicted time in us of every combination that NCCL does not ignore."""
        (table_us,) = self.selection.cost_table(point.request, [point.bytes])
        return {algo_proto: float(table_us[algo_proto]) for algo_proto in ALGO_PROTOS if table_us[algo_proto] > 0}

    def changes(self, kind: Point, low: int, high: int) -> list[int]:
        """The sizes in (low, high] at which the pick changes, exact to ``WORD`` bytes."""
        sizes = np.unique(np.append(np.geomspace(low, high, 512).astype(np.int64) // WORD * WORD, [low, high]))
        algo_protos = self._cells(kind, sizes)
        changes = []
        for index in np.flatnonzero(algo_protos[1:] != algo_protos[:-1]):
            below, above = int(sizes[index]), int(sizes[index + 1])
            while (between := (below + above) // 2 // WORD * WORD) > below:
                same = self._cells(kind, np.array([between]))[0] == algo_protos[index]
                below, above = (between, above) if same else (below, between)
            changes.append(above)
        return changes

    def _cells(self, kind: Point, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.selection.pick(kind.request, sizes).combinations


def model_of(measurements: Measurements) -> EmulatedModel | None:
    """The emulator for the communicator in a file's header; None if the header describes no communicator that can be
    emulated."""
    header = measurements.header
    return None if header.scenario is None else EmulatedModel(Selection(scenario_of(header).communicator()))


_NOT_SAID = (
    "no log of NCCL's own choice, and the file does not say where it was measured; valid: with {option:machine} NAME"
)
FEWEST_OTHERS = 2  # least number of other choices besides a pick with which the best can be named


RoundsPick = JudgedPick[Point, Combination | None, Evidence]


def regret_interval(one: RoundsPick) -> tuple[float | None, float | None]:
    """The 95 % interval of the regret: 0 if the pick is the best, None if there are too few rounds."""
    return (0.0 if one.evidence.rounds > 1 else None, 0.0) if one.best == one.pick else (one.low, one.high)


def _sizes_record(sizes: Sequence[RoundsPick]) -> list[dict[str, Any]]:
    return [
        {
            "collective": one.call.collective,
            "bytes": one.call.bytes,
            "pick": str(one.pick),
            "best": str(one.best),
            "regret": one.regret,
            "significant": one.loses,
            "pick_us": one.pick_us,
            "best_us": one.best_us,
            **dict(zip(("regret_low", "regret_high"), regret_interval(one), strict=True)),
            "rounds": one.evidence.rounds,
            "emulated_pick": one.emulated_pick and str(one.emulated_pick),
            **{name: getattr(one.call, name) for name in ("dtype", "op", "in_place", "graph")},
            "ranks": one.ranks,
            "others": len(one.others),
            "file": one.file,
        }
        for one in sizes
    ]


def _call(point: Point) -> dict[str, object]:
    return {"collective": point.collective, "bytes": point.bytes}


@dataclass(frozen=True, slots=True)
class Skipped:
    """A call without a regret, and why it has none."""

    point: Point = field(metadata=json_form(convert=_call, merged=True))
    reason: str


def judged(point: Point, evidence: Evidence, model: EmulatedModel | None) -> RoundsPick | Skipped:
    """Judges NCCL's pick, as executed or else as emulated, against everything else that was measured at this point."""
    emulated = model.pick(point) if model is not None else None
    pick = evidence.executed or emulated
    if pick is None:
        return Skipped(point, f"what NCCL picks is not known: {spelled(_NOT_SAID)}")
    enough = FEWEST_OTHERS
    if model is not None:  # unless no other size can run
        enough = max(1, min(enough, len(model.times_us(point).keys() - {pick.algo_proto})))
    one = judge(point, pick, evidence, emulated, enough)
    return one if one.same else Skipped(point, f"the pick was not measured: {pick.plain}")


def _alike(one: RoundsPick) -> frozenset[Combination]:
    """Combinations that are not slower than the best beyond the noise."""
    best = one.same[0] if one.best == one.pick else one.best
    return frozenset(one.pick if other is None or other in one.same else other for other in alike(one.evidence, best))


def kind_of(point: Point) -> Point:
    """The point of 0 bytes that stands for all sizes of this kind of call."""
    return replace(point, bytes=0)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


@dataclass(frozen=True, slots=True)
class ModelError:
    """Mean absolute errors of one algorithm and protocol over sizes, as shares of 1: unscaled, and after scaling."""

    collective: Collective = field(metadata=view.column("collective"))
    algorithm: Algorithm
    protocol: Protocol
    sizes: int = field(metadata=view.column("sizes"))
    mape: float = field(metadata=view.column("MAPE", text=_percent))
    mape_scaled: float = field(metadata=view.column("MAPE scaled", text=_percent))
    scale: float = field(metadata=view.column("scale", digits=3))
    tau: float | None = field(metadata=view.column("tau", digits=3))  # Kendall's tau of the times over sizes

    @property
    @view.shown("combination")
    def combination(self) -> str:
        """Algorithm and protocol: ``Ring/LL``."""
        return f"{self.algorithm.name}/{self.protocol.name}"


def model_error(collective: Collective, algo_proto: AlgoProto, times_us: NDArray[np.float64]) -> ModelError:
    """Error of ``times_us``, [size][measured, model], of one combination."""
    from scipy.stats import kendalltau

    measured, model = times_us.T
    ratios = model / measured
    # The scale that makes the mean of |scale * ratio - 1| smallest is a median of 1 / ratio, weighted by the ratio.
    order = np.argsort(1 / ratios)
    weights = np.cumsum(ratios[order])
    scale = float(1 / ratios[order][np.searchsorted(weights, weights[-1] / 2)])
    tau = float(kendalltau(measured, model).statistic) if len(times_us) > 1 else float("nan")
    return ModelError(
        collective,
        *algo_proto,
        len(times_us),
        float(np.abs(ratios - 1).mean()),
        float(np.abs(scale * ratios - 1).mean()),
        scale,
        tau if np.isfinite(tau) else None,
    )


@dataclass(frozen=True, slots=True)
class Crossover:
    """A change of the best choice between two measured sizes; ``at_bytes`` is where the measured times cross."""

    collective: Collective
    before: Combination = field(metadata=json_form(convert=str))
    after: Combination = field(metadata=json_form(convert=str))
    low_bytes: int
    high_bytes: int
    at_bytes: int


def lead(evidence: Evidence, before: Combination | None, after: Combination | None) -> float:
    """The logarithm of the factor by which ``before`` is faster than ``after``; NaN if one of them was not measured."""
    measured = before in evidence.columns and after in evidence.columns
    return evidence.level(after) - evidence.level(before) if measured else float("nan")


@dataclass(eq=False)
class JudgedFile:
    """A file of measurements, judged."""

    measurements: Measurements
    model: EmulatedModel | None
    file: Path | None = None

    @cached_property
    def evidence(self) -> dict[Point, Evidence]:
        """The times of each call, by round and combination."""
        return collect(self.measurements.blocks)

    @cached_property
    def _judged(self) -> list[RoundsPick | Skipped]:
        return [judged(point, evidence, self.model) for point, evidence in self.evidence.items()]

    @cached_property
    def sizes(self) -> list[RoundsPick]:
        """The calls that were judged."""
        ranks = self.measurements.header.ranks
        return [replace(one, ranks=ranks, file=self.file) for one in self._judged if not isinstance(one, Skipped)]

    @property
    def skipped(self) -> list[Skipped]:
        """The calls without a regret."""
        return [one for one in self._judged if isinstance(one, Skipped)]

    @cached_property
    def kinds(self) -> dict[Point, list[RoundsPick]]:
        """Sizes by kind of call, which is a point of 0 bytes."""
        by_kind: dict[Point, list[RoundsPick]] = {}
        for one in self.sizes:
            by_kind.setdefault(kind_of(one.call), []).append(one)
        return by_kind

    def crossovers(self) -> list[Crossover]:
        """Crossovers: where the measured best changes beyond the noise, as few changes as the measurements allow."""
        crossovers = []
        for sizes in self.kinds.values():
            segments = fewest_segments([_alike(one) for one in sizes])
            winners = [_likeliest(sizes[start:stop], common) for start, stop, common in segments]
            for (start, _, _), before, after in zip(segments[1:], winners, winners[1:], strict=False):
                low, high = sizes[start - 1].call, sizes[start].call
                at = self._crossing(low, high, before, after)
                crossovers.append(Crossover(low.collective, before, after, low.bytes, high.bytes, at))
        return crossovers

    def _crossing(self, low: Point, high: Point, before: Combination, after: Combination) -> int:
        """The size at which the measured times cross, by straight lines between two sizes; else the middle."""
        ends = [(point.bytes, lead(self.evidence[point], before, after)) for point in (low, high)]
        return crossing(straight(*ends), low.bytes, high.bytes) or middle(low.bytes, high.bytes)

    def model_changes(self) -> dict[Point, list[int]]:
        """By kind of call, the sizes within the measured ones at which the emulated pick changes."""
        if self.model is None:
            return {}
        return {
            kind: self.model.changes(kind, sizes[0].call.bytes, sizes[-1].call.bytes)
            for kind, sizes in self.kinds.items()
            if sizes[-1].call.bytes > sizes[0].call.bytes
        }

    def model_errors(self) -> list[ModelError]:
        """Errors of the model for what was executed with NCCL's own channels."""
        pairs: dict[tuple[Collective, AlgoProto], list[tuple[float, float]]] = {}
        for point, algo_proto, measured_us, model_us in self._both():
            pairs.setdefault((point.collective, algo_proto), []).append((measured_us, model_us))
        return [
            model_error(collective, algo_proto, np.array(times))
            for (collective, algo_proto), times in sorted(pairs.items())
        ]

    def rank_agreement(self) -> dict[Collective, float]:
        """Whether the model orders the combinations of a size as measured: Kendall's tau, the mean over sizes."""
        from scipy.stats import kendalltau

        sizes: dict[Point, list[tuple[float, float]]] = {}
        for point, _, measured_us, model_us in self._both():
            sizes.setdefault(point, []).append((measured_us, model_us))
        taus: dict[Collective, list[float]] = {}
        for point, times in sizes.items():
            if len(times) > 1 and np.isfinite(tau := float(kendalltau(*np.array(times).T).statistic)):
                taus.setdefault(point.collective, []).append(tau)
        return {collective: float(np.mean(own)) for collective, own in taus.items()}

    def _both(self) -> list[tuple[Point, AlgoProto, float, float]]:
        pairs = []
        for point, evidence in self.evidence.items() if self.model is not None else ():
            assert self.model is not None
            model_us = self.model.times_us(point)
            for column in evidence.columns:
                if column is None or column.channels:
                    continue
                if column.algo_proto in model_us:
                    pairs.append((point, column.algo_proto, evidence.time_us(column), model_us[column.algo_proto]))
        return pairs

    def total(self, histogram: Mapping[tuple[Collective, int], float]) -> "Total":
        """Totals over the calls of a histogram. Times of other sizes are interpolated between measured ones, linear in
        logarithms of both.

        BadMeasurement for a size outside of the measured sizes.
        """
        pick_us = best_us = 0.0
        for (collective, size), count in histogram.items():
            sizes = next((judged for kind, judged in self.kinds.items() if kind.collective is collective), [])
            if not sizes:
                valid = one_of(sorted({kind.collective.name for kind in self.kinds}))
                raise BadMeasurement(f"the histogram has {collective.name}, which was not measured; {valid}")
            known = [one.call.bytes for one in sizes]
            if not known[0] <= size <= known[-1]:
                raise BadMeasurement(
                    f"the histogram has {collective.name} of {size} bytes, but {known[0]} to {known[-1]} bytes were "
                    "measured"
                )
            pick_us += count * between(size, known, [one.pick_us or 0.0 for one in sizes])
            best_us += count * between(size, known, [one.best_us for one in sizes])
        return Total(sum(histogram.values()), pick_us, best_us, pick_us / best_us - 1 if best_us else 0.0)


@dataclass(frozen=True, slots=True)
class Total:
    """Total times of all calls of a histogram: with NCCL's picks, and with the best choices. ``regret`` is the time
    with NCCL's picks over the time with the best choices, minus 1.
    """

    calls: float
    pick_us: float
    best_us: float
    regret: float


def judge_file(path: Path) -> JudgedFile:
    """Judges a file of any kind that has measurements. CannotBeJudged if nothing in it can be judged."""
    measurements = read_any(path)
    comparison = JudgedFile(measurements, model_of(measurements), path)
    if not comparison.sizes:
        why = comparison.skipped[0].reason if comparison.skipped else "it has no times that count"
        raise CannotBeJudged(f"{path}: {why}")
    return comparison


def mean_regrets(sizes: Sequence[RoundsPick]) -> tuple[float, float] | None:
    """The mean regret over sizes whose pick can be judged, and its part beyond the noise; None without such sizes."""
    known = [one for one in sizes if one.is_known]
    if not known:
        return None
    beyond = sum(one.regret or 0 for one in known if one.loses)
    return sum(one.regret or 0 for one in known) / len(known), beyond / len(known)


def fewest_segments(
    allowed: Sequence[frozenset[Combination]],
) -> list[tuple[int, int, frozenset[Combination]]]:
    """The fewest consecutive segments [start, stop), each with the combinations that are allowed throughout it."""
    segments, start = [], 0
    while start < len(allowed):
        stop, common = start + 1, allowed[start]
        while stop < len(allowed) and common & allowed[stop]:
            common &= allowed[stop]
            stop += 1
        segments.append((start, stop, common))
        start = stop
    return segments


def _likeliest(sizes: Sequence[RoundsPick], common: frozenset[Combination]) -> Combination:
    """Of the combinations that may be best at all of these sizes, the one that may be best at most of them."""
    bests = [one.best for one in sizes]
    return max(sorted(common), key=bests.count)


def between(size: int, sizes: Sequence[int], times_us: Sequence[float]) -> float:
    """The time of a size between measured ones, interpolated linearly in logarithms of both."""
    index = min(bisect_right(sizes, size), len(sizes) - 1)
    low, high = max(0, index - 1), index
    if sizes[low] == sizes[high]:
        return times_us[low]
    part = np.log(size / sizes[low]) / np.log(sizes[high] / sizes[low])
    return float(np.exp((1 - part) * np.log(times_us[low]) + part * np.log(times_us[high])))


Histogram = Mapping[tuple[Collective, int], float]  # number of calls by collective and nBytes


@dataclass(frozen=True, slots=True)
class ModelChanges:
    """The sizes (``bytes``) at which the emulated pick changes, for a collective."""

    collective: Collective
    bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """One file: where the measured best and the emulated pick change, and the errors of the model's times.

    ``origin`` says where the times come from: simulated or measured, on which machine and release. ``truncated``:
    whether the file's last line was cut off. ``rank_agreement`` is Kendall's tau of the model's order of combinations,
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
    comparison: JudgedFile = field(repr=False, metadata=json_form(omitted=True))


_COLUMNS = (
    *("collective", "bytes", "pick", "pick_us", "best", "best_us", "regret", "regret_low", "regret_high"),
    *("significant", "rounds", "dtype", "op", "in_place", "graph", "file"),
)


def _column(name: str, values: list[Any]) -> Column:
    if name in ("pick", "best", "file"):
        return list(map(str, values))
    if (kind := {"collective": Collective, "dtype": DataType, "op": Op}.get(name)) is not None:
        return NamedColumn(kind, np.array(values))
    return np.array(values, np.float64 if name.startswith("regret") else None)


@dataclass(frozen=True, slots=True)
class Verification(Framed):
    """Answer of :func:`verify`: ``regret_mean`` over all sizes at which something besides NCCL's pick was measured, and
    its part beyond the noise; None without such sizes.

    As a data frame it has one row per element of ``sizes``.
    """

    regret_mean: float | None
    regret_mean_beyond_noise: float | None
    sizes: tuple[RoundsPick, ...] = field(metadata=json_form(convert=_sizes_record))
    files: tuple[VerifiedFile, ...]

    def columns(self) -> dict[str, Column]:
        """collective, bytes, pick, pick_us, best, best_us, regret with its interval (NaN: none), and more; [size]."""
        rows = _sizes_record(self.sizes)
        return {name: _column(name, [row[name] for row in rows]) for name in _COLUMNS}


def verify(files: Files, *, histogram: str | PathLike[str] | Histogram | None = None) -> Verification:
    """Judges NCCL's pick against the measured best, for files that ``nccl-tuner measure`` or nccl-tests wrote.

    ``histogram`` says how often each size is called: {(collective, nBytes): calls}, or a CSV of collective,bytes,count.
    The answer then has for each file the total over these calls. CannotBeJudged for a file in which nothing can be
    judged. BadMeasurement if the histogram has calls outside of the measured sizes.
    """
    given = paths(files)
    compared = [judge_file(path) for path in given]
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
    """Reads a CSV of collective,bytes,count, with or without this line as its header; sizes as in 64K. BadMeasurement
    names the line.
    """
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


def _file(path: Path, comparison: JudgedFile, calls: Histogram | None) -> VerifiedFile:
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
    """Times of one combination over ``bytes``, ascending; arrays [size]: the typical time in us, and its 95 % interval.

    ``predicted_us`` is NaN if the model has no time; it only has times for the number of channels that NCCL chooses.
    """

    combination: Combination
    bytes: NDArray[np.int64]
    measured_us: NDArray[np.float64]
    low_us: NDArray[np.float64]
    high_us: NDArray[np.float64]
    predicted_us: NDArray[np.float64]


def series(comparison: JudgedFile, kind: Point) -> list[Series]:
    """Times of one kind of call by combination.

    NCCL's own choice counts as the combination that it executed, or as the model's pick if the file does not say what
    it executed. If that combination was requested as well, only the requested times are used.
    """
    by_combination: dict[Combination, list[Row]] = {}
    for point, evidence in comparison.evidence.items():
        if kind_of(point) == kind:
            for combination, row in _rows(comparison, point, evidence).items():
                by_combination.setdefault(combination, []).append(row)
    return [_series(combination, rows) for combination, rows in sorted(by_combination.items())]


def _rows(comparison: JudgedFile, point: Point, evidence: Evidence) -> dict[Combination, Row]:
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

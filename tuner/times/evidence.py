"""Evidence about one size: typical times, and the differences between them that exceed the noise.

Within a round every combination is sampled once, so what a round has in common (clocks, drift) cancels in ratios. What
is fixed within a process does not cancel: with three processes or more, the unit is the process and not the round.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import Collective
from tuner.times.compare import FEWEST_UNITS, Verdict, compare
from tuner.times.measured.samples import Combination, Point, SampleBlock
from tuner.times.statistics import (
    LEAST_PROCESSES,
    MEDIAN_VARIANCE,
    ROUNDING_VARIANCE,
    Samples,
    correlation,
    of_correlated,
    timer_steps_us,
)


@dataclass(eq=False)
class Evidence:
    """Times of one size: ``log_us`` are logarithms of the blocks' medians in us, [unit][column], NaN if no block
    counts.

    A unit is a round or, with ``by_process``, a process, whose times are medians over its rounds. Columns are what was
    requested, None for NCCL's own choice; ``executed`` is what NCCL's own choice ran. ``rounds`` and ``processes`` are
    their numbers. ``correlation`` is between neighbouring processes, and ``step_us`` is the timer's resolution, us.
    """

    columns: tuple[Combination | None, ...]
    log_us: NDArray[np.float64]
    executed: Combination | None = None
    by_process: bool = False
    rounds: int = 0
    processes: int = 1
    correlation: float = 0.0
    step_us: float = 0.0

    @cached_property
    def _common(self) -> NDArray[np.float64]:
        """The part that each unit adds to all its times."""
        return _common(self.log_us)

    @cached_property
    def levels(self) -> NDArray[np.float64]:
        """Typical logarithm of the time in us of each column, without what all columns of a unit have in common."""
        rest = self.log_us - self._common[:, None]
        typical: NDArray[np.float64] = np.nanmean(rest, axis=0) if self.by_process else _medians(rest)
        return typical

    @cached_property
    def _correlated(self) -> tuple[float, float]:
        """For this number of processes: the factor on a mean's variance, and the share of its degrees of freedom that
        is left.
        """
        factor, freedom = of_correlated(len(self.log_us), self.correlation)
        return factor, freedom / max(1, len(self.log_us) - 1)

    @property
    def _typical_variance(self) -> float:
        """The variance of a typical logarithm, divided by the variance of a mean of the same number of independent
        logarithms."""
        return self._correlated[0] if self.by_process else MEDIAN_VARIANCE

    def _rounding(self, index: int) -> float:
        """The variance of a column's typical logarithm that the timer's resolution alone causes."""
        return ROUNDING_VARIANCE * (self.step_us / float(np.exp(self.levels[index]))) ** 2

    @property
    def residuals(self) -> NDArray[np.float64]:
        """``log_us`` without what units and columns have in common, [unit][column]."""
        rest: NDArray[np.float64] = self.log_us - self._common[:, None] - self.levels
        return rest

    @cached_property
    def _squares(self) -> NDArray[np.float64]:
        """Squared residuals, NaN as in ``log_us``."""
        return np.square(self.residuals)

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        """The number of units of each column."""
        counts: NDArray[np.int64] = np.isfinite(self.log_us).sum(axis=0)
        return counts

    @property
    def _freedom(self) -> int:
        """Degrees of freedom of the residuals, after subtracting what columns and units have in common."""
        return int(self._counts.sum()) - len(self.columns) - len(self.log_us) + 1

    def requested(self, column: Combination | None) -> Combination | None:
        """The combination that a column requested; None for NCCL's own choice."""
        return column

    def level(self, column: Combination | None) -> float:
        """Logarithm of a column's typical time in us."""
        return float(self.levels[self.columns.index(column)])

    def time_us(self, column: Combination | None) -> float:
        """The typical time of a combination, us."""
        return float(np.exp(self.level(column)))

    def _samples(self, index: int, variance: float) -> Samples:
        """The samples of a column, given the variance of its residuals."""
        error = np.sqrt(self._typical_variance * variance / self._counts[index] + self._rounding(index))
        return Samples(float(self.levels[index]), float(error), self._freedom * self._correlated[1])

    def band_us(self, column: Combination | None) -> tuple[float, float, float]:
        """The typical time with its 95 % interval; with too few units, both ends are the time itself."""
        index = self.columns.index(column)
        if self._freedom < 1:
            return (time_us := self.time_us(column), time_us, time_us)
        known = self._samples(index, float(np.nansum(self._squares)) / self._freedom).estimate()
        return known.median_us, known.low_us, known.high_us

    def gain(self, column: Combination | None, over: Combination | None, comparisons: float = 1) -> Verdict:
        """The gain of ``column`` over ``over``, with the noise of all columns, or of these two if that is larger.

        The interval covers 95 % for all ``comparisons`` together; the chance ``p`` is for this comparison alone.
        """
        before, after = self.columns.index(over), self.columns.index(column)
        counts, total, freedom = self._counts, int(self._counts.sum()), self._freedom
        if len(self.log_us) < FEWEST_UNITS or freedom < 1 or column == over:
            return Verdict(float(self.levels[before] - self.levels[after]))
        share = freedom / total  # the free share of the residuals
        pair = [before, after]
        variance = max(
            float(np.nansum(squares)) / (share * size)
            for squares, size in ((self._squares, total), (self._squares[:, pair], int(counts[pair].sum())))
        )
        return compare(self._samples(before, variance), self._samples(after, variance), comparisons)


def _common(log_us: NDArray[np.float64]) -> NDArray[np.float64]:
    return _medians((log_us - _medians(log_us)).T)


def _medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Medians by column of an array [row][column], ignoring NaN; NaN if a column has nothing else. np.nanmedian is
    slow."""
    ordered, counts = np.sort(values, axis=0), np.isfinite(values).sum(axis=0)  # NaN last
    columns = np.arange(values.shape[1])
    found: NDArray[np.float64] = (ordered[np.maximum(counts - 1, 0) // 2, columns] + ordered[counts // 2, columns]) / 2
    return found


def collect(blocks: Iterable[SampleBlock]) -> dict[Point, Evidence]:
    """The evidence by point, in order, without blocks that did not run what was requested, had wrong results, or used a
    table.
    """
    by_point: dict[Point, list[SampleBlock]] = {}
    for block in blocks:
        if block.counts and block.table is None:
            by_point.setdefault(block.point, []).append(block)
    found = {point: _evidence(by_point[point]) for point in sorted(by_point)}
    correlated = correlation(
        (request, column[np.isfinite(column)])
        for each in found.values()
        if each.by_process
        for request, column in zip(each.columns, each.residuals.T, strict=True)
    )
    times_us: dict[int, list[list[float]]] = {}
    for point, own in by_point.items():
        by_request: dict[Combination | None, list[float]] = {}
        for block in own:
            by_request.setdefault(block.combination, []).extend(block.times_us)
        times_us.setdefault(point.bytes, []).extend(by_request.values())
    steps_us = timer_steps_us(times_us)
    return {
        point: replace(each, correlation=correlated, step_us=steps_us[point.bytes]) for point, each in found.items()
    }


def _evidence(blocks: Sequence[SampleBlock]) -> Evidence:
    medians_us: dict[tuple[int, int], dict[Combination | None, list[float]]] = {}  # by process and round
    for block in blocks:
        of_round = medians_us.setdefault((block.process, block.round), {})
        of_round.setdefault(block.combination, []).append(block.median_us)
    rounds = sorted(medians_us)
    requested = {column for of_round in medians_us.values() for column in of_round}
    columns = (*([None] if None in requested else []), *sorted(column for column in requested if column is not None))
    log_us = np.full((len(rounds), len(columns)), np.nan)
    for row, number in enumerate(rounds):
        for column, values in medians_us[number].items():
            log_us[row, columns.index(column)] = np.log(median(values))
    executed = Counter(
        block.executed for block in blocks if block.requested is None and block.executed is not None
    ).most_common(1)
    processes = np.array([process for process, _ in rounds])
    several = np.unique(processes)
    by_process = len(several) >= LEAST_PROCESSES
    return Evidence(
        columns,
        _of_processes(log_us, processes, several) if by_process else log_us,
        executed[0][0] if executed else None,
        by_process,
        len({number for _, number in rounds}),
        len(several),
    )


def _of_processes(
    log_us: NDArray[np.float64], processes: NDArray[np.int64], several: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Medians over the rounds of each process, from ``log_us`` [round][column], without what the rounds have in common.

    ``processes``: the process of each round, ``several``: the distinct ones.
    """
    common = _common(log_us)
    rest = log_us - common[:, None]
    rows = []
    for each in several:
        of_process = rest[processes == each]
        known = np.isfinite(of_process).any(axis=0)
        row = np.full(log_us.shape[1], np.nan)
        row[known] = _medians(of_process[:, known]) + np.median(common[processes == each])
        rows.append(row)
    return np.array(rows)


def together(parts: Sequence[Evidence]) -> Evidence:
    """Joins the evidence of several kinds of calls (types, in place, graphs) of one size, unit after unit."""
    if len(parts) == 1:
        return parts[0]
    common = set(parts[0].columns).intersection(*(part.columns for part in parts))
    columns = tuple(column for column in parts[0].columns if column in common)
    rows = [part.log_us[:, [part.columns.index(column) for column in columns]] for part in parts]
    # Kinds of calls differ in how long they take, which is not an effect of a round; so each kind is expressed as a
    # ratio to its own level.
    centred = [part - np.nanmedian(part) + np.nanmedian(np.concatenate(rows)) for part in rows]
    by_process = all(part.by_process for part in parts)
    # Kinds of one process share what is fixed in that process, so they are not units of their own.
    same = by_process and len({len(part) for part in rows}) == 1
    return Evidence(
        columns,
        _mean(np.array(centred)) if same else np.concatenate(centred),
        parts[0].executed,
        by_process=by_process,
        rounds=sum(part.rounds for part in parts),
        processes=parts[0].processes,
        correlation=max(part.correlation for part in parts),
        step_us=max(part.step_us for part in parts),
    )


def _mean(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the kinds of [kind][unit][column]; NaN where no kind has a number."""
    counts = np.isfinite(parts).sum(axis=0)
    found: NDArray[np.float64] = np.where(counts, np.nansum(parts, axis=0) / np.maximum(counts, 1), np.nan)
    return found


def by_size(by_point: Mapping[Point, Evidence]) -> dict[tuple[Collective, int], Evidence]:
    """The evidence of all kinds of calls together, by collective and bytes."""
    sizes: dict[tuple[Collective, int], list[Evidence]] = {}
    for point, evidence in by_point.items():
        sizes.setdefault((point.collective, point.bytes), []).append(evidence)
    return {size: together(parts) for size, parts in sorted(sizes.items())}

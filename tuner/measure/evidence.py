"""What measured rounds say of one size: typical times, and which differences between them are beyond the noise.

Within a round every combination is sampled once, so what a round has in common (clocks, drift) cancels in ratios.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.base.names import Collective
from tuner.measure.records.samples import Combination, Point, SampleBlock

LEVEL = 0.05  # of significance, for all comparisons of one size together
FEWEST_ROUNDS = 3  # to tell anything from noise
MEDIAN_VARIANCE = np.pi / 2  # a median's over a mean's


@dataclass(frozen=True, slots=True)
class Gain:
    """How much faster one is than the other, logarithm of the ratio of times: estimate, its 95 % interval, and the
    chance (one-sided, Student's t) of seeing at least this where there is no gain; 1 where rounds are few.
    """

    estimate: float
    low: float
    high: float
    p: float


@dataclass(eq=False)
class Evidence:
    """One size: ``log_us`` are logarithms of the medians of blocks, [round][column], NaN where nothing counts.

    Columns are what was requested, None for NCCL's own choice; ``executed`` is what it came to.
    """

    columns: tuple[Combination | None, ...]
    log_us: NDArray[np.float64]
    executed: Combination | None = None

    @cached_property
    def _common(self) -> NDArray[np.float64]:
        """What each round adds to all its times."""
        medians: NDArray[np.float64] = np.nanmedian(self.log_us - np.nanmedian(self.log_us, axis=0), axis=1)
        return medians

    @cached_property
    def levels(self) -> NDArray[np.float64]:
        """Typical logarithm of the time by column, without what the rounds have in common."""
        medians: NDArray[np.float64] = np.nanmedian(self.log_us - self._common[:, None], axis=0)
        return medians

    @cached_property
    def _squares(self) -> NDArray[np.float64]:
        """Squared residuals, NaN as in ``log_us``."""
        return np.square(self.log_us - self._common[:, None] - self.levels)

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        """Rounds by column."""
        counts: NDArray[np.int64] = np.isfinite(self.log_us).sum(axis=0)
        return counts

    @property
    def _freedom(self) -> int:
        """Of the residuals: what columns and rounds have in common is taken off."""
        return int(self._counts.sum()) - len(self.columns) - len(self.log_us) + 1

    def time_us(self, column: Combination | None) -> float:
        """The typical time of a combination, us."""
        return float(np.exp(self.levels[self.columns.index(column)]))

    def band_us(self, column: Combination | None) -> tuple[float, float, float]:
        """The typical time with its 95 % interval, which is the time itself where rounds are too few."""
        from scipy.special import stdtrit  # Student's t; slow to load

        index = self.columns.index(column)
        freedom, half = self._freedom, 0.0
        if freedom > 0:
            variance = float(np.nansum(self._squares)) / freedom
            error = float(np.sqrt(MEDIAN_VARIANCE * variance / self._counts[index]))
            half = float(stdtrit(freedom, 1 - LEVEL / 2)) * error
        return tuple(np.exp(self.levels[index] + np.array([0, -half, half])).tolist())

    def gain(self, column: Combination | None, over: Combination | None) -> Gain:
        """Of ``column`` over ``over``. The noise is that of all columns, or of these two where they have more of it."""
        pair = [self.columns.index(column), self.columns.index(over)]
        estimate = float(self.levels[pair[1]] - self.levels[pair[0]])
        counts, total, freedom = self._counts, int(self._counts.sum()), self._freedom
        if len(self.log_us) < FEWEST_ROUNDS or freedom < 1 or column == over:
            return Gain(estimate, -np.inf, np.inf, 1.0)
        share = freedom / total  # of the residuals that is free
        variance = max(
            float(np.nansum(squares)) / (share * size)
            for squares, size in ((self._squares, total), (self._squares[:, pair], int(counts[pair].sum())))
        )
        error = float(np.sqrt(MEDIAN_VARIANCE * variance * (1 / counts[pair]).sum()))
        return _gain(estimate, error, freedom)

    def alike(self, column: Combination | None) -> frozenset[Combination | None]:
        """Columns that are not slower than ``column`` beyond the noise, itself included."""
        chance = LEVEL / max(1, len(self.columns) - 1)
        return frozenset(other for other in self.columns if other == column or self.gain(column, other).p > chance)


def gain_of(differences: NDArray[np.float64]) -> Gain:
    """A gain from logarithms of ratios, numbers [round]."""
    known = differences[np.isfinite(differences)]
    if len(known) < FEWEST_ROUNDS:
        return Gain(float(known.mean()) if len(known) else 0.0, -np.inf, np.inf, 1.0)
    return _gain(float(known.mean()), float(known.std(ddof=1) / np.sqrt(len(known))), len(known) - 1)


def _gain(estimate: float, error: float, freedom: int) -> Gain:
    from scipy.special import stdtr, stdtrit  # Student's t; slow to load

    if error == 0:
        return Gain(estimate, estimate, estimate, 0.0 if estimate > 0 else 1.0)
    half = float(stdtrit(freedom, 1 - LEVEL / 2)) * error
    return Gain(estimate, estimate - half, estimate + half, float(stdtr(freedom, -estimate / error)))


def collect(blocks: Iterable[SampleBlock]) -> dict[Point, Evidence]:
    """By point, in their order; what was replaced, was wrong, or ran under a table does not count."""
    by_point: dict[Point, list[SampleBlock]] = {}
    for block in blocks:
        if block.counts and block.table is None:
            by_point.setdefault(block.point, []).append(block)
    return {point: _evidence(by_point[point]) for point in sorted(by_point)}


def _evidence(blocks: Sequence[SampleBlock]) -> Evidence:
    times: dict[tuple[int, Combination | None], list[float]] = {}
    for block in blocks:
        times.setdefault((block.round, block.requested), []).extend(block.times_us)
    rounds = sorted({number for number, _ in times})
    requested = {column for _, column in times}
    columns = (*([None] if None in requested else []), *sorted(column for column in requested if column is not None))
    log_us = np.full((len(rounds), len(columns)), np.nan)
    for (number, column), values in times.items():
        log_us[rounds.index(number), columns.index(column)] = np.log(np.median(values))
    executed = Counter(
        block.executed for block in blocks if block.requested is None and block.executed is not None
    ).most_common(1)
    return Evidence(columns, log_us, executed[0][0] if executed else None)


def together(parts: Sequence[Evidence]) -> Evidence:
    """Several kinds of calls of one size (types, in place, graphs) as one: their rounds after each other."""
    if len(parts) == 1:
        return parts[0]
    common = set(parts[0].columns).intersection(*(part.columns for part in parts))
    columns = tuple(column for column in parts[0].columns if column in common)
    rows = [part.log_us[:, [part.columns.index(column) for column in columns]] for part in parts]
    # Kinds differ in how long they take, which is nothing of a round's: each as a ratio to its own level.
    centred = [part - np.nanmedian(part) + np.nanmedian(np.concatenate(rows)) for part in rows]
    return Evidence(columns, np.concatenate(centred), parts[0].executed)


def by_size(by_point: Mapping[Point, Evidence]) -> dict[tuple[Collective, int], Evidence]:
    """(collective, bytes) -> evidence of all kinds of calls."""
    sizes: dict[tuple[Collective, int], list[Evidence]] = {}
    for point, evidence in by_point.items():
        sizes.setdefault((point.collective, point.bytes), []).append(evidence)
    return {size: together(parts) for size, parts in sorted(sizes.items())}

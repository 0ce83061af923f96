"""Statistics of times that have outliers, drift and no known distribution.

Runs of one sample block share whatever disturbs the machine at that time, and sample blocks of one process share how
that process was set up. So the unit is the process, or the sample block if there are too few processes. The uncertainty
of a time follows from how much the medians of the units differ. Processes follow each other, so a disturbance that
lasts longer than one process makes neighbours similar. How similar they are is estimated from all calls of a run
together, as an autoregression of order 1.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import exp, inf, log, pi, sqrt
from statistics import fmean, median
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.dataclass import dataclass

CONFIDENCE = 0.95
LEAST_PROCESSES = 3  # with fewer, it is not known how much processes differ
FEWEST_BLOCKS = 3
NORMAL_95 = 1.96  # deviations on either side that hold 95 %
MEDIAN_VARIANCE = pi / 2  # variance of a median over that of a mean
ROUNDING_VARIANCE = 1 / 12  # variance of rounding to whole steps, in squares of a step
SAME_TIME = 1e-6  # share of a time below which a difference comes from its floating-point number
_CORRELATIONS = np.linspace(0, 0.95, 20)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median in us with its confidence interval. The interval goes from 0 to infinity if there are too few samples.

    ``deviation`` is the standard deviation of the median's logarithm, infinite if there are too few samples.
    """

    median_us: float
    low_us: float
    high_us: float
    samples: int
    deviation: float = float("inf")

    @property
    def is_bounded(self) -> bool:
        """Whether there were enough samples for an interval."""
        return self.high_us < float("inf")

    @property
    def half_width(self) -> float:
        """Half of the interval, divided by the median: 0.01 means +-1 %."""
        return (self.high_us - self.low_us) / 2 / self.median_us


@dataclass(frozen=True, slots=True)
class Samples:
    """A typical time from samples: ``log_us``, the logarithm of the time in us, with its standard ``error`` and the
    degrees of ``freedom`` of the error. With too few ``units``, the error is infinite and the degrees of freedom are 0.

    Units are independent of each other: processes, sample blocks or runs. ``samples`` counts the sample blocks.
    """

    log_us: float
    error: float = inf
    freedom: float = 0.0
    units: int = 0
    samples: int = 0

    @classmethod
    def of_blocks(cls, medians_us: Sequence[float], processes: Sequence[int], noise: "RunNoise | None" = None) -> Self:
        """Makes samples from the median in us and the process of each sample block, arrays [block]; ``noise`` is the
        run's noise. At least one sample block is needed.

        With three processes or more: the geometric mean of each process's median. With fewer: the median of the sample
        blocks, with an error that ignores how processes differ.
        """
        of_process = logs_by_process(medians_us, processes)
        factor, step_us, correlated = MEDIAN_VARIANCE, noise.step_us if noise else 0.0, 0.0
        if len(of_process) >= LEAST_PROCESSES:
            units, correlated = [median(log_us) for log_us in of_process.values()], noise.correlation if noise else 0.0
            centre = mean = fmean(units)
            factor, freedom = of_correlated(len(units), correlated)
        else:
            units = [log_us for its in of_process.values() for log_us in its]
            centre, mean, freedom = log(median(medians_us)), fmean(units), len(units) - 1.0
        if len(units) < FEWEST_BLOCKS:
            return cls(centre, units=len(units), samples=len(medians_us))
        variance = factor * sum([(unit - mean) ** 2 for unit in units]) / (len(units) - 1) / len(units)
        rounding = ROUNDING_VARIANCE * (step_us / exp(centre)) ** 2
        return cls(centre, sqrt(variance + rounding), freedom, len(units), len(medians_us))

    def estimate(self, confidence: float = CONFIDENCE) -> Estimate:
        """The time in us, with Student's interval of this confidence."""
        if self.error == inf:
            return Estimate(exp(self.log_us), 0.0, inf, self.samples)
        half = student(self.freedom, (1 + confidence) / 2) * self.error
        return Estimate(exp(self.log_us), exp(self.log_us - half), exp(self.log_us + half), self.samples, self.error)


@lru_cache(maxsize=4096)
def student(freedom: float, share: float) -> float:
    """Quantile of Student's t for the probability ``share``; quantile of the normal distribution if ``freedom`` is
    infinite.
    """
    from scipy.special import ndtri, stdtrit  # takes long to load

    return float(stdtrit(freedom, share) if freedom < inf else ndtri(share))


@dataclass(frozen=True, slots=True)
class RunNoise:
    """Noise of a run, from all its calls together.

    ``correlation`` is the correlation between a call's times in successive processes, 0 to 0.95; ``step_us`` is the
    timer's step in us, of which the times of calls of one size are multiples; 0 if no step is seen.
    """

    correlation: float = 0.0
    step_us: float = 0.0


def logs_by_process(medians_us: Sequence[float], processes: Sequence[int]) -> dict[int, list[float]]:
    """Logarithms of the medians in us of sample blocks, by process; both arguments have one element per block."""
    found: dict[int, list[float]] = {}
    for number, median_us in zip(processes, medians_us, strict=True):
        found.setdefault(number, []).append(log(median_us))
    return found


def correlation(calls: Iterable[tuple[Hashable, ArrayLike]], errors: float = 0.0) -> float:
    """Correlation of processes with their neighbours, 0 to 0.95, raised by ``errors`` times its standard error.

    ``calls`` are requests with logarithms of times, arrays [process]; at least 3 processes are needed. The lag-1
    correlation of the values less their mean is compared with that of an AR(1) process of the same length, also less
    its mean. Calls of one request may share their drift, so the standard error is computed as if there were one value
    per request.
    """
    lower: dict[Hashable, NDArray[np.float64]] = {}  # by how much each correlation would be too low, times the squares
    squares: dict[Hashable, float] = {}
    for requested, each in calls:
        values = np.asarray(each, dtype=np.float64)
        rest = values - values.mean() if len(values) >= LEAST_PROCESSES else values[:0]
        if (square := float(rest @ rest)) > 0:
            too_low = float(rest[1:] @ rest[:-1]) - square * _autoregressive(len(values))[0]
            lower[requested] = lower.get(requested, 0.0) + too_low
            squares[requested] = squares.get(requested, 0.0) + square
    if not lower:
        return 0.0
    of_request = np.array([its / squares[requested] for requested, its in lower.items()])
    too_low = of_request.mean(axis=0)
    if len(of_request) > 1:
        too_low += errors * of_request[:, 0].std(ddof=1) / sqrt(len(of_request))
    return float(np.interp(0.0, -too_low, _CORRELATIONS))  # this falls as the correlation rises


def of_correlated(units: int, correlated: float) -> tuple[float, float]:
    """The factor by which a mean's variance exceeds the variance of a mean of independent units, and its degrees of
    freedom.
    """
    if units < LEAST_PROCESSES or correlated <= 0:
        return 1.0, units - 1.0
    _, factors, freedoms = _autoregressive(units)
    return float(np.interp(correlated, _CORRELATIONS, factors)), float(np.interp(correlated, _CORRELATIONS, freedoms))


@lru_cache(maxsize=256)
def _autoregressive(units: int) -> NDArray[np.float64]:
    """A table [quantity][correlation] of three quantities: the correlation of neighbouring residuals, the factor on the
    variance of a mean, and the degrees of freedom.

    The degrees of freedom are Satterthwaite's.
    """
    apart = np.abs(np.subtract.outer(np.arange(units), np.arange(units)))
    less_mean = np.eye(units) - 1 / units
    found = []
    for each in _CORRELATIONS:
        covariance = each**apart
        residual = less_mean @ covariance @ less_mean
        total = np.trace(residual)
        seeming = total / (units - 1) / units
        found.append((np.trace(residual, 1) / total, covariance.mean() / seeming, total**2 / np.sum(residual**2)))
    return np.array(found).T


def timer_steps_us(times_us: Mapping[int, Sequence[Sequence[float]]]) -> dict[int, float]:
    """The timer's steps in us by nBytes; ``times_us`` has, by nBytes, the times of each call of that size.

    A step is the smallest difference between times of calls of this or a larger size, because fewer successive calls
    are timed together if calls are larger. The step is 0 if no two times of one call are equal, as with a timer whose
    step is smaller than the noise.
    """
    found, least_us = {}, inf
    for size in sorted(times_us, reverse=True):
        for its in times_us[size]:
            if len(different := set(its)) < len(its):
                ordered = np.array(sorted(different))
                steps_us = np.diff(ordered)
                least_us = min([least_us, *steps_us[steps_us > SAME_TIME * ordered[1:]].tolist()])
        found[size] = least_us if least_us < inf else 0.0
    return found


def of_runs_or_blocks(
    medians_us: Sequence[float], processes: Sequence[int], times_us: Sequence[float], noise: RunNoise | None = None
) -> Estimate:
    """Estimates a time from the sample blocks or, if they are too few for an interval, from all their ``times_us``."""
    by_blocks = Samples.of_blocks(medians_us, processes, noise).estimate()
    return by_blocks if by_blocks.is_bounded else estimate(times_us)


def estimate(times_us: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """The median of at least one time, with the narrowest interval between order statistics that has the confidence.

    No distribution is assumed: how many of n samples lie below the median is binomial.
    """
    times = np.sort(np.asarray(times_us, dtype=np.float64))
    n = len(times)
    below = _outside(n, confidence)
    median = float((times[(n - 1) // 2] + times[n // 2]) / 2)
    if below < 0:
        return Estimate(median, 0.0, float("inf"), n)
    low, high = float(times[below]), float(times[n - 1 - below])
    return Estimate(median, low, high, n, (high - low) / 2 / median / NORMAL_95)


@lru_cache(maxsize=4096)
def _outside(n: int, confidence: float) -> int:
    """The number of samples, out of n, that may be left out at each end; -1 if even all n samples are too few."""
    from scipy.special import bdtr  # the binomial distribution; takes long to load

    tail, left_out = (1 - confidence) / 2, -1
    while bdtr(left_out + 1, n, 0.5) <= tail:
        left_out += 1
    return left_out

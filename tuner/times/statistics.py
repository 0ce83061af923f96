"""Statistics of times that have outliers, drift and no known distribution.

Runs of one sample block share whatever disturbs the machine just then, and sample blocks of one process share how that
process was set up. So the unit is the process, or the sample block where there are too few processes: what is known
of a time is how much the medians of these differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log, pi, sqrt
from statistics import fmean, median
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95
LEAST_PROCESSES = 3  # for how much they differ to be known
FEWEST_BLOCKS = 3
NORMAL_95 = 1.96  # deviations to either side that hold 95 %
MEDIAN_VARIANCE = pi / 2  # a median's over a mean's


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its confidence interval, us; the interval is 0 to infinity where the samples are too few.

    ``deviation`` is that of the median's logarithm, infinite where the samples are too few.
    """

    median_us: float
    low_us: float
    high_us: float
    samples: int
    deviation: float = float("inf")

    @property
    def is_bounded(self) -> bool:
        """Whether there were samples enough for an interval."""
        return self.high_us < float("inf")

    @property
    def half_width(self) -> float:
        """Half the interval over the median: 0.01 is +-1 %."""
        return (self.high_us - self.low_us) / 2 / self.median_us


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the sample blocks of one call say, as :func:`of_blocks` puts it, for any confidence.

    ``log_us`` is the logarithm of the time in us and ``error`` its deviation, from so many ``units``: processes or
    sample blocks.
    """

    log_us: float
    error: float
    units: int
    samples: int

    @classmethod
    def of(cls, medians_us: Sequence[float], processes: Sequence[int]) -> Self:
        """Of medians in us and the process of each, [block]."""
        of_process: dict[int, list[float]] = {}
        for number, median_us in zip(processes, medians_us, strict=True):
            of_process.setdefault(number, []).append(log(median_us))
        if len(of_process) >= LEAST_PROCESSES:
            units, variance_of_centre = [median(log_us) for log_us in of_process.values()], 1.0
            centre = mean = fmean(units)
        else:
            units, variance_of_centre = [log_us for its in of_process.values() for log_us in its], MEDIAN_VARIANCE
            centre, mean = log(median(medians_us)), fmean(units)
        if len(units) < FEWEST_BLOCKS:
            return cls(centre, inf, len(units), len(medians_us))
        variance = sum([(unit - mean) ** 2 for unit in units]) / (len(units) - 1)
        return cls(centre, sqrt(variance_of_centre * variance / len(units)), len(units), len(medians_us))

    def estimate(self, confidence: float = CONFIDENCE) -> Estimate:
        """With Student's interval of this confidence."""
        if self.units < FEWEST_BLOCKS:
            return Estimate(exp(self.log_us), 0.0, inf, self.samples)
        half = _student(self.units - 1, (1 + confidence) / 2) * self.error
        return Estimate(exp(self.log_us), exp(self.log_us - half), exp(self.log_us + half), self.samples, self.error)


@lru_cache(maxsize=4096)
def _student(freedom: int, share: float) -> float:
    """How many deviations Student's t is below in this share of cases."""
    from scipy.special import stdtrit  # slow to load

    return float(stdtrit(freedom, share))


def of_blocks(medians_us: Sequence[float], processes: Sequence[int], confidence: float = CONFIDENCE) -> Estimate:
    """What a call takes, from the medians of its sample blocks in us, [block], and the process of each.

    From three processes on: the geometric mean of each process's median, and Student's interval of those. Else the
    median of the sample blocks, with Student's interval of them: it says nothing of how processes differ. At least one
    sample block.
    """
    return Blocks.of(medians_us, processes).estimate(confidence)


def of_runs_or_blocks(medians_us: Sequence[float], processes: Sequence[int], times_us: Sequence[float]) -> Estimate:
    """By the sample blocks; where they are too few for an interval, by all their ``times_us``."""
    by_blocks = of_blocks(medians_us, processes)
    return by_blocks if by_blocks.is_bounded else estimate(times_us)


def estimate(times_us: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """The median of at least one time, with the narrowest interval of order statistics that has the confidence.

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
    """How many of n samples may be left out at each end; -1 where even all of them are too few."""
    from scipy.special import bdtr  # the binomial distribution; slow to load

    tail, left_out = (1 - confidence) / 2, -1
    while bdtr(left_out + 1, n, 0.5) <= tail:
        left_out += 1
    return left_out

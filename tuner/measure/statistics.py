"""Statistics of times that have outliers, drift and no known distribution: medians and order statistics."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its confidence interval, us; the interval is 0 to infinity where the samples are too few."""

    median_us: float
    low_us: float
    high_us: float
    samples: int

    @property
    def is_bounded(self) -> bool:
        """Whether there were samples enough for an interval."""
        return self.high_us < float("inf")

    @property
    def half_width(self) -> float:
        """Half the interval over the median: 0.01 is +-1 %."""
        return (self.high_us - self.low_us) / 2 / self.median_us


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
    return Estimate(median, float(times[below]), float(times[n - 1 - below]), n)


@lru_cache(maxsize=4096)
def _outside(n: int, confidence: float) -> int:
    """How many of n samples may be left out at each end; -1 where even all of them are too few."""
    from scipy.special import bdtr  # the binomial distribution; slow to load

    tail, left_out = (1 - confidence) / 2, -1
    while bdtr(left_out + 1, n, 0.5) <= tail:
        left_out += 1
    return left_out

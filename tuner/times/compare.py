"""Compares two choices: which one is faster? `verify`, `decide`, `decide` in a job, and regret all use this comparison.

* **Noise** comes with the :class:`Samples`: the standard error of a typical logarithm of times and its degrees of
  freedom, from rounds, processes, stretches of a job, repeated runs, or a curve over sizes.
* **Many comparisons** are corrected by Holm's method, for everything that is decided together.
* **Beyond the noise** means that without any gain, a result like this has a chance of at most 2.5 %, one-sided and so
  corrected: the 95 % interval of the gain is above 0.
* **A crossing** of two curves is between the last size at which the first is ahead, and the next one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import expm1, inf, isfinite, log, sqrt

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.times.statistics import CONFIDENCE, Samples, student

ERROR = (1 - CONFIDENCE) / 2  # one-sided, for everything that is decided together
SURE = 1 - ERROR  # probability of improvement from which a row of a decision table stays
LEAST_GAIN = 0.02  # least gain of a row of a decision table, whoever measured it
FEWEST_UNITS = 3  # least number of units with which noise can be estimated
NOTHING = Samples(0.0, 0.0, inf)  # for comparing the logarithm of a ratio with zero


@dataclass(frozen=True, slots=True)
class Verdict:
    """By how much something is faster: ``estimate``, the logarithm of the ratio of times, and its 95 % interval from
    ``low`` to ``high``. ``p`` is the chance (one-sided, Student's t) of seeing at least this without a real gain.

    If there are too few units to know the noise, the interval is infinite and ``p`` is 1.
    """

    estimate: float
    low: float = -inf
    high: float = inf
    p: float = 1.0

    @property
    def gain(self) -> float:
        """Time before over time after, minus 1: a share of 1, negative for a loss."""
        return expm1(self.estimate)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the gain, as shares of 1."""
        return float(np.expm1(self.low)), float(np.expm1(self.high))

    @property
    def half_width(self) -> float:
        """Half of the interval around ``estimate``, as a logarithm."""
        return (self.high - self.low) / 2

    @property
    def is_bounded(self) -> bool:
        """Whether the noise is known."""
        return isfinite(self.low)

    def is_beyond(self, comparisons: float = 1) -> bool:
        """Whether the gain is beyond the noise, as the most significant of ``comparisons`` made together."""
        return self.p * max(1.0, comparisons) <= ERROR


def compare(before: Samples, after: Samples, comparisons: float = 1) -> Verdict:
    """By how much ``after`` is faster; the interval covers 95 % for all ``comparisons`` together.

    The difference has the degrees of freedom of the side that has fewer.
    """
    estimate, error = before.log_us - after.log_us, sqrt(before.error**2 + after.error**2)
    if not isfinite(error):
        return Verdict(estimate)
    if error == 0:
        return Verdict(estimate, estimate, estimate, 0.0 if estimate > 0 else 1.0)
    freedom = min(before.freedom, after.freedom)
    half = student(freedom, 1 - ERROR / max(1.0, comparisons)) * error
    return Verdict(estimate, estimate - half, estimate + half, _chance(freedom, -estimate / error))


def paired(log_gains: NDArray[np.float64], rounding: float = 0.0) -> Verdict:
    """Compares two sides that were measured in the same units, such as rounds or processes.

    ``log_gains``: natural logarithms of the ratios of the sides' times, numbers [unit].

    A unit that does not count is NaN; ``rounding`` is the variance that the timer's resolution adds.
    """
    known = log_gains[np.isfinite(log_gains)]
    estimate = float(known.mean()) if len(known) else 0.0
    if len(known) < FEWEST_UNITS:
        return Verdict(estimate)
    return compare(Samples(estimate, sqrt(known.var(ddof=1) / len(known) + rounding), len(known) - 1.0), NOTHING)


def holm(chances: Sequence[float]) -> list[float]:
    """Corrects the chances of seeing this much without a gain, for all comparisons together, by Holm's method.

    With corrected chances, one of forty tables without any real gain is expected to keep a row.
    """
    order = sorted(range(len(chances)), key=lambda index: chances[index])
    corrected, least = [0.0] * len(chances), 0.0
    for place, index in enumerate(order):
        corrected[index] = least = max(least, min(1.0, (len(order) - place) * chances[index]))
    return corrected


def too_small(gain: float) -> str | None:
    """The reason to drop a row of a table because its gain (a share of 1) is too small, apart from noise; else None."""
    return None if gain > LEAST_GAIN else f"gains {100 * gain:.1f} %, not more than {100 * LEAST_GAIN:.0f} %"


def unsure(chance: float) -> str | None:
    """The reason to drop a row of a table if its gain is due to chance with this probability.

    None if the gain is beyond the noise.
    """
    return None if chance <= ERROR else f"probability of improvement {1 - chance:.3f}, below {SURE}"


def decided(rows: Iterable[tuple[str | None, float, float]]) -> Iterator[tuple[float, str | None]]:
    """Decides together which rows of one table stay. Each row is given as a reason to drop it (or None), its gain (a
    share of 1), and the chance of seeing this gain without a real one. Yields each row's corrected chance and the
    reason why the row is dropped, None if it stays.
    """
    all_rows = list(rows)
    for (why_not, gain, _), chance in zip(all_rows, holm([chance for _, _, chance in all_rows]), strict=True):
        yield chance, why_not or too_small(gain) or unsure(chance)


def middle(low: int, high: int) -> int:
    """Geometric middle of two sizes."""
    return int((low * high) ** 0.5)


def crossing(lead: Callable[[int], float], low: int, high: int) -> int | None:
    """The last size in [low, high) at which ``lead`` is above 0.

    None unless ``lead`` is above 0 at ``low`` and below 0 at ``high``.

    ``lead`` is by how much the first of two choices is ahead at a size.
    """
    if not lead(low) > 0 > lead(high):
        return None
    while high - low > 1:
        between = (low + high) // 2
        low, high = (between, high) if lead(between) > 0 else (low, between)
    return low


def straight(low: tuple[int, float], high: tuple[int, float]) -> Callable[[int], float]:
    """A function that gives the value at a size: a line over the size's logarithm through two points (size, value)."""
    (low_bytes, at_low), (high_bytes, at_high) = low, high
    steep = (at_high - at_low) / log(high_bytes / low_bytes)
    return lambda size: at_low + steep * log(size / low_bytes)


def _chance(freedom: float, deviations: float) -> float:
    """The probability that Student's t is below this many ``deviations``."""
    from scipy.special import ndtr, stdtr  # takes long to load

    return float(stdtr(freedom, deviations) if isfinite(freedom) else ndtr(deviations))

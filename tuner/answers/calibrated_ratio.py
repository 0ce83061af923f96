"""What a change takes by measurements: calibrated times over others, with what is sure of it.

What a calibration is wrong by it is wrong by in many calls alike, and by how much in common is not known. So bounds are
added, but for two cases. A call that is the same on both sides takes the same time. And where both sides run the same
combination on one node, what both carry over to the same place (a machine that was not measured, say) cancels: of such
pairs in public measurements of other machines (DGX H100 by B200's calibration, B200 by H100's) the bounds then hold 89
to 99 %. Between nodes both sides are of one site, and the covariances of its calls say what cancels.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.answers.calibrated import Estimate
from tuner.times.timemodel.intervals import COVERED_SDS, CarriedOver


@dataclass(frozen=True, slots=True)
class CalibratedRatio:
    """A calibrated time over another, with bounds. ``measured``: whether both combinations were, for the collective.

    ``extrapolated``: which side is, and over what, in words; empty where neither is.
    """

    ratio: float
    low: float
    high: float
    measured: bool
    extrapolated: str = ""

    @property
    def may_be_none(self) -> bool:
        """Whether nothing may have changed, as far as measurements say."""
        return self.low < 1 < self.high


@dataclass(frozen=True, slots=True)
class CalibratedDifference:
    """Calls after less those before, in us; and as a part of those before."""

    difference_us: float
    difference_low_us: float
    difference_high_us: float
    difference: float
    difference_low: float
    difference_high: float


def ratio(before: Estimate, after: Estimate) -> CalibratedRatio:
    """After over before."""
    middle, low, high = (float(f"{value:.6g}") for value in _bounds(before, after))
    return CalibratedRatio(middle, low, high, before.measured and after.measured, _extrapolated(before, after))


def _extrapolated(before: Estimate, after: Estimate) -> str:
    old, new = before.time.extrapolated, after.time.extrapolated
    if old == new:
        return f"both: {old}" if old else ""
    return "; ".join(f"{side}: {over}" for side, over in (("before", old), ("after", new)) if over)


def difference(pairs: Iterable[tuple[Estimate, Estimate, float]]) -> CalibratedDifference:
    """Of calls one after the other: each before and after, and how often it is called."""
    before_us = before_low_us = before_high_us = us = low_us = high_us = 0.0
    for before, after, calls in pairs:
        old = before.time.times(calls)
        middle, low, high = _bounds(before, after)
        # Where one takes least or most beside the other, it is the other that takes most or least.
        slowest_us, fastest_us = (old.high_us, old.low_us) if low < high else (old.time_us, old.time_us)
        before_us, before_high_us = before_us + old.time_us, before_high_us + slowest_us
        before_low_us += fastest_us
        us += (middle - 1) * old.time_us
        low_us += (low - 1) * slowest_us
        high_us += (high - 1) * fastest_us
    parts = [_share(us, before_us), _share(low_us, before_high_us), _share(high_us, before_low_us)]
    return CalibratedDifference(us, low_us, high_us, *parts)


def _bounds(before: Estimate, after: Estimate) -> tuple[float, float, float]:
    """The ratio, and its least and most."""
    if _is_same_call(before, after):  # whatever NCCL believes of it
        return 1.0, 1.0, 1.0
    middle, width = after.time.time_us / before.time.time_us, _width(before, after)
    return middle, middle * math.exp(-width), middle * math.exp(width)


def _is_same_call(before: Estimate, after: Estimate) -> bool:
    return before.combination == after.combination and before.call == after.call


def _width(before: Estimate, after: Estimate) -> float:
    """How far the logarithm of the ratio may be off."""
    if _is_same_call(before, after):
        return 0.0
    if before.site_call is not None and after.site_call is not None:
        sd = before.site_call.sd_of_ratio(after.site_call)
        if sd is not None:
            return COVERED_SDS * sd
    alike = before.combination == after.combination
    common: set[tuple[CarriedOver, object]] = set()
    if alike and before.site_call is None and after.site_call is None:
        common = {kind for kind in before.widths if kind in after.widths and kind[0] is not CarriedOver.sizes}
    return sum(
        math.sqrt(sum(square for kind, square in each.widths.items() if kind not in common)) for each in (before, after)
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0

"""Classifies a slow curve by its shape over sizes: what kind of loss it is, and which faults cause such a shape."""

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import median

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.times.acceptance.judge import BANDWIDTH_BYTES, HOST_BYTES, JudgedCurve, SizeVerdict

_GROWS = 1.35  # ratio of the loss at the largest size to that at the first slow size from which a loss grows
_STEPS, _STEP = 2, 1.1  # number of last steps of a growing loss, and the least factor of each
_MOST = 2 / 3


class LossShape(StrEnum):
    """The shapes of loss that are distinguished."""

    alone = "slow_alone"
    single = "slow_single"
    plateau = "slow_from"
    falling = "slow_more_with_size"
    middle = "slow_between"
    latency = "slow_small"
    everywhere = "slow_everywhere"
    scattered = "slow_here_and_there"


@dataclass(frozen=True, slots=True)
class CurveLoss:
    """The loss that a curve shows: its shape, the slow sizes in bytes, and the factors by which they take longer than
    expected. ``factor`` is the median over slow sizes from 256 MiB on, or if there are none, the factor of the largest
    slow size. ``most`` is the highest factor.
    """

    shape: LossShape
    sizes: tuple[int, ...]
    factor: float
    most: float

    @property
    def share(self) -> float:
        """The part of the bandwidth that is left."""
        return 1 / self.factor


def loss_of(judged: JudgedCurve) -> CurveLoss | None:
    """The loss of a curve, whether or not it fails because of it; None if no size is slower than expected."""
    known = ~np.isnan(judged.expected.time_us)
    slow = known & np.array([verdict in (SizeVerdict.slow, SizeVerdict.isolated) for verdict in judged.verdicts])
    if not slow.any():
        return None
    ratio = judged.curve.worst_us / judged.expected.time_us
    sizes = judged.curve.bytes
    at = np.flatnonzero(known)
    order = slow[at]
    found, slow_sizes = ratio[slow], sizes[slow]
    shape = _shape(order, sizes[at], ratio[at])
    large = found[slow_sizes >= min(BANDWIDTH_BYTES, slow_sizes[-1])]
    return CurveLoss(shape, tuple(map(int, slow_sizes)), median(large.tolist()), float(found.max()))


def _shape(slow: np.ndarray, sizes: np.ndarray, ratio: np.ndarray) -> LossShape:
    large, count = sizes >= HOST_BYTES, int(slow.sum())
    if count == 1:
        return LossShape.alone if len(slow) > 1 else LossShape.single
    if large.any() and not slow[large].any():
        return LossShape.latency
    first, last = np.flatnonzero(slow)[[0, -1]]
    # Limits differ by size. A size between slow sizes that is as slow but has a wider limit counts as slow.
    raised = slow | (ratio > math.sqrt(median(ratio[slow].tolist())))
    if raised[first : last + 1].mean() < _MOST:
        return LossShape.scattered
    if len(slow) - 1 - last >= 2 and not raised[last + 1 :].all():
        return LossShape.middle
    small = ~large
    if small.any() and large.any() and slow[small].mean() >= _MOST and raised[large].mean() >= _MOST:
        return LossShape.everywhere
    # With too few slow sizes to see steps between them, the size before them shows whether the loss grows.
    of_slow = ratio[first - 1 :] if count == _STEPS and first and last == first + 1 else ratio[slow]
    # A fault that leaves a part of the bandwidth also shows more with larger calls, but no longer once calls are large.
    last_ones, before = of_slow[-_STEPS:], of_slow[-_STEPS - 1 : -1]
    if len(of_slow) > _STEPS and of_slow[-1] > _GROWS * of_slow[0] and (last_ones > _STEP * before).all():
        return LossShape.falling
    return LossShape.plateau


def worst(losses: Sequence[CurveLoss]) -> CurveLoss | None:
    """The gravest loss: the one with the most sizes and, among equals, the largest factor."""
    return max(losses, key=lambda each: (len(each.sizes), each.factor), default=None)

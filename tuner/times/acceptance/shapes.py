"""Shape of a slow curve over its sizes: what kind of loss it is, and which faults look like that."""

from collections.abc import Sequence
from enum import StrEnum
from statistics import median

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.times.acceptance.judge import HOST_BYTES, JudgedCurve, SizeVerdict

_EVEN = 1.35  # times over the expected ones of a plateau are within this factor
_GROWS = 1.3  # the largest size's loss over the median of the other slow ones
_MOST = 2 / 3


class LossShape(StrEnum):
    """Shapes that are told apart."""

    alone = "slow_alone"
    plateau = "slow_from"
    falling = "slow_more_with_size"
    middle = "slow_between"
    latency = "slow_small"
    everywhere = "slow_everywhere"
    scattered = "slow_here_and_there"


@dataclass(frozen=True, slots=True)
class CurveLoss:
    """A loss of a curve: its shape, the sizes in bytes that are slow, and by which factor they are, in the middle."""

    shape: LossShape
    sizes: tuple[int, ...]
    factor: float
    most: float

    @property
    def share(self) -> float:
        """The part of the bandwidth that is left."""
        return 1 / self.factor


def loss_of(judged: JudgedCurve) -> CurveLoss | None:
    """The loss of a curve, whether it fails by it or not; None where no size is slow."""
    slow = np.array([verdict in (SizeVerdict.slow, SizeVerdict.isolated) for verdict in judged.verdicts])
    if not slow.any():
        return None
    known = ~np.isnan(judged.expected.time_us)
    ratio = judged.curve.worst_us / judged.expected.time_us
    sizes = judged.curve.bytes
    at = np.flatnonzero(known)
    order = slow[at]
    found = ratio[slow]
    shape = _shape(order, sizes[at], ratio[at])
    return CurveLoss(shape, tuple(map(int, sizes[slow])), median(found.tolist()), float(found.max()))


def _shape(slow: np.ndarray, sizes: np.ndarray, ratio: np.ndarray) -> LossShape:
    large, count = sizes >= HOST_BYTES, int(slow.sum())
    if count == 1 and len(slow) > 1:
        return LossShape.alone
    if large.any() and not slow[large].any():
        return LossShape.latency
    first, last = np.flatnonzero(slow)[[0, -1]]
    if slow[first : last + 1].mean() < _MOST:
        return LossShape.scattered
    if last < len(slow) - 1 and (len(slow) - 1 - last) >= 2:
        return LossShape.middle
    small = ~large
    if small.any() and large.any() and slow[small].mean() >= _MOST and slow[large].mean() >= _MOST:
        return LossShape.everywhere
    of_slow = ratio[slow]
    if len(of_slow) > 2 and of_slow[-1] > _GROWS * median(of_slow[:-1].tolist()) and of_slow[-1] > of_slow[0] * _EVEN:
        return LossShape.falling
    return LossShape.plateau


def worst(losses: Sequence[CurveLoss]) -> CurveLoss | None:
    """The gravest of several: most sizes, then the largest factor."""
    return max(losses, key=lambda each: (len(each.sizes), each.factor), default=None)

"""Communication behind computation.

Shapes: scalars, or arrays that broadcast and are computed one by one.
"""

import numpy as np
from numpy.typing import ArrayLike

from tuner.times.costmodels.checks import Array, not_negative, part, positive


def step_us(compute_us: ArrayLike, communication_us: ArrayLike, hidden: ArrayLike = 0.0) -> Array:
    """``hidden`` is the share of the communication that runs beside the computation, which hides no more than it lasts.

    0 is one after the other; 1 is the longer of the two.
    """
    compute, communication = positive("compute_us", compute_us), not_negative("communication_us", communication_us)
    time: Array = compute + communication - _hidden_us(compute, communication, hidden)
    return time


def speedup(compute_us: ArrayLike, communication_us: ArrayLike, hidden: ArrayLike) -> Array:
    """Over one after the other, of times in us; ``hidden`` as in :func:`step_us`."""
    faster: Array = step_us(compute_us, communication_us) / step_us(compute_us, communication_us, hidden)
    return faster


def achieved(compute_us: ArrayLike, communication_us: ArrayLike, hidden: ArrayLike) -> Array:
    """The share that is reached of what hiding everything would gain in speed-up; times in us."""
    compute, communication = positive("compute_us", compute_us), positive("communication_us", communication_us)
    gain, most = (
        _hidden_us(compute, communication, share) / step_us(compute, communication, share) for share in (hidden, 1.0)
    )
    reached: Array = gain / most
    return reached


def _hidden_us(compute_us: Array, communication_us: Array, hidden: ArrayLike) -> Array:
    least: Array = np.minimum(part("hidden", hidden) * communication_us, compute_us)
    return least

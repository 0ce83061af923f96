"""Where an answer changes with the size, to the byte: breakpoints of a function that is constant in pieces."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from tuner.cfloat import SizeArray

Labels = Callable[[SizeArray], NDArray[np.generic]]
FRACTIONS = 16  # of each power of two that are looked at first
STEPS = 256  # float32 sizes looked at on both sides of a change


def find(labels: Labels, low: int, high: int, breaks: Iterable[int] = ()) -> SizeArray:
    """The sizes from ``low`` to ``high`` at which a piece begins, ``low`` first.

    ``labels`` maps an array of sizes to a label of each, a number or a row of numbers. What lies between two sizes of
    equal labels is taken for one piece: the first sizes are fractions of powers of two, and ``breaks``, where the
    caller knows that the function may change. A label that ranks all candidates leaves no gap there: two lines that
    cross rank differently on both sides, and only the first of the ranks is then of interest.

    NCCL's times are float32, so that near a crossing the winner may change several times within a few sizes. Hence
    around each change every size that has a float32 of its own is looked at, until they are calm.
    """
    sizes = _clipped(np.array([*_grid(high), *breaks, low, high], np.uint64), low, high)
    done = np.zeros(0, np.uint64)
    while True:
        sizes, starts = _bisect(labels, sizes)
        fresh = np.setdiff1d(starts, done)
        if not fresh.size:
            return np.concatenate([sizes[:1], starts])
        sizes = np.union1d(sizes, _clipped(_neighbours(fresh), low, high))
        done = np.union1d(done, fresh)


def _grid(high: int) -> list[int]:
    powers = [1 << shift for shift in range(high.bit_length())]
    return [power + power * part // FRACTIONS for power in powers for part in range(FRACTIONS)]


def _bisect(labels: Labels, sizes: SizeArray) -> tuple[SizeArray, SizeArray]:
    """The sizes with those between added until changes are between neighbours, and the second of each such pair."""
    while True:
        found = labels(sizes)
        changed = found[1:] != found[:-1]
        at = np.flatnonzero(changed if changed.ndim == 1 else changed.any(axis=1))
        gaps = sizes[at + 1] - sizes[at]
        wide = gaps > 1
        if not wide.any():
            return sizes, sizes[at + 1]
        sizes = np.union1d(sizes, sizes[at][wide] + gaps[wide] // np.uint64(2))


def _neighbours(starts: SizeArray) -> SizeArray:
    exponents = np.maximum(np.log2(starts.astype(np.float64)).astype(np.int64) - 23, 0)
    units = np.left_shift(np.uint64(1), exponents.astype(np.uint64))
    steps = np.arange(-STEPS, STEPS + 1)
    around = (starts // units).astype(np.int64)[:, None] + steps
    near: SizeArray = (np.maximum(around, 0).astype(np.uint64) * units[:, None]).ravel()
    return near


def _clipped(sizes: SizeArray, low: int, high: int) -> SizeArray:
    return np.unique(np.clip(sizes, np.uint64(low), np.uint64(high)))

"""Finds breakpoints of a piecewise constant function: the sizes at which an answer changes, exact to the byte."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.base.numerics import SizeArray

Item = TypeVar("Item", bound=np.generic)
Labels = Callable[[SizeArray], NDArray[np.generic]]
FRACTIONS = 16  # equal parts of each power of two, and of each gap, whose ends are looked at
STEPS = 256  # number of float32 sizes that are looked at on both sides of a change


def find(labels: Labels, low: int, high: int, breaks: Iterable[int] | SizeArray = (), steps: int = STEPS) -> SizeArray:
    """The sizes from ``low`` to ``high`` at which a piece begins, ``low`` first.

    ``labels`` maps an array of sizes to one label per size: a number or a row of numbers. Sizes between two sizes with
    equal labels are assumed to belong to the same piece. The search starts with fractions of powers of two, and with
    ``breaks``: sizes at which the caller knows that the function may change. So the search can miss two changes that
    cancel between two sizes that it looks at. If a label ranks all candidates, no crossing is missed, because two lines
    that cross are ranked differently on both sides. A caller that only asks for the winner then merges neighbouring
    pieces with the same first rank.

    NCCL's times are float32, so that near a crossing the winner may change several times within a few sizes. So around
    each change, the search looks at ``steps`` neighbouring float32 values on either side, and goes on until no further
    changes appear there. If the function is computed with integers, ``steps`` can be 0.
    """
    looked = _Looked(labels, _clipped(np.concatenate([_grid(high), _sizes(breaks), _sizes([low, high])]), low, high))
    done = np.zeros(0, np.uint64)
    while True:
        starts = looked.bisect()
        fresh = np.setdiff1d(starts, done)
        if not fresh.size or not steps:
            return np.concatenate([looked.sizes[:1], starts])
        looked.look_at(_clipped(_neighbours(fresh, steps), low, high))
        done = np.union1d(done, fresh)


class _Looked:
    """The sizes that were looked at, in ascending order, with the label of each; every label is computed once."""

    def __init__(self, labels: Labels, sizes: SizeArray) -> None:
        self.labels, self.sizes, self.labelled = labels, sizes, labels(sizes)

    def look_at(self, sizes: SizeArray) -> None:
        """Computes labels at new ``sizes``. Known and new sizes are ascending and distinct; the last known size is the
        largest.
        """
        at = np.searchsorted(self.sizes, sizes)
        fresh = self.sizes[at] != sizes
        if not fresh.any():
            return
        new = sizes[fresh]
        places = at[fresh] + np.arange(len(new))
        kept = np.ones(len(self.sizes) + len(new), np.bool_)
        kept[places] = False
        self.sizes = _interleaved(kept, self.sizes, places, new)
        self.labelled = _interleaved(kept, self.labelled, places, self.labels(new))

    def bisect(self) -> SizeArray:
        """Adds sizes between sizes with different labels until these are neighbours; returns the second size of each
        such pair.
        """
        while True:
            changed = self.labelled[1:] != self.labelled[:-1]
            at = np.flatnonzero(changed if changed.ndim == 1 else changed.any(axis=1))
            gaps = self.sizes[at + 1] - self.sizes[at]
            wide = gaps > 1
            if not wide.any():
                return self.sizes[at + 1]
            parts = np.arange(1, FRACTIONS, dtype=np.uint64)
            whole, rest = np.divmod(gaps[wide, None], np.uint64(FRACTIONS))  # computed apart, because sizes reach 2**62
            between = whole * parts + rest * parts // np.uint64(FRACTIONS)
            self.look_at(_distinct(self.sizes[at][wide, None] + np.maximum(between, np.uint64(1))))


def _interleaved(
    kept: NDArray[np.bool_], old: NDArray[Item], places: NDArray[np.intp], new: NDArray[Item]
) -> NDArray[Item]:
    """Merges two arrays: rows of ``old`` go where ``kept`` is true, rows of ``new`` to ``places``."""
    both = np.empty((len(kept), *old.shape[1:]), old.dtype)
    both[kept], both[places] = old, new
    return both


def _sizes(values: Iterable[int] | SizeArray) -> SizeArray:
    return values if isinstance(values, np.ndarray) else np.array([*values], np.uint64)


@cache
def _grid(high: int) -> SizeArray:
    powers = [1 << shift for shift in range(high.bit_length())]
    return _sizes(power + power * part // FRACTIONS for power in powers for part in range(FRACTIONS))


def _neighbours(starts: SizeArray, steps: int) -> SizeArray:
    exponents = np.maximum(np.log2(starts.astype(np.float64)).astype(np.int64) - 23, 0)
    units = np.left_shift(np.uint64(1), exponents.astype(np.uint64))
    around = (starts // units).astype(np.int64)[:, None] + np.arange(-steps, steps + 1)
    near: SizeArray = (np.maximum(around, 0).astype(np.uint64) * units[:, None]).ravel()
    return near


def _clipped(sizes: SizeArray, low: int, high: int) -> SizeArray:
    return _distinct(np.clip(sizes, np.uint64(low), np.uint64(high)))


def _distinct(sizes: SizeArray) -> SizeArray:
    """The distinct values, ascending; for many sizes NumPy's unique is ten times slower, because it hashes."""
    ordered = np.sort(sizes, axis=None)
    distinct: SizeArray = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return distinct

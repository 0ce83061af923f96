"""Checks of numbers before they reach a formula; each failure is one line that says what is valid."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.errors import BadInput

Array: TypeAlias = NDArray[np.float64]


def positive(name: str, value: ArrayLike) -> Array:
    """Finite and above 0."""
    return _checked(name, value, lambda found: found > 0, "above 0")


def not_negative(name: str, value: ArrayLike) -> Array:
    """Finite and not below 0."""
    return _checked(name, value, lambda found: found >= 0, "0 or above")


def share(name: str, value: ArrayLike) -> Array:
    """A part of 1 that leaves something: 0 to below 1."""
    return _checked(name, value, lambda found: (found >= 0) & (found < 1), "0 to below 1")


def whole(name: str, value: ArrayLike, least: int = 1) -> Array:
    """Whole numbers from ``least`` on."""
    return _checked(name, value, lambda found: (found >= least) & (found == np.floor(found)), f"{least} or more, whole")


def divides(part: str, value: ArrayLike, of: str, total: ArrayLike) -> Array:
    """``total / value``, where that is whole."""
    parts, totals = whole(part, value), whole(of, total)
    bad = (totals % parts).astype(bool)
    if np.any(bad):
        raise BadInput(f"{part} {np.asarray(value)} does not divide {of} {np.asarray(total)}; valid: a divisor of it")
    found: Array = totals / parts
    return found


def _checked(name: str, value: ArrayLike, holds: Callable[[Array], Any], valid: str) -> Array:
    try:
        found = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadInput(f"{name}: {value!r} is no number; valid: {valid}") from None
    good = np.isfinite(found) & holds(found)
    if not np.all(good):
        raise BadInput(f"{name}: {found[~good].flat[0]:g}; valid: {valid}")
    return found

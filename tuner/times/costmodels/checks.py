"""Checks of numbers before they reach a formula; each failure is one line that says what is valid.

Shapes: scalars, or arrays that broadcast and are computed one by one.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.errors import BadInput

Array: TypeAlias = NDArray[np.float64]
LARGEST = 1e30  # and one over it the least that may divide: far from any machine, and a few multiplied stay finite


def positive(name: str, value: ArrayLike) -> Array:
    """Finite numbers above 0; a number for a number, an array for an array, as of all checks."""
    return _checked(name, value, lambda number: number > 0, "above 0", 1 / LARGEST)


def not_negative(name: str, value: ArrayLike) -> Array:
    """Finite numbers that are not below 0."""
    return _checked(name, value, lambda number: number >= 0, "0 or above")


def share(name: str, value: ArrayLike) -> Array:
    """The numbers as parts of 1 that leave something: 0 to below 1."""
    return _checked(name, value, lambda number: (number >= 0) & (number < 1), "0 to below 1")


def part(name: str, value: ArrayLike) -> Array:
    """The numbers as parts of 1, all of it as well."""
    return _checked(name, value, lambda number: (number >= 0) & (number <= 1), "0 to 1")


def whole(name: str, value: ArrayLike, least: int = 1) -> Array:
    """Whole numbers from ``least`` on."""
    return _checked(
        name, value, lambda number: (number >= least) & (number == np.floor(number)), f"{least} or more, whole"
    )


def divides(part: str, value: ArrayLike, of: str, total: ArrayLike) -> Array:
    """The numbers ``total / value``, BadInput where one is not whole."""
    parts, totals = whole(part, value), whole(of, total)
    parts, totals = np.broadcast_arrays(parts, totals)
    bad = np.flatnonzero(totals % parts)
    if len(bad):
        one, other = (numbers.flat[bad[0]] for numbers in (parts, totals))
        raise BadInput(f"{part} {one:g} does not divide {of} {other:g}; valid: a divisor of it")
    quotient: Array = totals / parts
    return quotient


def _checked(name: str, value: ArrayLike, holds: Callable[[Array], Any], valid: str, least: float = 0.0) -> Array:
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadInput(f"{name}: {value!r} is no number; valid: {valid}") from None
    good = np.isfinite(numbers) & holds(numbers)
    if not np.all(good):
        raise BadInput(f"{name}: {numbers[~good].flat[0]:g}; valid: {valid}")
    good = (numbers >= least) & (numbers <= LARGEST)
    if not np.all(good):
        raise BadInput(f"{name}: {numbers[~good].flat[0]:g}; valid: {valid}, {least:g} to {LARGEST:g}")
    checked: Array = numbers[()]
    return checked

"""The operations that nccl-tests measures, and the size that nccl-tests prints for them.

Shapes: arguments are scalars, or arrays that broadcast; results are computed for each element.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.errors import BadInput
from tuner.base.names import Collective

Array: TypeAlias = NDArray[np.float64]
# Largest number; its inverse is the smallest divisor. Both are far from any machine, and products of a few stay finite
LARGEST = 1e30


def positive(name: str, value: ArrayLike) -> Array:
    """Checks that numbers are finite and above 0. All checks return a number for a number, an array for an array."""
    return _checked(name, value, lambda number: number > 0, "above 0", 1 / LARGEST)


def not_negative(name: str, value: ArrayLike) -> Array:
    """Checks that numbers are finite and not below 0."""
    return _checked(name, value, lambda number: number >= 0, "0 or above")


def share(name: str, value: ArrayLike) -> Array:
    """Checks that numbers are shares from 0 to below 1, so that something is left."""
    return _checked(name, value, lambda number: (number >= 0) & (number < 1), "0 to below 1")


def part(name: str, value: ArrayLike) -> Array:
    """Checks that numbers are shares from 0 to 1, including 1."""
    return _checked(name, value, lambda number: (number >= 0) & (number <= 1), "0 to 1")


def whole(name: str, value: ArrayLike, least: int = 1) -> Array:
    """Checks that numbers are whole and at least ``least``."""
    return _checked(
        name, value, lambda number: (number >= least) & (number == np.floor(number)), f"{least} or more, whole"
    )


def divides(part: str, value: ArrayLike, of: str, total: ArrayLike) -> Array:
    """The numbers ``total / value``. BadInput if one is not whole."""
    parts, totals = whole(part, value), whole(of, total)
    parts, totals = np.broadcast_arrays(parts, totals)
    bad = np.flatnonzero(totals % parts)
    if len(bad):
        one, other = (numbers.flat[bad[0]] for numbers in (parts, totals))
        raise BadInput(f"{part} {one:g} does not divide {of} {other:g}: give a divisor of it")
    quotient: Array = totals / parts
    return quotient


def _checked(name: str, value: ArrayLike, holds: Callable[[Array], Any], valid: str, least: float = 0.0) -> Array:
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadInput(f"{name} {value!r} is not a number: valid is {valid}") from None
    good = np.isfinite(numbers) & holds(numbers)
    if not np.all(good):
        raise BadInput(f"{name}: {numbers[~good].flat[0]:g}; valid: {valid}")
    good = (numbers >= least) & (numbers <= LARGEST)
    if not np.all(good):
        raise BadInput(f"{name} {numbers[~good].flat[0]:g}: valid is {valid}, from {least:g} to {LARGEST:g}")
    checked: Array = numbers[()]
    return checked


class CostOperation(Enum):
    """NCCL's five collectives in its spelling, and operations made from sends and receives."""

    AllReduce = "AllReduce"
    ReduceScatter = "ReduceScatter"
    AllGather = "AllGather"
    Broadcast = "Broadcast"
    Reduce = "Reduce"
    AllToAll = "AllToAll"
    SendRecv = "SendRecv"
    Gather = "Gather"
    Scatter = "Scatter"


# The count of these operations is that of one rank's part; the size is that of all parts.
PER_RANK = frozenset(
    {
        CostOperation.AllGather,
        CostOperation.ReduceScatter,
        CostOperation.AllToAll,
        CostOperation.Gather,
        CostOperation.Scatter,
    }
)


def size_bytes(operation: CostOperation, count: ArrayLike, element_bytes: ArrayLike, ranks: ArrayLike) -> Array:
    """The size S in bytes that bandwidths refer to, from NCCL's count argument.

    S is the size of the whole array: the count times the size of an element, and times the number of ranks if the count
    is one rank's part. Source: the GetBw functions of nccl-tests, v2.19.6.
    """
    parts = whole("ranks", ranks) if operation in PER_RANK else 1.0
    size: Array = whole("count", count) * whole("element_bytes", element_bytes) * parts
    return size


# How often a rank's own part of 1/n is sent to, or comes from, each of the n - 1 others; the other operations move the
# whole size once.
_PASSES = {"AllReduce": 2, "ReduceScatter": 1, "AllGather": 1, "AllToAll": 1, "Gather": 1, "Scatter": 1}


def algorithm_gbs(nbytes: ArrayLike, time_us: ArrayLike) -> Array:
    """Size over time, 1e9 bytes per second."""
    gbs: Array = positive("bytes", nbytes) / positive("time_us", time_us) / 1000
    return gbs


def of_bits(gbps: ArrayLike) -> Array:
    """Converts 1e9 bits per second, the usual unit for networks, to 1e9 bytes per second (GB/s)."""
    gbs: Array = positive("gbps", gbps) / 8
    return gbs


def bus_factor(operation: CostOperation | Collective, ranks: ArrayLike) -> Array:
    """The factor from algorithm bandwidth to bus bandwidth: the share of the bytes that crosses a rank's link."""
    n = whole("ranks", ranks)
    passes = _PASSES.get(operation.name)
    factor: Array = n / n if passes is None else passes * (n - 1) / n
    return factor


def bus_gbs(operation: CostOperation | Collective, nbytes: ArrayLike, time_us: ArrayLike, ranks: ArrayLike) -> Array:
    """Bus bandwidth of ``nbytes``, nccl-tests' size, 1e9 bytes per second. Two ranks or more."""
    gbs: Array = algorithm_gbs(nbytes, time_us) * bus_factor(operation, whole("ranks", ranks, least=2))
    return gbs


def time_us(operation: CostOperation | Collective, nbytes: ArrayLike, busbw_gbs: ArrayLike, ranks: ArrayLike) -> Array:
    """The time that corresponds to a bus bandwidth: the inverse of :func:`bus_gbs`."""
    factor = bus_factor(operation, whole("ranks", ranks, least=2))
    time: Array = positive("bytes", nbytes) * factor / positive("busbw_gbs", busbw_gbs) / 1000
    return time

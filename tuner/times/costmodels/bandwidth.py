"""Algorithm and bus bandwidth, as nccl-tests defines them (doc/PERFORMANCE.md of NVIDIA/nccl-tests).

Shapes: scalars, or arrays that broadcast and are computed one by one.
"""

from numpy.typing import ArrayLike

from tuner.base.names import Collective
from tuner.times.costmodels.checks import Array, positive, whole
from tuner.times.costmodels.operations import Operation

# How often a rank's own part of 1/n goes to, or comes from, each of the n - 1 others; the rest move the whole once.
_PASSES = {"AllReduce": 2, "ReduceScatter": 1, "AllGather": 1, "AllToAll": 1, "Gather": 1, "Scatter": 1}


def algorithm_gbs(nbytes: ArrayLike, time_us: ArrayLike) -> Array:
    """Size over time, 1e9 bytes per second."""
    gbs: Array = positive("bytes", nbytes) / positive("time_us", time_us) / 1000
    return gbs


def of_bits(gbps: ArrayLike) -> Array:
    """1e9 bytes per second (GB/s) of 1e9 bits per second, in which networks are sold."""
    gbs: Array = positive("gbps", gbps) / 8
    return gbs


def bus_factor(operation: Operation | Collective, ranks: ArrayLike) -> Array:
    """What turns algorithm into bus bandwidth: the share of the bytes that crosses a rank's link."""
    n = whole("ranks", ranks)
    passes = _PASSES.get(operation.name)
    factor: Array = n / n if passes is None else passes * (n - 1) / n
    return factor


def bus_gbs(operation: Operation | Collective, nbytes: ArrayLike, time_us: ArrayLike, ranks: ArrayLike) -> Array:
    """Bus bandwidth of ``nbytes``, nccl-tests' size, 1e9 bytes per second. Two ranks or more."""
    gbs: Array = algorithm_gbs(nbytes, time_us) * bus_factor(operation, whole("ranks", ranks, least=2))
    return gbs


def time_us(operation: Operation | Collective, nbytes: ArrayLike, busbw_gbs: ArrayLike, ranks: ArrayLike) -> Array:
    """The time that gives a bus bandwidth: the inverse of :func:`bus_gbs`."""
    factor = bus_factor(operation, whole("ranks", ranks, least=2))
    time: Array = positive("bytes", nbytes) * factor / positive("busbw_gbs", busbw_gbs) / 1000
    return time

"""Choice of the time that wins."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from tuner.base.errors import NoAlgorithm
from tuner.base.numerics import FloatArray
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator

PickRule = Callable[[Iterator[FloatArray], Communicator], tuple[NDArray[np.int8], FloatArray]]
RULES: Registry[PickRule] = Registry()


@RULES(nccl.GET_ALGO_INFO(since="2.18.1"), nccl.TOPO_GET_ALGO_INFO(since="2.19.3"))
def first_fastest(times: Iterator[FloatArray], communicator: Communicator) -> tuple[NDArray[np.int8], FloatArray]:
    """The least time in us, [size]; of equal ones the first in NCCL's order of algorithms and protocols.

    Negative ones do not count. A ring of one rank per node can have one, in releases that count more network steps
    than steps.
    """
    best_us = unless_negative(next(times))
    best = np.zeros(best_us.shape, np.int8)
    for index, time_us in enumerate(map(unless_negative, times), start=1):
        best[time_us < best_us] = index
        best_us = np.minimum(best_us, time_us)
    return best, _fast_enough(best_us, communicator)


def unless_negative(time_us: FloatArray) -> FloatArray:
    """The times in us, [size]; where they are below 0 and do not count, infinite ones."""
    positive = time_us >= 0
    return time_us if positive.all() else np.where(positive, time_us, np.float32(np.inf))


@RULES(nccl.TUNING_SELECT_BEST_TUNING(since="2.31.2"))
def last_fastest(times: Iterator[FloatArray], communicator: Communicator) -> tuple[NDArray[np.int8], FloatArray]:
    """The least time in us, [size]; of equal ones the last in NCCL's order of algorithms and protocols."""
    best_us = next(times)
    best = np.zeros(best_us.shape, np.int8)
    for index, time_us in enumerate(times, start=1):
        best[time_us <= best_us] = index
        best_us = np.minimum(best_us, time_us)
    return best, _fast_enough(best_us, communicator)


def _fast_enough(best_us: FloatArray, communicator: Communicator) -> FloatArray:
    slowest = communicator.release.limits.max_time_us
    if (best_us >= np.float32(slowest)).any():
        raise NoAlgorithm(f"NCCL takes no time of {slowest:g} us or more, and every candidate is that slow")
    return best_us

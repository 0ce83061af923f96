"""What NCCL picks over sizes and node counts: the records behind maps of choices."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.case import Case
from tuner.cfloat import FloatArray, SizeArray
from tuner.errors import NoAlgorithm
from tuner.rules.request import Request
from tuner.selection import MAX_BYTES, Selection

NOTHING = -1


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Picks as rank 0 sees them, [nodes][bytes]; ``algorithm`` and ``protocol`` are NCCL's numbers.

    Where NCCL finds nothing to run they are -1, channels and threads 0, and the time is not a number.
    """

    nodes: tuple[int, ...]
    bytes: SizeArray
    algorithm: NDArray[np.int8]
    protocol: NDArray[np.int8]
    channels: NDArray[np.int64]
    threads: NDArray[np.int64]
    time_us: FloatArray


def choices(case: Case, request: Request, sizes: SizeArray, nodes: Sequence[int]) -> Choices:
    """The picks of ``sizes`` (nBytes, ascending, at least one) on each of ``nodes`` nodes, not on the case's own.

    Errors: BadInput for what the emulator refuses, one rank among it.
    """
    shape = len(nodes), len(sizes)
    found = Choices(
        tuple(nodes), sizes, np.full(shape, NOTHING, np.int8), np.full(shape, NOTHING, np.int8),
        np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, np.nan, np.float32),
    )
    for row, count in enumerate(nodes):
        selection = Selection(replace(case, nodes=count).communicator())
        end = taken(selection, request, sizes)
        if end:
            picks = selection.pick(request, sizes[:end])
            for name in ("algorithm", "protocol", "channels", "threads", "time_us"):
                getattr(found, name)[row, :end] = getattr(picks, name)
    return found


def taken(selection: Selection, request: Request, sizes: SizeArray) -> int:
    """How many of ``sizes`` (ascending, at least one) NCCL takes, from the first on."""
    most = largest(selection, request, int(sizes[-1]))
    return int(np.searchsorted(sizes, np.uint64(most), side="right"))


def largest(selection: Selection, request: Request, most: int = MAX_BYTES) -> int:
    """The largest size to ``most`` that NCCL takes: through 2.30 none that lasts an hour; 0 where it runs nothing."""

    def refused(nbytes: int) -> bool:
        try:
            selection.pick(request, nbytes)
        except NoAlgorithm:
            return True
        return False

    if not refused(most):
        return most
    return 0 if refused(1) else bisect.bisect_left(range(most), True, lo=1, key=refused) - 1

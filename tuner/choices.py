"""What NCCL picks over sizes and node counts: the records behind maps of choices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.case import Case
from tuner.cfloat import FloatArray, SizeArray
from tuner.errors import NoAlgorithm
from tuner.ranges import largest
from tuner.rules.request import Request
from tuner.selection import Picks, Selection

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
    rows = [picks(Selection(replace(case, nodes=count).communicator()), request, sizes) for count in nodes]
    names = ("algorithm", "protocol", "channels", "threads", "time_us")
    return Choices(tuple(nodes), sizes, *(np.stack([getattr(row, name) for row in rows]) for name in names))


def picks(selection: Selection, request: Request, sizes: SizeArray, least: int = 1) -> Picks:
    """The picks of ``sizes`` (ascending, at least one) from ``least`` on.

    Below it, and where NCCL finds nothing to run, they are as in :class:`Choices`.
    """
    shape = sizes.shape
    found = Picks(
        sizes, np.full(shape, NOTHING, np.int8), np.full(shape, NOTHING, np.int8), np.full(shape, np.nan, np.float32),
        np.zeros(shape, np.int64), np.zeros(shape, np.int64),
    )
    taken = sizes >= least
    try:
        picked = selection.pick(request, sizes[taken])
    except NoAlgorithm:
        taken &= sizes <= largest(selection, request, int(sizes[-1]))
        if not taken.any():
            return found
        picked = selection.pick(request, sizes[taken])
    for name in ("algorithm", "protocol", "time_us", "channels", "threads"):
        getattr(found, name)[taken] = getattr(picked, name)
    return found

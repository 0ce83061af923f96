"""The operations that nccl-tests times, and what it calls their size.

Shapes: scalars, or arrays that broadcast and are computed one by one.
"""

from enum import Enum

import numpy as np
from numpy.typing import ArrayLike

from tuner.times.costmodels.checks import Array, whole

_ALIGNED_BYTES = 16


class Operation(Enum):
    """NCCL's five collectives by its spelling, and what is made of sends and receives."""

    AllReduce = "AllReduce"
    ReduceScatter = "ReduceScatter"
    AllGather = "AllGather"
    Broadcast = "Broadcast"
    Reduce = "Reduce"
    AllToAll = "AllToAll"
    SendRecv = "SendRecv"
    Gather = "Gather"
    Scatter = "Scatter"


# A count of these is of one rank's part; the size is that of all parts.
PER_RANK = frozenset(
    {Operation.AllGather, Operation.ReduceScatter, Operation.AllToAll, Operation.Gather, Operation.Scatter}
)


def size_bytes(operation: Operation, count: ArrayLike, element_bytes: ArrayLike, ranks: ArrayLike) -> Array:
    """The size S in bytes that bandwidths are of, from NCCL's count argument.

    The whole array: count x size of an element, times the ranks where the count is that of one rank's part.
    Source: the GetBw functions of nccl-tests, v2.19.6.
    """
    parts = whole("ranks", ranks) if operation in PER_RANK else 1.0
    size: Array = whole("count", count) * whole("element_bytes", element_bytes) * parts
    return size


def timed_bytes(operation: Operation, asked: ArrayLike, element_bytes: ArrayLike, ranks: ArrayLike) -> Array:
    """The size that nccl-tests runs and prints for one of ``-b`` and ``-e``: whole parts of a multiple of 16 bytes.

    It is 0 where no part has 16 bytes. Source: the GetCollByteCount functions of nccl-tests, v2.19.6.
    """
    elements = np.floor(whole("bytes", asked) / whole("element_bytes", element_bytes))
    if operation not in PER_RANK:
        plain: Array = elements * np.asarray(element_bytes, np.float64)
        return plain
    aligned = _ALIGNED_BYTES // whole("element_bytes", element_bytes)
    count = np.floor(np.floor(elements / whole("ranks", ranks)) / aligned) * aligned
    size: Array = count * np.asarray(element_bytes, np.float64) * np.asarray(ranks, np.float64)
    return size

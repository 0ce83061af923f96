"""Launches in full: kernels with the works that NCCL hands them, and the operations prepared for its network."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.oracle import exchanges, messages
from tuner.oracle.answers import Reader


@dataclass(frozen=True, slots=True)
class LaunchInFull:
    """What rank 0 launched for a group of calls.

    ``operations`` are of all kernels in NCCL's order, one a channel and collective: structured, [operation], by the
    names that ``struct ncclProxyOp`` has, sizes in bytes. ``patterns`` are the names of ncclPattern_t by value.
    """

    kernels: tuple[exchanges.LaunchedKernel, ...]
    operations: NDArray[Any]
    patterns: dict[int, str]


def read(reader: Reader, answer: messages.GroupAnswer) -> LaunchInFull:
    """The launch of a group that was asked for in full."""
    return LaunchInFull(
        exchanges.read(reader, answer),
        np.frombuffer(answer.proxy_operations, reader.proxy_operation),
        reader.patterns,
    )

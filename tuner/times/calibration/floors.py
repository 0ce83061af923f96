"""The host's floor: what it takes to start a call, below which no time can be measured, whatever the GPUs take.

Combinations differ in what they take at small sizes; where several take the same at the least, it is the host's time.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tuner.base.names import AlgoProto
from tuner.times.records.samples import Point

SAME = 0.03  # of a time: what differs by less is the same
_COMBINATIONS = 3  # of algorithm and protocol that take the same; two may by chance
_SIZES = 2  # at which each of them does


@dataclass(frozen=True, slots=True)
class Floor:
    """``calls`` of ``communicator`` were left out as they take no longer than the host, ``floor_us``, or little more.

    The largest of them has ``to_bytes``.
    """

    communicator: str
    floor_us: float
    calls: int
    to_bytes: int


def floor_us(calls: Iterable[tuple[Point, AlgoProto, float]]) -> float | None:
    """Of calls with their times in us; None where several combinations do not share the least time."""
    known = list(calls)
    times_us = np.array([time_us for _, _, time_us in known])
    if not len(times_us):
        return None
    # Times at a floor are noisy as others are: the middle of those near the least, not the least.
    least_us = float(np.median(times_us[times_us <= (1 + SAME) * times_us.min()]))
    near: dict[AlgoProto, set[int]] = {}
    for point, algo_proto, time_us in known:
        if abs(time_us / least_us - 1) <= SAME:
            near.setdefault(algo_proto, set()).add(point.bytes)
    return least_us if sum(len(sizes) >= _SIZES for sizes in near.values()) >= _COMBINATIONS else None

"""The emulator as a function of its constants: computes the logarithms of all observed calls' times and their
slopes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.emulator import model
from tuner.emulator.build import with_release
from tuner.emulator.communicator import Comm
from tuner.emulator.fitted_constants import Changes
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import ModelPoint, RuleCall
from tuner.release import ALGORITHM_NAMES, HARDWARE, PROTOCOL_KEYS, PROTOCOL_NAMES, Release
from tuner.release.convert import plain
from tuner.release.schema import Latencies
from tuner.times.calibration.observations import ObservationGroup, Observations

LARGEST_FACTOR = 8.0
LEAST_PLATEAU = 1.001  # the plateau raises the latency; newer releases divide by its excess over 1
DIGITS = 8


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of NCCL's model: its place in the tables, NCCL's value, and the range of changes of its logarithm.

    ``after`` orders constants with the same effect: the constant with the smallest ``after`` is fitted, the others keep
    NCCL's value. For a ``tree_correction`` the constant is an exponent, 1 in NCCL: the 23 factors keep their shape, and
    the dip becomes deeper or flatter.
    """

    path: tuple[str | int, ...]
    nccl: float
    after: int
    low: float = -math.log(LARGEST_FACTOR)
    high: float = math.log(LARGEST_FACTOR)

    def __str__(self) -> str:
        path = [str(part) for part in self.path]
        if self.path[0] == "cap_gbs":
            path[-1] = ("1_node", "2_nodes", "more_nodes")[int(self.path[-1])]
        return ".".join([*path, "exponent"] if self.path[0] == "tree_correction" else path)

    @property
    def is_cap(self) -> bool:
        """Whether the constant is a cap on a bandwidth, GB/s."""
        return self.path[0] == "cap_gbs"

    @property
    def is_efficiency(self) -> bool:
        """Whether the constant is a share of bandwidth."""
        return self.path[0] == "efficiency"

    @property
    def is_latency(self) -> bool:
        """Whether the constant is a latency, us, or a factor on a latency."""
        return self.path[0] in ("base_latency_us", "hw_latency_us", "ring_plateau")

    def value(self, change: float) -> float:
        """The value after a change of its logarithm."""
        return self.nccl * math.exp(change)

    def within(self, value: float) -> float:
        """The nearest value that may be fitted."""
        return min(max(value, self.value(self.low)), self.value(self.high))


def constants(nccl: Release) -> tuple[list[Constant], list[str]]:
    """Constants that can change, then the names of those that NCCL sets to 0, which no factor can change."""
    numbers = list(_all(nccl))
    return [one for one in numbers if one.nccl > 0], [str(one) for one in numbers if one.nccl <= 0]


def _all(nccl: Release) -> Iterator[Constant]:
    yield from _latencies(("base_latency_us",), nccl.base_latency_us)
    for hardware in HARDWARE:
        yield from _latencies(("hw_latency_us", hardware), nccl.hw_latency_us[hardware])
    for algorithm in nccl.rules.bandwidth:
        yield from (Constant(("efficiency", ALGORITHM_NAMES[algorithm], key), 1.0, 0) for key in PROTOCOL_KEYS)
    for generation, factor in nccl.ring_plateau.factors.items():
        low = min(0.0, math.log(LEAST_PLATEAU / factor))
        yield Constant(("ring_plateau", generation), factor, 1, low)
    for key in PROTOCOL_KEYS:
        yield Constant(("tree_correction", key), 1.0, 1)
    for name, rows in nccl.cap_gbs.items():
        for row, values in rows.items():
            yield from (Constant(("cap_gbs", name, row, column), value, 2) for column, value in enumerate(values))


def _latencies(path: tuple[str, ...], rows: Latencies) -> Iterator[Constant]:
    for algorithm, row in rows.items():
        for protocol, value in row.items():
            yield Constant((*path, ALGORITHM_NAMES[algorithm], PROTOCOL_NAMES[protocol]), value, 0)


def tables(nccl: Release, values: Mapping[Constant, float]) -> dict[str, Any]:
    """The tables of a file of fitted constants that has ``values``, without values equal to NCCL's."""
    made: dict[str, Any] = {}
    for constant, value in values.items():
        if value == constant.nccl:
            continue
        name, *rows, last = constant.path
        table: dict[Any, Any] = made.setdefault(str(name), {})
        if name == "cap_gbs":
            kind, row = rows
            caps: Any = nccl.cap_gbs
            own = plain(caps[kind][row])
            table.setdefault(kind, {}).setdefault(row, own)[last] = value
        elif name == "tree_correction":
            table[last] = [rounded(factor**value) for factor in nccl.tree_correction[PROTOCOL_KEYS[str(last)]]]
        else:
            for row in rows:
                table = table.setdefault(row, {})
            table[last] = value
    return made


def rounded(value: float) -> float:
    """The number, rounded to as many digits as a file of fitted constants has."""
    return float(f"{value:.{DIGITS}g}")


Array = NDArray[np.float64]
STEP = 1e-3  # step of a constant's logarithm, far above what float32 rounds
# Changes of a logarithm; a time that reacts neither to half nor to twice the value does not depend on it
_PROBES = (-0.7, 0.7)
_LEAST_US = 1e-6  # below any real time, because intermediate constants may make a latency negative


class Forward:
    """The model as a function of those ``constants`` on which the observed calls depend. ``unreached`` names the
    constants without effect on these calls, ``zeros`` the constants that NCCL sets to 0.
    """

    def __init__(self, observations: Observations) -> None:
        self._nccl = observations.release
        self._changes = Changes(self._nccl)
        self._groups = observations.groups
        self._places = _places(self._groups)
        candidates, self.zeros = constants(self._nccl)
        own = list(self._logs(self._nccl, range(len(self._groups))))
        self._reach: dict[Constant, list[int]] = {}
        for constant in candidates:
            may = [index for index, group in enumerate(self._groups) if _may_reach(constant, group)]
            released = [self.release({constant: constant.value(probe)}) for probe in _PROBES] if may else []
            changed = {
                index
                for nccl in released
                for index, log_us in zip(may, self._logs(nccl, may), strict=True)
                if (log_us != own[index]).any()
            }
            reached = sorted(changed)
            if reached:
                self._reach[constant] = reached
        self.constants = list(self._reach)
        self.unreached = [str(constant) for constant in candidates if constant not in self._reach]

    def meet(self, some: Sequence[Constant], others: Sequence[Constant]) -> bool:
        """Whether any group of calls depends on a constant of ``some`` and on one of ``others``."""
        reached = [{index for each in side for index in self._reach[each]} for side in (some, others)]
        return not reached[0].isdisjoint(reached[1])

    def release(self, values: Mapping[Constant, float]) -> Release:
        """The release with ``values`` in place of its own constants."""
        return self._changes.release(tables(self._nccl, values))

    def log_us(self, values: Mapping[Constant, float]) -> Array:
        """Logarithms of the times in us, an array [call] in the order of the groups."""
        return np.concatenate(list(self._logs(self.release(values), range(len(self._groups)))))

    def _logs(self, nccl: Release, groups: Iterable[int]) -> Iterator[Array]:
        """Yields, for each group, the logarithms of the times of its calls in us with this release. Communicators that
        groups share are made once.
        """
        made: dict[int, Comm] = {}
        for group in (self._groups[index] for index in groups):
            key = id(group.communicator)
            if key not in made:
                made[key] = with_release(group.communicator, nccl)
            yield _log_us(group, made[key])

    def jacobian(self, values: Mapping[Constant, float], by: Sequence[Constant]) -> Array:
        """Change of the times' logarithms with the logarithm of each constant: numbers indexed by [call][constant].

        Computed by central differences, which become one-sided at the constants' bounds.
        """
        jacobian = np.zeros((self._places[-1].stop, len(by)))
        for column, constant in enumerate(by):
            log = float(np.log(values[constant] / constant.nccl))
            low, high = max(constant.low, log - STEP), min(constant.high, log + STEP)
            reached = self._reach[constant]
            ends = [self._logs(self.release({**values, constant: constant.value(end)}), reached) for end in (low, high)]
            for index, below, above in zip(reached, *ends, strict=True):
                jacobian[self._places[index], column] = (above - below) / (high - low)
        return jacobian


def _may_reach(constant: Constant, group: ObservationGroup) -> bool:
    """Whether the constant may affect the group of calls at all. This check saves evaluations; the model decides about
    the remaining pairs.
    """
    name, *_, last = constant.path
    if name in ("cap_gbs", "ring_plateau"):
        return True
    return last == group.algo_proto[1].name.lower()


def _log_us(group: ObservationGroup, communicator: Comm) -> Array:
    algo_proto = ModelPoint(communicator, group.request.collective, *group.algo_proto)
    times_us = timing.time_us(
        model.latency_us(algo_proto),
        model.bandwidth_gbs(algo_proto),
        RuleCall(communicator, group.request, group.algo_proto),
        group.sizes,
    )
    logs: Array = np.log(np.maximum(times_us.astype(np.float64), _LEAST_US))
    return logs


def _places(groups: Sequence[ObservationGroup]) -> list[slice]:
    ends = np.cumsum([0, *(len(group.median_us) for group in groups)])
    return [slice(int(start), int(end)) for start, end in pairwise(ends)]

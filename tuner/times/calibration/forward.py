"""The emulator as a function of its constants: the logarithms of all observed calls' times, and how they change."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tuner.emulator import model
from tuner.emulator.build import with_release
from tuner.emulator.communicator import Communicator
from tuner.emulator.fitted_constants import Changes
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import Call, ModelPoint
from tuner.release import Release
from tuner.times.calibration.constants import Constant, constants, tables
from tuner.times.calibration.observations import ObservationGroup, Observations

Array = NDArray[np.float64]
STEP = 1e-3  # of a constant's logarithm: far above what float32 rounds
_PROBES = (-0.7, 0.7)  # of a logarithm: what does not answer to half and twice the value is not reached
_LEAST_US = 1e-6  # below any time: constants on the way to the fitted ones may make a latency negative


class Forward:
    """``constants`` are those that any observed call depends on; ``unreached`` and ``zeros`` name the others."""

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
        """Whether any call depends on one of both."""
        reached = [{index for each in side for index in self._reach[each]} for side in (some, others)]
        return not reached[0].isdisjoint(reached[1])

    def release(self, values: Mapping[Constant, float]) -> Release:
        """The release with ``values`` in place of its own constants."""
        return self._changes.release(tables(self._nccl, values))

    def log_us(self, values: Mapping[Constant, float]) -> Array:
        """Logarithms of us, [call], in the order of the groups."""
        return np.concatenate(list(self._logs(self.release(values), range(len(self._groups)))))

    def _logs(self, nccl: Release, groups: Iterable[int]) -> Iterator[Array]:
        """Logarithms of us of these groups' calls with the release; communicators that groups share are made once."""
        made: dict[int, Communicator] = {}
        for group in (self._groups[index] for index in groups):
            key = id(group.communicator)
            if key not in made:
                made[key] = with_release(group.communicator, nccl)
            yield _log_us(group, made[key])

    def jacobian(self, values: Mapping[Constant, float], by: Sequence[Constant]) -> Array:
        """Change of log us by the logarithm of each constant, [call][constant].

        A smaller factor is tried where a larger one is out of the bounds.
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
    """Spares the calls that a tree's correction or another protocol's latency cannot reach; the model has the word."""
    name, *_, last = constant.path
    if name in ("cap_gbs", "ring_plateau"):
        return True
    return last == group.algo_proto[1].name.lower()


def _log_us(group: ObservationGroup, communicator: Communicator) -> Array:
    algo_proto = ModelPoint(communicator, group.request.collective, *group.algo_proto)
    times_us = timing.time_us(
        model.latency_us(algo_proto),
        model.bandwidth_gbs(algo_proto),
        Call(communicator, group.request, group.algo_proto),
        group.sizes,
    )
    logs: Array = np.log(np.maximum(times_us.astype(np.float64), _LEAST_US))
    return logs


def _places(groups: Sequence[ObservationGroup]) -> list[slice]:
    ends = np.cumsum([0, *(len(group.median_us) for group in groups)])
    return [slice(int(start), int(end)) for start, end in pairwise(ends)]

"""Predicted times of all combinations over sizes, beside the pick: the records behind curves."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.answers.choices import NOTHING, Choices, choices
from tuner.base.names import AlgoProto
from tuner.base.numerics import FloatArray, SizeArray
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.costmodels.bandwidth import bus_factor


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """``time_us`` is [cell][size], not a number where NCCL ignores the cell; ``picks`` has one row."""

    algo_protos: tuple[AlgoProto, ...]
    time_us: FloatArray
    picks: Choices
    bus_factor: float

    @property
    def bytes(self) -> SizeArray:
        """Sizes in bytes, [size]: those of the picks."""
        return self.picks.bytes

    def busbw_gbs(self, time_us: FloatArray) -> NDArray[np.float64]:
        """nccl-tests' bus bandwidth, GB/s (1e9 bytes per second), of times by size in us."""
        busbw_gbs: NDArray[np.float64] = self.bytes.astype(np.float64) / time_us * 1e-3 * self.bus_factor
        return busbw_gbs


def curves(scenario: Scenario, request: Request, sizes: SizeArray) -> Curves:
    """Of the cells that the call may use, ``sizes`` (nBytes, ascending, at least one), as rank 0 sees them.

    Errors: BadInput for what the emulator refuses, NoAlgorithm where nothing can run at any of the sizes.
    """
    selection = Selection(scenario.communicator())
    picks = choices(scenario, request, sizes, [scenario.nodes])
    if (picks.algorithm == NOTHING).all():
        selection.pick(request, sizes[:1])  # says why
    algo_protos = tuple(selection.candidates(request))
    table_us = selection.cost_table(request, sizes)
    times_us = (
        np.stack([table_us[:, *algo_proto] for algo_proto in algo_protos])
        if algo_protos
        else np.empty((0, len(sizes)), np.float32)
    )
    known_us = np.where(times_us > 0, times_us, np.float32(np.nan))
    return Curves(algo_protos, known_us, picks, float(bus_factor(request.collective, scenario.ranks)))

"""Times of NCCL's picks for an export, with whose they are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.answers import calibrated
from tuner.answers.calibrated import TimesWanted
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.costmodels.bandwidth import bus_gbs

BY_NCCL = "predicted by NCCL's own model"
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Times:
    """Whose times an export has: NCCL's where ``wanted`` is None, else those of a calibration."""

    wanted: TimesWanted | None = None

    def of(self, scenario: Scenario, request: Request, sizes: Sequence[int]) -> tuple[Array, str]:
        """Times in us [size] of NCCL's picks for nBytes, and whose they are. Errors: those of the picks, BadInput."""
        selection = Selection(scenario.communicator())
        if self.wanted is None:
            return selection.pick(request, sizes).time_us.astype(np.float64), BY_NCCL
        calls = calibrated.calls(scenario, selection, request, sizes, self.wanted.calibration)
        return np.asarray(calls.time_us, np.float64), f"calibrated to measured times, {calls.calibration}"

    def busbw_gbs(self, scenario: Scenario, request: Request, sizes: Sequence[int]) -> tuple[Array, str]:
        """Bus bandwidths in GB/s [size] as nccl-tests defines them, and whose."""
        times_us, whose = self.of(scenario, request, sizes)
        return np.asarray(bus_gbs(request.collective, np.array(sizes), times_us, scenario.ranks)), whose


def head(scenario: Scenario, whose: Iterable[str]) -> str:
    """What an export says of itself, in a line."""
    return f"{scenario.heading}; times {'; '.join(dict.fromkeys(whose))}"


def with_nodes(scenario: Scenario, nodes: int) -> Scenario:
    """The same machine, so many of it."""
    return replace(scenario, nodes=nodes)


def whole(request: Request, ranks: int, size: int) -> int:
    """The nearest size from ``size`` on that the collective can have, in bytes."""
    unit = request.unit_bytes(ranks)
    return -(-size // unit) * unit

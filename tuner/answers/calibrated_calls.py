"""Calibrated times of the calls that NCCL picks for, as arrays that say whose they are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.answers import calibrated
from tuner.answers.calibrated import TimesWanted
from tuner.base.frames import Column, Framed, Named
from tuner.base.names import Algorithm, Protocol
from tuner.base.numerics import SizeArray
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.timemodel.features import Array
from tuner.times.timemodel.predict import TimeModel


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CalibratedCalls(Framed):
    """What NCCL's picks take by a calibration, an element a size: times in us with 90 % intervals, float64.

    ``bytes`` are NCCL's nBytes, ``algorithm`` and ``protocol`` the picks, which no calibration changes. ``measured``:
    whether that combination was measured for the collective; where not, the time is an extrapolation. ``calibration``
    names the one that answered and says why that one; ``launch`` is how its calls were launched, and ``carried_over``
    what was carried over to these.
    """

    bytes: SizeArray
    algorithm: NDArray[np.int8]
    protocol: NDArray[np.int8]
    time_us: Array
    low_us: Array
    high_us: Array
    measured: NDArray[np.bool_]
    calibration: str
    launch: str
    carried_over: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.bytes)} sizes by {self.calibration}>"

    def columns(self) -> dict[str, Column]:
        """A row a size: bytes, algorithm, protocol, time_us, low_us, high_us, measured."""
        return {
            "bytes": self.bytes,
            "algorithm": Named(Algorithm, self.algorithm),
            "protocol": Named(Protocol, self.protocol),
            "time_us": self.time_us,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "measured": self.measured,
        }


def calls(
    scenario: Scenario, selection: Selection, request: Request, sizes: ArrayLike, calibration: str | None
) -> CalibratedCalls:
    """Of ``sizes`` by a calibration by name or file, or by the one that fits the machine.

    Errors: those of :meth:`Selection.pick` and of :func:`tuner.answers.calibrated.answering`.
    """
    model = calibrated.answering(TimesWanted(False, calibration), scenario, selection, request.buffers)
    assert isinstance(model, TimeModel)  # as NCCL's own are not wanted beside
    picks = selection.pick(request, sizes)
    times = model.of_picks(request, picks)
    return CalibratedCalls(
        picks.bytes,
        picks.algorithm,
        picks.protocol,
        times.time_us,
        times.low_us,
        times.high_us,
        times.measured,
        model.reason,
        model.calibration.launch,
        tuple(kind.value for kind in times.carried_over),
    )

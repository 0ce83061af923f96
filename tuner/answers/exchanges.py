"""How long AllToAll takes by measured times: NCCL makes it of sends and receives, and predicts nothing for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.analysis import calibrated
from tuner.analysis.calibrated import CalibratedTime, CalibrationUsed, NoCalibration, TimesWanted
from tuner.base.errors import BadInput
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

ALL_TO_ALL = "AllToAll"


@dataclass(frozen=True, slots=True)
class AllToAllAnswer:
    """One size: ``bytes`` that each rank sends in all, its own part counted, as nccl-tests does.

    ``busbw_gbs`` is that of ``calibrated.time_us``, GB/s, its own part not counted. ``measured``: whether such calls
    were measured on as many nodes, one or several.
    """

    collective: str
    bytes: int
    calibrated: CalibratedTime
    measured: bool
    busbw_gbs: float
    calibration: CalibrationUsed


def all_to_all(scenario: Scenario, sizes: Sequence[int], calibration: str | None = None) -> list[AllToAllAnswer]:
    """AllToAll of ``sizes`` bytes on the scenario's communicator.

    Errors: BadInput where no calibration with measured times of AllToAll answers, BadCalibration for a file that is
    none.
    """
    selection = Selection(scenario.communicator())
    model = calibrated.answering(TimesWanted(beside_nccl=False, calibration=calibration), scenario, selection)
    if isinstance(model, NoCalibration):
        raise BadInput(model.reason)
    said, ranks = model.all_to_all(sizes), selection.communicator.ranks
    used = CalibrationUsed(
        model.calibration.name,
        model.reason,
        model.calibration.launch,
        tuple(kind.value for kind in said.carried_over),
        () if said.measured.all() else (ALL_TO_ALL,),
    )
    answers = []
    for at, size in enumerate(sizes):
        time_us, low_us, high_us = (float(f"{each[at]:.6g}") for each in (said.time_us, said.low_us, said.high_us))
        busbw_gbs = size * (ranks - 1) / ranks / time_us / 1e3
        time = CalibratedTime(time_us, low_us, high_us)
        answers.append(AllToAllAnswer(ALL_TO_ALL, size, time, bool(said.measured[at]), busbw_gbs, used))
    return answers

"""The tuning table with calibrated times beside NCCL's latencies and bandwidths."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibratedTime, CalibrationUsed, Estimate, NoCalibration, TimesWanted
from tuner.answers.tables import TableCell
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.costmodels.bandwidth import algorithm_gbs

LARGE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class CalibratedCell:
    """What a combination takes: the smallest call in us, and algorithm bandwidth in GB/s at a large one, LARGE_BYTES.

    They are what NCCL's latency and bandwidth stand for. ``measured``: whether the combination was, for the collective.
    """

    smallest: CalibratedTime
    large_gbs: float
    large_low_gbs: float
    large_high_gbs: float
    measured: bool


@dataclass(frozen=True, slots=True)
class CalibratedTable:
    """``cells`` as NCCL's, those that a call may use with calibrated times."""

    cells: tuple[TableCell, ...]
    calibration: CalibrationUsed


def with_times(cells: Sequence[TableCell], scenario: Scenario, wanted: TimesWanted) -> CalibratedTable:
    """Of float32 sums. Errors: those of :func:`tuner.answers.calibrated.answering`."""
    selection = Selection(scenario.communicator())
    model = calibrated.answering(wanted, scenario, selection)
    if isinstance(model, NoCalibration):
        return CalibratedTable(tuple(cells), calibrated.used(model))
    ends: dict[tuple[Collective, str], tuple[Estimate, Estimate]] = {}
    for collective in Collective:
        request = Request(collective, DataType.float32, Op.sum)
        names = [f"{algorithm.name}/{protocol.name}" for algorithm, protocol in selection.candidates(request)]
        sizes = [request.unit_bytes(selection.communicator.ranks), LARGE_BYTES]
        for name, (smallest, large) in calibrated.of_combinations(model, request, sizes, names).items():
            ends[collective, name] = smallest, large
    several = [(name, each) for (_, name), pair in ends.items() for each in pair]
    return CalibratedTable(
        tuple(replace(cell, calibrated=_cell(ends.get((cell.collective, _name(cell))))) for cell in cells),
        calibrated.used(model, several),
    )


def _name(cell: TableCell) -> str:
    return f"{cell.algorithm.name}/{cell.protocol.name}"


def _cell(pair: tuple[Estimate, Estimate] | None) -> CalibratedCell | None:
    if pair is None:
        return None
    smallest, large = pair
    gbs, low_gbs, high_gbs = (
        float(algorithm_gbs(LARGE_BYTES, us)) for us in (large.time.time_us, large.time.high_us, large.time.low_us)
    )
    return CalibratedCell(smallest.time, gbs, low_gbs, high_gbs, smallest.measured)

"""The tuning table, with one record per cell."""

from collections.abc import Sequence
from dataclasses import field, replace

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibratedEstimate, CalibrationUsed, NoCalibration, TimesWanted
from tuner.base.dataclass import dataclass
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, DataType, Op, Protocol
from tuner.base.nouns import TimeInterval
from tuner.base.numerics import shortest
from tuner.base.records import json_form
from tuner.emulator.model import Tables
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.costmodels.operations import algorithm_gbs


@dataclass(frozen=True, slots=True)
class TableCell:
    """The model's numbers of one combination; ``reason`` says why a bandwidth is 0, if the emulator knows.

    ``fitted`` are the constants that were fitted to measurements, as a scenario's :class:`ConstantsUsed` has them;
    ``calibrated`` is the calibrated time of such calls, if it was asked for and they may run.
    """

    collective: Collective
    algorithm: Algorithm
    protocol: Protocol
    latency_us: float
    bandwidth_gbs: float
    max_threads: int
    thread_threshold_bytes: int
    reason: str | None
    fitted: object = field(default=None, metadata=json_form(optional=True))
    calibrated: "CalibratedCell | None" = field(default=None, metadata=json_form(optional=True))


def cells(tables: Tables, algorithms: int, fitted: object = None) -> list[TableCell]:
    """Cells of the release's first ``algorithms`` algorithms, in NCCL's order, with exact numbers."""
    return [
        TableCell(
            collective=collective,
            algorithm=algorithm,
            protocol=protocol,
            latency_us=shortest(tables.latency_us[collective, algorithm, protocol]),
            bandwidth_gbs=shortest(tables.bandwidth_gbs[collective, algorithm, protocol]),
            max_threads=int(tables.max_threads[algorithm, protocol]),
            thread_threshold_bytes=int(tables.thread_thresholds_bytes[algorithm, protocol]),
            reason=tables.reasons.get((collective, algorithm, protocol)),
            fitted=fitted,
        )
        for collective in Collective
        for algorithm, protocol in ALGO_PROTOS
        if algorithm < algorithms
    ]


LARGE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class CalibratedCell:
    """Time of a combination: the smallest call in us, and the algorithm bandwidth in GB/s at a large size, LARGE_BYTES.

    The time of the smallest call corresponds to NCCL's latency, the algorithm bandwidth to NCCL's bandwidth.
    ``measured``: whether the combination was measured for the collective.
    """

    smallest: TimeInterval
    large_gbs: float
    large_low_gbs: float
    large_high_gbs: float
    measured: bool


def with_times(
    cells: Sequence[TableCell], scenario: Scenario, wanted: TimesWanted
) -> tuple[list[TableCell], CalibrationUsed]:
    """Adds calibrated times of float32 sums to the cells that a call may use. Also returns the calibration that
    answered. BadInput if no calibration answers, BadCalibration if it is invalid.
    """
    selection = Selection(scenario.communicator())
    model = calibrated.answering(wanted, scenario, selection)
    if isinstance(model, NoCalibration):
        return list(cells), calibrated.used(model)
    ends: dict[tuple[Collective, str], tuple[CalibratedEstimate, CalibratedEstimate]] = {}
    for collective in Collective:
        request = Request(collective, DataType.float32, Op.sum)
        names = [f"{algorithm.name}/{protocol.name}" for algorithm, protocol in selection.candidates(request)]
        sizes = [request.unit_bytes(selection.communicator.ranks), LARGE_BYTES]
        for name, (smallest, large) in calibrated.of_combinations(model, request, sizes, names).items():
            ends[collective, name] = smallest, large
    several = [(name, each) for (_, name), pair in ends.items() for each in pair]
    timed = [replace(cell, calibrated=_cell(ends.get((cell.collective, _name(cell))))) for cell in cells]
    return timed, calibrated.used(model, several)


def _name(cell: TableCell) -> str:
    return f"{cell.algorithm.name}/{cell.protocol.name}"


def _cell(pair: tuple[CalibratedEstimate, CalibratedEstimate] | None) -> CalibratedCell | None:
    if pair is None:
        return None
    smallest, large = pair
    gbs, low_gbs, high_gbs = (
        float(algorithm_gbs(LARGE_BYTES, us)) for us in (large.time.time_us, large.time.high_us, large.time.low_us)
    )
    return CalibratedCell(smallest.time, gbs, low_gbs, high_gbs, smallest.measured)

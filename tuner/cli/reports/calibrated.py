"""Calibrated times of a report's picks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibrationUsed, NoCalibration, TimesWanted
from tuner.answers.choices import NOTHING
from tuner.base.names import ALGO_PROTOS, Collective
from tuner.cli.reports.data import Line, PageData
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.times.timemodel.predict import TimeModel

_PRECISION = np.int32(-(1 << 11))  # of a float32: 12 bits after the point, which pack well and say more than is known


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedLine:
    """Of the picks of a line: times in us with their bounds, float32 [size], not a number where there is none.

    ``measured`` is [size]. ``used`` says which calibration answered, or why none did.
    """

    time_us: NDArray[np.float32]
    low_us: NDArray[np.float32]
    high_us: NDArray[np.float32]
    measured: NDArray[np.bool_]
    used: CalibrationUsed


CalibratedLines = dict[tuple[str, Collective, int], CalibratedLine]


def collect(
    report: PageData, wanted: TimesWanted, along: Callable[[Sequence[str]], Iterable[str]] = iter
) -> CalibratedLines:
    """Of each line of the report. Errors: those of :func:`tuner.answers.calibrated.answering`."""
    return dict(pair for release in along(report.releases) for pair in _lines(report, release, wanted))


def _lines(
    report: PageData, release: str, wanted: TimesWanted
) -> Iterator[tuple[tuple[str, Collective, int], CalibratedLine]]:
    for count in report.nodes:
        scenario = replace(report.scenario, nccl=release, nodes=count)
        selection = Selection(scenario.communicator())
        model = calibrated.answering(wanted, scenario, selection)
        for collective in Collective:
            line = report.lines[release, collective, count]
            yield (release, collective, count), _line(report, Request(collective, report.dtype, report.op), line, model)


def _line(report: PageData, request: Request, line: Line, model: TimeModel | NoCalibration) -> CalibratedLine:
    shape = report.sizes.shape
    times_us, measured = np.full((3, *shape), np.nan), np.zeros(shape, np.bool_)
    there = np.flatnonzero(line.pick != NOTHING)
    used = calibrated.used(model)
    if isinstance(model, TimeModel) and there.size:
        number = line.pick[there]
        algorithm, protocol = np.array(ALGO_PROTOS, np.int8)[number].T
        launched = line.channels[there], line.threads[there]
        answer = model.of_picks(
            request, Picks(report.sizes[there], algorithm, protocol, line.pick_us[there], *launched)
        )
        times_us[:, there] = answer.time_us, answer.low_us, answer.high_us
        measured[there] = answer.measured
        used = replace(used, carried_over=tuple(kind.value for kind in answer.carried_over))
    time_us, low_us, high_us = map(_few_digits, times_us)
    return CalibratedLine(time_us, low_us, high_us, measured, used)


def _few_digits(values: NDArray[np.float64]) -> NDArray[np.float32]:
    rounded: NDArray[np.float32] = (values.astype(np.float32).view(np.int32) & _PRECISION).view(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), rounded)

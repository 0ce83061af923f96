"""Measured times as a fit takes them: medians by call and combination, with how far they are known."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.base.errors import BadMeasurement
from tuner.base.names import AlgoProto
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request, Sizes
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import Call
from tuner.emulator.selection import Selection
from tuner.measure.records import samples
from tuner.measure.records.header import Header, scenario_of
from tuner.measure.records.samples import Point, SampleBlock
from tuner.measure.statistics import estimate
from tuner.release import Release
from tuner.scenario import Scenario

HOLD_OUT_EVERY = 4
LEAST_DEVIATION = 0.01  # of a median: times of another day differ by that
UNKNOWN_DEVIATION = 0.05  # where the samples are too few to say
NORMAL_95 = 1.96  # deviations to either side that hold 95 %


@dataclass(frozen=True, slots=True, eq=False)
class ObservationGroup:
    """The calls of one kind and combination on one communicator; arrays have an element a call.

    ``deviation`` is of the logarithm of ``median_us``; ``held_out`` calls are not fitted.
    """

    communicator: Communicator
    request: Request
    algo_proto: AlgoProto
    sizes: Sizes
    median_us: NDArray[np.float64]
    deviation: NDArray[np.float64]
    held_out: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """What some files of one machine and one release say; ``left_out`` counts calls and sample blocks by the reason.

    ``times`` says how they were had: ``measured`` or ``simulated``, or both.
    """

    cases: tuple[Scenario, ...]
    release: Release
    groups: tuple[ObservationGroup, ...]
    left_out: Counter[str]
    files: tuple[tuple[str, str], ...]  # with their sha256
    times: str

    @property
    def calls(self) -> int:
        """How many calls were measured."""
        return sum(len(group.median_us) for group in self.groups)


def read(paths: Sequence[Path]) -> Observations:
    """BadMeasurement where a file has nothing to fit to, is given twice, or is of another machine or release."""
    read_files = [(path, samples.read(path)) for path in paths]
    cases = [_case(path, measured.header) for path, measured in read_files]
    for path, scenario in zip(paths, cases, strict=True):
        if _where(scenario) != _where(cases[0]):
            raise BadMeasurement(
                f"{path}: measured on {_where(scenario)}, {paths[0]} on {_where(cases[0])}; "
                "valid together: one machine, one release"
            )
    files = tuple(zip([path.name for path in paths], samples.sha256s(paths), strict=True))
    left_out: Counter[str] = Counter()
    calls = []
    for (path, measured), scenario in zip(read_files, cases, strict=True):
        if measured.truncated:
            left_out["last lines that were cut off"] += 1
        times_us = _times_us(measured.blocks, left_out)
        if not times_us:
            why = _counts(left_out) or "there is none"
            raise BadMeasurement(f"{path}: no sample block counts of {len(measured.blocks)}: {why}")
        calls.append((scenario.communicator(), times_us))
    held_out = _held_out(point.bytes for _, times_us in calls for point, _ in times_us)
    groups = [group for shape, times_us in calls for group in _groups(shape, times_us, held_out, left_out)]
    if not groups:
        raise BadMeasurement(f"{paths[0]}: the model has a time for nothing that was measured: {_counts(left_out)}")
    times = " and ".join(dict.fromkeys(measured.header.how for _, measured in read_files))
    return Observations(tuple(cases), calls[0][0].release, tuple(groups), left_out, files, times)


def _case(path: Path, header: Header) -> Scenario:
    try:
        return replace(scenario_of(header), fitted_constants=None)
    except BadMeasurement as error:
        raise BadMeasurement(f"{path}: {error}") from None


def _where(scenario: Scenario) -> str:
    return " + ".join([f"{scenario.name}", *(other.name for other in scenario.others)]) + f", NCCL {scenario.nccl}"


def _times_us(blocks: Iterable[SampleBlock], left_out: Counter[str]) -> dict[tuple[Point, AlgoProto], list[float]]:
    """All times that count, by call and by what was executed."""
    times_us: dict[tuple[Point, AlgoProto], list[float]] = {}
    for block in blocks:
        what = block.requested or (block.executed if block.table is None else None)
        if reason := _useless(block):
            left_out[reason] += 1
        elif what is not None:
            times_us.setdefault((block.point, what.algo_proto), []).extend(block.times_us)
    return times_us


def _useless(block: SampleBlock) -> str | None:
    if block.replaced:
        return "sample blocks that NCCL replaced"
    if block.wrong:
        return "sample blocks with wrong results"
    if not block.times_us:
        return "sample blocks without times"
    if block.requested is not None and block.requested.channels:
        return "sample blocks with forced channels, of which the model knows nothing"
    if block.requested is None and (block.executed is None or block.table is not None):
        return "sample blocks of NCCL's own choice, not seen or by a table"
    return None


def _held_out(sizes: Iterable[int]) -> set[int]:
    """Every fourth size, neither the smallest nor the largest."""
    return set(sorted(set(sizes))[2:-1:HOLD_OUT_EVERY])


def _groups(
    shape: Communicator,
    times_us_of: dict[tuple[Point, AlgoProto], list[float]],
    held_out: set[int],
    left_out: Counter[str],
) -> Iterable[ObservationGroup]:
    selection = Selection(shape)
    kinds: dict[tuple[Request, AlgoProto], list[tuple[int, list[float]]]] = {}
    for (point, algo_proto), times_us in times_us_of.items():
        kinds.setdefault((point.request, algo_proto), []).append((point.bytes, times_us))
    excluded = {request: selection.excluded(request) for request, _ in kinds}
    for (request, algo_proto), calls in sorted(kinds.items(), key=lambda item: (item[0][0].collective, item[0][1])):
        one = np.ones(1, np.float32)
        if algo_proto in excluded[request]:
            left_out[f"calls without a model: {excluded[request][algo_proto]}"] += len(calls)
        elif (timing.penalised(one, Call(shape, request, algo_proto)) != one).any():
            left_out["calls that the model only makes the last choice"] += len(calls)
        else:
            yield _group(shape, request, algo_proto, sorted(calls), held_out)


def _group(
    shape: Communicator,
    request: Request,
    algo_proto: AlgoProto,
    calls: list[tuple[int, list[float]]],
    held_out: set[int],
) -> ObservationGroup:
    nbytes = np.array([size for size, _ in calls], np.uint64)
    medians = [estimate(times_us) for _, times_us in calls]
    widths = np.array([median.half_width for median in medians])
    known = np.where(np.isfinite(widths), widths / NORMAL_95, UNKNOWN_DEVIATION)
    return ObservationGroup(
        shape,
        request,
        algo_proto,
        Sizes(nbytes),
        np.array([median.median_us for median in medians]),
        np.maximum(known, LEAST_DEVIATION),
        np.array([size in held_out for size, _ in calls]),
    )


def _counts(left_out: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in left_out.items())

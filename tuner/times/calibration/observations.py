"""Prepares measured times for a fit: medians by call and combination, with their uncertainty."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement
from tuner.base.expressions import expression
from tuner.base.names import AlgoProto
from tuner.emulator.communicator import Comm
from tuner.emulator.request import MessageSizes, Request
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.selection import Selection
from tuner.release import Release
from tuner.scenario import Scenario
from tuner.times.measured import samples
from tuner.times.measured.header import Header, scenario_of
from tuner.times.measured.samples import NEAR, Measurements, Point, SampleBlock
from tuner.times.statistics import Estimate, of_runs_or_blocks

SAME = 0.03  # times that differ by less than this share are equal
_COMBINATIONS = 3  # number of combinations that take the same time; two may do so by chance
_SIZES = 2  # number of sizes at which each of them does


@dataclass(frozen=True, slots=True)
class HostFloor:
    """A number of ``calls`` was left out because they take about ``floor_us``, the time that the host needs per call.

    The largest of these calls has the size ``to_bytes``.
    """

    communicator: str
    floor_us: float
    calls: int
    to_bytes: int


def host_floor_us(calls: Iterable[tuple[Point, AlgoProto, float]]) -> float | None:
    """The host's time per call in us, estimated from the calls' times; None unless several combinations share the least
    time.
    """
    known = list(calls)
    times_us = np.array([time_us for _, _, time_us in known])
    if not len(times_us):
        return None
    # Times at a floor are as noisy as others: the floor is the middle of the times near the smallest one, not the
    # smallest itself.
    least_us = float(np.median(times_us[times_us <= (1 + SAME) * times_us.min()]))
    near: dict[AlgoProto, set[int]] = {}
    for point, algo_proto, time_us in known:
        if abs(time_us / least_us - 1) <= SAME:
            near.setdefault(algo_proto, set()).add(point.bytes)
    return least_us if sum(len(sizes) >= _SIZES for sizes in near.values()) >= _COMBINATIONS else None


HOLD_OUT_EVERY = 4
LEAST_DEVIATION = 0.01  # deviation of a median; times of another day differ by this much
UNKNOWN_DEVIATION = 0.05  # used if there are too few samples
_OF_ONE_NODE = expression(r' (host_hash|guid)="[^"]*"')  # what distinguishes nodes of one kind in NCCL's XML


BlocksOfCalls = dict[tuple[Point, AlgoProto], list[SampleBlock]]  # by call and by what was executed


@dataclass(frozen=True, slots=True, eq=False)
class ObservationGroup:
    """The calls of one kind and one combination on one communicator; arrays have one element per call.

    ``deviation`` is the standard deviation of the logarithm of ``median_us``; ``held_out`` calls are not fitted.
    ``shape`` numbers the communicators; ``session`` is the process that measured, None for all processes together.
    """

    communicator: Comm
    request: Request
    algo_proto: AlgoProto
    sizes: MessageSizes
    median_us: NDArray[np.float64]
    deviation: NDArray[np.float64]
    held_out: NDArray[np.bool_]
    shape: int = 0
    session: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Observations from files of one machine and one release; ``left_out`` counts calls and sample blocks by reason.

    ``titles`` describe the communicators ``cases`` in words. ``times`` says where the times come from: ``measured`` or
    ``simulated``, or both. ``of_sessions`` are the same calls by session, for communicators with several sessions.
    ``floors`` says for which calls the host's time hid the GPUs' time.
    """

    cases: tuple[Scenario, ...]
    titles: tuple[str, ...]
    release: Release
    groups: tuple[ObservationGroup, ...]
    left_out: Counter[str]
    files: tuple[tuple[str, str], ...]  # paths with their sha256
    times: str
    of_sessions: tuple[ObservationGroup, ...] = ()
    floors: tuple[HostFloor, ...] = ()

    @property
    def calls(self) -> int:
        """Number of calls that were measured."""
        return sum(len(group.median_us) for group in self.groups)


def read(paths: Sequence[Path]) -> Observations:
    """Reads files. BadMeasurement if one has nothing to fit, is given twice, or is from another machine or release."""
    return _observations(paths, [(path, samples.read(path)) for path in paths])


def of(paths: Sequence[Path], measured: Sequence[Measurements]) -> Observations:
    """Observations from files that were already read, of one or several communicators."""
    together = Path(" ".join(path.name for path in paths))
    return _observations(paths, [(together, each) for each in measured])


def _observations(paths: Sequence[Path], read_files: Sequence[tuple[Path, Measurements]]) -> Observations:
    cases = _of_one_topology([(_case(path, measured.header), measured.header) for path, measured in read_files])
    for (path, _), scenario in zip(read_files, cases, strict=True):
        if _where(scenario) != _where(cases[0]):
            raise BadMeasurement(
                f"{path} was measured on {_where(scenario)}, but {read_files[0][0]} on {_where(cases[0])}: give files "
                "of one machine and one release"
            )
    files = tuple(zip([path.name for path in paths], samples.sha256s(paths), strict=True))
    left_out: Counter[str] = Counter()
    calls = []
    shapes = list(dict.fromkeys(scenario.title for scenario in cases))
    sessions: Counter[int] = Counter()  # number of sessions so far, by shape
    for (path, measured), scenario in zip(read_files, cases, strict=True):
        if measured.truncated:
            left_out["last lines that were cut off"] += 1
        shape = shapes.index(scenario.title)
        blocks_of = _measured(measured.blocks, left_out, sessions[shape])
        sessions[shape] += 1 + max((block.process for block in measured.blocks), default=0)
        if not blocks_of:
            why = _counts(left_out) or "there is none"
            raise BadMeasurement(f"{path}: none of its {len(measured.blocks)} sample blocks counts: {why}")
        calls.append(_OfFile(scenario.communicator(), shape, blocks_of))
    of_cases = zip(cases, read_files, strict=True)
    titles = {scenario.title: measured.header.communicator for scenario, (_, measured) in reversed(list(of_cases))}
    floors = tuple(_without_floor(each, titles[shapes[each.shape]], left_out) for each in calls)
    held_out = _held_out(point.bytes for each in calls for point, _ in each.blocks_of)
    groups = [group for each in calls for group in _groups(each, held_out, left_out)]
    if not groups:
        raise BadMeasurement(
            f"{paths[0]}: NCCL's model has no time for anything that was measured: {_counts(left_out)}"
        )
    return Observations(
        tuple(cases),
        tuple(titles[scenario.title] for scenario in cases),
        calls[0].communicator.release,
        tuple(groups),
        left_out,
        files,
        times=" and ".join(dict.fromkeys(measured.header.how for _, measured in read_files)),
        of_sessions=tuple(group for each in calls for group in _of_sessions(each)),
        floors=tuple(floor for floor in floors if floor is not None),
    )


def _case(path: Path, header: Header) -> Scenario:
    try:
        return replace(scenario_of(header), fitted_constants=None)
    except BadMeasurement as error:
        raise BadMeasurement(f"{path}: {error}") from None


def _of_one_topology(cases: Sequence[tuple[Scenario, Header]]) -> list[Scenario]:
    """The cases, with equal topologies replaced by the first: each run dumps the topology of the node on which it
    began.
    """
    first: dict[str, Path | None] = {}
    alike = []
    for scenario, header in cases:
        if header.topology_xml is not None:
            kind = _OF_ONE_NODE.sub("", header.topology_xml)
            alike.append(replace(scenario, topology=first.setdefault(kind, scenario.topology)))
        else:
            alike.append(scenario)
    return alike


def _where(scenario: Scenario) -> str:
    return " + ".join([f"{scenario.name}", *(other.name for other in scenario.others)]) + f", NCCL {scenario.nccl}"


@dataclass(frozen=True, slots=True, eq=False)
class _OfFile:
    communicator: Comm
    shape: int
    blocks_of: BlocksOfCalls


def _measured(blocks: Iterable[SampleBlock], left_out: Counter[str], first_session: int) -> BlocksOfCalls:
    """All sample blocks that count; their processes become sessions, numbered over all files of a communicator."""
    blocks_of: BlocksOfCalls = defaultdict(list)
    for block in blocks:
        what = block.combination or (block.executed if block.table is None else None)
        if reason := _useless(block):
            left_out[reason] += 1
        elif what is not None:
            blocks_of[block.point, what.algo_proto].append(replace(block, process=first_session + block.process))
    return blocks_of


def _useless(block: SampleBlock) -> str | None:
    if block.replaced:
        return "sample blocks that NCCL replaced"
    if block.wrong:
        return "sample blocks with wrong results"
    if block.host_bound:
        return "sample blocks whose times are the host's, not the GPUs'"
    if not block.times_us:
        return "sample blocks without times"
    if block.combination is not None and block.combination.channels:
        return "sample blocks with forced channels, of which the model knows nothing"
    if block.requested is None and (block.executed is None or block.table is not None):
        return "sample blocks of NCCL's own choice, not seen or by a table"
    return None


def _held_out(sizes: Iterable[int]) -> set[int]:
    """The sizes that are not fitted: every fourth, but neither the smallest nor the largest."""
    return set(sorted(set(sizes))[2:-1:HOLD_OUT_EVERY])


def _without_floor(of_file: _OfFile, title: str, left_out: Counter[str]) -> HostFloor | None:
    """Leaves out the calls that take about as long as the host needs; None if no such floor is seen."""
    typical_us = {
        call: float(np.median([block.median_us for block in blocks])) for call, blocks in of_file.blocks_of.items()
    }
    floor_us = host_floor_us([(point, algo_proto, time_us) for (point, algo_proto), time_us in typical_us.items()])
    if floor_us is None:
        return None
    near = [call for call, time_us in typical_us.items() if time_us <= NEAR * floor_us]
    left_out[f"calls near the {floor_us:.1f} us that the host takes to start one ({title})"] += len(near)
    for call in near:
        del of_file.blocks_of[call]
    return HostFloor(title, floor_us, len(near), max(point.bytes for point, _ in near))


def _groups(of_file: _OfFile, held_out: set[int], left_out: Counter[str]) -> Iterable[ObservationGroup]:
    shape = of_file.communicator
    selection = Selection(shape)
    kinds: dict[tuple[Request, AlgoProto], list[tuple[int, list[SampleBlock]]]] = {}
    for (point, algo_proto), blocks in of_file.blocks_of.items():
        kinds.setdefault((point.request, algo_proto), []).append((point.bytes, blocks))
    excluded = {request: selection.excluded(request) for request, _ in kinds}
    for (request, algo_proto), calls in sorted(kinds.items(), key=lambda item: (item[0][0].collective, item[0][1])):
        one = np.ones(1, np.float32)
        if algo_proto in excluded[request]:
            left_out[f"calls without a model: {excluded[request][algo_proto]}"] += len(calls)
        elif (timing.penalised(one, RuleCall(shape, request, algo_proto)) != one).any():
            left_out["calls that the model only chooses last"] += len(calls)
        else:
            group = _group(of_file, request, algo_proto, calls)
            yield replace(group, held_out=np.isin(group.sizes.nbytes, list(held_out)))


def _of_sessions(of_file: _OfFile) -> Iterable[ObservationGroup]:
    sessions = sorted({block.process for blocks in of_file.blocks_of.values() for block in blocks})
    for session in sessions:
        own_blocks = {
            call: own
            for call, blocks in of_file.blocks_of.items()
            if (own := [block for block in blocks if block.process == session])
        }
        for group in _groups(replace(of_file, blocks_of=own_blocks), set(), Counter()):
            yield replace(group, session=session)


def _group(
    of_file: _OfFile, request: Request, algo_proto: AlgoProto, calls: Sequence[tuple[int, list[SampleBlock]]]
) -> ObservationGroup:
    calls = sorted(calls, key=lambda call: call[0])
    medians = [_estimate(blocks) for _, blocks in calls]
    deviations = np.array([median.deviation for median in medians])
    known = np.where(np.isfinite(deviations), deviations, UNKNOWN_DEVIATION)
    return ObservationGroup(
        of_file.communicator,
        request,
        algo_proto,
        MessageSizes(np.array([size for size, _ in calls], np.uint64)),
        np.array([median.median_us for median in medians]),
        np.maximum(known, LEAST_DEVIATION),
        np.zeros(len(calls), np.bool_),
        of_file.shape,
    )


def _estimate(blocks: Sequence[SampleBlock]) -> Estimate:
    times_us = [time_us for block in blocks for time_us in block.times_us]
    return of_runs_or_blocks([block.median_us for block in blocks], [block.process for block in blocks], times_us)


def _counts(left_out: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in left_out.items())

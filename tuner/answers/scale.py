"""NCCL's picks over growing numbers of nodes, or of GPUs per node: ranges of numbers with the same answer."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from enum import Enum
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibrationUsed, NoCalibration, TimesWanted
from tuner.answers.choices import NOTHING, picks
from tuner.answers.symmetric import picks_of
from tuner.base import breakpoints
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Protocol
from tuner.base.nouns import Choice, TimeInterval
from tuner.base.numerics import FloatArray, SizeArray, is_time, shortest
from tuner.base.records import json_form
from tuner.base.sizes import human_bytes
from tuner.base.view import column
from tuner.emulator.request import Request
from tuner.emulator.selection import MAX_BYTES, Pick, Selection
from tuner.scenario import Scenario
from tuner.times.costmodels.operations import bus_gbs

TO_NODES = 16384
BYPASSING = NOTHING - 1  # the first of what takes calls instead of an algorithm, then downwards


class Axis(Enum):
    """The quantity that grows, nodes or GPUs per node, and how a scenario gets a given number of them."""

    nodes = "nodes"
    gpus_per_node = "GPUs per node"

    def on(self, scenario: Scenario, count: int) -> Scenario:
        """The scenario with ``count`` nodes, or GPUs per node."""
        return scenario.with_nodes(count) if self is Axis.nodes else scenario.with_gpus(count)


@dataclass(frozen=True, slots=True)
class AtCount:
    """Times of a call at one number of nodes or of GPUs per node; ``busbw_gbs`` and ``calibrated`` are None without a
    time.
    """

    count: int = field(metadata=column())
    ranks: int = field(metadata=column("ranks"))
    time_us: float | None = field(metadata=column("NCCL us", digits=2))
    busbw_gbs: float | None = field(metadata=column("busbw GB/s", digits=3))
    calibrated: TimeInterval | None = field(default=None, metadata=column("calibrated us"))


@dataclass(frozen=True, slots=True)
class CountRange(Choice):
    """Numbers of nodes, or of GPUs per node, from ``first`` to ``last`` for which NCCL makes the same choice; ``bytes``
    is the size as asked for.

    Times and bandwidths are None in three cases: NCCL has nothing to run, a rank would have less than one element, or
    copy engines execute the call. If a symmetric kernel executes the call, they are from NCCL's model of such kernels.
    """

    collective: str
    bytes: int = field(metadata=column("size", text=human_bytes))
    over: Axis
    first: AtCount
    last: AtCount

    def as_json(self) -> dict[str, object]:
        """The range as a JSON object whose keys name both ends: from_nodes and to_nodes, or from_gpus_per_node and
        to_gpus_per_node, and so on.
        """
        ends = (("from", self.first), ("to", self.last))
        return (
            {"collective": self.collective, "bytes": self.bytes}
            | {f"{end}_{self.over.name}": at.count for end, at in ends}
            | {f"{end}_ranks": at.ranks for end, at in ends}
            | {name: getattr(self, name) for name in ("algorithm", "protocol", "channels", "threads")}
            | {f"time_us_{end}": at.time_us for end, at in ends}
            | {f"busbw_gbs_{end}": at.busbw_gbs for end, at in ends}
            | {f"calibrated_{end}": at.calibrated for end, at in ends if at.calibrated}
            | ({"bypass": self.bypass} if self.bypass else {})
        )


@dataclass(frozen=True, slots=True)
class CountQuery:
    """Which numbers of nodes, or of GPUs per node, between ``low`` and ``high`` are computed. With ``every``, all of
    them are; else 16 in each power of two, and those around each change. ``progress`` is called for each computed
    number.
    """

    low: int = 1
    high: int = TO_NODES
    every: bool = False
    of: Axis = Axis.nodes
    progress: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Scale:
    """Answers for growing numbers of nodes or of GPUs per node. ``looked_at``: the numbers for which answers were
    computed. Each element is the first and the last of numbers without a gap.

    ``calibrations`` are the calibrations that answered, or the reasons why none did.
    """

    over: Axis = field(metadata=json_form(omitted=True))
    looked_at: tuple[tuple[int, int], ...]
    ranges: tuple[CountRange, ...]
    calibrations: "tuple[CalibrationUsed, ...]" = field(default=(), metadata=json_form(optional=True))

    @property
    def counts(self) -> int:
        """How many numbers of nodes, or of GPUs per node, were computed."""
        return sum(last - first + 1 for first, last in self.looked_at)


def scale(
    scenario: Scenario,
    requests: Sequence[Request],
    sizes: Sequence[int],
    over: CountQuery | None = None,
    *,
    per_rank: bool = False,
) -> Scale:
    """The answers at the numbers of nodes or GPUs of ``over``, as rank 0 sees them. These numbers replace the
    scenario's own number.

    If two neighbouring numbers have different answers, more are computed between them until the change is located.
    Unless ``every`` number is computed, a change of the answer is missed if the answer changes back before the next
    computed number. ``sizes`` are nBytes. With ``per_rank``, they are the sizes of one rank's part; nBytes of AllGather
    and ReduceScatter is such a part for each rank. BadInput for what the emulator refuses.
    """
    over = over or CountQuery()
    if scenario.others:
        raise BadInput(f"the number of {over.of.value} cannot be changed if nodes differ: use equal nodes")
    low, high = over.low + (over.of.on(scenario, over.low).ranks == 1), over.high  # one rank has nothing to pick
    if not 1 <= low <= high:
        raise BadInput(f"{over.of.value} from {low} to {high}: the first number must not be greater than the last")
    distinct = np.unique(np.array(sizes, np.uint64))
    if per_rank and int(distinct[-1]) * (ranks := over.of.on(scenario, high).ranks) > MAX_BYTES:
        raise BadInput(f"{distinct[-1]} bytes of each of {ranks} ranks are more than 2**62 in all")
    answers = _Answers(scenario, requests, distinct, over, per_rank)
    starts = breakpoints.find(answers.labels, low, high, range(low, high + 1) if over.every else (), steps=0)
    ranges = answers.ranges([int(start) for start in starts], high)
    return Scale(over.of, _runs(sorted(answers.labels_of)), tuple(ranges))


class _Answers:
    """Computes the answers of each number of nodes or GPUs once: for each request in turn, one answer per size."""

    def __init__(
        self, scenario: Scenario, requests: Sequence[Request], sizes: SizeArray, over: CountQuery, per_rank: bool
    ) -> None:
        self.scenario, self.requests, self.sizes, self.over, self.per_rank = scenario, requests, sizes, over, per_rank
        self.each = [(request, int(size)) for request in requests for size in sizes]
        self.labels_of: dict[int, NDArray[np.int64]] = {}  # [answer][algorithm, protocol, channels, threads]
        self.times_us: dict[int, FloatArray] = {}
        self.ranks: dict[int, int] = {}
        self.kernels: list[str] = []  # what takes calls instead of algorithms, which its place stands for

    def labels(self, counts: SizeArray) -> NDArray[np.int64]:
        """The labels of all answers, an array [count][answer] of numbers."""
        return np.stack([self._of(int(count)).ravel() for count in counts])

    def ranges(self, starts: Sequence[int], high: int) -> list[CountRange]:
        """The ranges of each request and size, from the ``starts`` at which any answer changes."""
        ranges = []
        for answer in range(len(self.each)):
            labels = np.stack([self.labels_of[start][answer] for start in starts])
            changed = np.append(True, (labels[1:] != labels[:-1]).any(axis=1))
            own = [start for start, begins in zip(starts, changed, strict=True) if begins]
            ends = [*(start - 1 for start in own[1:]), high]
            ranges += [self._range(answer, start, end) for start, end in zip(own, ends, strict=True)]
        return ranges

    def _parts(self, request: Request, ranks: int) -> int:
        """How many parts of the asked size make up nBytes."""
        return request.parts(ranks) if self.per_rank else 1

    def _of(self, count: int) -> NDArray[np.int64]:
        if count not in self.labels_of:
            selection = Selection(self.over.of.on(self.scenario, count).communicator())
            self.ranks[count] = selection.communicator.ranks
            own = [self._answered(selection, request) for request in self.requests]
            self.labels_of[count] = np.concatenate([labels for labels, _ in own])
            self.times_us[count] = np.concatenate([times_us for _, times_us in own])
            self.over.progress()
        return self.labels_of[count]

    def _answered(self, selection: Selection, request: Request) -> tuple[NDArray[np.int64], FloatArray]:
        """Labels and times in us of each size."""
        sizes = self.sizes * np.uint64(self._parts(request, selection.communicator.ranks))
        if selection.may_leave_classic_path(request):
            rows, times_us = zip(*(self._alone(selection, request, size) for size in sizes.tolist()), strict=True)
            return np.array(rows, np.int64), np.array(times_us, np.float32)
        own = picks(selection, request, sizes)
        columns = own.algorithm, own.protocol, own.channels, own.threads
        return np.column_stack([column.astype(np.int64) for column in columns]), own.time_us

    def _alone(self, selection: Selection, request: Request, size: int) -> tuple[tuple[int, int, int, int], float]:
        """Label and time in us of a call that may bypass the algorithms."""
        if size < request.unit_bytes(selection.communicator.ranks):
            return (NOTHING, NOTHING, 0, 0), np.nan
        try:
            (pick,) = picks_of(selection, request, np.array([size], np.uint64))
        except NoAlgorithm:
            return (NOTHING, NOTHING, 0, 0), np.nan
        if isinstance(pick, Pick):
            return (*pick.algo_proto, pick.channels, pick.threads), pick.time_us
        if pick.name not in self.kernels:
            self.kernels.append(pick.name)
        number = BYPASSING - self.kernels.index(pick.name)
        time_us = np.nan if pick.time_us is None else pick.time_us
        return (number, NOTHING, pick.channels, pick.threads), time_us

    def _range(self, answer: int, start: int, end: int) -> CountRange:
        request, size = self.each[answer]
        algorithm, protocol, channels, threads = self.labels_of[start][answer].tolist()
        return CountRange(
            Algorithm(algorithm) if algorithm > NOTHING else None,
            Protocol(protocol) if algorithm > NOTHING else None,
            channels,
            threads,
            request.collective.name,
            size,
            self.over.of,
            *(self._at(request, size, count, self.times_us[count][answer]) for count in (start, end)),
            bypass=self.kernels[BYPASSING - algorithm] if algorithm <= BYPASSING else None,
        )

    def _at(self, request: Request, size: int, count: int, time_us: np.float32) -> AtCount:
        ranks = self.ranks[count]
        if np.isnan(time_us):
            return AtCount(count, ranks, None, None)
        return AtCount(count, ranks, shortest(time_us), self._busbw_gbs(request, size, shortest(time_us), ranks))

    def _busbw_gbs(self, request: Request, size: int, time_us: float, ranks: int) -> float | None:
        if not is_time(time_us):
            return None
        nbytes = size * self._parts(request, ranks)
        return float(bus_gbs(request.collective, nbytes, time_us, ranks))


def _runs(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """First and last of each gapless run of counts."""
    stretches = [[count for _, count in run] for _, run in groupby(enumerate(counts), lambda pair: pair[1] - pair[0])]
    return tuple((run[0], run[-1]) for run in stretches)


def with_times(
    emulated: Scale, scenario: Scenario, requests: Sequence[Request], wanted: TimesWanted, *, per_rank: bool = False
) -> Scale:
    """Adds calibrated times at both ends of each range; ``per_rank`` must be as in :func:`scale`.

    Errors: BadInput if no calibration answers, BadCalibration.
    """
    by_end: dict[tuple[int, str], list[int]] = defaultdict(list)  # places of ranges by nodes and collective
    for at, each in enumerate(emulated.ranges):
        if each.algorithm is not None:
            for nodes in {each.first.count, each.last.count}:
                by_end[nodes, each.collective].append(at)
    times: dict[tuple[int, int], TimeInterval] = {}  # by place and nodes
    used: dict[str, list[CalibrationUsed]] = defaultdict(list)
    for nodes in sorted({nodes for nodes, _ in by_end}):
        selection = Selection(emulated.over.on(scenario, nodes).communicator())
        model = calibrated.answering(wanted, scenario, selection, requests[0].buffers)
        if isinstance(model, NoCalibration):
            used[model.reason].append(calibrated.used(model))
            continue
        for request in requests:
            places = by_end.get((nodes, request.collective.name), [])
            parts = request.parts(selection.communicator.ranks) if per_rank else 1
            picks = [emulated.ranges[at] for at in places]
            sizes, nccl_us = [each.bytes * parts for each in picks], [each.first.time_us or 0.0 for each in picks]
            estimates = calibrated.of_launches(model, request, sizes, picks, nccl_us)
            times |= {(at, nodes): each.time for at, each in zip(places, estimates, strict=True)}
            named = zip((pick.name for pick in picks), estimates, strict=True)
            used[model.reason].append(calibrated.used(model, named))

    def timed(place: int, at: AtCount) -> AtCount:
        return replace(at, calibrated=times.get((place, at.count)))

    ranges = (
        replace(each, first=timed(at, each.first), last=timed(at, each.last)) for at, each in enumerate(emulated.ranges)
    )
    return replace(
        emulated, ranges=tuple(ranges), calibrations=tuple(calibrated.merged(several) for several in used.values())
    )

"""NCCL's picks as the number of nodes grows: ranges of node counts with one answer."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibratedTime, CalibrationUsed, NoCalibration, TimesWanted
from tuner.answers.choices import NOTHING, picks
from tuner.answers.symmetric import picks_of
from tuner.base import breakpoints
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Protocol
from tuner.base.numerics import FloatArray, SizeArray, is_time, shortest
from tuner.base.records import json_form
from tuner.emulator.request import Request
from tuner.emulator.selection import MAX_BYTES, Pick, Picks, Selection
from tuner.scenario import Scenario
from tuner.times.costmodels.operations import bus_gbs

TO_NODES = 16384
BYPASSING = NOTHING - 1  # the first of what takes calls instead of an algorithm, then downwards


@dataclass(frozen=True, slots=True)
class NodeRange:
    """Node counts with one answer, both ends among them; ``bytes`` as asked for.

    Where NCCL has nothing to run, or a rank would have less than one element, ``algorithm``, ``protocol``, the times
    and the bandwidths are None. ``bypass_kernel`` names what takes a call instead of an algorithm, whose channels are
    then blocks, and whose times are by NCCL's model of symmetric kernels; copy engines have none. ``calibrated_from``
    and ``calibrated_to`` are calibrated times at both ends, where they were asked for and there are some.
    """

    collective: str
    bytes: int
    from_nodes: int
    to_nodes: int
    from_ranks: int
    to_ranks: int
    algorithm: str | None
    protocol: str | None
    channels: int
    threads: int
    time_us_from: float | None
    time_us_to: float | None
    busbw_gbs_from: float | None
    busbw_gbs_to: float | None
    calibrated_from: "CalibratedTime | None" = field(default=None, metadata=json_form(optional=True))
    calibrated_to: "CalibratedTime | None" = field(default=None, metadata=json_form(optional=True))
    bypass_kernel: str | None = field(default=None, metadata=json_form("bypass", optional=True))

    @property
    def name(self) -> str | None:
        """Algorithm and protocol, ``Ring/LL``, or what takes the call instead; None for nothing."""
        return self.bypass_kernel or (None if self.algorithm is None else f"{self.algorithm}/{self.protocol}")


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """The node counts to look at, from ``low`` to ``high``: ``every`` one, or 16 in each power of two and those around
    a change. ``progress`` is called for each that was computed.
    """

    low: int = 1
    high: int = TO_NODES
    every: bool = False
    progress: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Scale:
    """``looked_at``: the node counts that were computed, as first and last of counts without a gap.

    ``calibrations`` are those that answered, or the reasons why none did.
    """

    looked_at: tuple[tuple[int, int], ...]
    ranges: tuple[NodeRange, ...]
    calibrations: "tuple[CalibrationUsed, ...]" = field(default=(), metadata=json_form(optional=True))

    @property
    def counts(self) -> int:
        """Number of node counts that were looked at."""
        return sum(last - first + 1 for first, last in self.looked_at)


def scale(
    scenario: Scenario,
    requests: Sequence[Request],
    sizes: Sequence[int],
    over: NodeCounts = NodeCounts(),
    *,
    per_rank: bool = False,
) -> Scale:
    """The answers on the node counts as rank 0 sees them, not on the scenario's own number.

    Between two counts that are looked at and answer differently as many more are as it takes to know where it changes:
    unless ``every`` one is, an answer that changes and returns between two of them is missed.
    ``sizes`` are nBytes; ``per_rank``: each rank's part, which AllGather and ReduceScatter have one of per rank.
    Errors: BadInput for what the emulator refuses.
    """
    if scenario.others:
        raise BadInput("where nodes differ there is no number of nodes to change; valid: nodes that are alike")
    gpus = scenario.local_ranks()
    high, low = over.high, max(over.low, 2) if gpus == 1 else over.low  # one rank has nothing to pick
    if not 1 <= low <= high:
        raise BadInput(f"nodes from {low} to {high}: valid: the first not above the last")
    distinct = np.unique(np.array(sizes, np.uint64))
    if per_rank and int(distinct[-1]) * high * gpus > MAX_BYTES:
        raise BadInput(f"{distinct[-1]} bytes of each of {high * gpus} ranks: valid: 2**62 in all")
    answers = _Answers(scenario, _Calls(requests, distinct, per_rank), over.progress)
    starts = breakpoints.find(answers.labels, low, high, range(low, high + 1) if over.every else (), steps=0)
    ranges = answers.ranges([int(start) for start in starts], high)
    return Scale(_runs(sorted(answers.labels_of)), tuple(ranges))


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    requests: Sequence[Request]
    sizes: SizeArray
    per_rank: bool

    def parts(self, request: Request, ranks: int) -> int:
        """Number of a size's parts that make nBytes."""
        return request.parts(ranks) if self.per_rank else 1


class _Answers:
    """The answers by node count, each computed once: of each request in turn, one for each size."""

    def __init__(self, scenario: Scenario, calls: _Calls, progress: Callable[[], None]) -> None:
        self.scenario, self.calls, self.progress = scenario, calls, progress
        self.gpus = scenario.local_ranks()
        self.each = [(request, int(size)) for request in calls.requests for size in calls.sizes]
        self.labels_of: dict[int, NDArray[np.int64]] = {}  # [answer][algorithm, protocol, channels, threads]
        self.times_us: dict[int, FloatArray] = {}
        self.kernels: list[str] = []  # what takes calls instead of algorithms, which its place stands for

    def labels(self, counts: SizeArray) -> NDArray[np.int64]:
        """A row of numbers for each node count."""
        return np.stack([self._of(int(count)).ravel() for count in counts])

    def ranges(self, starts: Sequence[int], high: int) -> list[NodeRange]:
        """Ranges by the starts at which each request and size changes itself."""
        ranges = []
        for column in range(len(self.each)):
            labels = np.stack([self.labels_of[start][column] for start in starts])
            changed = np.append(True, (labels[1:] != labels[:-1]).any(axis=1))
            own = [start for start, begins in zip(starts, changed, strict=True) if begins]
            ends = [*(start - 1 for start in own[1:]), high]
            ranges += [self._range(column, start, end) for start, end in zip(own, ends, strict=True)]
        return ranges

    def _of(self, count: int) -> NDArray[np.int64]:
        if count not in self.labels_of:
            selection = Selection(self.scenario.with_nodes(count).communicator())
            own = [self._answered(selection, request) for request in self.calls.requests]
            self.labels_of[count] = np.concatenate([labels for labels, _ in own])
            self.times_us[count] = np.concatenate([times_us for _, times_us in own])
            self.progress()
        return self.labels_of[count]

    def _answered(self, selection: Selection, request: Request) -> tuple[NDArray[np.int64], FloatArray]:
        """Labels and times in us of each size."""
        sizes = self.calls.sizes * np.uint64(self.calls.parts(request, selection.communicator.ranks))
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
            named = Algorithm[pick.algorithm], Protocol[pick.protocol]
            return (*named, pick.channels, pick.threads), pick.time_us
        if pick.name not in self.kernels:
            self.kernels.append(pick.name)
        number = BYPASSING - self.kernels.index(pick.name)
        time_us = np.nan if pick.time_us is None else pick.time_us
        return (number, NOTHING, pick.channels, pick.threads), time_us

    def _range(self, column: int, start: int, end: int) -> NodeRange:
        request, size = self.each[column]
        algorithm, protocol, channels, threads = self.labels_of[start][column].tolist()
        classic = algorithm > NOTHING
        at_ends = [self.times_us[count][column] for count in (start, end)]
        times_us = [None if np.isnan(time_us) else shortest(time_us) for time_us in at_ends]
        busbw_gbs = [
            None if time_us is None else self._busbw_gbs(request, size, time_us, count * self.gpus)
            for time_us, count in zip(times_us, (start, end), strict=True)
        ]
        return NodeRange(
            request.collective.name,
            size,
            start,
            end,
            start * self.gpus,
            end * self.gpus,
            Algorithm(algorithm).name if classic else None,
            Protocol(protocol).name if classic else None,
            channels,
            threads,
            time_us_from=times_us[0],
            time_us_to=times_us[1],
            busbw_gbs_from=busbw_gbs[0],
            busbw_gbs_to=busbw_gbs[1],
            bypass_kernel=self.kernels[BYPASSING - algorithm] if algorithm <= BYPASSING else None,
        )

    def _busbw_gbs(self, request: Request, size: int, time_us: float, ranks: int) -> float | None:
        if not is_time(time_us):
            return None
        nbytes = size * self.calls.parts(request, ranks)
        return float(bus_gbs(request.collective, nbytes, time_us, ranks))


def _runs(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """First and last of each stretch of counts without a gap."""
    stretches = [[count for _, count in run] for _, run in groupby(enumerate(counts), lambda pair: pair[1] - pair[0])]
    return tuple((run[0], run[-1]) for run in stretches)


def with_times(
    emulated: Scale, scenario: Scenario, requests: Sequence[Request], wanted: TimesWanted, *, per_rank: bool = False
) -> Scale:
    """The ranges with calibrated times at both ends; ``per_rank`` as it was where they were found.

    Errors: those of :func:`tuner.answers.calibrated.answering`.
    """
    by_end: dict[tuple[int, str], list[int]] = defaultdict(list)  # places of ranges by nodes and collective
    for at, each in enumerate(emulated.ranges):
        if each.algorithm is not None:
            for nodes in {each.from_nodes, each.to_nodes}:
                by_end[nodes, each.collective].append(at)
    times: dict[tuple[int, int], CalibratedTime] = {}  # by place and nodes
    used: dict[str, list[CalibrationUsed]] = defaultdict(list)
    for nodes in sorted({nodes for nodes, _ in by_end}):
        selection = Selection(scenario.with_nodes(nodes).communicator())
        model = calibrated.answering(wanted, scenario, selection, requests[0].buffers)
        if isinstance(model, NoCalibration):
            used[model.reason].append(calibrated.used(model))
            continue
        for request in requests:
            places = by_end.get((nodes, request.collective.name), [])
            parts = request.parts(selection.communicator.ranks) if per_rank else 1
            picks = [_pick(emulated.ranges[at]) for at in places]
            estimates = calibrated.of_launches(
                model, request, [emulated.ranges[at].bytes * parts for at in places], picks
            )
            times |= {(at, nodes): each.time for at, each in zip(places, estimates, strict=True)}
            named = zip((pick.name for pick in picks), estimates, strict=True)
            used[model.reason].append(calibrated.used(model, named))
    ranges = (
        replace(
            each,
            calibrated_from=times.get((at, each.from_nodes)),
            calibrated_to=times.get((at, each.to_nodes)),
        )
        for at, each in enumerate(emulated.ranges)
    )
    return replace(
        emulated, ranges=tuple(ranges), calibrations=tuple(calibrated.merged(several) for several in used.values())
    )


def _pick(each: NodeRange) -> Pick:
    assert each.algorithm is not None
    assert each.protocol is not None
    return Pick(each.algorithm, each.protocol, each.channels, each.threads, each.time_us_from or 0.0)


@dataclass(frozen=True, slots=True)
class GpuRange:
    """GPUs per node with one answer, both ends among them; ``bytes`` are nBytes, times NCCL's own.

    Where NCCL has nothing to run ``algorithm``, ``protocol`` and the times are None.
    """

    collective: str
    bytes: int
    from_gpus_per_node: int
    to_gpus_per_node: int
    algorithm: str | None
    protocol: str | None
    channels: int
    threads: int
    time_us_from: float | None
    time_us_to: float | None


def over_gpus(scenario: Scenario, requests: Sequence[Request], sizes: Sequence[int]) -> tuple[GpuRange, ...]:
    """The answers on the first GPUs of each node, from the fewest that NCCL has something to pick for to all.

    Each number has graphs of its own, as NCCL searches them on those GPUs. Errors: BadInput for what the emulator
    refuses.
    """
    if scenario.others:
        raise BadInput("where nodes differ there is no number of GPUs to change; valid: nodes that are alike")
    each = [scenario.with_gpus(gpus) for gpus in range(1, scenario.gpus() + 1)]
    selections = [Selection(one.communicator()) for one in each if one.ranks > 1]
    first = scenario.gpus() - len(selections) + 1
    ranges: list[GpuRange] = []
    for request in requests:
        answers = [picks(selection, request, np.array(sizes, np.uint64)) for selection in selections]
        for at, size in enumerate(sizes):
            rows = [_row(answer, at) for answer in answers]
            for label, alike in groupby(enumerate(rows, start=first), key=lambda pair: pair[1][:4]):
                ranges.append(_range(request, size, label, [(gpus, row[4]) for gpus, row in alike]))
    return tuple(ranges)


Label = tuple[int, int, int, int]  # algorithm, protocol, channels, threads


def _row(answer: Picks, at: int) -> tuple[int, int, int, int, np.float32]:
    label = (int(getattr(answer, name)[at]) for name in ("algorithm", "protocol", "channels", "threads"))
    algorithm, protocol, channels, threads = label
    return algorithm, protocol, channels, threads, answer.time_us[at]


def _range(request: Request, size: int, label: Label, alike: Sequence[tuple[int, np.float32]]) -> GpuRange:
    algorithm, protocol, channels, threads = label
    nothing = algorithm == NOTHING
    (first, before_us), (last, after_us) = alike[0], alike[-1]
    return GpuRange(
        request.collective.name,
        size,
        first,
        last,
        None if nothing else Algorithm(algorithm).name,
        None if nothing else Protocol(protocol).name,
        channels,
        threads,
        None if nothing else shortest(before_us),
        None if nothing else shortest(after_us),
    )

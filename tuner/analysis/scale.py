"""What NCCL picks as the number of nodes grows: ranges of node counts with one answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tuner.analysis.choices import NOTHING, picks
from tuner.base import breakpoints
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Protocol
from tuner.base.numerics import FloatArray, SizeArray, shortest
from tuner.base.records import json_form
from tuner.costmodels.bandwidth import bus_gbs
from tuner.emulator.request import Request
from tuner.emulator.selection import MAX_BYTES, Picks, Selection
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.analysis.calibrated import CalibratedTime, CalibrationUsed

TO_NODES = 16384


@dataclass(frozen=True, slots=True)
class Range:
    """Node counts with one answer, both ends among them; ``bytes`` as asked for.

    Where NCCL has nothing to run, or a rank would have less than one element, ``algorithm``, ``protocol``, the times
    and the bandwidths are None. ``calibrated_from`` and ``calibrated_to`` are calibrated times at both ends, where they
    were asked for and there are some.
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
    ranges: tuple[Range, ...]
    calibrations: "tuple[CalibrationUsed, ...]" = field(default=(), metadata=json_form(optional=True))

    @property
    def counts(self) -> int:
        """How many numbers of nodes were looked at."""
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
        """How many of a size make nBytes."""
        return request.parts(ranks) if self.per_rank else 1


class _Answers:
    """The answers by node count, each computed once: of each request in turn, one for each size."""

    def __init__(self, scenario: Scenario, calls: _Calls, progress: Callable[[], None]) -> None:
        self.scenario, self.calls, self.progress = scenario, calls, progress
        self.gpus = scenario.local_ranks()
        self.each = [(request, int(size)) for request in calls.requests for size in calls.sizes]
        self.labels_of: dict[int, NDArray[np.int64]] = {}  # [answer][algorithm, protocol, channels, threads]
        self.times_us: dict[int, FloatArray] = {}

    def labels(self, counts: SizeArray) -> NDArray[np.int64]:
        """A row of numbers for each node count."""
        return np.stack([self._of(int(count)).ravel() for count in counts])

    def ranges(self, starts: Sequence[int], high: int) -> list[Range]:
        """Of each request and size the starts at which it changes itself."""
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
            own = [self._picks(selection, request) for request in self.calls.requests]
            names = ("algorithm", "protocol", "channels", "threads")
            self.labels_of[count] = np.concatenate(
                [np.column_stack([getattr(one, name).astype(np.int64) for name in names]) for one in own]
            )
            self.times_us[count] = np.concatenate([one.time_us for one in own])
            self.progress()
        return self.labels_of[count]

    def _picks(self, selection: Selection, request: Request) -> Picks:
        parts = self.calls.parts(request, selection.communicator.ranks)
        return picks(selection, request, self.calls.sizes * np.uint64(parts))

    def _range(self, column: int, start: int, end: int) -> Range:
        request, size = self.each[column]
        algorithm, protocol, channels, threads = self.labels_of[start][column].tolist()
        nothing = algorithm == NOTHING
        times_us = [None if nothing else shortest(self.times_us[count][column]) for count in (start, end)]
        busbw_gbs = [
            None if time_us is None else self._busbw_gbs(request, size, time_us, count * self.gpus)
            for time_us, count in zip(times_us, (start, end), strict=True)
        ]
        return Range(
            request.collective.name,
            size,
            start,
            end,
            start * self.gpus,
            end * self.gpus,
            None if nothing else Algorithm(algorithm).name,
            None if nothing else Protocol(protocol).name,
            channels,
            threads,
            time_us_from=times_us[0],
            time_us_to=times_us[1],
            busbw_gbs_from=busbw_gbs[0],
            busbw_gbs_to=busbw_gbs[1],
        )

    def _busbw_gbs(self, request: Request, size: int, time_us: float, ranks: int) -> float:
        nbytes = size * self.calls.parts(request, ranks)
        return float(bus_gbs(request.collective, nbytes, time_us, ranks))


def _runs(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """First and last of each stretch of counts without a gap."""
    stretches = [[count for _, count in run] for _, run in groupby(enumerate(counts), lambda pair: pair[1] - pair[0])]
    return tuple((run[0], run[-1]) for run in stretches)

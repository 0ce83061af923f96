"""What changes between two communicators: releases, machines, node counts or settings."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import AlgoProto
from tuner.base.numerics import SizeArray, shortest
from tuner.base.records import json_form
from tuner.emulator.pick import Pick, of_picks
from tuner.emulator.ranges import FOLLOWED_BYTES, Ranges, combinations, launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.analysis.calibrated_changes import CalibratedChange

ROUNDING = 10_000  # a shorter range, as a part of its size, is two times that float32 rounds alike


class Side:
    """One of the two, with its ranges computed once.

    ``whole``: ranges of channels and threads too, not only of algorithm and protocol.
    """

    def __init__(
        self, scenario: Scenario, low: int | None = None, high: int = FOLLOWED_BYTES, whole: bool = False
    ) -> None:
        self.scenario = scenario
        self.selection = Selection(scenario.communicator())
        self._low, self._high = low, high
        self.whole = whole
        self.ranges = cache(self._ranges)

    def _ranges(self, request: Request) -> Ranges:
        follow = launches if self.whole else combinations
        with self._named():
            return follow(self.selection, request, self._low, self._high)

    def pick(self, request: Request, sizes: SizeArray) -> Picks:
        """The picks of ``sizes`` in bytes. Errors: those of :meth:`Selection.pick`, with the side."""
        with self._named():
            return self.selection.pick(request, sizes)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (BadInput, NoAlgorithm) as error:
            raise type(error)(f"{self.scenario.title}: {error}") from error

    def times_us(self, request: Request, sizes: SizeArray, algo_protos: list[AlgoProto]) -> list[np.float32 | None]:
        """The time of a cell for each size; None where the call may not use it."""
        candidates = self.selection.candidates(request)
        times = self.selection.times_us(request, sizes)
        return [
            times[row, candidates.index(algo_proto)] if algo_proto in candidates else None
            for row, algo_proto in enumerate(algo_protos)
        ]


@dataclass(frozen=True, slots=True)
class Change:
    """A range of sizes with other picks; ``before`` and ``after`` are those at ``at_bytes`` in its (geometric) middle.

    ``ratio`` is the predicted time after over that before, each by its own side; at both ends too. ``ratio_by_before``
    and ``ratio_by_after`` leave the models out of it: the new pick's time over the old pick's, both by one side; None
    where that side cannot run the other's pick. ``calibrated`` are calibrated times, where they were asked for.
    """

    collective: str
    from_bytes: int
    to_bytes: int
    at_bytes: int
    before: Pick
    after: Pick
    ratio: float
    ratio_from: float
    ratio_to: float
    ratio_by_before: float | None
    ratio_by_after: float | None
    calibrated: "CalibratedChange | None" = field(default=None, metadata=json_form(optional=True))

    @property
    def is_rounding(self) -> bool:
        """Whether the range is so short that float32 does not part the times of the two picks."""
        return self.to_bytes - self.from_bytes < self.from_bytes // ROUNDING


def diff(before: Side, after: Side, request: Request) -> list[Change]:
    """The ranges of sizes (nBytes, from one element to 1 TiB unless the sides say otherwise) whose pick changes.

    Neighbours with the same two picks are one range. Errors: those of
    :func:`tuner.emulator.ranges.launches`, with the side.
    """
    starts, ends = _changed(before.ranges(request), after.ranges(request), before.whole)
    if not len(starts):
        return []
    unit = request.dtype.size_bytes
    middles = np.exp2((np.log2(starts.astype(np.float64)) + np.log2(ends.astype(np.float64))) / 2).astype(np.uint64)
    middles = np.clip(middles // np.uint64(unit) * np.uint64(unit), starts, ends)
    return list(_changes(before, after, request, np.stack([starts, middles, ends])))


@dataclass(frozen=True, slots=True)
class Loss:
    """What a change loses at the middle of its range: 0.1 where the new pick takes 10 % longer than the old one.

    ``whose`` time says so: measurements where there is a calibrated time; else the model of before, which ranked both
    picks; where that cannot run the new pick, each side's own model.
    """

    change: Change
    part: float
    whose: str


def loss(change: Change) -> Loss:
    """Negative where the new pick is faster."""
    measured = change.calibrated.ratio if change.calibrated else None
    if measured is not None:
        return Loss(change, measured.ratio - 1, "measurements")
    if change.ratio_by_before is not None:
        return Loss(change, change.ratio_by_before - 1, "the model before")
    return Loss(change, change.ratio - 1, "each side's own model")


def share_changed(changes: list[Change], low: int, high: int) -> float:
    """The part of the sizes from ``low`` to ``high``, by their logarithm, that lies in the changes."""
    ends = [(max(change.from_bytes, low), min(change.to_bytes, high) + 1) for change in changes]
    return math.fsum(math.log2(end / start) for start, end in ends if start < end) / math.log2((high + 1) / low)


def _changed(before: Ranges, after: Ranges, whole: bool) -> tuple[SizeArray, SizeArray]:
    """First and last sizes of the ranges that both sides have, and pick differently."""
    low = max(before.from_bytes[0], after.from_bytes[0])
    high = min(before.to_bytes[-1], after.to_bytes[-1])
    starts = np.union1d(before.from_bytes, after.from_bytes)
    starts = np.union1d(starts[(starts > low) & (starts <= high)], [low])
    ends = np.append(starts[1:] - np.uint64(1), high)
    at = [np.searchsorted(side.from_bytes, starts, side="right") - 1 for side in (before, after)]
    names = ("algorithm", "protocol", "channels", "threads") if whole else ("algorithm", "protocol")
    picks = [
        np.column_stack([getattr(side, name)[where] for name in names])
        for side, where in zip((before, after), at, strict=True)
    ]
    differ = (picks[0] != picks[1]).any(axis=1)
    # A range goes on where both sides keep their picks.
    both = np.column_stack(picks)
    begins = np.append(True, (both[1:] != both[:-1]).any(axis=1))
    ends_here = np.append(begins[1:], True)
    return starts[differ & begins], ends[differ & ends_here]


def _changes(before: Side, after: Side, request: Request, ranges: SizeArray) -> Iterator[Change]:
    """``ranges`` are [start, middle, end][range] in bytes."""
    ratio_from, ratio, ratio_to = (
        after.pick(request, sizes).time_us / before.pick(request, sizes).time_us for sizes in ranges
    )
    starts, middles, ends = ranges
    picked = [side.pick(request, middles) for side in (before, after)]
    algo_protos = [picks.algo_protos() for picks in picked]
    olds, news = map(of_picks, picked)
    by_before, by_after = (
        [_ratio(*times) for times in zip(*(side.times_us(request, middles, of) for of in algo_protos), strict=True)]
        for side in (before, after)
    )
    for row, (start, end, middle) in enumerate(zip(starts, ends, middles, strict=True)):
        yield Change(
            request.collective.name,
            int(start),
            int(end),
            int(middle),
            olds[row],
            news[row],
            shortest(ratio[row]),
            shortest(ratio_from[row]),
            shortest(ratio_to[row]),
            by_before[row],
            by_after[row],
        )


def _ratio(old_us: np.float32 | None, new_us: np.float32 | None) -> float | None:
    return None if old_us is None or new_us is None else shortest(new_us / old_us)

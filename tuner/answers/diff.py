"""Changes between two communicators: releases, machines, node counts or settings."""

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tuner.answers import calibrated
from tuner.answers.calibrated import (
    Answering,
    CalibratedEstimate,
    CalibratedRatio,
    CalibrationUsed,
    NoCalibration,
    TimesWanted,
)
from tuner.answers.symmetric import AnyPick, picks_of, ratio, times_us
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.frames import Rows
from tuner.base.names import Buffers
from tuner.base.nouns import TimeInterval
from tuner.base.numerics import SizeArray
from tuner.base.records import json_form
from tuner.emulator import alike
from tuner.emulator.ranges import FOLLOWED_BYTES, Ranges, answers
from tuner.emulator.request import Request
from tuner.emulator.selection import Pick, Selection
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tuner.answers.changes import AtSize

ROUNDING = 10_000  # a shorter range, as a part of its size, is two times that float32 rounds alike


class Side:
    """One side of a comparison, with its ranges computed once.

    ``whole``: ranges are split also by channels and threads, not only by algorithm and protocol. ``near``: a side that
    probably has similar ranges, which makes this side's ranges faster to find. If this side and ``near`` choose in the
    same way for a request, they share its ranges.
    """

    def __init__(
        self,
        scenario: Scenario,
        low: int | None = None,
        high: int = FOLLOWED_BYTES,
        whole: bool = False,
        near: "Side | None" = None,
    ) -> None:
        self.scenario = scenario
        self.selection: Selection = Selection(scenario.communicator(), None if near is None else near.selection)
        self._low, self._high = low, high
        self.whole = whole
        self._known: dict[Hashable, tuple[Ranges, SizeArray | None]] = {} if near is None else near._known
        self.ranges = cache(self._ranges)

    def _ranges(self, request: Request) -> Ranges:
        with self._named():
            choice = alike.of_choice(self.selection, request)
            if choice is None:
                return answers(self.selection, request, self._low, self._high, self.whole)
            at = choice, self._low, self._high, self.whole
            if at not in self._known:
                found = answers(self.selection, request, self._low, self._high, self.whole)
                self._known[at] = found, self.selection.turns.get(request)
            ranges, turns = self._known[at]
            if turns is not None:
                self.selection.turns[request] = turns  # for the side to which this one is near
            return ranges

    def picks(self, request: Request, sizes: SizeArray) -> list[AnyPick]:
        """The picks (:func:`tuner.answers.symmetric.picks_of`) of ``sizes`` in bytes, [size]. The message of an error
        begins with the side's title.
        """
        with self._named():
            return picks_of(self.selection, request, sizes)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (BadInput, NoAlgorithm) as error:
            raise type(error)(f"{self.scenario.title}: {error}") from error

    def times_us(self, request: Request, sizes: SizeArray, picks: Sequence[AnyPick]) -> list[float | None]:
        """The times (:func:`tuner.answers.symmetric.times_us`) of ``picks`` at ``sizes`` in bytes, [size]. The message
        of an error begins with the side's title.
        """
        with self._named():
            return times_us(self.selection, request, sizes, picks)


@dataclass(frozen=True, slots=True)
class PickChange:
    """A range of sizes whose pick changes; ``before`` and ``after`` are the picks at its geometric middle,
    ``at_bytes``.

    ``ratio`` is the predicted time after over the time before, each by its own side's model; ``ratio_from`` and
    ``ratio_to`` are the same at both ends. ``ratio_by_before`` and ``ratio_by_after`` do not mix the models: each is
    the new pick's time over the old pick's, both by one side's model; None if that side cannot run the other's pick.
    All ratios are None if one of the picks bypasses the algorithms, or is run by copy engines: NCCL never compares the
    time of a symmetric kernel with that of an algorithm. ``calibrated`` are calibrated times, if they were asked for.
    """

    collective: str
    from_bytes: int
    to_bytes: int
    at_bytes: int
    before: AnyPick
    after: AnyPick
    ratio: float | None
    ratio_from: float | None
    ratio_to: float | None
    ratio_by_before: float | None
    ratio_by_after: float | None
    calibrated: "CalibratedChange | None" = field(default=None, metadata=json_form(optional=True))

    @property
    def is_rounding(self) -> bool:
        """Whether the range is so short that the two picks' times differ only by float32 rounding."""
        return self.to_bytes - self.from_bytes < self.from_bytes // ROUNDING


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PickChanges(Rows[PickChange]):
    """Changes that :func:`diff` finds for ``request`` between two sides."""

    before: Side
    after: Side
    request: Request

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Draws what both sides pick over sizes, and the ratio of predicted times where the pick changes.

        If a ``path`` (.png, .svg, .pdf) is given, the figure is saved there. BadInput for another ending; MissingExtra
        without matplotlib.
        """
        from tuner.answers import charts

        sides = [side.ranges(self.request) for side in (self.before, self.after)]
        where = self.before.scenario.heading, self.after.scenario.heading
        what = f"{self.request.title}: what changes"
        return charts.plot(lambda figures: figures.changes(*sides, self.records, what, where), path)


def diff(before: Side, after: Side, request: Request) -> list[PickChange]:
    """The ranges of sizes whose pick changes (nBytes, from one element to 1 TiB unless the sides have other ends).

    Neighbours with the same two picks are one range. Errors: BadInput and NoAlgorithm, which name the side.
    """
    both = before.ranges(request), after.ranges(request)
    if both[0] is both[1]:
        return []
    starts, ends = _changed(*both, before.whole)
    if not len(starts):
        return []
    unit = request.dtype.size_bytes
    middles = np.exp2((np.log2(starts.astype(np.float64)) + np.log2(ends.astype(np.float64))) / 2).astype(np.uint64)
    middles = np.clip(middles // np.uint64(unit) * np.uint64(unit), starts, ends)
    return list(_changes(before, after, request, np.stack([starts, middles, ends])))


def loss(change: PickChange) -> tuple[float, str] | None:
    """The loss by a change at the middle of its range, and a text that says whose times were compared. The loss is a
    share: 0.1 if the new pick takes 10 % longer than the old one, negative if it is faster. Returns None if no model
    has a time for both picks.

    Calibrated times are compared if there are any, else times of the model before the change or, if that cannot run the
    new pick, each side's own.
    """
    measured = change.calibrated.ratio if change.calibrated else None
    if measured is not None:
        # Nothing may have changed: that is no loss.
        return (0.0 if measured.may_be_none else measured.ratio - 1, "measurements")
    if change.ratio_by_before is not None:
        return change.ratio_by_before - 1, "the model before"
    return None if change.ratio is None else (change.ratio - 1, "each side's own model")


def share_changed(changes: list[PickChange], low: int, high: int) -> float:
    """The part of the sizes from ``low`` to ``high``, measured by their logarithm, that lies in the changes."""
    ends = [(max(change.from_bytes, low), min(change.to_bytes, high) + 1) for change in changes]
    return math.fsum(math.log2(end / start) for start, end in ends if start < end) / math.log2((high + 1) / low)


def _changed(before: Ranges, after: Ranges, whole: bool) -> tuple[SizeArray, SizeArray]:
    """First and last sizes of the ranges that exist on both sides and have different picks."""
    low = max(before.from_bytes[0], after.from_bytes[0])
    high = min(before.to_bytes[-1], after.to_bytes[-1])
    starts = np.union1d(before.from_bytes, after.from_bytes)
    starts = np.union1d(starts[(starts > low) & (starts <= high)], [low])
    ends = np.append(starts[1:] - np.uint64(1), high)
    at = [np.searchsorted(side.from_bytes, starts, side="right") - 1 for side in (before, after)]
    names = ("algorithm", "protocol", "channels", "threads") if whole else ("algorithm", "protocol")
    numbers = {name: at for at, name in enumerate({*before.bypass, *after.bypass, None})}
    picks = [
        np.column_stack(
            [
                np.array([numbers[name] for name in side.bypass or (None,) * len(side)])[where],
                *(getattr(side, name)[where] for name in names),
            ]
        )
        for side, where in zip((before, after), at, strict=True)
    ]
    differ = (picks[0] != picks[1]).any(axis=1)
    # A range goes on where both sides keep their picks.
    both = np.column_stack(picks)
    begins = np.append(True, (both[1:] != both[:-1]).any(axis=1))
    ends_here = np.append(begins[1:], True)
    return starts[differ & begins], ends[differ & ends_here]


def _changes(before: Side, after: Side, request: Request, ranges: SizeArray) -> Iterator[PickChange]:
    """Yields the changes of ``ranges``, an array [start, middle, end][range] in bytes."""
    starts, middles, ends = ranges
    ratio_from, ratio_to = (
        [_ratio(*both) for both in zip(before.picks(request, sizes), after.picks(request, sizes), strict=True)]
        for sizes in (starts, ends)
    )
    olds, news = (side.picks(request, middles) for side in (before, after))
    by_before, by_after = (
        [side.times_us(request, middles, picks) for picks in (olds, news)] for side in (before, after)
    )
    for row, (start, end, middle) in enumerate(zip(starts, ends, middles, strict=True)):
        old, new = olds[row], news[row]
        yield PickChange(
            request.collective.name,
            int(start),
            int(end),
            int(middle),
            old,
            new,
            _ratio(old, new),
            ratio_from[row],
            ratio_to[row],
            ratio((old, by_before[0][row]), (new, by_before[1][row])),
            ratio((old, by_after[0][row]), (new, by_after[1][row])),
        )


def _ratio(old: AnyPick, new: AnyPick) -> float | None:
    return ratio((old, old.time_us), (new, new.time_us))


@dataclass(frozen=True, slots=True)
class CalibratedChange:
    """Each side's calibrated time of its own pick, and the ratio of the time after to the time before.

    If no calibration answers for a side, its time and the ratio are None.
    """

    before: TimeInterval | None
    after: TimeInterval | None
    ratio: CalibratedRatio | None
    calibration_before: CalibrationUsed
    calibration_after: CalibrationUsed


class CalibratedSides:
    """The calibrations that answer for both sides. BadInput if a calibration is unknown or missing, BadCalibration if
    it is invalid.
    """

    def __init__(self, wanted: TimesWanted, before: "Side", after: "Side", buffers: Buffers = Buffers.plain) -> None:
        self._models = [
            calibrated.answering(wanted, side.scenario, side.selection, buffers) for side in (before, after)
        ]

    def changes(self, request: Request, changes: "Sequence[PickChange]") -> "list[PickChange]":
        """Adds calibrated times to the changes, at their middle."""
        sizes = [each.at_bytes for each in changes]
        of_both = self._of(request, sizes, [each.before for each in changes], [each.after for each in changes])
        return [replace(each, calibrated=times) for each, times in zip(changes, of_both, strict=True)]

    def sizes(self, request: Request, ones: "Sequence[AtSize]") -> "list[AtSize]":
        """Adds calibrated times to both picks at each size."""
        sizes = [each.bytes for each in ones]
        of_both = self._of(request, sizes, [each.before for each in ones], [each.after for each in ones])
        return [replace(each, calibrated=times) for each, times in zip(ones, of_both, strict=True)]

    def _of(
        self, request: Request, sizes: Sequence[int], before: Sequence[AnyPick], after: Sequence[AnyPick]
    ) -> list[CalibratedChange]:
        olds, news = (
            _estimates(model, request, sizes, picks) for model, picks in zip(self._models, (before, after), strict=True)
        )
        return [
            CalibratedChange(
                None if old is None else old.time,
                None if new is None else new.time,
                calibrated.ratio(old, new) if old and new else None,
                *(
                    calibrated.used(model, _named(pick, estimate))
                    for model, pick, estimate in zip(self._models, picks, (old, new), strict=True)
                ),
            )
            for *picks, old, new in zip(before, after, olds, news, strict=True)
        ]


def _estimates(
    model: Answering, request: Request, sizes: Sequence[int], picks: Sequence[AnyPick]
) -> list[CalibratedEstimate | None]:
    """Estimates of the picks; None for picks that bypass the algorithms, or if no calibration answers."""
    if isinstance(model, NoCalibration):
        return [None] * len(sizes)
    launched = [(size, pick) for size, pick in zip(sizes, picks, strict=True) if isinstance(pick, Pick)]
    nccl_us = [pick.time_us for _, pick in launched]
    known = iter(
        calibrated.of_launches(model, request, [size for size, _ in launched], [pick for _, pick in launched], nccl_us)
    )
    return [next(known) if isinstance(pick, Pick) else None for pick in picks]


def _named(pick: AnyPick, estimate: CalibratedEstimate | None) -> list[tuple[str, CalibratedEstimate]]:
    return [(pick.name, estimate)] if estimate else []

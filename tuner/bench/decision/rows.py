"""What there is to choose at each measured size, and the rows of a decision table that follow from it."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.names import Collective
from tuner.base.records import json_form
from tuner.bench.decision.assign import Option, assign
from tuner.plugin.table.parse import choice_text, size_text
from tuner.plugin.table.records import Choice, Decision, Interval, Table
from tuner.times.comparison.compared import Comparison
from tuner.times.comparison.judged import columns_of, is_same, middle
from tuner.times.comparison.model import Model
from tuner.times.evidence import LEVEL, Evidence, by_size
from tuner.times.records.samples import Combination, Point

LEAST_GAIN = 0.02
LOG_GAIN = float(np.log1p(LEAST_GAIN))
SIZES_TO_END_OPEN = 3
_IDLE = 0.01  # a row over a size at which it gains nothing counts as worse than no row, by this
_FEWER = 1e-6  # and one that names channels for nothing as worse than one that leaves them to NCCL


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """``sizes`` are the measured ones inside; without ``high`` it is for everything from ``low`` on."""

    collective: Collective
    low: int
    high: int | None
    choice: Combination
    sizes: tuple[int, ...]

    def decision(self, ranks: int, nodes: int) -> Decision:
        """The row as one of a decision table, for a communicator of this size."""
        return Decision(
            self.collective,
            (self._requested,),
            bytes=Interval(self.low, self.high),
            ranks=Interval(ranks, ranks),
            nodes=Interval(nodes, nodes),
        )

    def holds(self, size: int) -> bool:
        """Whether the row is for ``size`` bytes."""
        return size in Interval(self.low, self.high)

    @property
    def _requested(self) -> Choice:
        return Choice(*self.choice.algo_proto, self.choice.channels or None)

    def __str__(self) -> str:
        high = "" if self.high is None else size_text(self.high)
        return f"{self.collective.name.lower()} bytes={size_text(self.low)}..{high} -> {choice_text(self._requested)}"


@dataclass(eq=False)
class Size:
    """What there is to choose at one measured size."""

    bytes: int
    evidence: Evidence
    pick: Combination
    own: Combination | None  # the column of the pick

    @cached_property
    def credits(self) -> dict[Combination, float]:
        """By option: its gain over the pick, a logarithm, which is none where it is small or may be noise."""
        others = [column for column in self.evidence.columns if column is not None]
        gains: dict[Combination, float] = {}
        for option in others:  # plain ones sort before those with channels
            if is_same(option, self.pick):
                gains[option] = -_IDLE
            elif option.channels and option.plain in gains:
                gains[option] = gains[option.plain] + self._credit(option, option.plain, len(others), _FEWER)
            else:
                gains[option] = self._credit(option, self.own, len(others))
        return gains

    def _credit(self, option: Combination, over: Option, comparisons: int, idle: float = _IDLE) -> float:
        gain = self.evidence.gain(option, over)
        sure = gain.p * comparisons <= LEVEL and gain.estimate > LOG_GAIN
        return gain.estimate if sure else min(gain.estimate, 0.0) - idle

    def regret(self, option: Option) -> float:
        """Over the best that was measured, as a share; an option that was not measured here leaves it to NCCL.

        As ``verify`` has it: what is the same as the pick counts once, as NCCL's own choice where that was measured.
        """
        levels, columns = self.evidence.levels, self.evidence.columns
        same = columns_of(self.pick, self.evidence)
        at = {column: level for column, level in zip(columns, levels, strict=True) if column not in same}
        at[self.own] = levels[columns.index(self.own)]
        return float(np.expm1(at.get(option, at[self.own]) - min(at.values())))


Sizes = Mapping[Collective, Sequence[Size]]


@dataclass(eq=False)
class Proposal:
    """Rows for the communicator of one file."""

    comparison: Comparison
    ranks: int
    nodes: int
    fitted: Model | None = None

    @cached_property
    def sizes(self) -> dict[Collective, list[Size]]:
        """What can be decided, in order; sizes whose pick is not known are not."""
        picks = {(one.point.collective, one.point.bytes): one.pick for one in self.comparison.sizes}
        model = self.comparison.model
        by_collective: dict[Collective, list[Size]] = {}
        for (collective, size), evidence in by_size(self.comparison.evidence).items():
            if (collective, size) not in picks:
                continue
            modelled = model.pick(Point(collective, size)) if model else None
            pick = evidence.executed or modelled or picks[collective, size]
            if same := columns_of(pick, evidence):
                by_collective.setdefault(collective, []).append(Size(size, evidence, pick, same[0]))
        return by_collective

    @cached_property
    def rows(self) -> list[DecisionRow]:
        """The rows of all measured sizes."""
        return self.rows_from(self.sizes)

    def rows_from(self, sizes: Sizes) -> list[DecisionRow]:
        """The rows that these sizes, in bytes, give."""
        return [row for collective, those in sizes.items() for row in self._rows(collective, those)]

    def hold_out(self) -> "Regrets":
        """Rows made from every other size, at the sizes in between."""
        rows = self.rows_from({collective: sizes[::2] for collective, sizes in self.sizes.items()})
        return regrets({collective: sizes[1::2] for collective, sizes in self.sizes.items()}, rows)

    def _rows(self, collective: Collective, sizes: Sequence[Size]) -> list[DecisionRow]:
        options = assign([size.credits for size in sizes])
        rows, start = [], 0
        while start < len(sizes):
            stop = start + 1
            while stop < len(sizes) and options[stop] == options[start]:
                stop += 1
            if options[start] is not None:
                rows.append(self._row(collective, sizes, options, slice(start, stop)))
            start = stop
        return rows

    def _row(self, collective: Collective, sizes: Sequence[Size], options: Sequence[Option], run: slice) -> DecisionRow:
        """For the sizes of ``run``, which have one option."""
        start, stop, choice = run.start, run.stop, options[run.start]
        assert choice is not None
        inside = tuple(size.bytes for size in sizes[run])
        low, high = inside[0], None
        if start > 0:
            low = self._border(collective, sizes[start - 1].bytes, inside[0], options[start - 1], choice)
        if stop < len(sizes):
            high = self._border(collective, inside[-1], sizes[stop].bytes, choice, options[stop]) - 1
        elif stop - start < SIZES_TO_END_OPEN:
            high = inside[-1]
        return DecisionRow(collective, low, high, choice, inside)

    def _border(self, collective: Collective, low: int, high: int, before: Option, after: Option) -> int:
        """The first of ``after``, in (low, high]: by fitted constants, or where NCCL's pick changes, else between."""
        if self.fitted is not None and (modelled := self._modelled(collective, low, high, before, after)) is not None:
            return modelled
        model = self.comparison.model
        if model is not None and None in (before, after):
            changes = model.changes(self._kind(collective), low, high)
            if len(changes) == 1:
                return changes[0]
        return max(low + 1, middle(low, high))

    def _modelled(self, collective: Collective, low: int, high: int, before: Option, after: Option) -> int | None:
        """Where the fitted constants' times of the two cross; None where they do not, or it is not known."""

        def lead(size: int) -> float:
            point = Point(collective, size)
            times = self.fitted.times_us(point) if self.fitted is not None else {}
            cells = [
                option or (self.comparison.model.pick(point) if self.comparison.model else None)
                for option in (before, after)
            ]
            first, second = (times.get(each.algo_proto, np.nan) if each else np.nan for each in cells)
            return float(second - first)

        if not lead(low) > 0 > lead(high):
            return None
        while high - low > 4:
            between = (low + high) // 2
            low, high = (between, high) if lead(between) > 0 else (low, between)
        return high

    def _kind(self, collective: Collective) -> Point:
        return next(kind for kind in self.comparison.kinds if kind.collective is collective)


@dataclass(frozen=True, slots=True)
class Regrets:
    """Mean regrets over ``sizes`` sizes, by NCCL's picks and by the rows."""

    sizes: int
    before: float = field(metadata=json_form("regret_before"))
    after: float = field(metadata=json_form("regret_after"))


def regrets(sizes: Sizes, rows: Sequence[DecisionRow]) -> Regrets:
    """Rows are taken as if for these ranks, whatever they were made for."""
    before, after = [], []
    for collective, those in sizes.items():
        for size in those:
            row = next((row for row in rows if row.collective is collective and row.holds(size.bytes)), None)
            before.append(size.regret(None))
            after.append(size.regret(row.choice if row else None))
    return Regrets(len(before), float(np.mean(before or [0])), float(np.mean(after or [0])))


def table(rows: Sequence[tuple[int, int, DecisionRow]], provenance: Mapping[str, str]) -> Table:
    """``rows`` with their ranks and nodes."""
    return Table(tuple(row.decision(ranks, nodes) for ranks, nodes, row in rows), provenance=provenance)

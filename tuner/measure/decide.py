"""From measurements to few rows of a decision table, and the A/B run through the plugin that they have to pass."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tuner.base.names import Collective
from tuner.measure.backend import Backend
from tuner.measure.evidence import LEVEL, Evidence, by_size, gain_of
from tuner.measure.records.samples import Combination, Point, SampleBlock
from tuner.measure.verify import Comparison, Model, columns_of, is_same, middle
from tuner.plugin.table.records import Choice, Decision, Interval, Table
from tuner.plugin.table.text import choice_text, size_text, to_text

LEAST_GAIN = 0.02
PROBABILITY = 0.95
TOLERANCE = 0.001  # of the mean regret, for fewer rows
MOST_ROWS = 16  # of one collective
SIZES_TO_END_OPEN = 3
TEST_SIZES = 8  # of a row in the gate
CANDIDATE = "candidate"  # what blocks under the table say
_LOG_GAIN = float(np.log1p(LEAST_GAIN))
_IDLE = 0.01  # a row over a size at which it gains nothing counts as worse than no row, by this
_FEWER = 1e-6  # and one that names channels for nothing as worse than one that leaves them to NCCL

Times = NDArray[np.float64]
Option = Combination | None  # None leaves the size to NCCL


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
            (self._asked,),
            bytes=Interval(self.low, self.high),
            ranks=Interval(ranks, ranks),
            nodes=Interval(nodes, nodes),
        )

    def holds(self, size: int) -> bool:
        """Whether the row is for ``size`` bytes."""
        return size in Interval(self.low, self.high)

    @property
    def _asked(self) -> Choice:
        return Choice(*self.choice.algo_proto, self.choice.channels or None)

    def __str__(self) -> str:
        high = "" if self.high is None else size_text(self.high)
        return f"{self.collective.name.lower()} bytes={size_text(self.low)}..{high} -> {choice_text(self._asked)}"


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
        found: dict[Combination, float] = {}
        for option in others:  # plain ones sort before those with channels
            if is_same(option, self.pick):
                found[option] = -_IDLE
            elif option.channels and option.plain in found:
                found[option] = found[option.plain] + self._credit(option, option.plain, len(others), _FEWER)
            else:
                found[option] = self._credit(option, self.own, len(others))
        return found

    def _credit(self, option: Combination, over: Option, comparisons: int, idle: float = _IDLE) -> float:
        gain = self.evidence.gain(option, over)
        sure = gain.p * comparisons <= LEVEL and gain.estimate > _LOG_GAIN
        return gain.estimate if sure else min(gain.estimate, 0.0) - idle

    def regret(self, option: Option) -> float:
        """Over the best that was measured, as a share; an option that was not measured here leaves it to NCCL."""
        levels, columns = self.evidence.levels, self.evidence.columns
        known = option is not None and option in columns and not is_same(option, self.pick)
        return float(np.expm1(levels[columns.index(option if known else self.own)] - levels.min()))


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
        found: dict[Collective, list[Size]] = {}
        for (collective, size), evidence in by_size(self.comparison.evidence).items():
            if (collective, size) not in picks:
                continue
            modelled = model.pick(Point(collective, size)) if model else None
            pick = evidence.executed or modelled or picks[collective, size]
            if same := columns_of(pick, evidence):
                found.setdefault(collective, []).append(Size(size, evidence, pick, same[0]))
        return found

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
            option = options[start]
            if option is not None:
                rows.append(self._row(collective, sizes, options, start, stop, option))
            start = stop
        return rows

    def _row(
        self,
        collective: Collective,
        sizes: Sequence[Size],
        options: Sequence[Option],
        start: int,
        stop: int,
        choice: Combination,
    ) -> DecisionRow:
        inside = tuple(size.bytes for size in sizes[start:stop])
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
        if self.fitted is not None and (found := self._modelled(collective, low, high, before, after)) is not None:
            return found
        model = self.comparison.model
        if model is not None and None in (before, after):
            changes = model.changes(self._kind(collective), low, high)
            if len(changes) == 1:
                return changes[0]
        return max(low + 1, middle(low, high))

    def _modelled(self, collective: Collective, low: int, high: int, before: Option, after: Option) -> int | None:
        """Where the fitted constants' times of the two cross; None where they do not, or cannot be told."""

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


def assign(credits: Sequence[Mapping[Combination, float]]) -> list[Option]:
    """An option for each of the sizes in order: the fewest rows whose credit is within TOLERANCE of the most."""
    options: list[Option] = [None, *sorted({option for size in credits for option in size})]
    # paths[rows][option]: the best credit of ways that end with the option, and the way.
    paths: list[dict[Option, tuple[float, tuple[Option, ...]]]] = [{None: (0.0, ())}]
    for size in credits:
        after: list[dict[Option, tuple[float, tuple[Option, ...]]]] = []
        for rows in range(min(len(paths), MOST_ROWS) + 1):
            here: dict[Option, tuple[float, tuple[Option, ...]]] = {}
            same = paths[rows] if rows < len(paths) else {}
            fewer = paths[rows - 1] if rows else {}
            best_same = max(same.values(), key=lambda way: way[0], default=None)
            best_fewer = max(fewer.values(), key=lambda way: way[0], default=None)
            for option in options:
                gain = 0.0 if option is None else size.get(option)
                if gain is None:
                    continue
                ways = [same.get(option), best_same if option is None else best_fewer]
                known = [way for way in ways if way is not None]
                if known:
                    credit, way = max(known, key=lambda each: each[0])
                    here[option] = (credit + gain, (*way, option))
            after.append(here)
        while after and not after[-1]:
            after.pop()
        paths = after
    best = [max(ways.values(), key=lambda way: way[0]) for ways in paths if ways]
    enough = max(credit for credit, _ in best) - TOLERANCE * len(credits)
    return list(next(way for credit, way in best if credit >= enough))


@dataclass(frozen=True, slots=True)
class Regrets:
    """Mean regrets over ``sizes`` sizes, by NCCL's picks and by the rows."""

    sizes: int
    before: float
    after: float


def regrets(sizes: Sizes, rows: Sequence[DecisionRow]) -> Regrets:
    """Rows are taken as if for these ranks, whatever they were made for."""
    before, after = [], []
    for collective, those in sizes.items():
        for size in those:
            row = next((row for row in rows if row.collective is collective and row.holds(size.bytes)), None)
            before.append(size.regret(None))
            after.append(size.regret(row.choice if row else None))
    return Regrets(len(before), float(np.mean(before or [0])), float(np.mean(after or [0])))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate found of a row: gain and probability of improvement as shares of 1; ``why_not`` None: it stays."""

    row: DecisionRow
    gain: float
    probability: float
    sizes: tuple[int, ...]
    why_not: str | None


def table(rows: Sequence[tuple[int, int, DecisionRow]], provenance: Mapping[str, str]) -> Table:
    """``rows`` with their ranks and nodes."""
    return Table(tuple(row.decision(ranks, nodes) for ranks, nodes, row in rows), provenance=provenance)


def gate(
    backend: Backend,
    proposal: Proposal,
    *,
    rounds: int,
    repeats: int,
    warmup: int,
    seed: int,
    add: Callable[[SampleBlock], None],
) -> list[Verdict]:
    """Each round runs every row's sizes with the table and without, whichever first, in one random order.

    The first of two rounds' order is turned round in the second, so that drift counts for both alike.
    """
    if not proposal.rows:
        return []
    text = to_text(table([(proposal.ranks, proposal.nodes, row) for row in proposal.rows], {}))
    tests = {row: test_points(proposal, row) for row in proposal.rows}
    points = [point for those in tests.values() for point in those]
    shuffled, start_s = random.Random(seed), backend.now_s()
    times: dict[tuple[Point, bool], list[float]] = {}
    executed: dict[Point, set[Combination]] = {}
    order = [False, True]
    for number in range(rounds):
        if number % 2 == 0:
            shuffled.shuffle(order)
        else:
            order.reverse()
        shuffled.shuffle(points)
        for with_table in order:
            backend.use_table(text if with_table else None)
            for point in points:
                if warmup:
                    backend.run(point, None, warmup)
                run = backend.run(point, None, repeats)
                block = SampleBlock(
                    point,
                    None,
                    run.executed,
                    run.times_us,
                    number,
                    backend.now_s() - start_s,
                    run.wrong,
                    CANDIDATE if with_table else None,
                )
                add(block)
                median = float(np.log(np.median(run.times_us))) if block.counts else np.nan
                times.setdefault((point, with_table), []).append(median)
                if with_table and run.executed is not None:
                    executed.setdefault(point, set()).add(run.executed)
    backend.use_table(None)
    return [
        verdict(
            row,
            those,
            {point: np.array(times[point, False]) - np.array(times[point, True]) for point in those},
            executed,
        )
        for row, those in tests.items()
    ]


def test_points(proposal: Proposal, row: DecisionRow) -> list[Point]:
    """Of every kind of call: sizes that were measured and, between them, sizes that were not."""
    unit = Point(row.collective, 0).unit_bytes(proposal.ranks)
    ends = (row.low, *row.sizes, *(() if row.high is None else (row.high + 1,)))
    between = {middle(low, high) // unit * unit for low, high in pairwise(ends)}
    sizes = sorted({*row.sizes, *(size for size in between if row.holds(size) and size > 0)})
    chosen = [sizes[round(at)] for at in np.linspace(0, len(sizes) - 1, min(len(sizes), TEST_SIZES))]
    kinds = [kind for kind in proposal.comparison.kinds if kind.collective is row.collective]
    return [
        replace(kind, bytes=size) for kind in kinds for size in chosen if size % kind.unit_bytes(proposal.ranks) == 0
    ]


test_points.__test__ = False  # type: ignore[attr-defined]


def verdict(
    row: DecisionRow,
    points: Sequence[Point],
    log_gains: Mapping[Point, Times],
    executed: Mapping[Point, set[Combination]],
) -> Verdict:
    """What became of a row: ``log_gains`` are logarithms of ratios, numbers [round].

    A row that is slower towards an end ends before that.
    """
    slower = [point.bytes for point in points if _is_slower(log_gains[point], len(points))]
    good = [point.bytes for point in points if point.bytes not in slower]
    if slower and good:
        row = _trimmed(row, min(good), max(good), slower)
    points = [point for point in points if row.holds(point.bytes)]
    sizes = tuple(sorted({point.bytes for point in points}))
    gain = float(np.expm1(np.median([np.nanmedian(log_gains[point]) for point in points])))
    # One gain a round, so that rounds, not sizes that share them, count as independent.
    probability = 1 - gain_of(np.nanmedian(np.array([log_gains[point] for point in points]), axis=0)).p
    why_not = next(
        (
            f"NCCL ran {each} instead at {size_text(point.bytes)}"
            for point in points
            for each in sorted(executed.get(point, ()))
            if each.algo_proto != row.choice.algo_proto
        ),
        None,
    )
    if why_not is None and (inside := [size for size in slower if row.holds(size)]):
        why_not = f"slower at {size_text(inside[0])}"
    if why_not is None and not gain > LEAST_GAIN:
        why_not = f"gains {100 * gain:.1f} %, not more than {100 * LEAST_GAIN:.0f} %"
    if why_not is None and probability < PROBABILITY:
        why_not = f"probability of improvement {probability:.3f}, below {PROBABILITY}"
    return Verdict(row, gain, probability, sizes, why_not)


def _is_slower(log_gains: Times, comparisons: int) -> bool:
    loss = gain_of(-log_gains)
    return loss.estimate > _LOG_GAIN and loss.p * comparisons <= LEVEL


def _trimmed(row: DecisionRow, low: int, high: int, slower: Sequence[int]) -> DecisionRow:
    """To tried sizes that are not slower, at those ends where some are."""
    low = low if min(slower) < low else row.low
    end = high if max(slower) > high else row.high
    inside = tuple(size for size in row.sizes if low <= size and (end is None or size <= end))
    return replace(row, low=low, high=end, sizes=inside)

"""Finds the choices at each measured size, and the rows of a decision table that follow from these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.names import Collective
from tuner.base.nouns import Span
from tuner.base.records import json_form
from tuner.base.sizes import ranks_on_nodes
from tuner.emulator import fitted_constants
from tuner.emulator.selection import Selection
from tuner.plugin.compile import between
from tuner.plugin.dry_run import CommunicatorSize
from tuner.plugin.table.parse import choice_text, read, size_text, write
from tuner.plugin.table.records import Decision, Table, TableChoice
from tuner.times.compare import crossing, middle, straight, too_small
from tuner.times.evidence import by_size
from tuner.times.measured.header import scenario_of
from tuner.times.measured.samples import Combination, Point
from tuner.times.picks import judge
from tuner.times.verify import EmulatedModel, JudgedFile, RoundsPick, judge_file, lead

TOLERANCE = 0.001  # increase of the mean regret that is accepted for fewer rows
MOST_ROWS = 16  # most rows of one collective

Option = Combination | None  # None leaves the size to NCCL


def assign(credits: Sequence[Mapping[Combination, float]]) -> list[Option]:
    """Chooses an option for each size, so that there are few rows and their choices are still nearly the best.

    ``credits`` has the gains of the options at each size, in the order of sizes. A solution with fewer rows is taken if
    its mean gain is less than the largest by at most TOLERANCE.
    """
    options: list[Option] = [None, *sorted({option for size in credits for option in size})]
    # paths[rows][option]: the best credit of a path that ends with the option, and that path.
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


SIZES_TO_END_OPEN = 3
_IDLE = 0.01  # a row over a size at which it gains nothing counts as this much worse than no row
_FEWER = 1e-6  # a row that names channels without need counts as this much worse than one that leaves them to NCCL


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A row of the decided table.

    It is for sizes from ``low`` to ``high`` bytes; if ``high`` is None, it has no upper end. ``sizes`` are the measured
    sizes in this range, in bytes.
    """

    collective: Collective
    low: int
    high: int | None
    choice: Combination
    sizes: tuple[int, ...]

    def decision(self, ranks: int, nodes: int) -> Decision:
        """The row as it is in a decision table, for a communicator of this size."""
        return Decision(
            self.collective,
            (self._requested,),
            bytes=Span(self.low, self.high),
            ranks=Span(ranks, ranks),
            nodes=Span(nodes, nodes),
        )

    def holds(self, size: int) -> bool:
        """Whether the row is for ``size`` bytes."""
        return size in Span(self.low, self.high)

    @property
    def _requested(self) -> TableChoice:
        return TableChoice(*self.choice.algo_proto, self.choice.channels or None)

    def __str__(self) -> str:
        high = "" if self.high is None else size_text(self.high)
        return f"{self.collective.name.lower()} bytes={size_text(self.low)}..{high} -> {choice_text(self._requested)}"


def credits_of(one: RoundsPick) -> dict[Combination, float]:
    """The gain of each option over NCCL's pick, as a logarithm.

    A gain that is small or may be noise does not count: the value is then below 0, so that the option is not preferred
    to the pick.
    """
    others = [column for column in one.evidence.columns if column is not None]
    gains: dict[Combination, float] = {}
    for option in others:  # options without channels sort before those with channels
        if option in one.same:
            gains[option] = -_IDLE
        elif option.channels and option.plain in gains:
            gains[option] = gains[option.plain] + _credit(one, option, option.plain, len(others), _FEWER)
        else:
            gains[option] = _credit(one, option, one.same[0], len(others))
    return gains


def _credit(one: RoundsPick, option: Combination, over: Option, comparisons: int, idle: float = _IDLE) -> float:
    gain = one.evidence.gain(option, over)
    sure = gain.is_beyond(comparisons) and too_small(gain.gain) is None
    return gain.estimate if sure else min(gain.estimate, 0.0) - idle


def regret_of(one: RoundsPick, option: Option) -> float:
    """By which share of time an option is slower than the best option measured at this size.

    For an option that was not measured at this size, the time of NCCL's pick counts.
    """
    own = one.same[0]
    at = {column: one.evidence.level(column) for column in (own, *one.others)}
    return float(np.expm1(at.get(option, at[own]) - min(at.values())))


Sizes = Mapping[Collective, Sequence[RoundsPick]]  # what was measured at each size, in the order of sizes


@dataclass(eq=False)
class Proposal:
    """The rows that are proposed for the communicator of one file."""

    comparison: JudgedFile
    ranks: int
    nodes: int
    fitted: EmulatedModel | None = None

    @cached_property
    def sizes(self) -> dict[Collective, list[RoundsPick]]:
        """The sizes that can be decided, in order: those whose pick is known."""
        picks = {(one.call.collective, one.call.bytes): one.pick for one in self.comparison.sizes}
        model = self.comparison.model
        by_collective: dict[Collective, list[RoundsPick]] = {}
        for (collective, size), evidence in by_size(self.comparison.evidence).items():
            if (collective, size) not in picks:
                continue
            modelled = model.pick(Point(collective, size)) if model else None
            pick = evidence.executed or modelled or picks[collective, size]
            if (one := judge(Point(collective, size), pick, evidence, modelled)).same:
                by_collective.setdefault(collective, []).append(one)
        return by_collective

    @cached_property
    def rows(self) -> list[DecisionRow]:
        """The rows of all measured sizes."""
        return self.rows_from(self.sizes)

    def rows_from(self, sizes: Sizes) -> list[DecisionRow]:
        """The rows that follow from the measurements at these sizes, in bytes."""
        return [row for collective, those in sizes.items() for row in self._rows(collective, those)]

    def hold_out(self) -> "Regrets":
        """Regrets of rows made from every other size, at the sizes in between."""
        rows = self.rows_from({collective: sizes[::2] for collective, sizes in self.sizes.items()})
        return regrets({collective: sizes[1::2] for collective, sizes in self.sizes.items()}, rows)

    def _rows(self, collective: Collective, sizes: Sequence[RoundsPick]) -> list[DecisionRow]:
        options = assign([credits_of(one) for one in sizes])
        rows, start = [], 0
        while start < len(sizes):
            stop = start + 1
            while stop < len(sizes) and options[stop] == options[start]:
                stop += 1
            if options[start] is not None:
                rows.append(self._row(collective, sizes, options, slice(start, stop)))
            start = stop
        return rows

    def _row(
        self, collective: Collective, sizes: Sequence[RoundsPick], options: Sequence[Option], run: slice
    ) -> DecisionRow:
        """The row for the sizes of ``run``, which all have the same option."""
        start, stop, choice = run.start, run.stop, options[run.start]
        assert choice is not None
        inside = tuple(one.call.bytes for one in sizes[run])
        low, high = inside[0], None
        if start > 0:
            low = self._border(sizes[start - 1], sizes[start], options[start - 1], choice)
        if stop < len(sizes):
            high = self._border(sizes[stop - 1], sizes[stop], choice, options[stop]) - 1
        elif stop - start < SIZES_TO_END_OPEN:
            high = inside[-1]
        return DecisionRow(collective, low, high, choice, inside)

    def _border(self, low: RoundsPick, high: RoundsPick, before: Option, after: Option) -> int:
        """The first size at which ``after`` applies, between two measured sizes. This is the size at which times cross
        according to fitted constants; without these, the size at which NCCL's pick changes; else where the measured
        times cross; else the middle.
        """
        collective, ends = low.call.collective, (low.call.bytes, high.call.bytes)
        if self.fitted is not None and (last := crossing(self._modelled(collective, before, after), *ends)) is not None:
            return last + 1
        model = self.comparison.model
        if model is not None and None in (before, after):
            changes = model.changes(self._kind(collective), *ends)
            if len(changes) == 1:
                return changes[0]
        measured = [
            (one.call.bytes, lead(one.evidence, before or one.same[0], after or one.same[0])) for one in (low, high)
        ]
        last = crossing(straight(*measured), *ends)
        return max(ends[0] + 1, middle(*ends) if last is None else last + 1)

    def _modelled(self, collective: Collective, before: Option, after: Option) -> Callable[[int], float]:
        """A function of the size: by how many us ``before`` is faster according to the fitted constants; NaN if not
        known.
        """

        def ahead(size: int) -> float:
            point = Point(collective, size)
            times = self.fitted.times_us(point) if self.fitted is not None else {}
            cells = [
                option or (self.comparison.model.pick(point) if self.comparison.model else None)
                for option in (before, after)
            ]
            first, second = (times.get(each.algo_proto, np.nan) if each else np.nan for each in cells)
            return float(second - first)

        return ahead

    def _kind(self, collective: Collective) -> Point:
        return next(kind for kind in self.comparison.kinds if kind.collective is collective)


@dataclass(frozen=True, slots=True)
class Regrets:
    """Mean regrets over ``sizes`` sizes: ``before`` with NCCL's picks, ``after`` with the rows."""

    sizes: int
    before: float = field(metadata=json_form("regret_before"))
    after: float = field(metadata=json_form("regret_after"))


def regrets(sizes: Sizes, rows: Sequence[DecisionRow]) -> Regrets:
    """Mean regrets at ``sizes``. Rows apply here whatever the numbers of ranks and nodes for which they were made."""
    before, after = [], []
    for collective, those in sizes.items():
        for one in those:
            row = next((row for row in rows if row.collective is collective and row.holds(one.call.bytes)), None)
            before.append(regret_of(one, None))
            after.append(regret_of(one, row.choice if row else None))
    return Regrets(len(before), float(np.mean(before or [0])), float(np.mean(after or [0])))


def table(rows: Sequence[tuple[int, int, DecisionRow]], provenance: Mapping[str, str]) -> Table:
    """The decision table with these ``rows``, given with their ranks and nodes."""
    return Table(tuple(row.decision(ranks, nodes) for ranks, nodes, row in rows), provenance=provenance)


def proposed(path: Path, constants: Path | None = None) -> Proposal:
    """The rows proposed for the file's communicator.

    With fitted ``constants``, a row ends where the times that they predict for two neighbouring choices cross.

    BadMeasurement if the file cannot be judged, BadConstants if the constants are invalid.
    """
    comparison = judge_file(path)
    scenario = scenario_of(comparison.measurements.header)
    fitted = None
    if constants is not None:
        there = fitted_constants.read(constants)
        fitted = EmulatedModel(Selection(replace(scenario, fitted_constants=there).communicator()))
    return Proposal(comparison, scenario.ranks, scenario.communicator().nodes, fitted)


Known = Mapping[CommunicatorSize, Sequence[Decision]]


@dataclass(frozen=True, slots=True)
class HeldOutMeasured:
    """How interpolated rows perform at a measured number of nodes that was not used to make them.

    ``own`` is, for comparison, the mean regret with the rows that the measurements at this number of nodes themselves
    gave.
    """

    nodes: int
    regrets: Regrets = field(metadata=json_form(merged=True))
    own: float = field(metadata=json_form("regret_own"))

    def __str__(self) -> str:
        before_and_after = (
            f"{100 * self.regrets.before:.2f} % by NCCL's picks, {100 * self.regrets.after:.2f} % interpolated"
        )
        return f"{self.nodes} nodes: regret {before_and_after}, {100 * self.own:.2f} % decided there"


@dataclass(frozen=True, slots=True)
class Interpolated:
    """The interpolated ``rows`` that were added to the table.

    ``held_out`` says how well interpolated rows perform at each measured number of nodes, except at the smallest and
    the largest.
    """

    rows: tuple[Decision, ...] = field(metadata=json_form("interpolated_rows", convert=len))
    held_out: tuple[HeldOutMeasured, ...] = field(metadata=json_form(optional=True))


def interpolate(table: Path, files: Mapping[CommunicatorSize, Path]) -> Interpolated:
    """Adds rows to the table for numbers of nodes between those of ``files``, if both neighbouring numbers choose the
    same.

    These rows are not measured, and the table says so. With three numbers of nodes or more, each number between the
    others is held out: its measurements judge rows that are interpolated without it. BadInput if there are fewer than
    two numbers of nodes, or if the communicators differ in their ranks per node. BadTable if the file is not a table.
    BadMeasurement if a file cannot be judged.
    """
    decided = read(table)
    known: dict[CommunicatorSize, list[Decision]] = {shape: [] for shape in sorted(files, key=lambda one: one.nodes)}
    for row in decided.decisions:
        known[CommunicatorSize(row.ranks.low, row.nodes.low)].append(row)
    rows = tuple(between(known, unequal=False))
    held_out = tuple(_held_out(known, shape, files[shape]) for shape in list(known)[1:-1])
    learnt = ", ".join(ranks_on_nodes(shape.ranks, shape.nodes) for shape in known)
    says = (
        f"{len(rows)} rows for the numbers of nodes between, from {learnt}: not measured; where two neighbours choose "
        "the same, the logarithm of its edges is linear in the logarithm of the ranks"
    )
    provenance = {**decided.provenance, "interpolated": says}
    provenance |= {f"held-out-{number}": str(each) for number, each in enumerate(held_out, start=1)}
    write(table, replace(decided, decisions=(*decided.decisions, *rows), provenance=provenance))
    return Interpolated(rows, held_out)


def _held_out(known: Known, shape: CommunicatorSize, file: Path) -> HeldOutMeasured:
    others = {other: rows for other, rows in known.items() if other != shape}
    there = [_row(row) for row in between(others, unequal=False) if row.nodes.low == shape.nodes]
    sizes = proposed(file).sizes
    return HeldOutMeasured(shape.nodes, regrets(sizes, there), regrets(sizes, [*map(_row, known[shape])]).after)


def _row(row: Decision) -> DecisionRow:
    choice = Combination(*row.choices[0].algo_proto, row.choices[0].channels or 0)
    return DecisionRow(row.collective, row.bytes.low, row.bytes.high, choice, ())

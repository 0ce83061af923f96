"""The gate that rows have to pass: an A/B run through the plugin, and its verdict on each row.

The unit is the process: each process runs both sides in turn and yields one number, by how much a row's sizes are
faster with the table. More rounds within a process only make this number more precise.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import MeasuringFailed
from tuner.base.spelling import option
from tuner.bench.backend import Backend
from tuner.bench.decision.rows import DecisionRow, Proposal, table
from tuner.plugin.table.parse import size_text, to_text
from tuner.times.compare import Verdict, decided, middle, paired, too_small, unsure
from tuner.times.measured.samples import Combination, Point, SampleBlock
from tuner.times.statistics import LEAST_PROCESSES, ROUNDING_VARIANCE, timer_steps_us

SLOWER = 0.05  # one-sided chance up to which a size counts as slower; removing a size that is not slower costs little
TEST_SIZES = 8  # most sizes that are tried for a row
# Sample blocks between two processes, so that a disturbance of this length does not affect neighbouring processes
APART_BLOCKS = 1500
MOST_APART_S = 60.0
CANDIDATE = "candidate"  # the name for blocks that follow the table

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """The A/B run's verdict on a row.

    ``found`` is by how much the row's sizes are faster with the row; None without an A/B run. ``probability`` is the
    probability of an improvement.

    ``sizes`` are the sizes that were tried, ``cut`` the measured sizes that were removed because the row was slower
    there, all in bytes. ``why_not`` says why the row is dropped, None if it stays.
    """

    row: DecisionRow
    found: Verdict | None
    probability: float
    sizes: tuple[int, ...]
    why_not: str | None
    cut: tuple[int, ...] = ()

    @property
    def gain(self) -> float:
        """The gain as a share of 1; NaN without an A/B run."""
        return self.found.gain if self.found is not None else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the gain, shares of 1."""
        return self.found.interval if self.found is not None else (-1.0, float("inf"))


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Settings of the A/B run.

    ``rounds`` are distributed over ``processes`` fresh processes, at least 3. A sample block begins with ``warmup``
    runs that are thrown away; the ``repeats`` runs after them are kept.

    ``seed`` draws the order. Between the last sample block of a process and the first of the next, ``apart_s`` seconds
    pass; if ``apart_s`` is None, as long as APART_BLOCKS sample blocks take, but at most MOST_APART_S.
    """

    rounds: int = 20
    repeats: int = 10
    warmup: int = 2
    seed: int = 0
    processes: int = 5
    apart_s: float | None = None

    def rounds_of(self, process: int) -> int:
        """Number of rounds that a process gets, at least one."""
        each, more = divmod(max(self.rounds, self.count), self.count)
        return each + (process < more)

    @property
    def count(self) -> int:
        """Number of processes: at most one per round, but at least LEAST_PROCESSES."""
        return max(LEAST_PROCESSES, min(self.processes, self.rounds))


def gate(
    backend: Backend, proposal: Proposal, settings: GateSettings, add: Callable[[SampleBlock], None]
) -> list[RowVerdict]:
    """Makes the A/B run through the plugin and judges each row of one table; ``add`` gets every sample block.

    MeasuringFailed if the backend fails or cannot start another process. BadInput for what it cannot run.
    """
    return of_one_table(tried(backend, proposal, settings, add))


def tried(
    backend: Backend, proposal: Proposal, settings: GateSettings, add: Callable[[SampleBlock], None]
) -> list[RowVerdict]:
    """Makes the A/B run and judges each row as if it were the only row of the table.

    Each round runs the sizes of every row with the table and without, in one random order. The side that is first in a
    round is second in the next round and in the same round of the next process, so that drift and warming up affect
    both sides equally. Processes are spread in time, so that a lasting disturbance does not affect all of them.
    MeasuringFailed if the backend fails or cannot start another process. BadInput for what it cannot run.
    """
    if not proposal.rows:
        return []
    tests = {row: points_to_test(proposal, row) for row in proposal.rows}
    executed = _Run()
    for block in _blocks(backend, proposal, settings, [point for those in tests.values() for point in those]):
        add(block)
        executed.take(block)
    rounding = executed.rounding()
    return [
        verdict(row, points, {point: executed.log_gains(point) for point in points}, executed.executed, rounding)
        for row, points in tests.items()
    ]


def of_one_table(verdicts: Sequence[RowVerdict]) -> list[RowVerdict]:
    """The verdicts on all rows of a table, with probabilities corrected for the number of rows.

    The more rows are tested, the likelier one of them seems to be faster by chance.
    """
    together = decided((one.why_not, one.gain, 1 - one.probability) for one in verdicts)
    return [
        replace(one, probability=1 - chance, why_not=why_not)
        for one, (chance, why_not) in zip(verdicts, together, strict=True)
    ]


@dataclass()
class _Run:
    """Logarithms of median times, by process and round, for each call, with the table and without it."""

    log_us: dict[tuple[Point, bool], dict[tuple[int, int], float]] = field(default_factory=dict)
    times_us: dict[tuple[Point, bool], list[float]] = field(default_factory=dict)  # of runs that count
    executed: dict[Point, set[Combination]] = field(default_factory=dict)  # what ran under the table

    def take(self, block: SampleBlock) -> None:
        log_us = float(np.log(block.median_us)) if block.counts else np.nan
        side = block.point, block.table is not None
        self.log_us.setdefault(side, {})[block.process, block.round] = log_us
        self.times_us.setdefault(side, []).extend(block.times_us if block.counts else ())
        if block.table is not None and block.executed is not None:
            self.executed.setdefault(block.point, set()).add(block.executed)

    def log_gains(self, point: Point) -> Times:
        """The logarithm of the gain in each process, as the median over its rounds; NaN if no round counts."""
        without, with_table = self.log_us[point, False], self.log_us[point, True]
        gains: dict[int, list[float]] = {}
        for process, number in without:
            gains.setdefault(process, []).append(without[process, number] - with_table[process, number])
        return np.array([_middle(each) for each in gains.values()])

    def rounding(self) -> dict[Point, float]:
        """For each call, the variance that the timer's resolution adds to the logarithm of a gain."""
        of_size: dict[int, list[list[float]]] = {}
        for (point, _), its in self.times_us.items():
            of_size.setdefault(point.bytes, []).append(its)
        steps_us, found = timer_steps_us(of_size), dict[Point, float]()
        for (point, _), its in self.times_us.items():
            share = steps_us[point.bytes] / float(np.median(its)) if its else 0.0
            found[point] = found.get(point, 0.0) + ROUNDING_VARIANCE * share**2
        return found


def _middle(values: Sequence[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(np.median(known)) if known else np.nan


def _blocks(backend: Backend, proposal: Proposal, settings: GateSettings, points: list[Point]) -> Iterator[SampleBlock]:
    text = to_text(table([(proposal.ranks, proposal.nodes, row) for row in proposal.rows], {}))
    shuffled, start_s = random.Random(settings.seed), backend.now_s()
    first, number, began_s = shuffled.random() < 0.5, 0, start_s
    for process in range(settings.count):
        if process:
            ended_s = backend.now_s()
            if not backend.renew():
                valid = f"valid: one process with all GPUs, or {option('no_gate')}"
                raise MeasuringFailed(f"the gate asks {settings.count} processes, and here is one; {valid}")
            apart_s = settings.apart_s
            if apart_s is None:
                blocks = 2 * len(points) * settings.rounds_of(process - 1)
                apart_s = min(APART_BLOCKS * (ended_s - began_s) / blocks, MOST_APART_S)
            # The time in which a process starts is part of the pause
            if (left_s := apart_s - (backend.now_s() - ended_s)) > 0:
                backend.rest(left_s)
            began_s = backend.now_s()
        for round_of_process in range(settings.rounds_of(process)):
            with_table = first ^ bool((process + round_of_process) % 2)
            order = (with_table, not with_table)
            shuffled.shuffle(points)
            for with_table in order:
                backend.use_table(text if with_table else None)
                for point in points:
                    if settings.warmup:
                        backend.run(point, None, settings.warmup)
                    run = backend.run(point, None, settings.repeats)
                    at_s, name = backend.now_s() - start_s, CANDIDATE if with_table else None
                    times = run.executed, run.times_us, number, at_s, run.wrong, name
                    yield SampleBlock(point, None, *times, run.host_us, process, run.late_us)
            number += 1
    backend.use_table(None)


def points_to_test(proposal: Proposal, row: DecisionRow) -> list[Point]:
    """The calls that the A/B run makes for a row, at measured sizes and at sizes between these that were not measured.

    They are of every kind that was measured: data type, operation, in place or not, in a CUDA graph or not.
    """
    unit = Point(row.collective, 0).unit_bytes(proposal.ranks)
    ends = (row.low, *row.sizes, *(() if row.high is None else (row.high + 1,)))
    between = {middle(low, high) // unit * unit for low, high in pairwise(ends)}
    sizes = sorted({*row.sizes, *(size for size in between if row.holds(size) and size > 0)})
    chosen = [sizes[round(at)] for at in np.linspace(0, len(sizes) - 1, min(len(sizes), TEST_SIZES))]
    kinds = [kind for kind in proposal.comparison.kinds if kind.collective is row.collective]
    return [
        replace(kind, bytes=size) for kind in kinds for size in chosen if size % kind.unit_bytes(proposal.ranks) == 0
    ]


def verdict(
    row: DecisionRow,
    points: Sequence[Point],
    log_gains: Mapping[Point, Times],
    executed: Mapping[Point, set[Combination]],
    rounding: Mapping[Point, float] = MappingProxyType({}),
) -> RowVerdict:
    """Judges a row.

    ``log_gains`` has, for each call, numbers `[process]`: the logarithm of (time without the table / time with it).
    ``rounding`` has, for each call, the variance of this logarithm that comes from the timer's resolution.

    If the table is slower at sizes near an end of the row, the row is shortened at that end.
    """
    measured = row.sizes
    slower = [point.bytes for point in points if _is_slower(log_gains[point], rounding.get(point, 0.0))]
    good = [point.bytes for point in points if point.bytes not in slower]
    if slower and good:
        row = _trimmed(row, [point.bytes for point in points], slower)
    points = [point for point in points if row.holds(point.bytes)]
    sizes = tuple(sorted({point.bytes for point in points}))
    # One gain per process, so that processes count as independent, not sizes, which share them.
    of_row = float(np.median([rounding.get(point, 0.0) for point in points]))
    found = paired(np.nanmedian(np.array([log_gains[point] for point in points]), axis=0), of_row)
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
    cut = tuple(size for size in measured if size not in row.sizes)
    return RowVerdict(row, found, 1 - found.p, sizes, why_not or too_small(found.gain) or unsure(found.p), cut)


def _is_slower(log_gains: Times, rounding: float) -> bool:
    """Whether the row is slower at a size, however little: gains at other sizes do not make up for it.

    Each size is judged by itself: a size that gains is hardly ever judged slower, and a size without a gain needs no
    row.
    """
    loss = paired(-log_gains, rounding)
    return loss.estimate > 0 and loss.p <= SLOWER


def _trimmed(row: DecisionRow, tried_bytes: Sequence[int], slower: Sequence[int]) -> DecisionRow:
    """The row without slower sizes near its ends, and without all sizes beyond them."""
    good = [size for size in tried_bytes if size not in slower]
    below = [size for size in slower if size < min(good)]
    above = [size for size in slower if size > max(good)]
    known = {*row.sizes, *good}
    low = min(size for size in known if size > max(below)) if below else row.low
    high = max(size for size in known if size < min(above)) if above else row.high
    inside = tuple(size for size in row.sizes if low <= size and (high is None or size <= high))
    return replace(row, low=low, high=high, sizes=inside)

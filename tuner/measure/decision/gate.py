"""The gate that rows have to pass: an A/B run through the plugin, and what it says of each row."""

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tuner.measure.backend import Backend
from tuner.measure.comparison.judged import middle
from tuner.measure.decision.rows import LEAST_GAIN, LOG_GAIN, DecisionRow, Proposal, table
from tuner.measure.evidence import LEVEL, gain_of
from tuner.measure.records.samples import Combination, Point, SampleBlock
from tuner.plugin.table.text import size_text, to_text

PROBABILITY = 0.95
TEST_SIZES = 8  # of a row
CANDIDATE = "candidate"  # the name that blocks under the table give it

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate found of a row: gain and probability of improvement as shares of 1; ``why_not`` None: it stays."""

    row: DecisionRow
    gain: float
    probability: float
    sizes: tuple[int, ...]
    why_not: str | None


@dataclass(frozen=True, slots=True)
class GateSettings:
    """The A/B run: ``rounds`` of it, ``repeats`` runs kept of each sample block, ``warmup`` runs before those.

    ``seed`` is that of its order.
    """

    rounds: int = 20
    repeats: int = 10
    warmup: int = 2
    seed: int = 0


def gate(
    backend: Backend, proposal: Proposal, settings: GateSettings, add: Callable[[SampleBlock], None]
) -> list[Verdict]:
    """An A/B run through the plugin, and what it says of each row; ``add`` is handed every sample block.

    Each round runs every row's sizes with the table and without, whichever first, in one random order. The first of two
    rounds' order is turned round in the second, so that drift counts for both alike.
    Errors: those of the backend.
    """
    if not proposal.rows:
        return []
    tests = {row: points_to_test(proposal, row) for row in proposal.rows}
    executed = _Run()
    for block in _blocks(backend, proposal, settings, [point for those in tests.values() for point in those]):
        add(block)
        executed.take(block)
    return [
        verdict(row, points, {point: executed.log_gains(point) for point in points}, executed.executed)
        for row, points in tests.items()
    ]


@dataclass
class _Run:
    """By point, and by whether the table was in use, the logarithms of median times in the order of the rounds."""

    log_us: dict[tuple[Point, bool], list[float]] = field(default_factory=dict)
    executed: dict[Point, set[Combination]] = field(default_factory=dict)  # under the table

    def take(self, block: SampleBlock) -> None:
        median = float(np.log(statistics.median(block.times_us))) if block.counts else np.nan
        self.log_us.setdefault((block.point, block.table is not None), []).append(median)
        if block.table is not None and block.executed is not None:
            self.executed.setdefault(block.point, set()).add(block.executed)

    def log_gains(self, point: Point) -> Times:
        """One a round."""
        gains: Times = np.array(self.log_us[point, False]) - np.array(self.log_us[point, True])
        return gains


def _blocks(backend: Backend, proposal: Proposal, settings: GateSettings, points: list[Point]) -> Iterator[SampleBlock]:
    text = to_text(table([(proposal.ranks, proposal.nodes, row) for row in proposal.rows], {}))
    shuffled, start_s = random.Random(settings.seed), backend.now_s()
    order = [False, True]
    for number in range(settings.rounds):
        if number % 2 == 0:
            shuffled.shuffle(order)
        else:
            order.reverse()
        shuffled.shuffle(points)
        for with_table in order:
            backend.use_table(text if with_table else None)
            for point in points:
                if settings.warmup:
                    backend.run(point, None, settings.warmup)
                run = backend.run(point, None, settings.repeats)
                at_s, name = backend.now_s() - start_s, CANDIDATE if with_table else None
                yield SampleBlock(point, None, run.executed, run.times_us, number, at_s, run.wrong, name, run.host_us)
    backend.use_table(None)


def points_to_test(proposal: Proposal, row: DecisionRow) -> list[Point]:
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
    return loss.estimate > LOG_GAIN and loss.p * comparisons <= LEVEL


def _trimmed(row: DecisionRow, low: int, high: int, slower: Sequence[int]) -> DecisionRow:
    """To tried sizes that are not slower, at those ends where some are."""
    low = low if min(slower) < low else row.low
    end = high if max(slower) > high else row.high
    inside = tuple(size for size in row.sizes if low <= size and (end is None or size <= end))
    return replace(row, low=low, high=end, sizes=inside)

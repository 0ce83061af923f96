"""Decisions for numbers of nodes between those that decisions are known for: edges interpolated over the ranks.

An edge is the size at which the choice changes. Latency grows with a power of the ranks, and so does the size at which
two straight lines of time meet: between two communicators the logarithm of an edge is linear in the logarithm of the
ranks. Where the two have other choices in their order, a choice that one of them lacks has no width there, and grows or
shrinks between them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise
from math import exp, log

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.names import ALGO_PROTOS, Collective
from tuner.emulator.selection import Selection
from tuner.plugin.compile import request
from tuner.plugin.table.records import Choice, Decision, Interval

MOST_NODES = 4096
FLICKER = 1.01  # where lines meet, float32 times change the choice within a few bytes: narrower ranges are left out
PAST_ALL = 1 << 34  # where a choice begins that a communicator does not have after its last: 16 GiB
Choices = tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a communicator whose nodes have as many ranks each."""

    ranks: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Edged:
    """One choice from ``low`` bytes on, to the next one's; None leaves these sizes to NCCL."""

    low: int
    choices: Choices | None


def between(known: Mapping[Shape, Sequence[Decision]], unequal: bool = True) -> list[Decision]:
    """Rows for every number of nodes between two neighbours of ``known``, with as many ranks per node.

    Without ``unequal`` only what both neighbours choose: the rest is left to NCCL. BadInput where nodes differ in their
    ranks, or there are fewer than two communicators.
    """
    shapes = sorted(known, key=lambda shape: shape.nodes)
    per_node = {shape.ranks / shape.nodes for shape in shapes}
    if len({shape.nodes for shape in shapes}) < 2 or len(per_node) > 1 or shapes[-1].nodes > MOST_NODES:
        raise BadInput(
            f"edges are interpolated between two numbers of nodes at least, of as many ranks each, up to {MOST_NODES}"
        )
    collectives = [each for each in Collective if all(_of(known[shape], each) for shape in shapes)]
    return [
        row
        for below, above in pairwise(shapes)
        for nodes in range(below.nodes + 1, above.nodes)
        for collective in collectives
        for row in _rows((below, known[below]), (above, known[above]), nodes, collective, unequal)
    ]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Interpolated rows against the emulator's own picks on one communicator, over sizes spaced evenly by logarithm.

    ``agreeing`` is the share of sizes with the same pick; ``mean_excess`` the rows' mean time over the pick's, as a
    share, by the release's own times.
    """

    nodes: int
    sizes: int
    agreeing: float
    mean_excess: float

    def __str__(self) -> str:
        percent = f"{100 * self.agreeing:.1f} % of {self.sizes} sizes, {100 * self.mean_excess:.2f} %"
        return f"{self.nodes} nodes: as picked there at {percent} slower on average by NCCL's own times"


def held_out(rows: Sequence[Decision], selection: Selection) -> HeldOut:
    """What interpolated rows choose on this communicator, beside what the release picks there."""
    here = selection.communicator
    agreeing, excess = [], []
    sizes = np.unique(np.round(2.0 ** np.arange(6, 34, 0.125)).astype(np.uint64))
    for collective in dict.fromkeys(row.collective for row in rows):
        times_us = selection.cost_table(request(collective), sizes)
        picks, best_us = selection.pick_by(times_us)
        mine = [row for row in rows if row.match(collective, row.bytes.low, ranks=here.ranks, nodes=here.nodes)]
        for at, size in enumerate(sizes.tolist()):
            row = next((row for row in mine if size in row.bytes), None)
            if row is not None:
                algo_proto = row.choices[0].algo_proto
                agreeing.append(ALGO_PROTOS[picks[at]] == algo_proto)
                # Where the row's choice cannot run, NCCL takes its own.
                time_us = times_us[(at, *algo_proto)]
                excess.append(float(time_us / best_us[at] - 1) if time_us >= 0 else 0.0)
    return HeldOut(here.nodes, len(agreeing), float(np.mean(agreeing or [0])), float(np.mean(excess or [0])))


def _rows(
    below: tuple[Shape, Sequence[Decision]],
    above: tuple[Shape, Sequence[Decision]],
    nodes: int,
    collective: Collective,
    unequal: bool,
) -> Iterator[Decision]:
    ranks = below[0].ranks // below[0].nodes * nodes
    share = log(ranks / below[0].ranks) / log(above[0].ranks / below[0].ranks)
    aligned = list(_aligned(*(edges(_of(rows, collective)) for _, rows in (below, above))))
    for at, (low, high, choices, in_both) in enumerate(aligned):
        start = _interpolated(low, high, share)
        end = _interpolated(*aligned[at + 1][:2], share) - 1 if at + 1 < len(aligned) else None
        if choices is not None and (in_both or unequal) and (end is None or end >= start):
            here = Interval(ranks, ranks), Interval(nodes, nodes)
            yield Decision(collective, choices, bytes=Interval(start, end), ranks=here[0], nodes=here[1])


def _of(rows: Sequence[Decision], collective: Collective) -> list[Decision]:
    return [row for row in rows if row.collective is collective]


def edges(rows: Sequence[Decision]) -> list[Edged]:
    """Rows of one collective in the order of their sizes, with what lies between them, from 0 to the largest size."""
    all_edges = [Edged(0, None)]
    end = 0
    for row in sorted(rows, key=lambda row: row.bytes.low):
        if row.bytes.low > end:
            all_edges.append(Edged(end, None))
        all_edges.append(Edged(row.bytes.low, row.choices))
        end = -1 if row.bytes.high is None else row.bytes.high + 1
    if end >= 0:
        all_edges.append(Edged(end, None))
    wide = [
        one
        for one, following in pairwise([*all_edges, None])
        if one is not None and (following is None or following.low > max(one.low, 1) * FLICKER)
    ]
    merged = [one for before, one in pairwise([None, *wide]) if one and (not before or before.choices != one.choices)]
    return [replace(merged[0], low=0), *merged[1:]] if merged else all_edges[:1]


def _aligned(below: Sequence[Edged], above: Sequence[Edged]) -> Iterator[tuple[int, int, Choices | None, bool]]:
    """All choices of both in one order: where each begins in the one and in the other, and whether both have it."""
    one, other = [each.choices for each in below], [each.choices for each in above]
    for _, start, stop, its_start, its_stop in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if one[start:stop] == other[its_start:its_stop]:
            for mine, its in zip(below[start:stop], above[its_start:its_stop], strict=True):
                yield mine.low, its.low, mine.choices, True
            continue
        # First those that only the one has: they have no width in the other, where what follows begins.
        for mine in below[start:stop]:
            yield mine.low, _low(above, its_start), mine.choices, False
        for its in above[its_start:its_stop]:
            yield _low(below, stop), its.low, its.choices, False


def _low(edged: Sequence[Edged], at: int) -> int:
    return edged[at].low if at < len(edged) else max(PAST_ALL, edged[-1].low)


def _interpolated(low: int, high: int, share: float) -> int:
    if low == 0 or high == 0:
        return 0 if low == high == 0 else round(low + (high - low) * share)
    return round(exp(log(low) + (log(high) - log(low)) * share))

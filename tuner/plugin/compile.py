"""Makes decision tables from the emulator: rows of decisions from a release's picks, or rows of costs from its
model."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import groupby, pairwise
from math import exp, log
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.base import breakpoints
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import ALGO_PROTOS, AlgoProto, Collective, DataType, Op
from tuner.base.nouns import Span
from tuner.base.numerics import SizeArray, f32, shortest
from tuner.emulator.ranges import breaks, largest
from tuner.emulator.request import MessageSizes, Request
from tuner.emulator.rules import bounds
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.selection import MAX_BYTES, Selection
from tuner.plugin import loading
from tuner.plugin.dry_run import CommunicatorSize
from tuner.plugin.lint import exists
from tuner.plugin.table.records import CostLine, CostRow, Decision, TableChoice

# one line for each size bin and algorithm: corrections have 23 bins; with more lines, a time is not linear in any of
# them
MOST_LINES = 100
_What = TypeVar("_What")


def request(collective: Collective) -> Request:
    """The request with which times of a collective are computed: a float32 sum.

    One data type is enough, because tables do not distinguish them.
    """
    return Request(collective, DataType.float32, Op.sum)


def decisions(selection: Selection, collectives: Iterable[Collective], channels: bool = False) -> list[Decision]:
    """Rows with the pick of the release for every size from 0 on.

    If ``channels`` is true, a row also sets the number of channels, to the most that NCCL allows for the pick.

    A collective that cannot run has no rows.
    """
    return [row for each in collectives for row in _decisions(selection, request(each), channels)]


def costs(selection: Selection, collectives: Iterable[Collective]) -> list[CostRow]:
    """Rows that give exactly the times that the release computes, bit for bit.

    For algorithms and protocols that the release excludes, they give `never`.

    BadInput if a time is not linear in the size, or a table cannot express it.
    """
    return [row for each in collectives for row in _costs(selection, request(each))]


def _decisions(selection: Selection, request: Request, channels: bool) -> Iterator[Decision]:
    if not selection.usable(request) or not (selection.cost_table(request, 1) >= 0).any():
        return
    most = largest(selection, request)
    starts = breakpoints.find(lambda sizes: _ranked(selection, request, sizes, channels), 1, most, breaks(selection))
    ranks, nodes = _here(selection)
    chosen: list[tuple[int, TableChoice]] = []
    for start, label in zip(starts, _ranked(selection, request, starts, channels), strict=True):
        (algorithm, protocol), bound = ALGO_PROTOS[label[-2]], int(label[-1])
        choice = TableChoice(algorithm, protocol, bound or None)
        if not chosen or chosen[-1][1] != choice:
            chosen.append((int(start), choice))
    for interval, choice in _intervals(chosen):
        yield Decision(request.collective, (choice,), bytes=interval, ranks=ranks, nodes=nodes)


def _ranked(selection: Selection, request: Request, sizes: SizeArray, channels: bool) -> NDArray[np.int64]:
    """Array [size][label]: all cells ordered by time, then the picked cell and its channels.

    The order of all cells is included so that no crossing between two sizes is missed. Channels are 0 if ``channels``
    is false, and for algorithms like CollNet, whose channels NCCL would not check.
    """
    table = selection.cost_table(request, sizes)
    times = np.where(table < 0, np.float32(np.inf), table).reshape(len(sizes), -1)
    best, _ = selection.pick_by(table)
    bound = np.zeros(len(sizes), np.int64)
    for index in set(best.tolist()) if channels else ():
        algo_proto, here = ALGO_PROTOS[index], best == index
        call = RuleCall(selection.communicator, request, algo_proto)
        if not call.like_collnet:
            bound[here], _ = bounds.bounds(call, selection.tables, sizes[here])
    return np.column_stack([np.argsort(times, axis=1, kind="stable"), best, bound])


def _costs(selection: Selection, request: Request) -> Iterator[CostRow]:
    if not selection.usable(request):
        return
    ranks, nodes = _here(selection)
    excluded = selection.excluded(request)
    for algo_proto in ALGO_PROTOS:
        if algo_proto in excluded and exists(request.collective, *algo_proto):
            yield CostRow(request.collective, *algo_proto, None, ranks=ranks, nodes=nodes)
        elif algo_proto not in excluded:
            yield from _lines(selection, request, algo_proto)


def _lines(selection: Selection, request: Request, algo_proto: AlgoProto) -> Iterator[CostRow]:
    at, communicator = (request.collective, *algo_proto), selection.communicator
    where = f"{request.collective.name} {algo_proto[0].name}/{algo_proto[1].name} in NCCL {communicator.release.name}"
    latency_us, bandwidth_gbs = selection.tables.latency_us[at], selection.tables.bandwidth_gbs[at]
    call = RuleCall(communicator, request, algo_proto)

    def corrected(sizes: SizeArray) -> NDArray[np.float32]:
        pair = timing.corrected(latency_us, bandwidth_gbs, call, MessageSizes(sizes))
        labels = np.column_stack([np.broadcast_to(value, sizes.shape) for value in pair])
        if len(sizes) > 1 and (labels[1:] != labels[:-1]).any(axis=1).sum() > MOST_LINES:
            raise BadInput(f"{where}: its time changes continuously with the size, which no cost row can say")
        return labels

    starts = breakpoints.find(corrected, 1, MAX_BYTES, breaks(selection))
    lines = []
    for start, (latency, bandwidth) in zip(starts, corrected(starts), strict=True):
        line = CostLine(shortest(latency), shortest(bandwidth), timing.per_batch(call))
        exact = np.float32(line.latency_us) == latency and np.float32(line.bandwidth_gbs) == bandwidth
        if not (exact and 0 <= latency < np.inf and 0 < bandwidth < np.inf):
            raise BadInput(f"{where}: {latency} us, {bandwidth} GB/s cannot be written as a cost row")
        lines.append((int(start), line))
    ranks, nodes = _here(selection)
    # Penalties are added after the line: PAT with several ranks per node is the last choice, for which a table has
    # another word.
    for interval, line in _intervals(lines):
        size = np.array([max(interval.low, 1)], np.uint64)
        plain = f32(line.latency_us) + size.astype(f32) / (f32(1000) * f32(line.bandwidth_gbs))
        left = timing.penalised(plain, call)[0] == plain[0]
        yield CostRow(request.collective, *algo_proto, line if left else None, bytes=interval, ranks=ranks, nodes=nodes)


def _intervals(chosen: list[tuple[int, _What]]) -> Iterator[tuple[Span, _What]]:
    """Each choice with its range of sizes, which ends before the next choice. The first range begins at 0, the last has
    no end."""
    ends = [start - 1 for start, _ in chosen[1:]]
    for at, (start, what) in enumerate(chosen):
        yield Span(start if at else 0, ends[at] if at < len(ends) else None), what


def _here(selection: Selection) -> tuple[Span, Span]:
    """Conditions on ranks and nodes that match only the sizes of this communicator."""
    ranks, nodes = selection.communicator.ranks, selection.communicator.nodes
    return Span(ranks, ranks), Span(nodes, nodes)


def for_release(rows: list[Decision], runs: Selection) -> tuple[list[Decision], list[str]]:
    """The rows that another release can run on the same machine, and a note for each row that it cannot run."""
    kept, notes = [], []
    for row in rows:
        excluded = runs.excluded(request(row.collective))
        reasons = [excluded[choice.algo_proto] for choice in row.choices if choice.algo_proto in excluded]
        if reasons:
            notes.append(f"{row.collective.name} {_bytes(row.bytes)} keeps its own choice: {reasons[0]}")
        else:
            kept.append(row)
    return kept, [*notes, *_interface(runs)]


def notes_on_costs(rows: list[CostRow], runs: Selection) -> list[str]:
    """Notes about rows of costs that have no effect in another release.

    ``runs`` is the selection of that release on the same machine.
    """
    cells = {(row.collective, row.algorithm, row.protocol): row.time is not None for row in reversed(rows)}
    notes = []
    for (collective, algorithm, protocol), timed in cells.items():
        reason = runs.excluded(request(collective)).get((algorithm, protocol))
        if timed and reason is not None:
            notes.append(f"{collective.name} {algorithm.name}/{protocol.name} cannot run there: {reason}")
    return [*notes, *_interface(runs)]


def _interface(runs: Selection) -> list[str]:
    nccl = runs.communicator.release
    interface = loading.interface(nccl)
    if interface.hands_costs:
        return []
    notes = [f"NCCL {nccl.name} hands over no times: LL128 and CollNet need NCCL_TUNER_UNCHECKED=1"]
    if not interface.says_who_asks:
        notes.append(f"NCCL {nccl.name} does not say who asks: rows for ranks or nodes need NCCL_TUNER_UNCHECKED=1")
    return notes


def _bytes(interval: Span) -> str:
    if interval.high is None:
        return f"of {interval.low} bytes and more"
    return f"of {interval.low} to {interval.high} bytes"


MOST_NODES = 4096
# At a crossing, float32 times change the choice within a few bytes; ranges narrower than this factor are left out
FLICKER = 1.01
PAST_ALL = 1 << 34  # where a choice begins that a communicator does not have after its last choice: 16 GiB
Choices = tuple[TableChoice, ...]


# The least size in bytes of an entry, and the choices from there to the next entry; None leaves these sizes to NCCL
Edge = tuple[int, Choices | None]


def between(known: Mapping[CommunicatorSize, Sequence[Decision]], unequal: bool = True) -> list[Decision]:
    """Interpolates rows for every number of nodes between those of ``known``; the ranks per node stay the same.

    If ``unequal`` is false, a row is only made for a choice that both neighbouring numbers of nodes have; other sizes
    are left to NCCL. BadInput if the communicators differ in their ranks per node, or there are fewer than two.
    """
    shapes = sorted(known, key=lambda shape: shape.nodes)
    per_node = {shape.ranks / shape.nodes for shape in shapes}
    if len({shape.nodes for shape in shapes}) < 2 or len(per_node) > 1 or shapes[-1].nodes > MOST_NODES:
        raise BadInput(
            f"edges can only be interpolated between at least two numbers of nodes, up to {MOST_NODES}, with equally "
            "many ranks per node"
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
class HeldOutRows:
    """How interpolated rows compare with the emulator's own picks on one communicator.

    They are compared at sizes that grow by a constant ratio.

    ``agreeing`` is the share of sizes with the same pick. ``mean_excess`` is the mean of (time of the rows' choice /
    time of the pick) - 1, with the times of the release's own model.
    """

    nodes: int
    sizes: int
    agreeing: float
    mean_excess: float

    def __str__(self) -> str:
        percent = f"{100 * self.agreeing:.1f} % of {self.sizes} sizes, {100 * self.mean_excess:.2f} %"
        return f"{self.nodes} nodes: as picked there at {percent} slower on average by NCCL's own times"


def held_out(rows: Sequence[Decision], selection: Selection) -> HeldOutRows:
    """Compares the choices of interpolated rows on this communicator with the release's picks there."""
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
                # If the row's choice cannot run, NCCL uses its own.
                time_us = times_us[(at, *algo_proto)]
                excess.append(float(time_us / best_us[at] - 1) if time_us >= 0 else 0.0)
    return HeldOutRows(here.nodes, len(agreeing), float(np.mean(agreeing or [0])), float(np.mean(excess or [0])))


def _rows(
    below: tuple[CommunicatorSize, Sequence[Decision]],
    above: tuple[CommunicatorSize, Sequence[Decision]],
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
            here = Span(ranks, ranks), Span(nodes, nodes)
            yield Decision(collective, choices, bytes=Span(start, end), ranks=here[0], nodes=here[1])


def _of(rows: Sequence[Decision], collective: Collective) -> list[Decision]:
    return [row for row in rows if row.collective is collective]


def edges(rows: Sequence[Decision]) -> list[Edge]:
    """The choices of one collective's rows, each with the size at which it begins, in the order of sizes from 0 up.

    A gap between rows has an entry, too, with None as its choices.
    """
    all_edges: list[Edge] = [(0, None)]
    end = 0
    for row in sorted(rows, key=lambda row: row.bytes.low):
        if row.bytes.low > end:
            all_edges.append((end, None))
        all_edges.append((row.bytes.low, row.choices))
        end = -1 if row.bytes.high is None else row.bytes.high + 1
    if end >= 0:
        all_edges.append((end, None))
    ends = [low for low, _ in all_edges[1:]]
    wide = [one for one, end in zip(all_edges, [*ends, math.inf], strict=True) if end > max(one[0], 1) * FLICKER]
    merged = [next(same) for _, same in groupby(wide, key=lambda one: one[1])]
    return [(0, merged[0][1]), *merged[1:]]


def _aligned(below: Sequence[Edge], above: Sequence[Edge]) -> Iterator[tuple[int, int, Choices | None, bool]]:
    """Merges the choices of both lists in order; yields where each begins in either list, the choices, and whether both
    lists have them."""
    one, other = ([choices for _, choices in its] for its in (below, above))
    for _, start, stop, its_start, its_stop in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if one[start:stop] == other[its_start:its_stop]:
            for (low, choices), (its_low, _) in zip(below[start:stop], above[its_start:its_stop], strict=True):
                yield low, its_low, choices, True
            continue
        # First the choices that only one list has: in the other they have no width and end where the next one begins.
        for low, choices in below[start:stop]:
            yield low, _low(above, its_start), choices, False
        for its_low, choices in above[its_start:its_stop]:
            yield _low(below, stop), its_low, choices, False


def _low(edged: Sequence[Edge], at: int) -> int:
    return edged[at][0] if at < len(edged) else max(PAST_ALL, edged[-1][0])


def _interpolated(low: int, high: int, share: float) -> int:
    if low == 0 or high == 0:
        return 0 if low == high == 0 else round(low + (high - low) * share)
    return round(exp(log(low) + (log(high) - log(low)) * share))

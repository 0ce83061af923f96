"""Decision tables from the emulator: a release's picks as decisions, or its model as costs, for one communicator."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.base import breakpoints
from tuner.base.errors import BadInput
from tuner.base.names import ALGO_PROTOS, AlgoProto, Collective, DataType, Op
from tuner.base.numerics import SizeArray, f32, shortest
from tuner.emulator.ranges import breaks, largest
from tuner.emulator.request import Request, Sizes
from tuner.emulator.rules import bounds
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import Call
from tuner.emulator.selection import MAX_BYTES, Selection
from tuner.plugin import loading
from tuner.plugin.lint import exists
from tuner.plugin.table.records import Choice, Cost, Decision, Interval, Line

# A line a size bin and algorithm: the corrections have 23 bins. More is a time that is no line in any of them.
MOST_LINES = 100
_What = TypeVar("_What")


def request(collective: Collective) -> Request:
    """Tables know no types: float32 sums stand for all."""
    return Request(collective, DataType.float32, Op.sum)


def decisions(selection: Selection, collectives: Iterable[Collective], channels: bool = False) -> list[Decision]:
    """The release's pick of every size, 0 to the largest; with ``channels`` also the most channels NCCL allows it.

    A collective of which nothing can run has no rows.
    """
    return [row for each in collectives for row in _decisions(selection, request(each), channels)]


def costs(selection: Selection, collectives: Iterable[Collective]) -> list[Cost]:
    """Rows that give every time the release computes bit for bit, and `never` for what it ignores.

    BadInput where a time is no line of the size, or not one that a table can say.
    """
    return [row for each in collectives for row in _costs(selection, request(each))]


def _decisions(selection: Selection, request: Request, channels: bool) -> Iterator[Decision]:
    if not selection.usable(request) or not (selection.cost_table(request, 1) >= 0).any():
        return
    most = largest(selection, request)
    starts = breakpoints.find(lambda sizes: _ranked(selection, request, sizes, channels), 1, most, breaks(selection))
    ranks, nodes = _here(selection)
    chosen: list[tuple[int, Choice]] = []
    for start, label in zip(starts, _ranked(selection, request, starts, channels), strict=True):
        (algorithm, protocol), bound = ALGO_PROTOS[label[-2]], int(label[-1])
        choice = Choice(algorithm, protocol, bound or None)
        if not chosen or chosen[-1][1] != choice:
            chosen.append((int(start), choice))
    for interval, choice in _intervals(chosen):
        yield Decision(request.collective, (choice,), bytes=interval, ranks=ranks, nodes=nodes)


def _ranked(selection: Selection, request: Request, sizes: SizeArray, channels: bool) -> NDArray[np.int64]:
    """All cells in the order of their times, so that no crossing hides between two sizes; the pick; its channels.

    Channels are 0 where they are not asked for, or where NCCL would not check them and the plugin leaves them alone.
    """
    table = selection.cost_table(request, sizes)
    times = np.where(table < 0, np.float32(np.inf), table).reshape(len(sizes), -1)
    best, _ = selection.pick_by(table)
    bound = np.zeros(len(sizes), np.int64)
    for index in set(best.tolist()) if channels else ():
        algo_proto, here = ALGO_PROTOS[index], best == index
        call = Call(selection.communicator, request, algo_proto)
        if not call.like_collnet:
            bound[here], _ = bounds.bounds(call, selection.tables, sizes[here])
    return np.column_stack([np.argsort(times, axis=1, kind="stable"), best, bound])


def _costs(selection: Selection, request: Request) -> Iterator[Cost]:
    if not selection.usable(request):
        return
    ranks, nodes = _here(selection)
    excluded = selection.excluded(request)
    for algo_proto in ALGO_PROTOS:
        if algo_proto in excluded and exists(request.collective, *algo_proto):
            yield Cost(request.collective, *algo_proto, None, ranks=ranks, nodes=nodes)
        elif algo_proto not in excluded:
            yield from _lines(selection, request, algo_proto)


def _lines(selection: Selection, request: Request, algo_proto: AlgoProto) -> Iterator[Cost]:
    at, communicator = (request.collective, *algo_proto), selection.communicator
    where = f"{request.collective.name} {algo_proto[0].name}/{algo_proto[1].name} in NCCL {communicator.release.name}"
    latency_us, bandwidth_gbs = selection.tables.latency_us[at], selection.tables.bandwidth_gbs[at]
    call = Call(communicator, request, algo_proto)

    def corrected(sizes: SizeArray) -> NDArray[np.float32]:
        pair = timing.corrected(latency_us, bandwidth_gbs, call, Sizes(sizes))
        labels = np.column_stack([np.broadcast_to(value, sizes.shape) for value in pair])
        if len(sizes) > 1 and (labels[1:] != labels[:-1]).any(axis=1).sum() > MOST_LINES:
            raise BadInput(f"{where}: its time changes continuously with the size, which no cost row can say")
        return labels

    starts = breakpoints.find(corrected, 1, MAX_BYTES, breaks(selection))
    lines = []
    for start, (latency, bandwidth) in zip(starts, corrected(starts), strict=True):
        line = Line(shortest(latency), shortest(bandwidth), timing.per_batch(call))
        exact = np.float32(line.latency_us) == latency and np.float32(line.bandwidth_gbs) == bandwidth
        if not (exact and 0 <= latency < np.inf and 0 < bandwidth < np.inf):
            raise BadInput(f"{where}: {latency} us, {bandwidth} GB/s cannot be written as a cost row")
        lines.append((int(start), line))
    ranks, nodes = _here(selection)
    # Penalties come after the line: PAT of several ranks is the last choice, which a table says with another word.
    for interval, line in _intervals(lines):
        size = np.array([max(interval.low, 1)], np.uint64)
        plain = f32(line.latency_us) + size.astype(f32) / (f32(1000) * f32(line.bandwidth_gbs))
        left = timing.penalised(plain, call)[0] == plain[0]
        yield Cost(request.collective, *algo_proto, line if left else None, bytes=interval, ranks=ranks, nodes=nodes)


def _intervals(chosen: list[tuple[int, _What]]) -> Iterator[tuple[Interval, _What]]:
    """Each with the sizes up to the next; the first begins at 0, the last has no end."""
    ends = [start - 1 for start, _ in chosen[1:]]
    for at, (start, what) in enumerate(chosen):
        yield Interval(start if at else 0, ends[at] if at < len(ends) else None), what


def _here(selection: Selection) -> tuple[Interval, Interval]:
    """Its ranks and nodes, and no others."""
    ranks, nodes = selection.communicator.ranks, selection.communicator.nodes
    return Interval(ranks, ranks), Interval(nodes, nodes)


def for_release(rows: list[Decision], runs: Selection) -> tuple[list[Decision], list[str]]:
    """The rows that another release can run on the same machine, and a note for each of the others."""
    kept, notes = [], []
    for row in rows:
        excluded = runs.excluded(request(row.collective))
        reasons = [excluded[choice.algo_proto] for choice in row.choices if choice.algo_proto in excluded]
        if reasons:
            notes.append(f"{row.collective.name} {_bytes(row.bytes)} keeps its own choice: {reasons[0]}")
        else:
            kept.append(row)
    return kept, [*notes, *_interface(runs)]


def notes_on_costs(rows: list[Cost], runs: Selection) -> list[str]:
    """What another release will not follow on the same machine."""
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


def _bytes(interval: Interval) -> str:
    if interval.high is None:
        return f"of {interval.low} bytes and more"
    return f"of {interval.low} to {interval.high} bytes"

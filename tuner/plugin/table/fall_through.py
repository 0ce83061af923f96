"""Tables of single choices in which a row falls through where its choice cannot run, and ranked ones.

NVIDIA's example plugin and NCCLX try the matching rows one after the other until a choice can run
(plugins/tuner/example/plugin.c, v2.30.7-1; comms/ncclx/meta/tuner/MetaTuner.cc, torchcomms 0b6a2d430). A decision table
stops at the first row, whose choices are ranked. Both say the same where a row names the choices of those below, too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from tuner.base.errors import BadTable
from tuner.plugin.table import boxes
from tuner.plugin.table.boxes import Box, Boxes
from tuner.plugin.table.records import Choice, Decision, Interval

MOST_ROWS = 100_000
Place = Callable[[int], str]  # where a row was read, by its line


def ranked(rows: Sequence[Decision], place: Place) -> tuple[Decision, ...]:
    """Rows that fall through as rows that do not. BadTable where they meet in too many ways."""
    decisions: list[Decision] = []
    shapes = [boxes.of(row) for row in rows]
    index = Boxes(shapes)
    for number, (row, shape) in enumerate(zip(rows, shapes, strict=True)):
        if shape is None:
            continue
        below = [rows[other] for other in index.meeting(shape, number + 1, len(rows))]
        parts = _ranked(row, [other for other in below if other.collective is row.collective])
        decisions.extend(islice(parts, MOST_ROWS + 1 - len(decisions)))
        if len(decisions) > MOST_ROWS:
            raise BadTable(f"{place(row.line)}: rows meet in so many ways that a table needs over {MOST_ROWS} rows")
    return tuple(decisions)


def _ranked(row: Decision, below: Sequence[Decision]) -> Iterator[Decision]:
    """The parts of ``row`` in which rows below it match as well, then the rest of it."""
    for number, other in enumerate(below):
        choices = _followed(row.choices, other.choices)
        if choices == row.choices or (both := _both(row, other)) is None:
            continue
        yield from _ranked(replace(both, choices=choices), below[number + 1 :])
        if both == row:  # nothing is left
            return
    yield row


def single(rows: Sequence[Decision], place: Place) -> tuple[Decision, ...]:
    """Ranked rows as rows of one choice that fall through. BadTable where a row would, to what it does not name."""
    by_collective: dict[object, list[Decision]] = {}
    for row in rows:
        if not row.choices:
            raise BadTable(f"{place(row.line)}: 'nccl' is no choice of this format, which has rows for others only")
        by_collective.setdefault(row.collective, []).append(row)
    for same in by_collective.values():
        _check_falls_nowhere_else(same, place)
    return tuple(replace(row, choices=(choice,)) for row in rows for choice in row.choices)


def _check_falls_nowhere_else(rows: Sequence[Decision], place: Place) -> None:
    shapes = [boxes.of(row) for row in rows]
    index = Boxes(shapes)
    for number, (row, shape) in enumerate(zip(rows, shapes, strict=True)):
        below = [] if shape is None else index.meeting(shape, number + 1, len(rows))
        other = [at for at in below if _followed(row.choices, rows[at].choices) != row.choices]
        if shape is None or not other:
            continue
        above = [there for at in index.meeting(shape, 0, number) if (there := shapes[at]) is not None]
        for at in other:
            if _meets_what_is_left(shape, above, shapes[at]):
                raise BadTable(
                    f"{place(row.line)}: meets line {rows[at].line}, to which readers of this format go on where this "
                    f"choice cannot run; valid: rows that do not meet, or that name the lower one's choices as well"
                )


def _meets_what_is_left(shape: Box, above: Sequence[Box], other: Box | None) -> bool:
    both = None if other is None else boxes.common(shape, other)
    try:
        return both is not None and bool(boxes.uncovered(both, above))
    except boxes.TooManyOverlaps:
        return True


def _followed(choices: tuple[Choice, ...], below: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """What is tried in the end: of one combination the upper row's, but for a chunk size that it leaves open."""
    result = {choice.algo_proto: choice for choice in choices}
    for choice in below:
        first = result.setdefault(choice.algo_proto, choice)
        if first.chunk_bytes is None:
            result[choice.algo_proto] = replace(first, chunk_bytes=choice.chunk_bytes)
    return tuple(result.values())


def _both(row: Decision, other: Decision) -> Decision | None:
    """``row`` where ``other`` matches, too."""
    registered = row.registered if other.registered is None else other.registered
    one_node = [each.ranks_per_node for each in (row, other) if each.ranks_per_node is not None]
    common: dict[str, Any] = {
        "bytes": _common(row.bytes, other.bytes),
        "bytes_per_rank": _common(row.bytes_per_rank, other.bytes_per_rank),
        "ranks": _common(row.ranks, other.ranks),
        "nodes": _common(row.nodes, other.nodes),
        "pipelined": _common(row.pipelined, other.pipelined),
        **({"ranks_per_node": _common(one_node[0], one_node[-1])} if one_node else {}),
    }
    if None in common.values() or (row.registered is not None and row.registered is not registered):
        return None
    both = replace(row, registered=registered, **common)
    return None if boxes.of(both) is None else both


def _common(one: Interval, other: Interval) -> Interval | None:
    low = max(one.low, other.low)
    highs = [high for high in (one.high, other.high) if high is not None]
    high = min(highs) if highs else None
    return None if high is not None and low > high else Interval(low, high)

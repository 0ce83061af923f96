"""What the formats of NVIDIA's and NCCLX's files have in common: names, strict numbers, lines."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

from tuner.base.errors import BadTable, one_of
from tuner.base.expressions import expression
from tuner.base.names import Collective
from tuner.base.nouns import Span
from tuner.plugin.table import boxes, values
from tuner.plugin.table.boxes import Box, Boxes
from tuner.plugin.table.records import MAX_CHANNELS, Decision, TableChoice
from tuner.plugin.table.values import Mistake
from tuner.release import ALGORITHM_KEYS, PROTOCOL_KEYS

MOST_ROWS = 100_000
MOST_MEETINGS = 1_000_000  # most pairs of rows that are compared; a table of 1,000 rows that all overlap has fewer
Place = Callable[[int], str]  # says where a row was read, given its line


def ranked(rows: Sequence[Decision], place: Place) -> tuple[Decision, ...]:
    """Rewrites rows that fall through as rows that list their choices in order.

    A row falls through if it leaves a call whose choice cannot run to the next row that matches. BadTable if too many
    rows overlap.
    """
    decisions: list[Decision] = []
    shapes = [boxes.of(row) for row in rows]
    index, meetings = Boxes(shapes), _Meetings()
    for number, (row, shape) in enumerate(zip(rows, shapes, strict=True)):
        if shape is None:
            continue
        below = [rows[other] for other in index.meeting(shape, number + 1, len(rows))]
        parts = _ranked(row, [other for other in below if other.collective is row.collective], meetings)
        decisions.extend(islice(parts, MOST_ROWS + 1 - len(decisions)))
        if meetings.left < 0:
            raise BadTable(f"{place(row.line)}: over {MOST_MEETINGS:,} pairs of rows meet; valid: fewer, none twice")
        if len(decisions) > MOST_ROWS:
            raise BadTable(f"{place(row.line)}: rows meet in so many ways that a table needs over {MOST_ROWS} rows")
    return tuple(decisions)


class _Meetings:
    """The number of pairs of rows that may still be compared (``left``); below 0 the result is incomplete."""

    def __init__(self) -> None:
        self.left = MOST_MEETINGS


def _ranked(row: Decision, below: Sequence[Decision], meetings: _Meetings) -> Iterator[Decision]:
    """The parts of ``row`` in which rows further down match as well, then the rest of ``row``."""
    for number, other in enumerate(below):
        meetings.left -= 1
        if meetings.left < 0:
            return
        choices = _followed(row.choices, other.choices)
        if choices == row.choices or (both := _both(row, other)) is None:
            continue
        yield from _ranked(replace(both, choices=choices), below[number + 1 :], meetings)
        if both == row:  # nothing is left
            return
    yield row


def single(rows: Sequence[Decision], place: Place) -> tuple[Decision, ...]:
    """Rewrites each row with ordered choices as several rows with one choice each.

    If the choice of such a row cannot run, the call falls through to the next row. BadTable if a call could then reach
    a choice that its original row does not name.
    """
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
    index = Boxes(shapes, MOST_MEETINGS)
    for number, (row, shape) in enumerate(zip(rows, shapes, strict=True)):
        below = [] if shape is None else index.meeting(shape, number + 1, len(rows))
        other = [
            at
            for at in below
            if rows[at].choices != row.choices and _followed(row.choices, rows[at].choices) != row.choices
        ]
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


@lru_cache(4096)  # rows of a table have few different choices
def _followed(choices: tuple[TableChoice, ...], below: tuple[TableChoice, ...]) -> tuple[TableChoice, ...]:
    """Merges the choices of two rows, to be tried in turn: the upper row wins, except for a chunk size that it leaves
    open."""
    result = {choice.algo_proto: choice for choice in choices}
    for choice in below:
        first = result.setdefault(choice.algo_proto, choice)
        if first.chunk_bytes is None:
            result[choice.algo_proto] = replace(first, chunk_bytes=choice.chunk_bytes)
    return tuple(result.values())


def _both(row: Decision, other: Decision) -> Decision | None:
    """``row``, restricted to calls that ``other`` also matches."""
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


def _common(one: Span, other: Span) -> Span | None:
    low = max(one.low, other.low)
    highs = [high for high in (one.high, other.high) if high is not None]
    high = min(highs) if highs else None
    return None if high is not None and low > high else Span(low, high)


COLLECTIVE_KEYS = {collective.name.lower(): collective for collective in Collective}
_WHOLE = expression(r"0*([0-9]{1,20})")
_Value = TypeVar("_Value")


@contextmanager
def at(place: str) -> Iterator[None]:
    """Turns a Mistake inside the block into a BadTable that names the place."""
    try:
        yield
    except Mistake as mistake:
        raise BadTable(f"{place}: {mistake}") from None


def text_of(content: bytes, name: str) -> str:
    """Decodes the text with one character per byte, as only ASCII has a meaning in these files. BadTable for a zero
    byte."""
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise BadTable(f"{name}:{line}: a zero byte: this is not a text file")
    return content.decode("latin-1")


def data_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are neither empty nor comments, with their numbers."""
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip(" \t\r")
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def named(valid: Mapping[str, _Value], word: str, what: str) -> _Value:
    """The value in ``valid`` whose name is exactly ``word``.

    Raises Mistake for an unknown word, which the tuners' own readers would take for something else.
    """
    if word not in valid:
        raise Mistake(f"unknown {what} '{shown(word)}' ({one_of(valid)})")
    return valid[word]


def whole(word: str, what: str, least: int, most: int) -> int:
    """Reads a whole number from ``least`` to ``most``; Mistake for anything else."""
    match = _WHOLE.fullmatch(word)
    number = int(match[1]) if match else None
    if number is None or not least <= number <= most:
        raise Mistake(f"{what} '{shown(word)}' is not a number from {least} to {most}")
    return number


def any_or(word: str, what: str, least: int, most: int) -> int | None:
    """The whole number that ``word`` stands for; None for -1, which means any number."""
    return None if word == "-1" else whole(word, f"{what}, if not -1 for any,", least, most)


def choice(algorithm: str, protocol: str, channels: str, chunk_bytes: int | None = None) -> TableChoice:
    """Makes a choice from its texts; ``channels`` of -1 or 0 means that NCCL chooses them."""
    count = None if re.fullmatch("0+", channels) else any_or(channels, "channels", 1, MAX_CHANNELS)
    return TableChoice(
        named(ALGORITHM_KEYS, algorithm, "algorithm"), named(PROTOCOL_KEYS, protocol, "protocol"), count, chunk_bytes
    )


def exactly(number: int | None, any_number: Span) -> Span:
    """The interval that contains one number; ``any_number`` if the number is None."""
    return any_number if number is None else Span(number, number)


def cell_keys(choice: TableChoice) -> tuple[str, str]:
    """The names of algorithm and protocol in these files."""
    algorithm = next(key for key, value in ALGORITHM_KEYS.items() if value is choice.algorithm)
    return algorithm, next(key for key, value in PROTOCOL_KEYS.items() if value is choice.protocol)


def columns(rows: Iterable[Decision], render: Callable[[Decision], list[str]], place: Place) -> Iterator[str]:
    """Yields one line per row. BadTable names the place of a row that the format cannot express."""
    for row in rows:
        with at(place(row.line)):
            yield ",".join(render(row))


def shown(word: str) -> str:
    """A word in the form in which errors show it."""
    return values.shown(word.encode("latin-1", "replace"))

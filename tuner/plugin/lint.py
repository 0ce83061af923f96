"""Finds faults of a decision table that need no release or machine: rows that are never reached, overlaps, gaps, and
combinations that no NCCL runs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeVar

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.plugin import headers
from tuner.plugin.headers import ERROR, NOTE, WARNING, TableFinding
from tuner.plugin.table import boxes
from tuner.plugin.table.boxes import Box, Boxes, Range
from tuner.plugin.table.parse import choice_text, size_text
from tuner.plugin.table.records import LARGEST, Conditions, CostRow, Decision, Table, TableChoice

# Algorithms and protocols that any release has had on any machine; test_lint.py compares this with the tables of all
# releases.
ALGORITHMS = {
    Collective.Broadcast: (Algorithm.Ring,),
    Collective.Reduce: (Algorithm.Ring,),
    Collective.AllGather: (Algorithm.Ring, Algorithm.CollNetDirect, Algorithm.NVLS, Algorithm.PAT),
    Collective.ReduceScatter: (Algorithm.Ring, Algorithm.CollNetDirect, Algorithm.NVLS, Algorithm.PAT),
    Collective.AllReduce: (
        Algorithm.Tree,
        Algorithm.Ring,
        Algorithm.CollNetDirect,
        Algorithm.CollNetChain,
        Algorithm.NVLS,
        Algorithm.NVLSTree,
    ),
}
EVERY_PROTOCOL = (Algorithm.Tree, Algorithm.Ring)  # the other algorithms only have Simple

GAPS = "gaps"  # provenance of a table that leaves sizes to NCCL on purpose

_FOUR_GIB = (2**32 - 1, 2**32)  # the size that people write for "everything"
_Row = TypeVar("_Row", bound=Conditions)


def check(table: Table) -> list[TableFinding]:
    """Findings in the order of lines."""
    findings = [
        *headers.check(table),
        *_impossible(table.decisions),
        *_impossible(table.costs),
        *_registered(table.decisions),
        *_explored(table.decisions),
    ]
    for rows in _groups(table.decisions, lambda row: row.collective):
        findings.extend(_geometry(rows, gaps_are_meant=GAPS in table.provenance))
    for costs in _groups(table.costs, lambda row: (row.collective, row.algorithm, row.protocol)):
        shapes = [boxes.of(row) for row in costs]
        index = Boxes(shapes)
        findings.extend(finding for at in range(len(costs)) if (finding := _unreachable(costs, shapes, index, at)))
    return sorted(findings, key=lambda finding: finding.line)


def cells(row: Decision | CostRow) -> list[tuple[Algorithm, Protocol]]:
    """The combinations of algorithm and protocol that a row names."""
    return [choice.algo_proto for choice in row.named] if isinstance(row, Decision) else [(row.algorithm, row.protocol)]


def exists(collective: Collective, algorithm: Algorithm, protocol: Protocol) -> bool:
    """Whether any release of NCCL can run this combination on some machine."""
    return algorithm in ALGORITHMS[collective] and (protocol is Protocol.Simple or algorithm in EVERY_PROTOCOL)


def name(algo_proto: tuple[Algorithm, Protocol]) -> str:
    """Algorithm and protocol as a table writes them."""
    return choice_text(TableChoice(*algo_proto))


def _impossible(rows: Iterable[Decision | CostRow]) -> Iterator[TableFinding]:
    for row in rows:
        for algo_proto in cells(row):
            if not exists(row.collective, *algo_proto):
                every = product(ALGORITHMS[row.collective], Protocol)
                valid = ", ".join(name(one) for one in every if exists(row.collective, *one))
                reason = f"no NCCL runs {row.collective.name} by {name(algo_proto)}; valid: {valid}"
                yield TableFinding(row.line, ERROR, reason)


def _explored(rows: Iterable[Decision]) -> Iterator[TableFinding]:
    """Finds rows that explore, which is meant to be temporary: some of their calls run other choices (arms)."""
    for row in rows:
        if row.arms is not None:
            percent = 100 / row.arms.every
            reason = f"explores in {percent:.3g} % of the first {row.arms.calls} calls (NCCL 2.28 and later)"
            yield TableFinding(row.line, NOTE, reason)


def _registered(rows: Iterable[Decision]) -> Iterator[TableFinding]:
    """Finds rows with a condition on registration. Each rank looks up only its own registration, so that the ranks of
    one call may match different rows."""
    at = [row.line for row in rows if row.registered is not None]
    if at:
        more = f" (as {len(at) - 1} more)" if len(at) > 1 else ""
        reason = "ranks whose buffers are not registered alike choose differently, and the job hangs"
        yield TableFinding(at[0], WARNING, f"registered= holds what one rank knows{more}: {reason}")


def _groups(rows: Iterable[_Row], key: Callable[[_Row], object]) -> Iterable[list[_Row]]:
    groups: dict[object, list[_Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups.values()


def _geometry(rows: Sequence[Decision], gaps_are_meant: bool) -> Iterator[TableFinding]:
    """Checks all rows of one collective. With ``gaps_are_meant``, sizes without a row are at most a note."""
    shapes = [boxes.of(row) for row in rows]
    index = Boxes(shapes)
    visible: list[int] = []
    for at in range(len(rows)):
        hidden = _unreachable(rows, shapes, index, at)
        if hidden is None:
            visible.append(at)
        yield from [hidden] if hidden else _meetings(rows, shapes, index, at)
    for gap in _gaps(rows, visible, shapes, index):
        yield replace(gap, severity=NOTE, reason=f"{gap.reason}, as '# {GAPS}:' says") if gaps_are_meant else gap


def _unreachable(
    rows: Sequence[Conditions], shapes: Sequence[Box | None], index: Boxes, at: int
) -> TableFinding | None:
    shape, line = shapes[at], rows[at].line
    if shape is None:
        return TableFinding(line, WARNING, "never matches: no communicator has these ranks, nodes and ranks per node")
    meeting = index.above(at)
    above = [box for other in meeting if (box := shapes[other]) is not None]
    try:
        if boxes.covered(shape, above):
            return TableFinding(line, WARNING, f"never decides: hidden by {_lines(rows, meeting)}")
    except boxes.TooManyOverlaps:
        return TableFinding(
            line, NOTE, f"meets {_lines(rows, meeting)} in too many ways to tell whether it ever decides"
        )
    return None


def _meetings(rows: Sequence[Decision], shapes: Sequence[Box | None], index: Boxes, at: int) -> Iterator[TableFinding]:
    """Finds rows above that overlap a row and have other choices. A special row above a general one is usual, so it is
    only a note."""
    shape, row = shapes[at], rows[at]
    if shape is None:
        return
    special, partial = [], []
    for other in index.above(at):
        box = shapes[other]
        if (
            (rows[other].choices, rows[other].arms) == (row.choices, row.arms)
            or box is None
            or (both := boxes.common(shape, box)) is None
        ):
            continue
        if both == box:
            special.append(other)
        else:
            partial.append((other, both))
    if partial:
        first, both = partial[0]
        others = f", as {_lines(rows, [other for other, _ in partial[1:]])} elsewhere" if partial[1:] else ""
        # Neighbouring rows that share only the size at which they meet are not worth a finding.
        shared = all(low == high for low, high in (_sizes(common) for _, common in partial))
        severity = NOTE if shared else WARNING
        reason = f"line {rows[first].line} has other choices and wins where both match{_shown(both)}{others}"
        yield TableFinding(row.line, severity, reason)
    if special:
        yield TableFinding(row.line, NOTE, f"special cases of this row above it win there: {_lines(rows, special)}")


def _gaps(
    rows: Sequence[Decision], visible: Sequence[int], shapes: Sequence[Box | None], index: Boxes
) -> Iterator[TableFinding]:
    """Finds gaps between and after the sizes of rows whose other conditions are equal, if no other row matches
    there."""
    groups: dict[tuple[str, Box], list[tuple[Range, int]]] = {}
    for at in visible:
        if (shape := shapes[at]) is not None:
            axis = _axis(shape)
            others = shape._replace(**{axis: (0, LARGEST)})
            groups.setdefault((axis, others), []).append((getattr(shape, axis), at))
    for (axis, others), ranges in groups.items():
        ranges.sort()
        end, last = ranges[0][0][1], ranges[0][1]
        for (low, high), at in ranges[1:]:
            gap = others._replace(**{axis: (end + 1, low - 1)})
            # Between two rows that explore, NCCL's own choice is intended
            both_explore = rows[last].arms is not None and rows[at].arms is not None
            if low > end + 1 and not both_explore and _open(gap, shapes, index):
                part = "" if not index.meeting(gap, 0, len(rows)) else "part of "
                reason = f"no row for {part}{_named(gap, axis)}, between line {rows[last].line} and this one"
                yield TableFinding(rows[at].line, WARNING, f"{reason}: NCCL's own choice there")
            if high > end:
                end, last = high, at
        if end < LARGEST and _open(others._replace(**{axis: (end + 1, end + 1)}), shapes, index):
            severity = WARNING if end in _FOUR_GIB else NOTE
            past = _named(others._replace(**{axis: (end + 1, LARGEST)}), axis)
            yield TableFinding(rows[last].line, severity, f"no row for {past}, past the last: NCCL's own choice there")


def _open(gap: Box, shapes: Sequence[Box | None], index: Boxes) -> bool:
    """Whether some part of the box is covered by no row."""
    covering = [box for at in index.meeting(gap, 0, len(shapes)) if (box := shapes[at]) is not None]
    try:
        return not boxes.covered(gap, covering)
    except boxes.TooManyOverlaps:
        return False


def _axis(shape: Box) -> str:
    return "bytes" if shape.bytes_per_rank == (0, LARGEST) else "bytes_per_rank"


def _sizes(shape: Box) -> Range:
    ends: Range = getattr(shape, _axis(shape))
    return ends


def _shown(both: Box) -> str:
    return "" if _sizes(both) == (0, LARGEST) else f", {_named(both, _axis(both))}"


def _named(shape: Box, axis: str) -> str:
    """The condition on sizes as a table writes it."""
    return f"{axis.replace('_', '-')}={_range_text(getattr(shape, axis))}"


def _range_text(ends: Range) -> str:
    low, high = ends
    if low == high:
        return size_text(low)
    return f"{size_text(low)}..{'' if high == LARGEST else size_text(high)}"


def _lines(rows: Sequence[Conditions], at: Sequence[int]) -> str:
    lines = sorted({rows[one].line for one in at})
    shown = ", ".join(map(str, lines[:3]))
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return f"line {shown}" if len(lines) == 1 else f"lines {shown}{more}"

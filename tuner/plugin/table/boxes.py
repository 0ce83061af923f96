"""Computes exactly which calls two rows have in common, and which calls of a row no other row matches. The conditions
of a row are treated as a box.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.base.errors import BadTable
from tuner.base.nouns import Span
from tuner.plugin.table.records import ANY_PIPELINED, LARGEST, LARGEST_COUNT, Conditions, Decision

Range = tuple[int, int]  # first and last number, both included


class Box(NamedTuple):
    """The calls of one collective that a row matches, as a range of each property.

    In ``ranks_per_node``, 0 stands for nodes with different numbers of ranks.
    """

    bytes: Range
    bytes_per_rank: Range
    ranks: Range
    nodes: Range
    ranks_per_node: Range
    nvlink_domains: Range
    registered: Range
    pipelined: Range


def of(row: Conditions) -> Box | None:
    """The box of a row; None if no call meets its conditions."""
    registered = row.registered if isinstance(row, Decision) else None
    pipelined = row.pipelined if isinstance(row, Decision) else ANY_PIPELINED
    per_node = (0, LARGEST_COUNT) if row.ranks_per_node is None else _range(row.ranks_per_node, LARGEST_COUNT)
    return _filled(
        Box(
            bytes=_range(row.bytes, LARGEST),
            bytes_per_rank=_range(row.bytes_per_rank, LARGEST),
            ranks=_range(row.ranks, LARGEST_COUNT),
            nodes=_range(row.nodes, LARGEST_COUNT),
            ranks_per_node=per_node,
            nvlink_domains=_range(row.nvlink_domains, LARGEST_COUNT),
            registered=(0, 1) if registered is None else (int(registered),) * 2,
            pipelined=_range(pipelined, LARGEST_COUNT),
        )
    )


def common(one: Box, other: Box) -> Box | None:
    """Intersect two boxes; None if they have nothing in common."""
    return _filled(Box(*map(_common, one, other)))


def _filled(box: Box) -> Box | None:
    """Narrows a box to what its conditions imply together, so that conditions with the same meaning give equal boxes.
    None if no call is left.
    """
    ranks = _common(box.ranks, (box.nodes[0], LARGEST_COUNT))  # every node has at least one rank
    nodes = _common(box.nodes, (1, ranks[1]))
    per_node = _common(box.ranks_per_node, (0, ranks[1]))
    if _one(nodes) and _one(per_node) and per_node[0] > 0:
        ranks = _common(ranks, (nodes[0] * per_node[0],) * 2)
    elif _one(ranks) and _one(nodes):
        even = ranks[0] // nodes[0] if ranks[0] % nodes[0] == 0 else 0
        per_node = _common(per_node, (even, even))
    elif _one(ranks) and _one(per_node) and per_node[0] > 0:
        exact = ranks[0] // per_node[0]
        nodes = _common(nodes, (exact, exact)) if exact * per_node[0] == ranks[0] else (1, 0)
    nbytes, per_rank = box.bytes, box.bytes_per_rank
    if _one(ranks) and per_rank != (0, LARGEST):
        most = LARGEST if per_rank[1] == LARGEST else per_rank[1] * ranks[0] + ranks[0] - 1
        nbytes, per_rank = _common(nbytes, (per_rank[0] * ranks[0], most)), (0, LARGEST)
    filled = Box(nbytes, per_rank, ranks, nodes, per_node, box.nvlink_domains, box.registered, box.pipelined)
    return None if any(low > high for low, high in filled) or not _has_a_size(filled) else filled


def minus(box: Box, other: Box) -> Iterator[Box]:
    """The parts of ``box`` outside of ``other``, which do not overlap."""
    if any(low > high for low, high in map(_common, box, other)):
        yield box
        return
    rest = box
    for field, (low, high), (other_low, other_high) in zip(Box._fields, box, other, strict=True):
        if low < other_low:
            yield rest._replace(**{field: (low, other_low - 1)})
        if high > other_high:
            yield rest._replace(**{field: (other_high + 1, high)})
        rest = rest._replace(**{field: (max(low, other_low), min(high, other_high))})


_GROUP = 256  # number of neighbours that are compared together


MOST_MEETINGS = 20_000_000  # most pairs of overlapping boxes; 6,000 rows that all overlap have fewer


class Boxes:
    """Many boxes, with an index to find those that overlap with a given box.

    None stands for an empty box, which overlaps with no other.
    """

    def __init__(self, boxes: Sequence[Box | None], most_meetings: int = MOST_MEETINGS) -> None:
        empty = [(1, 0)] * len(Box._fields)
        ends = np.array([empty if box is None else box for box in boxes], np.uint64).reshape(-1, len(Box._fields), 2)
        self.lows, self.highs = ends.transpose(2, 1, 0).copy()  # arrays [field][box]
        starts = np.arange(0, len(boxes), _GROUP)
        # A box around all boxes of a group. Rows are mostly in the order of their sizes, so that few groups overlap
        # with a given box.
        self._group_lows = np.minimum.reduceat(self.lows, starts, axis=1) if boxes else self.lows
        self._group_highs = np.maximum.reduceat(self.highs, starts, axis=1) if boxes else self.highs
        self._above: tuple[int, list[list[int]]] = -1, []
        self._most = self._left = most_meetings

    def above(self, number: int) -> list[int]:
        """Indices of the boxes that overlap with the box ``number`` and come before it.

        Calls are fast if their numbers ascend.
        """
        group, at = divmod(number, _GROUP)
        if group != self._above[0]:
            self._above = group, self._group_above(slice(group * _GROUP, (group + 1) * _GROUP))
        return self._above[1][at]

    def _group_above(self, own: slice) -> list[list[int]]:
        """For each box of a group, the indices of overlapping boxes above it, found group by group."""
        ends = self.lows[:, own, None], self.highs[:, own, None]  # arrays [field][own box][other]
        found: list[list[int]] = [[] for _ in range(ends[0].shape[1])]
        groups = own.start // _GROUP
        holding = np.stack((ends[0][:, :, 0].min(axis=1), ends[1][:, :, 0].max(axis=1)), axis=1)
        near = _meet(self._group_lows[:, : groups + 1], self._group_highs[:, : groups + 1], holding)
        for start in (np.flatnonzero(near) * _GROUP).tolist():
            others = slice(start, start + _GROUP)
            meets = (self.lows[:, None, others] <= ends[1]) & (self.highs[:, None, others] >= ends[0])
            for at, other in zip(*np.nonzero(meets.all(axis=0)), strict=True):
                if start + other < own.start + at:
                    found[at].append(start + int(other))
            self._found(int(meets.sum()))
        return found

    def _found(self, count: int) -> None:
        """Adds to the count of overlaps. BadTable if there are too many for a reasonable time."""
        self._left -= count
        if self._left < 0:
            raise BadTable(f"the table: over {self._most:,} pairs of rows meet; valid: fewer, and none twice")

    def meeting(self, box: Box, first: int, last: int) -> list[int]:
        """Indices from ``first`` to ``last`` (excluded) of boxes that overlap with ``box``."""
        groups = slice(first // _GROUP, -(-last // _GROUP))
        near = _meet(self._group_lows[:, groups], self._group_highs[:, groups], box)
        found = list[int]()
        for group in np.flatnonzero(near) + groups.start:
            own = slice(max(first, int(group) * _GROUP), min(last, (int(group) + 1) * _GROUP))
            meets = _meet(self.lows[:, own], self.highs[:, own], box)
            found += (np.flatnonzero(meets) + own.start).tolist()
        self._found(len(found))
        return found


def _meet(lows: NDArray[np.uint64], highs: NDArray[np.uint64], box: Box | NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each box overlaps with a given one; ``lows`` and ``highs`` are arrays [field][box]."""
    ends = np.array(box, np.uint64)
    each = (lows <= ends[:, 1:]) & (highs >= ends[:, :1])
    meets: NDArray[np.bool_] = np.logical_and.reduce(each, axis=0)
    return meets


class TooManyOverlaps(Exception):
    """Raised if there are too many parts to compute in a reasonable time."""


def uncovered(box: Box, others: Iterable[Box], most_parts: int = 5000) -> list[Box]:
    """The parts of ``box`` that are in none of ``others``. TooManyOverlaps if there are more than ``most_parts``."""
    parts = [box]
    for other in others:
        parts = [part for old in parts for rest in minus(old, other) if (part := _filled(rest)) is not None]
        if not parts:
            break
        if len(parts) > most_parts:
            raise TooManyOverlaps
    return parts


def covered(box: Box, others: Sequence[Box]) -> bool:
    """Whether ``others`` together cover ``box``. TooManyOverlaps if that cannot be computed in a reasonable time."""
    axis = "bytes" if box.bytes_per_rank == (0, LARGEST) else "bytes_per_rank"
    rest = box._replace(**{axis: (0, LARGEST)})
    # Most rows differ only in their sizes. Those are merged first, and what they leave is examined completely.
    whole, partial = [], []
    for other in others:
        if _holds(other._replace(**{axis: (0, LARGEST)}), rest):
            whole.append(getattr(other, axis))
        else:
            partial.append(other)
    gaps = list(_between(getattr(box, axis), sorted(whole)))
    if not gaps or not partial:
        return not gaps
    parts = [part for gap in gaps if (part := _filled(box._replace(**{axis: gap}))) is not None]
    if any(_has_a_free_corner(part, partial) for part in (parts[0], parts[-1])):
        return False
    return all(not uncovered(part, [other for other in partial if common(part, other)]) for part in parts)


def _holds(outer: Box, inner: Box) -> bool:
    return all(left[0] <= right[0] and right[1] <= left[1] for left, right in zip(outer, inner, strict=True))


def _between(whole: Range, taken: Sequence[Range]) -> Iterator[Range]:
    """Yields the parts of ``whole`` between the given ranges, which are in ascending order."""
    start, last = whole
    for low, high in taken:
        if low > start:
            yield start, min(low - 1, last)
        start = max(start, high + 1)
        if start > last:
            return
    yield start, last


def _has_a_free_corner(box: Box, others: Sequence[Box]) -> bool:
    """Whether a corner of ``box`` lies in none of the others, which quickly proves that they do not cover it."""
    index = Boxes(others)
    for nbytes, ranks, nodes, registered, pipelined in product(
        *({(end, end) for end in ends} for ends in (box.bytes, box.ranks, box.nodes, box.registered, box.pipelined))
    ):
        corner = _filled(
            box._replace(bytes=nbytes, ranks=ranks, nodes=nodes, registered=registered, pipelined=pipelined)
        )
        if corner is not None and not index.meeting(corner, 0, len(others)):
            return True
    return False


def _has_a_size(box: Box) -> bool:
    """Whether, for some number of ranks in the box, a size fits both the range of bytes and that of bytes per rank."""
    (low, high), (low_per_rank, high_per_rank) = box.bytes, box.bytes_per_rank
    fewest = max(box.ranks[0], -(-(low + 1) // (high_per_rank + 1)))
    return fewest <= (box.ranks[1] if low_per_rank == 0 else min(box.ranks[1], high // low_per_rank))


def _range(interval: Span, most: int) -> Range:
    return interval.low, most if interval.high is None else interval.high


def _common(one: Range, other: Range) -> Range:
    return max(one[0], other[0]), min(one[1], other[1])


def _one(numbers: Range) -> bool:
    return numbers[0] == numbers[1]

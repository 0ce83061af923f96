"""Polygons over sizes and ranks in which aws-ofi-nccl's tuner names an algorithm and a protocol, in its own arithmetic.

A point of the plane is (nBytes, ranks), as doubles or their logarithms. Where the tuner computes in C's long double,
this module uses NumPy's: on x86 both have 80 bits; elsewhere NumPy's is wider or a double, and the answer for points on
an edge may differ.

Source: src/tuner/nccl_ofi_regions.cpp, v1.21.1; the records of the regions hold the differences between releases.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import AlgoProto
from tuner.base.numerics import SizeArray

MOST_BYTES = 100.0 * 1024 * 1024 * 1024  # TUNER_MAX_SIZE    include/tuner/nccl_ofi_tuner_region.h
MOST_RANKS = 1024.0 * 1024  # TUNER_MAX_RANKS
EPSILON = 1e-10  # is_inside_region
TINY = 1e-6  # the tuner replaces 0 by this before it takes the logarithm, transform_log2

AROUND = 8  # sizes on both sides of a size at which something may change

Doubles = NDArray[np.float64]
Points = tuple[tuple[float, float], ...]
Vertex = str | Sequence[Any]  # the name of an extended point, or two coordinates


def log2_of(value: float) -> float:
    """Logarithm to base 2 as the C library computes it; NumPy's result differs on some processors."""
    return math.log2(value or TINY)


@dataclass(frozen=True, slots=True)
class Plane:
    """How a release of the tuner computes with points: its scale, its floating-point type, and how far it extends
    lines.

    If ``nearer`` is true, a line through two points ends at the first of the two bounds (most bytes, most ranks) that
    it reaches. If ``nearer`` is false, it ends at the second.
    """

    log2: bool
    long_double: bool
    nearer: bool

    def scaled(self, value: float) -> float:
        """A coordinate in the plane's scale."""
        return log2_of(value) if self.log2 else value

    def scaled_sizes(self, sizes: SizeArray) -> Doubles:
        """Sizes in bytes, [size], in the plane's scale."""
        values = sizes.astype(np.float64)
        return np.fromiter(map(log2_of, values.tolist()), np.float64, len(values)) if self.log2 else values

    @property
    def crossing(self) -> type[np.floating[Any]]:
        """The floating-point type of the parameter at which two lines cross."""
        return np.longdouble if self.long_double else np.float64

    def extended(self, first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
        """The end of the line through two points, at the most bytes or the most ranks (extend_region)."""
        ax, ay, bx, by, most_x, most_y = map(self.scaled, (*first, *second, MOST_BYTES, MOST_RANKS))
        if ax == bx:
            end = ax, most_y
        elif ay == by:
            end = most_x, ay
        else:
            slope = (ay - by) / (ax - bx)
            offset = by - slope * bx
            at_most_x = slope * most_x + offset
            inside = at_most_x < most_y if self.nearer else at_most_x > most_y
            end = (most_x, at_most_x) if inside else ((most_y - offset) / slope, most_y)
        return (math.pow(2.0, end[0]), math.pow(2.0, end[1])) if self.log2 else end


@dataclass(frozen=True)  # no slots, so that computed values can be stored
class Region:
    """One polygon, with the vertices of the release's source."""

    algo_proto: AlgoProto
    vertices: Points
    plane: Plane

    @cached_property
    def _scaled(self) -> tuple[Doubles, Doubles]:
        scaled = [(self.plane.scaled(x), self.plane.scaled(y)) for x, y in self.vertices]
        x, y = np.array(scaled, np.float64).T
        return x, y

    @cached_property
    def _keeps_foot(self) -> bool:
        """Whether an edge of length 0 reuses the foot of the perpendicular that was computed for the edge before it.

        Through 1.18.0 the source never sets the foot for such an edge, so that compiled code finds the old value on the
        stack.
        """
        return not self.plane.log2 and any(
            a == b for a, b in zip(self.vertices, self.vertices[1:] + self.vertices[:1], strict=True)
        )

    @cached_property
    def _box(self) -> tuple[float, float, float, float]:
        x, y = self._scaled
        return float(x.min()), float(x.max()), float(y.min()), float(y.max())

    def holds(self, at_bytes: Doubles, at_ranks: float) -> NDArray[np.bool_]:
        """The sizes whose point with this number of ranks is inside the polygon or on an edge, as a mask [size]; both
        are scaled."""
        x, y = self._scaled
        least_x, most_x, least_y, most_y = self._box
        # Only points near the polygon's box can be on an edge: an edge counts as slightly longer at both ends, or as an
        # endless line if a foot is left over.
        beyond = math.inf if self._keeps_foot else 2 * EPSILON * (1 + abs(most_x) + abs(most_y))
        inside = np.zeros(at_bytes.shape, np.bool_)
        if not least_y - beyond <= at_ranks <= most_y + beyond:
            return inside
        near = np.flatnonzero((at_bytes >= least_x - beyond) & (at_bytes <= most_x + beyond))
        if not len(near):
            return inside
        points = at_bytes[near]
        found = np.zeros(points.shape, np.bool_)
        ends = list(zip(x.tolist(), y.tolist(), np.roll(x, -1).tolist(), np.roll(y, -1).tolist(), strict=True))
        left_over = None
        for end in ends:
            if self._keeps_foot and end[:2] == end[2:]:
                assert left_over is not None  # no region begins with such an edge
                found |= left_over < EPSILON
                continue
            on_edge, left_over = _on_edge(self.plane.crossing, points, at_ranks, end)
            found |= on_edge
        if not found.all() and least_y <= at_ranks <= most_y:
            boxed = (points >= least_x) & (points <= most_x) & ~found
            far = self.plane.scaled(2.0 * MOST_BYTES), self.plane.scaled(2.0 * MOST_RANKS)
            crossed = np.zeros(points.shape, np.int64)
            for end in ends:
                crossed += _crosses(self.plane.crossing, points, at_ranks, far, end)
            found |= boxed & (crossed % 2 == 1)
        inside[near] = found
        return inside

    def may_flicker(self, ranks: int) -> bool:
        """Whether points with this many ranks lie on a level edge of a linear plane, where rounding decides which are
        inside.

        With 80-bit numbers all these points count as on the edge if products of the edge's coordinates fit into 53
        bits. The exception is an edge that is followed by one of length zero: for that one the tuner uses what it
        computed for the edge before.
        """
        if self.plane.log2:
            return False
        x, y = self._scaled
        level = np.flatnonzero((y == ranks) & (np.roll(y, -1) == ranks))
        if not self.plane.long_double:
            return bool(len(level))
        following = (np.roll(x, -1) == np.roll(x, -2)) & (np.roll(y, -1) == np.roll(y, -2))
        if following[level].any():
            return True
        ends = zip(x[level].tolist(), np.roll(x, -1)[level].tolist(), strict=True)
        return any(max(first, second) * _odd(abs(second - first)) >= 2.0**53 for first, second in ends)

    def breaks(self, ranks: int) -> Iterator[int]:
        """Sizes in bytes near which a point with this many ranks may enter or leave the polygon.

        At these sizes the point, or the ray from it, crosses an edge or the end of one; a ray that meets an edge at its
        end misses it.
        """
        x, y = self._scaled
        at, far = self.plane.scaled(float(ranks)), self.plane.scaled(2.0 * MOST_RANKS)
        far_x = self.plane.scaled(2.0 * MOST_BYTES)
        places = set[float]()
        for ax, ay, bx, by in zip(
            x.tolist(), y.tolist(), np.roll(x, -1).tolist(), np.roll(y, -1).tolist(), strict=True
        ):
            if ay != by:
                places.add(ax + (at - ay) / (by - ay) * (bx - ax))
            # Near the end of an edge, and near the places where the edge begins and ceases to count
            for along in (-EPSILON, 0.0, EPSILON):
                end_x, end_y = ax + along * (bx - ax), ay + along * (by - ay)
                other_x, other_y = bx - along * (bx - ax), by - along * (by - ay)
                for px, py in ((end_x, end_y), (other_x, other_y)):
                    places.add(px)
                    if py != far:
                        places.add(px - (py - at) * (far_x - px) / (far - py))
        for place in places:
            size = 2.0 ** min(max(place, -1.0), 63.0) if self.plane.log2 else place
            if 0 <= size < 2**62:
                whole = round(size)
                yield from (each for each in range(whole - AROUND, whole + AROUND + 1) if each > 0)


def _odd(value: float) -> float:
    """The largest odd divisor of a value, 0 for 0; 2**53 if it is not whole."""
    if value != int(value):
        return 2.0**53
    whole = int(value)
    return float(whole // (whole & -whole)) if whole else 0.0


def _on_edge(
    crossing: Any, x: Doubles, y: float, end: tuple[float, float, float, float]
) -> tuple[NDArray[np.bool_], Doubles]:
    """A mask of the points that are on the edge, and the distance of each point from the edge's line (distance).

    Such points are within EPSILON of the edge on one side of it, or within EPSILON of an end on either side.
    """
    ax, ay, bx, by = end
    edge_x, edge_y = bx - ax, by - ay
    normal_x, normal_y = (x + edge_y) - x, (y - edge_x) - y
    determinant = edge_x * normal_y - edge_y * normal_x
    parallel = np.abs(determinant) < EPSILON
    safe = np.where(parallel, 1.0, determinant)
    numerator = (x * normal_y - y * normal_x) - (ax * normal_y - ay * normal_x)
    along = numerator.astype(crossing) / safe
    foot_x, foot_y = (ax + along * edge_x).astype(np.float64), (ay + along * edge_y).astype(np.float64)
    off_x, off_y = foot_x - x, foot_y - y
    distance = np.sqrt(off_x * off_x + off_y * off_y)
    across = ((x * edge_y - y * edge_x) - (ax * edge_y - ay * edge_x)) / safe
    at_end = (along < EPSILON) | (along > 1 - EPSILON)
    facing = at_end | ((across >= 0) & (across <= 1))
    near: NDArray[np.bool_] = (distance < EPSILON) & (along >= -EPSILON) & (along <= 1 + EPSILON) & facing
    return near & ~parallel, distance


def _crosses(
    crossing: Any, x: Doubles, y: float, far: tuple[float, float], end: tuple[float, float, float, float]
) -> NDArray[np.bool_]:
    """The points whose ray to ``far`` crosses the edge (intersect), as a mask. A ray that meets an end of the edge does
    not count."""
    ax, ay, bx, by = end
    ray_x, ray_y = far[0] - x, far[1] - y
    edge_x, edge_y = bx - ax, by - ay
    determinant = edge_x * ray_y - edge_y * ray_x
    parallel = np.abs(determinant) < EPSILON
    safe = np.where(parallel, 1.0, determinant)
    along = ((x * ray_y - y * ray_x) - (ax * ray_y - ay * ray_x)).astype(crossing) / safe
    across = ((x * edge_y - y * edge_x) - (ax * edge_y - ay * edge_x)) / safe
    within = (along >= EPSILON) & (along <= 1 - EPSILON)
    return within & (across >= 0) & (across <= 1) & ~parallel


@cache
def regions_of(plane: Plane, extended: tuple[Any, ...], rows: tuple[Any, ...]) -> tuple[Region, ...]:
    """The polygons that a table's rows describe.

    A row of ``extended`` is a name and two points; a row of ``rows`` is a cell (algorithm and protocol) and its
    vertices.
    """
    points = {name: plane.extended(_point({}, a), _point({}, b)) for name, a, b in extended}
    return tuple(
        Region(algo_proto, tuple(_point(points, vertex) for vertex in vertices), plane)
        for algo_proto, *vertices in rows
    )


def _point(extended: Mapping[str, tuple[float, float]], vertex: Vertex) -> tuple[float, float]:
    if isinstance(vertex, str):
        return extended[vertex]
    x, y = (_coordinate(extended, each, most) for each, most in zip(vertex, (MOST_BYTES, MOST_RANKS), strict=True))
    return x, y


def _coordinate(extended: Mapping[str, tuple[float, float]], value: float | str, most: float) -> float:
    """The value of a coordinate, which is a number, ``most`` (the plane's bound), or an extended point's coordinate
    such as ``ring_simple.x``."""
    if not isinstance(value, str):
        return float(value)
    if value == "most":
        return most
    name, _, axis = value.rpartition(".")
    return extended[name]["xy".index(axis)]

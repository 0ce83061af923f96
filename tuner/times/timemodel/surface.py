"""What measurements say beyond the form, smoothed over sizes and nodes: residuals, and how large they are where.

A curve belongs to a collective, an algorithm and protocol, the GPUs of a node and a number of nodes. Between two
numbers of nodes that were measured it is interpolated; beyond them the nearest holds; GPUs of a node that were never
measured have none.

Shapes: what is added to logarithms are numbers without a unit, [half octave of bytes] in curves, [call] for calls.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.times.timemodel.features import Array, Features

PER_OCTAVE = 2  # points of a curve
POINTS = 50 * PER_OCTAVE
_WIDTH_NODES = 0.6  # of the Gaussian that smooths, in powers of two of the nodes
_LEAST = 5e-4

Key = tuple[int, int, int, int]  # collective, algorithm and protocol, GPUs per node, 1 where there are several nodes


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Natural logarithms to add, [half octave of bytes from ``first``], for calls like those of ``key``."""

    key: Key
    nodes: int
    first: int
    values: Array

    def spread(self) -> Array:
        """The values on all half octaves; beyond what was measured they fade, to half with each octave."""
        places = np.arange(POINTS)
        last = self.first + len(self.values) - 1
        nearest = np.clip(places, self.first, last)
        faded: Array = self.values[nearest - self.first] * 0.5 ** (np.abs(places - nearest) / PER_OCTAVE)
        return faded


class Surface:
    """Curves, looked up together."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        self.curves = tuple(curves)
        by_key: dict[Key, list[Curve]] = defaultdict(list)
        for curve in self.curves:
            by_key[curve.key].append(curve)
        self._tables = {
            key: (np.log2([each.nodes for each in several]), np.stack([each.spread() for each in several]))
            for key, unsorted in by_key.items()
            for several in [sorted(unsorted, key=lambda curve: curve.nodes)]
        }

    def log_factors(self, calls: Features) -> Array:
        """What to add to the logarithm of each call's time, [call]."""
        factors = np.zeros(len(calls))
        places = np.clip(np.log2(calls.bytes) * PER_OCTAVE, 0, POINTS - 1)
        for key, which in _groups(calls).items():
            if key in self._tables:
                factors[which] = _bilinear(*self._tables[key], np.log2(calls.nodes[which]), places[which])
        return factors


@dataclass(frozen=True, slots=True)
class _Smoothing:
    """``octaves``: width of the Gaussian; ``prior``: what is believed of all calls, weighing as so many rows nearby."""

    octaves: float
    prior: float
    prior_weight: float


_OF_RESIDUALS = _Smoothing(octaves=0.5, prior=0.0, prior_weight=0.5)
_OF_SIZES = _Smoothing(octaves=1.0, prior=1.0, prior_weight=6.0)


def learnt(calls: Features, residuals: Array) -> Surface:
    """The surface that ``residuals`` draw: logarithms of measured over the form's times, [call]."""
    return Surface([each for each in _smoothed(calls, residuals, _OF_RESIDUALS) if np.abs(each.values).max() > _LEAST])


def spread(calls: Features, sizes: Array) -> Surface:
    """The logarithms of how large errors are near each call; ``sizes`` of errors, 1 where they are as usual, [call]."""
    return Surface([replace(each, values=np.log(each.values)) for each in _smoothed(calls, sizes, _OF_SIZES)])


def _smoothed(calls: Features, numbers: Array, by: _Smoothing) -> Iterator[Curve]:
    for key, which in _groups(calls).items():
        log_nodes, log_bytes = np.log2(calls.nodes[which]), np.log2(calls.bytes[which])
        first = int(np.floor((log_bytes.min() - by.octaves) * PER_OCTAVE))
        last = int(np.ceil((log_bytes.max() + by.octaves) * PER_OCTAVE))
        grid = np.arange(max(first, 0), min(last, POINTS - 1) + 1)
        away = np.subtract.outer(grid / PER_OCTAVE, log_bytes) / by.octaves
        for nodes in np.unique(calls.nodes[which]).tolist():
            weights = np.exp(-(away**2 + ((np.log2(nodes) - log_nodes) / _WIDTH_NODES) ** 2) / 2)
            values = weights @ numbers[which] + by.prior * by.prior_weight
            yield Curve(key, int(nodes), int(grid[0]), values / (weights.sum(axis=1) + by.prior_weight))


def _groups(calls: Features) -> dict[Key, np.ndarray[tuple[int], np.dtype[np.intp]]]:
    local = np.round(calls.ranks / calls.nodes).astype(np.int64)
    columns = calls.collective, calls.algo_proto, local, (calls.nodes > 1).astype(np.int64)
    # One number a key, as numbers are told apart quicker than rows of them.
    numbers = np.ravel_multi_index(columns, [int(column.max(initial=0)) + 1 for column in columns])
    groups: dict[Key, np.ndarray[tuple[int], np.dtype[np.intp]]] = {}
    for number in np.unique(numbers):
        which = np.flatnonzero(numbers == number)
        collective, algo_proto, gpus, several = (int(column[which[0]]) for column in columns)
        groups[collective, algo_proto, gpus, several] = which
    return groups


def _bilinear(axis: Array, table: Array, log_nodes: Array, places: Array) -> Array:
    low = np.clip(np.searchsorted(axis, log_nodes, side="right") - 1, 0, max(len(axis) - 2, 0))
    high = np.minimum(low + 1, len(axis) - 1)
    width = np.where(high > low, axis[high] - axis[low], 1.0)
    share = np.clip((log_nodes - axis[low]) / width, 0, 1)
    place = np.minimum(places.astype(np.int64), POINTS - 2)
    rest = places - place
    lower = table[low, place] * (1 - rest) + table[low, place + 1] * rest
    upper = table[high, place] * (1 - rest) + table[high, place + 1] * rest
    smooth: Array = lower * (1 - share) + upper * share
    return smooth

"""Errors that a calibrated time on one node may have: 90 % intervals by kind of extrapolation, learnt on held-out
machines. Intervals of times between nodes are in ``sites``.

Half an interval is the scatter of the machine's own times around a fit that has not seen their sizes, near the call,
times a factor. The measurements of a calibration have a scope, and a call outside of this scope needs an extrapolation:
to sizes beyond the measured ones, to another number of GPUs per node, to another release, machine or collective, or to
an algorithm and protocol that were never measured. Each extrapolation adds, as independent errors add, a factor of its
own in units of the scatter: the 90 % quantile of the errors that were seen when just that was held out (``nccl-tuner
fit accuracy``). For most (``BEYOND``) the error does not depend on the scatter: their factor is half the interval
itself.

Shapes: arrays of logarithms have one element per call, [call], or for a curve one per octave of sizes, [octave of
bytes]. Times are in us.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import ALGO_PROTOS, Algorithm, Protocol
from tuner.base.numerics import distinct
from tuner.times.timemodel.features import Array, Features, Numbers, exp, least, log2, most, sqrt, where

POINTS = 50  # points of a curve, one per octave
_LEAST = 5e-4

Key = tuple[int, int, int]  # collective, algorithm and protocol, GPUs per node


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceCurve:
    """Natural logarithms to add for calls of the kind ``key``, numbers [octave of bytes]: from ``first`` on, every
    ``step`` octaves.
    """

    key: Key
    first: int
    values: Array
    step: int = 1

    def filled(self) -> Array:
        """The values on all octaves; beyond the measured octaves, the nearest value is halved with each octave."""
        places = np.arange(POINTS)
        known = self.first + self.step * np.arange(len(self.values))
        nearest = np.clip(places, known[0], known[-1])
        faded: Array = np.interp(nearest, known, self.values) * 0.5 ** (np.abs(places - nearest))
        return faded


class Surface:
    """A set of curves that are looked up together."""

    def __init__(self, curves: Sequence[SurfaceCurve]) -> None:
        self.curves = tuple(curves)
        self._tables = {each.key: (row, np.diff(row)) for each in self.curves for row in [each.filled()]}

    def log_factors(self, calls: Features) -> Numbers:
        """Number to add to the logarithm of each call's time, [call], or of the one call."""
        places = least(most(log2(calls.bytes), 0.0), POINTS - 1.0)
        groups = _groups(calls)
        if len(groups) == 1:
            return self._at(next(iter(groups)), places)
        factors = np.zeros(len(calls))
        for key, which in groups.items():
            factors[which] = self._at(key, places[which])
        return factors

    def _at(self, key: Key, places: Numbers) -> Numbers:
        if key not in self._tables:
            return places * 0.0
        row, steps = self._tables[key]
        nearest = least(places, POINTS - 2.0)
        first = nearest.astype(np.int64) if isinstance(nearest, np.ndarray) else int(nearest)
        return row[first] + (places - first) * steps[first]


@dataclass(frozen=True, slots=True)
class _Smoothing:
    """``octaves``: width of the Gaussian; ``prior``: the value believed without rows; ``prior_weight``: its weight, in
    nearby rows. ``least_rows``: rows needed for a value.
    """

    octaves: float
    prior: float
    prior_weight: float
    least_rows: float


_OF_RESIDUALS = _Smoothing(octaves=0.5, prior=0.0, prior_weight=0.5, least_rows=1.0)
_OF_SIZES = _Smoothing(octaves=1.0, prior=1.0, prior_weight=6.0, least_rows=0.0)


def learnt(calls: Features, residuals: Array, most_values: int) -> Surface:
    """The surface through ``residuals``: logarithms of measured over the form's times, [call].

    ``most_values``: how many values all curves may have together; the curves with the fewest rows per value are dropped
    first.
    """
    curves = _affordable(calls, residuals, _OF_RESIDUALS, _groups(calls), most_values)
    return Surface([each for each in curves if np.abs(each.values).max() > _LEAST])


def spread(calls: Features, sizes: Array, most_values: int) -> list[SurfaceCurve]:
    """Curves of the logarithms of how large errors are near a call.

    ``sizes``: how large the error of each call is, numbers [call]; 1 is usual.

    One curve for the calls of each algorithm and protocol, whatever their collective and number of GPUs.
    """
    numbers = np.unique(calls.algo_proto).tolist()
    groups = {(0, number, 0): np.flatnonzero(calls.algo_proto == number) for number in numbers}
    curves = _affordable(calls, sizes, _OF_SIZES, groups, most_values)
    return [replace(each, values=np.log(each.values)) for each in curves]


def _affordable(
    calls: Features, numbers: Array, by: _Smoothing, groups: Mapping[Key, slice | NDArray[np.intp]], most_values: int
) -> list[SurfaceCurve]:
    """Curves with at most ``most_values`` values in all: those with most rows per value first, the last curve on every
    second octave.
    """
    curves = {key: _smoothed(key, calls, which, numbers, by) for key, which in groups.items()}
    rows = {key: len(calls.bytes[which]) / len(curves[key].values) for key, which in groups.items()}
    kept: dict[Key, SurfaceCurve] = {}
    for key in sorted((key for key in curves if rows[key] >= by.least_rows), key=lambda key: -rows[key]):
        curve = curves[key]
        if len(curve.values) > most_values:
            curve = _smoothed(key, calls, groups[key], numbers, by, step=2)
        if len(curve.values) > most_values:
            break
        most_values -= len(curve.values)
        kept[key] = curve
    return [kept[key] for key in curves if key in kept]


def shared(curves: Iterable[SurfaceCurve], scope: Iterable["Place"]) -> Surface:
    """A surface in which all measured collectives and numbers of GPUs share one curve per algorithm and protocol."""
    by_number = {curve.key[1]: curve for curve in curves}
    keys = {(place.collective, place.algo_proto, place.gpus_per_node) for place in scope}
    return Surface([replace(by_number[key[1]], key=key) for key in sorted(keys) if key[1] in by_number])


def _smoothed(
    key: Key, calls: Features, which: slice | NDArray[np.intp], numbers: Array, by: _Smoothing, step: int = 1
) -> SurfaceCurve:
    """The curve through the numbers of such calls, over the octaves that they cover, or every ``step`` th."""
    log_bytes = np.log2(calls.bytes[which])
    first, last = int(np.floor(log_bytes.min())), int(np.ceil(log_bytes.max()))
    grid = np.arange(first, min(last, POINTS - 1) + step, step)
    weights = np.exp(-((np.subtract.outer(grid, log_bytes) / by.octaves / step) ** 2) / 2)
    values = weights @ numbers[which] + by.prior * by.prior_weight
    return SurfaceCurve(key, first, values / (weights.sum(axis=1) + by.prior_weight), step)


def _groups(calls: Features) -> dict[Key, slice | NDArray[np.intp]]:
    columns = calls.collective, calls.algo_proto, calls.ranks / calls.nodes
    if not any(isinstance(column, np.ndarray) for column in columns):
        return {(int(columns[0]), int(columns[1]), round(columns[2])): slice(None)}
    # One number for each key, because numbers are compared faster than rows of them.
    whole = [np.broadcast_to(np.round(column), len(calls)).astype(np.int64) for column in columns]
    numbers = np.ravel_multi_index(whole, [int(column.max(initial=0)) + 1 for column in whole])
    groups: dict[Key, slice | NDArray[np.intp]] = {}
    for number in np.unique(numbers):
        which = np.flatnonzero(numbers == number)
        collective, algo_proto, gpus = (int(column[which[0]]) for column in whole)
        groups[collective, algo_proto, gpus] = which
    return groups


COVERED = 0.9
COVERED_SDS = 1.645  # half of an interval of a normal distribution that covers this share


class CarriedOver(StrEnum):
    """Kinds of extrapolation: differences between a predicted call and the measurements."""

    sizes = "sizes"
    sizes_beyond = "sizes beyond those measured"
    gpus = "GPUs per node"
    domain = "a larger NVLink domain than measured"
    release = "another release"
    collective = "another collective"
    combination = "an algorithm and protocol not measured"
    one_run = "other calls than those of one short run"
    machine = "another machine of the generation"
    site = "another site"
    nodes = "nodes that the site was not measured with"
    site_combination = "calls that the site was not measured with"
    site_release = "a release far from those that the site was measured with"


class Regime(StrEnum):
    """A group of calls whose times have similar errors."""

    node_low_latency = "LL and LL128 on one node"
    node_simple = "Simple on one node"
    node_nvls = "NVLS on one node"


BETWEEN_NODES = (CarriedOver.site, CarriedOver.nodes, CarriedOver.site_combination, CarriedOver.site_release)
ON_ONE_NODE = tuple(kind for kind in CarriedOver if kind not in BETWEEN_NODES)
# Kinds of extrapolation that have a factor: those on one node, and how certain many rows of a site are about calls near
# them.
WITH_FACTOR = (*ON_ONE_NODE, CarriedOver.nodes)
BEYOND = (
    CarriedOver.gpus,
    CarriedOver.release,
    CarriedOver.combination,
    CarriedOver.sizes_beyond,
    CarriedOver.domain,
    CarriedOver.one_run,
    CarriedOver.machine,
)
# The kinds that make a time an extrapolation, as its row then says. Another release or machine is named beside the
# table.
EXTRAPOLATED = (
    CarriedOver.sizes_beyond,
    CarriedOver.gpus,
    CarriedOver.domain,
    CarriedOver.collective,
    CarriedOver.combination,
    CarriedOver.one_run,
    *BETWEEN_NODES,
)
REGIMES = tuple(Regime)
Sizes = Mapping[tuple[int, int], tuple[float, float]]
Scatter = Mapping[Regime, float]  # mean absolute logarithm of measured times over those of a fit without their sizes
Factors = Mapping[CarriedOver, float]
# The scatter of a machine of which little was measured.
BELIEVED_SCATTER: Scatter = {
    Regime.node_low_latency: 0.025,
    Regime.node_simple: 0.035,
    Regime.node_nvls: 0.05,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a measurement: NCCL's release, the ids of collective and combination, GPUs per node, and nodes."""

    nccl: str
    collective: int
    algo_proto: int
    gpus_per_node: int
    nodes: int


def regimes(calls: Features) -> Numbers:
    """The regime of each call on one node, [call], or of the one call: numbers that index ``REGIMES``."""
    of_simple = where(calls.algorithm == Algorithm.NVLS, _NVLS, _SIMPLE)
    return where(calls.protocol == Protocol.Simple, of_simple, _LOW_LATENCY)


_LOW_LATENCY, _SIMPLE, _NVLS = map(REGIMES.index, (Regime.node_low_latency, Regime.node_simple, Regime.node_nvls))


@dataclass(frozen=True, eq=False)  # no slots, so that what places carry over is kept
class Certainty:
    """What is known about the errors of a fit: where its rows were measured, their scatter, and how errors grow with
    extrapolations.

    ``sizes``: the smallest and the largest measured bytes, by the numbers of collective and combination. ``spread``:
    the logarithm of the scatter near a call over that of its regime. ``same_machine``: whether the predicted machine is
    the measured one.
    """

    scope: frozenset[Place]
    sizes: "Sizes"
    scatter: Scatter
    spread: Surface
    factors: Factors
    same_machine: bool

    def carried_over(self, place: Place) -> tuple[CarriedOver, ...]:
        """The kinds of extrapolation that a call at ``place`` needs, apart from sizes."""
        if place not in self._of_places:
            self._of_places[place] = self._carried_over(place)
        return self._of_places[place]

    @cached_property
    def _of_places(self) -> dict[Place, tuple[CarriedOver, ...]]:
        return {}

    def _carried_over(self, place: Place) -> tuple[CarriedOver, ...]:
        carried = _carried_over(place, self.scope, self.same_machine)
        if len({(each.collective, each.gpus_per_node, each.nodes) for each in self.scope}) == 1:
            # One collective on one communicator: what it says about others was learnt as a whole.
            others = [kind for kind in carried if kind not in _OTHER_CALLS]
            carried = [*others, CarriedOver.one_run] if len(others) < len(carried) else carried
        return tuple(carried)

    def half_widths(self, calls: Features, place: Place, octaves_beyond: Numbers) -> Numbers:
        """Half the interval around the logarithm of each call's time at ``place``, [call]; dimensionless."""
        if place not in self._squares:
            self._squares[place] = self._squared_factors(self.carried_over(place))
        return self._half(calls, self._squares[place], octaves_beyond)

    def half_widths_of(self, calls: Features, carried: Iterable[CarriedOver]) -> Array:
        """Half the interval around the logarithm of each call's time, [call].

        The calls are assumed to need only the extrapolations ``carried`` and that to other sizes.
        """
        kinds = {CarriedOver.sizes, *carried}
        octaves = self.octaves_beyond(calls) if CarriedOver.sizes_beyond in kinds else 0.0
        half: Array = self._half(calls, self._squared_factors(kinds - {CarriedOver.sizes_beyond}), octaves)
        return half

    def _half(self, calls: Features, squares: tuple[float, float], octaves_beyond: Numbers) -> Numbers:
        scattered, alike = squares
        beyond, near = self.factors[CarriedOver.sizes_beyond], self._scatter_near(calls)
        return sqrt(scattered * (near * near) + alike + beyond * beyond * octaves_beyond)

    @cached_property
    def _squares(self) -> dict[Place, tuple[float, float]]:
        return {}

    def _squared_factors(self, kinds: Iterable[CarriedOver]) -> tuple[float, float]:
        """The factor on the squared scatter, and the square that is added."""
        square = {kind: self.factors[kind] ** 2 for kind in kinds}
        scattered = sum(each for kind, each in square.items() if kind not in BEYOND)
        return scattered, sum(each for kind, each in square.items() if kind in BEYOND)

    def unit(self, kind: CarriedOver, calls: Features) -> Array:
        """The number by which the factor of ``kind`` is multiplied, for each call [call]; dimensionless."""
        if kind is CarriedOver.sizes_beyond:
            return np.asarray(np.sqrt(self.octaves_beyond(calls)))
        near: Array = np.broadcast_to(1.0 if kind in BEYOND else self._scatter_near(calls), len(calls))
        return near

    def octaves_beyond(self, calls: Features) -> Numbers:
        """The number of powers of two by which each size is outside of the measured sizes of such calls, [call]; 0 if
        no such call was measured.
        """
        log_bytes = log2(calls.bytes)
        kinds = calls.collective * len(ALGO_PROTOS) + calls.algo_proto
        if not isinstance(kinds, np.ndarray):
            return self._octaves_beyond(kinds, log_bytes)
        beyond = np.zeros(len(calls))
        for kind in distinct(kinds):
            beyond = np.where(kinds == kind, self._octaves_beyond(kind, log_bytes), beyond)
        return beyond

    def _octaves_beyond(self, kind: int, log_bytes: Numbers) -> Numbers:
        if kind not in self._log_sizes:
            return log_bytes * 0.0
        first, last = self._log_sizes[kind]
        octaves = most(log_bytes - last, first - log_bytes)
        # A size between two measured ones is as far from the nearer one as the largest size is from a measured one.
        return where(octaves > 1.01, octaves, 0.0)

    @cached_property
    def _log_sizes(self) -> dict[int, tuple[float, float]]:
        """Logarithms of the least and the most bytes, by collective and combination as one number."""
        return {
            collective * len(ALGO_PROTOS) + algo_proto: (float(np.log2(first)), float(np.log2(last)))
            for (collective, algo_proto), (first, last) in self.sizes.items()
        }

    def _scatter_near(self, calls: Features) -> Numbers:
        return self._by_regime[regimes(calls)] * exp(self.spread.log_factors(calls))

    @cached_property
    def _by_regime(self) -> Array:
        return np.array([self.scatter[regime] for regime in REGIMES])


_GPUS_OF_A_BOX = 8  # most GPUs of a node that is not a domain of several hosts
_OTHER_CALLS = (CarriedOver.collective, CarriedOver.gpus, CarriedOver.combination)


def _carried_over(place: Place, scope: frozenset[Place], same_machine: bool) -> list[CarriedOver]:
    known = frozenset(each for each in scope if each.nodes == 1) or scope
    carried = [CarriedOver.sizes]
    if not same_machine:
        carried.append(CarriedOver.machine)
    if place.nccl not in {each.nccl for each in known}:
        carried.append(CarriedOver.release)
    is_new = place.collective not in {each.collective for each in known}
    if is_new:
        carried.append(CarriedOver.collective)
    if place.algo_proto not in {each.algo_proto for each in known if each.collective == place.collective or is_new}:
        carried.append(CarriedOver.combination)
    gpus = {each.gpus_per_node for each in known}
    if place.gpus_per_node > max(gpus | {_GPUS_OF_A_BOX}):
        carried.append(CarriedOver.domain)
    elif place.gpus_per_node not in gpus:
        carried.append(CarriedOver.gpus)
    return carried

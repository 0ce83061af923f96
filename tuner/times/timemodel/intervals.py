"""How far off a calibrated time may be: 90 % intervals by what has to be carried over, learnt on machines held out.

Half an interval is the scatter of the machine's own times around a fit that has not seen their sizes, near the call,
times a factor. What a calibration was fitted to has a scope, and a call outside of it asks for something to be carried
over: to GPUs of a node, to nodes between or beyond those measured, to another release, machine or collective, or to an
algorithm and protocol that were never measured. What is measured on one node and what between nodes are two scopes.
Each adds, as independent errors add, a factor of its own: the 90 % quantile of what was seen where just that was held
out (``nccl-tuner accuracy``), in units of the scatter. What nothing like it was measured of (``BEYOND``) is off by as
much whatever the scatter is: there the factor is half the interval itself; with more nodes than measured it grows by
the square root of the doublings, as that of a random walk.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tuner.base.names import Algorithm, Protocol
from tuner.times.timemodel.features import Array, Features, Ints
from tuner.times.timemodel.surface import Surface

COVERED = 0.9


class CarriedOver(StrEnum):
    """What a prediction carries measurements over to."""

    sizes = "sizes"
    gpus = "GPUs per node"
    nodes_between = "nodes between those measured"
    nodes_beyond = "more nodes than measured"
    first_nodes = "several nodes, where one was measured"
    release = "another release"
    collective = "another collective"
    network_collective = "another collective between nodes"
    combination = "an algorithm and protocol not measured"
    network_combination = "an algorithm and protocol not measured between nodes"
    one_run = "other calls than those of one short run"
    machine = "another machine of the generation"


class Regime(StrEnum):
    """Calls whose times are off alike."""

    node_low_latency = "LL and LL128 on one node"
    node_simple = "Simple on one node"
    node_nvls = "NVLS on one node"
    network_low_latency = "LL and LL128 between nodes"
    network_simple = "Simple between nodes"


NOT_MEASURED = (CarriedOver.combination, CarriedOver.network_combination)
BEYOND = (
    *NOT_MEASURED,
    CarriedOver.network_collective,
    CarriedOver.nodes_beyond,
    CarriedOver.first_nodes,
    CarriedOver.one_run,
    CarriedOver.machine,
)
REGIMES = tuple(Regime)
Scatter = Mapping[Regime, float]  # mean absolute logarithm of measured times over those of a fit without their sizes
Factors = Mapping[CarriedOver, float]
# The scatter of a machine of which little is measured.
BELIEVED_SCATTER: Scatter = {
    Regime.node_low_latency: 0.025,
    Regime.node_simple: 0.035,
    Regime.node_nvls: 0.05,
    Regime.network_low_latency: 0.12,
    Regime.network_simple: 0.07,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was measured: NCCL's release, the collective's and combination's number, GPUs a node, nodes."""

    nccl: str
    collective: int
    algo_proto: int
    gpus_per_node: int
    nodes: int


def regimes(calls: Features) -> Ints:
    """The regime of each call, [call], numbers that index ``REGIMES``."""
    simple = calls.protocol == Protocol.Simple
    nvls = simple & (calls.algorithm == Algorithm.NVLS)
    on_one = np.where(simple, REGIMES.index(Regime.node_simple), REGIMES.index(Regime.node_low_latency))
    on_one = np.where(nvls, REGIMES.index(Regime.node_nvls), on_one)
    between = np.where(simple, REGIMES.index(Regime.network_simple), REGIMES.index(Regime.network_low_latency))
    return np.where(calls.nodes > 1, between, on_one)


@dataclass(frozen=True, slots=True, eq=False)
class Certainty:
    """What a fit knows: where its rows were measured, how they scatter, and how errors grow with what is carried over.

    ``spread``: the logarithm of the scatter near a call over that of its regime. ``same_machine``: whether what is
    predicted is the machine that was measured.
    """

    scope: frozenset[Place]
    scatter: Scatter
    spread: Surface
    factors: Factors
    same_machine: bool

    def carried_over(self, place: Place) -> tuple[CarriedOver, ...]:
        """What a call at ``place`` carries over."""
        carried = _carried_over(place, self.scope, self.same_machine)
        if len({(each.collective, each.gpus_per_node, each.nodes) for each in self.scope}) == 1:
            # One collective on one communicator: what it says of others was learnt as a whole.
            others = [kind for kind in carried if kind not in _OTHER_CALLS]
            carried = [*others, CarriedOver.one_run] if len(others) < len(carried) else carried
        if CarriedOver.first_nodes in carried:
            # Nothing was measured between nodes, whatever the algorithm: that was learnt as a whole, too.
            carried = [kind for kind in carried if kind not in NOT_MEASURED]
        return tuple(carried)

    def half_widths(self, calls: Features, place: Place) -> Array:
        """Half the interval around the logarithm of each call at ``place``, [call]; numbers without a unit."""
        return self.half_widths_of(calls, self.carried_over(place))

    def half_widths_of(self, calls: Features, carried: Iterable[CarriedOver]) -> Array:
        """The same numbers, [call], where just that is carried over, beside sizes."""
        kinds = {CarriedOver.sizes, *carried}
        half: Array = np.sqrt(sum((self.factors[kind] * self.unit(kind, calls)) ** 2 for kind in kinds))
        return half

    def unit(self, kind: CarriedOver, calls: Features) -> Array:
        """What the factor of ``kind`` multiplies, [call]; numbers without a unit."""
        if kind is CarriedOver.nodes_beyond:
            most = max(place.nodes for place in self.scope)
            return np.sqrt(np.maximum(np.log2(calls.nodes / most), 1.0))
        if kind is CarriedOver.first_nodes:
            return _believed_between_nodes(calls)
        return np.ones(len(calls)) if kind in BEYOND else self._scatter_near(calls)

    def _scatter_near(self, calls: Features) -> Array:
        by_regime = np.array([self.scatter[regime] for regime in REGIMES])
        near: Array = by_regime[regimes(calls)] * np.exp(self.spread.log_factors(calls))
        return near


def _believed_between_nodes(calls: Features) -> Array:
    simple, low_latency = (BELIEVED_SCATTER[each] for each in (Regime.network_simple, Regime.network_low_latency))
    return np.where(calls.protocol == Protocol.Simple, simple, low_latency)


_OTHER_CALLS = (CarriedOver.collective, CarriedOver.network_collective, CarriedOver.gpus, *NOT_MEASURED)


def _carried_over(place: Place, scope: frozenset[Place], same_machine: bool) -> list[CarriedOver]:
    several = place.nodes > 1
    alike = frozenset(each for each in scope if (each.nodes > 1) == several)
    nodes, known = {each.nodes for each in alike}, alike or scope
    carried = [CarriedOver.sizes]
    if not same_machine:
        carried.append(CarriedOver.machine)
    if place.nccl not in {each.nccl for each in known}:
        carried.append(CarriedOver.release)
    is_new = place.collective not in {each.collective for each in known}
    if is_new:
        carried.append(CarriedOver.network_collective if several and alike else CarriedOver.collective)
    if place.algo_proto not in {each.algo_proto for each in known if each.collective == place.collective or is_new}:
        carried.append(CarriedOver.network_combination if several else CarriedOver.combination)
    if place.gpus_per_node not in {each.gpus_per_node for each in known}:
        carried.append(CarriedOver.gpus)
    if not nodes:
        carried.append(CarriedOver.first_nodes)
    elif place.nodes > max(nodes):
        carried.append(CarriedOver.nodes_beyond)
    elif place.nodes not in nodes:
        carried.append(CarriedOver.nodes_between)
    return carried

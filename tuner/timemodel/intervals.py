"""How far off a calibrated time may be: 90 % intervals by what has to be carried over, learnt on machines held out.

Half an interval is the scatter of the machine's own measurements around the form, in the call's regime, times a factor.
What a calibration was fitted to has a scope, and a call outside of it asks for something to be carried over: to GPUs of
a node, to nodes between or beyond those measured, to another release, machine or collective, or to an algorithm and
protocol that were never measured. Each has a factor of its own, the 90 % quantile of the errors that were seen where
just that was held out, in units of the scatter (``nccl-tuner accuracy``). Several at once add as independent errors
do. What nothing like it was measured of (``BEYOND``) is off by as much whatever the scatter is: there the factor is
half the interval itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tuner.base.names import Algorithm, Protocol
from tuner.timemodel.features import Array, Features, Ints

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
BEYOND = (*NOT_MEASURED, CarriedOver.first_nodes, CarriedOver.nodes_beyond)
REGIMES = tuple(Regime)
Scatter = Mapping[Regime, float]  # mean absolute logarithm of measured times over the form's
Factors = Mapping[CarriedOver, float]


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

    ``same_machine``: whether what is predicted is the machine that was measured.
    """

    scope: frozenset[Place]
    scatter: Scatter
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

        """Half the interval around the logarithm of each call at ``place``, [call]; numbers without a unit."""
        least = self.factors[CarriedOver.sizes] ** 2
        kinds = tuple(carried)
        more = sum(max(self.factors[kind] ** 2 - least, 0.0) for kind in kinds if kind not in BEYOND)
        beyond = sum(self.factors[kind] ** 2 for kind in kinds if kind in BEYOND)
        by_regime = np.array([self.scatter[regime] for regime in REGIMES])
        half: Array = np.sqrt((least + more) * by_regime[regimes(calls)] ** 2 + beyond)
        return half


_OTHER_CALLS = (CarriedOver.collective, CarriedOver.gpus, *NOT_MEASURED)


def _carried_over(place: Place, scope: frozenset[Place], same_machine: bool) -> list[CarriedOver]:
    nodes = {each.nodes for each in scope if (each.nodes > 1) == (place.nodes > 1)}
    carried = [CarriedOver.sizes]
    if not same_machine:
        carried.append(CarriedOver.machine)
    if place.nccl not in {each.nccl for each in scope}:
        carried.append(CarriedOver.release)
    is_new = place.collective not in {each.collective for each in scope}
    if is_new:
        carried.append(CarriedOver.collective)
    if place.algo_proto not in {each.algo_proto for each in scope if each.collective == place.collective or is_new}:
        carried.append(CarriedOver.combination if place.nodes == 1 else CarriedOver.network_combination)
    if place.gpus_per_node not in {each.gpus_per_node for each in scope}:
        carried.append(CarriedOver.gpus)
    if not nodes:
        carried.append(CarriedOver.first_nodes)
    elif place.nodes > max(nodes):
        carried.append(CarriedOver.nodes_beyond)
    elif place.nodes not in nodes:
        carried.append(CarriedOver.nodes_between)
    return carried

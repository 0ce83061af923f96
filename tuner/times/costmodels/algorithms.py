"""The algorithms of an operation on a machine of nodes, as times that are linear in the size.

Shapes: scalars, or arrays that broadcast and are computed one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.errors import BadInput, one_of
from tuner.times.costmodels import twolevel
from tuner.times.costmodels.alphabeta import FORMULAS, Level, Linear, log2_rounds, terms
from tuner.times.costmodels.bandwidth import bus_gbs
from tuner.times.costmodels.checks import Array, whole
from tuner.times.costmodels.operations import Operation
from tuner.times.costmodels.overheads import Overheads
from tuner.times.costmodels.twolevel import Phase

HIERARCHICAL = "hierarchical"
Levels = tuple[Level | None, Level | None]


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """``parts_us`` are the model and what each overhead adds, their sum the time; ``latency_us`` is the model's."""

    time_us: Array
    busbw_gbs: Array
    latency_us: Array
    parts_us: dict[str, Array]
    phases_us: dict[str, Array]  # of the hierarchical one, as the next without overheads
    flat_us: Array | None  # what the first flat algorithm takes instead of the hierarchical one


def names(operation: Operation) -> list[str]:
    """The first is the one to take where none is named."""
    return [*FORMULAS[operation], *([HIERARCHICAL] if operation in twolevel.TWO_LEVEL else [])]


@dataclass(frozen=True, slots=True, eq=False)
class System:
    """``nodes`` of ``gpus_per_node``, any shapes that go together, and the ``levels`` inside and between them."""

    gpus_per_node: ArrayLike
    nodes: ArrayLike
    levels: Levels


def predict(
    operation: Operation,
    algorithm: str,
    nbytes: ArrayLike,
    system: System,
    overheads: Overheads,
) -> Prediction:
    """``levels`` are inside and between nodes. BadInput where one is missing, or the ranks do not allow it."""

    gpus_per_node, nodes, levels = system.gpus_per_node, system.nodes, system.levels

    def cost_on(change: Callable[[Level], Level]) -> Linear:
        intra, inter = (one and change(one) for one in levels)
        return cost(operation, algorithm, gpus_per_node, nodes, (intra, inter))

    plain = cost_on(lambda one: one)
    parts = overheads.parts_us(nbytes, cost_on)
    time = sum(parts.values(), start=np.asarray(0.0))
    two_level = algorithm == HIERARCHICAL
    phases = _phases(operation, gpus_per_node, nodes, levels) if two_level else ()
    flat = cost(operation, names(operation)[0], gpus_per_node, nodes, levels).time_us(nbytes) if two_level else None
    ranks = whole("gpus_per_node", gpus_per_node) * whole("nodes", nodes)
    return Prediction(
        time,
        bus_gbs(operation, nbytes, time, ranks),
        plain.fixed_us,
        parts,
        {phase.name: phase.cost.time_us(nbytes) for phase in phases},
        flat,
    )


def cost(operation: Operation, algorithm: str, gpus_per_node: ArrayLike, nodes: ArrayLike, levels: Levels) -> Linear:
    """A flat one goes at the network's pace where there are several nodes."""
    if algorithm == HIERARCHICAL:
        return twolevel.total(_phases(operation, gpus_per_node, nodes, levels))
    ranks = whole("ranks", whole("gpus_per_node", gpus_per_node) * whole("nodes", nodes), least=2)
    return terms(operation, algorithm, ranks).on(_slowest(whole("nodes", nodes) > 1, levels))


def _slowest(several: NDArray[np.bool_], levels: Levels) -> Level:
    """The network's where there are several nodes."""
    intra, inter = levels
    if inter is None and np.any(several):
        raise BadInput("no alpha and beta between nodes; valid: both of them")
    if intra is None and not np.all(several):
        raise BadInput("no alpha and beta inside a node; valid: both of them")
    inside, outside = intra or inter, inter or intra
    assert inside is not None
    assert outside is not None
    return Level(
        np.where(several, outside.alpha_us, inside.alpha_us), np.where(several, outside.beta_gbs, inside.beta_gbs)
    )


def costs(operation: Operation, gpus_per_node: int, nodes: int, levels: Levels) -> dict[str, Linear]:
    """By name: the flat ones that the ranks allow, and the hierarchical one where there are two levels."""
    return {
        name: cost(operation, name, gpus_per_node, nodes, levels)
        for name in names(operation)
        if _possible(name, gpus_per_node, nodes)
    }


def _possible(name: str, gpus_per_node: int, nodes: int) -> bool:
    ranks = gpus_per_node * nodes
    if name == HIERARCHICAL:
        return gpus_per_node > 1 and nodes > 1
    return name != "halving-doubling" or 2 ** float(log2_rounds(ranks)) == ranks


def _phases(operation: Operation, gpus_per_node: ArrayLike, nodes: ArrayLike, levels: Levels) -> tuple[Phase, ...]:
    if operation not in twolevel.TWO_LEVEL:
        raise BadInput(f"{operation.name} has no hierarchical algorithm; {one_of(FORMULAS[operation])}")
    intra, inter = levels
    if intra is None or inter is None:
        raise BadInput("hierarchical: alpha and beta of two levels; valid: inside a node and between nodes")
    return twolevel.TWO_LEVEL[operation](gpus_per_node, nodes, intra, inter)

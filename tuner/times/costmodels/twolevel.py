"""Collectives over nodes of several GPUs: one level inside a node, one between nodes.

With one GPU per node, or one node, they are the flat algorithms on the level that is left.

Shapes: scalars, or arrays that broadcast and are computed one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from tuner.times.costmodels.alphabeta import Level, Linear, Terms, terms
from tuner.times.costmodels.checks import Array, whole
from tuner.times.costmodels.operations import Operation


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """One after the other: ``operation`` over numbers of ``ranks`` of one level, of ``part`` of the bytes."""

    name: str
    operation: Operation
    inside: bool
    ranks: Array
    part: Array
    cost: Linear  # in bytes of the whole size


def allreduce(gpus_per_node: ArrayLike, nodes: ArrayLike, intra: Level, inter: Level) -> tuple[Phase, Phase, Phase]:
    """ReduceScatter in the node, AllReduce of each GPU's part between nodes, AllGather in the node; all are rings."""
    return (
        _inside(Operation.ReduceScatter, gpus_per_node, intra),
        _between(Operation.AllReduce, gpus_per_node, nodes, inter),
        _inside(Operation.AllGather, gpus_per_node, intra),
    )


def allgather(gpus_per_node: ArrayLike, nodes: ArrayLike, intra: Level, inter: Level) -> tuple[Phase, Phase]:
    """Each GPU gathers its part from its like on the other nodes, then the node gathers all parts."""
    return (
        _between(Operation.AllGather, gpus_per_node, nodes, inter),
        _inside(Operation.AllGather, gpus_per_node, intra),
    )


def reduce_scatter(gpus_per_node: ArrayLike, nodes: ArrayLike, intra: Level, inter: Level) -> tuple[Phase, Phase]:
    """The node reduces and scatters, then each GPU its part among its like on the other nodes."""
    return (
        _inside(Operation.ReduceScatter, gpus_per_node, intra),
        _between(Operation.ReduceScatter, gpus_per_node, nodes, inter),
    )


def alltoall(gpus_per_node: ArrayLike, nodes: ArrayLike, intra: Level, inter: Level) -> tuple[Phase, Phase]:
    """Pairwise: with the others of the node at its level, with everybody else over the network."""
    gpus, ranks = whole("gpus_per_node", gpus_per_node), whole("gpus_per_node", gpus_per_node) * whole("nodes", nodes)
    near, far = Terms(gpus - 1, (gpus - 1) / ranks), Terms(ranks - gpus, (ranks - gpus) / ranks)
    return (
        Phase("with the node", Operation.AllToAll, True, gpus, gpus / ranks, near.on(intra)),
        Phase("with other nodes", Operation.AllToAll, False, ranks, 1 - gpus / ranks, far.on(inter)),
    )


TWO_LEVEL: Mapping[Operation, Callable[[ArrayLike, ArrayLike, Level, Level], tuple[Phase, ...]]] = {
    Operation.AllReduce: allreduce,
    Operation.AllGather: allgather,
    Operation.ReduceScatter: reduce_scatter,
    Operation.AllToAll: alltoall,
}


def total(phases: Sequence[Phase]) -> Linear:
    """One phase after the other."""
    first, *others = phases
    cost = first.cost
    for phase in others:
        cost = cost + phase.cost
    return cost


def _inside(operation: Operation, gpus_per_node: ArrayLike, intra: Level) -> Phase:
    gpus = whole("gpus_per_node", gpus_per_node)
    return Phase(
        f"intra-node {operation.name}", operation, True, gpus, gpus / gpus, terms(operation, "ring", gpus).on(intra)
    )


def _between(operation: Operation, gpus_per_node: ArrayLike, nodes: ArrayLike, inter: Level) -> Phase:
    gpus, count = whole("gpus_per_node", gpus_per_node), whole("nodes", nodes)
    whole_size = terms(operation, "ring", count).on(inter)
    cost = Linear(whole_size.fixed_us * (gpus / gpus), whole_size.us_per_byte / gpus)
    return Phase(f"inter-node {operation.name}", operation, False, count, 1 / gpus, cost)

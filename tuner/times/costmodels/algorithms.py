"""Computes the times of an operation's algorithms on a machine with nodes; they are linear in the size.

Shapes: arguments are scalars, or arrays that broadcast; results are computed for each element.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.spelling import option
from tuner.times.costmodels.alphabeta import FORMULAS, Level, Linear, Terms, level, log2_rounds, terms
from tuner.times.costmodels.operations import Array, CostOperation, bus_gbs, not_negative, positive, share, whole

# The usual, the smallest and the largest value; for software in us, for the others as shares.
USUAL: Mapping[str, tuple[float, float]] = {
    "software": (10.0, 50.0),
    "protocol": (0.05, 0.15),
    "contention": (0.3, 0.5),
    "straggler": (0.05, 0.2),
}


@dataclass(frozen=True, slots=True, eq=False)
class Overheads:
    """Overheads of a call. ``software_us``: library, driver and launch. ``protocol`` (headers, checksums, repeats) and
    ``contention`` (other traffic): the shares of the bandwidth beta that these take. ``copy_gbs``: bandwidth of a copy
    to the memory from which the adapter reads. ``straggler``: how much longer the slowest rank takes, as a share of the
    time.
    """

    software_us: Array
    protocol: Array
    contention: Array
    copy_gbs: Array | None
    straggler: Array

    def parts_us(self, nbytes: ArrayLike, cost_on: Callable[[Callable[[Level], Level]], Linear]) -> dict[str, Array]:
        """The model's time and what each overhead adds to it, in order; their sum is the time.

        ``cost_on`` returns the model with its levels changed by a function.
        """
        model, protocol, loaded = (
            cost_on(partial(_with_share, share)).time_us(nbytes)
            for share in (0.0, self.protocol, 1 - (1 - self.protocol) * (1 - self.contention))
        )
        copy = copy_us(nbytes, self.copy_gbs) if self.copy_gbs is not None else 0 * model
        software = self.software_us + 0 * model
        return {
            "model": model,
            "protocol": protocol - model,
            "contention": loaded - protocol,
            "software": software,
            "copy": copy,
            "straggler": (loaded + software + copy) * self.straggler,
        }


def _with_share(taken: ArrayLike, level: Level) -> Level:
    return Level(level.alpha_us, level.beta_gbs * (1 - np.asarray(taken)))


def overheads(
    software_us: ArrayLike = 0.0,
    protocol: ArrayLike = 0.0,
    contention: ArrayLike = 0.0,
    copy_gbs: ArrayLike | None = None,
    straggler: ArrayLike = 0.0,
) -> Overheads:
    """The overheads of a model. BadInput for a value below 0, or one that uses up a whole link."""
    return Overheads(
        not_negative("software_us", software_us),
        share("protocol", protocol),
        share("contention", contention),
        None if copy_gbs is None else positive("copy_gbs", copy_gbs),
        not_negative("straggler", straggler),
    )


def copy_us(nbytes: ArrayLike, copy_gbs: ArrayLike) -> Array:
    """The time of a copy of the whole size, such as over PCIe, us."""
    time: Array = positive("bytes", nbytes) / (1000 * positive("copy_gbs", copy_gbs))
    return time


def loggp(latency_us: ArrayLike, overhead_us: ArrayLike, gap_us: ArrayLike, gbs: ArrayLike) -> Level:
    """Alpha and beta of steps that wait for each other, from the parameters of LogGP: ``latency_us`` L of the wire,
    ``overhead_us`` o of each processor, ``gap_us`` g between two messages, and ``gbs``, one over the gap G per byte.

    Alpha is L + 2 o, or g if g is longer. BadInput for times or a gap below 0, or a bandwidth that is not above 0.
    """
    alone_us = not_negative("latency_us", latency_us) + 2 * not_negative("overhead_us", overhead_us)
    return level(np.maximum(alone_us, not_negative("gap_us", gap_us)), positive("gbs", gbs))


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """One phase of a sequence: ``operation`` over ``ranks`` ranks of one level, with the share ``part`` of the
    bytes.
    """

    name: str
    operation: CostOperation
    inside: bool
    ranks: Array
    part: Array
    cost: Linear  # linear in the bytes of the whole size


def allreduce(gpus_per_node: ArrayLike, nodes: ArrayLike, intra: Level, inter: Level) -> tuple[Phase, Phase, Phase]:
    """ReduceScatter in the node, AllReduce of each GPU's part between nodes, AllGather in the node; all are rings."""
    return (
        _inside(CostOperation.ReduceScatter, gpus_per_node, intra),
        _between(CostOperation.AllReduce, gpus_per_node, nodes, inter),
        _inside(CostOperation.AllGather, gpus_per_node, intra),
    )


def allgather(gpus_per_node: ArrayLike, nodes: ArrayLike, intra: Level, inter: Level) -> tuple[Phase, Phase]:
    """Each GPU gathers its part from its counterparts on the other nodes, then the node gathers all parts."""
    return (
        _between(CostOperation.AllGather, gpus_per_node, nodes, inter),
        _inside(CostOperation.AllGather, gpus_per_node, intra),
    )


def reduce_scatter(gpus_per_node: ArrayLike, nodes: ArrayLike, intra: Level, inter: Level) -> tuple[Phase, Phase]:
    """The node reduces and scatters, then each GPU does so with its part among its counterparts on the other nodes."""
    return (
        _inside(CostOperation.ReduceScatter, gpus_per_node, intra),
        _between(CostOperation.ReduceScatter, gpus_per_node, nodes, inter),
    )


def alltoall(gpus_per_node: ArrayLike, nodes: ArrayLike, intra: Level, inter: Level) -> tuple[Phase, Phase]:
    """AllToAll in pairs: with GPUs of the same node over its links, with all other GPUs over the network."""
    gpus, ranks = whole("gpus_per_node", gpus_per_node), whole("gpus_per_node", gpus_per_node) * whole("nodes", nodes)
    near, far = Terms(gpus - 1, (gpus - 1) / ranks), Terms(ranks - gpus, (ranks - gpus) / ranks)
    return (
        Phase("with the node", CostOperation.AllToAll, True, gpus, gpus / ranks, near.on(intra)),
        Phase("with other nodes", CostOperation.AllToAll, False, ranks, 1 - gpus / ranks, far.on(inter)),
    )


TWO_LEVEL: Mapping[CostOperation, Callable[[ArrayLike, ArrayLike, Level, Level], tuple[Phase, ...]]] = {
    CostOperation.AllReduce: allreduce,
    CostOperation.AllGather: allgather,
    CostOperation.ReduceScatter: reduce_scatter,
    CostOperation.AllToAll: alltoall,
}


def total(phases: Sequence[Phase]) -> Linear:
    """The time of all phases, one after the other."""
    first, *others = phases
    cost = first.cost
    for phase in others:
        cost = cost + phase.cost
    return cost


def _inside(operation: CostOperation, gpus_per_node: ArrayLike, intra: Level) -> Phase:
    gpus = whole("gpus_per_node", gpus_per_node)
    return Phase(
        f"intra-node {operation.name}", operation, True, gpus, gpus / gpus, terms(operation, "ring", gpus).on(intra)
    )


def _between(operation: CostOperation, gpus_per_node: ArrayLike, nodes: ArrayLike, inter: Level) -> Phase:
    gpus, count = whole("gpus_per_node", gpus_per_node), whole("nodes", nodes)
    whole_size = terms(operation, "ring", count).on(inter)
    cost = Linear(whole_size.fixed_us * (gpus / gpus), whole_size.us_per_byte / gpus)
    return Phase(f"inter-node {operation.name}", operation, False, count, 1 / gpus, cost)


HIERARCHICAL = "hierarchical"
Levels = tuple[Level | None, Level | None]


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """A predicted time. ``parts_us`` are the model's time and what each overhead adds; their sum is the time.
    ``latency_us`` is the model's latency.
    """

    time_us: Array
    busbw_gbs: Array
    latency_us: Array
    parts_us: dict[str, Array]
    phases_us: dict[str, Array]  # phases of the hierarchical algorithm, without overheads like the next field
    flat_us: Array | None  # the time of the first flat algorithm, to compare with the hierarchical one


def names(operation: CostOperation) -> list[str]:
    """The names of an operation's algorithms; the first is the default."""
    return [*FORMULAS[operation], *([HIERARCHICAL] if operation in TWO_LEVEL else [])]


def predict(
    operation: CostOperation,
    algorithm: str,
    nbytes: ArrayLike,
    gpus_per_node: ArrayLike,
    nodes: ArrayLike,
    levels: Levels,
    overheads: Overheads,
) -> Prediction:
    """Predicts a time on the levels inside and between ``nodes`` nodes with ``gpus_per_node`` GPUs each (the shapes of
    both broadcast). BadInput if a needed level is missing, or the ranks do not fit.
    """

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


def cost(
    operation: CostOperation, algorithm: str, gpus_per_node: ArrayLike, nodes: ArrayLike, levels: Levels
) -> Linear:
    """The time of an algorithm; a flat one has the network's alpha and beta if there are several nodes."""
    if algorithm == HIERARCHICAL:
        return total(_phases(operation, gpus_per_node, nodes, levels))
    ranks = whole("ranks", whole("gpus_per_node", gpus_per_node) * whole("nodes", nodes), least=2)
    return terms(operation, algorithm, ranks).on(_slowest(whole("nodes", nodes) > 1, levels))


def _slowest(several: NDArray[np.bool_], levels: Levels) -> Level:
    """The level that limits a flat algorithm: the network's if there are several nodes."""
    intra, inter = levels
    if inter is None and np.any(several):
        raise BadInput(
            f"alpha and beta between nodes are missing: add {option('inter_alpha_us')} and {option('inter_beta_gbs')}"
        )
    if intra is None and not np.all(several):
        raise BadInput(f"alpha and beta inside a node are missing: add {option('alpha_us')} and {option('beta_gbs')}")
    inside, outside = intra or inter, inter or intra
    assert inside is not None
    assert outside is not None
    return Level(
        np.where(several, outside.alpha_us, inside.alpha_us), np.where(several, outside.beta_gbs, inside.beta_gbs)
    )


def costs(operation: CostOperation, gpus_per_node: int, nodes: int, levels: Levels) -> dict[str, Linear]:
    """Times by algorithm: the flat ones that the ranks allow, and the hierarchical one if there are two levels."""
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


def _phases(operation: CostOperation, gpus_per_node: ArrayLike, nodes: ArrayLike, levels: Levels) -> tuple[Phase, ...]:
    if operation not in TWO_LEVEL:
        raise BadInput(f"{operation.name} has no hierarchical algorithm; {one_of(FORMULAS[operation])}")
    intra, inter = levels
    if intra is None or inter is None:
        raise BadInput("hierarchical algorithms need alpha and beta of two levels: inside a node and between nodes")
    return TWO_LEVEL[operation](gpus_per_node, nodes, intra, inter)

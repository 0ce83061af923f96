"""Computes the bytes that a collective sends over the wires, by algorithm. These bytes do not always follow from the
bus factor.

A share is the part of the size S that goes through one port in its busier direction, averaged over equal ports. The
ports are a GPU's links inside the node, and all adapters of a node together. docs/cost-models.md derives each share.

Shapes: arguments are scalars, or arrays that broadcast; results are computed for each element.
"""

from collections.abc import Callable
from dataclasses import field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.records import json_form
from tuner.base.spelling import option
from tuner.base.view import as_percent, column
from tuner.times.costmodels.operations import Array, CostOperation, bus_factor, divides, positive, whole

AllReduce, AllGather, ReduceScatter = CostOperation.AllReduce, CostOperation.AllGather, CostOperation.ReduceScatter
Broadcast, Reduce = CostOperation.Broadcast, CostOperation.Reduce


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Loads of links as shares of the bytes: ``gpu_share`` goes over each GPU's links in the node, ``node_share`` over
    the network of each node.
    """

    gpu_share: Array
    node_share: Array

    def time_us(self, nbytes: ArrayLike, intra_gbs: ArrayLike, inter_gbs: ArrayLike) -> Array:
        """The least time in which links of these bandwidths (per GPU, per node) carry the load."""
        size = positive("bytes", nbytes)
        inside = self.gpu_share * size / positive("intra_gbs", intra_gbs)
        outside = self.node_share * size / positive("inter_gbs", inter_gbs)
        time: Array = np.maximum(inside, outside) / 1000
        return time

    def inter_limits(self, intra_gbs: ArrayLike, inter_gbs: ArrayLike) -> NDArray[np.bool_]:
        """Whether the network is saturated before the links inside the node, with bandwidths in GB/s."""
        inside = self.gpu_share / positive("intra_gbs", intra_gbs)
        limits: NDArray[np.bool_] = self.node_share / positive("inter_gbs", inter_gbs) > inside
        return limits


def loads(operation: CostOperation, algorithm: str, gpus_per_node: ArrayLike, nodes: ArrayLike) -> Loads:
    """The loads of an algorithm. BadInput if it cannot do the operation, or not on this shape."""
    gpus, count = whole("gpus_per_node", gpus_per_node), whole("nodes", nodes)
    rule = _RULES.get((operation, algorithm.lower()))
    if rule is None:
        valid = sorted(name for does, name in _RULES if does is operation)
        raise BadInput(
            f"what the links carry is not known for {algorithm} {operation.name}; {one_of(valid or ['none'])}"
        )
    return rule(gpus, count)


def uplink_share(operation: CostOperation, algorithm: str, ranks: ArrayLike, ranks_per_switch: ArrayLike) -> Array:
    """Share of a collective over one rank per node: the part of the bytes that leaves a switch of ``ranks_per_switch``.

    The ranks of a switch are neighbours. A ring crosses the switch's uplink once for each part, in AllReduce twice. PAT
    sends 1, 2, 4 ... n/2 parts over the distances n/2 ... 2, 1: the part of the rank that is s ranks further travels
    the distance of the lowest set bit of s. At a distance d below m, d of the m ranks of a switch send across its
    uplink. BadInput for other algorithms. Source: PatAGAlgorithm, src/include/collectives.h, and the peers in
    src/device/prims_simple.h, v2.28.9-1.
    """
    n, m = whole("ranks", ranks, least=2), whole("ranks_per_switch", ranks_per_switch)
    divides("ranks_per_switch", m, "ranks", n)
    passes = _UPLINK_PASSES.get((operation, algorithm.lower()))
    if passes is None:
        known = [f"{name} {does.name}" for does, name in _UPLINK_PASSES]
        raise BadInput(
            f"what the uplinks of switches carry is not known for {algorithm} {operation.name}; {one_of(known)}"
        )
    parts = _pat_parts(n, m) if algorithm.lower() == "pat" else passes * (n - 1)
    share: Array = np.where(m == n, 0.0, parts / n)[()]
    return share


def _pat_parts(n: Array, m: Array) -> Array:
    parts = np.zeros(np.broadcast_shapes(n.shape, m.shape))
    for bit in range(int(np.log2(n.max())) + 1):
        distance = 2.0**bit
        sent = np.floor((n - 1 + distance) / (2 * distance))  # number of distances below n whose lowest set bit this is
        parts = parts + sent * np.minimum(np.minimum(distance, n - distance), m)  # ranks form a circle
    return parts


_Rule = Callable[[Array, Array], Loads]


def _ring(passes: int) -> _Rule:
    def of(gpus: Array, nodes: Array) -> Loads:
        """The loads of a ring: every rank passes n-1 parts on, once or twice; one hop of each node goes to another
        node.
        """
        n = gpus * nodes
        whole_way, several = passes * (n - 1) / n, nodes > 1
        inside, outside = np.where(several, whole_way * (gpus - 1) / gpus, whole_way), np.where(several, whole_way, 0.0)
        return Loads(inside[()], outside[()])

    return of


def _chain(gpus: Array, nodes: Array) -> Loads:
    """Broadcast and Reduce over a ring: the whole size passes each link once; the last rank passes nothing on."""
    several = nodes > 1
    inside = np.where(several, (gpus - 1) / gpus, np.where(gpus > 1, 1.0, 0.0))
    return Loads(inside[()], np.where(several, 1.0, 0.0)[()])


def _tree(gpus: Array, nodes: Array) -> Loads:
    """The loads of trees, up and down: a chain through the node, and between nodes two trees of half the size each."""
    return Loads(2 * (gpus - 1) / gpus, 2 * (nodes - 1) / nodes)


def _nvls(up: str) -> _Rule:
    def of(gpus: Array, nodes: Array) -> Loads:
        """The loads of NVLS: the switch reads a part from all GPUs, including the part's owner, and writes it to all of
        them.

        So a GPU sends its whole size to be reduced and receives the whole size that others multicast; AllReduce does
        both, so a GPU's own part of 1/n passes once more.
        """
        if np.any(nodes > 1) or np.any(gpus < 2):
            raise BadInput(f"NVLS {up}: only the switches of one node do this: give one node with two GPUs or more")
        more = 1 / gpus if up == "AllReduce" else 0 / gpus
        return Loads(1 + more, 0 * gpus)

    return of


def _nvls_tree(gpus: Array, nodes: Array) -> Loads:
    """NVLS inside each node, and a pair of trees between the nodes for what each node has reduced."""
    return Loads(1 + 1 / gpus, 2 * (nodes - 1) / nodes)


def _pat(gpus: Array, nodes: Array) -> Loads:
    """The loads of PAT: every rank sends n-1 parts, as in a ring; :func:`uplink_share` tells how far they go."""
    if np.any(gpus > 1):
        raise BadInput(f"NCCL only runs PAT with one GPU per node: set {option('gpus_per_node')} 1")
    return Loads(0 * gpus, (nodes - 1) / nodes)


_RULES: dict[tuple[CostOperation, str], _Rule] = {
    (AllReduce, "ring"): _ring(2),
    (AllGather, "ring"): _ring(1),
    (ReduceScatter, "ring"): _ring(1),
    (Broadcast, "ring"): _chain,
    (Reduce, "ring"): _chain,
    (AllReduce, "tree"): _tree,
    (AllReduce, "nvls"): _nvls("AllReduce"),
    (AllGather, "nvls"): _nvls("AllGather"),
    (ReduceScatter, "nvls"): _nvls("ReduceScatter"),
    (AllReduce, "nvlstree"): _nvls_tree,
    (AllGather, "pat"): _pat,
    (ReduceScatter, "pat"): _pat,
}

# How often each part passes a switch's uplink in a ring; for PAT see above.
_UPLINK_PASSES = {
    (AllReduce, "ring"): 2,
    (AllGather, "ring"): 1,
    (ReduceScatter, "ring"): 1,
    (AllGather, "pat"): 1,
    (ReduceScatter, "pat"): 1,
}


@dataclass(frozen=True, slots=True, eq=False)
class Ideal:
    """Upper bounds on busbw in GB/s by each kind of link; infinite if that kind carries nothing."""

    intra_gbs: Array
    inter_gbs: Array

    @property
    def busbw_gbs(self) -> Array:
        """The lower of both bounds, GB/s."""
        return np.minimum(self.intra_gbs, self.inter_gbs)

    @property
    def inter_limits(self) -> NDArray[np.bool_]:
        """Whether the network limits the bandwidth, not the links within a node; one truth value per shape."""
        limits: NDArray[np.bool_] = self.inter_gbs < self.intra_gbs
        return limits

    def efficiency(self, busbw_gbs: ArrayLike) -> Array:
        """A measured busbw as a share of the ideal one, both GB/s."""
        share: Array = positive("busbw_gbs", busbw_gbs) / self.busbw_gbs
        return share

    def time_us(self, operation: CostOperation, nbytes: ArrayLike, ranks: ArrayLike) -> Array:
        """The least time of ``nbytes``, nccl-tests' size, us."""
        time: Array = positive("bytes", nbytes) * bus_factor(operation, ranks) / self.busbw_gbs / 1000
        return time


def ideal(
    intra_gbs: ArrayLike | None, inter_gbs: ArrayLike | None, gpus_per_node: ArrayLike, nodes: ArrayLike
) -> Ideal:
    """Upper bounds on busbw from the links' bandwidths. ``inter_gbs`` may be None on one node, ``intra_gbs`` with one
    GPU per node. BadInput for one GPU in all.
    """
    p, q = whole("gpus_per_node", gpus_per_node), whole("nodes", nodes)
    n = whole("GPUs in all", p * q, least=2)
    if inter_gbs is None and np.any(q > 1):
        raise BadInput("several nodes need a bandwidth between them: give inter_gbs above 0")
    if intra_gbs is None and np.any(p > 1):
        raise BadInput("several GPUs per node need a bandwidth between them: give intra_gbs above 0")
    i = np.asarray(1.0) if inter_gbs is None else positive("inter_gbs", inter_gbs)
    b = np.asarray(1.0) if intra_gbs is None else positive("intra_gbs", intra_gbs)
    with np.errstate(divide="ignore"):
        inter = np.where(q > 1, i * (n - 1) * q / (n * np.where(q > 1, q - 1, 1)), np.inf)[()]
        intra = np.where(n > q, b * (n - 1) / np.where(n > q, n - q, 1), np.inf)[()]
    return Ideal(intra, inter)


@dataclass(frozen=True, slots=True)
class IdealOfShape:
    """The ideal of one shape. A bound is None if its links carry nothing; the efficiency is None without a measured
    busbw.
    """

    gpus_per_node: int = field(metadata=column("GPUs per node"))
    nodes: int = field(metadata=column("nodes"))
    ideal_busbw_gbs: float = field(metadata=column("ideal busbw GB/s", digits=1))
    intra_bound_gbs: float | None = field(metadata=column("by links in the node", digits=1))
    inter_bound_gbs: float | None = field(metadata=column("by the network", digits=1))
    limited_by: str = field(metadata=column("limited by"))
    inter_share: float
    busbw_gbs: float | None = field(metadata=json_form(optional=True))
    efficiency: float | None = field(
        metadata={**json_form(optional=True), **column("efficiency", text=as_percent(".1f"))}
    )


def ideal_of(
    intra_gbs: float | None, inter_gbs: float | None, gpus_per_node: int, nodes: int, busbw_gbs: float | None
) -> IdealOfShape:
    """The result of :func:`ideal` for one shape, compared with a measured ``busbw_gbs``. BadInput for impossible
    values.
    """
    times = ideal(intra_gbs, inter_gbs, gpus_per_node, nodes)
    intra, inter = (float(gbs) if gbs < float("inf") else None for gbs in (times.intra_gbs, times.inter_gbs))
    return IdealOfShape(
        gpus_per_node,
        nodes,
        float(times.busbw_gbs),
        intra,
        inter,
        "network" if times.inter_limits else "links in the node",
        float(inter_share(gpus_per_node, nodes)),
        busbw_gbs,
        None if busbw_gbs is None else float(times.efficiency(busbw_gbs)),
    )


def transferred_bytes(operation: CostOperation, nbytes: ArrayLike, ranks: ArrayLike) -> Array:
    """The volume D that all ranks together transfer: bus factor x size x ranks."""
    volume: Array = positive("bytes", nbytes) * bus_factor(operation, ranks) * whole("ranks", ranks)
    return volume


def inter_share(gpus_per_node: ArrayLike, nodes: ArrayLike) -> Array:
    """The share of the bytes that crosses between nodes."""
    p, q = whole("gpus_per_node", gpus_per_node), whole("nodes", nodes)
    share: Array = (q - 1) / (whole("GPUs in all", p * q, least=2) - 1)
    return share

"""Ideal communication bandwidth: the busbw of links that do nothing but carry the least there is to carry.

With B a GPU's bandwidth to GPUs of its node, I a node's to other nodes, P GPUs in each of Q nodes and N of them in all:
of what every GPU exchanges with the N - 1 others, Q - 1 parts have to cross between nodes, and N - Q need not. Both go
on at the same time, so the longer counts.

Shapes: scalars, or arrays that broadcast and are computed one by one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.errors import BadInput
from tuner.times.costmodels.bandwidth import bus_factor
from tuner.times.costmodels.checks import Array, positive, whole
from tuner.times.costmodels.operations import Operation


@dataclass(frozen=True, slots=True, eq=False)
class Ideal:
    """Bounds on busbw in GB/s by each kind of link; infinite where it carries nothing."""

    intra_gbs: Array
    inter_gbs: Array

    @property
    def busbw_gbs(self) -> Array:
        """The lower of both bounds, GB/s."""
        return np.minimum(self.intra_gbs, self.inter_gbs)

    @property
    def inter_limits(self) -> NDArray[np.bool_]:
        """Whether it is the network that limits: true or false for numbers of GB/s."""
        limits: NDArray[np.bool_] = self.inter_gbs < self.intra_gbs
        return limits

    def efficiency(self, busbw_gbs: ArrayLike) -> Array:
        """A measured busbw as a share of the ideal one, both GB/s."""
        share: Array = positive("busbw_gbs", busbw_gbs) / self.busbw_gbs
        return share

    def time_us(self, operation: Operation, nbytes: ArrayLike, ranks: ArrayLike) -> Array:
        """The least time of ``nbytes``, nccl-tests' size, us."""
        time: Array = positive("bytes", nbytes) * bus_factor(operation, ranks) / self.busbw_gbs / 1000
        return time


def ideal(
    intra_gbs: ArrayLike | None, inter_gbs: ArrayLike | None, gpus_per_node: ArrayLike, nodes: ArrayLike
) -> Ideal:
    """``inter_gbs`` may be None on one node, ``intra_gbs`` with one GPU per node; BadInput for one GPU in all."""
    p, q = whole("gpus_per_node", gpus_per_node), whole("nodes", nodes)
    n = whole("GPUs in all", p * q, least=2)
    if inter_gbs is None and np.any(q > 1):
        raise BadInput("several nodes without a bandwidth between them; valid: inter_gbs above 0")
    if intra_gbs is None and np.any(p > 1):
        raise BadInput("several GPUs per node without a bandwidth between them; valid: intra_gbs above 0")
    i = np.asarray(1.0) if inter_gbs is None else positive("inter_gbs", inter_gbs)
    b = np.asarray(1.0) if intra_gbs is None else positive("intra_gbs", intra_gbs)
    with np.errstate(divide="ignore"):
        inter = np.where(q > 1, i * (n - 1) * q / (n * np.where(q > 1, q - 1, 1)), np.inf)[()]
        intra = np.where(n > q, b * (n - 1) / np.where(n > q, n - q, 1), np.inf)[()]
    return Ideal(intra, inter)


def transferred_bytes(operation: Operation, nbytes: ArrayLike, ranks: ArrayLike) -> Array:
    """The volume D that all ranks together transfer: bus factor x size x ranks."""
    volume: Array = positive("bytes", nbytes) * bus_factor(operation, ranks) * whole("ranks", ranks)
    return volume


def inter_share(gpus_per_node: ArrayLike, nodes: ArrayLike) -> Array:
    """The share of the bytes that crosses between nodes."""
    p, q = whole("gpus_per_node", gpus_per_node), whole("nodes", nodes)
    share: Array = (q - 1) / (whole("GPUs in all", p * q, least=2) - 1)
    return share

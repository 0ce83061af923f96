"""Times of AllToAll, which is made from sends and receives: NCCL itself has no model of it.

Small parts use LL, whose time grows with the part's size. Larger parts use Simple, whose latency and bandwidth overlap.
The form takes the shorter of these two times. Between nodes each peer costs a message, and a GPU's share of the
adapters' bandwidth is the limit. There is no form for single sends and receives, because they depend on how many
channels NCCL gives a pair.
"""

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm
from tuner.base.numerics import SizeArray
from tuner.emulator.communicator import Comm
from tuner.times.timemodel.features import Array, Which
from tuner.times.timemodel.form import Parameter

MODELLED = ("alltoall",)

PARAMETERS: Mapping[str, Parameter] = {
    parameter.name: parameter
    for parameter in (
        Parameter("start_us", 9.0, 0.5, "what a call takes before anything moves; belongs to the way of launching"),
        Parameter("start_per_doubling_us", 1.0, 1.0, "what it takes longer each time the ranks of a node double"),
        Parameter("ll_gbs", 15.0, 0.6, "one part by LL"),
        Parameter("simple_us", 6.0, 0.7, "what Simple takes before data flow"),
        Parameter("overlap", 0.8, 0.4, "exponent of the norm that joins latency and bandwidth"),
        Parameter("extra_parts", 0.3, 1.0, "parts that are moved beside those for others, such as a rank's own"),
        Parameter("share", 0.88, 0.25, "of the bandwidth of the ring's graph inside a node"),
        Parameter("net_peer_us", 1.5, 1.0, "each peer on another node"),
        Parameter("net_share", 0.8, 0.4, "of a GPU's part of the bandwidth between nodes"),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class Exchanges:
    """Calls of AllToAll, one element per call. ``bytes`` is what a rank sends in all; bandwidths are those of one GPU,
    GB/s."""

    bytes: Array
    ranks: Array
    nodes: Array
    intra_gbs: Array
    inter_gbs: Array

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, which: Which) -> "Exchanges":
        return Exchanges(*(getattr(self, field.name)[which] for field in fields(self)))


def of_communicator(communicator: Comm, sizes: SizeArray) -> Exchanges:
    """Calls of ``sizes`` bytes on a communicator."""
    graph = communicator.graphs[Algorithm.Ring]

    def numbers(value: float) -> Array:
        return np.full(len(sizes), float(value))

    return Exchanges(
        bytes=sizes.astype(np.float64),
        ranks=numbers(communicator.ranks),
        nodes=numbers(communicator.nodes),
        intra_gbs=numbers(graph.bw_intra_gbs * graph.channels),
        inter_gbs=numbers(graph.bw_inter_gbs * graph.channels / communicator.max_local_ranks),
    )


def times_us(parameters: Mapping[str, float], calls: Exchanges) -> Array:
    """The time of each call, [call]."""
    p, local = parameters, calls.ranks / calls.nodes
    part, far = calls.bytes / calls.ranks, calls.ranks - local
    near_us = (local - 1 + p["extra_parts"]) * part / (p["share"] * calls.intra_gbs * 1e3)
    far_us = far * part / np.maximum(p["net_share"] * calls.inter_gbs * 1e3, 1e-9)
    data_us = np.where(calls.nodes > 1, np.maximum(near_us, far_us), near_us)
    simple_us = (p["simple_us"] ** p["overlap"] + data_us ** p["overlap"]) ** (1 / p["overlap"])
    # Parts for many ranks are moved at the same time by LL as well, and share the GPU's links.
    low_latency_us = np.maximum(part / (p["ll_gbs"] * 1e3), near_us)
    # Between nodes, the fast path is a message like any other.
    moving_us = np.where(calls.nodes > 1, simple_us + p["net_peer_us"] * far, np.minimum(low_latency_us, simple_us))
    start_us = p["start_us"] + p["start_per_doubling_us"] * np.log2(np.maximum(local / 2, 1))
    times: Array = start_us + moving_us
    return times

"""Steps from a graph's bandwidth to an algorithm's bandwidth, GB/s (1e9 bytes per second).

Each step takes the value so far and the cell, and returns the next value as NCCL's float stores it.

``f64(...)`` marks NCCL's double literals.
"""

from collections.abc import Callable

import numpy as np

from tuner.base.names import Algorithm, Collective, Pattern, Protocol
from tuner.base.numerics import Float, f32, f64
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.rules.call import ModelPoint

BandwidthRule = Callable[[Float, ModelPoint], Float]
RULES: Registry[BandwidthRule] = Registry()


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def graph(_: Float, point: ModelPoint) -> Float:
    """Bandwidth per channel: up to two nodes that of the graph inside a node, beyond two that between nodes."""
    return f32(point.graph.bw_intra_gbs if point.nodes <= 2 else point.graph.bw_inter_gbs)


@RULES(nccl.RING_MODEL_INIT(since="2.31.2"))
def graph_inter_on_two_blackwell_nodes(value: Float, point: ModelPoint) -> Float:
    """Bandwidth per channel: inside a node on one node (before Blackwell up to two), else between nodes."""
    return f32(point.graph.bw_inter_gbs) if _blackwell(point) and point.nodes == 2 else graph(value, point)


@RULES(nccl.TREE_MODEL_INIT(since="2.31.2"))
def graph_slower_on_blackwell(value: Float, point: ModelPoint) -> Float:
    """Bandwidth per channel: on Blackwell the slower; before, inside a node up to two nodes, else between."""
    return graph_slower(value, point) if _blackwell(point) else graph(value, point)


@RULES(nccl.PAT_MODEL_INIT(since="2.31.2"))
def graph_slower(_: Float, point: ModelPoint) -> Float:
    """Bandwidth per channel: the slower of the node's inside and the network, for any number of nodes."""
    return min(f32(point.graph.bw_intra_gbs), f32(point.graph.bw_inter_gbs))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.COLLNET_MODEL_INIT(since="2.31.2"))
def graph_intra(_: Float, point: ModelPoint) -> Float:
    """Bandwidth per channel: the graph's inside a node."""
    return f32(point.graph.bw_intra_gbs)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.28.3"), nccl.NVLS_MODEL_INIT(since="2.31.2"))
def nvls_multicast(_: Float, point: ModelPoint) -> Float:
    """The slower of switch, at its efficiency, and network; in the switch one channel is lost to latency."""
    channels = f32(point.graph.channels)
    efficiency = f32(point.release.nvls_efficiency[point.communicator.generation])
    intra = f32(point.graph.bw_intra_gbs) * efficiency * f32(point.graph.channels - 1) / channels
    if point.collective is Collective.AllReduce:
        intra = intra * f32(2)  # two pipelined operations
    else:
        intra = intra * ((point.local_ranks - f32(1)) / point.local_ranks)
    tree = point.algorithm is Algorithm.NVLSTree
    inter = f32(point.graph.bw_inter_gbs) * f32(2 if tree and point.nodes <= 2 else 1)
    cap = f32(point.cap_gbs("nvls_tree_per_channel")) if tree else np.finfo(f32).max
    return f32(min(intra, inter, cap))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.19.3"))
def nvls_slower(_: Float, point: ModelPoint) -> Float:
    """Bandwidth per channel: the slower of the node's inside and the network."""
    return min(f32(point.graph.bw_intra_gbs), f32(point.graph.bw_inter_gbs))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.27.3"))
def nvls_gathers_slower(value: Float, point: ModelPoint) -> Float:
    """Bandwidth per channel: the slower of node and network; gathers save a rank's share, lose 10 % of the network."""
    if point.collective is Collective.AllReduce:
        return nvls_slower(value, point)
    intra = f32(point.graph.bw_intra_gbs) * (point.local_ranks - f32(1)) / point.local_ranks
    return min(intra, f32(point.graph.bw_inter_gbs) * f32(0.9))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.19.3"))
def nvls_tree_slower(_: Float, point: ModelPoint) -> Float:
    """Bandwidth per channel: the slower of node and network; beyond two nodes the network carries data both ways."""
    inter = f32(point.graph.bw_inter_gbs)
    return min(f32(point.graph.bw_intra_gbs), inter if point.nodes <= 2 else inter / f32(2))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.EVERY_MODEL_INIT(since="2.31.2"))
def all_channels(value: Float, point: ModelPoint) -> Float:
    """All channels of the graph together: the bus."""
    return f32(point.graph.channels) * value


@RULES(nccl.TOPO_TUNE_MODEL(since="2.21.5"), nccl.RING_MODEL_INIT(since="2.31.2"))
def ring_ll_cap(value: Float, point: ModelPoint) -> Float:
    """LL spends half the bytes on flags, and the CPU or GPU caps it."""
    if point.protocol is not Protocol.LL:
        return value
    return f32(min(point.ll_cap_gbs, value * f64(0.5)))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def ring_ll_quarter_or_third(value: Float, point: ModelPoint) -> Float:
    """LL reaches a quarter of the bandwidth; a third if one node moves data around the ring without reducing it."""
    if point.protocol is not Protocol.LL:
        return value
    quarter = point.nodes > 1 or point.collective in (Collective.AllReduce, Collective.Reduce)
    return f32(min(point.ll_cap_gbs, value * (f64(1.0) / f64(4.0) if quarter else f64(1.0) / f64(3.0))))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.23.4"), nccl.RING_MODEL_INIT(since="2.31.2"))
def ring_ll128_cap(value: Float, point: ModelPoint) -> Float:
    """LL128 leaves 92 % of the bandwidth to the data, and each channel carries a limited amount."""
    if point.protocol is not Protocol.LL128:
        return value
    return f32(min(value * f64(0.92), point.graph.channels * point.cap_gbs("ring_ll128_per_channel")))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def ring_ll128_cap_less_alone(value: Float, point: ModelPoint) -> Float:
    """LL128 leaves 92 % to the data, 70 % with one rank per node, and each channel carries a limited amount."""
    if point.protocol is not Protocol.LL128:
        return value
    share = f64(0.7) if point.local_ranks < 2 else f64(0.92)
    return f32(min(value * share, point.graph.channels * point.cap_gbs("ring_ll128_per_channel")))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.TREE_MODEL_INIT(since="2.31.2"))
def tree_cap(value: Float, point: ModelPoint) -> Float:
    """A tree reaches 92 % of the bus, and each channel carries a limited amount."""
    return f32(min(value * f64(0.92), point.graph.channels * point.cap_gbs("tree_per_channel")))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.TREE_MODEL_INIT(since="2.31.2"))
def tree_ll_cap(value: Float, point: ModelPoint) -> Float:
    """LL sends a flag with the data, and the CPU or GPU caps it."""
    if point.protocol is not Protocol.LL:
        return value
    return f32(min(value * f64(1.0) / f64(3.8), point.ll_cap_gbs))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.TREE_MODEL_INIT(since="2.31.2"))
def tree_ll128_cap(value: Float, point: ModelPoint) -> Float:
    """LL128 sends flags with the data, and each channel carries a limited amount."""
    if point.protocol is not Protocol.LL128:
        return value
    share = f64(7.0) / f64(9.0) if point.nodes == 1 else f64(120.0) / f64(128.0)
    return f32(min(value * share, point.graph.channels * point.cap_gbs("tree_ll128_per_channel")))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.3"), nccl.TREE_MODEL_INIT(since="2.31.2"))
def plain_tree(value: Float, point: ModelPoint) -> Float:
    """A tree that is neither balanced nor split sends up and down over the same links."""
    return f32(value * f64(0.85)) if point.communicator.tree_pattern is Pattern.Tree else value


@RULES(nccl.TOPO_TUNE_MODEL(since="2.24.3"), nccl.PAT_MODEL_INIT(since="2.31.2"))
def pat_share(value: Float, point: ModelPoint) -> Float:
    """PAT reaches three quarters of the bus."""
    return f32(value * f64(0.75))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.23.4"))
def pat_larger_share(value: Float, point: ModelPoint) -> Float:
    """PAT reaches 85 % of the bus."""
    return f32(value * f64(0.85))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.MODEL_MAP(since="2.31.2"))
def no_low_latency(value: Float, point: ModelPoint) -> Float:
    """Only Simple goes through the network's reductions."""
    return value if point.protocol is Protocol.Simple else f32(0)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.27.3"), nccl.COLLNET_MODEL_INIT(since="2.31.2"))
def collnet_direct(value: Float, point: ModelPoint) -> Float:
    """CollNet Direct: every GPU needs an adapter of its own; AllGather and ReduceScatter count GPUs, not channels."""
    if point.protocol is not Protocol.Simple:
        return value
    if point.gathers_or_scatters:
        network = f32(point.graph.bw_inter_gbs) * f32(0.9)
        return point.local_ranks * min(f32(point.graph.bw_intra_gbs), network)
    if point.graph.channels == 0:
        # Sic: NCCL subtracts infinity from infinity here, which on x86-64 gives a NaN with the sign bit set
        return f32(-np.nan)
    factor = f32(point.local_ranks / (f64(1.0) * point.graph.channels))
    factor = factor - (factor - f32(1)) / f32(2)
    value = value / factor
    return f32(value * f64(0.85)) if point.communicator.min_comp_cap >= 90 else value


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def collnet_direct_interpolated(value: Float, point: ModelPoint) -> Float:
    """CollNet Direct: every GPU needs an adapter; AllGather and ReduceScatter have a share between 0.95 and 0.85."""
    if point.protocol is not Protocol.Simple or not point.gathers_or_scatters:
        return collnet_direct(value, point)
    network = point.communicator.collnet
    if point.nodes > 1 and (network is None or point.local_ranks > network.heads):  # on average, if nodes differ
        return f32(0)
    many = (point.local_ranks - f32(1)) / f32(7)
    value = point.local_ranks * graph_intra(value, point)
    return f32(value * (many * f64(0.85) + (f32(1) - many) * f64(0.95)))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.27.3"), nccl.COLLNET_NVLS_MODEL_INIT(since="2.31.2"))
def collnet_heads(value: Float, point: ModelPoint) -> Float:
    """Across nodes, AllGather and ReduceScatter need CollNet, and an adapter per GPU."""
    needs = point.protocol is Protocol.Simple and point.gathers_or_scatters
    return f32(0) if needs and _too_few_heads(point) else value


def _too_few_heads(point: ModelPoint) -> bool:
    network = point.communicator.collnet
    return point.nodes > 1 and (network is None or point.communicator.max_local_ranks > network.heads)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def ranks_over_steps(value: Float, point: ModelPoint) -> Float:
    """Bus to algorithm bandwidth of a ring; the quotient is a double, stored as float before the multiplication."""
    return value * f32(f64(1.0) * point.ranks / point.steps)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.28.3"))
def ranks_over_steps_of_allreduce(value: Float, point: ModelPoint) -> Float:
    """Bus to algorithm bandwidth of a ring, only for AllReduce."""
    return value if point.gathers_or_scatters else ranks_over_steps(value, point)


@RULES(nccl.RING_MODEL_INIT(since="2.31.2"))
def times_ranks_over_steps(value: Float, point: ModelPoint) -> Float:
    """Bus to algorithm bandwidth of a ring: times ranks, over steps, each rounded to float."""
    return value * f32(point.ranks) / f32(point.steps)


@RULES(nccl.NVLS_MODEL_INIT(since="2.31.2"))
def times_ranks_over_steps_of_allreduce(value: Float, point: ModelPoint) -> Float:
    """Bus to algorithm bandwidth of a ring, only for AllReduce: times ranks, over steps, each rounded to float."""
    return value if point.gathers_or_scatters else times_ranks_over_steps(value, point)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.3"))
def five_sixths(value: Float, point: ModelPoint) -> Float:
    """NVLS spends a sixth of the time on changing the stage."""
    return value * f32(f64(5.0) / f64(6.0))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.19.3"))
def five_sixths_of_allreduce(value: Float, point: ModelPoint) -> Float:
    """NVLS spends a sixth of an AllReduce's time on changing the stage."""
    return value if point.gathers_or_scatters else five_sixths(value, point)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def three_quarters(value: Float, point: ModelPoint) -> Float:
    """NVLS reaches three quarters of the bus."""
    return value * f32(0.75)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def nvls_tree_share_by_nodes(value: Float, point: ModelPoint) -> Float:
    """0.7 of the bus shared by the steps of a ring of nodes; infinite on one node, where the row is off anyway."""
    steps = 2 * (point.nodes - 1)
    return value * f32(f64(0.70) * f64(point.nodes) / f64(steps) if steps else np.inf)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.TREE_COLLNET_MODEL_INIT(since="2.31.2"))
def half(value: Float, point: ModelPoint) -> Float:
    """Bus to algorithm bandwidth: the data goes up and comes down."""
    return value * f32(0.5)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.COLLNET_MODEL_INIT(since="2.31.2"))
def half_of_allreduce(value: Float, point: ModelPoint) -> Float:
    """Bus to algorithm bandwidth: an AllReduce's data goes up and comes down; gathering and scattering go one way."""
    return value if point.gathers_or_scatters else half(value, point)


def _blackwell(point: ModelPoint) -> bool:
    return point.communicator.min_comp_cap >= 100


@RULES(nccl.NOT_NCCL)
def measured_efficiency(value: Float, point: ModelPoint) -> Float:
    """Multiplies the bandwidth by its measured share, ``efficiency`` in fitted constants; NCCL has no such rule."""
    return value * f32(point.release.efficiency.get(point.algorithm, {}).get(point.protocol, 1.0))

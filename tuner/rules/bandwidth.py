"""Steps from a graph's bandwidth to an algorithm's bandwidth, GB/s (1e9 bytes per second).

Each takes the value so far and the cell, and returns the next value as NCCL's float holds it.
Source: ncclTopoTuneModel, src/graph/tuning.cc, v2.28.9-1.

``f64(...)`` marks NCCL's double literals.
"""

from collections.abc import Callable

import numpy as np

from tuner.cfloat import Float, f32, f64
from tuner.names import Algorithm, Collective, Pattern, Protocol
from tuner.registry import Registry
from tuner.release import ALGORITHM_KEYS, PROTOCOL_KEYS
from tuner.rules.cell import Cell

BandwidthRule = Callable[[Float, Cell], Float]
RULES: Registry[BandwidthRule] = Registry()


@RULES
def graph(_: Float, cell: Cell) -> Float:
    """Per channel: up to two nodes the graph's bandwidth inside a node, beyond the one between nodes."""
    return f32(cell.graph.bw_intra_gbs if cell.nodes <= 2 else cell.graph.bw_inter_gbs)


@RULES
def graph_inter_on_two_blackwell_nodes(value: Float, cell: Cell) -> Float:
    """Per channel: on one node (before Blackwell up to two) the graph's bandwidth inside, else the one between."""
    return f32(cell.graph.bw_inter_gbs) if _blackwell(cell) and cell.nodes == 2 else graph(value, cell)


@RULES
def graph_slower_on_blackwell(value: Float, cell: Cell) -> Float:
    """Per channel: on Blackwell the slower of the two; before, inside a node up to two nodes, else between nodes."""
    return graph_slower(value, cell) if _blackwell(cell) else graph(value, cell)


@RULES
def graph_slower(_: Float, cell: Cell) -> Float:
    """Per channel: the slower of the node's inside and the network, for any number of nodes."""
    return min(f32(cell.graph.bw_intra_gbs), f32(cell.graph.bw_inter_gbs))


@RULES
def graph_intra(_: Float, cell: Cell) -> Float:
    """Per channel: the graph's bandwidth inside a node."""
    return f32(cell.graph.bw_intra_gbs)


@RULES
def nvls_multicast(_: Float, cell: Cell) -> Float:
    """The switch's efficiency inside a node against the network between nodes; one channel is lost to latency."""
    channels = f32(cell.graph.channels)
    efficiency = f32(cell.release.table["nvls_efficiency"][cell.communicator.generation])
    intra = f32(cell.graph.bw_intra_gbs) * efficiency * f32(cell.graph.channels - 1) / channels
    if cell.collective is Collective.AllReduce:
        intra = intra * f32(2)  # two pipelined operations
    else:
        intra = intra * ((cell.local_ranks - f32(1)) / cell.local_ranks)
    tree = cell.algorithm is Algorithm.NVLSTree
    inter = f32(cell.graph.bw_inter_gbs) * f32(2 if tree and cell.nodes <= 2 else 1)
    cap = f32(cell.cap_gbs("nvls_tree_per_channel")) if tree else np.finfo(f32).max
    return f32(min(intra, inter, cap))


@RULES
def nvls_slower(_: Float, cell: Cell) -> Float:
    """Per channel: the slower of the node's inside and the network."""
    return min(f32(cell.graph.bw_intra_gbs), f32(cell.graph.bw_inter_gbs))


@RULES
def nvls_gathers_slower(value: Float, cell: Cell) -> Float:
    """Per channel: the slower of inside and network; gathers spare a rank's own share, and a tenth of the network."""
    if cell.collective is Collective.AllReduce:
        return nvls_slower(value, cell)
    intra = f32(cell.graph.bw_intra_gbs) * (cell.local_ranks - f32(1)) / cell.local_ranks
    return min(intra, f32(cell.graph.bw_inter_gbs) * f32(0.9))


@RULES
def nvls_tree_slower(_: Float, cell: Cell) -> Float:
    """Per channel: the slower of inside and network, which beyond two nodes carries the tree up and down."""
    inter = f32(cell.graph.bw_inter_gbs)
    return min(f32(cell.graph.bw_intra_gbs), inter if cell.nodes <= 2 else inter / f32(2))


@RULES
def all_channels(value: Float, cell: Cell) -> Float:
    """All channels of the graph together: the bus."""
    return f32(cell.graph.channels) * value


@RULES
def ring_ll_cap(value: Float, cell: Cell) -> Float:
    """LL spends half the bytes on flags, and the CPU or GPU caps it."""
    if cell.protocol is not Protocol.LL:
        return value
    return f32(min(cell.ll_cap_gbs, value * f64(0.5)))


@RULES
def ring_ll_quarter_or_third(value: Float, cell: Cell) -> Float:
    """LL as a quarter; a third where one node moves data without reducing it to the end of the ring."""
    if cell.protocol is not Protocol.LL:
        return value
    quarter = cell.nodes > 1 or cell.collective in (Collective.AllReduce, Collective.Reduce)
    return f32(min(cell.ll_cap_gbs, value * (f64(1.0) / f64(4.0) if quarter else f64(1.0) / f64(3.0))))


@RULES
def ring_ll128_cap(value: Float, cell: Cell) -> Float:
    """LL128 leaves 92 % to the data, and each channel carries only so much."""
    if cell.protocol is not Protocol.LL128:
        return value
    return f32(min(value * f64(0.92), cell.graph.channels * cell.cap_gbs("ring_ll128_per_channel")))


@RULES
def ring_ll128_cap_less_alone(value: Float, cell: Cell) -> Float:
    """LL128 leaves 92 % to the data, 70 % with one rank per node, and each channel carries only so much."""
    if cell.protocol is not Protocol.LL128:
        return value
    share = f64(0.7) if cell.local_ranks < 2 else f64(0.92)
    return f32(min(value * share, cell.graph.channels * cell.cap_gbs("ring_ll128_per_channel")))


@RULES
def tree_cap(value: Float, cell: Cell) -> Float:
    """A tree reaches 92 % of the bus, and each channel carries only so much."""
    return f32(min(value * f64(0.92), cell.graph.channels * cell.cap_gbs("tree_per_channel")))


@RULES
def tree_ll_cap(value: Float, cell: Cell) -> Float:
    """LL sends a flag with the data, and the CPU or GPU caps it."""
    if cell.protocol is not Protocol.LL:
        return value
    return f32(min(value * f64(1.0) / f64(3.8), cell.ll_cap_gbs))


@RULES
def tree_ll128_cap(value: Float, cell: Cell) -> Float:
    """LL128 sends flags with the data, and each channel carries only so much."""
    if cell.protocol is not Protocol.LL128:
        return value
    share = f64(7.0) / f64(9.0) if cell.nodes == 1 else f64(120.0) / f64(128.0)
    return f32(min(value * share, cell.graph.channels * cell.cap_gbs("tree_ll128_per_channel")))


@RULES
def plain_tree(value: Float, cell: Cell) -> Float:
    """A tree that is neither balanced nor split sends up and down over the same links."""
    return f32(value * f64(0.85)) if cell.communicator.tree_pattern is Pattern.Tree else value


@RULES
def pat_share(value: Float, cell: Cell) -> Float:
    """PAT reaches three quarters of the bus."""
    return f32(value * f64(0.75))


@RULES
def pat_larger_share(value: Float, cell: Cell) -> Float:
    """PAT reaches 85 % of the bus."""
    return f32(value * f64(0.85))


@RULES
def no_low_latency(value: Float, cell: Cell) -> Float:
    """Only Simple goes through the network's reductions."""
    return value if cell.protocol is Protocol.Simple else f32(0)


@RULES
def collnet_direct(value: Float, cell: Cell) -> Float:
    """CollNet Direct: every GPU wants a NIC of its own; AllGather and ReduceScatter count GPUs, not channels."""
    if cell.protocol is not Protocol.Simple:
        return value
    if cell.gathers_or_scatters:
        network = f32(cell.graph.bw_inter_gbs) * f32(0.9)
        return cell.local_ranks * min(f32(cell.graph.bw_intra_gbs), network)
    if cell.graph.channels == 0:
        return f32(np.nan)  # sic: NCCL divides 0 by an infinite factor here; the row is disabled afterwards
    factor = f32(cell.local_ranks / (f64(1.0) * cell.graph.channels))
    factor = factor - (factor - f32(1)) / f32(2)
    value = value / factor
    return f32(value * f64(0.85)) if cell.communicator.min_comp_cap >= 90 else value


@RULES
def collnet_direct_interpolated(value: Float, cell: Cell) -> Float:
    """CollNet Direct: every GPU wants a NIC; AllGather and ReduceScatter have a share measured at 1 and 8 GPUs."""
    if cell.protocol is not Protocol.Simple or not cell.gathers_or_scatters:
        return collnet_direct(value, cell)
    if _too_few_heads(cell):
        return f32(0)
    many = (cell.local_ranks - f32(1)) / f32(7)
    value = cell.local_ranks * graph_intra(value, cell)
    return f32(value * (many * f64(0.85) + (f32(1) - many) * f64(0.95)))


@RULES
def collnet_heads(value: Float, cell: Cell) -> Float:
    """Across nodes, AllGather and ReduceScatter need CollNet, and an adapter per GPU."""
    needs = cell.protocol is Protocol.Simple and cell.gathers_or_scatters
    return f32(0) if needs and _too_few_heads(cell) else value


def _too_few_heads(cell: Cell) -> bool:
    network = cell.communicator.collnet
    return cell.nodes > 1 and (network is None or cell.communicator.max_local_ranks > network.heads)


@RULES
def ranks_over_steps(value: Float, cell: Cell) -> Float:
    """Bus to algorithm bandwidth of a ring; the quotient is a double, stored as float before it multiplies."""
    return value * f32(f64(1.0) * cell.ranks / cell.steps)


@RULES
def ranks_over_steps_of_allreduce(value: Float, cell: Cell) -> Float:
    """Bus to algorithm bandwidth of a ring, for AllReduce alone."""
    return value if cell.gathers_or_scatters else ranks_over_steps(value, cell)


@RULES
def times_ranks_over_steps(value: Float, cell: Cell) -> Float:
    """Bus to algorithm bandwidth of a ring: times ranks, over steps, each rounded to float."""
    return value * f32(cell.ranks) / f32(cell.steps)


@RULES
def times_ranks_over_steps_of_allreduce(value: Float, cell: Cell) -> Float:
    """Bus to algorithm bandwidth of a ring, for AllReduce alone: times ranks, over steps, each rounded to float."""
    return value if cell.gathers_or_scatters else times_ranks_over_steps(value, cell)


@RULES
def five_sixths(value: Float, cell: Cell) -> Float:
    """NVLS spends a sixth of the time on changing the stage."""
    return value * f32(f64(5.0) / f64(6.0))


@RULES
def five_sixths_of_allreduce(value: Float, cell: Cell) -> Float:
    """NVLS spends a sixth of an AllReduce's time on changing the stage."""
    return value if cell.gathers_or_scatters else five_sixths(value, cell)


@RULES
def three_quarters(value: Float, cell: Cell) -> Float:
    """NVLS reaches three quarters of the bus."""
    return value * f32(0.75)


@RULES
def nvls_tree_share_by_nodes(value: Float, cell: Cell) -> Float:
    """0.7 of the bus shared by the steps of a ring of nodes; infinite on one node, where the row is off anyway."""
    steps = 2 * (cell.nodes - 1)
    return value * f32(f64(0.70) * f64(cell.nodes) / f64(steps) if steps else np.inf)


@RULES
def half(value: Float, cell: Cell) -> Float:
    """Bus to algorithm bandwidth: the data goes up and comes down."""
    return value * f32(0.5)


@RULES
def half_of_allreduce(value: Float, cell: Cell) -> Float:
    """Bus to algorithm bandwidth: an AllReduce's data goes up and comes down; gathering and scattering go one way."""
    return value if cell.gathers_or_scatters else half(value, cell)


def _blackwell(cell: Cell) -> bool:
    return cell.communicator.min_comp_cap >= 100


@RULES
def measured_efficiency(value: Float, cell: Cell) -> Float:
    """No rule of NCCL's: a layer adds it, the share of the model's bandwidth that was measured."""
    rows = cell.release.table["efficiency"]
    algorithm = next(key for key, number in ALGORITHM_KEYS.items() if number is cell.algorithm)
    protocol = next(key for key, number in PROTOCOL_KEYS.items() if number is cell.protocol)
    return value * f32(rows.get(algorithm, {}).get(protocol, 1.0))

"""Steps of a latency, us. Each rule takes the value so far and the cell, and returns the next value.

``f64(...)`` marks NCCL's double literals.
"""

from collections.abc import Callable

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import Float, f32, f64, log2i
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.rules.call import ModelPoint

LatencyRule = Callable[[Float, ModelPoint], Float]
RULES: Registry[LatencyRule] = Registry()
NETWORK_STEP_RULES: Registry[Callable[[ModelPoint], Algorithm]] = Registry()
RING_NETWORK_STEPS_RULES: Registry[Callable[[ModelPoint], int]] = Registry()


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.EVERY_MODEL_INIT(since="2.31.2"))
def base(_: Float, point: ModelPoint) -> Float:
    """Software cost of starting the algorithm."""
    return f32(point.release.base_latency_us[point.algorithm][point.protocol])


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.RING_MODEL_INIT(since="2.31.2"))
def ring_steps(value: Float, point: ModelPoint) -> Float:
    """One step per rank (Broadcast and Reduce on equal channels: one), across nodes at least the CPU's time to post."""
    if point.collective in (Collective.Reduce, Collective.Broadcast):
        if point.graph.same_channels:
            return value + point.hw_latency_us("here")
        # Simple pays the latency of a chunk, which is taken from Tree's row.
        row = Algorithm.Tree if point.protocol is Protocol.Simple else None
        return value + f32(point.steps) * point.hw_latency_us("here", row)
    between = point.rules.ring_network_steps(point)
    inside = max(point.hw_latency_us("intra"), _net_overhead_us(point))
    return value + (f32(point.steps - between) * inside + f32(between) * _between_us(point))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.TREE_MODEL_INIT(since="2.31.2"))
def tree_up_and_down(value: Float, point: ModelPoint) -> Float:
    """A chain inside each node and a binary tree between nodes, there and back."""
    inside = f32(point.ranks // point.nodes - 1) * point.hw_latency_us("intra")
    return value + f32(2) * (inside + f32(log2i(point.nodes)) * _between_us(point))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.19.3"))
def collnet_direct(value: Float, point: ModelPoint) -> Float:
    """One step to the GPUs that talk to the network, 0.4 us for each of them to serialise, the network once."""
    return _collnet_direct(value, point, 0.4, _between_us(point))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def collnet_direct_half_us(value: Float, point: ModelPoint) -> Float:
    """One step to the GPUs that talk to the network, 0.5 us for each of them to serialise, the network once."""
    return _collnet_direct(value, point, 0.5, _between_us(point))


@RULES(nccl.COLLNET_MODEL_INIT(since="2.31.2"))
def collnet_direct_here(value: Float, point: ModelPoint) -> Float:
    """One step to the GPUs that talk to the network, 0.4 us for each to serialise, the network once if there is one."""
    return _collnet_direct(value, point, 0.4, _here_us(point))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def collnet_chain(value: Float, point: ModelPoint) -> Float:
    """A chain inside each node, there and back, and the network once."""
    return _collnet_chain(value, point, _between_us(point))


@RULES(nccl.COLLNET_MODEL_INIT(since="2.31.2"))
def collnet_chain_here(value: Float, point: ModelPoint) -> Float:
    """A chain inside each node, there and back, and the network once if there are several nodes."""
    return _collnet_chain(value, point, _here_us(point))


def _collnet_direct(value: Float, point: ModelPoint, each_us: float, network_us: Float) -> Float:
    others = point.ranks // point.nodes - 1
    steps = f32(min(1, others)) * point.hw_latency_us("intra") + f64(others) * f64(each_us)
    return f32(value + (f64(2) * steps + network_us))


def _collnet_chain(value: Float, point: ModelPoint, network_us: Float) -> Float:
    others = point.ranks // point.nodes - 1
    return value + (f32(2 * others) * point.hw_latency_us("intra") + network_us)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.19.3"), nccl.NVLS_MODEL_INIT(since="2.31.2"))
def nvls(_: Float, point: ModelPoint) -> Float:
    """One multicast step, and one network step if there are several nodes; no base latency."""
    inside = point.hw_latency_us("intra")
    return inside + _between_us(point) if point.nodes > 1 else inside


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def nvls_on_base(value: Float, point: ModelPoint) -> Float:
    """Adds to the base latency the network's latency, without the wire's."""
    return value + point.hw_latency_us("inter") if point.nodes > 1 else value


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def nvls_tree_on_base(value: Float, point: ModelPoint) -> Float:
    """Adds to the base latency twice the network's latency for each further node (sic: as in a ring)."""
    return value + f32(2 * (point.nodes - 1)) * point.hw_latency_us("inter")


@RULES(nccl.TOPO_TUNE_MODEL(since="2.19.3"), nccl.NVLS_MODEL_INIT(since="2.31.2"))
def nvls_tree(value: Float, point: ModelPoint) -> Float:
    """One multicast step inside a node, and a tree between nodes, there and back."""
    return value + (point.hw_latency_us("intra") + f32(2 * log2i(point.nodes)) * _between_us(point))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.28.3"))
def pat(value: Float, point: ModelPoint) -> Float:
    """A logarithmic part between nodes and a part linear in the ranks."""
    network = f64(log2i(point.nodes)) * (_between_us(point) / f64(3.5))
    return f32(value + (network + f64(point.ranks) * f64(2.8)))


@RULES(nccl.TOPO_TUNE_MODEL(since="2.23.4"))
def pat_from_8_us(_: Float, point: ModelPoint) -> Float:
    """8 us of base, a logarithmic part between nodes and a part linear in the ranks, rounded as one sum."""
    start = f64(8) + f64(log2i(point.nodes)) * (_between_us(point) / f64(3.5))
    return f32(start + f64(point.ranks) * f64(2.8))


@RULES(nccl.PAT_MODEL_INIT(since="2.31.2"))
def pat_with_one_wire(value: Float, point: ModelPoint) -> Float:
    """A logarithmic part between nodes, with the wire once, and a part linear in the ranks."""
    between = point.hw_latency_us("here") + f32(point.graph.latency_inter_us)
    network = f64(log2i(point.nodes)) * (between / f64(3.5))
    return f32(value + (network + f64(point.ranks) * f64(2.8)))


@NETWORK_STEP_RULES(nccl.TOPO_TUNE_MODEL(since="2.23.4"))
def tree_row_if_alone(point: ModelPoint) -> Algorithm:
    """With one rank per node nothing hides a network step, which is then taken from Tree's row."""
    return Algorithm.Tree if point.local_ranks == 1 else point.algorithm


@NETWORK_STEP_RULES(nccl.RING_MODEL_INIT(since="2.31.2"))
def tree_row_for_rings_if_alone(point: ModelPoint) -> Algorithm:
    """In a ring of one rank per node nothing hides a network step, which is then taken from Tree's row."""
    return tree_row_if_alone(point) if point.algorithm is Algorithm.Ring else point.algorithm


@NETWORK_STEP_RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def own_row(point: ModelPoint) -> Algorithm:
    """Each algorithm takes its network step from its own row."""
    return point.algorithm


def _between_us(point: ModelPoint) -> Float:
    """A network step; Simple flushes, so the wire counts twice."""
    return _with_wire(point.hw_latency_us("inter", point.rules.network_step(point)), point)


def _here_us(point: ModelPoint) -> Float:
    """The latency of one step: over the network, or inside the node if there is only one."""
    return _with_wire(point.hw_latency_us("here"), point)


def _with_wire(latency: Float, point: ModelPoint) -> Float:
    latency = latency + f32(point.graph.latency_inter_us)
    return latency + f32(point.graph.latency_inter_us) if point.protocol is Protocol.Simple else latency


@RING_NETWORK_STEPS_RULES(nccl.TOPO_TUNE_MODEL(since="2.23.4"), nccl.RING_MODEL_INIT(since="2.31.2"))
def two_per_further_node(point: ModelPoint) -> int:
    """Network steps of a ring: one per further node, or two for AllReduce."""
    return 0 if point.nodes == 1 else (point.nodes - 1) * (2 if point.collective is Collective.AllReduce else 1)


@RING_NETWORK_STEPS_RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def two_per_node(point: ModelPoint) -> int:
    """Network steps of a ring: one per further node, or, two too many, two per node for AllReduce (sic)."""
    if point.collective is Collective.AllReduce:
        return 2 * point.nodes if point.nodes > 1 else 0
    return point.nodes - 1


def _net_overhead_us(point: ModelPoint) -> Float:
    """The time that the CPU needs to post to the network, us; Simple posts three times."""
    if point.nodes == 1:
        return f32(0)
    requested_ns = point.environment.number("NCCL_NET_OVERHEAD", -2)
    by_vendor = point.release.net_overhead_us
    own_us = by_vendor["other"]
    if point.communicator.cpu_arch == "x86_64" and point.communicator.cpu_vendor == "GenuineIntel":
        own_us = by_vendor["intel"]
    if point.communicator.cpu_arch == "x86_64" and point.communicator.cpu_vendor == "AuthenticAMD":
        own_us = by_vendor["amd"]
    overhead = f32(own_us) if requested_ns == -2 else f32(f64(requested_ns) * f64(0.001))
    return overhead * f32(3) if point.protocol is Protocol.Simple else overhead

"""Steps of a latency, us. Each takes the value so far and the cell, and returns the next value.

Source: ncclTopoTuneModel, src/graph/tuning.cc, v2.28.9-1.

``f64(...)`` marks NCCL's double literals.
"""

from collections.abc import Callable

from tuner.cfloat import Float, f32, f64, log2i
from tuner.names import Algorithm, Collective, Protocol
from tuner.registry import Registry
from tuner.rules.cell import Cell

LatencyRule = Callable[[Float, Cell], Float]
RULES: Registry[LatencyRule] = Registry()
NETWORK_STEP_RULES: Registry[Callable[[Cell], Algorithm]] = Registry()
RING_NETWORK_STEPS_RULES: Registry[Callable[[Cell], int]] = Registry()


@RULES
def base(_: Float, cell: Cell) -> Float:
    """Software cost of starting the algorithm."""
    latency: Float = cell.release.base_latency_us[cell.algorithm, cell.protocol]
    return latency


@RULES
def ring_steps(value: Float, cell: Cell) -> Float:
    """A step a rank (Broadcast, Reduce on like channels: one in all), across nodes at least the CPU's time to post."""
    if cell.collective in (Collective.Reduce, Collective.Broadcast):
        if cell.graph.same_channels:
            return value + cell.hw_latency_us("here")
        # Simple pays a chunk latency, taken from Tree's row.
        row = Algorithm.Tree if cell.protocol is Protocol.Simple else None
        return value + f32(cell.steps) * cell.hw_latency_us("here", row)
    (steps_rule,) = cell.release.rules("ring_network_steps")
    between = RING_NETWORK_STEPS_RULES[steps_rule](cell)
    inside = max(cell.hw_latency_us("intra"), _net_overhead_us(cell))
    return value + (f32(cell.steps - between) * inside + f32(between) * _between_us(cell))


@RULES
def tree_up_and_down(value: Float, cell: Cell) -> Float:
    """A chain inside each node and a binary tree between nodes, there and back."""
    inside = f32(cell.ranks // cell.nodes - 1) * cell.hw_latency_us("intra")
    return value + f32(2) * (inside + f32(log2i(cell.nodes)) * _between_us(cell))


@RULES
def collnet_direct(value: Float, cell: Cell) -> Float:
    """One step to the GPUs that talk to the network, 0.4 us for each of them to serialise, the network once."""
    return _collnet_direct(value, cell, 0.4, _between_us(cell))


@RULES
def collnet_direct_half_us(value: Float, cell: Cell) -> Float:
    """One step to the GPUs that talk to the network, 0.5 us for each of them to serialise, the network once."""
    return _collnet_direct(value, cell, 0.5, _between_us(cell))


@RULES
def collnet_direct_here(value: Float, cell: Cell) -> Float:
    """One step to the GPUs that talk to the network, 0.4 us for each to serialise, the network once if there is one."""
    return _collnet_direct(value, cell, 0.4, _here_us(cell))


@RULES
def collnet_chain(value: Float, cell: Cell) -> Float:
    """A chain inside each node, there and back, and the network once."""
    return _collnet_chain(value, cell, _between_us(cell))


@RULES
def collnet_chain_here(value: Float, cell: Cell) -> Float:
    """A chain inside each node, there and back, and the network once where there are several nodes."""
    return _collnet_chain(value, cell, _here_us(cell))


def _collnet_direct(value: Float, cell: Cell, each_us: float, network_us: Float) -> Float:
    others = cell.ranks // cell.nodes - 1
    steps = f32(min(1, others)) * cell.hw_latency_us("intra") + f64(others) * f64(each_us)
    return f32(value + (f64(2) * steps + network_us))


def _collnet_chain(value: Float, cell: Cell, network_us: Float) -> Float:
    others = cell.ranks // cell.nodes - 1
    return value + (f32(2 * others) * cell.hw_latency_us("intra") + network_us)


@RULES
def nvls(_: Float, cell: Cell) -> Float:
    """One multicast step, and one network step where there are several nodes; no base."""
    inside = cell.hw_latency_us("intra")
    return inside + _between_us(cell) if cell.nodes > 1 else inside


@RULES
def nvls_on_base(value: Float, cell: Cell) -> Float:
    """On top of a base, the network's latency without the wire's."""
    return value + cell.hw_latency_us("inter") if cell.nodes > 1 else value


@RULES
def nvls_tree_on_base(value: Float, cell: Cell) -> Float:
    """On top of a base, twice the network's latency for each further node (sic: as in a ring)."""
    return value + f32(2 * (cell.nodes - 1)) * cell.hw_latency_us("inter")


@RULES
def nvls_tree(value: Float, cell: Cell) -> Float:
    """One multicast step inside a node, and a tree between nodes, there and back."""
    return value + (cell.hw_latency_us("intra") + f32(2 * log2i(cell.nodes)) * _between_us(cell))


@RULES
def pat(value: Float, cell: Cell) -> Float:
    """A logarithmic part between nodes and a part linear in the ranks."""
    network = f64(log2i(cell.nodes)) * (_between_us(cell) / f64(3.5))
    return f32(value + (network + f64(cell.ranks) * f64(2.8)))


@RULES
def pat_from_8_us(_: Float, cell: Cell) -> Float:
    """8 us of base, a logarithmic part between nodes and a part linear in the ranks, rounded as one sum."""
    start = f64(8) + f64(log2i(cell.nodes)) * (_between_us(cell) / f64(3.5))
    return f32(start + f64(cell.ranks) * f64(2.8))


@RULES
def pat_with_one_wire(value: Float, cell: Cell) -> Float:
    """A logarithmic part between nodes, with the wire once, and a part linear in the ranks."""
    between = cell.hw_latency_us("here") + f32(cell.graph.latency_inter_us)
    network = f64(log2i(cell.nodes)) * (between / f64(3.5))
    return f32(value + (network + f64(cell.ranks) * f64(2.8)))


@NETWORK_STEP_RULES
def tree_row_if_alone(cell: Cell) -> Algorithm:
    """One rank per node exposes a network step whole: Tree's row."""
    return Algorithm.Tree if cell.local_ranks == 1 else cell.algorithm


@NETWORK_STEP_RULES
def tree_row_for_rings_if_alone(cell: Cell) -> Algorithm:
    return tree_row_if_alone(cell) if cell.algorithm is Algorithm.Ring else cell.algorithm


@NETWORK_STEP_RULES
def own_row(cell: Cell) -> Algorithm:
    return cell.algorithm


def _between_us(cell: Cell) -> Float:
    """A network step; Simple flushes, so the wire counts twice."""
    (rule,) = cell.release.rules("network_step")
    return _with_wire(cell.hw_latency_us("inter", NETWORK_STEP_RULES[rule](cell)), cell)


def _here_us(cell: Cell) -> Float:
    """A network step, or one inside the only node."""
    return _with_wire(cell.hw_latency_us("here"), cell)


def _with_wire(latency: Float, cell: Cell) -> Float:
    latency = latency + f32(cell.graph.latency_inter_us)
    return latency + f32(cell.graph.latency_inter_us) if cell.protocol is Protocol.Simple else latency


@RING_NETWORK_STEPS_RULES
def two_per_further_node(cell: Cell) -> int:
    """Network steps of a ring, twice as many for AllReduce."""
    return 0 if cell.nodes == 1 else (cell.nodes - 1) * (2 if cell.collective is Collective.AllReduce else 1)


@RING_NETWORK_STEPS_RULES
def two_per_node(cell: Cell) -> int:
    """Network steps of a ring, for AllReduce twice as many and two too many (sic)."""
    if cell.collective is Collective.AllReduce:
        return 2 * cell.nodes if cell.nodes > 1 else 0
    return cell.nodes - 1


def _net_overhead_us(cell: Cell) -> Float:
    """What posting to the network costs the CPU; Simple posts three times."""
    if cell.nodes == 1:
        return f32(0)
    asked_ns = cell.environment.number("NCCL_NET_OVERHEAD", -2)
    table = cell.release.table["net_overhead_us"]
    vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(cell.communicator.cpu_vendor or "", "other")
    row = vendor if cell.communicator.cpu_arch == "x86_64" else "other"
    overhead = f32(table[row]) if asked_ns == -2 else f32(f64(asked_ns) * f64(0.001))
    return overhead * f32(3) if cell.protocol is Protocol.Simple else overhead

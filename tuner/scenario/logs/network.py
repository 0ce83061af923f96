"""What a log says of the network: its latency and its bandwidth, where the emulator needs them."""

from collections.abc import Sequence

from tuner.base.errors import BadInput
from tuner.base.names import CPU_ARCHS
from tuner.release import Release
from tuner.scenario.logs.imported import NodeFacts
from tuner.scenario.logs.reading import Reading

# NCCL's own networks set no latency (src/transport/net_ib.cc, net_socket.cc); plugins may.
_NETWORKS_WITHOUT_LATENCY = ("IB", "Socket")


def latency_us(reading: Reading, nodes: int | None) -> float | None:
    """In us, as given, or 0 where it does not count or NCCL\'s own networks are used; None where it is needed."""
    if reading.given.net_latency_us is not None:
        return reading.given.net_latency_us
    networks = {
        reading.log.networks[log.thread.process] for log in reading.logs if log.thread.process in reading.log.networks
    }
    if reading.given.graphs or nodes == 1 or (networks and networks <= set(_NETWORKS_WITHOUT_LATENCY)):
        return 0.0
    name = f"network {', '.join(sorted(networks))}" if networks else "the network"
    reading.needed.append(f"{name}'s latency: `net_latency_us`; 0 for NCCL's own (a line 'Using network IB')")
    return None


def slowest_gbs(reading: Reading, nccl: Release | None, nodes: Sequence[NodeFacts]) -> float | None:
    """As given; None where nobody gives it, which is said where it is needed."""
    if reading.given.net_gbs is None and nccl is not None and _counts(nccl, nodes):
        reading.needed.append(_SLOWEST)
    return reading.given.net_gbs


_SLOWEST = "the bandwidth of the slowest path from a GPU to its adapter in GB/s: `net_gbs`"


def check_slowest(nccl: Release, nodes: Sequence[NodeFacts], net_gbs: float | None) -> None:
    """BadInput where these nodes need that bandwidth, and it is not known."""
    if net_gbs is None and _counts(nccl, nodes):
        raise BadInput(f"needed on {len(nodes)} nodes: {_SLOWEST}")


def _counts(nccl: Release, nodes: Sequence[NodeFacts]) -> bool:
    """Only NVLS on Blackwell looks at it, in some releases on three nodes or more, in others beside ARM."""
    if not any("nvls" in (node.graphs or {}) for node in nodes):
        return False
    blackwell = any(value >= 100 for node in nodes for value in node.comp_caps or ())
    channels = len(nodes) > 2 and nccl.rules.nvls_channels == "by_generation_nodes_and_network"
    arm = nodes[0].cpu_arch == CPU_ARCHS[1] and "nvls_tree_correction_on_blackwell" in nccl.rules.time
    return blackwell and (channels or (arm and len(nodes) > 1))

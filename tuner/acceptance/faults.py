"""Single faults of a machine, as what NCCL's search would find with them: graphs with less bandwidth, or without NVLS.

A share is what is left of a bandwidth. Libnccl itself is not asked: what its search finds on a changed topology is the
business of ``nccl-tuner whatif``; benchmarks/accept.py plants that as the truth and counts how often the fault that is
named here is the one that was planted.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tuner.base.names import Algorithm
from tuner.emulator.communicator import Communicator, Node
from tuner.machine.graphs import Graph
from tuner.machine.topology import Topology

_FALL_BACK = {"NVL", "NVB"}  # paths that NCCL takes for GPUs joined by NVLink
_WORSE_PCIE = (0.5, 0.25)  # a generation less or half of the lanes, and both
_HOST_MEMORY = ((0.6, 1.25), (0.45, 1.25), (0.45, 1.6), (0.3, 1.25), (0.3, 1.6), (0.2, 1.6))  # bandwidth, hop
_SLOWER_HOPS = (1.3, 1.6, 2.0, 3.0)
_NVLINKS_LEFT = (0.9, 0.75, 2 / 3, 0.5, 1 / 3, 0.25)
_WITHOUT_P2P = (0.15, 0.1, 0.06, 0.03)  # of NVLink's bandwidth, through PCIe and the host's memory
_WITHOUT_P2P_ON_PCIE = (0.7, 0.5, 0.3)


class Resource(StrEnum):
    """What a loss may point to."""

    adapters = "adapters"
    pcie_link = "PCIe link"
    gpu_direct = "GPUDirect"
    network_latency = "network latency"
    nvlinks = "NVLinks"
    nvls = "NVLS"
    p2p = "P2P"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in words, and what it leaves: shares of the bandwidth inside a node and between nodes.

    ``hop``: factor of the latency of each step between nodes. ``without_nvls``: NVLS is off. ``missing``: how many
    parts, where there are several of a kind.
    """

    resource: Resource
    what: str
    intra: float = 1.0
    inter: float = 1.0
    hop: float = 1.0
    without_nvls: bool = False
    missing: int = 1


def of_communicator(communicator: Communicator, topology: Topology) -> tuple[Fault, ...]:
    """The faults that could show on a communicator, those that are more common first."""
    found: list[Fault] = []
    if communicator.nodes > 1:
        found += _between_nodes(communicator, topology)
    if communicator.max_local_ranks > 1:
        found += _in_a_node(communicator, topology)
    return tuple(found)


def _between_nodes(communicator: Communicator, topology: Topology) -> Iterator[Fault]:
    adapters = adapters_used(communicator, topology)
    for missing in range(1, adapters):
        words = "1 adapter of each node is" if missing == 1 else f"{missing} adapters of each node are"
        what = f"{words} missing of {adapters}"
        yield Fault(Resource.adapters, what, inter=(adapters - missing) / adapters, missing=missing)
    for share in _WORSE_PCIE:
        yield Fault(Resource.pcie_link, f"a PCIe link of an adapter at {share:g} of its speed", inter=share)
    for share, hop in _HOST_MEMORY:
        what = f"data go through the host's memory (GPUDirect off, or adapters of another NUMA node): {share:.0%} left"
        yield Fault(Resource.gpu_direct, what, inter=share, hop=hop)
    for hop in _SLOWER_HOPS:
        yield Fault(Resource.network_latency, f"each step between nodes takes {hop:g} times as long", hop=hop)


def _in_a_node(communicator: Communicator, topology: Topology) -> Iterator[Fault]:
    if communicator.nvls:
        yield Fault(Resource.nvls, "NVLS is off", without_nvls=True)
    if communicator.graphs[Algorithm.Ring].type_intra in _FALL_BACK:
        links = max(sum(link.count for link in gpu.nvlinks) for gpu in topology.gpus)
        for left in dict.fromkeys(max(round(share * links), 1) for share in _NVLINKS_LEFT):
            if left < links:
                yield Fault(Resource.nvlinks, f"{left} of {links} NVLinks of a GPU are left", intra=left / links)
        for share in _WITHOUT_P2P:
            what = f"GPUs of a node do not reach each other over NVLink (P2P off): {share:.0%} of its bandwidth left"
            yield Fault(Resource.p2p, what, intra=share, without_nvls=True)
        return
    if communicator.nodes == 1:
        for share in _WITHOUT_P2P_ON_PCIE:
            what = f"GPUs of a node go through the host's memory (P2P off, or wrong NUMA node): {share:.0%} left"
            yield Fault(Resource.p2p, what, intra=share)
        for share in _WORSE_PCIE:
            yield Fault(Resource.pcie_link, f"a GPU's PCIe link at {share:g} of its speed", intra=share)


def adapters_used(communicator: Communicator, topology: Topology) -> int:
    """How many adapters of a node carry the ring; 0 where none is known."""
    speeds_gbs = [net.speed_mbps / 8000 for net in topology.nets if net.speed_mbps]
    ring = communicator.graphs[Algorithm.Ring]
    if not speeds_gbs or communicator.nodes == 1:
        return 0
    return min(math.ceil(ring.channels * ring.bw_inter_gbs / max(speeds_gbs) - 0.1), len(speeds_gbs))


def faulty(node: Node, alone: Node, fault: Fault, several: bool) -> Node:
    """The ``node`` with a fault. ``alone``: the same node where it is the only one, whose ring NVLink alone bounds."""
    ring = alone.graphs.get("ring")
    most_gbs = math.inf if ring is None or fault.intra == 1 else fault.intra * ring.channels * ring.bw_intra_gbs
    graphs = {}
    for name, graph in node.graphs.items():
        if name.startswith("nvls"):
            if not fault.without_nvls:
                graphs[name] = _scaled(graph, fault.intra, fault.inter if several else 1.0)
        elif several:
            graphs[name] = _bounded(_scaled(graph, 1.0, fault.inter), most_gbs)
        else:
            graphs[name] = _scaled(graph, fault.intra, fault.intra)
    return replace(node, graphs=graphs)


def _scaled(graph: Graph, intra: float, inter: float) -> Graph:
    """With fewer channels where both bandwidths fall alike and channels divide, as NCCL's search prefers."""
    if intra == inter and (left := graph.channels * intra) == int(left) and left:
        return replace(graph, channels=int(left))
    return replace(graph, bw_intra_gbs=graph.bw_intra_gbs * intra, bw_inter_gbs=graph.bw_inter_gbs * inter)


def _bounded(graph: Graph, most_gbs: float) -> Graph:
    each_gbs = most_gbs / max(graph.channels, 1)
    return replace(
        graph, bw_intra_gbs=min(graph.bw_intra_gbs, each_gbs), bw_inter_gbs=min(graph.bw_inter_gbs, each_gbs)
    )

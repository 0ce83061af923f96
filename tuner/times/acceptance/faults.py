"""Single faults of a machine. Each is expressed by the graphs that NCCL's search would find with it: with less
bandwidth, or without NVLS.

A share is the part of a bandwidth that is left. This module does not run libnccl; ``nccl-tuner diff`` shows what its
search finds on a changed topology. benchmarks/accept.py simulates such faults and counts how often the named fault is
the right one.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from itertools import product

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm
from tuner.emulator.communicator import Comm, Node
from tuner.machine.graphs import Graph
from tuner.machine.topology import Topology

_FALL_BACK = {"NVL", "NVB"}  # path types that NCCL uses instead for GPUs joined by NVLink
_WORSE_PCIE = (0.5, 0.25)  # one generation less, or half of the lanes; and both
_HOST_MEMORY = (0.6, 0.5, 0.42, 0.33, 0.25, 0.2)
_HOST_MEMORY_HOPS = (1.2, 1.4, 1.7)
# Bandwidth, and factor on the latency of a step
_SOCKETS = tuple(product((0.15, 0.09, 0.05, 0.02), (1.0, 2.0, 4.0, 8.0)))
_SLOWER_HOPS = (1.3, 1.6, 2.0, 3.0)
_NVLINKS_LEFT = (0.9, 0.75, 2 / 3, 0.5, 1 / 3, 0.25, 1 / 6, 1 / 12)
_WITHOUT_P2P = (0.15, 0.1, 0.06, 0.03)  # share of NVLink's bandwidth that is left through PCIe and the host's memory
_WITHOUT_P2P_ON_PCIE = (0.7, 0.5, 0.3)
_BIDIRECTIONAL = (0.55, 0.5)
_SPLIT_DATA = (0.9, 0.8, 0.7)
_ACS = (0.4, 0.25)
_LESS_LIKELY = 0.25  # compared with the fault that is found most often
_RARE = 1.0


class Resource(StrEnum):
    """A resource of the machine to which a loss may point."""

    hca_list = "HCA list"
    adapters = "adapters"
    bidirectional = "bidirectional RDMA"
    split_data = "NCCL_IB_SPLIT_DATA_ON_QPS"
    acs = "ACS or IOMMU"
    pcie_link = "PCIe link"
    gpu_direct = "GPUDirect"
    sockets = "TCP sockets"
    network_latency = "network latency"
    nvlinks = "NVLinks"
    nvls = "NVLS"
    p2p = "P2P"
    small_messages = "small-message floor"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, in words, and the shares of the bandwidth that it leaves inside a node and between nodes.

    ``hop``: factor on the latency of each step between nodes. ``without_nvls``: NVLS is off. ``missing``: how many
    parts failed, if the machine has several parts of that kind. ``rare``: prior penalty, as a natural logarithm.
    ``channels``: whether NCCL's search with the fault finds fewer channels (where they divide evenly) rather than
    slower channels; either can occur.
    """

    resource: Resource
    what: str
    intra: float = 1.0
    inter: float = 1.0
    hop: float = 1.0
    without_nvls: bool = False
    missing: int = 1
    rare: float = 0.0
    channels: bool = False


def of_communicator(communicator: Comm, topology: Topology) -> tuple[Fault, ...]:
    """The faults that could show on a communicator, more common ones first."""
    faults: list[Fault] = []
    if communicator.nodes > 1:
        faults += _between_nodes(communicator, topology)
    if communicator.max_local_ranks > 1:
        faults += _in_a_node(communicator, topology)
    return tuple(faults)


def _between_nodes(communicator: Comm, topology: Topology) -> Iterator[Fault]:
    adapters = adapters_used(communicator, topology)
    for missing in range(1, adapters):
        names = "one adapter" if adapters - missing == 1 else f"{adapters - missing} adapters"
        share = (adapters - missing) / adapters
        yield Fault(Resource.hca_list, f"NCCL_IB_HCA names {names} of {adapters}", inter=share, missing=missing)
        words = "1 adapter of each node is" if missing == 1 else f"{missing} adapters of each node are"
        what = f"{words} missing of {adapters}"
        for fewer in (True, False):
            share = (adapters - missing) / adapters
            yield Fault(Resource.adapters, what, inter=share, missing=missing, rare=_LESS_LIKELY, channels=fewer)
    for share in _BIDIRECTIONAL:
        what = f"adapters send and receive at once at {share:.0%} of their speed: PCIe's read requests or ordering"
        yield Fault(Resource.bidirectional, what, inter=share)
    for share in _SPLIT_DATA:
        what = f"queue pairs share the data of a message (NCCL_IB_SPLIT_DATA_ON_QPS): {share:.0%} of the bandwidth left"
        yield Fault(Resource.split_data, what, inter=share, rare=_LESS_LIKELY)
    for share in _ACS:
        what = f"data of adapters go up to the host's root and down again (ACS, or the IOMMU): {share:.0%} left"
        yield Fault(Resource.acs, what, inter=share, rare=_LESS_LIKELY)
    for share in _WORSE_PCIE:
        yield Fault(Resource.pcie_link, f"a PCIe link of an adapter at {share:g} of its speed", inter=share)
    for share, hop in product(_HOST_MEMORY, _HOST_MEMORY_HOPS):
        what = f"data go through the host's memory (GPUDirect off, or adapters of another NUMA node): {share:.0%} left"
        yield Fault(Resource.gpu_direct, what, inter=share, hop=hop)
    for share, hop in _SOCKETS:
        what = f"NCCL talks over TCP sockets and not over the adapters: {share:.0%} of their bandwidth left"
        yield Fault(Resource.sockets, what, inter=share, hop=hop)
    for hop in _SLOWER_HOPS:
        yield Fault(Resource.network_latency, f"each step between nodes takes {hop:g} times as long", hop=hop)


def _in_a_node(communicator: Comm, topology: Topology) -> Iterator[Fault]:
    if communicator.nvls:
        yield Fault(Resource.nvls, "the NVSwitches do not reduce", without_nvls=True)
    if communicator.graphs[Algorithm.Ring].type_intra in _FALL_BACK:
        rare = _RARE if communicator.nodes > 1 else 0.0  # on several nodes, other faults show as well
        rare += _LESS_LIKELY * 2 if communicator.nvls else 0.0  # NVLS that is off is seen more often
        links = max(sum(link.count for link in gpu.nvlinks) for gpu in topology.gpus)
        for left in dict.fromkeys(max(round(share * links), 1) for share in _NVLINKS_LEFT):
            if left < links:
                what = f"{left} of {links} NVLinks of a GPU are left"
                for fewer in (True, False):
                    yield Fault(Resource.nvlinks, what, intra=left / links, rare=rare, channels=fewer)
        for share in _WITHOUT_P2P:
            what = f"GPUs of a node do not reach each other over NVLink (P2P off): {share:.0%} of its bandwidth left"
            yield Fault(Resource.p2p, what, intra=share, without_nvls=True, rare=rare + _RARE / 2)
        return
    if communicator.nodes == 1:
        for share in _WITHOUT_P2P_ON_PCIE:
            what = f"GPUs of a node go through the host's memory (P2P off, or wrong NUMA node): {share:.0%} left"
            yield Fault(Resource.p2p, what, intra=share)
        for share in _WORSE_PCIE:
            yield Fault(Resource.pcie_link, f"a GPU's PCIe link at {share:g} of its speed", intra=share)


def adapters_used(communicator: Comm, topology: Topology) -> int:
    """How many of a node's adapters the ring uses; 0 on one node, or if no adapter's speed is known."""
    speeds_gbs = [net.speed_mbps / 8000 for net in topology.nets if net.speed_mbps]
    ring = communicator.graphs[Algorithm.Ring]
    if not speeds_gbs or communicator.nodes == 1:
        return 0
    return min(math.ceil(ring.channels * ring.bw_inter_gbs / max(speeds_gbs) - 0.1), len(speeds_gbs))


def faulty(node: Node, alone: Node, fault: Fault, several: bool) -> Node:
    """The ``node`` with a fault. ``alone``: the node as a one-node communicator, in which only NVLink limits the
    ring.
    """
    ring = alone.graphs.get("ring")
    most_gbs = math.inf if ring is None or fault.intra == 1 else fault.intra * ring.channels * ring.bw_intra_gbs
    graphs = {}
    for name, healthy in node.graphs.items():
        graph = _less_between(healthy, fault, name) if several else healthy
        if name.startswith("nvls"):
            if not fault.without_nvls:
                graphs[name] = replace(graph, bw_intra_gbs=graph.bw_intra_gbs * fault.intra)
        elif several:
            graphs[name] = _bounded(graph, most_gbs, fault.channels)
        else:
            graphs[name] = _less(graph, fault.intra, fault.intra, fault.channels)
    return replace(node, graphs=graphs)


def _less_between(graph: Graph, fault: Fault, name: str) -> Graph:
    """The graph with less bandwidth between nodes. As NCCL's search does, the bandwidth inside is lowered to the same,
    or for a tree to twice that.
    """
    if fault.inter == 1:
        return graph
    less = _less(graph, 1.0, fault.inter, fault.channels)
    return replace(less, bw_intra_gbs=min(less.bw_intra_gbs, less.bw_inter_gbs * (2 if name == "tree" else 1)))


def _less(graph: Graph, intra: float, inter: float, channels: bool) -> Graph:
    """The graph with shares of both bandwidths: with fewer channels if they divide evenly, else with slower
    channels.
    """
    left = graph.channels * min(intra, inter)
    if channels and left >= 1 and left.is_integer():
        return replace(graph, channels=int(left))
    return replace(graph, bw_intra_gbs=graph.bw_intra_gbs * intra, bw_inter_gbs=graph.bw_inter_gbs * inter)


def _bounded(graph: Graph, most_gbs: float, channels: bool) -> Graph:
    """The graph limited to ``most_gbs`` over all channels, by fewer channels or by slower ones."""
    slowest_gbs = min(graph.bw_intra_gbs, graph.bw_inter_gbs)
    if channels and most_gbs < graph.channels * slowest_gbs:
        return replace(graph, channels=max(round(most_gbs / slowest_gbs), 1))
    each_gbs = most_gbs / max(graph.channels, 1)
    return replace(
        graph, bw_intra_gbs=min(graph.bw_intra_gbs, each_gbs), bw_inter_gbs=min(graph.bw_inter_gbs, each_gbs)
    )

"""Collects the nodes of a communicator from what its ranks printed: ranks, GPUs, processors and graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.names import CPU_ARCHS, CPU_VENDORS, PATH_NAMES, Pattern
from tuner.base.sizes import plural
from tuner.base.spelling import option, spelled
from tuner.emulator.rules import init
from tuner.machine import gpus
from tuner.machine.graphs import Graph, Graphs
from tuner.machine.topology import Topology
from tuner.release import Release
from tuner.scenario.logs.imported import NodeFacts, Reading
from tuner.scenario.logs.reader import PrintedGraph, RankLog

_ARCHS = {1: CPU_ARCHS[0], 2: CPU_ARCHS[2], 3: CPU_ARCHS[1]}
_VENDORS = {1: CPU_VENDORS[0], 2: CPU_VENDORS[1], 3: CPU_VENDORS[2]}


def count(reading: Reading) -> int | None:
    """The number of nodes: from the user, from a printed line, or derived from the ring; None if none of these has
    it."""
    assert reading.group is not None
    if reading.given.nodes is not None:
        return reading.given.nodes
    printed = next((log.nodes for log in reading.logs if log.nodes is not None), None)
    if printed is not None:
        return printed
    sizes = {(size, "clique" if log.clique_ranks else "ring") for log in reading.logs if (size := log.node_ranks)}
    if reading.group.ranks and len(sizes) == 1 and reading.group.ranks % min(sizes)[0] == 0:
        size, shown_by = min(sizes)
        nodes = reading.group.ranks // size
        reading.notes.append(f"{nodes} nodes: no line 'nNodes ...', the {shown_by} has {plural(size, 'GPU')}")
        return nodes
    reading.needed.append(f"the number of nodes: a line 'nNodes ...' or the ring's channels, or {option('nodes')}")
    return None


def of_nodes(
    reading: Reading, nccl: Release | None, environment: Mapping[str, str], count: int | None
) -> tuple[NodeFacts, ...]:
    """The facts of each of ``count`` nodes; nodes that the log does not show get those of the first node that it shows.

    Raises BadInput if the number of given compute capabilities does not fit the number of ranks.
    """
    assert reading.group is not None
    ranks = reading.group.ranks
    by_node = _by_node(reading, count)
    path_types = nccl.paths.types if nccl else PATH_NAMES
    latency_us = network_latency_us(reading, count)
    if count == 1:
        _add_fallbacks(by_node[0])
    nodes = [_node(reading, logs, path_types, latency_us) for logs in by_node]
    nodes = _filled(reading, nodes, count, ranks)
    _need(reading, nodes, environment)
    if any(node.mnnvl for node in nodes):
        _say_domains(reading, nodes, nccl)
    return tuple(nodes)


def _add_fallbacks(logs: list[RankLog]) -> None:
    """If NCCL says that it found no graph, adds the one that it uses instead: one channel in the order of GPUs.

    The graphs are only added for one node, because with several nodes the adapters are not known (ncclTopoCompute,
    src/graph/search.cc, v2.28.9-1).
    """
    missing = {pattern for log in logs for pattern in log.fallback_patterns}
    for log in logs:
        printed = {graph.pattern for graph in log.graphs}
        for pattern in sorted(missing - printed, key=lambda each: each != Pattern.Ring):
            log.graphs.append(PrintedGraph(pattern, 0, 1, "0.100000", "0.100000", "SYS", "SYS", True))


def _by_node(reading: Reading, count: int | None) -> list[list[RankLog]]:
    """Divides the ranks into nodes: by NVLink domain; by host, if there are as many hosts as nodes; or else by their
    local ranks.

    Local ranks are enough if all ranks are shown and consecutive, or if all nodes have the same size.
    """
    logs = sorted(reading.logs, key=lambda log: log.rank or 0)  # rank 0's node is the first, whichever rank logs first
    hosts = list(dict.fromkeys(log.thread.host for log in logs))
    joined = any(log.mnnvl for log in logs)
    fabrics = list(dict.fromkeys(log.fabric for log in logs)) if joined else []
    if fabrics and len(fabrics) == count and None not in fabrics:
        return [[log for log in logs if log.fabric == fabric] for fabric in fabrics]
    if len(hosts) == count and not joined:
        return [[log for log in logs if log.thread.host == host] for host in hosts]
    starts = [index for index, log in enumerate(logs) if log.local_rank == 0]
    parts = [logs[start:end] for start, end in pairwise([*starts, len(logs)])]
    in_order = [local_rank for part in parts for local_rank in range(len(part))]
    if len(parts) == count and in_order == [log.local_rank for log in logs]:
        return parts
    sizes = {size for log in logs if (size := log.node_ranks)}
    if len(sizes) != 1:
        return [logs]
    size = min(sizes)
    return [list(part) for _, part in groupby(logs, key=lambda log: (log.rank or 0) // size)]


def _node(reading: Reading, logs: list[RankLog], path_types: Sequence[str], latency_us: float | None) -> NodeFacts:
    given, topology = reading.given, reading.given.topology
    ranks = tuple(sorted(log.rank for log in logs if log.rank is not None))
    local_ranks = next((size for log in logs if (size := log.node_ranks)), None)
    hosts = max((len(log.hosts) for log in logs), default=0) or None
    arch, vendor = next((_cpu(cpu) for log in logs for cpu in log.cpus), (None, None))
    nvswitch = any(log.nvswitch for log in logs) if any(log.system for log in logs) else None
    placed = _placed(topology, local_ranks, hosts)
    if topology is not None and placed is not None:
        arch, vendor = topology.cpu_arch, topology.cpu_vendor
        nvswitch = topology.has_nvswitch(max(placed) + 1)
    graphs = given.graphs or _graphs(reading, logs, path_types, latency_us or 0.0)
    return NodeFacts(
        ranks=ranks,
        local_ranks=local_ranks,
        hosts=hosts,
        mnnvl=any(log.mnnvl for log in logs),
        comp_caps=_comp_caps(reading, ranks, local_ranks, hosts),
        cpu_arch=given.cpu_arch or arch,
        cpu_vendor=given.cpu_vendor or vendor,
        nvswitch=nvswitch if given.nvswitch is None else given.nvswitch,
        graphs=graphs,
        linked=_linked(logs),
    )


def _linked(logs: list[RankLog]) -> tuple[bool, bool]:
    """Whether NVLink joins any two GPUs directly, and whether it joins every GPU to every other one."""
    linked: dict[str, set[str]] = next((log.linked for log in logs if log.linked), {})
    every = bool(linked) and all(set(linked) - {gpu} <= others for gpu, others in linked.items())
    return any(linked.values()), every and len(linked) > 1


def _graphs(reading: Reading, logs: list[RankLog], path_types: Sequence[str], latency_us: float) -> Graphs | None:
    """The weakest of the graphs that the node's ranks printed; None if no rank printed any."""
    searched = []
    for log in logs:
        graphs, doubts = graphs_of_rank(log.graphs, latency_us)
        reading.notes.extend([doubt for doubt in doubts if doubt not in reading.notes])
        searched += [graphs] if graphs else []
    # A graph that is not printed is the same as the others'
    names = dict.fromkeys(name for graphs in searched for name in graphs)
    weakest = {
        name: init.weakest([graphs[name] for graphs in searched if name in graphs], path_types) for name in names
    }
    return {name: graph for name, graph in weakest.items() if graph.channels > 0} or None


def _placed(topology: Topology | None, local_ranks: int | None, hosts: int | None) -> tuple[int, ...] | None:
    """The GPU in the topology of each local rank, host by host if the topology describes one host; None if this is not
    known."""
    if topology is None or local_ranks is None:
        return None
    if (placed := topology.placed(local_ranks)) is not None:
        return placed
    of_host = topology.placed(local_ranks // hosts) if hosts and local_ranks % hosts == 0 else None
    return None if of_host is None else of_host * (hosts or 1)


def _comp_caps(
    reading: Reading, ranks: tuple[int, ...], local_ranks: int | None, hosts: int | None
) -> tuple[int, ...] | None:
    given, total = reading.given.comp_caps, reading.group.ranks if reading.group else None
    if local_ranks is None:
        return None
    if len(given) == 1:
        return given * local_ranks
    if given:
        if len(given) != total or len(ranks) != local_ranks:
            raise BadInput(
                f"{option('comp_cap')} has {len(given)} values for {total} ranks, and the log shows {len(ranks)} of "
                f"the {local_ranks} ranks of a node: give one value, or one per rank if the log has all ranks"
            )
        return tuple(given[rank] for rank in ranks)
    topology = reading.given.topology
    if topology is not None and (placed := _placed(topology, local_ranks, hosts)) is not None:
        return tuple(topology.gpus[gpu].sm for gpu in placed)
    names = [reading.log.devices.get(rank) for rank in ranks]
    if len(reading.log.devices) == total and len(ranks) == local_ranks:
        caps = [gpus.capability_of_product(name) if name else None for name in names]
        if None not in caps:
            return tuple(value for value in caps if value is not None)
    return None


def _filled(reading: Reading, nodes: list[NodeFacts], count: int | None, ranks: int | None) -> list[NodeFacts]:
    """Completes nodes that the log shows only in part, or not at all, with the facts of the first node that it
    shows."""
    whole = next((node for node in nodes if node.graphs), nodes[0])
    filled = [
        replace(
            node,
            graphs=node.graphs or whole.graphs,
            cpu_arch=node.cpu_arch or whole.cpu_arch,
            cpu_vendor=node.cpu_vendor or (whole.cpu_vendor if node.cpu_arch is None else None),
            nvswitch=whole.nvswitch if node.nvswitch is None else node.nvswitch,
            mnnvl=node.mnnvl or whole.mnnvl,
        )
        for node in nodes
    ]
    unseen = (count or len(nodes)) - len(nodes)
    if unseen > 0:
        filled += [replace(whole, ranks=())] * unseen
        reading.notes.append(
            f"{unseen} of {count} nodes are not in the log: assumed to be like the one with rank "
            f"{', '.join(map(str, whole.ranks)) or '?'}"
        )
    sizes = [node.local_ranks for node in filled if node.local_ranks is not None]
    if ranks is not None and len(sizes) == len(filled) and sum(sizes) != ranks:
        reading.needed.append(
            f"ranks per node: {len(filled)} nodes show {sizes}, not {ranks} ranks in all; {option('nodes')}"
        )
    shown = sum(len(node.ranks) for node in nodes)
    if ranks is not None and shown < ranks and unseen <= 0:
        reading.notes.append(f"{shown} of {ranks} ranks are in the log: the others are assumed to be like those")
    return filled


def _say_domains(reading: Reading, nodes: Sequence[NodeFacts], nccl: Release | None) -> None:
    hosts = ", ".join(str(node.hosts or "?") for node in nodes)
    reading.notes.append(f"NVLink joins hosts (multi-node NVLink, MNNVL): nodes are NVLink domains, of hosts: {hosts}")
    if nccl is not None and nccl.rules.domains == init.only_the_whole_communicator.__name__:
        reading.needed.append(
            f"MNNVL: NCCL {nccl.name} tunes a domain as one node but searches host by host; valid: later releases"
        )


def _need(reading: Reading, nodes: Sequence[NodeFacts], environment: Mapping[str, str]) -> None:
    if any(node.local_ranks is None for node in nodes):
        reading.needed.append("ranks per node: a line 'localRanks ...' or the ring's channels")
    for name in ("ring", "tree"):
        if any(name not in (node.graphs or {}) for node in nodes):
            reading.needed.append(
                f"the {name} graph: a line 'Pattern ...' (NCCL_DEBUG_SUBSYS=GRAPH), or {option('graphs')}"
            )
    if any(node.local_ranks is not None and node.comp_caps is None for node in nodes):
        reading.needed.append(
            f"the GPUs' compute capability: {option('comp_cap')}, {option('topology')}, or nccl-tests' list of devices"
        )
    if any(node.cpu_arch is None for node in nodes):
        reading.needed.append(
            f"the CPU: a line 'CPU/... (1/1/2)', {option('topology')}, or "
            f"{option('cpu_arch')} and {option('cpu_vendor')}"
        )
    if any(node.cpu_arch == CPU_ARCHS[0] and node.cpu_vendor is None for node in nodes):
        reading.needed.append(f"the CPU's vendor: {option('cpu_vendor')}")
    if environment.get("NCCL_COLLNET_ENABLE") == "1" and any(node.nvswitch is None for node in nodes):
        reading.needed.append(f"whether there is an NVSwitch: {option('nvswitch')} or {option('no_nvswitch')}")


def _cpu(printed: tuple[int, int]) -> tuple[str | None, str | None]:
    arch = _ARCHS.get(printed[0])
    return arch, _VENDORS.get(printed[1]) if arch == CPU_ARCHS[0] else None


def graphs_of_rank(printed: Sequence[PrintedGraph], latency_us: float) -> tuple[Graphs, list[str]]:
    """A rank's graphs by name, including those without a channel, and sentences on what is uncertain about them.

    ``latency_us`` is the latency of the network, which no line of a log contains. NCCL prints the graphs of ring, tree,
    CollNet and NVLS in this order (initTransportsRank, src/init.cc, v2.18.1-1 to v2.30.7-1).
    """
    graphs: dict[str, Graph] = {}
    doubts: list[str] = []
    for line in printed:
        if line.pattern not in list(Pattern) or not {line.type_intra, line.type_inter} <= set(PATH_NAMES):
            doubts.append(f"a graph of an unknown kind was passed over: {line}")
            continue
        pattern = Pattern(line.pattern)
        name = _NAMES.get(pattern, "collnet_chain" if "tree" in graphs else "tree")
        graphs[name] = _graph(line, pattern, latency_us, doubts)
    if "collnet_chain" in graphs:  # up to 2.21 there is one graph for both
        graphs.setdefault("collnet_direct", graphs["collnet_chain"])
    return graphs, doubts


_NAMES = {Pattern.Ring: "ring", Pattern.NVLS: "nvls", Pattern.CollNetDirect: "collnet_direct"}


def _graph(line: PrintedGraph, pattern: Pattern, latency_us: float, doubts: list[str]) -> Graph:
    (intra, sure_of_intra), (inter, sure_of_inter) = bandwidth_gbs(line.bw_intra), bandwidth_gbs(line.bw_inter)
    if not (sure_of_intra and sure_of_inter):
        bandwidths = f"{line.bw_intra}/{line.bw_inter}"
        doubts.append(
            f"bandwidths {bandwidths} are none that the search tries, so their float32 value is not certain: "
            f"{option('graphs')} takes a dump"
        )
    return Graph(
        pattern=pattern,
        channels=line.channels,
        same_channels=line.same_channels,
        bw_intra_gbs=intra,
        bw_inter_gbs=inter,
        latency_inter_us=latency_us,
        type_intra=line.type_intra,
        type_inter=line.type_inter,
        cross_nic=line.cross_nic,
    )


def bandwidth_gbs(text: str) -> tuple[float, bool]:
    """The float32 value that NCCL printed as ``text`` with six decimals, and whether no other value is possible.

    A search finds a speed of its table, which has at most two decimals. If NCCL duplicates channels, the speed is
    divided by a whole number (ncclTopoCompute and ncclTopoDupChannels, src/graph/search.cc, v2.28.9-1). Any other
    value, such as from a graph file, becomes the nearest float32.
    """
    for parts in range(1, 65):
        value = np.float32(round(float(text) * parts, 2)) / np.float32(parts)
        if f"{value:f}" == text:
            return float(value), True
    nearest = np.float32(text)
    neighbours = (np.nextafter(nearest, np.float32(side)) for side in (0, np.inf))
    return float(nearest), all(f"{value:f}" != text for value in neighbours)


# NCCL's own networks report no latency (src/transport/net_ib.cc, net_socket.cc); plugins may.
_NETWORKS_WITHOUT_LATENCY = ("IB", "Socket")


def network_latency_us(reading: Reading, nodes: int | None) -> float | None:
    """The latency of the network in us: the user's value; 0 if it has no effect or if NCCL's own network is used; None
    if it is not known."""
    if reading.given.net_latency_us is not None:
        return reading.given.net_latency_us
    networks = {
        reading.log.networks[log.thread.process] for log in reading.logs if log.thread.process in reading.log.networks
    }
    if reading.given.graphs or nodes == 1 or (networks and networks <= set(_NETWORKS_WITHOUT_LATENCY)):
        return 0.0
    name = f"network {', '.join(sorted(networks))}" if networks else "the network"
    reading.needed.append(f"{name}'s latency: {option('net_latency_us')}; 0 for NCCL's own (a line 'Using network IB')")
    return None


def slowest_gbs(reading: Reading, nccl: Release | None, nodes: Sequence[NodeFacts]) -> float | None:
    """The bandwidth of the slowest path in GB/s, as the user gave it. None if the user did not; if the bandwidth then
    has an effect, it is added to ``needed``."""
    if reading.given.net_gbs is None and nccl is not None and _counts(nccl, nodes):
        reading.needed.append(spelled(_SLOWEST))
    return reading.given.net_gbs


_SLOWEST = "the bandwidth of the slowest path from a GPU to its adapter in GB/s: {option:net_gbs}"


def check_slowest(nccl: Release, nodes: Sequence[NodeFacts], net_gbs: float | None) -> None:
    """Raises BadInput if the bandwidth of the slowest path has an effect on these nodes and is not known."""
    if net_gbs is None and _counts(nccl, nodes):
        raise BadInput(f"on {len(nodes)} nodes this is needed as well: {spelled(_SLOWEST)}")


def _counts(nccl: Release, nodes: Sequence[NodeFacts]) -> bool:
    """Whether the slowest path has an effect. In some releases it has an effect on NVLS on Blackwell with three or more
    nodes, in others on ARM."""
    if not any("nvls" in (node.graphs or {}) for node in nodes):
        return False
    blackwell = any(value >= 100 for node in nodes for value in node.comp_caps or ())
    channels = len(nodes) > 2 and nccl.rules.nvls_channels == "by_generation_nodes_and_network"
    arm = nodes[0].cpu_arch == CPU_ARCHS[1] and "nvls_tree_correction_on_blackwell" in nccl.rules.time
    return blackwell and (channels or (arm and len(nodes) > 1))


# NCCL_TOPO_CPU_ARCH_* and NCCL_TOPO_CPU_VENDOR_*, src/include/graph.h, v2.28.9-1

"""A communicator as a log shows it: its facts, what the log does not say of it, and what it printed.

Facts that a user gives go before the log's. Nothing is guessed: what the emulator needs and neither says is ``needed``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from tuner import communicator, release
from tuner.communicator import Communicator, Node
from tuner.environment import Environment
from tuner.errors import BadInput, one_of
from tuner.graphs import Graph, Graphs
from tuner.logs import choice, devices, lines, reader
from tuner.logs.reader import Block, ChoiceLine, Log, PrintedGraph, RankLog
from tuner.names import CPU_ARCHS, CPU_VENDORS, PATH_NAMES, Collective, DataType, Op, Pattern
from tuner.release import Release
from tuner.topology import Topology

T = TypeVar("T")

# NCCL_TOPO_CPU_ARCH_* and NCCL_TOPO_CPU_VENDOR_*, src/include/graph.h, v2.28.9-1
_ARCHS = {1: CPU_ARCHS[0], 2: CPU_ARCHS[2], 3: CPU_ARCHS[1]}
_VENDORS = {1: CPU_VENDORS[0], 2: CPU_VENDORS[1], 3: CPU_VENDORS[2]}

# NCCL's own networks set no latency (src/transport/net_ib.cc, net_socket.cc); plugins may.
_NETWORKS_WITHOUT_LATENCY = ("IB", "Socket")

# Settings of a program's own ncclConfig_t that a variable sets as well (envConfigOverride, src/init.cc).
_CONFIG = {
    "minCTAs": "NCCL_MIN_CTAS", "maxCTAs": "NCCL_MAX_CTAS", "nvlsCTAs": "NCCL_NVLS_NCHANNELS",
    "collnetEnable": "NCCL_COLLNET_ENABLE", "CTAPolicy": "NCCL_CTA_POLICY",
}
# Variables that change choices, whether or not a release's emulation knows them.
_CHANGING = (
    "NCCL_CTA_POLICY", "NCCL_COLLNET_ENABLE", "NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE", "NCCL_SYM_KERNEL",
    "NCCL_GRAPH_FILE", "NCCL_CONF_FILE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a user says of the run; None and empty leave it to the log."""

    communicator: str | None = None
    release: str | None = None
    nodes: int | None = None
    comp_caps: tuple[int, ...] = ()  # one for all GPUs, or one per rank
    cpu_arch: str | None = None
    cpu_vendor: str | None = None
    nvswitch: bool | None = None
    net_latency_us: float | None = None
    net_gbs: float | None = None  # slowest path from a GPU to its own adapter
    environment: Mapping[str, str] = field(default_factory=dict)
    topology: Topology | None = None
    graphs: Graphs | None = None
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node; what neither the log nor the user says is None."""

    ranks: tuple[int, ...]  # those that the log shows
    local_ranks: int | None
    comp_caps: tuple[int, ...] | None
    cpu_arch: str | None
    cpu_vendor: str | None
    nvswitch: bool | None
    graphs: Graphs | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice as printed, ``count`` times; ``bytes`` is NCCL's nBytes, None where the collective is not known."""

    collective: Collective | None
    bytes: int | None
    algorithm: str
    protocol: str
    channel_lo: int | None
    channel_hi: int | None
    time_us: str | None
    dtype: DataType | None
    op: Op | None
    operations: int | None  # calls in its group; None where the log has no COLL lines
    count: int = 1


@dataclass(frozen=True, slots=True)
class Imported:
    """Everything read of one communicator. ``needed`` is what emulating it lacks, ``missing`` what was not printed."""

    release: str | None
    communicator: str | None
    communicators: tuple[tuple[str, int | None], ...]  # all of the log: name, ranks
    ranks: int | None
    nodes: tuple[NodeFacts, ...]
    environment: Mapping[str, str]
    net_gbs: float | None
    table: tuple[Block, ...]
    thresholds: tuple[str, ...] | None
    coll_channels: str | None
    nvls_channels: str | None
    choices: tuple[Choice, ...]
    symmetric: tuple[str, ...]
    needed: tuple[str, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def emulated(self) -> bool:
        return self.release in release.names()


@dataclass(slots=True)
class _Group:
    """The ranks of one communicator."""

    name: str
    logs: list[RankLog]

    @property
    def ranks(self) -> int | None:
        return next((log.ranks for log in self.logs if log.ranks is not None), None)

    @property
    def root(self) -> RankLog | None:
        return next((log for log in self.logs if log.rank == 0), None)


def read(path: Path, given: Given) -> Imported:
    """One communicator of a log file: the one ``given`` names, else the largest. BadInput where there is nothing."""
    log = reader.parse(lines.read(path))
    if not (log.versions or log.ranks or log.choices):
        raise BadInput(f"{path}: no line of NCCL's in it; valid: what NCCL prints with NCCL_DEBUG=INFO")
    return of(log, given)


def of(log: Log, given: Given) -> Imported:
    """The same of a log that was read."""
    return _Importer(log, given).imported()


def emulated(imported: Imported) -> Communicator:
    """The communicator in the emulator. BadInput names what is needed for it."""
    if imported.needed:
        raise BadInput("; ".join(imported.needed))
    nccl = release.load(imported.release or "")
    known = nccl.table["environment"]["known"]
    environment = {name: value for name, value in imported.environment.items() if name in known}
    nodes = [
        Node(
            graphs=node.graphs or {},
            comp_caps=node.comp_caps or (),
            cpu_arch=node.cpu_arch or "",
            cpu_vendor=node.cpu_vendor,
            has_nvswitch=bool(node.nvswitch),
            net_gbs=imported.net_gbs or 0.0,
        )
        for node in imported.nodes
    ]
    return _build(nccl, nodes, Environment(environment))


def _build(nccl: Release, nodes: Sequence[Node], environment: Environment) -> Communicator:
    """The only call of the builder, which so far takes equal nodes: they become the weakest of all."""
    first = nodes[0]
    for node in nodes:
        if replace(node, graphs=first.graphs) != first:
            raise BadInput("the log's nodes differ in GPUs or CPUs; valid so far: nodes that differ only in their graphs")
    merged = replace(first, graphs=weakest([node.graphs for node in nodes], nccl.table["paths"]["types"]))
    return communicator.build(nccl, merged, len(nodes), environment)


def weakest(graphs: Sequence[Graphs], path_types: Sequence[str]) -> Graphs:
    """What NCCL makes of the graphs that several ranks found. Source: initTransportsRank, src/init.cc, v2.28.9-1."""
    names = [name for name in graphs[0] if all(name in other for other in graphs)]
    return {name: _weakest([found[name] for found in graphs], path_types) for name in names}


def _weakest(graphs: Sequence[Graph], path_types: Sequence[str]) -> Graph:
    return Graph(
        pattern=graphs[0].pattern,
        channels=min(graph.channels for graph in graphs),
        same_channels=all(graph.same_channels for graph in graphs),
        bw_intra_gbs=min(graph.bw_intra_gbs for graph in graphs),
        bw_inter_gbs=min(graph.bw_inter_gbs for graph in graphs),
        latency_inter_us=graphs[0].latency_inter_us,
        type_intra=max((graph.type_intra for graph in graphs), key=path_types.index),
        type_inter=max((graph.type_inter for graph in graphs), key=path_types.index),
        cross_nic=max(graph.cross_nic for graph in graphs),
    )


def bandwidth_gbs(text: str) -> tuple[float, bool]:
    """The float32 that NCCL printed as ``text`` with six decimals, and whether it is the only one that can be.

    A search finds a speed of its table, which has two decimals at most, divided by a whole number where channels are
    duplicated (ncclTopoCompute and ncclTopoDupChannels, src/graph/search.cc, v2.28.9-1). Any other value, as of a
    graph file, is read as its nearest float32.
    """
    for parts in range(1, 65):
        value = np.float32(round(float(text) * parts, 2)) / np.float32(parts)
        if f"{value:f}" == text:
            return float(value), True
    nearest = np.float32(text)
    neighbours = (np.nextafter(nearest, np.float32(side)) for side in (0, np.inf))
    return float(nearest), all(f"{value:f}" != text for value in neighbours)


class _Importer:
    def __init__(self, log: Log, given: Given) -> None:
        self.log, self.given = log, given
        self.needed: list[str] = []
        self.missing: list[str] = []
        self.notes: list[str] = []
        self.groups = _groups(log.ranks)
        self.group = self._chosen_group()
        self.logs = self.group.logs if self.group else []

    def imported(self) -> Imported:
        name = self._release()
        nccl = release.load(name) if name in release.names() else None
        ranks = self.group.ranks if self.group else None
        if self.group is None:
            self.needed.append("the log shows no communicator being made (NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,ENV)")
        elif ranks is None:
            self.needed.append("the number of ranks: a line 'comm ... rank ... nranks ...'")
        environment = self._environment(nccl)
        nodes = self._nodes(nccl, environment) if self.group else ()
        net_gbs = self._net_gbs(nccl, nodes)
        table = next((log.table for log in self.logs if log.table), [])
        self._check_table(table)
        thresholds = self._printed("thread thresholds", [log.thresholds for log in self.logs])
        channels = self._printed("channel counts", [log.channels for log in self.logs])
        return Imported(
            release=name,
            communicator=self.group.name if self.group else None,
            communicators=tuple((group.name, group.ranks) for group in self.groups),
            ranks=ranks,
            nodes=nodes,
            environment=environment,
            net_gbs=net_gbs,
            table=tuple(table),
            thresholds=thresholds,
            coll_channels=channels[0] if channels else None,
            nvls_channels=channels[1] if channels else None,
            choices=self._choices(ranks),
            symmetric=tuple(text for thread, text in self.log.symmetric if self._own_process(thread.process)),
            needed=tuple(self.needed),
            missing=tuple(self.missing),
            notes=tuple(self.notes),
        )

    def _chosen_group(self) -> _Group | None:
        wanted = self.given.communicator
        if wanted is not None:
            found = [group for group in self.groups if group.name == wanted]
            if not found:
                valid = one_of(group.name for group in self.groups) if self.groups else "the log shows none"
                raise BadInput(f"no communicator {wanted!r} in the log; {valid}")
            return found[0]
        if not self.groups:
            return None
        largest = max(self.groups, key=lambda group: (group.ranks or 0, any(log.table for log in group.logs)))
        if len(self.groups) > 1:
            self.notes.append(f"{len(self.groups)} communicators; this is the largest, --communicator takes another")
        return largest

    def _release(self) -> str | None:
        versions = list(self.log.versions)
        if len(versions) > 1:
            self.notes.append(f"several releases in the log: {', '.join(versions)}")
        name = self.given.release or next(iter(versions), None)
        if name is None:
            self.needed.append("the release: a line 'NCCL version ...', or --nccl")
        elif name not in release.names():
            self.needed.append(f"NCCL {name} is not emulated; --nccl takes another; {one_of(release.names())}")
        return name

    def _environment(self, nccl: Release | None) -> dict[str, str]:
        """The variables set for this communicator's processes, rank 0's first, and its program's own settings."""
        processes = sorted({log.thread.process for log in self.logs}, key=lambda p: p != self._root_process())
        found = dict(self.given.environment)
        for process in processes or self.log.environment:
            for name, value in self.log.environment.get(process, {}).items():
                if found.setdefault(name, value) != value and name not in self.given.environment:
                    self.notes.append(f"{name} differs between processes; taken: {found[name]}")
        for log in self.logs:
            for setting, value in log.config.items():
                if setting in _CONFIG:
                    found.setdefault(_CONFIG[setting], value)
        if not found:
            self.notes.append("no variable is printed: taken as unset, as NCCL_DEBUG_SUBSYS=ENV would show it")
        known = nccl.table["environment"]["known"] if nccl else ()
        for name in _CHANGING:
            if name in found and name not in known:
                self.notes.append(f"{name}={found[name]} may change choices and is not emulated")
        return found

    def _nodes(self, nccl: Release | None, environment: Mapping[str, str]) -> tuple[NodeFacts, ...]:
        assert self.group is not None
        ranks, count = self.group.ranks, self._node_count()
        by_node = self._by_node(count)
        path_types = nccl.table["paths"]["types"] if nccl else PATH_NAMES
        latency_us = self._net_latency_us(count)
        nodes = [self._node(logs, path_types, latency_us) for logs in by_node]
        nodes = self._filled(nodes, count, ranks)
        self._need(nodes, environment)
        return tuple(nodes)

    def _node_count(self) -> int | None:
        assert self.group is not None
        if self.given.nodes is not None:
            return self.given.nodes
        printed = next((log.nodes for log in self.logs if log.nodes is not None), None)
        if printed is not None:
            return printed
        gpus_of_rings = {log.ring_gpus for log in self.logs if log.ring_gpus}
        if self.group.ranks and len(gpus_of_rings) == 1 and self.group.ranks % min(gpus_of_rings) == 0:
            count = self.group.ranks // min(gpus_of_rings)
            self.notes.append(f"{count} nodes: this release does not print it, the ring has {min(gpus_of_rings)} GPUs")
            return count
        self.needed.append("the number of nodes: a line 'nNodes ...' or the ring's channels, or --nodes")
        return None

    def _by_node(self, count: int | None) -> list[list[RankLog]]:
        """The ranks by node: by host where there are as many hosts as nodes, else consecutive ranks."""
        hosts = list(dict.fromkeys(log.thread.host for log in self.logs))
        if len(hosts) == count:
            return [[log for log in self.logs if log.thread.host == host] for host in hosts]
        sizes = {size for log in self.logs if (size := log.local_ranks or log.ring_gpus)}
        if len(sizes) != 1 or count == 1:
            return [self.logs]
        size = min(sizes)
        parts: dict[int, list[RankLog]] = {}
        for log in sorted(self.logs, key=lambda log: log.rank or 0):
            parts.setdefault((log.rank or 0) // size, []).append(log)
        return list(parts.values())

    def _node(self, logs: list[RankLog], path_types: Sequence[str], latency_us: float | None) -> NodeFacts:
        given, topology = self.given, self.given.topology
        ranks = tuple(sorted(log.rank for log in logs if log.rank is not None))
        local_ranks = next((size for log in logs if (size := log.local_ranks or log.ring_gpus)), None)
        arch, vendor = next((_cpu(cpu) for log in logs for cpu in log.cpus), (None, None))
        nvswitch = any(log.nvswitch for log in logs) if any(log.system for log in logs) else None
        if topology is not None and local_ranks is not None and local_ranks <= len(topology.gpus):
            arch, vendor = topology.cpu_arch, topology.cpu_vendor
            nvswitch = topology.has_nvswitch(local_ranks)
        searched = [graphs for log in logs if (graphs := self._graphs(log, latency_us))]
        graphs = given.graphs or (weakest(searched, path_types) if searched else None)
        return NodeFacts(
            ranks=ranks,
            local_ranks=local_ranks,
            comp_caps=self._comp_caps(ranks, local_ranks),
            cpu_arch=given.cpu_arch or arch,
            cpu_vendor=given.cpu_vendor or vendor,
            nvswitch=nvswitch if given.nvswitch is None else given.nvswitch,
            graphs=graphs,
        )

    def _graphs(self, log: RankLog, latency_us: float | None) -> Graphs:
        """A rank's graphs by name; NCCL prints ring, tree, CollNet's and NVLS's in this order."""
        found: dict[str, Graph] = {}
        for printed in log.graphs:
            if printed.pattern not in list(Pattern) or not {printed.type_intra, printed.type_inter} <= set(PATH_NAMES):
                self.notes.append(f"a graph of an unknown kind was passed over: {printed}")
                continue
            pattern = Pattern(printed.pattern)
            graph = self._graph(printed, pattern, latency_us or 0.0)
            if pattern is Pattern.Ring:
                found["ring"] = graph
            elif pattern is Pattern.NVLS:
                found["nvls"] = graph
            elif pattern is Pattern.CollNetDirect:
                found["collnet_direct"] = graph
            elif "tree" not in found:
                found["tree"] = graph
            else:
                found["collnet_chain"] = graph
        if "collnet_chain" in found:  # one graph for both up to 2.21
            found.setdefault("collnet_direct", found["collnet_chain"])
        return {name: graph for name, graph in found.items() if graph.channels > 0}

    def _graph(self, printed: PrintedGraph, pattern: Pattern, latency_us: float) -> Graph:
        values = {}
        for text in (printed.bw_intra, printed.bw_inter):
            values[text], sure = bandwidth_gbs(text)
            note = f"bandwidth {text} is of no search: its float32 is not certain, --graphs takes a dump"
            if not sure and note not in self.notes:
                self.notes.append(note)
        return Graph(
            pattern=pattern, channels=printed.channels, same_channels=printed.same_channels,
            bw_intra_gbs=values[printed.bw_intra], bw_inter_gbs=values[printed.bw_inter],
            latency_inter_us=latency_us, type_intra=printed.type_intra, type_inter=printed.type_inter,
            cross_nic=printed.cross_nic,
        )

    def _comp_caps(self, ranks: tuple[int, ...], local_ranks: int | None) -> tuple[int, ...] | None:
        given, total = self.given.comp_caps, self.group.ranks if self.group else None
        if local_ranks is None:
            return None
        if len(given) == 1:
            return given * local_ranks
        if given:
            if len(given) != total or len(ranks) != local_ranks:
                raise BadInput(f"--comp-cap: {len(given)} values for {total} ranks; valid: one, or one per rank of a log"
                               " that shows every rank")
            return tuple(given[rank] for rank in ranks)
        topology = self.given.topology
        if topology is not None and local_ranks <= len(topology.gpus):
            return topology.compute_capabilities(local_ranks)
        names = [self.log.devices.get(rank) for rank in ranks]
        if len(self.log.devices) == total and len(ranks) == local_ranks:
            found = [devices.comp_cap(name) if name else None for name in names]
            if None not in found:
                return tuple(value for value in found if value is not None)
        return None

    def _filled(self, nodes: list[NodeFacts], count: int | None, ranks: int | None) -> list[NodeFacts]:
        """Nodes, and facts of nodes, that the log does not show are taken to be those of the first that it shows."""
        whole = next((node for node in nodes if node.graphs), nodes[0])
        filled = [
            replace(
                node,
                graphs=node.graphs or whole.graphs,
                cpu_arch=node.cpu_arch or whole.cpu_arch,
                cpu_vendor=node.cpu_vendor or (whole.cpu_vendor if node.cpu_arch is None else None),
                nvswitch=whole.nvswitch if node.nvswitch is None else node.nvswitch,
            )
            for node in nodes
        ]
        unseen = (count or len(nodes)) - len(nodes)
        if unseen > 0:
            filled += [replace(whole, ranks=())] * unseen
            self.notes.append(f"{unseen} of {count} nodes are not in the log: taken to be like the one with rank "
                              f"{', '.join(map(str, whole.ranks)) or '?'}")
        sizes = [node.local_ranks for node in filled if node.local_ranks is not None]
        if ranks is not None and len(sizes) == len(filled) and sum(sizes) != ranks:
            self.needed.append(f"ranks per node: {len(filled)} nodes show {sizes}, not the {ranks} ranks in all; --nodes")
        shown = sum(len(node.ranks) for node in nodes)
        if ranks is not None and shown < ranks and unseen <= 0:
            self.notes.append(f"{shown} of {ranks} ranks are in the log: the others are taken to be like those")
        return filled

    def _need(self, nodes: Sequence[NodeFacts], environment: Mapping[str, str]) -> None:
        for node in nodes[:1]:
            if node.local_ranks is None:
                self.needed.append("ranks per node: a line 'localRanks ...' or the ring's channels")
            for name in ("ring", "tree"):
                if name not in (node.graphs or {}):
                    self.needed.append(f"the {name} graph: a line 'Pattern ...' (NCCL_DEBUG_SUBSYS=GRAPH), or --graphs")
        if any(node.local_ranks is not None and node.comp_caps is None for node in nodes):
            self.needed.append("the GPUs' compute capability: --comp-cap, --topology, or nccl-tests' list of devices")
        if any(node.cpu_arch is None for node in nodes):
            self.needed.append("the CPU: a line 'CPU/... (1/1/2)', --topology, or --cpu-arch and --cpu-vendor")
        if any(node.cpu_arch == CPU_ARCHS[0] and node.cpu_vendor is None for node in nodes):
            self.needed.append("the CPU's vendor: --cpu-vendor")
        if environment.get("NCCL_COLLNET_ENABLE") == "1" and any(node.nvswitch is None for node in nodes):
            self.needed.append("whether there is an NVSwitch: --nvswitch or --no-nvswitch")

    def _net_latency_us(self, nodes: int | None) -> float | None:
        if self.given.net_latency_us is not None:
            return self.given.net_latency_us
        networks = {self.log.networks[log.thread.process] for log in self.logs
                    if log.thread.process in self.log.networks}
        if self.given.graphs or nodes == 1 or (networks and networks <= set(_NETWORKS_WITHOUT_LATENCY)):
            return 0.0
        name = f"network {', '.join(sorted(networks))}" if networks else "the network"
        self.needed.append(f"{name}'s latency: --net-latency-us; 0 for NCCL's own (a line 'Using network IB')")
        return None

    def _net_gbs(self, nccl: Release | None, nodes: Sequence[NodeFacts]) -> float | None:
        """Only NVLS on Blackwell looks at it, in some releases on three nodes or more, in others beside ARM."""
        if self.given.net_gbs is not None or nccl is None or not any("nvls" in (node.graphs or {}) for node in nodes):
            return self.given.net_gbs
        blackwell = any(value >= 100 for node in nodes for value in node.comp_caps or ())
        channels = len(nodes) > 2 and "by_generation_nodes_and_network" in nccl.rules("nvls_channels")
        arm = nodes[0].cpu_arch == CPU_ARCHS[1] and "nvls_tree_correction_on_blackwell" in nccl.rules("time")
        if blackwell and (channels or (arm and len(nodes) > 1)):
            self.needed.append("the bandwidth of the slowest path from a GPU to its adapter in GB/s: --net-gbs")
        return None

    def _check_table(self, table: Sequence[Block]) -> None:
        if not table:
            self.missing.append("the tuning table (NCCL_DEBUG_SUBSYS=TUNING, printed by rank 0)")
        for index, block in enumerate(table):
            names = block.names(index)
            if block.algorithms is None:
                self.missing.append(f"the table's line 'Algorithm' of {', '.join(names)}")
            for collective in Collective:
                have, whole = len(block.rows.get(collective, ())), 3 * len(names)
                if have < whole:
                    what = f"{whole - have} cells" if have else "the row"
                    self.missing.append(f"{what} {collective.name} of the table's {', '.join(names)}")

    def _printed(self, what: str, values: Sequence[T | None]) -> T | None:
        found = next((value for value in values if value is not None), None)
        if found is None and self.logs:
            self.missing.append(what)
        return found

    def _root_process(self) -> tuple[str, int] | None:
        root = self.group.root if self.group else None
        return root.thread.process if root else None

    def _own_process(self, process: tuple[str, int]) -> bool:
        """Whether rank 0 of this communicator, which prints choices, is in a process; any where rank 0 is not seen."""
        root = self._root_process()
        return root is None or process in (root, lines.UNKNOWN.process)

    def _choices(self, ranks: int | None) -> tuple[Choice, ...]:
        own = self.group.root.comm if self.group and self.group.root else None
        others = {
            group.root.comm for group in self.groups
            if group is not self.group and group.root and self._own_process(group.root.thread.process)
        }
        found: dict[Choice, int] = {}
        ambiguous = 0
        for line in self.log.choices:
            if not self._own_process(line.thread.process):
                continue
            comms = {call.comm for call in line.calls} & (others | {own})
            if others and comms != {own}:
                ambiguous += not comms or len(comms) > 1
                continue
            made = self._choice(line, own, ranks)
            found[made] = found.get(made, 0) + 1
        if ambiguous:
            self.notes.append(f"{ambiguous} choices may be of several communicators (NCCL_DEBUG_SUBSYS=COLL tells them)")
        if not found:
            self.missing.append("choices (NCCL_DEBUG_SUBSYS=TUNING, printed by rank 0 of NCCL 2.20 and later)")
        return tuple(replace(made, count=count) for made, count in found.items())

    def _choice(self, line: ChoiceLine, own: str | None, ranks: int | None) -> Choice:
        printed = line.printed
        calls = [call for call in line.calls if own is None or call.comm == own]
        call = calls[0] if len(calls) == 1 else None
        name = printed.collective or (call.collective if call else None)
        collective = choice.collective(name) if name else self.given.collective
        if call is not None and choice.collective(call.collective) is not collective:
            call = None
        spreads = collective in (Collective.AllGather, Collective.ReduceScatter)
        nbytes: int | None = printed.bytes
        if printed.planned and spreads:
            nbytes = None if ranks is None else printed.bytes * ranks
        return Choice(
            collective=collective,
            bytes=nbytes,
            algorithm=_spelled(choice.algorithm(printed.algorithm), printed.algorithm),
            protocol=_spelled(choice.protocol(printed.protocol), printed.protocol),
            channel_lo=printed.channel_lo,
            channel_hi=printed.channel_hi,
            time_us=printed.time_us,
            dtype=DataType(call.dtype) if call and call.dtype in list(DataType) else None,
            op=Op(call.op) if call and call.op in list(Op) else None,
            operations=len(calls) or None,
        )


def _spelled(known: Collective | None | object, text: str) -> str:
    return getattr(known, "name", text)


def _cpu(printed: tuple[int, int]) -> tuple[str | None, str | None]:
    arch = _ARCHS.get(printed[0])
    return arch, _VENDORS.get(printed[1]) if arch == CPU_ARCHS[0] else None


def _groups(logs: Sequence[RankLog]) -> list[_Group]:
    """The communicators in their order; ranks that show no communicator count only where no rank shows one."""
    groups: dict[str, _Group] = {}
    for log in logs:
        if log.group is not None:
            groups.setdefault(log.group, _Group(log.group, [])).logs.append(log)
    for log in logs:
        if log.group is None and log.ranks is not None:
            home = next((g for g in groups.values() if g.ranks == log.ranks and not _has(g, log.rank)), None)
            if home is None:
                name = f"{log.comm}"
                home = groups.setdefault(name, _Group(name, []))
            home.logs.append(log)
    if not groups and logs:
        return [_Group("unnamed", list(logs))]
    return list(groups.values())


def _has(group: _Group, rank: int | None) -> bool:
    return any(log.rank == rank for log in group.logs)

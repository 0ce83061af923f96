"""Finds one communicator's facts in what was read of a log, and says what the log does not say."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import TypeVar

from tuner import release
from tuner.base.errors import BadInput, one_of
from tuner.base.names import CPU_ARCHS, CPU_VENDORS, PATH_NAMES, Algorithm, Collective, Protocol
from tuner.emulator.rules import init
from tuner.logs import choice, chosen, devices, lines, printed_graphs, reader
from tuner.logs.groups import CommunicatorLines, groups
from tuner.logs.imported import Given, Imported, LoggedChoice, NodeFacts
from tuner.logs.reader import Block, Log, RankLog
from tuner.machine.graphs import Graphs
from tuner.release import Release

T = TypeVar("T")

# NCCL_TOPO_CPU_ARCH_* and NCCL_TOPO_CPU_VENDOR_*, src/include/graph.h, v2.28.9-1
_ARCHS = {1: CPU_ARCHS[0], 2: CPU_ARCHS[2], 3: CPU_ARCHS[1]}
_VENDORS = {1: CPU_VENDORS[0], 2: CPU_VENDORS[1], 3: CPU_VENDORS[2]}

# NCCL's own networks set no latency (src/transport/net_ib.cc, net_socket.cc); plugins may.
_NETWORKS_WITHOUT_LATENCY = ("IB", "Socket")

# Settings of a program's own ncclConfig_t that a variable sets as well (envConfigOverride, src/init.cc).
_CONFIG = {
    "minCTAs": "NCCL_MIN_CTAS",
    "maxCTAs": "NCCL_MAX_CTAS",
    "nvlsCTAs": "NCCL_NVLS_NCHANNELS",
    "collnetEnable": "NCCL_COLLNET_ENABLE",
    "CTAPolicy": "NCCL_CTA_POLICY",
}
# Their effect is in the graphs, which the log shows: where the topology is, and which adapters there are.
_FILES_AND_ADAPTERS = (
    "NCCL_TOPO_FILE",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_IB_HCA",
    "NCCL_IB_DISABLE",
    "NCCL_IB_CUDA_SUPPORT",
)


def read(path: Path, given: Given) -> Imported:
    """One communicator of a log file: the one ``given`` names, else the largest. BadInput where there is nothing."""
    whole, cut = lines.read(path)
    log = reader.parse(whole)
    if not (log.versions or log.ranks or log.choices):
        raise BadInput(f"{path}: no line of NCCL's in it; valid: what NCCL prints with NCCL_DEBUG=INFO")
    imported = of(log, given)
    return replace(imported, missing=(*imported.missing, "the end of the last line, which is cut")) if cut else imported


def of(log: Log, given: Given) -> Imported:
    """The same of a log that was read. BadInput also for a log of RCCL, whose lines look like NCCL's."""
    if log.rccl is not None:
        raise BadInput(f"the log is of RCCL {log.rccl}, AMD's library, which is not emulated; valid: a log of NCCL")
    return _Importer(log, given).imported()


class _Importer:
    def __init__(self, log: Log, given: Given) -> None:
        self.log, self.given = log, given
        self.needed: list[str] = []
        self.missing: list[str] = []
        self.notes: list[str] = []
        self.groups = groups(log.ranks)
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
        node_count = self._node_count() if self.group else None
        nodes = self._nodes(nccl, environment, node_count) if self.group else ()
        net_gbs = self._net_gbs(nccl, nodes)
        table = next((log.table for log in self.logs if log.table), [])
        self._check_table(table, nccl)
        thresholds = self._printed("thread thresholds", [log.thresholds for log in self.logs])
        channels = self._printed("channel counts", [log.channels for log in self.logs])
        return Imported(
            release=name,
            communicator=self.group.name if self.group else None,
            communicators=tuple((group.name, group.ranks) for group in self.groups),
            ranks=ranks,
            node_count=node_count,
            nodes=nodes,
            environment=environment,
            net_gbs=net_gbs,
            table=tuple(table),
            thresholds=thresholds,
            coll_channels=channels[0] if channels else None,
            nvls_channels=channels[1] if channels else None,
            choices=self._choices(),
            symmetric=tuple(text for thread, text in self.log.symmetric if chosen.of_group(thread, self.group)),
            needed=tuple(self.needed),
            missing=tuple(self.missing),
            notes=tuple(self.notes),
        )

    def _chosen_group(self) -> CommunicatorLines | None:
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
        if not self.log.environment:
            self.notes.append("no variable is printed: taken as unset, as NCCL_DEBUG_SUBSYS=ENV would show it")
        if nccl is not None:
            in_graphs = {*_FILES_AND_ADAPTERS, *nccl.environment.search}
            for name in nccl.unknown_variables(set(found) - in_graphs):
                self.notes.append(f"{name}={found[name]} may change choices and is not emulated")
        return found

    def _nodes(self, nccl: Release | None, environment: Mapping[str, str], count: int | None) -> tuple[NodeFacts, ...]:
        assert self.group is not None
        ranks = self.group.ranks
        by_node = self._by_node(count)
        path_types = nccl.paths.types if nccl else PATH_NAMES
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
            self.notes.append(f"{count} nodes: no line 'nNodes ...', the ring has {min(gpus_of_rings)} GPUs")
            return count
        self.needed.append("the number of nodes: a line 'nNodes ...' or the ring's channels, or --nodes")
        return None

    def _by_node(self, count: int | None) -> list[list[RankLog]]:
        """The ranks by node: by host where there are as many hosts as nodes, else by their local ranks.

        Local ranks say it where all are shown and follow each other, or where all nodes are of one size.
        """
        logs = sorted(self.logs, key=lambda log: log.rank or 0)  # whoever logs first, rank 0's node is the first
        hosts = list(dict.fromkeys(log.thread.host for log in logs))
        if len(hosts) == count:
            return [[log for log in logs if log.thread.host == host] for host in hosts]
        starts = [index for index, log in enumerate(logs) if log.local_rank == 0]
        parts = [logs[start:end] for start, end in pairwise([*starts, len(logs)])]
        in_order = [local_rank for part in parts for local_rank in range(len(part))]
        if len(parts) == count and in_order == [log.local_rank for log in logs]:
            return parts
        sizes = {size for log in logs if (size := log.local_ranks or log.ring_gpus)}
        if len(sizes) != 1:
            return [logs]
        size = min(sizes)
        return [list(part) for _, part in groupby(logs, key=lambda log: (log.rank or 0) // size)]

    def _node(self, logs: list[RankLog], path_types: Sequence[str], latency_us: float | None) -> NodeFacts:
        given, topology = self.given, self.given.topology
        ranks = tuple(sorted(log.rank for log in logs if log.rank is not None))
        local_ranks = next((size for log in logs if (size := log.local_ranks or log.ring_gpus)), None)
        arch, vendor = next((_cpu(cpu) for log in logs for cpu in log.cpus), (None, None))
        nvswitch = any(log.nvswitch for log in logs) if any(log.system for log in logs) else None
        if topology is not None and local_ranks is not None and local_ranks <= len(topology.gpus):
            arch, vendor = topology.cpu_arch, topology.cpu_vendor
            nvswitch = topology.has_nvswitch(local_ranks)
        graphs = given.graphs or self._graphs(logs, path_types, latency_us or 0.0)
        return NodeFacts(
            ranks=ranks,
            local_ranks=local_ranks,
            comp_caps=self._comp_caps(ranks, local_ranks),
            cpu_arch=given.cpu_arch or arch,
            cpu_vendor=given.cpu_vendor or vendor,
            nvswitch=nvswitch if given.nvswitch is None else given.nvswitch,
            graphs=graphs,
        )

    def _graphs(self, logs: list[RankLog], path_types: Sequence[str], latency_us: float) -> Graphs | None:
        """The weakest of those that the node's ranks printed; None where no rank printed any."""
        searched = []
        for log in logs:
            graphs, doubts = printed_graphs.of_rank(log.graphs, latency_us)
            self.notes += [doubt for doubt in doubts if doubt not in self.notes]
            searched += [graphs] if graphs else []
        names = dict.fromkeys(name for graphs in searched for name in graphs)  # one not printed is the others'
        weakest = {
            name: init.weakest([graphs[name] for graphs in searched if name in graphs], path_types) for name in names
        }
        return {name: graph for name, graph in weakest.items() if graph.channels > 0} or None

    def _comp_caps(self, ranks: tuple[int, ...], local_ranks: int | None) -> tuple[int, ...] | None:
        given, total = self.given.comp_caps, self.group.ranks if self.group else None
        if local_ranks is None:
            return None
        if len(given) == 1:
            return given * local_ranks
        if given:
            if len(given) != total or len(ranks) != local_ranks:
                raise BadInput(
                    f"--comp-cap: {len(given)} values for {total} ranks, a node showing {len(ranks)} of its "
                    f"{local_ranks}; valid: one, or one per rank where all ranks are in the log"
                )
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
            self.notes.append(
                f"{unseen} of {count} nodes are not in the log: taken to be like the one with rank "
                f"{', '.join(map(str, whole.ranks)) or '?'}"
            )
        sizes = [node.local_ranks for node in filled if node.local_ranks is not None]
        if ranks is not None and len(sizes) == len(filled) and sum(sizes) != ranks:
            self.needed.append(f"ranks per node: {len(filled)} nodes show {sizes}, not {ranks} ranks in all; --nodes")
        shown = sum(len(node.ranks) for node in nodes)
        if any(log.mnnvl for log in self.logs):
            self.needed.append("MNNVL: communicators over several nodes' NVLink are not emulated")
        if ranks is not None and shown < ranks and unseen <= 0:
            self.notes.append(f"{shown} of {ranks} ranks are in the log: the others are taken to be like those")
        return filled

    def _need(self, nodes: Sequence[NodeFacts], environment: Mapping[str, str]) -> None:
        if any(node.local_ranks is None for node in nodes):
            self.needed.append("ranks per node: a line 'localRanks ...' or the ring's channels")
        for name in ("ring", "tree"):
            if any(name not in (node.graphs or {}) for node in nodes):
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
        networks = {
            self.log.networks[log.thread.process] for log in self.logs if log.thread.process in self.log.networks
        }
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
        channels = len(nodes) > 2 and nccl.rules.nvls_channels == "by_generation_nodes_and_network"
        arm = nodes[0].cpu_arch == CPU_ARCHS[1] and "nvls_tree_correction_on_blackwell" in nccl.rules.time
        if blackwell and (channels or (arm and len(nodes) > 1)):
            self.needed.append("the bandwidth of the slowest path from a GPU to its adapter in GB/s: --net-gbs")
        return None

    def _check_table(self, table: Sequence[Block], nccl: Release | None) -> None:
        if not table:
            self.missing.append("the tuning table (NCCL_DEBUG_SUBSYS=TUNING, printed by rank 0)")
            return
        for index, block in enumerate(table):
            columns = ", ".join(block.names(index))
            if block.algorithms is None:
                self.missing.append(f"the table's line 'Algorithm' of {columns}")
            if not block.threads and any(other.threads for other in table):
                self.missing.append(f"the table's line 'Max NThreads' of {columns}")
            for collective in Collective:
                have, whole = len(block.rows.get(collective, ())), len(Protocol) * len(block.names(index))
                if have < whole:
                    what = f"{whole - have} cells of {collective.name}" if have else collective.name
                    self.missing.append(f"in the table {what} of {columns}")
        shown = {choice.algorithm(name) for index, block in enumerate(table) for name in block.names(index)}
        there = list(Algorithm)[: nccl.limits.algorithms if nccl else 0]
        if absent := [algorithm.name for algorithm in there if algorithm not in shown]:
            self.missing.append(f"the table's part with {', '.join(absent)}")

    def _printed(self, what: str, values: Sequence[T | None]) -> T | None:
        found = next((value for value in values if value is not None), None)
        if found is None and self.logs:
            self.missing.append(what)
        return found

    def _root_process(self) -> tuple[str, int] | None:
        root = self.group.root if self.group else None
        return root.thread.process if root else None

    def _choices(self) -> tuple[LoggedChoice, ...]:
        found, ambiguous = chosen.choices(self.log.choices, self.group, self.groups, self.given.collective)
        if ambiguous:
            self.notes.append(f"{ambiguous} choices may be another communicator's: NCCL_DEBUG_SUBSYS=COLL would say")
        if not found:
            self.missing.append("choices (NCCL_DEBUG_SUBSYS=TUNING, printed by rank 0 of NCCL 2.20 and later)")
        return found


def _cpu(printed: tuple[int, int]) -> tuple[str | None, str | None]:
    arch = _ARCHS.get(printed[0])
    return arch, _VENDORS.get(printed[1]) if arch == CPU_ARCHS[0] else None

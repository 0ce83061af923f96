"""Resolves one kind of node of a scenario: its topology, which is read once, and the inputs for emulator and oracle."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tuner import release
from tuner.base.errors import BadInput, BadTopology, Remedy
from tuner.base.files import read_bytes
from tuner.base.numerics import parse_long
from tuner.base.spelling import option
from tuner.emulator.communicator import Node
from tuner.emulator.rules import resolved
from tuner.machine import catalogue, described, gpus, graphs
from tuner.machine.adapters import PeerLinks, mergeable, network_of, offers_gin, over_sockets, plugin_network, used
from tuner.machine.gpus import GpuModel, PeerToPeer
from tuner.machine.graphs import Graphs
from tuner.machine.topology import Topology, edit, reader
from tuner.machine.topology import read as read_topology
from tuner.machine.topology.xml import MAX_BYTES
from tuner.release.environment import Environment
from tuner.scenario.description import Scenario

if TYPE_CHECKING:
    from tuner.graphs import SearchRequest
    from tuner.scenario.oracle_configuration import OracleConfiguration

# Most ranks of a node, each of which NCCL counts as a GPU: NCCL_TOPO_MAX_NODES (src/include/graph.h, v2.30.7-1)
MOST_RANKS = 640
GRAPH_FILE = "NCCL_GRAPH_FILE"
MERGE_PORTS = "NCCL_IB_MERGE_NICS"


class _Source(NamedTuple):
    text: str  # XML in the form that libnccl reads
    topology: Topology


class ResolvedNode:
    """Equal nodes, described by nothing but ``scenario``. Each part is read when it is first needed."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.nodes = scenario.nodes
        self.name = scenario.name
        self._for_emulator: dict[bool, Node] = {}
        self._peer_links: dict[bool, PeerLinks] = {}
        self._parts: dict[bool, tuple[tuple[int, ...], ...]] = {}

    def with_nodes(self, nodes: int) -> "ResolvedNode":
        """The same kind with ``nodes`` nodes. What was already read and computed is kept."""
        return self.described_by(replace(self.scenario, nodes=nodes))

    def described_by(self, scenario: Scenario) -> "ResolvedNode":
        """The same kind of nodes for ``scenario``, which differs only in its number of nodes. What was already read and
        computed is kept."""
        other = copy(self)
        other.scenario, other.nodes = scenario, scenario.nodes
        return other

    @property
    def trays(self) -> int | None:
        """The number of trays of each node that are used, if the machine is an NVLink domain; None for a host."""
        machine = self.scenario.machine
        has = None if machine is None else catalogue.load(machine).trays
        return self.scenario.trays or has

    @property
    def hosts(self) -> int:
        """The number of hosts of all nodes of this kind."""
        return self.nodes * (self.trays or 1)

    @property
    def in_words(self) -> str:
        """Number and name of nodes: ``2 x dgx-h100, 8 GPUs each``."""
        of_trays = f"{self.trays} trays of {self.gpus} GPUs" if self.trays else f"{self.gpus} GPUs each"
        return f"{self.nodes} x {self.name}, {of_trays}{self.sharing}"

    @cached_property
    def gpus(self) -> int:
        """The number of GPUs used per node (for trays, per tray): as described, or all. BadInput if there are fewer
        than described."""
        have, wanted = len(self.topology.gpus), self.scenario.gpus_per_node
        gpus = have if wanted is None else wanted
        if not 1 <= gpus <= have:
            node = self.scenario.machine or self.scenario.topology
            of = "tray" if self.trays else "node"
            raise BadInput(f"{gpus} GPUs per {of}: valid are 1 to {have} on {node}")
        if gpus > MOST_RANKS:
            raise BadInput(f"{gpus} GPUs in one node: NCCL has room for {MOST_RANKS}")
        return gpus

    @cached_property
    def gpu_of_rank(self) -> tuple[int, ...]:
        """The GPU on which each rank of the node is.

        BadInput if several ranks are on one GPU and NCCL refuses that.
        """
        per_gpu = self.scenario.ranks_per_gpu
        if per_gpu is None:
            dumped = self._own.topology.gpu_of_rank  # changed hardware has the same GPUs
            placed = tuple(gpu for gpu in dumped if gpu < self.gpus) or tuple(range(self.gpus))
        else:
            if per_gpu > max(1, MOST_RANKS // self.gpus):
                raise BadInput(
                    f"{per_gpu} ranks on each of {self.gpus} GPUs are too many: a node has at most {MOST_RANKS} ranks"
                )
            placed = tuple(gpu for gpu in range(self.gpus) for _ in range(per_gpu))
        if len(placed) > self.gpus:
            _check_shares(self.scenario.nccl, self.scenario.environment or {})
        return placed

    @property
    def shares_gpus(self) -> bool:
        """Whether several ranks are on one GPU."""
        return len(self.gpu_of_rank) > self.gpus

    @property
    def sharing(self) -> str:
        """A phrase that says how many ranks share each GPU, to follow the number of GPUs; empty if each rank has its
        own GPU."""
        if not self.shares_gpus:
            return ""
        counts = set(Counter(self.gpu_of_rank).values())
        return f", {counts.pop()} ranks on each" if len(counts) == 1 else f", {len(self.gpu_of_rank)} ranks on them"

    @property
    def topology(self) -> Topology:
        """The topology of one node. BadInput if the scenario describes none, BadTopology if it cannot be read."""
        return self._changed.topology

    @property
    def topology_xml(self) -> str:
        """Topology XML in the form that libnccl reads."""
        return self._changed.text

    def for_emulator(self, several: bool) -> Node:
        """The node as input for the emulator, as the only node or as one of several."""
        if several not in self._for_emulator:
            self._for_emulator[several] = self._described(several)
        return self._for_emulator[several]

    def _described(self, several: bool) -> Node:
        if (parts := len(self.parts(several))) > 1:
            raise BadInput(f"NCCL treats {self.name} as {parts} nodes here; only pick and explain answer that")
        searched, net_gbs = self._searched(several)
        # The dumped graphs come from a run with CollNet if they contain CollNet's graphs
        dumped = self.scenario.graphs is not None
        links = None if dumped else partial(self._links, several)
        firsts = None if dumped else partial(first_ranks, self.for_search, self.nccl, several)
        reduces = self.network_reduces or (dumped and any(name in searched for name in graphs.COLLNET_GRAPHS))
        return replace(
            self.without_graphs,
            graphs=searched,
            net_gbs=net_gbs,
            links=links,
            network_reduces=reduces,
            first_ranks=firsts,
        )

    def _links(self, several: bool) -> PeerLinks:
        from tuner.graphs.graphs import peer_links

        if several not in self._peer_links:  # needed again for every size
            self._peer_links[several] = peer_links(self.for_search(several), self.nccl)
        return self._peer_links[several]

    @cached_property
    def network_reduces(self) -> bool:
        """Whether all adapters support collectives, according to the scenario or topology. BadInput if only some do and
        CollNet is on.
        """
        nets = self.topology.nets
        marked = [nets[number].reduces for number in used(nets, self.scenario.variables)]
        if any(marked) and not all(marked) and self.variables.get("NCCL_COLLNET_ENABLE") == "1":
            raise BadInput(
                f"{self.name}: some adapters reduce and some do not (coll), and CollNet is not emulated there: set "
                "NCCL_COLLNET_ENABLE=0, or NCCL_IB_HCA to those that reduce"
            )
        return bool(nets) and (self.scenario.collnet or all(marked))

    def merges_adapters(self) -> bool:
        """Whether NCCL merges any of its adapters when it is one of several nodes."""
        from tuner.graphs.xml import merges

        if not self.topology.nets:
            return False
        return merges(self.for_search(several=True), self.topology, release.load(self.nccl).search)

    def leaks_adapters(self) -> bool:
        """Whether later communicators of a process also see the adapters that its first communicator merged."""
        rules = release.load(self.nccl).search.merging
        return rules is not None and rules.leaks and self.merges_adapters()

    def parts(self, several: bool) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node that NCCL makes of the described node; mostly, it makes only one. ``several`` says
        whether the communicator has other nodes."""
        if several not in self._parts:
            known = self.scenario.graphs is not None or self.searched_before(several) is not None
            whole = (self._every_rank,)
            self._parts[several] = whole if known else found_parts(self.for_search(several), self.scenario.nccl)
        return self._parts[several]

    @property
    def nccl(self) -> str:
        """The name of the release."""
        return self.scenario.nccl

    @property
    def size(self) -> int:
        """Number of ranks of the node."""
        return len(self.gpu_of_rank)

    @property
    def _every_rank(self) -> tuple[int, ...]:
        return tuple(range(len(self.gpu_of_rank)))

    @cached_property
    def without_graphs(self) -> Node:
        """The node as input for the emulator, without the graphs and the bandwidth that a search would find."""
        return self.of_ranks(self._every_rank)

    def of_ranks(self, ranks: Sequence[int]) -> Node:
        """A node for the emulator that consists of these ranks, without what the search would find."""
        nets, used_gpus = self.topology.nets, sorted({self.gpu_of_rank[rank] for rank in ranks})
        host = self.topology.with_nets(used(nets, self.scenario.variables))
        topology, gpus = host.with_gpus(used_gpus), len(used_gpus)
        return Node(
            graphs={},
            net_gbs=0.0,
            comp_caps=tuple(host.gpus[self.gpu_of_rank[rank]].sm for rank in ranks),
            cpu_arch=host.cpu_arch,
            cpu_vendor=host.cpu_vendor,
            has_nvswitch=topology.has_nvswitch(gpus),
            direct_nvlink=topology.all_direct_nvlink(gpus),
            some_nvlink=topology.any_direct_nvlink(gpus),
            gpu_direct=topology.gpu_direct(gpus),
            shares_gpus=len(ranks) > gpus,
            merges_adapters=self.merges_adapters,
            network=network_of(host.nets),
            network_reduces=self.network_reduces,
            offers_gin=offers_gin(host.nets),
        )

    def for_oracle(self, nodes: int) -> "OracleConfiguration":
        """``nodes`` nodes of this kind, in the form of the oracle."""
        from tuner.scenario.oracle_configuration import OracleConfiguration

        scenario = self.scenario
        self._check_alias(nodes > 1)
        return OracleConfiguration(
            topology=self.topology_xml,
            nodes=nodes,
            gpus_per_node=self.gpus,
            release=scenario.nccl,
            env=self._variables_of_nccl,
            configuration=tuple((scenario.configuration or {}).items()),
            peer_to_peer=self.peer_to_peer,
            build=scenario.build,
            gpu_of_rank=self._gpu_of_ranks_that_share,
            network_reduces=self.network_reduces,
        )

    @property
    def _variables_of_nccl(self) -> dict[str, str]:
        """NCCL's variables without those of the network plugin, because a simulated network replaces it."""
        variables = self._variables_beside(self.scenario.variables_of_process)
        replaced = {"NCCL_NET_PLUGIN"}
        if plugin_network(network_of(self._own.topology.nets), variables) is not None:
            replaced.add("NCCL_NET")
        return {name: value for name, value in variables.items() if name not in replaced}

    @property
    def _gpu_of_ranks_that_share(self) -> tuple[int, ...]:
        """The GPU of each rank, if some ranks share one; else empty."""
        return self.gpu_of_rank if self.shares_gpus else ()

    @property
    def variables(self) -> Mapping[str, str]:
        """NCCL's variables: those in the machine's nccl.conf, those that the user sets, and those that stand for a
        configuration."""
        return self._variables_beside(self.scenario.variables)

    def _variables_beside(self, given: Mapping[str, str]) -> Mapping[str, str]:
        scenario = self.scenario
        of_machine = catalogue.load(scenario.machine).environment if scenario.machine else {}
        kept = {name: value for name, value in of_machine.items() if name not in scenario.unset}
        return {**kept, **given}

    @property
    def peer_to_peer(self) -> PeerToPeer:
        """The GPUs between which NVML and CUDA allow peer-to-peer access: the scenario's changes decide, or else the
        machine, or else the GPU model."""
        scenario = self.scenario
        if (changed := (scenario.hardware or {}).get("p2p")) is not None:
            return PeerToPeer(changed)
        if scenario.machine is not None:
            return catalogue.load(scenario.machine).peer_to_peer
        return PeerToPeer.none if self.gpus_without_peer_to_peer else PeerToPeer.all

    @cached_property
    def gpus_without_peer_to_peer(self) -> tuple[GpuModel, ...]:
        """The models of the node's GPUs, if none of them can access another GPU's memory; else empty."""
        scenario = self.scenario
        named = [(scenario.gpu,)] if scenario.gpu else [gpus.of_device(gpu.device) for gpu in self._own.topology.gpus]
        models = dict.fromkeys(gpus.load(name) for names in named for name in names)
        return tuple(models) if all(named) and all(model.peer_to_peer is PeerToPeer.none for model in models) else ()

    def for_search(self, several: bool) -> "SearchRequest":
        """The node as input for the search of graphs, as the only node or as one of several. BadTopology if several
        nodes have no adapter."""
        from tuner.graphs import SearchRequest

        self._check_alias(several)
        if several and not self.topology.nets:
            whose = "a communicator of several nodes needs"
            if self.scenario.nodes == 1 and not self.scenario.others:
                whose = "GPUs of one node need that neither peer-to-peer nor shared memory joins"
            error = BadTopology(f"topology has no <net> element, which {whose}")
            other = described.with_adapter(self.scenario.machine or "")
            raise error if other is None else error.cured(Remedy("machine", other))
        nccl = release.load(self.scenario.nccl)
        variables, nvls_off = self._variables_of_nccl, resolved.rules_for(nccl).nvls_if_shared
        return SearchRequest(
            self.topology_xml,
            self.gpus,
            several,
            {name: value for name, value in variables.items() if name in nccl.search_variables},
            self.peer_to_peer,
            self._gpu_of_ranks_that_share,
            nvls_off is not None and nvls_off([self.gpu_of_rank]),
            graph_file=_graph_file(variables),
            network_reduces=self.network_reduces,
            later=self.scenario.later,
        )

    def _check_alias(self, several: bool) -> None:
        """Raises UnknownMachine if the name stands for another machine that is equal only on one node with NVLinks, and
        NCCL uses several nodes or no NVLinks."""
        alias = None if self.scenario.machine is None else catalogue.alias(self.scenario.machine)
        off = parse_long(self.variables.get("NCCL_P2P_DISABLE", "")) != 0
        if alias is not None and (several or off):
            alias.check_beyond_nvlink()

    def _searched(self, several: bool) -> tuple[Graphs, float]:
        """The graphs, and the bandwidth of the slowest path from a GPU to its adapter (GB/s, 0 if unknown)."""
        scenario = self.scenario
        self._check_alias(several)
        if scenario.graphs is not None:
            if scenario.hardware:
                names = ", ".join(scenario.hardware)
                raise BadInput(
                    f"{option('graphs')}: these graphs were found on the unchanged node: remove {option('graphs')}, or "
                    f"{names}"
                )
            dumped, found = graphs.read_dump(scenario.graphs)
            ranks, each = len(self.gpu_of_rank), "ranks" if self.shares_gpus else "GPUs"
            if found != ranks:
                raise BadTopology(f"{scenario.graphs}: graphs of {found} {each} for {ranks} {each} per node")
            return dumped, self._dumped_net_gbs(several)
        return self.searched_before(several) or found_graphs(self.for_search(several), scenario.nccl)

    def searched_before(self, several: bool, trays: int = 1) -> tuple[Graphs, float] | None:
        """The graphs and the bandwidth of the slowest path (GB/s, 0 if unknown) that the catalogue has; None if it has
        none. It has them only for unchanged machines, and only if the variables that the search reads are those of the
        machine.

        ``trays``: how many of these hosts NVLink joins. For several, the catalogue only has graphs with all GPUs of
        each host.
        """
        scenario = self.scenario
        if scenario.machine is None or scenario.hardware or self._changed is not self._edited:
            return None
        if several and self.over_sockets:
            return None
        if scenario.later and self.leaks_adapters():
            return None
        machine, nccl = catalogue.load(scenario.machine), release.load(scenario.nccl)
        machine.check_runs(nccl.name)
        given = self.variables
        if self.network_reduces and nccl.search.reading.collnet_is_one_rail and given.get("NCCL_COLLNET_ENABLE") != "1":
            return None
        read = {*nccl.environment.search, *(nccl.environment.nvlink_domains if trays > 1 else ())}
        searched_with = {name: value for name, value in given.items() if name in read}
        whole = trays == 1 or self.gpus == machine.gpus_per_node
        if self.shares_gpus or searched_with != machine.environment or not whole:
            return None
        shape = nccl.name, self.gpus * trays, several
        table = machine.graph_table
        return (table.graphs[shape], table.net_gbs.get(shape, 0.0)) if shape in table.graphs else None

    def _dumped_net_gbs(self, several: bool) -> float:
        """The bandwidth in GB/s of the machine's slowest path to an adapter, because a dump of graphs does not contain
        it; 0 (not known) for a topology."""
        if self.scenario.machine is None:
            return 0.0
        known = self.searched_before(several)
        return found_graphs(self.for_search(several), self.scenario.nccl)[1] if known is None else known[1]

    @cached_property
    def _changed(self) -> _Source:
        """The topology with the changed hardware, and with merged adapters, as NCCL's network presents them."""
        changed, merges = self._edited, release.load(self.nccl).search.ports_merged
        nets = changed.topology.nets
        if merges == "never" or len(nets) < 2 or not mergeable(nets, self.variables):
            return changed
        if Environment(self.variables).c_int(MERGE_PORTS, 1) == 0:
            return changed
        devs = tuple(nets[number].dev for number in used(nets, self.variables))
        text = edit.with_ports_merged(changed.text, devs, merges == "where_all_alike")
        return changed if text is changed.text else _Source(text, read_topology(text))

    @cached_property
    def _edited(self) -> _Source:
        """The topology with the changed hardware, with each port by itself, and with IP interfaces if NCCL uses
        sockets."""
        own = self._own
        if self.scenario.hardware:
            changes = {key: value for key, value in self.scenario.hardware.items() if key in edit.EDITS}
            _check_nvlinks(self.scenario.gpu, changes)
            text = edit.edited(own.text, changes)
            own = _Source(text, read_topology(text))
        if self.over_sockets:
            text = edit.over_ip(own.text)
            own = _Source(text, read_topology(text))
        return own

    @cached_property
    def over_sockets(self) -> bool:
        """Whether variables make NCCL use IP sockets, although it has RDMA adapters."""
        return over_sockets(self._own.topology.nets, self._variables_beside(self.scenario.variables_of_process))

    @cached_property
    def _own(self) -> _Source:
        scenario = self.scenario
        if (scenario.machine is None) == (scenario.topology is None):
            raise BadInput(
                f"name one machine: {option('machine')} NAME (all: nccl-tuner "
                f"machines) or {option('topology')} FILE.xml"
            )
        if scenario.gpu is None and (scenario.net_gbps is not None or scenario.net_latency_us is not None):
            raise BadInput(
                f"{option('net_gbps')} and {option('net_latency_us')} only complete a skeleton: add {option('gpu')} "
                "MODEL; to give a machine other adapters, use the change nic-gbps=GBPS"
            )
        if scenario.machine is not None:
            if scenario.gpu is not None:
                raise BadInput(
                    f"{option('gpu')} only completes a {option('topology')} FILE.xml: remove it, because the GPUs of "
                    f"{scenario.machine} are known"
                )
            machine = catalogue.load(scenario.machine)
            return _Source(machine.topology_xml, machine.topology)
        assert scenario.topology is not None
        if scenario.part_of_dump is not None:
            host, _ = reader.hosts_of(scenario.topology)[scenario.part_of_dump]
            return _Source(host, read_topology(host))
        from tuner.machine import skeleton

        given, hardware = (scenario.gpu, scenario.net_gbps, scenario.net_latency_us), scenario.hardware or {}
        if (text := _of_listing(scenario.topology, *given, hardware.get("cpu"))) is not None:
            return _Source(text, read_topology(text, f"{scenario.topology}, completed"))
        if scenario.gpu is None:
            return _Source(*skeleton.read_complete(scenario.topology))
        text = skeleton.completed(scenario.topology, *given)
        return _Source(text, read_topology(text, f"{scenario.topology}, completed"))


MOST_NEAR_LISTING = 2


def _of_listing(
    file: Path, gpu: str | None, net_gbps: float | None, net_latency_us: float | None, cpu: str | None
) -> str | None:
    """Topology of a node from a listing of nvidia-smi or lstopo; None for another kind of file.

    If the listing lacks something, BadInput says what, how to add it, and which machines are most similar.
    """
    from tuner.machine.listings import ListingAdditions, completed, read
    from tuner.machine.listings.complete import ranked
    from tuner.machine.listings.shape import of_listing

    listing = read(file)
    if listing is None:
        return None
    try:
        return completed(file, ListingAdditions(gpu, net_gbps, net_latency_us, cpu))[0]
    except BadInput as error:
        near = ranked(of_listing(listing, None if gpu is None else gpus.load(gpu)))[:MOST_NEAR_LISTING]
        raise BadInput(
            f"{error}; complete it with 'nccl-tuner machines {file} -o node.xml' and use {option('topology')} "
            f"node.xml, or give {option('machine')}; nearest machines: {'; '.join(one.in_words for one in near)}; not "
            f"known: {', '.join(near[0].unknown)}"
        ) from None


def found_graphs(request: "SearchRequest", nccl: str) -> tuple[Graphs, float]:
    """The searched graphs, and the bandwidth of the slowest path from a GPU to its adapter (GB/s, 0 if unknown).

    Graphs without channels are left out, except that of NVLS in releases whose latencies depend on its type. Raises
    BadTopology, and BadInput for what NCCL refuses.
    """
    from tuner.graphs import searched

    found = searched(request, nccl)
    kept = {"nvls"} if resolved.rules_for(release.load(nccl)).nvls_search_start is not None else set()
    graphs = {name: each.graph for name, each in found.graphs.items() if each.graph.channels or name in kept}
    return graphs, found.net_gbs


def first_ranks(for_search: Callable[[bool], "SearchRequest"], nccl: str, several: bool, name: str) -> tuple[int, ...]:
    """The first rank of each channel of a graph, within a node. Raises BadTopology and BadInput."""
    from tuner.emulator.connect import NodeKind
    from tuner.graphs import searched

    found = searched(for_search(several), nccl)
    return tuple(order[0] for order in NodeKind(1, found.graphs, found.relays).orders(name))


def found_parts(request: "SearchRequest", nccl: str) -> tuple[tuple[int, ...], ...]:
    """The ranks of a node, divided into the nodes that NCCL makes of it. Raises BadTopology and BadInput."""
    from tuner.graphs import searched

    found = searched(request, nccl)
    return tuple(
        tuple(rank for rank, of_rank in enumerate(found.part_of_rank) if of_rank == part) for part in range(found.parts)
    )


def _graph_file(variables: Mapping[str, str]) -> str | None:
    """The text of the graph file that a variable gives to NCCL; None if no variable does. BadInput for a missing
    file."""
    path = variables.get(GRAPH_FILE)
    return None if path is None else read_bytes(Path(path), BadInput, MAX_BYTES).decode("utf-8", "replace")


def _check_nvlinks(gpu: str | None, changes: Mapping[str, str]) -> None:
    """Raises BadInput if a change gives GPUs more NVLinks than the GPU model of a skeleton has."""
    if gpu is None or "nvlinks" not in changes:
        return
    most = gpus.load(gpu).nvlinks
    for count in re.findall(r"(?:^|,)(\d+)", changes["nvlinks"]):
        if int(count) > most:
            raise BadInput(f"nvlinks={changes['nvlinks']}: valid are 0 to {most} per GPU, as many as {gpu} has")


def _check_shares(nccl: str, environment: Mapping[str, str]) -> None:
    """Raises BadInput if the release does not allow several ranks on one GPU, or if a variable forbids it."""
    variable = release.load(nccl).environment.shares_gpus
    if variable is None:
        since = next(name for name in release.names() if release.load(name).environment.shares_gpus is not None)
        raise BadInput(f"NCCL {nccl} refuses several ranks on one GPU: use one rank per GPU, or NCCL {since} or later")
    if environment.get(variable, "1") == "0":
        raise BadInput(f"with {variable}=0 NCCL refuses several ranks on one GPU: set it to 1, or remove it")

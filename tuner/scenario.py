"""What a user describes - machine or topology, nodes, release, settings - as inputs of emulator and oracle."""

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from tuner import release
from tuner.base.errors import BadInput, BadTopology
from tuner.emulator import communicator as comm
from tuner.emulator import fitted_constants
from tuner.emulator.communicator import Communicator, Node
from tuner.emulator.fitted_constants import FittedConstants
from tuner.emulator.rules import cta_policy
from tuner.machine import catalogue, graphs, skeleton
from tuner.machine.graphs import Graphs
from tuner.machine.topology import Topology, edit
from tuner.machine.topology import read as read_topology
from tuner.oracle.configuration import OracleConfiguration
from tuner.release.environment import Environment

MOST_NODES = 2**20  # beyond any machine there is, and still quick to answer


@dataclass(frozen=True, slots=True)
class Scenario:
    """One communicator to ask about; exactly one of ``machine`` and ``topology`` names the node.

    ``others`` are further nodes, after the ``nodes`` in the order of ranks; only what describes nodes is read of them.
    """

    nccl: str
    nodes: int
    machine: str | None = None
    topology: Path | None = None
    graphs: Path | None = None
    gpus_per_node: int | None = None
    environment: dict[str, str] | None = None
    gpu: str | None = None  # the model of all GPUs, where the topology only places them
    net_gbps: float | None = None  # of the adapters that the topology only places, 1e9 bits per second
    net_latency_us: float | None = None
    others: tuple["Scenario", ...] = ()
    fitted_constants: FittedConstants | None = None  # instead of NCCL's; libnccl has none
    hardware: dict[str, str] | None = None  # what differs from the machine or topology, in the words of topology.edit
    search: bool = False  # libnccl searches the graphs of a known machine too, as variables of the search are set

    @property
    def title(self) -> str:
        """What the communicator is, in words: ``2 x dgx-h100, 8 GPUs each, NCCL 2.28.9``."""
        constants = f", constants {self.fitted_constants.file}" if self.fitted_constants else ""
        nodes = (f"{kind.nodes} x {kind.name}, {kind.gpus()} GPUs each" for kind in self._kinds)
        return f"{' + '.join(nodes)}, NCCL {self.nccl}{constants}"

    @property
    def settings(self) -> list[str]:
        """NCCL's variables, NAME=VALUE."""
        return [f"{name}={value}" for name, value in (self.environment or {}).items()]

    @property
    def heading(self) -> str:
        """The title with the settings, which some answers are compared by."""
        return ", ".join([self.title, *self.settings])

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases it can be asked of without libnccl, oldest first: its machine's; else its own."""
        return (self.nccl,) if self.machine is None or self.fitted_constants else catalogue.load(self.machine).releases

    @property
    def name(self) -> str:
        """Of a node."""
        own = self.machine or " ".join(filter(None, [str(self.topology), self.gpu]))
        return " with ".join([own, *(f"{key}={value}" for key, value in (self.hardware or {}).items())])

    @property
    def constants(self) -> dict[str, Any]:
        """Whose constants an answer is made with, for its record."""
        return {"nccl": self.nccl, **({"layer": self.fitted_constants.record} if self.fitted_constants else {})}

    @property
    def ranks(self) -> int:
        """Of the whole communicator."""
        return sum(kind.nodes * kind.gpus() for kind in self._kinds)

    @property
    def _kinds(self) -> tuple["Scenario", ...]:
        """Nodes that are alike, each kind as a case of its own."""
        return (self, *(replace(other, nccl=self.nccl, environment=self.environment) for other in self.others))

    @property
    def _searched_by_library(self) -> bool:
        """Rather than known from the catalogue or a dump."""
        return self.graphs is None and (self.machine is None or bool(self.hardware) or self.search)

    def gpus(self) -> int:
        """GPUs used per node: those asked for, else all. BadInput where there are not as many."""
        have = len(self.node_topology().gpus)
        asked = have if self.gpus_per_node is None else self.gpus_per_node
        if not 1 <= asked <= have:
            raise BadInput(f"GPUs per node: {asked}; valid: 1 to {have} on {self.machine or self.topology}")
        return asked

    def communicator(self) -> Communicator:
        """The emulated communicator; its graphs come from the catalogue, from a dump, or from the real library."""
        return self.views()[0]

    def views(self) -> list[Communicator]:
        """The communicator as rank 0 sees it, then as the ranks of each of ``others`` do.

        They may differ, because NCCL does not exchange everything it tunes with; they are one where nodes are alike.
        """
        nccl, searched = self._release(), frozenset[str]()
        if all(kind._searched_by_library for kind in self._kinds):
            searched = frozenset(nccl.table["environment"]["search"])
        environment = Environment(self.environment or {}, searched)
        several = sum(kind.nodes for kind in self._kinds) > 1
        nodes = [[kind._node(several)] * kind.nodes for kind in self._kinds]
        return [
            comm.build(nccl, list(chain(own, *nodes[:first], *nodes[first + 1 :])), environment)
            for first, own in enumerate(nodes)
        ]

    def oracle_configuration(self) -> OracleConfiguration:
        """The same communicator for the oracle. BadInput for what libnccl cannot take: fitted constants, graphs."""
        if self.fitted_constants is not None:
            raise BadInput("--constants: libnccl computes with its own constants; valid for: pick, table, group")
        if any(kind.graphs is not None for kind in self._kinds):
            raise BadInput("--graphs: libnccl searches its own graphs; valid for it: --machine, --topology")
        own, *others = (kind._setup(kind.nodes) for kind in self._kinds)
        if any(other.env != own.env for other in others):
            raise BadInput("the nccl.conf of these machines differ, and libnccl runs in one process here; valid: alike")
        return replace(own, others=tuple(chain.from_iterable(other.hosts for other in others)))

    def oracle_configuration_to_launch(self) -> OracleConfiguration:
        """The same; without a tuner plugin, so without the recorder, where a variable counts only then."""
        return replace(self.oracle_configuration(), without_tuner=cta_policy.NAME in (self.environment or {}))

    def _release(self) -> release.Release:
        nccl = release.load(self.nccl)
        if self.fitted_constants is None:
            return nccl
        measured = self.fitted_constants.provenance.get("machine")
        names = {kind.machine for kind in self._kinds} - {None}
        if measured is not None and names - {measured}:
            file = self.fitted_constants.file
            raise BadInput(f"--constants {file}: measured on {measured}, not {', '.join(map(str, names))}")
        return fitted_constants.apply(nccl, self.fitted_constants)

    def _setup(self, nodes: int) -> OracleConfiguration:
        machine = None if self.machine is None else catalogue.load(self.machine)
        return OracleConfiguration(
            topology=self._topology_text(),
            nodes=nodes,
            gpus_per_node=self.gpus(),
            release=self.nccl,
            env={**(machine.environment if machine else {}), **(self.environment or {})},
            peer_to_peer_across_sockets=machine is None or machine.peer_to_peer_across_sockets,
        )

    def _node(self, several: bool) -> Node:
        topology, gpus = self.node_topology(), self.gpus()
        searched, net_gbs = self._searched(several)
        return Node(
            graphs=searched,
            net_gbs=net_gbs,
            comp_caps=tuple(topology.compute_capabilities(gpus)),
            cpu_arch=topology.cpu_arch,
            cpu_vendor=topology.cpu_vendor,
            has_nvswitch=topology.has_nvswitch(gpus),
            direct_nvlink=topology.all_direct_nvlink(gpus),
            some_nvlink=topology.any_direct_nvlink(gpus),
            gpu_direct=topology.gpu_direct(gpus),
        )

    def _searched(self, several: bool) -> tuple[Graphs, float]:
        """The graphs, and the bandwidth of the slowest path from a GPU to its adapter (GB/s, 0 where unknown)."""
        if self.graphs is not None:
            if self.hardware:
                raise BadInput(f"--graphs: found on the node as it was; valid with {', '.join(self.hardware)}: none")
            dumped, gpus = graphs.read_dump(self.graphs)
            if gpus != self.gpus():
                raise BadTopology(f"{self.graphs}: graphs of {gpus} GPUs for {self.gpus()} GPUs per node")
            return dumped, self._dumped_net_gbs(several)
        if self._searched_by_library:
            from tuner.oracle import search as found

            return found.search(self._setup(2 if several else 1))
        assert self.machine is not None
        machine, shape = catalogue.load(self.machine), (self.nccl, self.gpus(), several)
        return machine.graphs(*shape), machine.net_gbs(*shape)

    def _dumped_net_gbs(self, several: bool) -> float:
        """A dump of graphs does not say it, so the machine's own; a topology's is not known."""
        if self.machine is None:
            return 0.0
        return catalogue.load(self.machine).net_gbs(self.nccl, self.gpus(), several)

    def node_topology(self) -> Topology:
        """One of ``nodes``. BadInput where that is not described, BadTopology where it cannot be read."""
        own = self._own_topology()
        return read_topology(self._topology_text()) if self.hardware else own

    def _own_topology(self) -> Topology:
        if (self.machine is None) == (self.topology is None):
            raise BadInput(f"name one machine: --machine NAME ({', '.join(catalogue.names())}) or --topology FILE.xml")
        if self.gpu is None and (self.net_gbps is not None or self.net_latency_us is not None):
            raise BadInput("--net-gbps and --net-latency-us complete a skeleton, which needs --gpu MODEL as well")
        if self.machine is not None:
            if self.gpu is not None:
                raise BadInput(f"--gpu completes a --topology FILE.xml; {self.machine} knows its GPUs")
            return catalogue.load(self.machine).topology
        assert self.topology is not None
        if self.gpu is not None:
            return read_topology(self._completed(self.gpu))
        skeleton.check_complete(self.topology)
        return read_topology(self.topology)

    def _completed(self, gpu: str) -> str:
        from tuner.oracle import search as found

        assert self.topology is not None
        return found.completed(self.topology, gpu, self.net_gbps, self.net_latency_us, self.nccl)

    def _topology_text(self) -> str:
        own = self._own_text()
        return edit.edited(own, self.hardware) if self.hardware else own

    def _own_text(self) -> str:
        if self.machine is not None:
            return catalogue.load(self.machine).topology_xml
        self._own_topology()
        assert self.topology is not None
        return self.topology.read_text("utf-8") if self.gpu is None else self._completed(self.gpu)

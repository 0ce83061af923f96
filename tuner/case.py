"""What a user describes - machine or topology, nodes, release, settings - as inputs of emulator and oracle."""

from dataclasses import dataclass
from pathlib import Path

from tuner import communicator, found, graphs, machines, release
from tuner.communicator import Communicator, Node
from tuner.environment import Environment
from tuner.errors import BadInput, BadTopology
from tuner.graphs import Graphs
from tuner.oracle import Oracle, Setup
from tuner.topology import Topology
from tuner.topology import read as read_topology


@dataclass(frozen=True, slots=True)
class Case:
    """One communicator to ask about; exactly one of ``machine`` and ``topology`` names the node."""

    nccl: str
    nodes: int
    machine: str | None = None
    topology: Path | None = None
    graphs: Path | None = None
    gpus_per_node: int | None = None
    environment: dict[str, str] | None = None

    @property
    def title(self) -> str:
        name = self.machine or str(self.topology)
        return f"{self.nodes} x {name}, {self.gpus()} GPUs each, NCCL {self.nccl}"

    def gpus(self) -> int:
        """GPUs used per node: those asked for, else all."""
        have = len(self._topology().gpus)
        asked = have if self.gpus_per_node is None else self.gpus_per_node
        if not 1 <= asked <= have:
            raise BadInput(f"GPUs per node: {asked}; valid: 1 to {have} on {self.machine or self.topology}")
        return asked

    def communicator(self) -> Communicator:
        """The emulated communicator; its graphs come from the catalogue, from a dump, or from the real library."""
        nccl, values = release.load(self.nccl), self.environment or {}
        if self.machine is None and self.graphs is None:  # the oracle's search has seen the variables of the search
            searched_with = nccl.table["environment"]["search"]
            values = {name: value for name, value in values.items() if name not in searched_with}
        return communicator.build(nccl, self._node(), self.nodes, Environment(values))

    def setup(self) -> Setup:
        """The same communicator for the oracle."""
        if self.graphs is not None:
            raise BadInput("--graphs: libnccl searches its own graphs; valid for it: --machine, --topology")
        return self._setup(self.nodes)

    def _setup(self, nodes: int) -> Setup:
        machine = None if self.machine is None else machines.load(self.machine)
        return Setup(
            topology=self._topology_text(), nodes=nodes, gpus_per_node=self.gpus(), release=self.nccl,
            env={**(machine.environment if machine else {}), **(self.environment or {})},
            peer_to_peer_across_sockets=machine is None or machine.peer_to_peer_across_sockets,
        )

    def _node(self) -> Node:
        topology, gpus = self._topology(), self.gpus()
        searched, net_gbs = self._searched()
        return Node(
            graphs=searched,
            net_gbs=net_gbs,
            comp_caps=tuple(topology.compute_capabilities(gpus)),
            cpu_arch=topology.cpu_arch,
            cpu_vendor=topology.cpu_vendor,
            has_nvswitch=topology.has_nvswitch(gpus),
        )

    def _searched(self) -> tuple[Graphs, float]:
        """The graphs, and the bandwidth of the slowest path from a GPU to its adapter (GB/s, 0 where unknown)."""
        if self.graphs is not None:
            dumped, gpus = graphs.read_dump(self.graphs)
            if gpus != self.gpus():
                raise BadTopology(f"{self.graphs}: graphs of {gpus} GPUs for {self.gpus()} GPUs per node")
            return dumped, self._dumped_net_gbs()
        if self.machine is not None:
            machine, shape = machines.load(self.machine), (self.nccl, self.gpus(), self.nodes > 1)
            return machine.graphs(*shape), machine.net_gbs(*shape)
        with Oracle(self._setup(min(self.nodes, 2))) as oracle:
            found.check_nodes(oracle)
            return found.graphs(oracle), found.net_gbs(oracle) or 0.0

    def _dumped_net_gbs(self) -> float:
        """A dump of graphs does not say it, so the machine's own; a topology's is not known."""
        if self.machine is None:
            return 0.0
        return machines.load(self.machine).net_gbs(self.nccl, self.gpus(), self.nodes > 1)

    def _topology(self) -> Topology:
        if (self.machine is None) == (self.topology is None):
            raise BadInput(f"name one machine: --machine NAME ({', '.join(machines.names())}) or --topology FILE.xml")
        if self.machine is not None:
            return machines.load(self.machine).topology
        assert self.topology is not None
        return read_topology(self.topology)

    def _topology_text(self) -> str:
        if self.machine is not None:
            return machines.load(self.machine).topology_xml
        self._topology()
        assert self.topology is not None
        return self.topology.read_text("utf-8")

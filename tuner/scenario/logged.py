"""Nodes whose graphs a log of NCCL shows: what emulator takes of them, and what nothing but a topology would tell."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tuner import release
from tuner.base.errors import BadInput
from tuner.emulator.communicator import Node
from tuner.release.schema import SEARCHED_FOR
from tuner.scenario.logs import network
from tuner.scenario.logs.imported import NodeFacts, as_node
from tuner.scenario.node import ResolvedNode

if TYPE_CHECKING:
    from tuner.graphs import Request
    from tuner.machine.topology import Topology
    from tuner.scenario.description import Scenario
    from tuner.scenario.oracle_configuration import OracleConfiguration

OTHERWISE = "valid beside `log` for that: `topology` FILE.xml or `machine` NAME"


@dataclass(frozen=True, slots=True)
class LoggedNode:
    """One node of a log, in a communicator of ``nodes`` of NCCL's nodes, whose graphs NCCL ``release`` found.

    ``variables`` are those that it found them with. ``net_gbs``: the slowest path from a GPU to its own adapter, GB/s.
    """

    file: Path
    release: str
    nodes: int
    facts: NodeFacts
    variables: Mapping[str, str]
    net_gbs: float | None

    @property
    def comp_caps_in_words(self) -> str:
        """As ``--comp-cap`` takes them: one where all are alike."""
        caps = self.facts.comp_caps or ()
        return ",".join(map(str, sorted(set(caps)) if len(set(caps)) == 1 else caps))

    def name(self, nccl: str) -> str:
        """What it is, in words; also whose graphs it has, where they are of another release than ``nccl``."""
        ranks = f" with rank {', '.join(map(str, self.facts.ranks))}" if self.facts.ranks else ""
        found = "" if nccl in ("", self.release) else f" with graphs of NCCL {self.release}"
        return f"node of {self.file}{ranks}{found}"

    def check_variables(self, nccl: str, variables: Mapping[str, str]) -> None:
        """BadInput for a variable that the search of graphs reads, and that the log's was not searched with."""
        reads = release.load(nccl).search_variables
        for name in sorted(reads & {*variables, *self.variables}):
            value, logged = variables.get(name), self.variables.get(name)
            if value == logged or (name in SEARCHED_FOR and value == "0"):
                continue
            had = "without it" if logged is None else f"with {logged}"
            raise BadInput(
                f"{name}={value or ''}: NCCL searches graphs with it, and found those of {self.file} {had}; {OTHERWISE}"
            )


class ResolvedLoggedNode(ResolvedNode):
    """Such nodes, all alike. What their topology alone tells is refused."""

    def __init__(self, scenario: "Scenario", logged: LoggedNode) -> None:
        super().__init__(scenario)
        self._logged = logged

    @property
    def trays(self) -> None:
        """None: a NVLink domain is a node in a log."""
        return None

    @cached_property
    def gpus(self) -> int:
        """Ranks of a node. BadInput where another number is described."""
        have, wanted = self._logged.facts.local_ranks or 0, self.scenario.gpus_per_node
        if wanted not in (None, have):
            raise BadInput(f"{wanted} GPUs per node: {self._logged.file} has graphs of {have}; {OTHERWISE}")
        return have

    @cached_property
    def gpu_of_rank(self) -> tuple[int, ...]:
        """A GPU for each rank: a log does not show sharing."""
        if (self.scenario.ranks_per_gpu or 1) > 1:
            self._refuse(f"{self.scenario.ranks_per_gpu} ranks on each GPU")
        return tuple(range(self.gpus))

    @property
    def topology(self) -> "Topology":
        """BadInput: a log has none."""
        self._refuse("the topology of its nodes")

    @property
    def topology_xml(self) -> str:
        """BadInput: a log has none."""
        self._refuse("the topology of its nodes")

    def parts(self, several: bool) -> tuple[tuple[int, ...], ...]:
        """One: the nodes of a log are NCCL's own."""
        return (self._every_rank,)

    def for_emulator(self, several: bool) -> Node:
        """The node as the emulator takes it. BadInput for changed hardware, or graphs of other numbers of nodes."""
        logged = self._logged
        if self.scenario.hardware:
            changes = ", ".join(f"{key}={value}" for key, value in self.scenario.hardware.items())
            self._refuse(f"the topology that {changes} changes")
        if several != (logged.nodes > 1):
            had, asked = ("several nodes", "one alone") if logged.nodes > 1 else ("one node", "several")
            raise BadInput(f"{logged.file}: NCCL found its graphs for {had}, and finds others for {asked}; {OTHERWISE}")
        network.check_slowest(release.load(self.scenario.nccl), [logged.facts] * self.nodes, logged.net_gbs)
        return as_node(logged.facts, logged.net_gbs)

    @cached_property
    def without_graphs(self) -> Node:
        """The node as the emulator takes it, but for what is searched."""
        return replace(as_node(self._logged.facts, None), graphs={})

    def for_oracle(self, nodes: int) -> "OracleConfiguration":
        """BadInput: libnccl takes a topology."""
        self._refuse("a topology, in which libnccl searches")

    def for_search(self, several: bool) -> "Request":
        """BadInput: the search takes a topology."""
        self._refuse("a topology to search graphs in")

    def searched_before(self, several: bool, trays: int = 1) -> None:
        """None: the log has the graphs."""
        return

    def _refuse(self, what: str) -> NoReturn:
        raise BadInput(f"{self._logged.file}: a log does not show {what}; {OTHERWISE}")

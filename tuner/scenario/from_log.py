"""What a log of NCCL says of a communicator that is described by it, and what a user says besides."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tuner import release
from tuner.base.errors import BadInput
from tuner.base.records import json_form
from tuner.emulator.communicator import Node
from tuner.machine import catalogue, gpus, graphs
from tuner.machine.nearness import Nearness
from tuner.release.schema import SEARCHED_FOR
from tuner.release.variables import ignored
from tuner.scenario.description import Scenario
from tuner.scenario.logs import importer, node_facts
from tuner.scenario.logs.imported import Imported, LogAdditions, NodeFacts, as_node
from tuner.scenario.logs.importer import FILES_AND_ADAPTERS
from tuner.scenario.nearest import compared, ranked, same
from tuner.scenario.node import ResolvedNode

if TYPE_CHECKING:
    from tuner.graphs import SearchRequest
    from tuner.machine.topology import Topology
    from tuner.scenario.describe import Description
    from tuner.scenario.oracle_configuration import OracleConfiguration


_OF_RELEASES = ("the release", "NCCL ")  # how what is needed of a release begins
MOST_LISTED = 12  # communicators in a message
_OF_NODES = ("comp_cap", "cpu_arch", "cpu_vendor", "nvswitch", "net_gbs")
_OF_LOGS = ("log", "log_communicator", *_OF_NODES)


@dataclass(frozen=True, slots=True)
class LoggedTuner:
    """The tuner of aws-ofi-nccl that a log shows: its release, and the product name that it goes by; None: not said."""

    release: str
    product: str | None


@dataclass(frozen=True, slots=True)
class FromLog:
    """The communicator of a log that a description is of; ``release`` is what the log says.

    ``machine`` and ``topology`` have the graphs; where both are None, the log has them. ``notes`` say, a line each,
    what was assumed, and where what a user says goes before the log; ``answers`` what the log itself explains.
    """

    file: str
    communicator: str | None
    release: str | None
    machine: str | None
    topology: str | None
    nearness: Nearness | None = field(metadata=json_form(optional=True))  # of the machine
    notes: tuple[str, ...]
    answers: tuple[str, ...] = ()
    tuner: LoggedTuner | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True)
class Logged:
    """A description without its log: ``kinds`` of nodes that the log shows, none where a machine or topology has them.

    ``given`` are the other keys, with what the log says of them.
    """

    machine: str | None
    given: "Description"
    kinds: list[Scenario]
    says: FromLog


def read(machine: str | None, given: "Description") -> Logged:
    """The log of a description; with ``machine`` or a topology the nodes are theirs, else the log's.

    Errors: BadInput names what neither the log nor the user says, and the communicators where there are several.
    """
    file = Path(given["log"] or "")
    if given.get("node"):
        raise BadInput("`log` shows the nodes; valid: `log` or `node`")
    named = machine is not None or bool(given.get("topology"))
    if named and (beside := [key for key in _OF_NODES if given.get(key) not in (None, ())]):
        raise BadInput(f"{', '.join(beside)}: of nodes as the log shows them; valid without `machine` and `topology`")
    imported = importer.read(file, _given(given, not named))
    _check_one(file, given, imported)
    shown = not named and any(node.graphs for node in imported.nodes)
    if needed := imported.needed if shown else [text for text in imported.needed if text.startswith(_OF_RELEASES)]:
        raise BadInput(f"{file}: needed: {'; '.join(needed)}{OR_A_MACHINE if shown else ''}")
    foreign = imported.evidence.answers[:1] if imported.evidence.tuner_plugin is not None else ()
    notes = [*foreign, *(imported.notes if shown else ())]
    printed = next(iter(imported.printed_releases), None)
    if printed not in (None, imported.release):
        graphs_of = f", with the graphs that NCCL {printed} found" if shown else ""
        notes.append(f"NCCL {imported.release} as asked, where the log has {printed}{graphs_of}")
    variables = _variables(imported)
    others = {key: value for key, value in given.items() if key not in _OF_LOGS}
    others |= {"nccl": imported.release, "env": variables | _environment(given, variables, notes)}
    others["nodes"] = _nodes(file, given, imported, notes)
    kinds: list[Scenario] = []
    near = None
    if not named and not shown and (gpu := others.pop("gpu", None)) is not None:
        hardware = replace(imported.hardware, gpu_names=(gpus.load(str(gpu)).name.upper(),))
        imported = replace(imported, hardware=hardware)
    if shown:
        kinds = _as_given(file, _kinds(file, imported, variables), others)
        others = {key: others[key] for key in ("nccl", "env", "constants", "build") if key in others}
    else:
        others |= _parts(machine, imported, others)
        if any(node.graphs for node in imported.nodes):
            notes.append(f"graphs are those of {machine or given['topology']}; without it the log's own answer")
        near = _near(file, machine, imported, cast("Description", others), notes)
        machine = machine if near is None else near.machine
    topology = given.get("topology")
    says = FromLog(
        str(file),
        imported.communicator,
        printed,
        machine,
        None if topology is None else str(topology),
        near,
        tuple(notes),
        imported.evidence.answers,
        _tuner(imported),
    )
    return Logged(machine, cast("Description", others), kinds, says)


def described_by(imported: Imported, file: Path = Path("the log")) -> Scenario:
    """The communicator of a log alone. BadInput names what it needs and neither the log nor the user says."""
    if imported.needed:
        raise BadInput("; ".join(imported.needed))
    variables = _variables(imported)
    first, *others = _kinds(file, imported, variables)
    return replace(first, nccl=imported.release or "", environment=variables, others=tuple(others))


def _tuner(imported: Imported) -> LoggedTuner | None:
    """The tuner that chooses, where it is one of aws-ofi-nccl whose release is printed."""
    said = imported.evidence
    if said.tuner_plugin is None or not said.tuner_plugin.startswith(OF_AWS) or said.aws_release is None:
        return None
    return LoggedTuner(said.aws_release, said.tuner_product)


OF_AWS = "nccl_ofi_tuner"  # the name of its interfaces, src/tuner/nccl_ofi_tuner.cpp
OR_A_MACHINE = "; or `machine` NAME or `topology` FILE.xml for all that the log does not show"


def _given(given: "Description", shown: bool) -> LogAdditions:
    """What the user says of the run, in the importer's words; of the nodes only where the log has to show them."""
    nccl, gpu, graph_file = (given.get(key) for key in ("nccl", "gpu", "graphs"))
    caps = given.get("comp_cap")
    named = () if gpu is None or not shown else (gpus.load(str(gpu)).compute_capability,)
    return LogAdditions(
        communicator=given.get("log_communicator"),
        release=None if nccl is None else release.load(str(nccl)).name,
        comp_caps=(caps,) if isinstance(caps, int) else tuple(caps or named),
        cpu_arch=given.get("cpu_arch"),
        cpu_vendor=given.get("cpu_vendor"),
        nvswitch=given.get("nvswitch"),
        net_latency_us=given.get("net_latency_us"),
        net_gbs=given.get("net_gbs"),
        graphs=None if graph_file is None or not shown else graphs.read_dump(Path(str(graph_file)))[0],
    )


def _check_one(file: Path, given: "Description", imported: Imported) -> None:
    """BadInput where the log has several communicators of more than one rank, and none is named."""
    several = [(name, ranks) for name, ranks in imported.communicators if ranks != 1]
    if given.get("log_communicator") is not None or len(several) < 2:
        return
    listed = ", ".join(f"{name} ({ranks or '?'} ranks)" for name, ranks in several[:MOST_LISTED])
    more = f" and {len(several) - MOST_LISTED} more" if len(several) > MOST_LISTED else ""
    raise BadInput(f"{file}: {len(several)} communicators; valid: `log_communicator` ID, with one of: {listed}{more}")


def _variables(imported: Imported) -> dict[str, str]:
    """Variables of the log that reach an answer, without files and adapters of its hosts: the graphs show their
    effect.
    """
    if imported.release is None:
        return {}
    nccl = release.load(imported.release)
    reaching = {*nccl.environment.known, *nccl.search_variables, *ignored(nccl, imported.environment)}
    reaching -= {*FILES_AND_ADAPTERS, "NCCL_GRAPH_FILE"}
    return {name: value for name, value in imported.environment.items() if name in reaching}


def _environment(given: "Description", logged: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    """What the user sets, with a note where the log has another value."""
    own = {name: str(value) for name, value in (given.get("env") or {}).items()}
    notes += [
        f"{name}={value} as asked, where the log has {logged[name]}"
        for name, value in own.items()
        if logged.get(name, value) != value
    ]
    return own


def _nodes(file: Path, given: "Description", imported: Imported, notes: list[str]) -> int:
    """Number of nodes as the user says, else the log. BadInput where neither says it."""
    asked = given.get("nodes")
    if asked is not None:
        if imported.node_count not in (None, asked):
            notes.append(f"{asked} nodes as asked, where the log has {imported.node_count}")
        return asked
    count = imported.node_count or len(imported.hardware.ranks_of_hosts)
    if not count:
        raise BadInput(f"{file}: needed: the number of nodes: a line 'nNodes ...', or `nodes`")
    return count


def _kinds(file: Path, imported: Imported, variables: Mapping[str, str]) -> list[Scenario]:
    """The nodes in the order of ranks, those that are alike and follow each other as one kind."""
    together = [list(alike) for _, alike in groupby(imported.nodes, key=lambda node: replace(node, ranks=()))]
    return [
        Scenario(
            "",
            nodes=len(alike),
            logged=LoggedNode(
                file,
                next(iter(imported.printed_releases), imported.release or ""),
                len(imported.nodes),
                alike[0] if len(together) > 1 else replace(alike[0], ranks=()),
                variables,
                imported.net_gbs,
            ),
        )
        for alike in together
    ]


def _as_given(file: Path, kinds: list[Scenario], given: Mapping[str, Any]) -> list[Scenario]:
    """The kinds with as many nodes and GPUs as the user says. BadInput for what only other nodes could be."""
    if beside := [key for key, unsaid in _OF_TOPOLOGIES.items() if given.get(key) not in (None, unsaid)]:
        options = ", ".join(f"`{key}`" for key in beside)
        raise BadInput(f"{options}: of a machine or topology; valid with `log`: `machine`, `topology`")
    nodes, here = given["nodes"], sum(kind.nodes for kind in kinds)
    if nodes != here and len(kinds) > 1:
        raise BadInput(f"`nodes` {nodes}: {file} has {here} nodes, which differ; valid: `nodes` {here}")
    first, *others = kinds
    first = replace(first, nodes=first.nodes + nodes - here, gpus_per_node=given.get("gpus_per_node"))
    return [first, *others]


# What needs a topology, and what stands for it where nobody says it.
_OF_TOPOLOGIES: dict[str, object] = {
    **dict.fromkeys(("trays", "gpus_per_tray", "ranks_per_gpu", "net_gbps", "ranks")),
    **dict.fromkeys(("hosts_per_domain", "ranks_without_fabric"), ()),
    "gpus_per_process": 1,
    "shared": False,
}


def _parts(machine: str | None, imported: Imported, given: Mapping[str, Any]) -> dict[str, Any]:
    """Number of GPUs of each node of a machine or topology that a log's ranks are on, as far as it says it."""
    if any(given.get(key) is not None for key in ("gpus_per_node", "trays", "gpus_per_tray", "ranks_per_gpu")):
        return {}
    sizes: set[tuple[int | None, int]] = {(node.local_ranks, node.hosts or 1) for node in imported.nodes}
    if all(ranks is None for ranks, _ in sizes):
        sizes = {(ranks, 1) for ranks in imported.hardware.ranks_of_hosts} or {_shared_out(imported, given["nodes"])}
    ranks, hosts = sizes.pop() if len(sizes) == 1 else (None, 1)
    if ranks is None:
        return {}
    trays = machine and catalogue.load(machine).trays
    return {"trays": hosts, "gpus_per_tray": ranks // hosts} if trays else {"gpus_per_node": ranks}


def _shared_out(imported: Imported, nodes: int) -> tuple[int | None, int]:
    """Ranks on each node, equally many, where that goes up."""
    return (None if imported.ranks is None or imported.ranks % nodes else imported.ranks // nodes), 1


def _near(file: Path, machine: str | None, imported: Imported, run: "Description", notes: list[str]) -> Nearness | None:
    """How near the machine is that answers; None where a topology does. ``notes`` say it.

    Without a machine the catalogue's nearest: BadInput lists those that come next where no single one agrees in all
    that the log says, among it what tells machines apart.
    """
    if run.get("topology"):
        return None
    if machine is not None:
        near = compared(machine, imported, run)
        if near.differs:
            notes.append(f"{machine} as asked differs from the log: {', '.join(near.differs)}")
        return near
    every = ranked(imported, run)
    first, alike = every[0], [near for near in every if near.rank == every[0].rank]
    if first.differs or not first.identified or not same([near.machine for near in alike], run):
        listed = "; ".join(near.in_words for near in every[:MOST_NEAR])
        listed += f"; {len(alike) - MOST_NEAR} more are as near" if len(alike) > MOST_NEAR else ""
        valid = "valid beside `log`: `topology` FILE.xml or `machine` NAME"
        raise BadInput(f"{file}: {NO_GRAPHS}; {valid}; nearest: {listed}")
    others = "".join(f"; {near.machine} is the same to NCCL" for near in alike[1:])
    differs = f"; differs, which reaches no choice: {', '.join(first.others)}" if first.others else ""
    notes.append(f"{NO_GRAPHS}: answered for {first.machine}, the nearest machine of the catalogue{others}")
    notes.append(f"{first.machine} agrees with the log: {', '.join(first.agrees)}{differs}")
    notes.append(f"not known whether it agrees: {', '.join(first.unknown)}; `machine` or `topology` say another")
    return first


NO_GRAPHS = "no graphs in the log, which NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH prints"
MOST_NEAR = 4


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

    @property
    def network_reduces(self) -> bool:
        """Whether the log has CollNet's graphs."""
        return self.without_graphs.network_reduces

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
        node_facts.check_slowest(release.load(self.scenario.nccl), [logged.facts] * self.nodes, logged.net_gbs)
        return as_node(logged.facts, logged.net_gbs)

    @cached_property
    def without_graphs(self) -> Node:
        """The node as the emulator takes it, but for what is searched."""
        return replace(as_node(self._logged.facts, None), graphs={})

    def for_oracle(self, nodes: int) -> "OracleConfiguration":
        """BadInput: libnccl takes a topology."""
        self._refuse("a topology, in which libnccl searches")

    def for_search(self, several: bool) -> "SearchRequest":
        """BadInput: the search takes a topology."""
        self._refuse("a topology to search graphs in")

    def searched_before(self, several: bool, trays: int = 1) -> None:
        """None: the log has the graphs."""
        return

    def _refuse(self, what: str) -> NoReturn:
        raise BadInput(f"{self._logged.file}: a log does not show {what}; {OTHERWISE}")

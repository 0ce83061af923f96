"""Describes a communicator by a log of NCCL and by what the user adds.

For a log without graphs, it also finds the machine of the catalogue that is most similar to the nodes of the log.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError
from tuner.base.records import json_form
from tuner.base.spelling import option, spelled
from tuner.emulator.communicator import Node
from tuner.machine import catalogue, gpus, graphs
from tuner.machine.adapters import ComparedFact, Nearness, nearness
from tuner.machine.catalogue import Machine
from tuner.release.schema import SEARCHED_FOR
from tuner.release.variables import ignored
from tuner.scenario.description import Scenario
from tuner.scenario.logs import importer, node_facts
from tuner.scenario.logs.checks.communication import TUNER_CHOOSES
from tuner.scenario.logs.imported import Imported, LogAdditions, LogEvidence, NodeFacts, as_node
from tuner.scenario.logs.importer import FILES_AND_ADAPTERS
from tuner.scenario.node import ResolvedNode

if TYPE_CHECKING:
    from tuner.base.findings import Finding
    from tuner.emulator.connect import Across
    from tuner.graphs import SearchRequest
    from tuner.machine.topology import Topology
    from tuner.scenario.describe import Description
    from tuner.scenario.oracle_configuration import OracleConfiguration

MULTICAST_COMP_CAP = 90  # compute capability of the first GPUs that can run NVLS
MOST_WITH_RINGS = 6  # for this number of machines rings are searched: those that are nearest without them
_IN_NO_LOG = ("CPUs", "PCIe switches", "NVLinks")  # NCCL prints these only with the subsystem GRAPH


def ranked(imported: Imported, run: "Description") -> list[Nearness]:
    """All machines compared with the log, the most similar first. ``run`` has the release, nodes, GPUs per node and
    variables of the log."""
    every = sorted((compared(name, imported, run) for name in catalogue.names()), key=lambda near: near.rank)
    if not (imported.evidence.rings or imported.evidence.trees):
        return every
    alike = [near for near in every[:MOST_WITH_RINGS] if len(near.differs) == len(every[0].differs)]
    by_name = {near.machine: compared(near.machine, imported, run, with_rings=True) for near in alike}
    return sorted((by_name.get(near.machine, near) for near in every), key=lambda near: near.rank)


def compared(name: str, imported: Imported, run: "Description", with_rings: bool = False) -> Nearness:
    """Compares one machine with the log; with ``with_rings``, also the orders of ranks, which may require a search of
    graphs."""
    machine = catalogue.load(name)
    several = (run.get("nodes") or 1) > 1
    facts = [*_gpus(machine, imported, run), *_adapters(machine, imported, several), *_channels(machine, imported, run)]
    if with_rings:
        facts += _orders(machine, imported, run)
    return nearness(machine.name, facts, _IN_NO_LOG)


def _gpus(machine: Machine, imported: Imported, run: "Description") -> Iterator[ComparedFact]:
    hardware, used = imported.hardware, run.get("gpus_per_node")
    if hardware.instance:
        alias = catalogue.alias(hardware.instance)
        same = alias is not None and alias.machine == machine.name
        yield ComparedFact(f"instance type {hardware.instance}", same, identifies=True)
    known = ", ".join(hardware.gpu_names)
    yield ComparedFact(f"GPUs {known or 'by name'}", _is_model(machine.gpu, known) if known else None, identifies=True)
    if hardware.comp_caps:
        caps = ", ".join(f"{cap / 10:.1f}" for cap in hardware.comp_caps)
        same = set(hardware.comp_caps) == {gpu.sm for gpu in machine.topology.gpus}
        yield ComparedFact(f"compute capability {caps}", same)
    has = machine.gpus_per_node * (machine.trays or 1)
    if used is None or used < has:
        yield ComparedFact("number of GPUs", None)
    else:
        yield ComparedFact(f"{used} GPUs per node", used == has)
    if len(hardware.bus_ids) > 1:
        there = {int(re.sub("[:.]", "", gpu.busid), 16) for gpu in machine.topology.gpus}
        same = set(hardware.bus_ids) <= there
        yield ComparedFact(f"bus ids of {len(hardware.bus_ids)} GPUs", same, identifies=True, decides=False)
    nvls = (run.get("env") or {}).get("NCCL_NVLS_ENABLE") != "0"
    if hardware.multicast is not None and nvls:
        can = machine.topology.gpus[0].sm >= MULTICAST_COMP_CAP and machine.topology.has_nvswitch(
            len(machine.topology.gpus)
        )
        yield ComparedFact(f"NVLS is {'' if hardware.multicast else 'not '}available", can == hardware.multicast)


def _is_model(model: str, name: str) -> bool:
    """Whether CUDA's name of a product (``NVIDIA A100-SXM4-80GB``) belongs to a model (``A100 SXM4``)."""
    chip = gpus.chip(model)
    return bool(re.search(rf"\b{re.escape(chip)}\b", name.upper())) and ("PCI" in name.upper()) <= ("SXM" not in model)


def _adapters(machine: Machine, imported: Imported, several: bool) -> Iterator[ComparedFact]:
    """Compares the adapters. On one node, they affect no choice, except through the topology."""
    hardware, nets = imported.hardware, machine.topology.nets
    if not hardware.adapters:
        yield ComparedFact("adapters", None)
        return
    number = len(hardware.adapters)
    yield ComparedFact(f"{number} adapters", number == len(nets), decides=several)
    named = set(hardware.adapters) == {net.name for net in nets}
    yield ComparedFact(f"adapters {', '.join(hardware.adapters)}", named, decides=False)
    if not hardware.adapters_mbps:
        yield ComparedFact("speed of adapters", None)
        return
    gbps = ", ".join(f"{speed / 1000:g}" for speed in hardware.adapters_mbps)
    speeds = set(hardware.adapters_mbps) == {net.speed_mbps for net in nets}
    yield ComparedFact(f"adapters of {gbps} Gb/s", speeds, decides=several)


def _channels(machine: Machine, imported: Imported, run: "Description") -> Iterator[ComparedFact]:
    """Compares the numbers of channels, if the catalogue has the machine's graphs."""
    if imported.coll_channels is None:
        yield ComparedFact("channels", None)
        return
    logged = f"{imported.coll_channels} channels" + (
        f", {imported.nvls_channels} of NVLS" if imported.nvls_channels else ""
    )
    here = _made(machine, run)
    if here is None:
        yield ComparedFact(f"{logged}", None)
        return
    coll, nvls = here
    yield ComparedFact(
        logged, (coll, nvls if imported.nvls_channels else None) == (imported.coll_channels, imported.nvls_channels)
    )


def _orders(machine: Machine, imported: Imported, run: "Description") -> Iterator[ComparedFact]:
    """Compares the orders of ranks in rings and trees, and the adapters, which show how GPUs are linked and
    numbered."""
    said = imported.evidence
    found = _across(_known(machine, run), whole=bool(said.adapters_of_ranks or said.nvls_heads))
    if said.rings:
        plain = all(list(ring) == sorted(ring) for ring in said.rings)
        agrees = None if found is None else [ring.ranks for ring in found.rings] == list(said.rings)
        what = f"order of ranks in {len(said.rings)} rings"
        yield ComparedFact(what, agrees, identifies=not plain, decides=False)
    if said.trees:
        yield ComparedFact(
            f"{len(said.trees)} trees", None if found is None else _same_trees(found, said), decides=False
        )
    if said.adapters_of_ranks and found is not None and any(ring.crossings for ring in found.rings):
        yield ComparedFact("adapters that ranks send over", _same_adapters(found, said), decides=False)
    if said.nvls_heads:
        same = None if found is None else found.nvls_heads == said.nvls_heads
        yield ComparedFact(f"{len(said.nvls_heads)} NVLS heads", same, decides=False)


def _across(scenario: Scenario | None, whole: bool) -> "Across | None":
    """The channels across nodes; only the rings and trees unless ``whole``. None if they are not known."""
    from tuner.emulator.connect import summarize

    if scenario is None:
        return None
    try:
        resolved = scenario.resolve()
        return summarize(resolved.connected) if whole else resolved.rings_and_trees
    except TunerError:
        return None


def _same_trees(found: "Across", said: LogEvidence) -> bool:
    """Whether the ranks in the log have the same parents and children as the ranks in the trees of ``found``."""
    places = {tree.channel: list(zip(tree.parents, tree.children, strict=True)) for tree in found.trees}
    return all(
        channel in places and rank < len(places[channel]) and places[channel][rank] == place
        for channel, places_of in said.trees.items()
        for rank, place in places_of.items()
    )


def _same_adapters(found: "Across", said: LogEvidence) -> bool:
    """Whether ranks in the log send over the adapters through which the machine's rings leave the node."""
    return all(
        crossing.send_net in said.adapters_of_ranks[crossing.sender]
        for ring in found.rings
        for crossing in ring.crossings
        if crossing.sender in said.adapters_of_ranks
    )


def _made(machine: Machine, run: Mapping[str, Any]) -> tuple[str, str] | None:
    """The number of channels for collectives and for NVLS on the machine; None if the run is impossible there, or the
    machine's graphs are not known."""
    scenario = _known(machine, run)
    if scenario is None:
        return None
    communicator = scenario.communicator()
    return str(communicator.channels), str(communicator.nvls_channels)


def same(machines: Sequence[str], run: Mapping[str, Any]) -> bool:
    """Whether NCCL's model treats the run's nodes alike on all of these machines; False if a machine's graphs are
    unknown."""
    if len(machines) == 1:
        return True
    scenarios = [_known(catalogue.load(name), run) for name in machines]
    nodes = [scenario and scenario.resolve().own.for_emulator(scenario.nodes > 1) for scenario in scenarios]
    return None not in nodes and all(node == nodes[0] for node in nodes)


def _known(machine: Machine, run: Mapping[str, Any]) -> "Scenario | None":
    """The run in the log as a scenario on the machine; None if that is impossible, or would require a search of
    graphs."""
    if machine.trays is not None:
        return None
    scenario = Scenario(
        nccl=run["nccl"],
        nodes=run["nodes"],
        machine=machine.name,
        gpus_per_node=run.get("gpus_per_node"),
        environment=run["env"],
    )
    try:
        known = scenario.resolve().own.searched_before(scenario.nodes > 1) is not None
        return scenario if known and scenario.communicator() else None
    except TunerError:
        return None


_OF_RELEASES = ("the release", "NCCL ")  # beginnings of what is needed about a release
MOST_LISTED = 12  # most communicators in a message
_OF_NODES = ("comp_cap", "cpu_arch", "cpu_vendor", "nvswitch", "net_gbs")
_OF_LOGS = ("log", "log_communicator", *_OF_NODES)


@dataclass(frozen=True, slots=True)
class LoggedTuner:
    """The tuner of aws-ofi-nccl that a log shows: its release, and the product name that it uses (None if the log does
    not say it).
    """

    release: str
    product: str | None


@dataclass(frozen=True, slots=True)
class FromLog:
    """The communicator of a log to which a description refers; ``release`` is the log's.

    The graphs come from ``machine`` or ``topology``; if both are None, they come from the log. ``notes`` are lines on
    what was assumed, and on where the user overrides the log. ``findings`` are what the checks of the log found.
    """

    file: str
    communicator: str | None
    release: str | None
    machine: str | None
    topology: str | None
    nearness: Nearness | None = field(metadata=json_form(optional=True))  # how similar the machine is
    notes: tuple[str, ...]
    findings: "tuple[Finding, ...]" = ()
    tuner: LoggedTuner | None = field(default=None, metadata=json_form(optional=True))


def read(machine: str | None, given: "Description") -> tuple[FromLog, "Description", list[Scenario]]:
    """Reads the log of a description. Returns what the log says; the description's other keys, completed from the log;
    and the kinds of nodes in the log. The kinds are empty if a machine or topology describes the nodes: one that the
    user named, or else a machine of the catalogue that agrees with the log.

    BadInput names the facts that neither the log nor the user supplies, or the communicators if there are several.
    """
    file = Path(given["log"] or "")
    if given.get("node"):
        raise BadInput(f"{option('log')} shows the nodes already: remove {option('log')} or {option('node')}")
    named = machine is not None or bool(given.get("topology"))
    if named and (beside := [key for key in _OF_NODES if given.get(key) not in (None, ())]):
        raise BadInput(
            f"{', '.join(beside)} describes nodes as the log shows them: remove {option('machine')} and "
            f"{option('topology')}"
        )
    imported = importer.read(file, _given(given, not named))
    _check_one(file, given, imported)
    shown = not named and any(node.graphs for node in imported.nodes)
    if needed := imported.needed if shown else [text for text in imported.needed if text.startswith(_OF_RELEASES)]:
        raise BadInput(f"{file}: needed: {'; '.join(needed)}{spelled(OR_A_MACHINE) if shown else ''}")
    from tuner.base.findings import words  # most descriptions have no log

    foreign = [words(each) for each in imported.evidence.findings if each.code == TUNER_CHOOSES]
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
        imported.evidence.findings,
        _tuner(imported),
    )
    return says, cast("Description", others), kinds


def described_by(imported: Imported, file: Path = Path("the log")) -> Scenario:
    """The communicator that a log describes by itself. BadInput names the necessary facts that neither the log nor the
    user supplies."""
    if imported.needed:
        raise BadInput(f"{file}: needed: {'; '.join(imported.needed)}")
    variables = _variables(imported)
    first, *others = _kinds(file, imported, variables)
    return replace(first, nccl=imported.release or "", environment=variables, others=tuple(others))


def _tuner(imported: Imported) -> LoggedTuner | None:
    """The tuner that chooses, if it is aws-ofi-nccl's and the log prints its release; else None."""
    said = imported.evidence
    if said.tuner_plugin is None or not said.tuner_plugin.startswith(OF_AWS) or said.aws_release is None:
        return None
    return LoggedTuner(said.aws_release, said.tuner_product)


OF_AWS = "nccl_ofi_tuner"  # the name of its interfaces, src/tuner/nccl_ofi_tuner.cpp
OR_A_MACHINE = "; or {option:machine} NAME or {option:topology} FILE.xml for all that the log does not show"


def _given(given: "Description", shown: bool) -> LogAdditions:
    """The facts that the user adds about the run, in the form that the importer takes. Facts about nodes are included
    only if the log has to describe the nodes."""
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
    """Raises BadInput if the log has several communicators of more than one rank, and the user names none."""
    several = [(name, ranks) for name, ranks in imported.communicators if ranks != 1]
    if given.get("log_communicator") is not None or len(several) < 2:
        return
    listed = ", ".join(f"{name} ({ranks or '?'} ranks)" for name, ranks in several[:MOST_LISTED])
    more = f" and {len(several) - MOST_LISTED} more" if len(several) > MOST_LISTED else ""
    raise BadInput(
        f"{file} has {len(several)} communicators: name one with {option('log_communicator')} ID; {listed}{more}"
    )


def _variables(imported: Imported) -> dict[str, str]:
    """The variables of the log that affect an answer, without those that name files and adapters of its hosts, because
    the graphs already show their effect."""
    if imported.release is None:
        return {}
    nccl = release.load(imported.release)
    reaching = {*nccl.environment.known, *nccl.search_variables, *ignored(nccl, imported.environment)}
    reaching -= {*FILES_AND_ADAPTERS, "NCCL_GRAPH_FILE"}
    return {name: value for name, value in imported.environment.items() if name in reaching}


def _environment(given: "Description", logged: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    """The variables that the user sets. For each to which the log gives another value, a note is added."""
    own = {name: str(value) for name, value in (given.get("env") or {}).items()}
    notes += [
        f"{name}={value} as asked, where the log has {logged[name]}"
        for name, value in own.items()
        if logged.get(name, value) != value
    ]
    return own


def _nodes(file: Path, given: "Description", imported: Imported, notes: list[str]) -> int:
    """The number of nodes, from the user or else from the log. BadInput if neither supplies it."""
    asked = given.get("nodes")
    if asked is not None:
        if imported.node_count not in (None, asked):
            notes.append(f"{asked} nodes as asked, where the log has {imported.node_count}")
        return asked
    count = imported.node_count or len(imported.hardware.ranks_of_hosts)
    if not count:
        if imported.communicator is None and not imported.ranks:
            whole = "a log of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH"
            raise BadInput(
                f"{file} shows no communicator: give {whole}, or add {option('machine')} NAME and {option('nodes')} N"
            )
        raise BadInput(f"{file} does not say how many nodes there are (it has no 'nNodes ...'): add {option('nodes')}")
    return count


def _kinds(file: Path, imported: Imported, variables: Mapping[str, str]) -> list[Scenario]:
    """The nodes in the order of ranks; consecutive equal nodes are one kind."""
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
    """The kinds with the number of nodes and GPUs that the user gives. BadInput for keys that do not apply to the nodes
    of a log."""
    if beside := [key for key, unsaid in _OF_TOPOLOGIES.items() if given.get(key) not in (None, unsaid)]:
        options = ", ".join(map(option, beside))
        raise BadInput(
            f"{options} only applies to a machine or topology: add {option('machine')} or {option('topology')} to "
            f"{option('log')}"
        )
    nodes, here = given["nodes"], sum(kind.nodes for kind in kinds)
    if nodes != here and len(kinds) > 1:
        raise BadInput(
            f"{option('nodes')} {nodes}: {file} has {here} nodes, which differ, so their number is fixed: give "
            f"{option('nodes')} {here}"
        )
    first, *others = kinds
    first = replace(first, nodes=first.nodes + nodes - here, gpus_per_node=given.get("gpus_per_node"))
    return [first, *others]


# Questions that need a topology, and what replaces it if nobody supplies one.
_OF_TOPOLOGIES: dict[str, object] = {
    **dict.fromkeys(("trays", "gpus_per_tray", "ranks_per_gpu", "net_gbps", "ranks")),
    **dict.fromkeys(("hosts_per_domain", "ranks_without_fabric"), ()),
    "gpus_per_process": 1,
    "shared": False,
}


def _parts(machine: str | None, imported: Imported, given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a description with the number of GPUs of each node that the log's ranks use; empty if the log does not
    show it."""
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
    """The number of ranks on each node (None if they do not divide evenly), and 1 host."""
    return (None if imported.ranks is None or imported.ranks % nodes else imported.ranks // nodes), 1


def _near(file: Path, machine: str | None, imported: Imported, run: "Description", notes: list[str]) -> Nearness | None:
    """How similar the machine is to the log; None if a topology describes the nodes. Differences are added to
    ``notes``.

    Without ``machine``, the most similar one of the catalogue is used. BadInput lists the most similar ones if no
    single machine agrees with everything in the log, including what distinguishes machines.
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
        valid = f"valid beside {option('log')}: {option('topology')} FILE.xml or {option('machine')} NAME"
        raise BadInput(f"{file}: {NO_GRAPHS}; {valid}; nearest: {listed}")
    others = "".join(f"; {near.machine} is the same to NCCL" for near in alike[1:])
    differs = f"; differs, which reaches no choice: {', '.join(first.others)}" if first.others else ""
    notes.append(f"{NO_GRAPHS}: answered for {first.machine}, the nearest machine of the catalogue{others}")
    notes.append(f"{first.machine} agrees with the log: {', '.join(first.agrees)}{differs}")
    notes.append(
        f"not known whether it agrees: {', '.join(first.unknown)}; "
        f"{option('machine')} or {option('topology')} say another"
    )
    return first


NO_GRAPHS = "no graphs in the log, which NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH prints"
MOST_NEAR = 4


OTHERWISE = "valid beside {option:log} for that: {option:topology} FILE.xml or {option:machine} NAME"


@dataclass(frozen=True, slots=True)
class LoggedNode:
    """One node of a log, in a communicator of ``nodes`` nodes. NCCL of the release ``release`` found its graphs.

    ``variables`` are those of the run in the log. ``net_gbs`` is the bandwidth of the slowest path from a GPU to its
    own adapter, in GB/s.
    """

    file: Path
    release: str
    nodes: int
    facts: NodeFacts
    variables: Mapping[str, str]
    net_gbs: float | None

    @property
    def comp_caps_in_words(self) -> str:
        """Compute capabilities in the form of the option ``comp_cap``; only one if all are equal."""
        caps = self.facts.comp_caps or ()
        return ",".join(map(str, sorted(set(caps)) if len(set(caps)) == 1 else caps))

    def name(self, nccl: str) -> str:
        """The name of the node, with the release of its graphs if that is not ``nccl``."""
        ranks = f" with rank {', '.join(map(str, self.facts.ranks))}" if self.facts.ranks else ""
        found = "" if nccl in ("", self.release) else f" with graphs of NCCL {self.release}"
        return f"node of {self.file}{ranks}{found}"

    def check_variables(self, nccl: str, variables: Mapping[str, str]) -> None:
        """Raises BadInput if a variable that the search of graphs reads has another value than in the log."""
        reads = release.load(nccl).search_variables
        for name in sorted(reads & {*variables, *self.variables}):
            value, logged = variables.get(name), self.variables.get(name)
            if value == logged or (name in SEARCHED_FOR and value == "0"):
                continue
            had = "without it" if logged is None else f"with {logged}"
            raise BadInput(
                f"NCCL searches graphs with {name}={value or ''}, but found those of {self.file} {had}; "
                f"{spelled(OTHERWISE)}"
            )


class ResolvedLoggedNode(ResolvedNode):
    """Nodes in a log that are equal. Questions that only a topology could answer are refused."""

    def __init__(self, scenario: "Scenario", logged: LoggedNode) -> None:
        super().__init__(scenario)
        self._logged = logged

    @property
    def trays(self) -> None:
        """Always None: in a log, an NVLink domain is a node."""
        return None

    @cached_property
    def gpus(self) -> int:
        """The number of ranks of a node. BadInput if another number is described."""
        have, wanted = self._logged.facts.local_ranks or 0, self.scenario.gpus_per_node
        if wanted not in (None, have):
            raise BadInput(
                f"{self._logged.file} has graphs for {have} GPUs per node, not for {wanted}; {spelled(OTHERWISE)}"
            )
        return have

    @cached_property
    def gpu_of_rank(self) -> tuple[int, ...]:
        """One GPU for each rank, because a log does not show that ranks share GPUs."""
        if (self.scenario.ranks_per_gpu or 1) > 1:
            self._refuse(f"{self.scenario.ranks_per_gpu} ranks on each GPU")
        return tuple(range(self.gpus))

    @property
    def topology(self) -> "Topology":
        """Raises BadInput: a log has no topology."""
        self._refuse("the topology of its nodes")

    @property
    def topology_xml(self) -> str:
        """Raises BadInput: a log has no topology."""
        self._refuse("the topology of its nodes")

    @property
    def network_reduces(self) -> bool:
        """Whether the log has graphs for CollNet."""
        return self.without_graphs.network_reduces

    def parts(self, several: bool) -> tuple[tuple[int, ...], ...]:
        """All ranks in one part, because the nodes in a log are those that NCCL made."""
        return (self._every_rank,)

    def for_emulator(self, several: bool) -> Node:
        """The node as input for the emulator. BadInput for changed hardware. BadInput also if the log's graphs are for
        one node although ``several`` is set, or for several although it is not."""
        logged = self._logged
        if self.scenario.hardware:
            changes = ", ".join(f"{key}={value}" for key, value in self.scenario.hardware.items())
            self._refuse(f"the topology that {changes} changes")
        if several != (logged.nodes > 1):
            had, asked = ("several nodes", "one alone") if logged.nodes > 1 else ("one node", "several")
            raise BadInput(
                f"the graphs in {logged.file} are for {had}, and NCCL finds others for {asked}; {spelled(OTHERWISE)}"
            )
        node_facts.check_slowest(release.load(self.scenario.nccl), [logged.facts] * self.nodes, logged.net_gbs)
        return as_node(logged.facts, logged.net_gbs)

    @cached_property
    def without_graphs(self) -> Node:
        """The node as input for the emulator, without graphs and without the bandwidth of the slowest path."""
        return replace(as_node(self._logged.facts, None), graphs={})

    def for_oracle(self, nodes: int) -> "OracleConfiguration":
        """Always raises BadInput: libnccl needs a topology."""
        self._refuse("a topology, in which libnccl searches")

    def for_search(self, several: bool) -> "SearchRequest":
        """Raises BadInput: searching for graphs needs a topology."""
        self._refuse("a topology to search graphs in")

    def searched_before(self, several: bool, trays: int = 1) -> None:
        """Always None: the log itself has the graphs."""
        return

    def _refuse(self, what: str) -> NoReturn:
        raise BadInput(f"{self._logged.file}: a log does not show {what}; {spelled(OTHERWISE)}")

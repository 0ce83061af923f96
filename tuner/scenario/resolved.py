"""Resolves a scenario: its kinds of nodes, its communicator for the emulator, and its configuration for libnccl."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cached_property, lru_cache
from itertools import chain, groupby, repeat
from typing import TYPE_CHECKING

from tuner import release
from tuner.base.errors import BadInput, Remedy, TunerError
from tuner.base.sizes import as_ranges
from tuner.base.spelling import option
from tuner.emulator.build import build
from tuner.emulator.communicator import Comm
from tuner.emulator.rules import init, registered, resolved
from tuner.emulator.rules.init import DomainHosts
from tuner.machine import catalogue
from tuner.machine.catalogue import Machine
from tuner.machine.topology import Topology, edit
from tuner.machine.topology import read as read_topology
from tuner.release import Release
from tuner.release.environment import Environment
from tuner.release.standing import refuse, refuse_not_read
from tuner.scenario.description import Scenario
from tuner.scenario.domain import (
    Alike,
    ResolvedDomain,
    ResolvedNodes,
    ResolvedPart,
    grouped,
    ranks_of,
    sizes_of_domains,
    split,
)
from tuner.scenario.node import ResolvedNode

if TYPE_CHECKING:
    from tuner.emulator.connect import Across, Connected, Nodes
    from tuner.scenario.oracle_configuration import OracleConfiguration


SEARCH = "search."  # beginning of those keys of a release's file that only affect the graphs


class ResolvedScenario:
    """A scenario in the form that emulator and oracle use. Each part is made once, when it is first needed.

    ``kinds`` are the kinds of hosts in the order of ranks; each is resolved once.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        # By the names and numbers of hosts of its kinds
        self._domains: dict[tuple[tuple[str, int], ...], ResolvedDomain] = {}

    def with_nodes(self, nodes: int) -> "ResolvedScenario":
        """The scenario with ``nodes`` nodes of its first kind; parts that were resolved are kept."""
        other = ResolvedScenario(replace(self.scenario, nodes=nodes))
        if self.scenario.members is not None:  # these members may then be on other hosts
            return other
        other.kinds = (self.own.described_by(other.scenario), *self.kinds[1:])
        other.release = self.release
        other._domains = self._domains
        vars(other.scenario)["_resolved"] = other  # what it resolves to is known already
        return other

    @cached_property
    def whole(self) -> "ResolvedScenario":
        """The communicator of all ranks; this one may consist of some of them."""
        return self if self.scenario.members is None else replace(self.scenario, members=None).resolve()

    @cached_property
    def shares(self) -> bool:
        """Whether the communicator shares resources with the communicator of which it is a part."""
        made = self.scenario.members
        return made is not None and init.shares_resources(made.by, made.shares, self.scenario.variables)

    @cached_property
    def kinds(self) -> tuple[ResolvedNode, ...]:
        """The kinds of nodes in the order of ranks."""
        if self.scenario.members is not None:
            return kinds_of_members(self.whole, self.scenario.members.ranks)
        return tuple(map(_kind, self.scenario.kinds))

    @property
    def own(self) -> ResolvedNode:
        """The first kind of nodes, to which the node of rank 0 belongs."""
        return self.kinds[0]

    @cached_property
    def ranks(self) -> int:
        """Number of ranks."""
        return sum(kind.hosts * len(kind.gpu_of_rank) for kind in self.kinds)

    @cached_property
    def release(self) -> Release:
        """NCCL's release with the scenario's constants. BadInput if the constants were fitted to another machine or
        release."""
        nccl, constants = release.load(self.scenario.nccl), self.scenario.fitted_constants
        if constants is None:
            return nccl
        measured = constants.provenance.get("machine")
        names = {kind.scenario.machine for kind in self.kinds} - {None}
        if measured is not None and names - {measured}:
            raise BadInput(
                f"the constants in {constants.file} were measured on {measured}, not {', '.join(map(str, names))}: "
                f"remove {option('constants')}"
            )
        from tuner.emulator import fitted_constants

        return fitted_constants.apply(nccl, constants)

    def check_standing(self) -> None:
        """Raises BadInput if the release was not compared with its library, and its neighbouring releases differ in
        something that affects these nodes.

        If the two neighbours differ in how they search graphs, that only counts if they find different graphs on these
        nodes.
        """
        nccl = self.release
        if (standing := nccl.standing) is None:
            return
        if standing.neighbours is None:
            nodes = [node.for_emulator(self._several) for node, _ in self.nodes if self._several]
            if any(node.merges_adapters is not None and node.merges_adapters() for node in nodes):
                refuse_not_read(nccl.name, standing, "merged_adapters")
            return
        nodes = [node.for_emulator(self._several) for node, _ in self.nodes]
        generations = {nccl.generation(cap) for node in nodes for cap in node.comp_caps}
        differing = standing.reaching(generations, in_domain=any(node.hosts > 1 for node in nodes))
        if any(key.startswith(SEARCH) for key in differing) and self._finds_the_same(*standing.neighbours):
            differing = [key for key in differing if not key.startswith(SEARCH)]
        refuse(nccl.name, standing, differing)

    def _finds_the_same(self, before: str, after: str) -> bool:
        """Whether the searches of both releases find the same channels on all nodes."""
        from tuner.graphs import find

        both = [replace(self.scenario, nccl=name).resolve() for name in (before, after)]
        if [node.for_emulator(self._several) for node, _ in both[0].nodes] != [
            node.for_emulator(self._several) for node, _ in both[1].nodes
        ]:
            return False
        if any(kind.scenario.graphs is not None for kind in self.kinds) or self.scenario.logged is not None:
            return True
        found = [[find(node.for_search(each._several), each.scenario.nccl) for node, _ in each.nodes] for each in both]
        return found[0] == found[1]

    @cached_property
    def views(self) -> tuple[Comm, ...]:
        """The communicator as rank 0 sees it, then as the ranks of each of the scenario's ``others`` see it.

        These views may differ, because ranks do not exchange all values that NCCL tunes with; equal nodes have one
        view. Graphs come from the search, whose results the catalogue has for common questions, or from a dump.
        """
        nccl, searched = self.release, frozenset[str]()
        self._check_sharing()
        if all(kind.scenario.graphs is None for kind in self.kinds):
            searched = frozenset(nccl.environment.search)
        if self.scenario.logged is not None:
            self.scenario.logged.check_variables(nccl.name, self.scenario.environment or {})
        environment = Environment(self.scenario.variables, searched, frozenset(self.scenario.configured))
        several = self._several
        nodes = [node.for_emulator(several) for node, _ in self.nodes]
        self.check_standing()
        distinct = {id(node): node for node in nodes}
        counts = Counter[int]()  # parts of split hosts alternate, so that one kind of part has many entries
        for node, (_, count) in zip(nodes, self.nodes, strict=True):
            counts[id(node)] += count
        of_node: dict[int, Comm] = {}
        for first, own in distinct.items():
            equal = next((view for each, view in of_node.items() if distinct[each] == own), None)
            others = [(node, counts[each]) for each, node in distinct.items() if each != first]
            view = equal or build(nccl, [(own, counts[first]), *others], environment, self._shared)
            if self.ranks_share_processes or self.scenario.tuner:
                view = replace(view, ranks_share_processes=self.ranks_share_processes, tuner=self.scenario.tuner)
            of_node[first] = view
        self._check_split(of_node.values())
        return tuple(of_node[id(node)] for node in nodes)

    def _check_split(self, views: Iterable[Comm]) -> None:
        """Raises BadInput if CollNet depends on how a communicator of some ranks is made."""
        if self.scenario.members is None or self.release.connect.split_keeps_collnet:
            return
        if any(view.collnet and view.nodes == self.whole.views[0].nodes for view in views):
            raise BadInput(
                f"{option('ranks')} with CollNet is not emulated on this number of nodes: NCCL {self.release.name} has "
                "CollNet in a communicator made from nothing, but not in one that is split off: set "
                "NCCL_COLLNET_ENABLE=0"
            )

    @cached_property
    def gpus_per_process(self) -> int:
        """The number of GPUs per process; a host with fewer GPUs has one process. BadInput if no host has that many."""
        described, most = self.scenario.gpus_per_process or 1, max(kind.gpus for kind in self.whole.kinds)
        if described > most:
            raise BadInput(
                f"{option('gpus_per_process')} {described}: no host has more than {most} GPUs: give 1 to {most}"
            )
        return described

    @cached_property
    def ranks_share_processes(self) -> bool:
        """Whether a process has several ranks. BadInput if that is not emulated, or if every host has fewer GPUs than a
        process."""
        per_process = self.gpus_per_process
        if per_process == 1 or all(len(kind.gpu_of_rank) == 1 for kind in self.kinds):
            return False
        valid = f"valid there: {option('gpus_per_process')} 1"
        if self.scenario.members is not None or any(kind.shares_gpus for kind in self.kinds):
            raise BadInput(
                f"{option('gpus_per_process')} {per_process}: not with {option('ranks')} "
                f"or {option('ranks_per_gpu')}; {valid}"
            )
        if self._several and any(kind.leaks_adapters() for kind in self.kinds):
            raise BadInput(
                f"{option('gpus_per_process')} {per_process}: NCCL {self.release.name} merges adapters for the first "
                f"rank of a process, and the other ranks see the ports as well; {valid}"
            )
        return True

    @cached_property
    def _shared(self) -> Comm | None:
        """The communicator whose resources this one shares; None if it shares none.

        BadInput if nodes or ranks of that communicator have different numbers of channels, and with CollNet.
        """
        if not self.shares:
            return None
        first, *others = self.whole.views
        if any((view.channels, view.nvls_channels) != (first.channels, first.nvls_channels) for view in others):
            raise BadInput(
                "shared resources are not emulated if ranks of the parent communicator have different numbers of "
                "channels"
            )
        if first.collnet is not None:
            raise BadInput("shared resources are not emulated with CollNet: set NCCL_COLLNET_ENABLE=0")
        return first

    @property
    def views_of_kinds(self) -> Sequence[tuple[ResolvedNode | ResolvedDomain | ResolvedPart, Comm]]:
        """Each kind of :attr:`nodes` once, in the order of ranks, with the communicator as the ranks of that kind see
        it."""
        return list({id(node): (node, view) for (node, _), view in zip(self.nodes, self.views, strict=True)}.values())

    def view_of(self, rank: int) -> Comm:
        """The communicator as a rank sees it. BadInput if there is no such rank."""
        if not 0 <= rank < self.ranks:
            raise BadInput(f"rank {rank} is not in the communicator: valid are 0 to {self.ranks - 1}")
        counted = zip(self.nodes, self.views, strict=True)
        of_nodes = chain.from_iterable(repeat((node, view), count) for (node, count), view in counted)
        node, view = next(each for each, ranks in zip(of_nodes, self.ranks_of, strict=True) if rank in ranks)
        # For kinds of nodes that share a view, the view has the links of the first kind
        links = node.for_emulator(self._several).links
        return view if links is view.links else replace(view, links=links)

    @property
    def last_view(self) -> Comm:
        """The communicator as the last rank sees it."""
        return self.view_of(self.ranks - 1)

    @cached_property
    def ranks_of(self) -> tuple[Sequence[int], ...]:
        """The ranks on each of NCCL's nodes."""
        return ranks_of(self.nodes, [len(node.for_emulator(self._several).comp_caps) for node, _ in self.nodes])

    @property
    def _several(self) -> bool:
        return sum(count for _, count in self.nodes) > 1

    @cached_property
    def connected(self) -> "Connected":
        """The channels of all ranks, with their connections between nodes.

        BadInput for dumped graphs.
        """
        from tuner.emulator.connect import connect

        return connect(self.views, self._joined)

    @cached_property
    def rings_and_trees(self) -> "Across":
        """The rings and trees of :attr:`connected`. If all nodes are equal, :attr:`connected` is not computed for them,
        and crossings are left out.

        BadInput for dumped graphs.
        """
        from tuner.emulator.connect import rings_and_trees, summarize

        alike = len(self._joined.kinds) == 1
        return rings_and_trees(self.views[0], self._joined) if alike else summarize(self.connected)

    @cached_property
    def _joined(self) -> "Nodes":
        from tuner.emulator.connect import NodeKind, Nodes
        from tuner.graphs import searched

        if any(kind.scenario.graphs is not None for kind in self.kinds):
            raise BadInput(
                f"channels across nodes are only emulated with graphs that the search found: remove {option('graphs')}"
            )
        kinds: dict[tuple[int, int], NodeKind] = {}
        for node, count in self.nodes:
            if (id(node), count) not in kinds:
                found = searched(node.for_search(self._several), self.release.name)
                of_domain = isinstance(node, ResolvedPart) and isinstance(node.whole, ResolvedDomain)
                ranks = len(found.part_of_rank) if of_domain else 0
                kinds[id(node), count] = NodeKind(count, found.graphs, found.relays, ranks)
        return Nodes(tuple(kinds[id(node), count] for node, count in self.nodes), self.ranks_of)

    @cached_property
    def domains(self) -> tuple[int, ...]:
        """The number of hosts of each NVLink domain, in the order of ranks; empty without domains. BadInput if the
        numbers do not add up to all hosts.
        """
        if self.scenario.members is not None:
            return hosts_of_domains(self.whole, self.scenario.members.ranks)
        hosts, described = sum(kind.hosts for kind in self.kinds), self.scenario.hosts_per_domain
        trays = [(kind.trays, kind.nodes) for kind in self.kinds]
        if any(each for each, _ in trays):
            if described is not None:
                raise BadInput(
                    f"this machine is an NVLink domain itself: use {option('trays')} instead of "
                    f"{option('hosts_per_domain')}"
                )
            return tuple(chain.from_iterable(repeat(each or 1, count) for each, count in trays))
        return () if described is None else sizes_of_domains(self.kinds, hosts, described)

    @property
    def domains_in_words(self) -> str:
        """A phrase about the hosts that NVLink joins, to follow the number of hosts; empty if it joins none."""
        described, without = self.scenario.hosts_per_domain, self.scenario.ranks_without_fabric
        words = " + ".join(map(str, described)) if isinstance(described, tuple) else described
        domains = f", NVLink domains of {words} hosts" if words else ""
        return domains + (f", ranks {', '.join(map(str, without))} not in its fabric" if without else "")

    @property
    def taken_in_words(self) -> str:
        """A phrase that follows the number of described nodes and says how many nodes NCCL makes of them; empty if it
        is the same number."""
        try:
            nodes = sum(count for _, count in self.nodes)
        except TunerError:  # the description is refused; the answer that has the title says why
            return ""
        described = sum(kind.nodes for kind in self.kinds)
        if self.scenario.members is not None and self.domains:
            described = len(self.domains)
        return "" if nodes == described else f", which NCCL treats as {nodes} node{'s' * (nodes > 1)}"

    @property
    def each_in_words(self) -> str:
        """A phrase for any number of nodes like the described one: the domains, and the number of nodes that NCCL makes
        of each."""
        taken = self.taken_in_words
        return self.domains_in_words + (f", each of{taken[1:]}" if taken else "")

    @cached_property
    def nodes(self) -> ResolvedNodes:
        """NCCL's nodes (hosts, domains, or parts of these) in the order of ranks, each with the number of equal nodes
        in a row.

        Raises BadTopology, and BadInput for what NCCL refuses or what is not emulated.
        """
        return split(self.hosts_and_domains)

    @cached_property
    def hosts_and_domains(self) -> Sequence[tuple[ResolvedNode | ResolvedDomain, int]]:
        """The hosts, or whole domains, in the order of ranks, each with the number of equal ones in a row.

        BadInput if NCCL refuses the domains, or if what it does with them is not emulated.
        """
        hosts = [(kind, kind.hosts) for kind in self.kinds]
        fabric = DomainHosts(
            Environment(
                self.scenario.variables, non_numeric_is_default=self.release.environment.non_numeric_is_default
            ),
            hosts=sum(count for _, count in hosts),
            domains=self.domains,
            ready=not self.ranks_without_fabric,
        )
        try:
            sizes = resolved.rules_for(self.release).domains(fabric)
        except BadInput as error:
            raise self._with_later_release(error) from None
        if not sizes:
            return hosts
        if any(kind.scenario.graphs is not None for kind in self.kinds):
            raise BadInput(
                f"{option('graphs')} describes the graphs of one host, which do not tell those of an NVLink domain: "
                "remove it, or the domains"
            )
        return [(self._domain(alike), count) for alike, count in grouped(hosts, sizes)]

    def _with_later_release(self, error: BadInput) -> BadInput:
        """The error. If its cure is another release, that becomes a release that has room for all trays of the
        machines."""
        machines = (catalogue.load(kind.scenario.machine) for kind in self.kinds if kind.scenario.machine is not None)
        since = [each.since for each in machines if each.since is not None]
        if since and any(each.parameter == "nccl" for each in error.remedies):
            return error.cured(Remedy("nccl", max(since, key=release.names().index)))
        return error

    @property
    def uses_domains(self) -> bool:
        """Whether NVLink domains, whole or in parts, are among NCCL's nodes. Raises BadInput and BadTopology."""
        return any(isinstance(node, ResolvedDomain) for node, _ in self.hosts_and_domains)

    @property
    def what_domains_are(self) -> str | None:
        """A sentence that says how NCCL treats the NVLink domains; None if there are none."""
        if not self.domains:
            return None
        hosts, nodes = sum(self.domains), sum(count for _, count in self.nodes)
        if any(isinstance(node, ResolvedPart) and isinstance(node.whole, ResolvedDomain) for node, _ in self.nodes):
            return (
                f"NVLink joins hosts (multi-node NVLink, MNNVL), but NCCL treats each domain as several nodes: "
                f"all {hosts} hosts as {nodes} nodes."
            )
        joined = {node.hosts for node, _ in self.nodes if isinstance(node, ResolvedDomain)}
        if joined:
            each = " or ".join(map(str, sorted(joined)))
            return (
                f"NVLink joins hosts (multi-node NVLink, MNNVL): NCCL treats {each} hosts as one node, "
                f"and all {hosts} hosts as {nodes} node{'s' * (nodes > 1)}."
            )
        if self.ranks_without_fabric:
            why = f"the GPU of rank {self.ranks_without_fabric[0]} is not in its NVLink fabric"
        elif init.hosts_are_nodes is resolved.rules_for(self.release).domains:
            why = f"NCCL {self.release.name} knows no NVLink between hosts"
        else:
            why = f"the variables or NCCL {self.release.name} rule out NVLink between hosts"
        return f"NVLink joins hosts, but NCCL treats each of the {hosts} as a node: {why}."

    @cached_property
    def ranks_without_fabric(self) -> tuple[int, ...]:
        """The ranks that the user described as having no fabric. If some machines are NVLink domains, also the ranks of
        the hosts that are not. BadInput if a described rank is not in the communicator, or if there is no NVLink
        domain."""
        if self.scenario.members is not None:
            of_whole = self.whole.ranks_without_fabric
            return tuple(own for own, rank in enumerate(self.scenario.members.ranks) if rank in of_whole)
        without = self.scenario.ranks_without_fabric
        if without and not self.domains:
            raise BadInput(
                f"ranks without fabric only apply to NVLink domains: add some, as with {option('hosts_per_domain')}"
            )
        if outside := [rank for rank in without if not 0 <= rank < self.ranks]:
            raise BadInput(
                f"rank without fabric {outside[0]} is not in the communicator: valid are 0 to {self.ranks - 1}"
            )
        if self.scenario.hosts_per_domain is not None or not self.domains:
            return without
        alone, first = set(without), 0
        for kind in self.kinds:
            first, before = first + kind.hosts * len(kind.gpu_of_rank), first
            if kind.trays is None:
                alone.update(range(before, first))
        return tuple(sorted(alone))

    def _domain(self, alike: tuple[Alike, ...]) -> ResolvedDomain:
        """The domain of these hosts; equal hosts get the same object."""
        key = tuple((kind.name, count) for kind, count in alike)
        return self._domains.setdefault(key, ResolvedDomain(alike))

    def _check_sharing(self) -> None:
        """Raises BadInput if the search of one node does not show whether NVLS is off."""
        rule, placed = resolved.rules_for(self.release).nvls_if_shared, [kind.gpu_of_rank for kind in self.kinds]
        if rule is not None and rule(placed) != any(rule([gpus]) for gpus in placed):
            raise BadInput(
                f"NCCL {self.release.name} leaves NVLS on if the last two ranks of the communicator have a GPU each, "
                "although other ranks share one, which is not emulated: give the nodes on which ranks share GPUs after "
                "the others"
            )

    def oracle_configuration(self) -> "OracleConfiguration":
        """The communicator in the form of the oracle. BadInput for what libnccl cannot use: other constants or
        graphs."""
        if self.scenario.fitted_constants is not None:
            raise BadInput(
                f"libnccl computes with its own constants: {option('constants')} only applies to pick and table "
                "without libnccl"
            )
        if any(kind.scenario.graphs is not None for kind in self.kinds):
            raise BadInput(
                f"libnccl searches its own graphs: remove {option('graphs')}, and give {option('machine')} or "
                f"{option('topology')}"
            )
        if (made := self.scenario.members) is not None:
            return replace(self.whole.oracle_configuration(), split_off=replace(made, shares=self.shares))
        own, *others = (kind.for_oracle(kind.hosts) for kind in self.kinds)
        if any(other.env != own.env for other in others):
            raise BadInput(
                "the nccl.conf files of these machines differ, but have to be equal here, because libnccl runs in one "
                "process"
            )
        joined = replace(own, others=tuple(chain.from_iterable(other.hosts for other in others)))
        return replace(
            joined,
            domains=self.domains,
            ranks_without_fabric=self.ranks_without_fabric,
            ranks_per_process=self.gpus_per_process,
            offers_gin=all(kind.without_graphs.offers_gin is True for kind in self.kinds),
        )

    def oracle_configuration_to_launch(self) -> "OracleConfiguration":
        """The communicator in the form of the oracle, for launches. The recorder is left out if a variable is set that
        only works without a tuner plugin."""
        without_tuner = registered.CTA_POLICY in (self.scenario.environment or {})
        return replace(self.oracle_configuration(), without_tuner=without_tuner)


def _kind(scenario: Scenario) -> ResolvedNode:
    if scenario.logged is None:
        if _says_more(scenario):
            return ResolvedNode(scenario)
        machine = str(scenario.machine)
        known = _of_machine(machine, catalogue.load(machine), release.load(scenario.nccl))
        return known.described_by(scenario)
    from tuner.scenario.from_log import ResolvedLoggedNode  # that module reads logs

    return ResolvedLoggedNode(scenario, scenario.logged)


_NAMED = ("nccl", "nodes", "machine")
_BESIDE = {each.name: each.default for each in fields(Scenario) if each.name not in _NAMED}


def _says_more(scenario: Scenario) -> bool:
    """Whether a scenario says anything beside a machine of the catalogue, a release and a number of nodes."""
    said = vars(scenario)
    return scenario.machine is None or any(said[name] != default for name, default in _BESIDE.items())


@lru_cache(16)
def _of_machine(name: str, machine: Machine, nccl: Release) -> ResolvedNode:
    """A machine of the catalogue by the name it was asked for: what is found out about it is the same for all numbers
    of nodes.
    """
    node = ResolvedNode(Scenario(nccl.name, nodes=1, machine=name))
    with suppress(TunerError):  # which is raised where the node is asked for it
        _ = node.gpu_of_rank
    return node


Used = tuple[ResolvedNode, tuple[int, ...]]  # a host, and those of its GPUs that have ranks of the communicator


class ResolvedSomeGpus(ResolvedNode):
    """Hosts of which the communicator uses some GPUs that are not just the first ones."""

    def __init__(self, whole: ResolvedNode, gpus: tuple[int, ...], count: int) -> None:
        super().__init__(_described(whole, None, count))
        self.name = f"{whole.name} (GPUs {as_ranges(gpus)})"
        self._topology_xml = edit.of_gpus(whole.topology_xml, gpus)

    @property
    def topology_xml(self) -> str:
        """Topology of the host without the GPUs that are not used; NCCL drops these, too (ncclTopoTrimXml,
        src/graph/xml.cc)."""
        return self._topology_xml

    @cached_property
    def topology(self) -> Topology:
        """Topology of the host as records."""
        return read_topology(self.topology_xml)

    def searched_before(self, several: bool, trays: int = 1) -> None:
        """Always None: the catalogue only has graphs for a host's first GPUs."""


def kinds_of_members(whole: "ResolvedScenario", ranks: Sequence[int]) -> tuple[ResolvedNode, ...]:
    """The kinds of hosts on which these ranks of a scenario are, in the order of ranks, with the GPUs that they use.

    BadInput if there is no such rank, or if only the graphs of a node are known.
    """
    if outside := [rank for rank in ranks if not 0 <= rank < whole.ranks]:
        raise BadInput(
            f"{option('ranks')}: {outside[0]} is no rank of {whole.scenario.title}: valid are 0 to {whole.ranks - 1}"
        )
    for kind in whole.kinds:
        if kind.scenario.graphs is not None or kind.scenario.logged is not None:
            raise BadInput(
                f"{option('ranks')} cannot be used with graphs alone, which describe all GPUs: give "
                f"{option('machine')} or {option('topology')}"
            )
        if kind.shares_gpus:
            raise BadInput(f"{option('ranks')} is not emulated if ranks share a GPU: set {option('ranks_per_gpu')} 1")
    made: dict[Used, ResolvedNode] = {}
    found = list[ResolvedNode]()
    for used, alike in groupby(each for each in used_of_hosts(whole, ranks) if each[1]):
        count = len(list(alike))
        made.setdefault(used, _of_gpus(*used))
        found.append(made[used].with_nodes(count))
    return tuple(found)


def used_of_hosts(whole: "ResolvedScenario", ranks: Sequence[int]) -> Iterator[Used]:
    """Yields every host with those of its GPUs on which some of ``ranks`` are; a host may have no such GPU."""
    wanted, first = frozenset(ranks), 0
    for kind in chain.from_iterable(repeat(kind, kind.hosts) for kind in whole.kinds):
        yield kind, tuple(gpu for gpu in range(kind.size) if first + gpu in wanted)
        first += kind.size


def hosts_of_domains(whole: "ResolvedScenario", ranks: Sequence[int]) -> tuple[int, ...]:
    """The number of hosts of each NVLink domain that have at least one of the ranks; empty without domains."""
    used = [bool(gpus) for _, gpus in used_of_hosts(whole, ranks)]
    sizes, first = list[int](), 0
    for hosts in whole.domains:
        sizes.append(sum(used[first : first + hosts]))
        first += hosts
    return tuple(filter(None, sizes))


def _of_gpus(kind: ResolvedNode, gpus: tuple[int, ...]) -> ResolvedNode:
    if gpus == tuple(range(len(gpus))):
        return ResolvedNode(_described(kind, len(gpus), 1))
    return ResolvedSomeGpus(kind, gpus, 1)


def _described(kind: ResolvedNode, gpus: int | None, count: int) -> "Scenario":
    """A scenario of ``count`` hosts of this kind (trays, for an NVLink domain) with these GPUs."""
    return replace(
        kind.scenario, nodes=count, trays=1 if kind.trays else None, gpus_per_node=gpus, members=None, later=True
    )

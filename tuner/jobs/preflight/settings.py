"""Makes the emulator's input from records: the settings by which kinds of ranks choose, and their hosts."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.files import read_bytes
from tuner.base.findings import Finding, Severity
from tuner.base.spelling import option
from tuner.emulator.aws_ofi_nccl import release as aws_release
from tuner.emulator.aws_ofi_nccl.tuner import AwsTuner
from tuner.emulator.build import build
from tuner.emulator.communicator import Comm, Node
from tuner.emulator.rules import init
from tuner.emulator.selection import Selection
from tuner.emulator.tuner_plugin import TunerPlugin
from tuner.jobs.preflight import place as places
from tuner.jobs.preflight.collect import attachment
from tuner.jobs.preflight.differences import known_release, reaches_choice
from tuner.jobs.preflight.place import HostLocation
from tuner.jobs.preflight.reading import Collected, NamedFile, RankFacts
from tuner.machine.graphs import EMPTY
from tuner.plugin.asked import FileTuner
from tuner.plugin.dry_run import DryRun, PluginRefused
from tuner.plugin.formats import convert
from tuner.release import Release
from tuner.release.environment import Environment
from tuner.release.variables import not_emulated
from tuner.scenario import Scenario
from tuner.scenario.node import ResolvedNode


@dataclass(frozen=True, slots=True)
class RankSetting:
    """Everything that a rank's choices depend on: release, variables that affect choices, node, and decision table.

    ``cloud_tuner`` is the release and product name of aws-ofi-nccl's tuner, which is asked if the table decides
    nothing.
    """

    nccl: str
    environment: tuple[tuple[str, str], ...]
    place: HostLocation
    table: Path | None = None
    cloud_tuner: tuple[str, str | None] | None = None

    @property
    def tuner(self) -> TunerPlugin | None:
        """The tuner: this project's plugin with the table, the tuner of aws-ofi-nccl, or both; None without a tuner."""
        cloud = self.cloud_tuner and AwsTuner(aws_release.load(self.cloud_tuner[0]), self.cloud_tuner[1], {})
        if self.table is None:
            return cloud
        return FileTuner(convert.read(self.table).format, self.table, cloud, by_default=True)

    @property
    def variables(self) -> dict[str, str]:
        """The variables, including those that the tuner's network plugin sets if they are not set."""
        return {**(self.tuner.settings if self.tuner else {}), **dict(self.environment)}


@dataclass(frozen=True, slots=True)
class HostsAlike:
    """``count`` consecutive hosts whose ranks have the same ``settings``, in the order of the first rank with each
    setting."""

    settings: tuple[RankSetting, ...]
    count: int


class Views:
    """A communicator of ``hosts``, as the ranks with each setting see it. The hosts are in the order of their ranks.

    Each kind of node is searched once.
    """

    def __init__(self, hosts: Iterable[HostsAlike]) -> None:
        self.hosts = tuple(hosts)
        self._nodes: dict[tuple[RankSetting, str], Node] = {}

    @property
    def settings(self) -> tuple[RankSetting, ...]:
        """The distinct settings, in the order of ranks."""
        return tuple(dict.fromkeys(setting for hosts in self.hosts for setting in hosts.settings))

    def selection(self, own: RankSetting) -> Selection:
        """The :class:`Selection` of the ranks with the setting ``own``. Raises BadInput for what is not emulated, and
        UnknownRelease."""
        files = any(setting.place.topology for hosts in self.hosts for setting in hosts.settings)
        # What a topology file says may change.
        return Selection(self.of(own)) if files else _selection(self.hosts, own)

    def of(self, own: RankSetting) -> Comm:
        """The communicator as the ranks with one setting see it.

        Ranks with another release are treated as if they had this one. BadInput for what is not emulated;
        UnknownRelease.
        """
        nccl = release.load(own.nccl)
        first = next(at for at, hosts in enumerate(self.hosts) if own in hosts.settings)
        order = [self.hosts[first], *self.hosts[:first], *self.hosts[first + 1 :]]
        nodes = [(self._node(hosts.settings, own, nccl), hosts.count) for hosts in order]
        searched = frozenset(nccl.environment.search)
        return replace(build(nccl, nodes, Environment(own.variables, searched)), tuner=own.tuner)

    def _node(self, settings: Sequence[RankSetting], own: RankSetting, nccl: Release) -> Node:
        """A host with the graphs on which its ranks agree. Other facts are those of a rank with the setting ``own``, if
        the host has one.
        """
        own_first = sorted(settings, key=lambda setting: setting != own)
        first, *others = (self._searched(setting, nccl) for setting in own_first)
        if not others:
            return first
        everyone = [first, *others]
        names = dict.fromkeys(name for node in everyone for name in node.graphs)
        graphs = {
            name: init.weakest([node.graphs.get(name, EMPTY) for node in everyone], nccl.paths.types) for name in names
        }
        graphs = {name: graph for name, graph in graphs.items() if graph.channels}
        return replace(first, graphs=graphs, net_gbs=min(node.net_gbs for node in everyone))

    def _searched(self, setting: RankSetting, nccl: Release) -> Node:
        key = setting, nccl.name
        if key not in self._nodes:
            node = ResolvedNode(node_of(setting, nccl)).for_emulator(sum(hosts.count for hosts in self.hosts) > 1)
            self._nodes[key] = _without_nvls(node, setting)
        return self._nodes[key]


@lru_cache(maxsize=64)
def _selection(hosts: tuple[HostsAlike, ...], own: RankSetting) -> Selection:
    """The selection of ranks with a setting; cached, as differences are judged one by one and the same hosts recur."""
    return Selection(Views(hosts).of(own))


def node_of(setting: RankSetting, nccl: Release) -> Scenario:
    """A scenario of one node, the host of ranks with this setting, as the release ``nccl`` of NCCL sees it.

    This may be the release of other ranks.
    """
    place = setting.place
    return Scenario(
        nccl.name,
        nodes=1,
        machine=place.machine,
        topology=place.topology,
        gpus_per_node=place.gpus,
        environment=_known(setting.variables, nccl),
        hardware=dict(place.hardware) or None,
    )


def _known(environment: Mapping[str, str], nccl: Release) -> dict[str, str]:
    """Keeps the variables that the release reads; the release of another rank may read more."""
    unknown = not_emulated(nccl, environment.keys() - set(nccl.environment.search))
    return {name: value for name, value in environment.items() if name not in unknown}


def _without_nvls(node: Node, setting: RankSetting) -> Node:
    """The node, without an NVLS graph if the setting has NCCL_NVLS_ENABLE=0, for any rank that looks at it."""
    if not init.nvls_switched_off(Environment(dict(setting.environment))):
        return node
    return replace(node, graphs={name: graph for name, graph in node.graphs.items() if name != "nvls"})


VALID = expression(rb"^\s*#\s*valid:", re.M)  # in a table: for which time it is meant
_CHECKS = ("NCCL_TUNER_TABLE_SHA256", "NCCL_TUNER_CONSTANTS", "NCCL_TUNER_UNCHECKED", "NCCL_TUNER_JOB_TIME")


@dataclass(frozen=True, slots=True)
class DescribedNodes:
    """The nodes that the user gives: a machine by name, or a topology. If both are None, the node of a record is the
    machine most similar to it."""

    machine: str | None = None
    topology: Path | None = None
    recognised: bool = False  # by the records, not named by the user
    equals: tuple[str, ...] = ()  # other machines that the records come as near to


@dataclass(frozen=True, slots=True)
class Assembled:
    """The hosts of a job with their settings. ``setting_of_kind`` is indexed by the number of the kind;
    ``ranks_of_setting`` says how many ranks have each setting."""

    hosts: tuple[HostsAlike, ...]
    setting_of_kind: tuple[RankSetting, ...]
    ranks_of_setting: dict[RankSetting, int]
    notes: tuple[Finding, ...]

    @property
    def common(self) -> RankSetting:
        """The setting that most ranks have."""
        return max(self.ranks_of_setting, key=self.ranks_of_setting.__getitem__)


def machines(collected: Collected, nodes: DescribedNodes) -> tuple[DescribedNodes, ...]:
    """The nodes that stand for the hosts of each kind: the user's, or the machine that is most similar to all hosts
    with the same GPUs."""
    if nodes != DescribedNodes():
        return (nodes,) * len(collected.kinds)
    alike = defaultdict[tuple[str, ...], list[RankFacts]](list)
    for facts in collected.kinds:
        alike[facts.gpus].append(facts)
    nearest = {gpus: places.nearest(kinds) for gpus, kinds in alike.items()}
    return tuple(
        DescribedNodes(names[0], recognised=True, equals=names[1:]) if (names := nearest[facts.gpus]) else nodes
        for facts in collected.kinds
    )


def assemble(collected: Collected, nodes: DescribedNodes) -> Assembled:
    """Assembles all hosts of a job. BadInput if the release or node of a kind is unknown; it says what is missing."""
    of_kind = [
        _setting(collected, facts, taken_for)
        for facts, taken_for in zip(collected.kinds, machines(collected, nodes), strict=True)
    ]
    by_host = defaultdict[tuple[str, str | None], list[int]](list)
    for rank in collected.ranks:
        by_host[rank.own_host].append(rank.kind)
    found = [tuple(dict.fromkeys(of_kind[kind] for kind in kinds)) for kinds in by_host.values()]
    sizes = [_size(collected.kinds[kinds[0]]) for kinds in by_host.values()]
    hosts = [HostsAlike(alike, len(list(same))) for alike, same in groupby(found)]
    notes, left = list[Finding](), (collected.expected or 0) - sum(sizes)
    if left > 0:
        missing = -(-left // max(Counter(sizes).most_common(1)[0][0], 1))
        hosts.append(HostsAlike(Counter(found).most_common(1)[0][0][:1], missing))
        notes.append(Finding("preflight.hosts_assumed", Severity.NOTE, {"hosts": missing}))
    notes += _of_leaks(of_kind, len(found))
    ranks_of_setting = Counter(of_kind[rank.kind] for rank in collected.ranks)
    return Assembled(tuple(hosts), tuple(of_kind), dict(ranks_of_setting), tuple(notes))


def _of_leaks(settings: Sequence[RankSetting], hosts: int) -> Iterator[Finding]:
    """A note if a job's second communicator sees adapters that the first one merged."""
    nodes = (ResolvedNode(node_of(each, release.load(each.nccl))) for each in dict.fromkeys(settings))
    leaking = dict.fromkeys(node.nccl for node in nodes if hosts > 1 and node.leaks_adapters())
    if leaking:
        yield Finding("preflight.merged_adapters", Severity.NOTE, {"releases": list(leaking)})


def _size(facts: RankFacts) -> int:
    return facts.ranks_of_host or len(facts.gpus)


def _setting(collected: Collected, facts: RankFacts, nodes: DescribedNodes) -> RankSetting:
    nccl = known_release(facts)
    if nccl is None:
        release = "no libnccl was found on record" if facts.release is None else f"NCCL {facts.release} has no tables"
        raise BadInput(
            f"{release}; collect with {option('library')} FILE, a libnccl of a release that `nccl-tuner doctor` lists"
        )
    variables = facts.settled(nccl)
    place = place_of(collected, facts, nodes)
    if place is None:
        raise BadInput(
            f"no machine of the catalogue has hosts with {facts.gpu_words}; add {option('machine')} NAME or "
            f"{option('topology')} FILE.xml, or set NCCL_TOPO_DUMP_FILE in a run before collect"
        )
    environment = {name: value for name, value in variables.items() if reaches_choice(name, nccl)}
    if place.machine is not None and facts.ports:  # its adapters are those that the variable left
        environment.pop("NCCL_IB_HCA", None)
    tuner = facts.cloud_tuner
    named = None if tuner is None else (tuner.release.name, tuner.product)
    return RankSetting(nccl.name, tuple(environment.items()), _numbered(place), _table(collected, facts), named)


def place_of(collected: Collected, facts: RankFacts, nodes: DescribedNodes) -> HostLocation | None:
    """The node of a kind of ranks: a topology, or a machine with the recorded processor and adapters; None if it is not
    known. BadInput for a topology that is not complete.
    """
    if nodes.topology is not None:
        found = places.of_topology(nodes.topology, facts.ranks_of_host)
        if found is None:
            raise BadInput(f"{nodes.topology} is not a complete topology; give one that NCCL_TOPO_DUMP_FILE wrote")
        return found
    if nodes.machine is None or nodes.recognised:
        attached = _attached(collected, "topology", facts.topology)
        dumped = None if attached is None else places.of_topology(attached, facts.ranks_of_host)
        if dumped is not None or nodes.machine is None:
            return dumped
    return places.named(nodes.machine, facts, facts.settled(known_release(facts)), facts.ranks_of_host)


def places_adapters(collected: Collected, nodes: DescribedNodes) -> bool:
    """Whether the emulator uses recorded adapters on all hosts; False if it has to assume the adapters of any host."""
    found = (
        place_of(collected, facts, taken_for)
        for facts, taken_for in zip(collected.kinds, machines(collected, nodes), strict=True)
    )
    return not any(
        place is not None and any(words.startswith(places.ADAPTERS) for words in place.assumed) for place in found
    )


def _numbered(place: HostLocation) -> HostLocation:
    """The location without its comments, so that equal locations compare equal."""
    return replace(place, agrees=(), assumed=())


def _table(collected: Collected, facts: RankFacts) -> Path | None:
    """The decision table that ranks of a kind use; None if they use none. BadInput if its text is not beside the
    records."""
    if facts.tuner_plugin is None or refusal(collected, facts):
        return None
    if lacks_table(collected, facts):
        raise BadInput("the text of a decision table is not beside the records")
    return _attached(collected, "table", facts.table)


def lacks_table(collected: Collected, facts: RankFacts) -> bool:
    """Whether ranks of a kind use a table whose text is not beside the records, so that its decisions are unknown."""
    if facts.table is None or not facts.plugin_is_own:
        return False
    if facts.table.sha256 is None:
        return "%" in facts.table.path
    return _attached(collected, "table", facts.table) is None


def goes_by_time(collected: Collected) -> bool:
    """Whether a rank's choice depends on when its job began, because of a switch or a table that is only valid for some
    time."""
    for facts in collected.kinds:
        table = _attached(collected, "table", facts.table)
        if facts.plugin_is_own and (
            facts.settled(None).get("NCCL_TUNER_SWITCH") or (table and VALID.search(read_bytes(table, BadInput)))
        ):
            return True
    return False


def refusal(collected: Collected, facts: RankFacts) -> str | None:
    """Why ranks of a kind would not use the decision table or the plugin that their variables name.

    None if they use it, name none, or load another plugin than this project's. The plugin itself is asked whether it
    accepts the table.
    """
    if facts.plugin_is_of_others:
        return None
    names_table = facts.table is not None and bool(facts.settled(None).get("NCCL_TUNER_TABLE"))
    if facts.tuner_plugin is None:
        return "NCCL_TUNER_TABLE is set, but no tuner plugin is loaded" if names_table else None
    if facts.plugin_is_missing:
        if not names_table:
            return None
        return f"{facts.tuner_plugin.path}: {'not there' if facts.tuner_plugin.sha256 is None else 'no tuner plugin'}"
    if facts.table is None:
        return "NCCL_TUNER_STRICT is set, but NCCL_TUNER_TABLE is not" if facts.is_strict else None
    if facts.table.sha256 is None:
        return None if "%" in facts.table.path else f"{facts.table.path}: not there"
    attached = _attached(collected, "table", facts.table)
    if attached is None:
        return None
    return _refused(attached, facts)


def not_exploring(collected: Collected) -> list[str]:
    """Differences between ranks that keep all ranks from exploring, although a table asks for it; empty if there are
    none.
    """
    if any(lacks_table(collected, facts) for facts in collected.kinds):
        return []
    tables = [_table(collected, facts) for facts in collected.kinds]
    if not any(choice.arms for table in set(tables) if table for choice in convert.read(table).table.decisions):
        return []
    needed = (
        ("decision table", [facts.table and facts.table.sha256 for facts in collected.kinds]),
        ("build of the tuner plugin", [facts.tuner_plugin and facts.tuner_plugin.build for facts in collected.kinds]),
        ("NCCL_PROFILER_PLUGIN", [bool(facts.settled(None).get("NCCL_PROFILER_PLUGIN")) for facts in collected.kinds]),
        ("NCCL_TUNER_JOB", [facts.settled(None).get("NCCL_TUNER_JOB") for facts in collected.kinds]),
    )
    return [name for name, values in needed if len(set(values)) > 1 or not values[0]]


def _refused(table: Path, facts: RankFacts) -> str | None:
    own = {name: value for name, value in facts.settled(None).items() if name in _CHECKS}
    # Without strict a file need not show that it is whole: this one is what was read.
    if not facts.is_strict and "NCCL_TUNER_TABLE_SHA256" not in own:
        own["NCCL_TUNER_TABLE_SHA256"] = str(facts.table and facts.table.sha256)
    try:
        DryRun(table, ranks=2, nodes=1, env={**own, "NCCL_TUNER_STRICT": "1"}).close()
    except PluginRefused as refused:
        return refused.why.replace(str(table), facts.table.path if facts.table else "")
    return None


def _attached(collected: Collected, name: str, file: NamedFile | None) -> Path | None:
    if file is None or file.sha256 is None:
        return None
    return collected.attachment(attachment(name, file.sha256))

"""What the kinds of ranks choose by, and on which hosts they are: from records to what the emulator takes."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from tuner import release
from tuner.base.errors import BadInput
from tuner.jobs.preflight import place as places
from tuner.jobs.preflight.collect import attachment
from tuner.jobs.preflight.differences import known_release
from tuner.jobs.preflight.facts import Facts, NamedFile
from tuner.jobs.preflight.place import Place
from tuner.jobs.preflight.reach import reaches_choice
from tuner.jobs.preflight.reading import Collected
from tuner.jobs.preflight.views import Hosts, Setting, node_of
from tuner.plugin.asked import PREFIX
from tuner.plugin.dry_run import DryRun, PluginRefused
from tuner.scenario.node import ResolvedNode

_CHECKS = ("NCCL_TUNER_TABLE_SHA256", "NCCL_TUNER_CONSTANTS", "NCCL_TUNER_UNCHECKED", "NCCL_TUNER_JOB_TIME")


@dataclass(frozen=True, slots=True)
class Nodes:
    """What a user says of the nodes: a machine by name, or a topology; neither: as each record comes nearest to."""

    machine: str | None = None
    topology: Path | None = None
    recognised: bool = False  # by the records, not named by the user
    equals: tuple[str, ...] = ()  # other machines that the records come as near to


@dataclass(frozen=True, slots=True)
class Assembled:
    """``setting_of_kind``: by the number of the kind. ``ranks_of_setting``: on how many ranks each is."""

    hosts: tuple[Hosts, ...]
    setting_of_kind: tuple[Setting, ...]
    ranks_of_setting: dict[Setting, int]
    notes: tuple[str, ...]

    @property
    def common(self) -> Setting:
        """The setting of most ranks."""
        return max(self.ranks_of_setting, key=self.ranks_of_setting.__getitem__)


def machines(collected: Collected, nodes: Nodes) -> tuple[Nodes, ...]:
    """What the hosts of each kind are taken for: what the user says, or the nearest machine to all with such GPUs."""
    if nodes != Nodes():
        return (nodes,) * len(collected.kinds)
    alike = defaultdict[tuple[str, ...], list[Facts]](list)
    for facts in collected.kinds:
        alike[facts.gpus].append(facts)
    nearest = {gpus: places.nearest(kinds) for gpus, kinds in alike.items()}
    return tuple(
        Nodes(names[0], recognised=True, equals=names[1:]) if (names := nearest[facts.gpus]) else nodes
        for facts in collected.kinds
    )


def assemble(collected: Collected, nodes: Nodes) -> Assembled:
    """BadInput where a kind's release or node is not known; the message says what would make it known."""
    of_kind = [
        _setting(collected, facts, taken_for)
        for facts, taken_for in zip(collected.kinds, machines(collected, nodes), strict=True)
    ]
    by_host = defaultdict[str, list[int]](list)
    for rank in collected.ranks:
        by_host[rank.host].append(rank.kind)
    found = [tuple(dict.fromkeys(of_kind[kind] for kind in kinds)) for kinds in by_host.values()]
    sizes = [_size(collected.kinds[kinds[0]]) for kinds in by_host.values()]
    hosts = [Hosts(alike, len(list(same))) for alike, same in groupby(found)]
    notes, left = list[str](), (collected.expected or 0) - sum(sizes)
    if left > 0:
        missing = -(-left // max(Counter(sizes).most_common(1)[0][0], 1))
        hosts.append(Hosts(Counter(found).most_common(1)[0][0][:1], missing))
        notes.append(f"{missing} hosts without a record are taken for hosts like most others")
    notes += _of_leaks(of_kind, len(found))
    ranks_of_setting = Counter(of_kind[rank.kind] for rank in collected.ranks)
    return Assembled(tuple(hosts), tuple(of_kind), dict(ranks_of_setting), tuple(notes))


def _of_leaks(settings: Sequence[Setting], hosts: int) -> Iterator[str]:
    """A note where a job's second communicator has adapters that its first merged."""
    nodes = (ResolvedNode(node_of(each, release.load(each.nccl))) for each in dict.fromkeys(settings))
    leaking = dict.fromkeys(node.nccl for node in nodes if hosts > 1 and node.leaks_adapters())
    if leaking:
        yield (
            f"NCCL {' and '.join(leaking)} merges adapters here, and gives every communicator after a process's first "
            "the merged ones, too: hosts may then disagree and hang (NVIDIA/nccl #2091; 2.30.7 and later do not); "
            "`ranks` of the graphs shows such a communicator"
        )


def _size(facts: Facts) -> int:
    return facts.ranks_of_host or len(facts.gpus)


def _setting(collected: Collected, facts: Facts, nodes: Nodes) -> Setting:
    nccl = known_release(facts)
    if nccl is None:
        release = "no libnccl was found on record" if facts.release is None else f"NCCL {facts.release} has no tables"
        raise BadInput(f"{release}; valid: collect `library` FILE, and the releases of `nccl-tuner pick --help`")
    variables = facts.settled(nccl)
    place = place_of(collected, facts, nodes)
    if place is None:
        raise BadInput(
            f"no machine of the catalogue has {facts.gpu_words} in a host; valid: `machine` NAME, `topology` FILE.xml, "
            "or NCCL_TOPO_DUMP_FILE at a run before collect"
        )
    environment = {name: value for name, value in variables.items() if reaches_choice(name, nccl)}
    if place.machine is not None:  # its adapters are those that the variable left
        environment.pop("NCCL_IB_HCA", None)
    tuner = facts.cloud_tuner
    named = None if tuner is None else (tuner.release.name, tuner.product)
    return Setting(nccl.name, tuple(environment.items()), _numbered(place), _table(collected, facts), named)


def place_of(collected: Collected, facts: Facts, nodes: Nodes) -> Place | None:
    """The node of a kind: a topology, or a machine with processor and adapters on record. None: not known. BadInput."""
    if nodes.topology is not None:
        found = places.of_topology(nodes.topology, facts.ranks_of_host)
        if found is None:
            raise BadInput(f"{nodes.topology}: not a whole topology; valid: what NCCL_TOPO_DUMP_FILE writes")
        return found
    if nodes.machine is None or nodes.recognised:
        attached = _attached(collected, "topology", facts.topology)
        dumped = None if attached is None else places.of_topology(attached, facts.ranks_of_host)
        if dumped is not None or nodes.machine is None:
            return dumped
    return places.named(nodes.machine, facts, facts.settled(known_release(facts)), facts.ranks_of_host)


def _numbered(place: Place) -> Place:
    """Without the words, which make no other setting."""
    return replace(place, agrees=(), assumed=())


def _table(collected: Collected, facts: Facts) -> Path | None:
    return None if refusal(collected, facts) else _attached(collected, "table", facts.table)


def refusal(collected: Collected, facts: Facts) -> str | None:
    """Why ranks of a kind would go without the decision table, or the plugin, that their variables name.

    None where they go with it, name none, or load a plugin that is not this project's. The plugin itself is asked.
    """
    if facts.tuner_plugin is None or facts.plugin_is_of_others:
        return None
    if facts.plugin_is_missing:
        return f"{facts.tuner_plugin.path}: {'not there' if facts.tuner_plugin.sha256 is None else 'no tuner plugin'}"
    if facts.table is None:
        return "NCCL_TUNER_STRICT is set, and NCCL_TUNER_TABLE is not" if facts.is_strict else None
    if facts.table.sha256 is None:
        return None if "%" in facts.table.path else f"{facts.table.path}: not there"
    attached = _attached(collected, "table", facts.table)
    if attached is None:
        return None
    return _refused(attached, facts)


def _refused(table: Path, facts: Facts) -> str | None:
    own = {name: value for name, value in facts.settled(None).items() if name in _CHECKS}
    # Without strict a file need not show that it is whole: this one is what was read.
    if not facts.is_strict and "NCCL_TUNER_TABLE_SHA256" not in own:
        own["NCCL_TUNER_TABLE_SHA256"] = str(facts.table and facts.table.sha256)
    try:
        DryRun(table, ranks=2, nodes=1, env={**own, "NCCL_TUNER_STRICT": "1"}).close()
    except PluginRefused as refused:
        return str(refused).rpartition(PREFIX)[2].replace(str(table), facts.table.path if facts.table else "")
    return None


def _attached(collected: Collected, name: str, file: NamedFile | None) -> Path | None:
    if file is None or file.sha256 is None:
        return None
    return collected.attachment(attachment(name, file.sha256))

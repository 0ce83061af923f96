"""Checks whether the ranks of a job would choose the same: reads a folder of records, compares kinds of ranks, and says
where they differ."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import TunerError
from tuner.base.findings import Finding, Severity
from tuner.base.nouns import Span
from tuner.base.records import json_form
from tuner.base.sizes import as_ranges, plural
from tuner.emulator.request import Request
from tuner.jobs.preflight import differences as named
from tuner.jobs.preflight.alone import ChoiceCost, DifferingPicks, all_differing_picks, cost, reach_of
from tuner.jobs.preflight.differences import RankDifference, Reach
from tuner.jobs.preflight.reading import Collected, RecordedRank, Unreadable, read
from tuner.jobs.preflight.settings import (
    Assembled,
    DescribedNodes,
    Views,
    assemble,
    goes_by_time,
    lacks_table,
    machines,
    not_exploring,
    place_of,
    places_adapters,
    refusal,
)
from tuner.scenario.notes import harmful

SEVERITIES = {
    Reach.parts: Severity.FAULT,
    Reach.messages: Severity.FAULT,
    Reach.network: Severity.FAULT,
    Reach.start: Severity.FAULT,
    Reach.exchange: Severity.FAULT,
    Reach.unknown: Severity.UNKNOWN,
    Reach.alike: Severity.UNLIKE,
    Reach.speed: Severity.UNLIKE,
    Reach.nothing: Severity.NOTE,
}
HOUR = timedelta(hours=1)
MOST_APART = 3 * HOUR  # between the first and the last record of one start


class RanksVerdict(StrEnum):
    """The verdict on all ranks; the values are the texts in the JSON."""

    same = "the same"
    differing = "not the same"
    refused = "not as asked"  # alike on all ranks, without the table or the plugin that they name
    unknown = "not known"


@dataclass(frozen=True, slots=True)
class RankKind:
    """Ranks whose records are equal: how many, on which hosts, and which node stands for their hosts."""

    name: str
    ranks: int
    first_rank: int | None
    hosts: tuple[str, ...]
    release: str | None
    node: str | None
    agrees: tuple[str, ...]
    assumed: tuple[str, ...]
    also_like: tuple[str, ...]  # machines that the record comes as near to


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why ranks of a kind do not use their decision table. If ``fails`` is true, their communicators fail at the
    start."""

    kind: str
    ranks: int
    why: str
    fails: bool


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a check of records. ``differing_picks`` has one pick per kind, in the order of ``kinds``."""

    verdict: RanksVerdict
    records: int
    expected: int | None
    missing: tuple[int, ...]
    duplicates: dict[int, tuple[str, ...]]
    unreadable: tuple[Unreadable, ...]
    kinds: tuple[RankKind, ...]
    differences: tuple[RankDifference, ...]
    differing_picks: tuple[DifferingPicks, ...]
    refused: tuple["Refusal", ...]
    cost: ChoiceCost | None = field(metadata=json_form(optional=True))
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class PreflightQuery:
    """A question about a folder of records: the calls and their sizes (nBytes; from 0: from one element), and what the
    user says about the nodes.
    """

    requests: tuple[Request, ...]
    over: Span
    nodes: DescribedNodes = field(default_factory=DescribedNodes)


@dataclass(frozen=True, slots=True)
class _Emulated:
    """The emulator's answer; ``why`` says why the emulator was not asked or cannot answer."""

    differences: tuple[RankDifference, ...]
    differing_picks: tuple[DifferingPicks, ...] = ()
    cost: ChoiceCost | None = None
    notes: tuple[Finding, ...] = ()
    why: str | None = None


def check(folder: Path, question: PreflightQuery) -> Report:
    """Checks the records of a folder. BadInput if it has none."""
    collected = read(folder)
    ranks_of_kind = Counter(rank.kind for rank in collected.ranks)
    found = named.differences(collected.kinds, collected.ranks)
    if {"NCCL_NET", "NCCL_IB_DISABLE"} & {each.what for each in found}:  # they say it by themselves
        found = [each for each in found if each.what != named.NETWORK]
    nodes = machines(collected, question.nodes)
    emulated = _emulated(collected, found, question)
    findings = [*_of_records(collected), *map(_of_difference, emulated.differences), *_of_kinds(collected)]
    findings += emulated.notes
    if lacking := not_exploring(collected):
        findings.append(Finding("preflight.not_exploring", Severity.NOTE, {"lacking": lacking}))
    if emulated.why is not None:
        findings.append(Finding("preflight.not_computed", Severity.UNKNOWN, {"why": emulated.why}))
    severities = {each.severity for each in findings}
    refused = tuple(
        Refusal(letters(number), ranks_of_kind[number], why, facts.is_strict and facts.plugin_is_own)
        for number, facts in enumerate(collected.kinds)
        if (why := refusal(collected, facts))
    )
    harmful = bool(emulated.differing_picks) or Severity.FAULT in severities
    harmful |= 0 < sum(each.fails for each in refused) < len(collected.kinds)
    return Report(
        verdict=_verdict(harmful, bool(refused), Severity.UNKNOWN in severities),
        records=len(collected.ranks),
        expected=collected.expected,
        missing=collected.missing,
        duplicates=collected.duplicates,
        unreadable=collected.unreadable,
        kinds=tuple(_kind(collected, number, taken_for) for number, taken_for in enumerate(nodes)),
        differences=emulated.differences,
        differing_picks=emulated.differing_picks,
        refused=refused,
        cost=emulated.cost,
        findings=tuple(findings),
    )


def _verdict(harmful: bool, refused: bool, unknown: bool) -> RanksVerdict:
    if harmful:
        return RanksVerdict.differing
    return RanksVerdict.refused if refused else RanksVerdict.unknown if unknown else RanksVerdict.same


def letters(number: int) -> str:
    """A kind's name: A to Z, then AA and so on."""
    return (letters(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def _kind(collected: Collected, number: int, nodes: DescribedNodes) -> RankKind:
    ranks, facts = [rank for rank in collected.ranks if rank.kind == number], collected.kinds[number]
    place = place_of(collected, facts, nodes)
    return RankKind(
        letters(number),
        len(ranks),
        ranks[0].rank,
        tuple(dict.fromkeys(rank.host for rank in ranks)),
        facts.release,
        None if place is None else place.name,
        () if place is None else place.agrees,
        () if place is None else place.assumed,
        nodes.equals,
    )


def _of_records(collected: Collected) -> Iterator[Finding]:
    """Finds why the records do not describe one job at one time with one record per rank."""
    unknown = partial(Finding, severity=Severity.UNKNOWN)
    if collected.missing:
        yield unknown("preflight.missing", facts={"ranks": list(collected.missing)})
    for rank, files in collected.duplicates.items():
        yield unknown("preflight.twice", facts={"rank": rank, "files": list(files)})
    for file in collected.unreadable:
        yield unknown("preflight.unreadable", facts={"file": file.file, "why": file.why})
    jobs = Counter(rank.job for rank in collected.ranks)
    if len(jobs) > 1:
        said = [f"{job or 'none'} ({plural(count, 'record')})" for job, count in jobs.most_common()]
        yield unknown("preflight.jobs", facts={"jobs": said})
    worlds = Counter(rank.ranks for rank in collected.ranks if rank.ranks is not None)
    if len(worlds) > 1:
        said = [f"{ranks} ({plural(count, 'record')})" for ranks, count in worlds.most_common()]
        yield unknown("preflight.worlds", facts={"ranks": said})
    times = sorted(rank.collected for rank in collected.ranks if rank.collected is not None)
    if times and (apart := times[-1] - times[0]) > MOST_APART:
        facts = {"first": f"{times[0]:%Y-%m-%d %H:%M}", "last": f"{times[-1]:%Y-%m-%d %H:%M}", "hours": apart // HOUR}
        yield unknown("preflight.ages", facts=facts)
    yield from _of_hosts(collected)


def _of_hosts(collected: Collected) -> Iterator[Finding]:
    """Finds hosts whose names contradict their records: one host with two names, or two hosts with one name."""
    names, starts = defaultdict[str, list[str]](list), defaultdict[str, set[str]](set)
    by_host = defaultdict[tuple[str, str | None], list[RecordedRank]](list)
    for rank in collected.ranks:
        by_host[rank.own_host].append(rank)
        if rank.boot is not None:
            names[rank.boot].append(rank.host)
            starts[rank.host].add(rank.boot)
    in_pods = {rank.boot for rank in collected.ranks if rank.in_pod}
    for boot, hosts in names.items():
        if len(several := sorted(set(hosts))) > 1:
            severity = Severity.NOTE if boot in in_pods else Severity.UNKNOWN
            yield Finding("preflight.two_names", severity, {"hosts": several})
    for host, boots in starts.items():
        if len(boots) > 1:
            yield Finding("preflight.one_name", Severity.UNKNOWN, {"host": host})
    for (host, _), ranks in by_host.items():
        local = Counter(rank.local_rank for rank in ranks if rank.local_rank is not None)
        if local and max(local.values()) > 1:
            yield Finding("preflight.one_name", Severity.UNKNOWN, {"host": host})
        said = max((rank.local_ranks or 0 for rank in ranks), default=0)
        if not collected.missing and said > len(ranks):
            facts = {"host": host, "records": len(ranks), "ranks": said}
            yield Finding("preflight.local_ranks", Severity.UNKNOWN, facts)


def _of_kinds(collected: Collected) -> Iterator[Finding]:
    """Findings on kinds of ranks: what is worth knowing, and what is not known."""
    note = partial(Finding, severity=Severity.NOTE)
    if len(numbers := _numbers_of_adapters(collected)) > 1:
        yield note("preflight.adapters", facts={"numbers": " or ".join(map(str, numbers))})
    for number, facts in enumerate(collected.kinds):
        kind = letters(number)
        releases = list(dict.fromkeys(library.release for library in facts.libraries if library.release))
        if len(releases) > 1:
            said = {"releases": " or ".join(releases), "taken": releases[0], "found_by": facts.libraries[0].found_by}
            yield note("preflight.libraries", facts={"kind": kind, **said})
        for line in harmful(facts.variables, None):
            yield note("preflight.variable", facts={"kind": kind, "says": line})
        if facts.tuner_plugin is not None and facts.plugin_is_of_others:
            yield note("preflight.foreign_plugin", facts={"kind": kind, "path": facts.tuner_plugin.path})
        if facts.tuner_plugin is not None and facts.plugin_is_missing and refusal(collected, facts) is None:
            yield note("preflight.no_plugin", facts={"kind": kind, "path": facts.tuner_plugin.path})
        if facts.table is not None and lacks_table(collected, facts):
            yield Finding("preflight.table_text", Severity.UNKNOWN, {"kind": kind, "path": facts.table.path})


def _of_difference(difference: RankDifference) -> Finding:
    """The finding on a difference, with the ranks that have each value, and its effect."""
    values = [
        {"value": each.value, "count": each.ranks, "ranks": as_ranges(each.numbers) if each.numbers else None}
        for each in difference.values
    ]
    least = difference.values[-1]
    facts = {"what": difference.what, "values": values, "reach": difference.reach.value, "fewest": least.value}
    several = "s" if len(least.numbers) > 1 else ""
    facts["ranks"] = f"rank{several} {as_ranges(least.numbers)}" if least.numbers else plural(least.ranks, "rank")
    return Finding(difference.why or f"preflight.{difference.reach.name}", SEVERITIES[difference.reach], facts)


def _emulated(collected: Collected, found: Sequence[RankDifference], question: PreflightQuery) -> _Emulated:
    """Asks the emulator at which sizes ranks choose differently, and what effect each difference has."""
    sorted_out = [_without_emulator(each, collected) for each in found]
    asked = [each for each in sorted_out if each.reach is Reach.unknown and each.why is None]
    try:
        assembled = assemble(collected, question.nodes)
        views = Views(assembled.hosts)
        differing_picks = all_differing_picks(views, question.requests, question.over)
        reached = {each.what: reach_of(each.what, assembled, question.requests, question.over) for each in asked}
        costs = None
        if not differing_picks and len(views.settings) > 1:
            costs = cost(views, assembled.common, question.requests)
    except TunerError as error:
        if not asked and (found or len(collected.kinds) == 1):  # else ranks differ in what only a known machine shows
            return _Emulated(tuple(sorted_out))
        return _Emulated(tuple(sorted_out), why=f"what ranks choose was not computed: {error}")
    placed = places_adapters(collected, question.nodes)
    named_reach = tuple(_with_reach(each, reached.get(each.what, each.reach), placed) for each in sorted_out)
    by_kind = tuple(_by_kind(each, views, assembled) for each in differing_picks)
    return _Emulated(named_reach, by_kind, costs, assembled.notes)


def _with_reach(difference: RankDifference, reached: Reach, places_adapters: bool) -> RankDifference:
    if difference.what in (named.ADAPTERS, named.INTERFACES) and not places_adapters and reached is Reach.nothing:
        return replace(difference, reach=Reach.unknown, why="preflight.adapters_not_placed")
    if difference.what == named.RELEASE and reached not in (Reach.start, Reach.parts):
        reached = Reach.exchange
    if difference.what == named.NETWORK_PLUGIN and reached is not Reach.parts:
        reached = Reach.network
    return replace(difference, reach=reached)


def _by_kind(differing: DifferingPicks, views: Views, assembled: Assembled) -> DifferingPicks:
    """Replaces the picks per setting by picks per kind of ranks."""
    at = {setting: number for number, setting in enumerate(views.settings)}
    return replace(differing, picks=tuple(differing.picks[at[setting]] for setting in assembled.setting_of_kind))


def _numbers_of_adapters(collected: Collected) -> list[int]:
    """The distinct numbers of adapters that kinds of ranks use, in ascending order."""
    kinds = collected.kinds
    return sorted({len(facts.used_ports(facts.settled(named.known_release(facts)))) for facts in kinds})


def _refuses_adapters(collected: Collected) -> bool:
    """Whether NCCL refuses the job because hosts have another number of adapters than rank 0's
    (NCCL_IGNORE_NET_MISMATCH=0)."""
    first = collected.kinds[0]
    nccl = named.known_release(first)
    refuses = first.settled(nccl).get("NCCL_IGNORE_NET_MISMATCH") == "0"
    counts = nccl is not None and nccl.ranks.counts_adapters
    return counts and refuses and len(_numbers_of_adapters(collected)) > 1


def _without_emulator(difference: RankDifference, collected: Collected) -> RankDifference:
    """Adds what is known about a difference without the emulator; ``reach`` and ``why`` stay as they are if the
    emulator is needed."""
    what, kinds = difference.what, collected.kinds
    releases = [nccl for facts in kinds if (nccl := named.known_release(facts)) is not None]
    if what == named.RELEASE and len({facts.release for facts in kinds} - {None}) < 2:
        return replace(difference, why="preflight.no_library")
    if what == named.RELEASE and any(nccl.ranks.checks_release for nccl in releases):
        return replace(difference, reach=Reach.start, why="preflight.releases")
    if what == named.TUNER_PLUGIN and any(facts.plugin_is_of_others for facts in kinds):
        return replace(difference, why="preflight.tuner_not_emulated")
    if what == named.ADAPTERS and _refuses_adapters(collected):
        return replace(difference, reach=Reach.start, why="preflight.adapters_refused")
    if what == "NCCL_COLLNET_ENABLE":
        return replace(difference, why="preflight.collnet")
    with_table = any(facts.plugin_is_own and facts.table is not None for facts in kinds)
    if what == named.SWITCH:
        return replace(difference, reach=Reach.parts if with_table else Reach.nothing)
    if what == named.JOB_TIME:
        return replace(difference, reach=Reach.parts if goes_by_time(collected) else Reach.nothing)
    if what == named.NEXT_TUNER:
        if not any(facts.plugin_is_own for facts in kinds):
            return replace(difference, reach=Reach.nothing)
        return replace(difference, why="preflight.tuner_not_emulated")
    networks = {facts.network(facts.settled(named.known_release(facts))) for facts in kinds}
    if what == named.NETWORK:
        return replace(difference, reach=Reach.unknown if None in networks else Reach.network, why="preflight.networks")
    alike = len(networks) == 1 and None not in networks
    if alike and what in ("NCCL_NET", "NCCL_IB_DISABLE") and any(facts.ports for facts in kinds):
        return replace(difference, reach=Reach.nothing)
    if (
        what == "NCCL_NET_PLUGIN"
        and len({facts.network_plugin and facts.network_plugin.sha256 for facts in kinds}) == 1
    ):
        return replace(difference, reach=Reach.nothing)
    if what == named.NETWORK_PLUGIN and not any(facts.cloud_tuner for facts in collected.kinds):
        return replace(difference, reach=Reach.network)
    if what in named.ASKED:
        return difference
    if not what.startswith("NCCL_"):
        return replace(difference, reach=Reach.nothing)
    known = {named.of_variable(what, nccl) for nccl in releases}
    if known == {Reach.unknown}:
        return replace(difference, why="preflight.variable_not_known")
    settled = next((each for each in known if each is not None and each is not Reach.unknown), None)
    return difference if None in known else replace(difference, reach=settled or Reach.unknown)

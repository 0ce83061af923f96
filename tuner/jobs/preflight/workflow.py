"""Whether the ranks of a job would choose the same: read a folder of records, compare kinds, say where they differ."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from tuner.base.errors import TunerError
from tuner.base.records import json_form
from tuner.base.sizes import plural
from tuner.emulator.request import Request
from tuner.jobs.preflight import differences as named
from tuner.jobs.preflight.alone import ChoiceCost, DifferingPicks, SizeBounds, all_differing_picks, cost, reach_of
from tuner.jobs.preflight.differences import RankDifference, Reach
from tuner.jobs.preflight.reading import Collected, Unreadable, read
from tuner.jobs.preflight.settings import (
    Assembled,
    DescribedNodes,
    Views,
    assemble,
    machines,
    not_exploring,
    place_of,
    refusal,
)
from tuner.scenario.notes import harmful

HARMFUL = frozenset({Reach.parts, Reach.messages, Reach.network, Reach.start, Reach.exchange})


class RanksVerdict(StrEnum):
    """Verdict on all ranks. The words are those of the JSON."""

    same = "the same"
    differing = "not the same"
    refused = "not as asked"  # alike on all ranks, without the table or the plugin that they name
    unknown = "not known"


@dataclass(frozen=True, slots=True)
class RankKind:
    """Ranks whose records are equal: how many, on which hosts, and which node their host is taken for."""

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
    """Reason why a kind of ranks goes without its decision table; ``fails``: its communicators fail at their start."""

    kind: str
    ranks: int
    why: str
    fails: bool


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a check of records. ``differing_picks`` has picks by kind, in the order of ``kinds``."""

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
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PreflightQuery:
    """Question about a folder of records: the calls and their sizes, and what the user says of the nodes."""

    requests: tuple[Request, ...]
    over: SizeBounds
    nodes: DescribedNodes = field(default_factory=DescribedNodes)


@dataclass(frozen=True, slots=True)
class _Emulated:
    """Answer of the emulator; ``why``: it was not asked, or cannot say."""

    differences: tuple[RankDifference, ...]
    differing_picks: tuple[DifferingPicks, ...] = ()
    cost: ChoiceCost | None = None
    notes: tuple[str, ...] = ()
    why: str | None = None


def check(folder: Path, question: PreflightQuery) -> Report:
    """BadInput for a folder without a record."""
    collected = read(folder)
    ranks_of_kind = Counter(rank.kind for rank in collected.ranks)
    found = named.differences(collected.kinds, ranks_of_kind)
    nodes = machines(collected, question.nodes)
    emulated = _emulated(collected, found, question)
    harmful = bool(emulated.differing_picks) or any(each.reach in HARMFUL for each in emulated.differences)
    notes = [*_notes(collected), *emulated.notes, *filter(None, (not_exploring(collected), emulated.why))]
    incomplete = bool(collected.missing or collected.duplicates or collected.unreadable or emulated.why)
    refused = tuple(
        Refusal(letters(number), ranks_of_kind[number], why, facts.is_strict and facts.plugin_is_own)
        for number, facts in enumerate(collected.kinds)
        if (why := refusal(collected, facts))
    )
    harmful |= 0 < sum(each.fails for each in refused) < len(collected.kinds)
    unknown = incomplete or any(each.reach is Reach.unknown for each in emulated.differences)
    return Report(
        verdict=_verdict(harmful, bool(refused), unknown),
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
        notes=tuple(notes),
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


def _notes(collected: Collected) -> list[str]:
    notes = []
    jobs = Counter(rank.job for rank in collected.ranks)
    if len(jobs) > 1:
        said = ", ".join(f"{job or 'none'} ({plural(count, 'record')})" for job, count in jobs.most_common())
        notes.append(f"the records are of several jobs: {said}; older ones may have been left in the folder")
    if len(numbers := _numbers_of_adapters(collected)) > 1:
        notes.append(
            f"hosts have {' or '.join(map(str, numbers))} adapters: what is sent over one that another host lacks has "
            "to reach it over others; a job hung where it did not (NVIDIA/nccl #2428)"
        )
    worlds = Counter(rank.ranks for rank in collected.ranks if rank.ranks is not None)
    if len(worlds) > 1:
        said = ", ".join(f"{ranks} ({plural(count, 'record')})" for ranks, count in worlds.most_common())
        notes.append(f"the records say different numbers of ranks: {said}")
    for number, facts in enumerate(collected.kinds):
        releases = list(dict.fromkeys(library.release for library in facts.libraries if library.release))
        if len(releases) > 1:
            first = facts.libraries[0]
            notes.append(
                f"kind {letters(number)} may load NCCL {' or '.join(releases)}: {releases[0]} is taken "
                f"({first.found_by}); collect `library` FILE says which"
            )
        notes += [f"kind {letters(number)}: {line}" for line in harmful(facts.variables, None)]
        if facts.tuner_plugin is not None and facts.plugin_is_of_others:
            notes.append(f"kind {letters(number)} loads tuner plugin {facts.tuner_plugin.path}, which is not emulated")
    return notes


def _emulated(collected: Collected, found: Sequence[RankDifference], question: PreflightQuery) -> _Emulated:
    """Ask the emulator where ranks choose differently, and what each difference reaches."""
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
    named_reach = tuple(_with_reach(each, reached.get(each.what, each.reach)) for each in sorted_out)
    by_kind = tuple(_by_kind(each, views, assembled) for each in differing_picks)
    return _Emulated(named_reach, by_kind, costs, assembled.notes)


def _with_reach(difference: RankDifference, reached: Reach) -> RankDifference:
    if difference.what == named.RELEASE and reached not in (Reach.start, Reach.parts):
        reached = Reach.exchange
    if difference.what == named.NETWORK_PLUGIN and reached is not Reach.parts:
        reached = Reach.network
    return replace(difference, reach=reached)


def _by_kind(differing: DifferingPicks, views: Views, assembled: Assembled) -> DifferingPicks:
    """The picks of each kind of ranks instead of each setting."""
    at = {setting: number for number, setting in enumerate(views.settings)}
    return replace(differing, picks=tuple(differing.picks[at[setting]] for setting in assembled.setting_of_kind))


def _numbers_of_adapters(collected: Collected) -> list[int]:
    """Numbers of adapters that kinds use, ascending, each once."""
    kinds = collected.kinds
    return sorted({len(facts.used_ports(facts.settled(named.known_release(facts)))) for facts in kinds})


def _refused_adapters(collected: Collected) -> str | None:
    """Reason why NCCL refuses hosts with other numbers of adapters than rank 0's; None where it does not."""
    first = collected.kinds[0]
    nccl = named.known_release(first)
    refuses = first.settled(nccl).get("NCCL_IGNORE_NET_MISMATCH") == "0"
    if nccl is None or not nccl.ranks.counts_adapters or not refuses or len(_numbers_of_adapters(collected)) < 2:
        return None
    return f"NCCL_IGNORE_NET_MISMATCH=0: NCCL {nccl.name} refuses ranks with other numbers of adapters"


def _without_emulator(difference: RankDifference, collected: Collected) -> RankDifference:
    """Say what is known of a difference by itself; of what the emulator is to be asked, reach and why stay unknown."""
    what = difference.what
    releases = [nccl for facts in collected.kinds if (nccl := named.known_release(facts)) is not None]
    if what == named.RELEASE and any(nccl.ranks.checks_release for nccl in releases):
        return replace(difference, reach=Reach.start, why="NCCL 2.23 and later refuse ranks of other releases")
    if what == named.TUNER_PLUGIN and any(facts.plugin_is_of_others for facts in collected.kinds):
        return replace(difference, why="a tuner plugin that is not emulated")
    if what == named.ADAPTERS and (why := _refused_adapters(collected)):
        return replace(difference, reach=Reach.start, why=why)
    if what == "NCCL_COLLNET_ENABLE":
        return replace(difference, why="CollNet on some ranks is not emulated")
    if what == named.NETWORK_PLUGIN and not any(facts.cloud_tuner for facts in collected.kinds):
        return replace(difference, reach=Reach.network)
    if what in named.ASKED:
        return difference
    if not what.startswith("NCCL_"):
        return replace(difference, reach=Reach.nothing)
    known = {named.of_variable(what, nccl) for nccl in releases}
    if known == {Reach.unknown}:
        return replace(difference, why="a variable that is not known")
    settled = next((each for each in known if each is not None and each is not Reach.unknown), None)
    return difference if None in known else replace(difference, reach=settled or Reach.unknown)

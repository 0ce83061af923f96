"""``nccl-tuner preflight``: whether all ranks of a job would choose the same, before it starts."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.base.errors import BadInput
from tuner.base.findings import Finding, Severity, explained, words
from tuner.base.names import Collective
from tuner.base.nouns import Span
from tuner.base.sizes import as_ranges, plural
from tuner.cli import options
from tuner.cli.command import FILE, Group
from tuner.cli.output import human_bytes, print_table, say, show, span, verdict
from tuner.emulator.request import Request
from tuner.jobs.preflight import collect
from tuner.jobs.preflight.differences import Reach
from tuner.jobs.preflight.settings import DescribedNodes
from tuner.jobs.preflight.workflow import PreflightQuery, RankKind, RanksVerdict, Report, check

if TYPE_CHECKING:
    from tuner.jobs.preflight.alone import DifferingPicks, RankPick
    from tuner.jobs.preflight.differences import RankDifference, Value


@click.command(name="collect", cls=options.Command)
@click.argument("folder", type=FILE, required=False, metavar="DIR")
@options.file_option("--library", "FILE", "The libnccl.so.2 that the job loads, if known.")
@options.flag("--script", "Print a single-file script that collects the same with only Python.")
def collect_command(folder: Path | None, library: Path | None, script: bool) -> None:
    """Records in DIR, a folder that all ranks share, everything that NCCL's choices on this rank depend on.

    Run it as the job runs, on every rank: in its container, with its variables. It takes the rank from the launcher
    (torchrun, mpirun, srun). No GPU is used and no library is loaded. If nccl-tuner is not installed on the hosts, copy
    the script of --script there.

    \b
    srun nccl-tuner preflight collect /shared/preflight
    nccl-tuner preflight collect --script > preflight_collect.py
    torchrun --nproc-per-node 8 preflight_collect.py /shared/preflight
    """
    if script:
        click.echo(Path(collect.__file__).read_text("utf-8"), nl=False)
        return
    if folder is None:
        raise BadInput("DIR is missing: name a folder that all ranks share, or add --script")
    made = collect.record(collect.CollectedHost(os.environ), None if library is None else str(library))
    try:
        click.echo(collect.written(str(folder), made))
    except OSError as error:
        raise BadInput(f"{error.filename or folder}: {error.strerror}") from error


MOST_SHOWN = 12  # kinds, ranges of one collective, values
WIDTH = 42


@click.command(name="check", cls=options.Command)
@click.argument("folder", type=FILE, metavar="DIR")
@options.collectives_argument
@options.option(
    "--machine", "Which machine the hosts are, if the records do not show it (nccl-tuner machines).", metavar="NAME"
)
@options.file_option("--topology", "FILE.xml", "Instead of --machine: the topology of all hosts.")
@options.range_options
@options.call_options(buffers=False, in_place=False, windows=False)
@options.json_option
def check_command(
    folder: Path,
    collectives: tuple[Collective, ...],
    machine: str | None,
    topology: Path | None,
    low: int | None,
    high: int,
    call: Request,
) -> None:
    """Says whether all ranks whose records are in DIR would choose the same for COLLECTIVES (default: all five).

    Ranks that choose differently from their peers hang, or end with "message truncated". Each kind of ranks is emulated
    with its release, variables, processor, GPUs, adapters and decision table. Exit code 1 if ranks would choose
    differently, or would run without the table that they name; 3 if the records do not tell, as ranks are missing or
    the effect of a difference is not known.

    \b
    nccl-tuner preflight check /shared/preflight
    nccl-tuner preflight check /shared/preflight allreduce --machine dgx-h100 --json
    """
    requests = tuple(replace(call, collective=collective) for collective in dict.fromkeys(collectives or Collective))
    report = check(folder, PreflightQuery(requests, Span(low or 0, high), DescribedNodes(machine, topology)))
    show(report, _print)
    sys.exit(
        {RanksVerdict.same: 0, RanksVerdict.differing: 1, RanksVerdict.refused: 1, RanksVerdict.unknown: 3}[
            report.verdict
        ]
    )


def _print(report: Report) -> None:
    expected = "" if report.expected is None else f" of {report.expected} ranks"
    say(verdict(_verdict(report), {RanksVerdict.same: True, RanksVerdict.differing: False}.get(report.verdict)))
    say(f"{report.records} records{expected}, {len(report.kinds)} kind{'s' * (len(report.kinds) > 1)} of ranks")
    for finding in report.findings:
        if finding.severity is Severity.UNKNOWN and finding.code not in OF_DIFFERENCES:
            say(" ".join(filter(None, [words(finding), explained(finding).do])))
    for refused in report.refused:
        then = (
            "their communicators fail, and other ranks wait for them"
            if refused.fails
            else "NCCL chooses by itself there"
        )
        say(f"kind {refused.kind} ({refused.ranks} ranks): {refused.why}; {then}")
    rows = [_kind_row(kind) for kind in report.kinds[:MOST_SHOWN]]
    print_table("", ("kind", "ranks", "hosts", "NCCL", "taken for"), rows)
    _print_left(len(report.kinds), "kinds")
    if report.differences:
        print_table("what differs", ("", "value", "ranks", "reaches"), _differences(report))
    for collective, ranges in groupby(report.differing_picks, key=lambda differing: differing.collective):
        _print_differing_picks(collective, list(ranges), report.kinds)
    shown = [each for each in report.findings if each.code in WITH_REASONS or _is_note(each)]
    for note in [*_taken_for(report.kinds), *map(words, shown)]:
        say(f"note: {note}")


OF_DIFFERENCES = frozenset(
    {f"preflight.{reach.name}" for reach in Reach}
    | {f"preflight.{name}" for name in ("no_library", "tuner_not_emulated", "collnet", "variable_not_known")}
    | {f"preflight.{name}" for name in ("releases", "adapters_refused", "adapters_not_placed", "networks")}
)
WITH_REASONS = OF_DIFFERENCES - {f"preflight.{reach.name}" for reach in Reach}  # the table says no more of these


def _is_note(finding: Finding) -> bool:
    return finding.severity is Severity.NOTE and finding.code not in OF_DIFFERENCES


def _lacks(report: Report) -> str:
    """A short phrase on what is missing in the records; the findings say more."""
    unknown = [each for each in report.findings if each.severity is Severity.UNKNOWN]
    differences = ", ".join(each.what for each in report.differences if each.reach is Reach.unknown)
    lacks = {
        f"ranks {as_ranges(report.missing)} are missing": report.missing,
        f"{plural(len(report.duplicates), 'rank')} with more than one record": report.duplicates,
        f"{plural(len(report.unreadable), 'file')} that cannot be read": report.unreadable,
        **{SHORT[each.code]: True for each in unknown if each.code in SHORT},
        f"it is not known what these differences affect: {differences}": differences,
    }
    return "; ".join(words for words, there in lacks.items() if there)


SHORT = {
    "preflight.jobs": "the records are of several jobs",
    "preflight.worlds": "the records say different numbers of ranks",
    "preflight.ages": "the records are hours apart",
    "preflight.two_names": "one host has several names",
    "preflight.one_name": "two hosts have one name",
    "preflight.local_ranks": "a host lacks some of its ranks",
    "preflight.table_text": "a decision table's text is missing",
    "preflight.not_computed": "the ranks' choices could not be computed",
}


def _kind_row(kind: RankKind) -> tuple[object, ...]:
    hosts = kind.hosts[0] if len(kind.hosts) == 1 else f"{kind.hosts[0]} and {len(kind.hosts) - 1} more"
    return kind.name, kind.ranks, hosts, kind.release or "-", kind.node or "not known"


def _taken_for(kinds: Sequence[RankKind]) -> Iterator[str]:
    """Sentences on facts that records do not have and that come from a machine of the catalogue, each once."""
    words = dict[str, None]()
    for kind in kinds:
        if kind.node is not None and kind.assumed:
            also = (
                f"; equally similar: {', '.join(kind.also_like)} (choose with --machine NAME)" if kind.also_like else ""
            )
            machine = kind.node.partition(" with ")[0]
            words[f"{', '.join(kind.assumed)} are taken from {machine}, as the records do not have them{also}"] = None
    yield from list(words)[:MOST_SHOWN]


def _differences(report: Report) -> Iterator[tuple[object, ...]]:
    for difference in report.differences:
        for at, value in enumerate(difference.values[:MOST_SHOWN]):
            yield _difference_row(difference, value, first=at == 0)


def _difference_row(difference: "RankDifference", value: "Value", first: bool) -> tuple[object, ...]:
    shown = value.value if len(value.value) <= WIDTH else f"{value.value[: WIDTH - 3]}..."
    where = as_ranges(value.numbers) if value.numbers and not first else ""
    ranks = f"{value.ranks}: {where}" if where and len(where) <= WIDTH // 2 else value.ranks
    return difference.what if first else "", shown, ranks, difference.reach.value if first else ""


def _print_differing_picks(
    collective: Collective, differing_picks: Sequence["DifferingPicks"], kinds: Sequence[RankKind]
) -> None:
    """Prints a column for each kind of ranks if there are two; for more kinds, a line for each set of kinds with the
    same picks."""
    alike = dict[tuple[object, ...], list[int]]()
    for kind in range(len(kinds)):
        alike.setdefault(tuple(each.picks[kind] for each in differing_picks), []).append(kind)
    columns = [(", ".join(kinds[kind].name for kind in those[:MOST_SHOWN]), those[0]) for those in alike.values()]
    together = [list(same) for _, same in groupby(differing_picks, key=lambda each: [*map(_algo_proto, each.picks)])]
    title, shown = f"{collective.name}: ranks choose differently", together[:MOST_SHOWN]
    if len(columns) == 2:
        rows = [(*_ends(same), *(_runs(same, at) for _, at in columns), len(same)) for same in shown]
        print_table(title, ("from", "to", *(f"{name} runs" for name, _ in columns), "ranges"), rows)
    else:
        lines = [
            (*(_ends(same) if first == 0 else ("", "")), name, _runs(same, at), len(same) if first == 0 else "")
            for same in shown
            for first, (name, at) in enumerate(columns)
        ]
        print_table(title, ("from", "to", "kinds", "run", "ranges"), lines)
    _print_left(len(together), "rows; --json has every range of sizes")


def _ends(same: Sequence["DifferingPicks"]) -> tuple[str, str]:
    return human_bytes(same[0].from_bytes), human_bytes(same[-1].to_bytes)


def _algo_proto(pick: "RankPick | None") -> tuple[int, int] | None:
    return None if pick is None else (pick.algorithm, pick.protocol)


def _runs(same: Sequence["DifferingPicks"], kind: int) -> str:
    """What a kind of ranks runs at these sizes: algorithm, protocol and numbers of channels; ``fails`` if the call
    fails.
    """
    picks = [pick for each in same if (pick := each.picks[kind]) is not None]
    if not picks:
        return "fails"
    return f"{picks[0].algorithm.name}/{picks[0].protocol.name} x{span([pick.channels for pick in picks])}"


def _print_left(count: int, what: str) -> None:
    if count > MOST_SHOWN:
        say(f" ... and {count - MOST_SHOWN} more {what}\n")


def _verdict(report: Report) -> str:
    if report.verdict is RanksVerdict.differing:
        return "ranks would not choose the same: the job can hang"
    if report.verdict is RanksVerdict.refused:
        return "the decision table that the ranks name would not be used"
    if report.verdict is RanksVerdict.unknown:
        return f"cannot be judged: {_lacks(report)}"
    return f"all ranks choose the same{f'; {report.cost.in_words}' if report.cost is not None else ''}"


VERBS = {
    "collect": "records everything that NCCL's choices on this rank depend on, in one JSON file",
    "check": "shows what differs between a job's ranks, and at which sizes they would choose differently",
}


@click.group(name="preflight", cls=Group, verbs=VERBS, modules="preflight")
def command() -> None:
    """Checks whether all ranks of a job would choose the same; ranks that do not can hang.

    \b
    srun nccl-tuner preflight collect /shared/preflight
    nccl-tuner preflight check /shared/preflight
    """

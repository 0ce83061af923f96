"""``nccl-tuner check``: the emulator against what really was."""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.base.errors import BadInput
from tuner.base.names import Collective, Op
from tuner.cli import options
from tuner.cli.command import FILE, Group
from tuner.cli.output import human_bytes, print_json, print_table, progress, say, show, verdict
from tuner.cli.trace_files import as_they_ran, communicators_options, count_or_part, read_files
from tuner.jobs.traces.calls import number
from tuner.machine import catalogue
from tuner.scenario import Scenario

if TYPE_CHECKING:  # with what runs libnccl, or prices a job, which the others do without
    from tuner.jobs.check_run import CheckedCall, CheckedRun
    from tuner.oracle.conformance.check_log import LogComparison
    from tuner.oracle.conformance.mismatches import MatchReport


@click.command(name="libnccl", cls=options.Command)
@options.collectives_argument
@options.communicator_options(changes=True, build=True)
@options.call_options()
@click.option("--bytes", "sizes", type=options.Sizes(), help="Sizes. [default: over 60 from 4 B to 16 GiB]")
@options.timeout_option
@options.json_option
def libnccl_command(
    collectives: tuple[Collective, ...],
    call: options.CallOptions,
    sizes: list[int] | None,
    timeout_s: float,
    as_json: bool,
    communicator: options.CommunicatorOptions,
) -> None:
    """Compares COLLECTIVES (default: all five) with libnccl, exactly. Exit code 1 if anything differs.

    Without --machine, --topology and --node: every known machine; without --nodes: 1, 2 and 4 nodes,
    and where a node has one GPU, 2 and 4.

    \b
    nccl-tuner check libnccl --nccl 2.28.9
    nccl-tuner check libnccl allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner check libnccl --node dgx-h100 --node dgx-a100:4 --nccl 2.28.9
    nccl-tuner check libnccl --machine dgx-h100 --gpus-per-node 1 --ranks-per-gpu 2 --nccl 2.32.3
    """
    given = click.get_current_context().get_parameter_source("nodes")
    nodes_given = given is click.core.ParameterSource.COMMANDLINE
    like = call.request()
    requests = [replace(like, collective=collective) for collective in collectives or Collective]
    from tuner.oracle.conformance.check import check

    reports: list[MatchReport] = []
    try:
        for scenario in _scenarios(nodes_given, communicator):
            progress(scenario.title)
            reports.append(check(scenario, requests, sizes, timeout_s))
    finally:  # what was compared before one failed is not lost
        if reports:
            (print_json if as_json else _print_report)(reports)
    sys.exit(1 if any(report.mismatches for report in reports) else 0)


def _scenarios(nodes_given: bool, given: options.CommunicatorOptions) -> Iterator[Scenario]:
    if given["node"] or given["log"]:
        yield given.scenario()
        return
    everywhere = given["machine"] is None and given["topology"] is None
    names = catalogue.names() if everywhere else [given["machine"]]
    if everywhere and given["graphs"] is not None:
        raise BadInput("--topo-graphs needs the machine it belongs to; valid: --machine NAME, --topology FILE.xml")
    for name in names:
        scenario = given.scenario(machine=name)
        if nodes_given:
            yield scenario
        else:  # one rank has nothing to pick
            yield from (each for nodes in (1, 2, 4) if (each := scenario.with_nodes(nodes)).ranks > 1)


def _print_report(reports: "list[MatchReport]") -> None:
    from tuner.oracle.conformance.check import KINDS

    say(_verdict(reports, "libnccl"))
    rows = [(report.title, *(_share(report, kind) for kind in KINDS)) for report in reports]
    totals = Counter[str]()
    matched = Counter[str]()
    for report in reports:
        totals.update(report.compared)
        matched.update(report.matched)
    rows.append(("all", *(f"{matched[kind]}/{totals[kind]}" for kind in KINDS)))
    print_table("matched / compared with libnccl", ("communicator", *KINDS), rows)
    for report in reports:
        for mismatch in report.mismatches:
            click.echo(
                f"MISMATCH {report.title}: {mismatch.what} {mismatch.where}: "
                f"emulator {mismatch.emulator}, libnccl {mismatch.libnccl}"
            )


def _verdict(reports: "list[MatchReport]", other: str) -> str:
    """The answer in a line: whether all that was compared is the same."""
    wrong = sum(len(report.mismatches) for report in reports)
    matched, compared = (
        sum(sum(counts.values()) for counts in each)
        for each in zip(*((report.matched, report.compared) for report in reports), strict=True)
    )
    if wrong:
        return verdict(f"NOT the same as {other}: {wrong} mismatch{'es' * (wrong != 1)} below", False)
    return verdict(f"the same as {other}: {matched} of {compared} values", True)


def _share(report: "MatchReport", kind: str) -> str:
    return f"{report.matched.get(kind, 0)}/{report.compared.get(kind, 0)}"


def print_log(compared: "LogComparison") -> None:
    """Prints what was compared with a log, and what could not be."""
    from tuner.oracle.conformance.check_log import KINDS

    report = compared.report
    say(_verdict([report], "the log"))
    print_table(
        "matched / compared with the log",
        ("communicator", *KINDS),
        [(report.title, *(f"{report.matched.get(kind, 0)}/{report.compared.get(kind, 0)}" for kind in KINDS))],
    )
    for mismatch in report.mismatches:
        say(f"MISMATCH {mismatch.what} {mismatch.where}: emulator {mismatch.emulator}, log {mismatch.libnccl}")
    for what, texts in (
        ("note", compared.notes),
        ("not printed", compared.missing),
        ("not compared", compared.not_compared),
    ):
        for text in texts:
            say(f"{what}: {text}")


MOST_ROWS = 32  # of calls that differ; --json has all


@click.command(name="run", cls=options.Command)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@options.communicator_options(tuner=True)
@options.call_options(in_place=False, windows=False)
@communicators_options("Compare")
@options.json_option
def run_command(
    files: tuple[Path, ...],
    call: options.CallOptions,
    ranks: int | tuple[int, ...] | None,
    communicators: tuple[str, ...],
    as_json: bool,
    communicator: options.CommunicatorOptions,
) -> None:
    """Says whether what ran, as FILEs say it, is what the emulator picks for the same calls.

    Algorithm and protocol are said by NCCL Inspector, NCCL's example profiler plugin and NCCL's logs; channels and
    threads by the kernels in traces of PyTorch's profiler and Nsight Systems, and by the former where they have them.
    Compared is what a FILE says; calls that were launched together with others are not. Exit code 1 if anything
    differs, 2 if nothing can be compared.

    \b
    nccl-tuner check run nccl-inspector-node01-pid7.log --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner check run trace.json.gz --log nccl.log --json
    """
    from tuner.jobs.check_run import check as check_run
    from tuner.jobs.workload import job

    count, part = count_or_part(ranks)
    communicator = communicator.but(ranks=part)
    described = communicator.scenario()
    wanted = replace(
        job.wanted_of(described, count),
        communicators=communicators,
        dtype=call.dtype,
        op=call.op,
        buffers=call.buffers,
    )
    lists = read_files(files, described.ranks)
    described = as_they_ran(lists, communicator, described, "compared")
    checked = check_run(lists, described, wanted)
    show(checked, as_json, _print_run)
    sys.exit(1 if checked.differing else 0)


def _print_run(checked: "CheckedRun") -> None:
    says = ", ".join(f"{what} of {number(calls)}" for what, calls in checked.says.items() if calls)
    calls = f"{number(checked.agreeing_calls)} of {number(checked.compared_calls)} calls"
    ran = f"{checked.communicator}: {calls} ran as the emulator picks"
    say(f"{verdict(ran, not checked.differing)}; the files say {says}")
    if checked.differing:
        columns = ("collective", "type", "size", "calls", "ran", "the emulator picks", "other")
        print_table("what ran otherwise", columns, map(_row, checked.differing[:MOST_ROWS]))
        if len(checked.differing) > MOST_ROWS:
            say(f"and {len(checked.differing) - MOST_ROWS} more kinds of calls: --json")
    for left in checked.not_compared:
        say(f"not compared: {number(left.calls)} calls: {left.reason}")
    for note in checked.notes:
        say(f"note: {note}")


def _row(one: "CheckedCall") -> tuple[object, ...]:
    op = "" if one.op is Op.sum else f" {one.op.name}"
    size = human_bytes(one.bytes) if one.to_bytes is None else f"from {human_bytes(one.bytes)}"
    picks = " or ".join(map(str, one.emulated)) or "nothing: none can run"
    return (
        one.collective.name,
        f"{one.dtype.name}{op}",
        size,
        number(one.calls),
        one.executed_in_words,
        picks,
        ", ".join(one.differs),
    )


VERBS = {
    "libnccl": "against the real library: every cell, pick, channel and thread",
    "run": "against what a job's traces and counters say that ran",
}


@click.group(
    name="check",
    cls=Group,
    verbs=VERBS,
    modules="check",
    default="libnccl",
)
def command() -> None:
    """Compares the emulator, exactly. Exit code 1 if anything differs. 'check' alone means 'check libnccl'.

    'log --check' compares it with a log.

    \b
    nccl-tuner check allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner check run trace.json.gz --log nccl.log
    """

"""``nccl-tuner check``: compares the emulator with libnccl, or with what a job ran."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.base.errors import BadInput
from tuner.base.names import Collective, Op
from tuner.cli import options
from tuner.cli.command import Params, excludes, has
from tuner.cli.communicator_options import LIBNCCL
from tuner.cli.engine import EngineOptions, engine_options, show_comparison
from tuner.cli.output import (
    human_bytes,
    print_table,
    progress,
    say,
    show,
    verdict,
)
from tuner.cli.trace_files import as_they_ran, communicators_options, count_or_part, read_files
from tuner.emulator.request import Request
from tuner.jobs.traces.calls import number
from tuner.machine import catalogue
from tuner.scenario import Scenario

if TYPE_CHECKING:  # with what runs libnccl, or prices a job, which the others do without
    from tuner.jobs.check_run import CheckedCall, CheckedRun
    from tuner.oracle.conformance.check_log import LogComparison
    from tuner.oracle.conformance.mismatches import MatchReport


RAN = "What a job ran"
OF_LIBNCCL = ("changes", "sizes", "timeout_s", "build", "windows", "window_flags", "in_place")
OF_FILES = ("tuner", "communicators")


class CollectiveOrFile(click.ParamType):  # type: ignore[type-arg]
    """A click type: the name of a collective, or else an existing file."""

    name = "collective"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return options.Named(Collective, "collective").convert(value, param, ctx)
        except BadInput:
            if not (path := Path(value)).exists() and path.name == value != "-" and not path.suffix:
                raise
            return path


def _of_files(params: Params) -> bool:
    return any(isinstance(word, Path) for word in params["words"])


def _of_libnccl(params: Params) -> bool:
    return not params["engine"] and not _of_files(params)


RULES = (
    excludes("--engine", "ranks", "communicators", "timeout_s", "tuner", when=has("engine")),
    excludes("FILEs, which say what ran", *OF_LIBNCCL, when=lambda params: not params["engine"] and _of_files(params)),
    excludes(
        "libnccl, which is asked without a tuner",
        "tuner",
        when=_of_libnccl,
        instead="use 'plugin lint TABLE --libnccl' to ask libnccl with a decision table, or 'pick --tuner' to ask the "
        "emulator with a tuner",
    ),
    excludes("libnccl", *OF_FILES, when=_of_libnccl, instead="these options only apply to FILEs"),
)


@click.command(name="check", cls=options.Command, rules=RULES, no_args_is_help=True)
@options.under(LIBNCCL, "--timeout")
@options.under(RAN, "--ranks", "--communicator")
@click.argument("words", nargs=-1, type=CollectiveOrFile(), metavar="[COLLECTIVE|FILE]...")
@options.communicator_options(changes=True, build=True, tuner=True)
@options.call_options()
@options.sizes_option("Sizes. [default: over 60 from 4 B to 16 GiB]")
@options.timeout_option
@communicators_options("Compare")
@engine_options(untabled=True)
@options.json_option
def command(
    words: tuple[Collective | Path, ...],
    call: Request,
    sizes: list[int] | None,
    timeout_s: float,
    ranks: int | tuple[int, ...] | None,
    communicators: tuple[str, ...],
    engine: EngineOptions | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Compares the emulator's answers exactly with libnccl's for COLLECTIVES (default: all five), or with what a job
    ran according to FILEs.

    Exit code 1 if anything differs. Without --machine, --topology and --node, every known machine is compared; without
    --nodes, 1, 2 and 4 nodes are (2 and 4 if a node has one GPU).

    NCCL Inspector, NCCL's example profiler plugin and NCCL's logs say which algorithm and protocol ran, some also
    channels and threads; traces of PyTorch's profiler and Nsight Systems show channels and threads by their kernels.
    Whatever a FILE says is compared, except for calls that were launched together with others. Exit code 3 if nothing
    can be compared. 'log --check' compares with a log.

    \b
    nccl-tuner check --nccl 2.28.9
    nccl-tuner check allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner check trace.json.gz --log nccl.log --json
    nccl-tuner check --engine vllm@0.33.0 --machine dgx-h100
    nccl-tuner check nccl-inspector-node01-pid7.log --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner check --node dgx-h100 --node dgx-a100:4 --nccl 2.28.9
    nccl-tuner check --machine dgx-h100 --gpus-per-node 1 --ranks-per-gpu 2 --nccl 2.32.3
    """
    if engine is not None:
        if words not in ((), (Collective.AllReduce,)):
            raise BadInput("--engine only checks which implementation carries an AllReduce: check --engine ENGINE")
        show_comparison(engine.group(communicator, engine.names[0]), sizes)
        return
    files = [word for word in words if isinstance(word, Path)]
    collectives = [word for word in words if isinstance(word, Collective)]
    if files and collectives:
        raise BadInput(
            f"{collectives[0].name} beside {files[0]}: name either COLLECTIVEs, or FILEs, which already say which "
            "calls ran"
        )
    if files:
        _check_files(files, call, ranks, communicators, communicator)
        return
    if isinstance(ranks, int):
        raise BadInput(
            f"--ranks {ranks}: a number of ranks only applies to FILEs; to compare with libnccl, give ranges of "
            "ranks, such as 0-7:2"
        )
    _check_libnccl(collectives, call, sizes, timeout_s, communicator.but(ranks=ranks).without("tuner"))


def _check_libnccl(
    collectives: Sequence[Collective],
    call: Request,
    sizes: list[int] | None,
    timeout_s: float,
    communicator: options.CommunicatorOptions,
) -> None:
    like = call
    requests = [replace(like, collective=collective) for collective in collectives or Collective]
    from tuner.oracle.conformance.check import check

    reports: list[MatchReport] = []
    try:
        for scenario in _scenarios(options.is_given("nodes"), communicator):
            progress(scenario.title)
            reports.append(check(scenario, requests, sizes, timeout_s))
    finally:  # what was compared before one failed is not lost
        if reports:
            show(reports, _print_report, several="reports")
    sys.exit(1 if any(report.mismatches for report in reports) else 0)


def _scenarios(nodes_given: bool, given: options.CommunicatorOptions) -> Iterator[Scenario]:
    if given["node"] or given["log"]:
        yield given.scenario()
        return
    everywhere = given["machine"] is None and given["topology"] is None
    names = catalogue.names() if everywhere else [given["machine"]]
    if everywhere and given["graphs"] is not None:
        raise BadInput(
            "--topo-graphs needs the machine that the graphs belong to: add --machine NAME or --topology FILE.xml"
        )
    for name in names:
        scenario = given.scenario(machine=name)
        if nodes_given:
            yield scenario
        else:  # one rank has nothing to pick
            counts = (1, 2, 4) if scenario.resolve().own.topology.nets else (1,)
            yield from (each for nodes in counts if (each := scenario.with_nodes(nodes)).ranks > 1)


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
    """The answer in one line: whether everything that was compared is the same."""
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
    """Prints what was compared with a log, and what could not be compared."""
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


def _check_files(
    files: Sequence[Path],
    call: Request,
    ranks: int | tuple[int, ...] | None,
    communicators: tuple[str, ...],
    communicator: options.CommunicatorOptions,
) -> None:
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
    show(checked, _print_run)
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
    picks = one.emulated_in_words or "nothing: no algorithm can run"
    return (
        one.collective.name,
        f"{one.dtype.name}{op}",
        size,
        number(one.calls),
        one.executed_in_words,
        picks,
        ", ".join(one.differs),
    )

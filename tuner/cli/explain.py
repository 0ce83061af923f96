"""``nccl-tuner explain``: every number of a pick."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.answers.explain import Explanation, Slower, explain, with_times
from tuner.answers.symmetric import WindowExplanation, explain_window
from tuner.base.errors import BadInput
from tuner.base.findings import words
from tuner.base.names import Algorithm, Buffers, Collective, Protocol
from tuner.base.numerics import is_time
from tuner.base.trace import TraceStep
from tuner.cli import options
from tuner.cli.command import excludes, has
from tuner.cli.engine import EngineOptions, engine_options, show_story
from tuner.cli.output import human_bytes, json_wanted, number, print_table, say, shown_as_json
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.answers.calibrated import CalibrationUsed, TimesWanted


RULES = [excludes("--engine", "time", "calibration", "tuner", when=has("engine"))]
COLUMNS = ("kernel", "CTAs", "NCCL us", "with CTAs counted us")


def show(title: str, explanation: WindowExplanation) -> None:
    """Prints an explanation as text and as a table; the kernel that NCCL prefers comes first."""
    taken_by, classic = explanation.taken_by, explanation.classic
    if taken_by is None:
        launch = f"{explanation.blocks} channels, {explanation.threads} threads"
        say(f"{title}:\nthe classic path, {launch}\n")
    elif explanation.blocks:
        say(f"{title}:\n{taken_by}, {explanation.blocks} CTAs, {explanation.threads} threads\n")
    else:
        say(f"{title}:\n{taken_by}: no kernel runs, and NCCL models no time\n")
    if explanation.kernels:
        rows = [(one.kernel, one.blocks, f"{one.time_us:.2f}", f"{one.score_us:.2f}") for one in explanation.kernels]
        print_table("symmetric kernels that can run the call, by NCCL's model", COLUMNS, rows)
    else:
        click.echo("no symmetric kernel can run the call")
    if classic is not None:
        launch = f"{classic.channels} channels, {classic.threads} threads, {classic.time_us:.2f} us"
        say(
            f"on the classic path (algorithm and protocol): {classic.name}, {launch} by NCCL's model of algorithms, "
            "which NCCL does not compare with that of symmetric kernels"
        )


def show_table(title: str, explanations: Sequence[WindowExplanation]) -> None:
    """Prints one table per collective, with a row per kernel and a column per size; the kernel that runs is marked."""
    for collective, alike in groupby(explanations, lambda each: each.collective):
        of_one = list(alike)
        names = dict.fromkeys(kernel.kernel for each in of_one for kernel in each.kernels)
        rows = [(name, *(_cell(each, name) for each in of_one)) for name in sorted(names)]
        rows += [("runs", *map(_runs, of_one)), ("without windows", *map(_classic, of_one))]
        print_table(f"{collective.name} on {title}", ("kernel", *(human_bytes(each.bytes) for each in of_one)), rows)
    say(MARKS)


MARKS = (
    "A cell has the time in us by NCCL's model of symmetric kernels, and the number of CTAs that this model chooses; "
    "* marks the kernel that runs, which has the lowest time after NCCL's surcharge for each CTA. The row 'without "
    "windows' is by NCCL's model of algorithms, which NCCL does not compare with the other."
)


def _cell(each: WindowExplanation, name: str) -> str:
    found = [kernel for kernel in each.kernels if kernel.kernel == name]
    if not found:
        return "-"
    marked = " *" if each.taken_by is not None and each.taken_by.endswith(f" {name}") else ""
    return f"{found[0].time_us:.2f} x{found[0].blocks}{marked}"


def _runs(each: WindowExplanation) -> str:
    if each.taken_by is None:
        return "classic path"
    return f"* x{each.blocks}" if each.blocks else each.taken_by


def _classic(each: WindowExplanation) -> str:
    return "-" if each.classic is None else f"{each.classic.name} {each.classic.time_us:.2f}"


@click.command(name="explain", cls=options.Command, rules=RULES)
@options.collective_argument
@options.option(
    "--bytes",
    "size",
    "NCCL's nBytes: count x type size, times the ranks for AllGather and ReduceScatter; 64K is 65536.",
    type=options.size_bytes,
    required=True,
    metavar="N",
)
@engine_options()
@options.question(times="nccl")
def command(
    collective: Collective, size: int, engine: EngineOptions | None, asked: options.CommunicatorQuestion
) -> None:
    """Explains what NCCL picks for COLLECTIVE: how each number is computed, step by step, and why the other
    combinations lose.

    \b
    nccl-tuner explain allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 1M
    nccl-tuner explain allreduce --machine dgx-h100 --engine vllm@0.33.0 --dtype bfloat16 --bytes 16M
    """
    if engine is not None:
        _explain_engine(engine, asked, collective, size)
        return
    log = asked.communicator["log"]
    if log and not json_wanted():
        _print_log(Path(log), asked.communicator["log_communicator"])
    described, request = asked.scenario(), replace(asked.call, collective=collective)
    options.note_call(described, request)
    if Selection(described.communicator()).may_leave_classic_path(request):
        _explain_off_classic_path(described, request, size, asked.times)
        return
    explanation = explain(described, request, size)
    if asked.times is not None:
        explanation = with_times(explanation, described, request, asked.times)
    if not shown_as_json(explanation):
        _print(f"{collective.name} of {human_bytes(size)} on {described.title}", explanation)


def _explain_engine(
    engine: EngineOptions, asked: options.CommunicatorQuestion, collective: Collective, size: int
) -> None:
    """Explains which of the engine's implementations carries the call, and if it is NCCL, how NCCL picks."""
    group = engine.group(asked.communicator, engine.names[0])
    request = replace(asked.call, collective=collective)
    call = show_story(group, request, size)
    carrier = group.release.named(call.carrier)
    found: Explanation | WindowExplanation | None = None
    if carrier.nccl:
        found = (
            explain_window(group.nccls_scenario, replace(request, buffers=Buffers.window), size)
            if carrier.windows
            else explain(group.nccls_scenario, request, size)
        )
    if shown_as_json({"engine": group.release.name, "call": call, "explanation": found}):
        return
    title = f"{collective.name} of {human_bytes(size)} on {group.nccls_scenario.title}"
    if isinstance(found, WindowExplanation):
        show(title, found)
    elif found is not None:
        say()
        _print(title, found)


def _print_log(file: Path, name: str | None) -> None:
    """Prints the log's own answers first: they need no graphs, so they appear even if nothing else can be answered."""
    from tuner.scenario.logs import importer
    from tuner.scenario.logs.imported import LogAdditions

    found = importer.read(file, LogAdditions(communicator=name)).evidence.findings
    if found:
        click.echo("\n".join(["What the log shows", "", *(f"  - {words(each)}" for each in found), ""]))


def _explain_off_classic_path(scenario: Scenario, request: Request, size: int, times: "TimesWanted | None") -> None:
    if times is not None:
        raise BadInput(
            "remove --time and --calibration: no times were measured for calls that symmetric kernels may run"
        )
    explanation = explain_window(scenario, request, size)
    if shown_as_json(explanation):
        return
    show(f"{request.collective.name} of {human_bytes(size)} on {scenario.title}", explanation)


def _print(title: str, explanation: Explanation) -> None:
    pick, holds = explanation.pick, explanation.holds
    say(
        f"{title}:\n"
        f"{pick.name}, {pick.channels} channels, {pick.threads} threads, {_us(pick.time_us)} by NCCL's model; "
        f"the same algorithm and protocol from {human_bytes(holds.from_bytes)} to {human_bytes(holds.to_bytes)}\n"
    )
    word = explanation.tuner_word
    for sentence in filter(None, (word and word.sentence, explanation.domains, explanation.split_hosts)):
        say(f"{sentence}\n")
    changing = [step for step in explanation.steps if step.changes]
    print_table(f"how {pick.name} comes to its numbers", STEPS, map(_step_row, changing))
    active = {step.name for step in changing}
    if idle := list(dict.fromkeys(step.name for step in explanation.steps if step.name not in active)):
        say(f"rules that changed nothing here: {', '.join(idle)}")
    sources = list(dict.fromkeys(step.source for step in changing if step.source))
    say("".join(f"source: {source}\n" for source in sources))
    if explanation.slower:
        print_table("other combinations that the call may use", OTHERS, map(_other_row, explanation.slower))
    missing = [(_name(other.algorithm, other.protocol), other.reason) for other in explanation.unavailable]
    if missing:
        print_table("combinations that the call may not use", ("combination", "because"), missing)
    if explanation.calibration is not None:
        _print_calibrated(explanation, explanation.calibration)


def _print_calibrated(explanation: Explanation, used: "CalibrationUsed") -> None:
    from tuner.cli import times

    if explanation.calibrated:
        rows = [
            (name, times.central(time), times.interval(time), "no" if name in used.not_measured else "yes")
            for name, time in explanation.calibrated.items()
        ]
        columns = ("combination", "calibrated us", f"{times.INTERVAL} us", "measured")
        print_table("calibrated times of the combinations (NCCL does not use them to pick)", columns, rows)
    say(times.whose(used))


STEPS = ("quantity", "rule", "before", "after", "unit", "meaning")
OTHERS = ("combination", "latency us", "bandwidth GB/s", "NCCL us", "slower by us", "slower by")


def _step_row(step: TraceStep) -> tuple[object, ...]:
    return step.quantity, step.name, _short(step.before), _short(step.after), step.unit, step.says


def _other_row(other: Slower) -> tuple[object, ...]:
    return (
        _name(other.algorithm, other.protocol),
        f"{other.latency_us:.2f}",
        f"{other.bandwidth_gbs:.3f}",
        number(other.time_us, 2),
        f"{other.slower_us:.2f}" if is_time(other.time_us) else "-",
        f"{other.slower_percent:.1f} %" if is_time(other.time_us) else "only if forced",
    )


def _us(time_us: float) -> str:
    return f"{time_us:.2f} us" if is_time(time_us) else "only picked if forced (no time)"


def _name(algorithm: Algorithm, protocol: Protocol) -> str:
    return f"{algorithm.name}/{protocol.name}"


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"

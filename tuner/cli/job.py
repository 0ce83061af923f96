"""``nccl-tuner job``: collectives of a job, measured while it runs."""

import hashlib
import shlex
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import click

from tuner import release
from tuner.base.errors import BadInput, did_you_mean
from tuner.cli import options
from tuner.cli.command import FILE, Group
from tuner.cli.communicator_options import release_option
from tuner.cli.output import human_bytes, plural, print_table, say, show, shown_as_json, verdict
from tuner.jobs.inside import decide, joined, plan, report
from tuner.jobs.inside.steps import read_steps
from tuner.machine import catalogue
from tuner.plugin.table.parse import from_text, to_text, write
from tuner.release.variables import VariableReading, asked_of_readings, in_library, variable_readings
from tuner.scenario import Scenario
from tuner.scenario.describe import describe
from tuner.times.measured.samples import Writer

MOST_SHOWN = 20  # kinds of calls, and stragglers
MOST_ARMS = 30
COLUMNS = ("ranks", "call", "size", "executed", "calls", "us", "+-", "waiting")


@click.command(name="read", cls=options.Command)
@click.argument("folder", type=FILE, metavar="DIR")
@options.option("--machine", "The machine that the job ran on; it is recorded in the file of --out.", metavar="NAME")
@options.file_option(
    "-o",
    "--out",
    "FILE.jsonl",
    "Write the measured times to this file in the format of 'measure', for verify, fit, accept and decide.",
)
@options.file_option("--parquet", "OUT", "Write every joined call to this folder, as partitioned Parquet.")
@options.json_option
def read_command(folder: Path, machine: str | None, out: Path | None, parquet: Path | None) -> None:
    """Joins the files of all ranks in DIR, the folder that NCCL_TUNER_JOB named while the job ran.

    The transfer time of a call is its shortest time over the ranks; the rest of a rank's time is waiting for the last
    rank. Exit code 1 if ranks ran different calls, 3 if no call has a record of every rank.

    \b
    nccl-tuner job read /shared/job
    nccl-tuner job read /shared/job --machine dgx-h100 --out job.jsonl
    """
    if out is not None and out.exists() and out.stat().st_size:
        raise BadInput(f"{out} exists already: name another file")
    files = joined.read_folder(folder)
    calls: Iterable[joined.JoinedCalls] = joined.joined(files)
    if parquet is not None:
        calls = report.write_parquet(parquet, calls)
    if out is not None:
        calls = list(calls)
        measured = report.measurements(calls, None if machine is None else scenario_of(machine, files))
        with Writer(out, measured.header) as writer:
            for block in measured.blocks:
                writer.add(block)
    found = report.report(files, calls)
    show(found, _print_read)
    sys.exit(1 if found.mismatched else 3 if not found.calls else 0)


def say_left_out(files: joined.JobFolder) -> None:
    """Prints on stderr what was left out of a job's files, and which calls have no time."""
    notes = list(files.notes)
    for note in notes[:MOST_SHOWN]:
        say(f"note: {note}", err=True)
    if len(notes) > MOST_SHOWN:
        say(f"note: and {len(notes) - MOST_SHOWN} more", err=True)


def scenario_of(machine: str, files: joined.JobFolder) -> Scenario:
    """A scenario for the communicator with the most time, on nodes of this machine. BadInput if there is none;
    UnknownMachine."""
    most = joined.largest(files)
    nodes = most.nodes or 1
    release = files.releases[0] if files.releases else None
    of_node, known = most.ranks // nodes, catalogue.load(machine)
    if known.trays:
        return describe(machine=machine, nodes=nodes, trays=max(1, of_node // known.gpus_per_node), nccl=release)
    return describe(machine=machine, nodes=nodes, gpus_per_node=of_node, nccl=release)


def _print_read(found: report.JobReport) -> None:
    if found.mismatched:
        say(verdict(f"ranks ran different things in {plural(found.mismatched, 'call')}", False))
    elif not found.calls:
        say(verdict("no call has a time" if found.untimed else "no call has a record of every rank", None))
    else:
        say(verdict(f"{100 * found.waiting:.0f} % of the time of collectives is waiting for the last rank", True))
    for late in found.stragglers[:MOST_SHOWN]:
        say(
            f"straggler: {late.name} came last in {100 * late.last / late.calls:.0f} % of {late.calls} calls, where "
            f"chance alone would give {100 * late.share:.1f} %; the other ranks waited {late.waiting_s:.3g} s in these "
            "calls"
        )
    releases = f", NCCL {', '.join(found.releases)}" if found.releases else ""
    say(
        f"{plural(found.processes, 'process').replace('processs', 'processes')}, "
        f"{plural(found.communicators, 'communicator')}, {plural(found.calls, 'call')}{releases}: "
        f"{found.transfer_s:.3g} s of transfer, {found.waiting_s:.3g} s of waiting, over all ranks"
    )
    rows = [
        (
            row.ranks,
            row.call.collective.name,
            human_bytes(row.call.bytes),
            row.call.executed or "-",
            row.calls,
            f"{row.transfer_us:.1f}",
            f"{row.spread_us:.1f}",
            f"{100 * row.waiting:.0f} %",
        )
        for row in found.rows[:MOST_SHOWN]
    ]
    if rows:
        print_table("", COLUMNS, rows)
    if len(found.rows) > MOST_SHOWN:
        say(f"and {len(found.rows) - MOST_SHOWN} more kinds of calls, which take less time")
    for note in found.notes:
        say(f"note: {note}")


@click.command(name="plan", cls=options.Command)
@click.argument("folder", type=FILE, metavar="DIR")
@options.option("--machine", "The machine of the job.", metavar="NAME", required=True)
@options.out_option("TABLE", "The table to write.")
@options.option(
    "--most-factor",
    "Leave out arms that are predicted to take more than this many times as long as the current choice.",
    type=click.FloatRange(1.0, 100.0),
    default=plan.MOST_FACTOR,
)
@options.steps_options
@options.json_option
def plan_command(folder: Path, machine: str, out: Path, most_factor: float, steps: Path | None, name: str) -> None:
    """Writes a table of arms (choices to try) for the calls that take most time in the job of DIR, and says what trying
    them costs.

    Each call gets NCCL's own choice and up to three others that calibrated times (or, if there are none, NCCL's model)
    predict to take at most 1.5 times as long. The share of calls that try an arm is set so that exploring costs at most
    1 % of the time in collectives, by prediction or, if the job explores already, by its measured blocks. With --steps,
    blocks are long enough for 'decide' to see an arm's effect on the steps.

    \b
    nccl-tuner job plan /shared/job --machine dgx-h100 --out explore.table
    """
    files = joined.read_folder(folder)
    try:
        source = {"explores": f"the calls recorded in {folder}"}
        ended = None if steps is None else read_steps(steps, name)
        found = plan.plan(joined.joined(files), scenario_of(machine, files), source, most_factor, ended)
    finally:
        say_left_out(files)
    from_text(to_text(found.table))  # what its own reader refuses is not written
    write(out, found.table)
    if shown_as_json(found):
        return
    say(
        verdict(f"{plural(len(found.calls), 'row')} in {out}: ", True)
        + f"exploring is predicted to cost {100 * found.cost:.2g} % of the time in collectives, "
        f"{100 * found.cost_of_job:.2g} % of the job's"
    )
    if found.cost_interval is None:
        say(f"the error of {found.model} is not known, so the cost may be much higher or lower")
    else:
        low, high = (100 * end for end in found.cost_interval)
        say(f"90 % interval of the cost: {low:.2g} to {high:.2g} % of the time in collectives")
    rows = [
        (
            call.point.collective.name,
            human_bytes(call.point.bytes),
            f"{100 * call.share:.0f} %",
            f"{call.usual.algorithm.name}/{call.usual.protocol.name}",
            ", ".join(f"{each.arm} {each.factor:.2f}" for each in call.arms),
        )
        for call in found.calls
    ]
    print_table("", ("call", "size", "time", "now", "arms, and how many times as long"), rows)
    say(f"by {found.model}")
    blocks = {call.point.collective.name: call.block for call in found.calls}
    said = ", ".join(f"{block} calls of {collective}" for collective, block in sorted(blocks.items()))
    say(f"one block in {found.every} runs an arm ({said}); exploring ends after {found.days:.2g} days")


READ = {
    "each": "at each communicator",
    "once": "once a process",
    "neither": "in part at each communicator",
    "unseen": "not known: no value tried had an effect",
}


@click.command(name="variables", cls=options.Command)
@click.argument("variables", nargs=-1, metavar="[NAME]...")
@release_option("NCCL release. [default: the newest]")
@options.json_option
def variables_command(variables: tuple[str, ...], nccl: str | None) -> None:
    """Says which of NCCL's variables still affect a new communicator if a process sets them while it runs.

    Shows all variables that change what NCCL picks or launches, or only each NAME. NCCL reads most of them once in a
    process, at its first communicator or call; a value that is set later (setenv, os.environ) changes nothing. The
    answers come from the real libnccl, with two communicators in one process.

    Exit code 1 if a NAME is only read once, 3 if it is not known.

    \b
    nccl-tuner job variables --nccl 2.28.9
    nccl-tuner job variables NCCL_ALGO NCCL_MAX_NCHANNELS --nccl 2.28.9
    """
    name = release.load(nccl or release.names()[-1]).name
    found = variable_readings(name)
    known = {one.variable: one for one in found}
    unknown = [each for each in variables if each not in known]
    for each in unknown:
        near = did_you_mean(each, list(known))
        why = (
            "the release's libnccl does not know this name"
            if each not in in_library(name)
            else "this variable is not among those that change a pick"
        )
        say(f"{each}: {why}{near}", err=True)
    if variables:
        found = [known[each] for each in dict.fromkeys(variables) if each in known]
    asked = asked_of_readings()
    if not shown_as_json({"release": name, "compared": name in asked, "variables": found}):
        _print_variables(name, found, whole=not variables)
        if name not in asked:
            say(f"NCCL {name} itself was not measured: the releases before and after it agree on this")
    if variables:
        reads = {one.read for one in found}
        sys.exit(1 if "once" in reads else 3 if unknown or reads & {"unseen", "neither"} else 0)


def _print_variables(name: str, found: Sequence[VariableReading], whole: bool) -> None:
    again = [one for one in found if one.read == "each"]
    if whole:
        say(f"NCCL {name}: a new communicator of a running process reads {len(again)} of these {len(found)} again")
    elif found:
        once = [one.variable for one in found if one.read == "once"]
        if once:
            say(verdict(f"no: set {', '.join(once)} before the process starts", False))
        elif len(again) == len(found):
            say(verdict("yes: a new communicator reads it again", True))
        else:
            say(
                verdict(
                    "cannot be judged: none of the tried values had an effect, or a new communicator only reads the "
                    "variable in part",
                    None,
                )
            )
    rows = [(one.variable, READ[one.read], "" if one.default is None else one.default) for one in found]
    if rows:
        print_table("", ("variable", "read", "default"), rows)


def decide_in_job(folders: Sequence[Path], out: Path, steps: Path | None, name: str) -> None:
    """Judges the arms that the job explored, writes a table of those that stay, and exits with the verdict's code."""
    if steps is not None and len(folders) > 1:
        raise BadInput("--steps has the steps of a single start of a job: give one DIR")
    files = [joined.read_folder(folder) for folder in folders]
    source = {"from": "what " + ", ".join(map(str, folders)) + " measured in the job"}
    try:
        calls = chain.from_iterable(map(joined.joined, files))
        found = decide.decide(calls, source, None if steps is None else read_steps(steps, name))
    finally:
        for each in files:
            say_left_out(each)
    if found.kept:
        from_text(to_text(found.table))  # what its own reader refuses is not written
        write(out, found.table)
    show(found, _print_decided, out)
    sys.exit(0 if found.kept else 1 if any(arm.judged for arm in found.arms) else 3)


def _print_decided(found: decide.JobDecision, out: Path) -> None:
    if found.kept:
        saved = sum(arm.saved_s for arm in found.kept)
        rows = plural(len(found.table.decisions), "row")
        say(verdict(f"{rows} in {out}: {saved:.3g} s a day less in collectives, on each rank", True))
        for arm in found.kept:
            if arm.job_saved_s is not None and arm.job is not None:
                low, high = (100 * share for share in arm.job.interval)
                say(
                    f"{arm.point.collective.name} of {human_bytes(arm.point.bytes)}, {arm.arm}: steps are {low:.2g} to "
                    f"{high:.2g} % faster, {arm.job_saved_s:.3g} s a day"
                )
    elif any(arm.judged for arm in found.arms):
        say(verdict("no arm is faster, so NCCL's own choices stay", False))
    else:
        say(verdict("no arm can be judged", None))
    shown = [
        (
            arm.ranks,
            arm.point.collective.name,
            human_bytes(arm.point.bytes),
            arm.usual,
            arm.arm,
            f"{100 * arm.found.gain:.1f} %",
            f"{100 * arm.found.interval[0]:.1f} to {100 * arm.found.interval[1]:.1f} %" if arm.judged else "-",
            "-" if arm.job is None else f"{100 * arm.job.gain:.1f} %",
            arm.why_not or "stays",
        )
        for arm in found.arms[:MOST_ARMS]
    ]
    print_table("", ("ranks", "call", "size", "now", "arm", "gain", "95 %", "job", "verdict"), shown)
    more = "longer" if found.cost > 0 else "shorter"
    say(f"exploring made the time in collectives {100 * abs(found.cost):.2g} % {more}")
    if found.kept:
        say("start the job again with")  # whole lines, to be copied
        click.echo(f"export NCCL_TUNER_TABLE={shlex.quote(str(out.resolve()))}")
        click.echo(f"export NCCL_TUNER_TABLE_SHA256={hashlib.sha256(out.read_bytes()).hexdigest()}")


VERBS = {
    "read": "joins what a job's ranks measured: transfer times, waiting, stragglers",
    "plan": "writes a table of choices (arms) that the job tries while it runs",
    "variables": "says which NCCL variables still work if a running process sets them",
}


@click.group(name="job", cls=Group, verbs=VERBS, modules="job")
def command() -> None:
    """Reads and uses times of a job's collectives, which the profiler in the tuner plugin measures while the job runs.

    \b
    export NCCL_PROFILER_PLUGIN=$NCCL_TUNER_PLUGIN NCCL_TUNER_JOB=/shared/job
    nccl-tuner job read /shared/job
    nccl-tuner job plan /shared/job --machine dgx-h100 --out explore.table
    nccl-tuner decide /shared/job --out pod.table
    """

"""``nccl-tuner job read``: what the ranks of a job measured, joined."""

import sys
from pathlib import Path

import click

from tuner.base.errors import BadInput
from tuner.cli import options
from tuner.cli.output import counted, human_bytes, print_json, print_table, say, verdict
from tuner.jobs.inside import joined, report
from tuner.scenario import Scenario
from tuner.scenario.describe import describe
from tuner.times.records.samples import Writer

MOST_SHOWN = 20  # kinds of calls, and stragglers
COLUMNS = ("ranks", "call", "size", "executed", "calls", "us", "+-", "waiting")


@click.command(name="read", cls=options.Command)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--machine", metavar="NAME", help="What the nodes are, for the measured times of --out.")
@options.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.jsonl",
    help="Write the times as 'measure' does, for verify, fit, accept and decide.",
)
@click.option("--parquet", type=click.Path(path_type=Path), metavar="OUT", help="Write every joined call, partitioned.")
@options.json_option
def command(folder: Path, machine: str | None, out: Path | None, parquet: Path | None, as_json: bool) -> None:
    """Joins the files of all ranks in DIR, the folder that NCCL_TUNER_JOB named while the job ran.

    Of a call the least time over the ranks is its transfer; the rest of a rank's time it waited for the last one.
    Exit code 1 where ranks ran something else than others, 3 where no call has a record of every rank.

    \b
    nccl-tuner job read /shared/job
    nccl-tuner job read /shared/job --machine dgx-h100 --out job.jsonl
    """
    files = joined.read_folder(folder)
    calls = list(joined.joined(files))
    found = report.report(files, calls)
    if parquet is not None:
        report.write_parquet(parquet, calls)
    if out is not None:
        _write(out, machine, files, calls)
    if as_json:
        print_json(found)
    else:
        _print(found)
    sys.exit(1 if found.parted else 3 if not found.calls else 0)


def _write(out: Path, machine: str | None, files: joined.JobFolder, calls: list[joined.JoinedCalls]) -> None:
    if out.exists() and out.stat().st_size:
        raise BadInput(f"{out} is there already; valid: another file")
    scenario = None if machine is None else scenario_of(machine, files, calls)
    measured = report.measurements(calls, scenario)
    with Writer(out, measured.header) as writer:
        for block in measured.blocks:
            writer.add(block)


def say_left_out(files: joined.JobFolder) -> None:
    """Prints what of a job's files is not read, to standard error."""
    for note in files.left_out[:MOST_SHOWN]:
        say(f"note: {note}", err=True)
    if len(files.left_out) > MOST_SHOWN:
        say(f"note: and {len(files.left_out) - MOST_SHOWN} more", err=True)


def scenario_of(machine: str, files: joined.JobFolder, calls: list[joined.JoinedCalls]) -> Scenario:
    """The communicator that has most time, on nodes of this kind. Errors: those of ``describe``."""
    if not calls:
        raise BadInput("no call has a record of every rank")
    most = max(calls, key=lambda each: float(each.transfer_us.sum())).communicator
    nodes = most.nodes or 1
    release = files.releases[0] if files.releases else None
    return describe(machine=machine, nodes=nodes, gpus_per_node=most.ranks // nodes, nccl=release)


def _print(found: report.JobReport) -> None:
    if found.parted:
        say(verdict(f"ranks part: {counted(found.parted, 'call')} ran something else on some ranks", False))
    elif not found.calls:
        say(verdict("no call has a record of every rank", None))
    else:
        say(verdict(f"{100 * found.waiting:.0f} % of the time of collectives is waiting for the last rank", True))
    releases = f", NCCL {', '.join(found.releases)}" if found.releases else ""
    say(
        f"{counted(found.processes, 'process').replace('processs', 'processes')}, "
        f"{counted(found.communicators, 'communicator')}, {counted(found.calls, 'call')}{releases}: "
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
        say(f"and {len(found.rows) - MOST_SHOWN} kinds of calls more, which take less")
    for late in found.stragglers[:MOST_SHOWN]:
        say(
            f"straggler: {late.name} came last in {100 * late.last / late.calls:.0f} % of {late.calls} calls, "
            f"where {100 * late.share:.1f} % is its share; others waited {late.waiting_s:.3g} s in them"
        )
    for note in found.notes:
        say(f"note: {note}")

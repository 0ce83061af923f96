"""``nccl-tuner check run``: the emulator against what a trace says that ran."""

import sys
from dataclasses import replace
from pathlib import Path

import click

from tuner.base.names import Op
from tuner.cli import options
from tuner.cli.output import human_bytes, print_json, print_table, say
from tuner.cli.trace_files import communicators_options, count_or_part, read_files
from tuner.jobs.check_run import CheckedCall, CheckedRun, check
from tuner.jobs.traces.calls import number
from tuner.jobs.workload import job

MOST_ROWS = 32  # of calls that differ; --json has all


@click.command(name="run", cls=options.Command)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@options.communicator_options(tuner=True)
@options.call_options(in_place=False, windows=False)
@communicators_options("Compare")
@options.json_option
def command(
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
    count, part = count_or_part(ranks)
    described = communicator.scenario(ranks=part)
    wanted = replace(
        job.wanted_of(described, count),
        communicators=communicators,
        dtype=call.dtype,
        op=call.op,
        buffers=call.buffers,
    )
    lists = read_files(files, described.ranks)
    for line in job.of_other_releases(lists, [described.nccl], "compared"):
        say(f"note: {line}", err=True)
    checked = check(lists, described, wanted)
    if as_json:
        print_json(checked)
    else:
        _print(checked)
    sys.exit(1 if checked.differing else 0)


def _print(checked: CheckedRun) -> None:
    if checked.differing:
        columns = ("collective", "type", "size", "calls", "ran", "the emulator picks", "other")
        print_table("what ran otherwise", columns, map(_row, checked.differing[:MOST_ROWS]))
        if len(checked.differing) > MOST_ROWS:
            say(f"and {len(checked.differing) - MOST_ROWS} more kinds of calls: --json")
    says = ", ".join(f"{what} of {number(calls)}" for what, calls in checked.says.items() if calls)
    calls = f"{number(checked.agreeing_calls)} of {number(checked.compared_calls)} calls"
    say(f"{checked.communicator}: {calls} ran as the emulator picks; the files say {says}")
    for left in checked.not_compared:
        say(f"not compared: {number(left.calls)} calls: {left.reason}")
    for note in checked.notes:
        say(f"note: {note}")


def _row(one: CheckedCall) -> tuple[object, ...]:
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

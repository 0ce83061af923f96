"""``nccl-tuner job decide``: from a job that explored to a table."""

import hashlib
import sys
from pathlib import Path

import click

from tuner.cli import options
from tuner.cli.job.read import say_left_out
from tuner.cli.output import counted, human_bytes, print_json, print_table, say, verdict
from tuner.jobs.inside import joined
from tuner.jobs.inside.decide import JobDecision, decide
from tuner.plugin.table.parse import from_text, to_text, write

MOST_SHOWN = 30


@click.command(name="decide", cls=options.Command)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR...")
@options.out_option("TABLE", "The table to write.")
@options.json_option
def command(folders: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Judges the arms that the job in DIR explored (several DIRs: its restarts), and writes a table of those that stay.

    An arm stays where it gains more than 2 % over the calls around its blocks, with an error of at most 0.025 for all
    arms together, and the job itself is not slower in them. Nothing changes while the job runs.
    Exit code 0 with rows, 1 where NCCL's own choices stay, 3 where no arm has blocks enough.

    \b
    nccl-tuner job decide /shared/job --out pod.table
    """
    calls: list[joined.JoinedCalls] = []
    for folder in folders:
        files = joined.read_folder(folder)
        say_left_out(files)
        calls += joined.joined(files)
    found = decide(calls, {"from": "what " + ", ".join(map(str, folders)) + " measured in the job"})
    if found.kept:
        from_text(to_text(found.table))  # what its own reader refuses is not written
        write(out, found.table)
    if as_json:
        print_json(found)
    else:
        _print(found, out)
    sys.exit(0 if found.kept else 1 if any(arm.judged for arm in found.arms) else 3)


def _print(found: JobDecision, out: Path) -> None:
    if found.kept:
        saved = sum(arm.saved_s for arm in found.kept)
        rows = counted(len(found.table.decisions), "row")
        say(verdict(f"{rows} in {out}: {saved:.3g} s a day less in collectives, on each rank", True))
    elif any(arm.judged for arm in found.arms):
        say(verdict("no arm is faster: NCCL's own choices stay", False))
    else:
        say(verdict("no arm has blocks enough to be judged", None))
    shown = [
        (
            arm.ranks,
            arm.point.collective.name,
            human_bytes(arm.point.bytes),
            arm.usual,
            arm.arm,
            f"{100 * arm.gain:.1f} %",
            f"{100 * arm.interval[0]:.1f} to {100 * arm.interval[1]:.1f} %" if arm.judged else "-",
            "-" if arm.job_gain is None else f"{100 * arm.job_gain:.1f} %",
            arm.why_not or "stays",
        )
        for arm in found.arms[:MOST_SHOWN]
    ]
    print_table("", ("ranks", "call", "size", "now", "arm", "gain", "95 %", "job", "verdict"), shown)
    if found.kept:
        say("start the job again with:")
        say(f"export NCCL_TUNER_TABLE={out.resolve()}")
        say(f"export NCCL_TUNER_TABLE_SHA256={hashlib.sha256(out.read_bytes()).hexdigest()}")

"""``nccl-tuner job plan``: arms for the next start of a job."""

from pathlib import Path

import click

from tuner.cli import options
from tuner.cli.job.read import say_left_out, scenario_of
from tuner.cli.output import counted, human_bytes, print_json, print_table, say, verdict
from tuner.jobs.inside import joined
from tuner.jobs.inside.plan import plan
from tuner.plugin.table.parse import from_text, to_text, write


@click.command(name="plan", cls=options.Command)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--machine", metavar="NAME", required=True, help="What the nodes are.")
@options.out_option("TABLE", "The table to write.")
@options.json_option
def command(folder: Path, machine: str, out: Path, as_json: bool) -> None:
    """Writes a table with arms for the calls that most time of the job in DIR is in, and says what exploring costs.

    Of each call NCCL's own choice and up to three others that NCCL's model takes for at most half as slow again. The
    shares are such that all of it is predicted to cost at most 1 % of the time in collectives.

    \b
    nccl-tuner job plan /shared/job --machine dgx-h100 --out explore.table
    """
    files = joined.read_folder(folder)
    say_left_out(files)
    calls = list(joined.joined(files))
    found = plan(calls, scenario_of(machine, files, calls), {"explores": f"the calls of {folder}"})
    from_text(to_text(found.table))  # what its own reader refuses is not written
    write(out, found.table)
    if as_json:
        print_json(found)
        return
    say(
        verdict(f"{counted(len(found.calls), 'row')} in {out}: ", True)
        + f"exploring is predicted to cost {100 * found.cost:.2g} % of the time in collectives, "
        f"{100 * found.cost_of_job:.2g} % of the job's"
    )
    rows = [
        (
            call.point.collective.name,
            human_bytes(call.point.bytes),
            f"{100 * call.share:.0f} %",
            f"{call.usual.algorithm.name}/{call.usual.protocol.name}",
            ", ".join(f"{arm} {factor:.2f}" for arm, factor in call.factors),
        )
        for call in found.calls
    ]
    print_table("", ("call", "size", "time", "now", "arms, by NCCL's model over what runs now"), rows)
    say(f"one block of {found.block} calls in {found.every} is of an arm; it ends after {found.days:.2g} days")

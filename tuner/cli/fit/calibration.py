"""``nccl-tuner fit calibration``: a calibration of one's own from measured times."""

from pathlib import Path
from typing import Any

import click

from tuner.base.files import write_text
from tuner.cli import options
from tuner.cli.measured_options import given_of_files, measured_file_options
from tuner.cli.output import print_json
from tuner.cli.release_names import release_option
from tuner.times.calibration import calibrate
from tuner.times.calibration.calibrate import Measured
from tuner.times.timemodel import calibration


@click.command(name="calibration", cls=options.Command)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--machine", metavar="NAME", help="The machine that was measured. [default: what the files say]")
@click.option(
    "--topology", type=click.Path(path_type=Path), metavar="FILE.xml", help="Instead of it, a topology in NCCL's XML."
)
@release_option("The release that was measured. [default: what the files say]", only_known=False)
@measured_file_options
@click.option(
    "--update",
    metavar="NAME|FILE",
    help="Add the rows between nodes to this calibration, as those of one's own site: one row is enough.",
)
@click.option("--name", default="own", show_default=True, help="What answers call the calibration, and the site.")
@options.out_option("OUT.json", "The file to write.", former="--output")
@options.json_option
def command(
    files: tuple[Path, ...],
    machine: str | None,
    topology: Path | None,
    nccl: str | None,
    update: str | None,
    name: str,
    out: Path,
    as_json: bool,
    **of_files: Any,
) -> None:
    """A calibration from FILEs of measured times, for '--calibration' of pick, budget, scale and others.

    FILEs are what nccl-tests prints or writes as JSON, runs of 'measure', columns, or names of shipped tables. A dozen
    rows do; beliefs from machines of the generation stand for what was not measured, with wide intervals. With --update
    one row of one's own cluster is enough, and four spread over sizes are better.

    \b
    nccl-tuner fit calibration sweep.csv --machine dgx-h100 --nccl 2.29.2 -o own.json
    nccl-tuner pick allreduce --machine dgx-h100 --nccl 2.29.2 --bytes 64M --calibration own.json
    nccl-tuner fit calibration --update dgx-h100 all_reduce.log --machine dgx-h100 --name pod7 -o pod7.json
    """
    given = given_of_files(**of_files)
    made = calibrate.of_paths(files, Measured(machine, topology, nccl), name, update, given)
    write_text(out, calibration.text(made))
    rows = sum(each.rows for each in made.measured)
    if as_json:
        print_json({"file": out, "name": made.name, "machine": made.machine, "measured": made.measured})
    else:
        of_tables = ", ".join(each.name for each in made.measured)
        done = "fitted to" if update is None else f"{update} updated by"
        click.echo(f"{out}: {made.machine}, {done} {rows} rows of {of_tables}")

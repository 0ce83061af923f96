"""``nccl-tuner fit calibration``: a calibration of one's own from measured times."""

from pathlib import Path

import click

from tuner.base.files import write_text
from tuner.cli import options
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
@release_option("The release that was measured. [default: what the files say]")
@click.option("--name", default="own", show_default=True, help="What answers call the calibration.")
@options.out_option("OUT.json", "The file to write.", former="--output")
@options.json_option
def command(
    files: tuple[Path, ...],
    machine: str | None,
    topology: Path | None,
    nccl: str | None,
    name: str,
    out: Path,
    as_json: bool,
) -> None:
    """A calibration from FILEs of measured times, for '--calibration' of pick, budget, scale and others.

    FILEs, or names of shipped tables, as 'nccl-tuner accuracy' takes them ('nccl-tuner measured import' makes them of
    nccl-tests' output). A dozen rows do; beliefs from machines of the generation stand for what was not measured, with
    wide intervals.

    \b
    nccl-tuner fit calibration sweep.csv --machine dgx-h100 --nccl 2.29.2 -o own.json
    nccl-tuner pick allreduce --machine dgx-h100 --nccl 2.29.2 --bytes 64M --calibration own.json
    """
    made = calibrate.of_paths(files, Measured(machine, topology, nccl), name)
    write_text(out, calibration.text(made))
    rows = sum(each.rows for each in made.measured)
    if as_json:
        print_json({"file": out, "name": made.name, "machine": made.machine, "measured": made.measured})
    else:
        click.echo(f"{out}: {made.machine}, fitted to {rows} rows of {', '.join(each.name for each in made.measured)}")

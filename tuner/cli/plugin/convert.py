"""``nccl-tuner plugin convert``: decision tables from and to other plugins' formats."""

from pathlib import Path

import click

from tuner.base.files import write_text
from tuner.cli import options
from tuner.cli.output import print_json
from tuner.plugin.formats import convert


@click.command(name="convert", cls=options.Command)
@click.argument("file", metavar="IN", type=click.Path(path_type=Path))
@options.out_option("OUT", "The file to write.")
@click.option(
    "--to",
    "target",
    type=click.Choice(convert.FORMATS),
    default="table",
    show_default=True,
    help="Format to write: ours, the one of NVIDIA's example plugin, those of Meta's NCCLX.",
)
@options.json_option
def command(file: Path, out: Path, target: str, as_json: bool) -> None:
    """Writes a decision table in another format; the content of IN decides what it is in.

    What the other format cannot say is an error that names the row, and nothing is written.

    \b
    nccl-tuner plugin convert nccl_tuner.conf --out my.table
    nccl-tuner plugin convert my.table --out ncclx.csv --to ncclx-csv
    """
    read = convert.read(file)
    write_text(out, convert.to_text(read, target))
    rows = len(read.table.decisions)
    if as_json:
        print_json({"from": read.format, "to": target, "out": str(out), "rows": rows})
    else:
        click.echo(f"{out}: {rows} rows of {file} ({read.format}) as {target}")

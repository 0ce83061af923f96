"""``nccl-tuner table``: the tuning table."""

from typing import Any

import click

from tuner.answers.tables import cells
from tuner.cli import options
from tuner.cli.output import print_json
from tuner.emulator import printed_table
from tuner.emulator.fitted_constants import FittedConstants
from tuner.emulator.model import Tables
from tuner.emulator.selection import Selection


@click.command(name="table")
@options.scenario_options
@options.json_option
def command(as_json: bool, **scenario: Any) -> None:
    """The latencies (us) and bandwidths (GB/s) of every combination, in the layout NCCL prints.

    \b
    nccl-tuner table --machine dgx-h100 --nodes 2 --nccl 2.28.9
    """
    described = options.scenario_of(**scenario)
    print_tables(Selection(described.communicator()).tables, as_json, described.fitted_constants)


def print_tables(tables: Tables, as_json: bool, fitted: FittedConstants | None = None) -> None:
    """The tables as records, or as NCCL prints them."""
    if as_json:
        print_json(cells(tables, fitted.record if fitted else None))
        return
    if fitted is not None:
        click.echo(f"with fitted constants {fitted.file}, not NCCL's own")
    click.echo("\n".join(printed_table.lines(tables)))

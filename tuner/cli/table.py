"""``nccl-tuner table``: the tuning table."""

from typing import Any

import click

from tuner.base.names import ALGO_PROTOS, Collective
from tuner.base.numerics import shortest
from tuner.cli import options
from tuner.cli.output import print_json
from tuner.emulator import printed_table
from tuner.emulator.fitted_constants import FittedConstants
from tuner.emulator.model import Tables
from tuner.emulator.selection import Selection


@click.command(name="table")
@options.case_options
@options.json_option
def command(as_json: bool, **scenario: Any) -> None:
    """The latencies (us) and bandwidths (GB/s) of every combination, in the layout NCCL prints.

    \b
    nccl-tuner table --machine dgx-h100 --nodes 2 --nccl 2.28.9
    """
    described = options.case_of(**scenario)
    print_tables(Selection(described.communicator()).tables, as_json, described.fitted_constants)


def print_tables(tables: Tables, as_json: bool, fitted: FittedConstants | None = None) -> None:
    if as_json:
        used = {} if fitted is None else {"layer": fitted.record}
        print_json([{**record, **used} for record in as_records(tables)])
        return
    if fitted is not None:
        click.echo(f"with fitted constants {fitted.file}, not NCCL's own")
    click.echo("\n".join(printed_table.lines(tables)))


def as_records(tables: Tables) -> list[dict[str, Any]]:
    """A record a cell, exact; ``reason`` says why a bandwidth is 0 where the emulator knows."""
    return [
        {
            "collective": collective.name,
            "algorithm": algorithm.name,
            "protocol": protocol.name,
            "latency_us": shortest(tables.latency_us[collective, algorithm, protocol]),
            "bandwidth_gbs": shortest(tables.bandwidth_gbs[collective, algorithm, protocol]),
            "max_threads": int(tables.max_threads[algorithm, protocol]),
            "thread_threshold_bytes": int(tables.thread_thresholds_bytes[algorithm, protocol]),
            "reason": tables.reasons.get((collective, algorithm, protocol)),
        }
        for collective in Collective
        for algorithm, protocol in ALGO_PROTOS
    ]

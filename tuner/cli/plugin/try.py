"""``nccl-tuner plugin try``: a decision table in the real libnccl."""

from pathlib import Path

import click

from tuner.answers import tried
from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.output import human_bytes, print_json, print_table
from tuner.oracle.answers import Launched

MOST_SHOWN = 40


@click.command(name="try", cls=options.Command)
@click.argument("table", type=click.Path(path_type=Path))
@options.communicator_options(without=["constants"], build=True)
@options.timeout_option
@options.json_option
def command(table: Path, timeout_s: float, as_json: bool, communicator: options.CommunicatorOptions) -> None:
    """Loads TABLE into the real libnccl, on simulated GPUs, and says of every row whether it takes effect.

    At a size of each row: what is launched without the table, and with it. Exit code 1 where a row for this
    communicator has no effect: another row takes all its calls, or NCCL cannot run what it names.

    \b
    nccl-tuner plugin try my.table --machine dgx-h100 --nodes 2 --nccl 2.28.9
    """
    described = communicator.scenario()
    rows = tried.run(table, described, timeout_s)
    idle = [row for row in rows if row.effect in tried.NO_EFFECT]
    if as_json:
        print_json({"rows": to_json(rows), "no_effect": [row.line for row in idle]})
    else:
        click.echo(_verdict(rows, idle))
        columns = ("line", "collective", "size", "without", "with the table", "effect")
        shown = [_row(row) for row in rows[:MOST_SHOWN]]
        print_table(f"{table} on {described.title}: the real libnccl", columns, shown)
        if len(rows) > MOST_SHOWN:
            click.echo(f" ... and {len(rows) - MOST_SHOWN} more rows; --json has all")
    if idle:
        raise SystemExit(1)


def _verdict(rows: list[tried.TriedRow], idle: list[tried.TriedRow]) -> str:
    seen = sum(row.bytes is not None for row in rows) - sum(row.bytes is not None for row in idle)
    if idle:
        return f"{len(idle)} of {len(rows)} rows have no effect here: lines {', '.join(str(row.line) for row in idle)}"
    return f"every row for this communicator takes effect: {seen} of {len(rows)} rows seen to"


def _row(row: tried.TriedRow) -> tuple[object, ...]:
    size = "-" if row.bytes is None else human_bytes(row.bytes)
    return row.line, row.collective.name, size, _ran(row.before), _ran(row.after), row.effect.value


def _ran(launched: Launched | None) -> str:
    if launched is None:
        return "-"
    return f"{launched.algorithm.name}/{launched.protocol.name} x{launched.channels}"

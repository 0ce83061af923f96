"""``nccl-tuner plugin stats``: what the plugin counted."""

from pathlib import Path

import click

from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.output import print_json
from tuner.plugin import stats


@click.command(name="stats", cls=options.Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.json_option
def command(files: tuple[Path, ...], as_json: bool) -> None:
    """Sums what the plugin counted: which rows decide, which never match, which sizes no row decides.

    FILE are those that NCCL_TUNER_STATS named in the job, of all ranks. Exit code 1 where ranks of one communicator
    had different tables, or one of them none.

    \b
    NCCL_TUNER_STATS=$PWD/stats.%h.%p.%c torchrun train.py
    nccl-tuner plugin stats stats.*
    """
    counts = stats.read(files)
    if as_json:
        print_json(to_json(counts))
    else:
        click.echo("\n".join(line for table in counts.tables for line in _table(table)))
        for disagreement in counts.disagreements:
            click.echo(f"different tables: {disagreement.communicator}")
            for sha256, hosts in disagreement.tables.items():
                content = "no table that could be used" if sha256 == stats.NONE else f"sha256 {sha256[:12]}"
                click.echo(f"  {content} ({', '.join(disagreement.paths[sha256])}) on {', '.join(hosts)}")
    if counts.disagreements:
        raise SystemExit(1)


def _table(table: stats.TableStats) -> list[str]:
    if table.sha256 is None:
        return [f"{table.table}: could not be used by {table.communicators} ranks of communicators"]
    lines = [
        f"{table.table} (sha256 {table.sha256[:12]}): {table.calls} calls of {table.communicators} ranks of "
        f"communicators: {table.decided} decided, {table.costed} with its costs, {table.could_not_run} matched a row "
        f"that NCCL could not run"
    ]
    for row in table.rows:
        lines.append(f"  line {row.line}: {row.decided} decided, {row.could_not_run} could not run")
    for cost in table.costs:
        lines.append(f"  line {cost.line}: {cost.calls} times given")
    for first, last in table.never_matched:
        lines.append(f"  line {first}: never matched" if first == last else f"  lines {first} to {last}: never matched")
    for left in table.undecided:
        sizes = (
            f"{left.least_bytes}" if left.least_bytes == left.most_bytes else f"{left.least_bytes}..{left.most_bytes}"
        )
        lines.append(f"  {left.collective} bytes={sizes}: {left.reason}: {left.calls} calls, {left.bytes} bytes")
    return lines

"""``nccl-tuner plugin top``: which rows decide in jobs that run now, or were killed."""

from pathlib import Path

import click

from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.output import print_json, print_table
from tuner.plugin import live

MOST_SHOWN = 12


@click.command(name="top", cls=options.Command)
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.json_option
def command(folders: tuple[Path, ...], as_json: bool) -> None:
    """Says which rows decide in the jobs whose counts lie in DIR, on which ranks, and which rows nothing matched.

    DIR is what NCCL_TUNER_LIVE names in the job. The counts of a process that was killed stay there. Exit code 1 where
    ranks of a communicator have different tables, or one goes without its own.

    \b
    NCCL_TUNER_LIVE=/dev/shm/nccl-tuner torchrun train.py &
    nccl-tuner plugin top /dev/shm/nccl-tuner
    """
    counts = live.read(folders)
    apart, refused = live.disagreements(counts), [each for each in counts if each.refused is not None]
    if as_json:
        print_json({"ranks": to_json(counts), "tables": to_json(live.tables(counts)), "different_tables": apart})
    else:
        click.echo(_verdict(counts, len(refused), len(apart)))
        for each in refused[:MOST_SHOWN]:
            click.echo(f"{each.name}: {each.refused}")
        for line in apart[:MOST_SHOWN]:
            click.echo(line)
        for table in live.tables(counts):
            _print(table)
    if apart or refused:
        raise SystemExit(1)


def _verdict(counts: list[live.LiveCounts], refused: int, apart: int) -> str:
    if not counts:
        return "no counts: no job runs with NCCL_TUNER_LIVE set to this folder, or none has a table"
    ended = sum(each.runs is False for each in counts)
    calls = sum(each.calls for each in counts)
    words = [f"{len(counts)} ranks of communicators on {len({each.host for each in counts})} hosts, {calls} calls"]
    words += [f"{ended} of processes that are gone"] if ended else []
    words += [f"{refused} WITHOUT THEIR TABLE"] if refused else []
    words += [f"{apart} communicators with DIFFERENT TABLES"] if apart else []
    return ", ".join(words)


def _print(table: live.LiveTable) -> None:
    rows = [
        (row.line, row.calls, row.could_not_run, f"{row.on} of {table.ranks}", ", ".join(row.missing[:2]))
        for row in sorted(table.rows, key=lambda row: -row.calls)[:MOST_SHOWN]
    ]
    share = 100 * table.decided / table.calls if table.calls else 0
    title = f"{table.table} (sha256 {table.sha256[:12]}): {share:.0f} % of {table.calls} calls decided"
    print_table(title, ("line", "calls", "could not run", "on ranks", "not on"), rows)
    if table.never:
        click.echo(f"never matched: lines {', '.join(live.iterate_names([*map(str, table.never)], MOST_SHOWN))}\n")

"""``nccl-tuner plugin stats``: what the plugin counted, in jobs that ended and in running ones."""

from pathlib import Path

import click

from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.command import FILE
from tuner.cli.output import json_wanted, print_json, print_table, shown_as_json, verdict
from tuner.plugin import live, stats

MOST_SHOWN = 12


@click.command(name="stats", cls=options.Command)
@click.argument("files", metavar="FILE|DIR...", nargs=-1, required=True, type=FILE)
@options.flag("--prometheus", "Print the counts of DIR in Prometheus' text format; exit code 0.")
@options.file_option(
    "-o",
    "--out",
    "FILE.prom",
    "With --prometheus: the file to write, in the folder of the node exporter's textfile collector; it is "
    "replaced in one step.",
)
@options.json_option
def stats_command(files: tuple[Path, ...], prometheus: bool, out: Path | None) -> None:
    """Sums the counts that the plugin wrote: which rows decide, which never match, which sizes no row decides.

    FILE is what a rank of a job wrote at its end, under the name in NCCL_TUNER_STATS. DIR is the folder that
    NCCL_TUNER_LIVE names in a running job; it shows which rows decide now, and on which ranks. The counts of a process
    that was killed stay in DIR. Exit code 1 if ranks of one communicator had different tables, or one of them had none.

    \b
    NCCL_TUNER_STATS=$PWD/stats.%h.%p.%c torchrun train.py
    nccl-tuner plugin stats stats.*
    NCCL_TUNER_LIVE=/dev/shm/nccl-tuner torchrun train.py &
    nccl-tuner plugin stats /dev/shm/nccl-tuner
    nccl-tuner plugin stats /dev/shm/nccl-tuner --prometheus --out /var/lib/node_exporter/nccl_tuner.prom
    """
    if (out is not None and not prometheus) or (prometheus and json_wanted()):
        raise BadInput(
            "--out only applies with --prometheus, and --json not with it: use --json alone, or --prometheus with --out"
        )
    folders = [each for each in files if each.is_dir()]
    if folders and len(folders) < len(files):
        raise BadInput("give either FILEs of ended jobs or DIRs of running jobs, not both")
    if folders:
        damaged = list[str]()
        _show_live(live.read(folders, damaged), prometheus, out, damaged)
    elif prometheus:
        raise BadInput("--prometheus only shows running jobs: give the DIR that NCCL_TUNER_LIVE names")
    else:
        _show_ended(stats.read(files))


def _show_ended(counts: stats.Stats) -> None:
    if not shown_as_json(counts):
        apart = len(counts.disagreements)
        said = f"{apart} communicators with DIFFERENT TABLES" if apart else "every communicator has one table"
        click.echo(verdict(said, not apart))
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
        return [f"{table.table}: {table.communicators} ranks of communicators could not use it"]
    counts = table.counts
    lines = [
        f"{table.table} (sha256 {table.sha256[:12]}): {counts.calls} calls of {table.communicators} ranks of "
        f"communicators: {counts.decided} decided, {counts.costed} with its costs, {counts.could_not_run} matched a "
        f"row that NCCL could not run"
    ]
    for row in counts.rows:
        lines.append(
            f"  line {row.line}: decided {row.decided} calls; NCCL could not run it for {row.could_not_run} calls"
        )
    for cost in counts.costs:
        lines.append(f"  line {cost.line}: gave the times of {cost.calls} calls")
    for first, last in counts.never_matched:
        lines.append(f"  line {first}: never matched" if first == last else f"  lines {first} to {last}: never matched")
    for left in counts.undecided:
        sizes = (
            f"{left.least_bytes}" if left.least_bytes == left.most_bytes else f"{left.least_bytes}..{left.most_bytes}"
        )
        lines.append(f"  {left.collective} bytes={sizes}: {left.reason}: {left.calls} calls, {left.bytes} bytes")
    return lines


def _show_live(counts: list[live.LiveCounts], prometheus: bool, out: Path | None, damaged: list[str]) -> None:
    for file in damaged[:MOST_SHOWN]:
        click.echo(f"left out: {file}", err=True)
    if prometheus:
        _write_metrics(counts, out)
        return
    apart, refused = live.disagreements(counts), [each for each in counts if each.refused is not None]
    if json_wanted():
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
        return "no counts: no running job has both NCCL_TUNER_LIVE set to this folder and a table"
    ended = sum(each.runs is False for each in counts)
    calls = sum(each.calls for each in counts)
    words = [f"{len(counts)} ranks of communicators on {len({each.host for each in counts})} hosts, {calls} calls"]
    words += [f"{ended} from processes that have ended"] if ended else []
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


def _write_metrics(counts: list[live.LiveCounts], out: Path | None) -> None:
    text = live.metrics(counts)
    if out is None:
        click.echo(text, nl=False)
        return
    write_text(out, text)

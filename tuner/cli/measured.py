"""``nccl-tuner measured``: the public measured times that are shipped, and tables of one's own."""

from dataclasses import dataclass
from pathlib import Path

import click

from tuner.base.errors import BadInput
from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.command import FILE, Group
from tuner.cli.communicator_options import release_option
from tuner.cli.output import plural, print_json, print_table, span, verdict
from tuner.machine import catalogue, skeleton
from tuner.machine.topology import Topology
from tuner.release.environment import parse_assignments
from tuner.times import measured
from tuner.times.calibration import calibrate, plausible
from tuner.times.measured import MeasuredHeader, MeasuredLaunch, MeasuredSource, MeasuredTable, Problem
from tuner.times.readers import measured_table
from tuner.times.readers.measured_table import Given

LAUNCHES = {launch.name.replace("_", "-"): launch for launch in MeasuredLaunch}


VERBS = {
    "show": "the tables that are shipped; of one its source, licence and traps",
    "import": "one table of files of nccl-tests, runs of measure, or columns",
    "check": "what is wrong with measured times: units, labels, curves, faulty runs",
}


@click.group(name="measured", cls=Group, verbs=VERBS, modules="measured", default="show", no_args_is_help=False)
def command() -> None:
    """Measured times as tables: the public ones that are shipped, which 'measured' alone lists, and one's own.

    \b
    nccl-tuner measured
    nccl-tuner measured import all_reduce.log --machine dgx-h100 --nccl 2.28.9 --source "our cluster" -o h100.csv
    """


@click.command(name="show", cls=options.Command)
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--machine", metavar="NAME", help="Of this machine only, without NAME.")
@options.json_option
def show_command(name: str | None, machine: str | None, as_json: bool) -> None:
    """The tables that are shipped: machine, release, nodes, rows and source of each; of NAME all that is known.

    That is source, licence, how it was measured, variables, traps; --json has its rows.

    \b
    nccl-tuner measured show --machine dgx-b200 --json
    nccl-tuner measured show b200-8x-64n__2.29.7__together
    """
    if name is None:
        _print_tables(machine, as_json)
        return
    if machine is not None:
        raise BadInput("NAME and --machine; valid: one of both")
    table = measured.load(name)
    if as_json:
        print_json(table)
        return
    for line in measured.text(table).partition("\ncollective,")[0].splitlines():
        click.echo(line.removeprefix("#").removeprefix(" "))


def _print_tables(machine: str | None, as_json: bool) -> None:
    name = None if machine is None else catalogue.load(machine).name
    tables = [table for table in map(measured.load, measured.names()) if name in (None, table.header.machine)]
    if as_json:
        print_json([to_json(_listed(table)) for table in tables])
        return
    listed = [_listed(table) for table in tables]
    columns = ("name", "machine", "NCCL", "nodes", "GPUs a node", "collectives", "rows")
    print_table(
        "Measured times",
        columns,
        [
            (
                each.name,
                each.machine or "not known",
                each.nccl or "not known",
                span(each.nodes),
                span(each.gpus_per_node),
                " ".join(each.collectives),
                each.rows,
            )
            for each in listed
        ],
    )


@click.command(name="check", cls=options.Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option("--machine", metavar="NAME", help="The machine, whose links bound what can be true.")
@click.option("--topology", type=FILE, metavar="FILE.xml", help="The same as a topology.")
@options.json_option
def check_command(files: tuple[Path, ...], machine: str | None, topology: Path | None, as_json: bool) -> None:
    """What is wrong with the measured times in FILE, with the lines: units, labels, repeated rows, curves, faulty runs.

    Exit code 1 where rows cannot be used.

    \b
    nccl-tuner measured check run.log --machine dgx-h100
    """
    nodes = _topology(machine, topology)
    tables = [(path, measured_table.read(measured.file_of(path))) for path in files]
    trays = catalogue.load(machine).trays if machine else None
    problems = [(path, each) for path, table in tables for each in plausible.judge(table, nodes, trays).problems]
    left = [(path, f"{count} {why}") for path, table in tables for why, count in table.header.left_out.items() if count]
    if as_json:
        print_json([*(_record(path, each) for path, each in problems), *(_left_out(path, text) for path, text in left)])
    else:
        refused = sum(each.refused for _, each in problems)
        said = f"{refused} of {plural(len(problems), 'problem')} are of rows that cannot be used"
        fine = "nothing is wrong with the rows that can be read" if left else "nothing is wrong"
        click.echo(verdict(said if problems else fine, not refused))
        for path, each in problems:
            click.echo(_line(path, each))
        for path, text in left:
            click.echo(f"{path}: left out: {text}")
    if any(each.refused for _, each in problems):
        click.get_current_context().exit(1)


@click.command(name="import", cls=options.Command)
@options.under(
    "Where the times are from",
    "--machine-note",
    "--commit",
    "--path",
    "--licence",
    "--title",
    "--how",
    "--launch",
    "--network",
    "--env",
    "--trap",
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option("--machine", metavar="NAME", help="The machine by name (see: nccl-tuner machines).")
@click.option("--machine-note", metavar="TEXT", help="How sure that is; needed where there is no --machine.")
@click.option("--topology", type=FILE, metavar="FILE.xml", help="Bounds of a machine without name.")
@release_option("Release of NCCL; what FILE says has to agree.", only_known=False, default="")
@click.option("--source", metavar="TEXT", required=True, help="Where the numbers are from: a repository or a document.")
@click.option("--commit", metavar="TEXT", default="not stated", help="The state of the source.")
@click.option("--path", "path_in_source", metavar="TEXT", help="The path in the source. [default: the files' names]")
@click.option("--licence", metavar="TEXT", default="not stated", help="The licence of the numbers.")
@click.option("--title", metavar="TEXT", default="", help="What it is, in a line.")
@click.option("--how", metavar="TEXT", default="", help="How it was measured. [default: what FILE says]")
@click.option("--launch", type=click.Choice(list(LAUNCHES)), default="unknown", help="How ranks were started.")
@click.option("--network", metavar="TEXT", default="", help="What went between nodes: InfiniBand, sockets, a plugin.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable that was set; repeatable.")
@click.option(
    "--trap", "traps", multiple=True, metavar="TEXT", help="What a user of the numbers must know; repeatable."
)
@click.option("--nodes", type=int, help="Number of nodes, where FILE does not name its ranks.")
@click.option("--gpus-per-node", type=int, help="GPUs of each node, likewise.")
@click.option("--collective", metavar="NAME", default="", help="What was run, where FILE does not name its program.")
@options.out_option("OUT.csv", "The table.", former="--output")
@options.json_option
def import_command(
    files: tuple[Path, ...],
    machine: str | None,
    machine_note: str | None,
    topology: Path | None,
    nccl: str,
    source: str,
    commit: str,
    path_in_source: str | None,
    licence: str,
    title: str,
    how: str,
    launch: str,
    network: str,
    env: tuple[str, ...],
    traps: tuple[str, ...],
    nodes: int | None,
    gpus_per_node: int | None,
    collective: str,
    out: Path,
    as_json: bool,
) -> None:
    """Makes one table of FILE: text or JSON of nccl-tests, aiconfigurator's parquet, runs of `measure`, columns.

    Numbers that cannot be true are refused with their lines, others that look wrong are said.

    \b
    nccl-tuner measured import all_reduce.log --machine dgx-h100 --source "our cluster, 2026-11-20" -o h100.csv
    nccl-tuner measured import nccl_perf.parquet --machine dgx-a100 --nccl 2.27.3 --source aiconfigurator -o a100.csv
    """
    if machine is None and not machine_note:
        raise BadInput("which machine? valid: --machine NAME, or --machine-note TEXT")
    name = "" if machine is None else catalogue.load(machine).name
    facts = MeasuredHeader(
        title=title,
        machine=name,
        machine_note=machine_note or "",
        source=MeasuredSource(source, commit, path_in_source or ", ".join(path.name for path in files), licence),
        how_measured=how,
        launch=LAUNCHES[launch],
        network=network,
        environment=parse_assignments(env),
        traps=traps,
    )
    given = Given(nccl, nodes, gpus_per_node, collective)
    table, problems = calibrate.table_of(files, facts, given, _topology(machine, topology))
    measured.write(out, table)
    if as_json:
        summary = {"file": str(out), **to_json(_listed(table)), "left_out": table.header.left_out}
        print_json({**summary, "name": out.stem, "problems": [_record(path, each) for path, each in problems]})
        return
    for path, each in problems:
        click.echo(_line(path, each), err=True)
    left = ", ".join(f"{count} {reason}" for reason, count in table.header.left_out.items())
    click.echo(f"{out}: {len(table.rows)} rows" + (f"; left out: {left}" if left else ""))


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table as ``--json`` lists it."""

    name: str
    title: str
    machine: str
    machine_note: str
    gpu: str
    nccl: str
    nodes: tuple[int, ...]
    gpus_per_node: tuple[int, ...]
    collectives: tuple[str, ...]
    rows: int
    source: MeasuredSource


def _listed(table: MeasuredTable) -> ListedTable:
    head = table.header
    there = {row.collective for row in table.rows}
    return ListedTable(
        name=table.name,
        title=head.title,
        machine=head.machine,
        machine_note=head.machine_note,
        gpu=head.gpu,
        nccl=head.nccl,
        nodes=tuple(sorted({row.nodes for row in table.rows})),
        gpus_per_node=tuple(sorted({row.gpus_per_node for row in table.rows})),
        collectives=tuple(name for name in measured.COLLECTIVES if name in there),
        rows=len(table.rows),
        source=head.source,
    )


def _topology(machine: str | None, file: Path | None) -> Topology | None:
    if machine is not None and file is not None:
        raise BadInput("--machine and --topology; valid: one of both")
    if file is not None:
        return skeleton.read_complete(file)[1]
    return None if machine is None else catalogue.load(machine).topology


def _record(file: Path, problem: Problem) -> dict[str, object]:
    lines, text = list(problem.lines), problem.text
    return {"file": str(file), "kind": problem.kind, "refused": problem.refused, "lines": lines, "text": text}


def _left_out(file: Path, text: str) -> dict[str, object]:
    """Record of the same form for what is in a file and not in its table."""
    return {"file": str(file), "kind": "left out", "refused": False, "lines": [], "text": text}


def _line(file: Path, problem: Problem) -> str:
    return f"{file}: {'refused: ' if problem.refused else ''}{problem.kind}: {problem.text} ({problem.where})"

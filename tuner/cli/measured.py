"""``nccl-tuner measured``: the shipped tables of public measured times, and your own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tuner import release
from tuner.answers import known
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.nouns import Shape
from tuner.base.records import to_json
from tuner.base.view import in_percent
from tuner.cli import options
from tuner.cli.command import FILE, Params, excludes, has, only
from tuner.cli.measured_options import site_options
from tuner.cli.output import json_wanted, plural, print_json, print_table, shown_as_json, span, verdict
from tuner.machine import catalogue
from tuner.release.environment import parse_assignments
from tuner.scenario.describe import describe
from tuner.times import measured, telling
from tuner.times.acceptance import own_runs
from tuner.times.calibration import calibrate, plausible
from tuner.times.measured import Problem, formats
from tuner.times.measured.formats import Given
from tuner.times.measured.header import (
    Header,
    MeasuredLaunch,
    MeasuredSource,
    table_record,
)
from tuner.times.placement import Site

LAUNCHES = {launch.name.replace("_", "-"): launch for launch in MeasuredLaunch}
HEAD = "Where the times are from"
OF_A_TABLE = (  # parameters with -o alone
    *("machine_note", "source", "commit", "path_in_source", "licence", "title", "how", "launch", "network"),
    *("env", "traps"),
)


def _shipped(files: Sequence[Path]) -> bool:
    return len(files) == 1 and str(files[0]) in (*measured.names(), *own_runs.names())


def _reads(params: Params) -> bool:
    return not (params["out"] or params["keep"])


RULES = (
    only("--forget", "forget", when=has("forget")),
    excludes("--keep", "out", when=has("keep")),
    only("--next", "count", "machine", "topology", "nccl", "nodes", "gpus_per_node", when=has("count")),
    only(
        "the list of tables (no FILE)",
        "machine",
        "forget",
        when=lambda params: not any(map(params.get, ("files", "keep", "count"))),
    ),
    only("NAME of a shipped table", "files", when=lambda params: _reads(params) and _shipped(params["files"])),
    excludes("FILEs without -o", *OF_A_TABLE, when=lambda params: bool(params["files"]) and _reads(params)),
)


@click.command(name="measured", cls=options.Command, rules=RULES)
@options.under(HEAD, "--machine-note", "--commit", "--path", "--licence", "--title", "--how", "--launch", "--network")
@options.under(HEAD, "--env", "--trap")
@click.argument("files", metavar="[NAME|FILE]...", nargs=-1, type=FILE)
@site_options
@options.option(
    "--machine-note",
    "A sentence on what is known about the machine and how sure that is; needed with -o if there is no --machine.",
    metavar="TEXT",
)
@options.option(
    "--source", "Where the numbers come from, such as a repository or a document; needed with -o.", metavar="TEXT"
)
@options.option("--commit", "Commit or date of the source of the numbers.", metavar="TEXT", default="not stated")
@options.option(
    "--path", "path_in_source", "Path of the files in the source. [default: the files' names]", metavar="TEXT"
)
@options.option("--licence", "The licence of the numbers.", metavar="TEXT", default="not stated")
@options.option(
    "--title", "Title of the table: a line that says what it contains.", metavar="TEXT", default="", show_default=False
)
@options.option(
    "--how", "How the times were measured. [default: as FILE says]", metavar="TEXT", default="", show_default=False
)
@options.option("--launch", "How the ranks were started.", type=click.Choice(list(LAUNCHES)), default="unknown")
@options.option(
    "--network",
    "The network between nodes, such as InfiniBand, sockets or a plugin's name.",
    metavar="TEXT",
    default="",
    show_default=False,
)
@options.option(
    "--env", "A NCCL variable that was set during the measurement; repeatable.", multiple=True, metavar="NAME=VALUE"
)
@options.option(
    "--trap", "traps", "A pitfall that users of the numbers must know; repeatable.", multiple=True, metavar="TEXT"
)
@options.out_option("OUT.csv", "Write the times of all FILEs as one table to this file.", required=False)
@options.option(
    "--keep",
    "Keep FILEs under this name as a healthy run of your own, with which 'accept' compares later runs.",
    metavar="NAME",
)
@options.option("--forget", "Remove the kept run with this name.", metavar="NAME")
@options.option(
    "--next",
    "count",
    "Show which N calls to measure first on --nodes of --machine, as commands of nccl-tests.",
    type=click.IntRange(1, 16),
    metavar="N",
)
@options.json_option
def command(
    files: tuple[Path, ...],
    site: Site,
    given: Given,
    out: Path | None,
    keep: str | None,
    forget: str | None,
    count: int | None,
    **head: Any,
) -> None:
    """Lists the shipped tables of measured times; with NAME, shows everything about one table; with FILEs, says what is
    wrong with them.

    FILEs are text or JSON of nccl-tests, aiconfigurator's parquet, runs of 'measure', or columns. Faults are reported
    with their lines: wrong units or labels, repeated rows, implausible curves, faulty runs, and times that the links of
    --machine cannot reach; exit code 1 if rows cannot be used. With -o the FILEs become one table, and numbers that
    cannot be true are refused. Without NAME and FILE, --machine lists one machine's tables; with NAME, --json has the
    table's rows. --keep keeps FILEs as a healthy run of your own: 'accept' compares with it from then on.

    \b
    nccl-tuner measured
    nccl-tuner measured b200-8x-64n__2.29.7__together
    nccl-tuner measured --next 4 --machine dgx-h100 --nodes 4
    nccl-tuner measured run.log --machine dgx-h100
    nccl-tuner measured all_reduce.log --machine dgx-h100 --source "our cluster, 2026-11-20" -o h100.csv
    nccl-tuner measured all_reduce.log --machine dgx-h100 --source "pod 7, 2026-11-20" --keep pod7
    nccl-tuner measured nccl_perf.parquet --machine dgx-a100 --nccl 2.27.3 --source aiconfigurator -o a100.csv
    """
    given = replace(given, nccl=site.nccl)
    if site.machine is not None and site.topology is not None:
        raise BadInput("give either --machine or --topology")
    if forget is not None:
        own_runs.forget(forget)
        click.echo(f"{forget}: forgotten")
    elif keep is not None:
        _keep(files, keep, site, given, head)
    elif count is not None:
        _print_next(site, given, count)
    elif not files:
        _print_tables(site.machine)
    elif out is not None:
        _write_table(files, out, site, given, head)
    elif _shipped(files):
        _print_table(str(files[0]))
    else:
        _check(files, site, given)


def _keep(files: tuple[Path, ...], name: str, site: Site, given: Given, head: Mapping[str, Any]) -> None:
    """Keeps FILEs as a run of the user, if other runs show that it is healthy and the user says where it comes from."""
    wanted = [] if files else ["a FILE with what nccl-tests printed"]
    wanted += [] if site.machine or site.topology else ["the machine (--machine NAME or --topology FILE.xml)"]
    wanted += [] if head["source"] else ["where the numbers come from (--source TEXT)"]
    if wanted:
        raise BadInput(f"--keep {name} needs {' and '.join(wanted)}")
    table, problems = calibrate.table_of(files, _facts(files, site, head), given, site.node[0])
    scenario = describe(site.machine, topology=site.topology, nccl=table.header.nccl or site.nccl or None)
    curves = own_runs.keep(name, table, scenario, files)
    if shown_as_json({"name": name, "curves": len(curves), "folder": str(own_runs.folder())}):
        return
    for path, each in problems:
        click.echo(_line(path, each), err=True)
    click.echo(
        f"{name}: kept {plural(len(curves), 'curve')} in {own_runs.folder()}; 'accept' compares with them from now on"
    )


def _print_next(site: Site, given: Given, count: int) -> None:
    if (site.machine is None and site.topology is None) or given.nodes is None:
        raise BadInput("--next needs the cluster: --machine NAME or --topology FILE.xml, and --nodes N")
    site = replace(site, nccl=site.nccl or release.names()[-1]).completed(())
    topology = site.node[0]
    gpus = given.gpus_per_node or (0 if topology is None else len(topology.gpus))
    found = telling.telling_calls(site, Shape(given.nodes, gpus), count)
    measure, fit = _measure_command(found), _fit_command(site, found.calibration)
    if json_wanted():
        print_json({**to_json(found), "measure_command": measure, "fit_command": fit})
        return
    click.echo(
        f"expected median error: {in_percent(found.error_before)} before any is measured, "
        f"{in_percent(found.calls[-1].error_after)} after {plural(len(found.calls), 'call')}"
    )
    click.echo("\nerror     measure this call next, the most useful first")
    for each in found.calls:
        click.echo(f"{in_percent(each.error_after):>8}  {each.command}")
    click.echo("\nor measure all of them with every algorithm and protocol (needs mpi4py):")
    click.echo(_on_lines(measure, " --bytes "))
    click.echo("\nthen make a calibration, for --calibration own.json:")
    click.echo(_on_lines(fit, " --name "))


def _measure_command(found: telling.TellingCalls) -> str:
    calls = [each.call for each in found.calls]
    collectives = dict.fromkeys(call.collective.name.lower() for call in calls)
    sizes = [telling.short_size(nbytes) for nbytes in sorted({call.bytes for call in calls})]
    measure = f"nccl-tuner measure {' '.join(collectives)} --bytes {','.join(sizes)} --out rows.jsonl"
    return f"{telling.launcher(found.calls[0].shape)} {measure}"


def _fit_command(site: Site, calibration: str) -> str:
    node = f"--machine {site.machine}" if site.machine else "--topology FILE.xml"
    return f"nccl-tuner fit calibration --update {calibration} rows.jsonl {node} --name own -o own.json"


def _on_lines(command: str, before: str) -> str:
    """Breaks a command into two lines for a shell; the second one begins with an option."""
    first, option, rest = command.partition(before)
    return f"  {first} \\\n      {option.strip()} {rest}"


def _print_table(name: str) -> None:
    table = own_runs.load(name) if name in own_runs.names() else measured.load(name)
    if json_wanted():
        rows = [{"line": row.line, **measured.columns_of(row)} for row in table.blocks]
        print_json({"name": table.name, "header": table_record(table.header), "rows": rows})
        return
    for line in measured.text(table).partition("\ncollective,")[0].splitlines():
        click.echo(line.removeprefix("#").removeprefix(" "))


def _print_tables(machine: str | None) -> None:
    listed = known.measured(machine)
    if shown_as_json(listed.records, "tables"):
        return
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


def _check(files: tuple[Path, ...], site: Site, given: Given) -> None:
    tables = [(path, formats.read(measured.file_of(path), given)) for path in files]
    for path, table in tables:
        if not table.blocks and not table.header.left_out:
            raise BadMeasurement(f"{path} has no measured times: give a file that nccl-tests printed")
    problems = [(path, each) for path, table in tables for each in plausible.judge(table, *site.node)]
    left = [(path, f"{count} {why}") for path, table in tables for why, count in table.header.left_out.items() if count]
    if json_wanted():
        found = [*(_record(path, each) for path, each in problems), *(_left_out(path, text) for path, text in left)]
        print_json(found, "problems")
    else:
        refused = sum(each.refused for _, each in problems)
        said = f"{refused} of {plural(len(problems), 'problem')} make rows unusable"
        fine = "nothing is wrong with the rows that can be read" if left else "nothing is wrong"
        click.echo(verdict(said if problems else fine, not refused))
        for path, each in problems:
            click.echo(_line(path, each))
        for path, text in left:
            click.echo(f"{path}: left out: {text}")
    if any(each.refused for _, each in problems):
        click.get_current_context().exit(1)


def _write_table(
    files: tuple[Path, ...],
    out: Path,
    site: Site,
    given: Given,
    head: Mapping[str, Any],
) -> None:
    note, source = head["machine_note"], head["source"]
    wanted = [] if site.machine or note else ["the machine (--machine NAME or --machine-note TEXT)"]
    wanted += [] if source else ["where the numbers come from (--source TEXT)"]
    if wanted:
        raise BadInput(f"{out}: to write a table, also give {' and '.join(wanted)}")
    table, problems = calibrate.table_of(files, _facts(files, site, head), given, site.node[0])
    measured.write(out, table)
    if json_wanted():
        summary = {"file": str(out), **to_json(known.listed_table(table)), "left_out": table.header.left_out}
        print_json({**summary, "name": out.stem, "problems": [_record(path, each) for path, each in problems]})
        return
    for path, each in problems:
        click.echo(_line(path, each), err=True)
    left = ", ".join(f"{count} {reason}" for reason, count in table.header.left_out.items())
    click.echo(f"{out}: {len(table.blocks)} rows" + (f"; left out: {left}" if left else ""))


def _facts(files: tuple[Path, ...], site: Site, head: Mapping[str, Any]) -> Header:
    """The values of the options about the times in FILEs."""
    path_in_source = head["path_in_source"] or ", ".join(path.name for path in files)
    return Header(
        title=head["title"],
        machine="" if site.machine is None else catalogue.load(site.machine).name,
        machine_note=head["machine_note"] or "",
        source=MeasuredSource(head["source"], head["commit"], path_in_source, head["licence"]),
        how_measured=head["how"],
        launch=LAUNCHES[head["launch"]],
        network=head["network"],
        variables=parse_assignments(head["env"]),
        traps=head["traps"],
    )


def _record(file: Path, problem: Problem) -> dict[str, object]:
    lines, text = list(problem.lines), problem.text
    return {"file": str(file), "kind": problem.kind, "refused": problem.refused, "lines": lines, "text": text}


def _left_out(file: Path, text: str) -> dict[str, object]:
    """The record for something in a file that is not in its table."""
    return {"file": str(file), "kind": "left out", "refused": False, "lines": [], "text": text}


def _line(file: Path, problem: Problem) -> str:
    return f"{file}: {'refused: ' if problem.refused else ''}{problem.kind}: {problem.text} ({problem.where})"

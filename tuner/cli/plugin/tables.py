"""``nccl-tuner plugin convert``, ``lint``, ``compile``: decision tables as files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import click

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.base.names import Collective, DataType, Op
from tuner.base.records import json_form, today
from tuner.cli import options
from tuner.cli.command import FILE
from tuner.cli.output import command_line, json_wanted, plural, say, shown_as_json, verdict
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.plugin import compile, headers, lint, lint_scenario
from tuner.plugin.compile import between, held_out
from tuner.plugin.dry_run import CommunicatorSize
from tuner.plugin.formats import convert, measured
from tuner.plugin.headers import NOTE, TableFinding
from tuner.plugin.lint import GAPS
from tuner.plugin.table import parse
from tuner.plugin.table.records import Table
from tuner.plugin.table.values import GPUS
from tuner.scenario import Scenario


@click.command(name="convert", cls=options.Command)
@click.argument("file", metavar="IN", type=FILE)
@options.out_option("OUT", "Write to this file instead of standard output.", required=False)
@options.option(
    "--to",
    "target",
    "Format to write: nccl-tuner's own, that of NVIDIA's example plugin, or one of Meta's NCCLX.",
    type=click.Choice(convert.FORMATS),
    default="table",
)
@options.json_option
def convert_command(file: Path, out: Path | None, target: str) -> None:
    """Writes a decision table in another format; the format of IN is recognised by its content.

    If the other format cannot express a row, the error names that row, and nothing is written.

    \b
    nccl-tuner plugin convert nccl_tuner.conf > my.table
    nccl-tuner plugin convert my.table --out ncclx.csv --to ncclx-csv
    """
    if out is None and json_wanted():
        raise BadInput("--json says what was written: add --out OUT")
    read = convert.read(file)
    text = convert.to_text(read, target)
    if out is None:
        click.echo(text, nl=False)
        return
    write_text(out, text)
    rows = len(read.table.decisions)
    if not shown_as_json({"from": read.format, "to": target, "out": str(out), "rows": rows}):
        click.echo(f"{out}: {plural(rows, 'row')} of {file} ({read.format}) as {target}")


@click.command(name="lint", cls=options.Command)
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@options.communicator_options(build=True)
@options.call_options(buffers=False, in_place=False, windows=False)
@options.libnccl_option(
    "Load one FILE into the real libnccl on simulated GPUs instead, and show for each row, at one of its sizes, what "
    "is launched without the table and with it. Exit code 1 if a row for this communicator has no effect, because "
    "another row matches all its calls, or because NCCL cannot run what the row names."
)
@options.json_option
def lint_command(
    files: tuple[Path, ...],
    call: Request,
    libnccl: float | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Finds what is wrong with each decision table FILE, in any format that 'plugin convert' reads.

    Without options it finds rows that never decide, overlap or leave gaps, and choices that no NCCL runs. With --nccl
    it also finds what that release cannot do; with a machine as well (by default with the release that the table
    names), what cannot run there, and why. For NCCLX's JSON, line numbers are the numbers of its rules. Exit code 1 if
    there are warnings or errors, 0 if there are only notes. The JSON for several files is a list.

    \b
    nccl-tuner plugin lint my.table
    nccl-tuner plugin lint my.table --machine dgx-h100 --nodes 2 --nccl 2.28.9 --json
    nccl-tuner plugin lint my.table --machine dgx-h100 --nodes 2 --nccl 2.28.9 --libnccl
    """
    if libnccl is not None:
        if len(files) > 1 or call != options.PLAIN:
            raise BadInput(
                "--libnccl takes one FILE, whose rows say the data types: remove other FILEs, --dtype and --op"
            )
        from tuner.cli.plugin.trials import show_tried

        show_tried(files[0], communicator.scenario(), libnccl)
        return
    tables = [(file, convert.read(file)) for file in files]
    linted = []
    checks: dict[str | None, list[Callable[[Table], list[TableFinding]]]] = {}
    for file, read in tables:
        running = _release_of(read.table, communicator)
        if running not in checks:
            checks[running] = list(_checks(communicator.but(nccl=running), call.dtype, call.op))
        findings = [finding for check in checks[running] for finding in check(read.table)]
        linted.append(_Linted(file, read, sorted(findings, key=lambda finding: finding.line)))
    if not shown_as_json(linted, "tables"):
        for each in linted:
            each.print()
    if any(each.bad for each in linted):
        raise SystemExit(1)


def _release_of(table: Table, given: options.CommunicatorOptions) -> str | None:
    """The requested release; if a machine is given without a release, the first one that the table names."""
    asked: str | None = given["nccl"]
    if asked or given["log"] or not given.says_where:
        return asked
    words = (word.strip() for word in table.provenance.get(headers.NCCL, "").split(","))
    return next((word for word in words if word in release.names()), None)


def _checks(
    given: options.CommunicatorOptions, dtype: DataType, op: Op
) -> Iterator[Callable[[Table], list[TableFinding]]]:
    """The checks for every table, from the described communicator or release."""
    yield lint.check
    if given.says_where:
        described = given.scenario()
        communicator = described.communicator()
        yield lambda table: lint_scenario.check_release(table, communicator.release)
        yield lambda table: lint_scenario.check_communicator(table, communicator, dtype, op)
        yield lambda table: lint_scenario.check_types(table, communicator)
        for machine in [kind.machine for kind in described.kinds if kind.machine]:
            yield partial(headers.check_machine, machine=machine)
    elif given["nccl"]:
        loaded = release.load(given["nccl"])
        yield lambda table: lint_scenario.check_release(table, loaded)


@dataclass(frozen=True, slots=True)
class _Linted:
    """A table with its findings in the order of lines."""

    file: Path
    read: convert.File = field(metadata=json_form("format", convert=lambda read: read.format))
    findings: list[TableFinding]

    @property
    def bad(self) -> int:
        return sum(finding.severity != NOTE for finding in self.findings)

    def print(self) -> None:
        table = self.read.table
        rows = len(table.decisions) + len(table.costs) + len(table.constants)
        notes = len(self.findings) - self.bad
        said = f"{self.file}: {plural(rows, 'row')} ({self.read.format}), {self.bad} warnings and errors, "
        click.echo(verdict(said + plural(notes, "note"), not self.bad))
        for finding in self.findings:
            click.echo(f"{self.read.place(finding.line)}: {finding.severity}: {finding.reason}")


@click.command(name="compile", cls=options.Command)
@options.under("Which rows", "--interpolate", "--channels", "--for")
@options.collectives_argument
@options.communicator_options()
@options.option(
    "--as",
    "form",
    "Write rows that name the release's picks (decisions), or rows with the release's times, from which another "
    "release then picks (costs).",
    type=click.Choice(["decisions", "costs"]),
    default="decisions",
)
@options.option(
    "--interpolate",
    "node_counts",
    "Write rows for these node counts, and for those between with edges interpolated over the ranks; replaces --nodes.",
    metavar="NODES,NODES,...",
)
@options.flag("--channels", "Also set the number of channels that the release allows at most.")
@options.option(
    "--for",
    "runs",
    "The release that will use the table: rows that it cannot run are left out, with a note.",
    metavar="RELEASE",
)
@options.file_option(
    "--measured",
    "samples",
    "FILE.csv",
    "Instead of a machine: a CSV of measurements with the columns of NVIDIA's optimize_config.py.",
)
@options.out_option("TABLE", "The table to write.")
@options.json_option
def compile_command(
    collectives: tuple[Collective, ...],
    form: str,
    node_counts: str | None,
    channels: bool,
    runs: str | None,
    samples: Path | None,
    out: Path,
    communicator: options.CommunicatorOptions,
) -> None:
    """Writes a decision table that makes other releases pick like one release on a machine, or pick what was measured
    fastest.

    Its rows only apply to this number of ranks and nodes, or with --interpolate to several numbers of nodes and those
    between them: in each gap, one number is held out, and a note compares the interpolated rows with the picks there.
    Size ranges are exact to the byte, except in interpolated rows. Without COLLECTIVE: all five.

    \b
    nccl-tuner plugin compile --machine dgx-h100 --nodes 2 --nccl 2.28.9 --as costs --for 2.21.5 --out as-2.28.table
    nccl-tuner plugin compile --machine dgx-h100 --interpolate 2,8,32 --nccl 2.28.9 --out to-32-nodes.table
    nccl-tuner plugin compile --measured sweep.csv --out best.table
    """
    wanted = tuple(dict.fromkeys(collectives or Collective))
    if samples is not None:
        described = any(communicator.given.values()) or communicator["nodes"] is not None
        if described or form == "costs" or channels or runs or node_counts:
            raise BadInput(
                "--measured only goes with COLLECTIVE and --out, as its file has everything that goes into the table"
            )
        table, notes = _measured(samples, wanted)
    elif node_counts is not None:
        table, notes = _interpolated(communicator.scenario(), wanted, form, channels, runs, _counts(node_counts))
    else:
        table, notes = _emulated(communicator.scenario(), wanted, form, channels, runs)
    parse.write(out, table)
    for note in notes:
        say(f"note: {note}", err=True)
    counts = {"decisions": len(table.decisions), "costs": len(table.costs)}
    if not shown_as_json({"out": str(out), **counts, "notes": notes}):
        say(f"{out}: {plural(counts['decisions'] or counts['costs'], 'row')}")


def _emulated(
    scenario: Scenario, collectives: Sequence[Collective], form: str, channels: bool, runs: str | None
) -> tuple[Table, list[str]]:
    """The table and notes on it; ``form`` is decisions or costs, ``runs`` the release that will run it."""
    if form == "costs" and channels:
        raise BadInput("--channels only applies with --as decisions, as cost rows set no channels")
    if scenario.ranks == 1:
        raise BadInput("with one rank there is nothing to choose, as NCCL only copies the data")
    selection = Selection(scenario.communicator())
    other = None if runs is None else Selection(replace(scenario, nccl=release.load(runs).name).communicator())
    provenance = {"machine": scenario.title.rpartition(", NCCL ")[0], "release": f"NCCL {scenario.nccl}", **_written()}
    if scenario.gpu_names:
        provenance[GPUS] = ", ".join(scenario.gpu_names)
    if other is not None:
        provenance["for"] = f"NCCL {other.communicator.release.name}"
        provenance[headers.NCCL] = other.communicator.release.name
    provenance["calls"] = "float32, sum, plain buffers"
    if form == "costs":
        costs = compile.costs(selection, collectives)
        notes = [] if other is None else compile.notes_on_costs(costs, other)
        return Table(costs=tuple(costs), provenance=provenance), notes
    rows, notes = compile.decisions(selection, collectives, channels), []
    if other is not None:
        every = len(rows)
        rows, notes = compile.for_release(rows, other)
        if len(rows) < every:
            provenance[GAPS] = f"what NCCL {other.communicator.release.name} cannot run is left to its own choice"
    return Table(tuple(rows), provenance=provenance), notes


def _counts(text: str) -> list[int]:
    try:
        counts = sorted({int(word) for word in text.split(",")})
    except ValueError:
        counts = []
    if len(counts) < 2 or counts[0] < 1:
        raise BadInput(f"--interpolate {text}: expected two or more numbers of nodes, as in 2,4,8")
    return counts


def _interpolated(
    scenario: Scenario,
    collectives: Sequence[Collective],
    form: str,
    channels: bool,
    runs: str | None,
    counts: list[int],
) -> tuple[Table, list[str]]:
    if form == "costs" or scenario.nodes != 1:
        raise BadInput(
            "--interpolate already names the numbers of nodes, and only works with --as decisions: remove --nodes and "
            "--as costs"
        )
    compiled = {count: _emulated(scenario.with_nodes(count), collectives, form, channels, runs) for count in counts}
    known = {CommunicatorSize(count * scenario.ranks, count): table.decisions for count, (table, _) in compiled.items()}
    rows = between(known)
    notes = [f"{count} nodes: {note}" for count, (_, each) in compiled.items() for note in each]
    provenance = dict(compiled[counts[0]][0].provenance)
    listed = ", ".join(map(str, counts))
    provenance["machine"] = f"{listed} x{provenance['machine'].partition(' x')[2]}"
    provenance["interpolated"] = (
        f"rows of other numbers of nodes, from those of {listed} nodes: the logarithm of each edge is linear in the "
        "logarithm of the ranks"
    )
    for number, (below, above) in enumerate(pairwise(counts), start=1):
        if above - below > 1:
            middle = round((below * above) ** 0.5)
            there = Selection(scenario.with_nodes(middle).communicator())
            provenance[f"held-out-{number}"] = str(held_out(rows, there))
            notes.append(f"held out between {below} and {above}, {provenance[f'held-out-{number}']}")
    every = [row for table, _ in compiled.values() for row in table.decisions]
    return Table((*every, *rows), provenance=provenance), notes


def _measured(file: Path, collectives: Sequence[Collective]) -> tuple[Table, list[str]]:
    kept = {where: sizes for where, sizes in measured.read(file).items() if where.collective in collectives}
    rows, notes = measured.decisions(kept)
    return Table(tuple(rows), provenance={"measurements": file.name, **_written()}), notes


def _written() -> dict[str, str]:
    return {"by": command_line(), "date": today()}

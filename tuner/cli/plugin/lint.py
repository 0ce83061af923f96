"""``nccl-tuner plugin lint``: what is wrong with a decision table."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from tuner import release
from tuner.base.names import DataType, Op
from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.output import print_json
from tuner.plugin import headers, lint, lint_scenario
from tuner.plugin.findings import NOTE, Finding
from tuner.plugin.formats import convert
from tuner.plugin.table.records import Table


@click.command(name="lint", cls=options.Command)
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE...")
@options.communicator_options()
@options.call_options(buffers=False, in_place=False, windows=False)
@options.json_option
def command(
    files: tuple[Path, ...], call: options.CallOptions, as_json: bool, communicator: options.CommunicatorOptions
) -> None:
    """What is wrong with each decision table FILE, of any format that convert reads.

    By itself: rows that never decide, meet or leave gaps, and what no NCCL runs. With --nccl: what that release does
    not do. With a machine as well: what cannot run there, and why. Lines of NCCLX's JSON are the numbers of its rules.
    Exit code 1 where there are warnings or errors; notes alone are exit code 0. JSON of several files is a list.

    \b
    nccl-tuner plugin lint my.table
    nccl-tuner plugin lint my.table --machine dgx-h100 --nodes 2 --nccl 2.28.9 --json
    """
    tables = [(file, convert.read(file)) for file in files]
    checks = list(_checks(communicator, call.dtype, call.op))
    linted = []
    for file, read in tables:
        findings = [finding for check in checks for finding in check(read.table)]
        linted.append(_Linted(file, read, sorted(findings, key=lambda finding: finding.line)))
    if as_json:
        answers = [each.answer() for each in linted]
        print_json(answers[0] if len(answers) == 1 else answers)
    else:
        for each in linted:
            each.print()
    if any(each.bad for each in linted):
        raise SystemExit(1)


def _checks(given: options.CommunicatorOptions, dtype: DataType, op: Op) -> Iterator[Callable[[Table], list[Finding]]]:
    """What is looked at of every table, once the communicator or the release is known."""
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
    """A table with what was found, by line."""

    file: Path
    read: convert.File
    findings: list[Finding]

    @property
    def bad(self) -> int:
        return sum(finding.severity != NOTE for finding in self.findings)

    def answer(self) -> dict[str, Any]:
        return {"file": str(self.file), "format": self.read.format, "findings": to_json(self.findings)}

    def print(self) -> None:
        for finding in self.findings:
            click.echo(f"{self.read.place(finding.line)}: {finding.severity}: {finding.reason}")
        table = self.read.table
        rows = len(table.decisions) + len(table.costs) + len(table.constants)
        notes = len(self.findings) - self.bad
        click.echo(f"{self.file}: {rows} rows ({self.read.format}), {self.bad} warnings and errors, {notes} notes")

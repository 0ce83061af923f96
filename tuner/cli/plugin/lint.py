"""``nccl-tuner plugin lint``: what is wrong with a decision table."""

from pathlib import Path
from typing import Any

import click

from tuner import release
from tuner.base.names import DataType, Op
from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.output import print_json
from tuner.plugin import headers, lint, lint_scenario
from tuner.plugin.findings import NOTE
from tuner.plugin.formats import convert


@click.command(name="lint")
@click.argument("file", type=click.Path(path_type=Path))
@options.scenario_options
@options.request_options
@options.json_option
def command(file: Path, dtype: DataType, op: Op, as_json: bool, **scenario: Any) -> None:
    """What is wrong with the decision table FILE, of any format that convert reads.

    By itself: rows that never decide, meet or leave gaps, and what no NCCL runs. With --nccl: what that release does
    not do. With a machine as well: what cannot run there, and why. Lines of NCCLX's JSON are the numbers of its rules.
    Exit code 1 where there are warnings or errors; notes alone are exit code 0.

    \b
    nccl-tuner plugin lint my.table
    nccl-tuner plugin lint my.table --machine dgx-h100 --nodes 2 --nccl 2.28.9 --json
    """
    read = convert.read(file)
    findings = lint.check(read.table)
    if scenario["machine"] or scenario["topology"] or scenario["node"] or scenario["log"]:
        described = options.scenario_of(**scenario)
        communicator = described.communicator()
        findings += lint_scenario.check_release(read.table, communicator.release)
        findings += lint_scenario.check_communicator(read.table, communicator, dtype, op)
        findings += lint_scenario.check_types(read.table, communicator)
        for kind in described.kinds:
            findings += headers.check_machine(read.table, kind.machine) if kind.machine else []
    elif scenario["nccl"]:
        findings += lint_scenario.check_release(read.table, release.load(scenario["nccl"]))
    findings.sort(key=lambda finding: finding.line)
    bad = sum(finding.severity != NOTE for finding in findings)
    if as_json:
        print_json({"file": str(file), "format": read.format, "findings": to_json(findings)})
    else:
        for finding in findings:
            click.echo(f"{read.place(finding.line)}: {finding.severity}: {finding.reason}")
        rows = len(read.table.decisions) + len(read.table.costs) + len(read.table.constants)
        click.echo(f"{file}: {rows} rows ({read.format}), {bad} warnings and errors, {len(findings) - bad} notes")
    if bad:
        raise SystemExit(1)

"""``nccl-tuner fit alpha-beta``: a latency and a bandwidth for each algorithm and protocol."""

from pathlib import Path
from typing import Any

import click

from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.arm_options import place_options
from tuner.cli.fit.shared import measured_files, percent, print_left_out, title_of
from tuner.cli.gpu_options import library_option
from tuner.cli.output import print_json, print_table, say
from tuner.cli.provenance import command_line
from tuner.times.calibration.workflow import AlphaBetaReport, fit_alpha_beta


@click.command(name="alpha-beta", cls=options.Command)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@place_options
@click.option(
    "--cost-table",
    type=click.Path(path_type=Path),
    metavar="TABLE",
    help="Write the times as `cost` rows of a decision table, for the plugin.",
)
@library_option
@options.json_option
def command(files: tuple[Path, ...], cost_table: Path | None, as_json: bool, **given: Any) -> None:
    """Fits a latency and a bandwidth to each algorithm and protocol that FILEs measured apart.

    FILEs are those that 'fit constants' takes, of one machine and release. Every fourth size is held out.

    \b
    nccl-tuner fit alpha-beta two-nodes.jsonl --cost-table pod.table
    """
    read, files = measured_files(files, given)
    fits = fit_alpha_beta(files, cost_table=cost_table, command=command_line(), measured=read)
    if as_json:
        print_json(to_json(fits))
    else:
        _print(fits, cost_table)


def _print(report: AlphaBetaReport, cost_table: Path | None) -> None:
    columns = (
        "collective",
        "combination",
        "ranks",
        "nodes",
        "calls",
        "alpha us",
        "+-",
        "beta GB/s",
        "+-",
        "R2",
        "error %",
        "held out %",
    )
    print_table(
        title_of(report.files),
        columns,
        [
            (
                one.collective.name,
                f"{one.algorithm.name}/{one.protocol.name}",
                one.ranks,
                one.nodes,
                one.calls,
                f"{one.alpha_us:.2f}",
                f"{one.alpha_deviation_us:.2f}",
                f"{one.beta_gbs:.2f}",
                f"{one.beta_deviation_gbs:.2f}",
                f"{one.r2:.4f}",
                percent(one.error_percent),
                percent(one.held_out_error_percent),
            )
            for one in report.fits
        ],
    )
    for reason in report.without:
        say(f"not fitted: {reason}")
    print_left_out(report.files)
    if cost_table is not None:
        say(f"{cost_table}: {sum(one.known for one in report.fits)} rows")

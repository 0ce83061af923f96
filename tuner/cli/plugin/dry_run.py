"""``nccl-tuner plugin dry-run``: what a decision table makes of sizes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.output import human_bytes, print_json, print_table
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.plugin import trial
from tuner.plugin.dry_run import WARN
from tuner.release.environment import parse_assignments


@click.command(name="dry-run")
@click.argument("table", type=click.Path(path_type=Path))
@options.collective_argument
@options.bytes_option
@options.scenario_options
@options.request_options
@options.buffers_option
@click.option(
    "--pipelined",
    type=click.IntRange(1, 2**31 - 1),
    default=1,
    show_default=True,
    help="numPipeOps: operations that NCCL counts together.",
)
@click.option(
    "--grouped",
    type=click.IntRange(2, 1000),
    metavar="N",
    help="Also N such calls in one group: the grids of its kernels. NCCL 2.21 and later.",
)
@options.json_option
def command(
    table: Path,
    collective: Collective,
    sizes: list[int],
    dtype: DataType,
    op: Op,
    buffers: Buffers,
    pipelined: int,
    grouped: int | None,
    as_json: bool,
    env: tuple[str, ...],
    **scenario: Any,
) -> None:
    """Sends sizes through the plugin's own code, with the cost table that the emulator computes.

    Prints NCCL's own pick and the one with TABLE, in any format that the plugin reads. Channels that a row sets are an
    upper bound for each operation: --grouped shows what a group of them launches. --env takes the plugin's variables
    too (NCCL_TUNER_UNCHECKED=1). With --constants also what the table saves: times by the fitted constants, of the pick
    that NCCL makes by its own too. A table that the plugin refuses is exit code 2, with the plugin's own words.

    \b
    nccl-tuner plugin dry-run my.table allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 8,1M,64M
    """
    of_plugin = tuple(text for text in env if text.startswith("NCCL_TUNER_"))
    described = options.scenario_of(**scenario, env=tuple(text for text in env if text not in of_plugin))
    request = Request(collective, dtype, op, pipelined=pipelined, buffers=buffers)
    selection = Selection(described.communicator())
    settings = parse_assignments(of_plugin)
    trials = trial.run(table, selection, request, sizes, settings)
    fitted = described.fitted_constants is not None
    if fitted:
        nccl = Selection(replace(described, fitted_constants=None).communicator())
        trials = trial.against_nccl(trials, nccl, selection, request)
    groups = (
        ()
        if grouped is None
        else trial.grouped(table, selection, [[Operation(request, size)] * grouped for size in sizes], settings)
    )
    if as_json:
        print_json(to_json(trials) | ({"groups": to_json(groups)} if groups else {}))
        return
    title = f"{collective.name} on {described.title}, interface v{trials.interface}"
    print_table(title, FITTED_COLUMNS if fitted else COLUMNS, [_row(each, fitted) for each in trials.sizes])
    if fitted:
        click.echo("times: by the fitted constants, of NCCL's real pick, which goes by its own constants, as well")
    if groups:
        rows = [(human_bytes(each.bytes), _grids(each.own), _grids(each.tuned)) for each in groups]
        print_table(f"{grouped} of them in one group", ("size of each", "grid by NCCL", "grid with the table"), rows)
    for line in trials.log:
        click.echo(f"{'WARN' if line.level == WARN else 'INFO'} {line.text}")


COLUMNS = ("size", "NCCL's own", "time us", "channels", "with the table", "time us", "channels", "line")


# With fitted constants NCCL's own pick is the one it makes without them.
FITTED_COLUMNS = (*COLUMNS[:2], "fitted us", "channels", "with the table", "fitted us", "channels", "saves", "line")


def _row(each: trial.Trial, fitted: bool) -> tuple[object, ...]:
    if each.own is None or each.picked is None:
        return human_bytes(each.bytes), each.bypass_kernel, *(7 if fitted else 6) * ("-",)
    if each.fitted is None:
        return human_bytes(each.bytes), *_pick(each.own), *_pick(each.picked), _lines(each)
    saved = each.fitted.saved_percent
    saves = "-" if saved is None else f"{saved:.1f} %"
    return human_bytes(each.bytes), *_pick(each.fitted), *_pick(each.picked), saves, _lines(each)


def _grids(grids: tuple[int, ...]) -> str:
    """Of one kernel or several, one after the other."""
    return " + ".join(map(str, grids))


def _pick(pick: trial.TrialPick | trial.FittedPick) -> tuple[object, ...]:
    time_us = f"{pick.time_us:.2f}" if pick.time_us >= 0 else "-"
    return f"{pick.algorithm.name}/{pick.protocol.name}", time_us, pick.channels


def _lines(each: trial.Trial) -> str:
    lines = {"": each.decision, "cannot run ": each.unavailable, "cost ": each.cost}
    return ", ".join(f"{what}{line}" for what, line in lines.items() if line is not None) or "-"

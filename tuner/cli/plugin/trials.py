"""``nccl-tuner plugin dry-run``: decision tables in the plugin; and what they do in the real libnccl."""

from dataclasses import replace
from pathlib import Path

import click

from tuner.answers import tried
from tuner.base.names import Collective
from tuner.base.records import to_json
from tuner.base.view import percent
from tuner.cli import options
from tuner.cli.command import FILE
from tuner.cli.output import human_bytes, json_wanted, number, print_json, print_table, say
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.answers import OracleLaunch
from tuner.plugin import trial
from tuner.plugin.dry_run import WARN
from tuner.plugin.trial import Bypass
from tuner.release.environment import parse_assignments
from tuner.scenario import Scenario


@click.command(name="dry-run", cls=options.Command)
@click.argument("table", type=FILE)
@options.collective_argument
@options.bytes_option
@options.communicator_options()
@options.call_options(windows=False)
@options.option(
    "--pipelined",
    "Number of operations that NCCL counts together (numPipeOps).",
    type=click.IntRange(1, 2**31 - 1),
    default=1,
)
@options.option(
    "--grouped",
    "Also show the grids of the kernels for N such calls in one group (NCCL 2.21 and later).",
    type=click.IntRange(2, 1000),
    metavar="N",
)
@options.json_option
def dry_run_command(
    table: Path,
    collective: Collective,
    sizes: list[int],
    call: Request,
    pipelined: int,
    grouped: int | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Sends sizes through the plugin's own code, with the cost table that the emulator computes.

    Prints NCCL's own pick and the pick with TABLE, which may have any format that the plugin reads. Channels that a row
    sets are an upper bound for each operation; --grouped shows what a group of operations launches. --env takes the
    plugin's variables too (NCCL_TUNER_UNCHECKED=1). With --constants it also prints how much time the table saves; all
    times are then by the fitted constants, also that of NCCL's own pick. If the plugin refuses the table, the exit code
    is 2, and the message is the plugin's.

    With --buffers window, and wherever symmetric kernels may take a call, the column "tuner" says what a tuner decides:
    its choice (algorithm, protocol, channels); only its protocol, as NCCL only uses a low-latency kernel if the tuner
    answers LL; or nothing, if NCCL uses a kernel or copy engines whatever the tuner answers.

    \b
    nccl-tuner plugin dry-run my.table allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 8,1M,64M
    nccl-tuner plugin dry-run my.table allreduce --machine dgx-h100 --nccl 2.29.2 --buffers window
    """
    env = communicator["env"]
    of_plugin = tuple(text for text in env if text.startswith("NCCL_TUNER_"))
    described = communicator.scenario(env=tuple(text for text in env if text not in of_plugin))
    request = replace(call, collective=collective, pipelined=pipelined)
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
    if json_wanted():
        print_json(to_json(trials) | ({"groups": to_json(groups)} if groups else {}))
        return
    title = f"{collective.name} on {described.title}, interface v{trials.interface}"
    if trials.ignored is not None:
        say(f"{trials.ignored}, and NCCL's own picks stay")
    bypassing = any(each.tuner is not None for each in trials.sizes)
    columns = (*(FITTED_COLUMNS if fitted else COLUMNS), *(("tuner",) if bypassing else ()))
    print_table(title, columns, [_row(each, fitted, bypassing) for each in trials.sizes])
    if fitted:
        click.echo(
            "all times are by the fitted constants, also that of NCCL's pick, which NCCL makes by its own constants"
        )
    if any(each.bypass or each.own_bypass for each in trials.sizes):
        click.echo(SYMMETRIC_MODEL)
    if groups:
        rows = [(human_bytes(each.bytes), _grids(each.own), _grids(each.tuned)) for each in groups]
        print_table(f"{grouped} of them in one group", ("size of each", "grid by NCCL", "grid with the table"), rows)
    for line in trials.log:
        click.echo(f"{'WARN' if line.level == WARN else 'INFO'} {line.text}")


COLUMNS = ("size", "NCCL's own", "time us", "channels", "with the table", "time us", "channels", "line")


# With fitted constants NCCL's own pick is the one it makes without them.
FITTED_COLUMNS = (*COLUMNS[:2], "fitted us", "channels", "with the table", "fitted us", "channels", "saves", "line")


SYMMETRIC_MODEL = (
    "times of symmetric kernels come from NCCL's model of these kernels, which NCCL does not compare with its model "
    "of algorithms"
)


def _row(each: trial.TableTrial, fitted: bool, bypassing: bool) -> tuple[object, ...]:
    own, picked = each.own_bypass or each.own, each.bypass or each.picked
    says = (each.tuner.value if each.tuner else "-",) if bypassing else ()
    if not fitted:
        return human_bytes(each.bytes), *_pick(own), *_pick(picked), _lines(each), *says
    saved = None if each.fitted is None else each.fitted.saved_percent
    return human_bytes(each.bytes), *_pick(each.fitted or own), *_pick(picked), percent(saved), _lines(each), *says


def _grids(grids: tuple[int, ...]) -> str:
    """Text with the grids of one or several kernels, in their order."""
    return " + ".join(map(str, grids))


def _pick(pick: trial.TrialPick | trial.FittedPick | Bypass | None) -> tuple[object, ...]:
    if pick is None:
        return 3 * ("-",)
    time_us = number(None if pick.time_us is None or pick.time_us < 0 else pick.time_us, 2)
    name = pick.name if isinstance(pick, Bypass) else f"{pick.algorithm.name}/{pick.protocol.name}"
    return name, time_us, pick.channels


def _lines(each: trial.TableTrial) -> str:
    lines = {"": each.decision, "cannot run ": each.unavailable, "cost ": each.cost}
    return ", ".join(f"{what}{line}" for what, line in lines.items() if line is not None) or "-"


MOST_SHOWN = 40


def show_tried(table: Path, described: Scenario, timeout_s: float) -> None:
    """Prints every row's effect in the real libnccl; exit code 1 if a row has none."""
    rows = tried.run(table, described, timeout_s)
    idle = [row for row in rows if row.effect in tried.NO_EFFECT]
    if json_wanted():
        print_json({"rows": to_json(rows), "no_effect": [row.line for row in idle]})
    else:
        say(_verdict(rows, idle))
        columns = ("line", "collective", "size", "without", "with the table", "effect")
        shown = [_tried_row(row) for row in rows[:MOST_SHOWN]]
        print_table(f"{table} on {described.title}: the real libnccl", columns, shown)
        if len(rows) > MOST_SHOWN:
            click.echo(f" ... and {len(rows) - MOST_SHOWN} more rows; --json has all")
    if idle:
        raise SystemExit(1)


def _verdict(rows: list[tried.TriedRow], idle: list[tried.TriedRow]) -> str:
    seen = sum(row.bytes is not None for row in rows) - sum(row.bytes is not None for row in idle)
    if idle:
        return f"{len(idle)} of {len(rows)} rows have no effect here: lines {', '.join(str(row.line) for row in idle)}"
    return f"every row for this communicator takes effect: {seen} of {len(rows)} rows were tried"


def _tried_row(row: tried.TriedRow) -> tuple[object, ...]:
    size = "-" if row.bytes is None else human_bytes(row.bytes)
    return row.line, row.collective.name, size, _ran(row.before), _ran(row.after), row.effect.value


def _ran(launched: OracleLaunch | None) -> str:
    if launched is None:
        return "-"
    return f"{launched.algorithm.name}/{launched.protocol.name} x{launched.channels}"

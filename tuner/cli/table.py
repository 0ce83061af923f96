"""``nccl-tuner table``: the tuning table."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tuner.answers import tables
from tuner.answers.tables import TableCell, cells
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, DataType, Op
from tuner.base.sizes import size_list
from tuner.cli import options
from tuner.cli.output import human_bytes, json_wanted, print_json, print_table, say, shown_as_json, width_to_fit
from tuner.emulator import model
from tuner.emulator.fitted_constants import FittedConstants
from tuner.emulator.model import Tables
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.answers.calibrated import TimesWanted


DEFAULT_SIZES = "1K,16K,64K,256K,1M,16M,256M,1G"


@click.command(name="table", cls=options.Command)
@options.communicator_options(build=True)
@options.call_options(in_place=False, windows=False)
@options.sizes_option(f"With --buffers window: the sizes of the columns, as NCCL's nBytes. [default: {DEFAULT_SIZES}]")
@options.time_options("nccl")
@options.libnccl_option("Show the real libnccl's table instead.")
@options.json_option
def command(
    call: Request,
    sizes: list[int] | None,
    times: "TimesWanted | None",
    libnccl: float | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """The latencies (us) and bandwidths (GB/s) of every combination, in the layout NCCL prints.

    A narrow terminal shows fewer algorithms side by side. The table holds for all buffers except windows. With
    --buffers window it shows the times of symmetric kernels by NCCL's own model of them: for AllGather, AllReduce and
    ReduceScatter with --dtype and --op, at some sizes.

    \b
    nccl-tuner table --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner table --machine dgx-b200 --nccl 2.32.3 --buffers window --bytes 1K,64K,1M,64M
    nccl-tuner table --machine dgx-h100 --nodes 2 --nccl 2.28.9 --libnccl
    """
    described = communicator.scenario()
    if libnccl is not None:
        if call != options.PLAIN or sizes is not None or times is not None:
            raise BadInput(
                "--libnccl shows one table for all calls: remove --bytes, --dtype, --op, --buffers and --time"
            )
        _show_libnccl(described, libnccl)
        return
    if call.buffers is Buffers.window:
        if times is not None:
            raise BadInput(
                "--time and --calibration do not apply, as no times of symmetric kernels were measured: remove them"
            )
        _windows(described, call, sizes)
        return
    if sizes is not None or (call.dtype, call.op) != (DataType.float32, Op.sum):
        raise BadInput(
            "--bytes, --dtype and --op only apply with --buffers window: without it, the table is the same for all "
            "sizes and types"
        )
    made = described.communicator()
    tables, algorithms = Selection(made).tables, made.release.limits.algorithms
    if times is None or (times.beside_nccl and not json_wanted()):
        if json_wanted():
            print_json(_records(tables, algorithms, described.fitted_constants), "cells")
        else:
            if described.fitted_constants is not None:
                click.echo(f"with the fitted constants {described.fitted_constants.file} instead of NCCL's own")
            if described.standing is not None:
                click.echo(f"NCCL {described.nccl}: {described.standing}")
            _print_lines(model.printed(made, tables), algorithms)
    if times is not None:
        _print_calibrated(_records(tables, algorithms, described.fitted_constants), described, times)


def _show_libnccl(described: Scenario, timeout_s: float) -> None:
    from tuner.answers import library

    tables = library.tables(described, timeout_s)
    algorithms = len(tables.max_threads)
    if shown_as_json(cells(tables, algorithms), "cells"):
        return
    numbers = model.PrintedNumbers(tables.latency_us, tables.bandwidth_gbs, tables.max_threads)
    _print_lines(numbers, algorithms)


def _print_lines(numbers: model.PrintedNumbers, algorithms: int) -> None:
    """Prints the table in NCCL's form, with as many algorithms side by side as fit, at most three like NCCL."""
    for together in (3, 2, 1):
        lines = model.lines(numbers, algorithms, together)
        if max(map(len, lines)) <= width_to_fit():
            break
    click.echo("\n".join(lines))


def _windows(described: Scenario, like: Request, sizes: list[int] | None) -> None:
    from tuner.answers.symmetric import explain_windows
    from tuner.cli.explain import show_table

    explanations = explain_windows(described, like, size_list(DEFAULT_SIZES) if sizes is None else sizes)
    if not shown_as_json(explanations, "kernels"):
        show_table(f"{described.title}: {like.dtype.name} {like.op.name}, window buffers", explanations)


def _records(tables: Tables, algorithms: int, fitted: FittedConstants | None) -> list[TableCell]:
    return cells(tables, algorithms, fitted.record if fitted else None)


def _print_calibrated(records: list[TableCell], scenario: Scenario, wanted: "TimesWanted") -> None:
    from tuner.cli import times

    timed, calibration = tables.with_times(records, scenario, wanted)
    said = times.whose(replace(calibration, not_measured=()))  # the column says it by collective
    if json_wanted():
        print_json(timed, "cells")
        say(said, err=True)
        return
    rows = [
        (
            cell.collective.name,
            f"{cell.algorithm.name}/{cell.protocol.name}",
            times.central(each.smallest),
            times.interval(each.smallest),
            f"{each.large_gbs:.1f}",
            f"{each.large_low_gbs:.1f} to {each.large_high_gbs:.1f}",
            "yes" if each.measured else "no",
        )
        for cell in timed
        if (each := cell.calibrated)
    ]
    if rows:
        size = human_bytes(tables.LARGE_BYTES)
        smallest = "smallest call us", f"{times.INTERVAL} us"
        columns = ("collective", "combination", *smallest, f"GB/s at {size}", f"{times.INTERVAL} GB/s", "measured")
        print_table(f"calibrated times and algorithm bandwidths on {scenario.title}", columns, rows)
    say(said)

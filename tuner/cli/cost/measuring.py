"""``nccl-tuner cost measuring``: how to measure alpha and beta, and what a measurement says."""

from typing import Any

import click

from tuner.base.errors import BadInput, one_of
from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_json, print_table
from tuner.costmodels import measuring
from tuner.costmodels.line import Repeated, repeated
from tuner.costmodels.measuring import EXPERIMENTS, Experiment

_BY_NAME = {each.parameter: each for each in EXPERIMENTS}


@click.command(name="measuring")
@click.argument("parameter", required=False, type=click.Choice(list(_BY_NAME)))
@click.option(
    "--elapsed-us",
    type=values.POSITIVES,
    metavar="US[,US...]",
    help="Elapsed times of all iterations, one for each repetition.",
)
@click.option("--ranks", type=int, help="Ranks of the AllReduce.")
@click.option("--iterations", type=int, help="Of each repetition. [default: the experiment's]")
@click.option("--bytes", "size", type=options.Sizes(), help="Size. [default: the experiment's]")
@options.json_option
def command(
    parameter: str | None,
    elapsed_us: list[float] | None,
    ranks: int | None,
    iterations: int | None,
    size: list[int] | None,
    as_json: bool,
) -> None:
    """The four parameters of two levels, and the ring AllReduce that measures each; with PARAMETER, what one gave.

    Repeat each experiment five times for a mean and a deviation; 'cost fit' takes a sweep over sizes as well.

    \b
    nccl-tuner cost measuring
    nccl-tuner cost measuring alpha_intra_us --elapsed-us 322000,320000,325000 --ranks 8
    """
    if parameter is None:
        if (elapsed_us, ranks, iterations, size) != (None, None, None, None):
            raise BadInput(f"measurements without PARAMETER; {one_of(_BY_NAME)}")
        _print_protocol(as_json)
        return
    if not elapsed_us or ranks is None:
        raise BadInput(f"{parameter}: --elapsed-us and --ranks of what was measured; valid: both")
    experiment = _BY_NAME[parameter]
    calls = experiment.iterations if iterations is None else iterations
    found = _of(experiment, elapsed_us, ranks, calls, (size or [experiment.bytes])[0])
    within = experiment.within(found.mean)
    if as_json:
        print_json(
            {
                "parameter": parameter,
                "mean": found.mean,
                "deviation": found.deviation,
                "usual": within,
                "usual_range": list(experiment.usual),
            }
        )
        return
    spread = "" if found.deviation is None else f" +- {found.deviation:.3f}"
    usual = "{:g} to {:g}".format(*experiment.usual)
    click.echo(f"{parameter}: {found.mean:.3f}{spread}, {'as usual' if within else 'not as usual'}: {usual}")


def _of(experiment: Experiment, elapsed_us: list[float], ranks: int, iterations: int, size: int) -> Repeated:
    if experiment.latency:
        return repeated([float(measuring.alpha_us(each, iterations, ranks)) for each in elapsed_us])
    return repeated([float(measuring.beta_gbs(size, each, iterations, ranks)) for each in elapsed_us])


def _print_protocol(as_json: bool) -> None:
    records: list[dict[str, Any]] = [
        {
            "parameter": each.parameter,
            "ranks": each.ranks,
            "bytes": each.bytes,
            "iterations": each.iterations,
            "warmup": each.warmup,
            "repetitions": measuring.REPETITIONS,
            "usual_range": list(each.usual),
            "nccl_tests": each.nccl_tests,
        }
        for each in EXPERIMENTS
    ]
    if as_json:
        print_json(records)
        return
    rows = [
        (
            record["parameter"],
            record["ranks"],
            values.named_bytes(record["bytes"]),
            record["iterations"],
            "{:g} to {:g}".format(*record["usual_range"]),
            record["nccl_tests"],
        )
        for record in records
    ]
    print_table("A ring AllReduce for each", ("parameter", "over", "size", "iterations", "usual", "nccl-tests"), rows)
    click.echo(
        f"repeat each {measuring.REPETITIONS} times; sweep {values.named_bytes(measuring.SWEEP_BYTES[0])} to "
        f"{values.named_bytes(measuring.SWEEP_BYTES[1])} for 'cost fit'; inside a node usually "
        f"{measuring.USUAL_RATIO:g} times the bandwidth between nodes"
    )

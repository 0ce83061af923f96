"""``nccl-tuner cost measuring``: how to measure alpha and beta, and what a measurement says."""

from dataclasses import dataclass

import click

from tuner.base.errors import BadInput, one_of
from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_json, print_table
from tuner.times.costmodels import measuring
from tuner.times.costmodels.line import Repeated, repeated
from tuner.times.costmodels.measuring import EXPERIMENTS, Experiment


@dataclass(frozen=True, slots=True)
class _Protocol:
    """How to measure a parameter: its AllReduce, how often, in what range it usually is, and nccl-tests' arguments."""

    parameter: str
    ranks: str
    bytes: int
    iterations: int
    warmup: int
    repetitions: int
    usual_range: tuple[float, float]
    nccl_tests: str


@dataclass(frozen=True, slots=True)
class _Measured:
    """What repetitions gave; in us of a latency, in GB/s of a bandwidth."""

    parameter: str
    mean: float
    deviation: float | None
    usual: bool
    usual_range: tuple[float, float]


_BY_NAME = {each.parameter: each for each in EXPERIMENTS}


@click.command(name="measuring", cls=options.Command)
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

    Repeat each experiment five times for a mean and a deviation; 'fit sweep' takes a sweep over sizes as well.

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
    value = _of(experiment, elapsed_us, ranks, calls, (size or [experiment.bytes])[0])
    within = experiment.within(value.mean)
    if as_json:
        print_json(_Measured(parameter, value.mean, value.deviation, within, experiment.usual))
        return
    spread = "" if value.deviation is None else f" +- {value.deviation:.3f}"
    usual = "{:g} to {:g}".format(*experiment.usual)
    click.echo(f"{parameter}: {value.mean:.3f}{spread}, {'as usual' if within else 'not as usual'}: {usual}")


def _of(experiment: Experiment, elapsed_us: list[float], ranks: int, iterations: int, size: int) -> Repeated:
    if experiment.latency:
        return repeated([float(measuring.alpha_us(each, iterations, ranks)) for each in elapsed_us])
    return repeated([float(measuring.beta_gbs(size, each, iterations, ranks)) for each in elapsed_us])


def _protocol(each: Experiment) -> _Protocol:
    return _Protocol(
        each.parameter,
        each.ranks,
        each.bytes,
        each.iterations,
        each.warmup,
        measuring.REPETITIONS,
        each.usual,
        each.nccl_tests,
    )


def _print_protocol(as_json: bool) -> None:
    if as_json:
        print_json([_protocol(each) for each in EXPERIMENTS])
        return
    rows = [
        (
            each.parameter,
            each.ranks,
            values.named_bytes(each.bytes),
            each.iterations,
            "{:g} to {:g}".format(*each.usual),
            each.nccl_tests,
        )
        for each in EXPERIMENTS
    ]
    print_table("A ring AllReduce for each", ("parameter", "over", "size", "iterations", "usual", "nccl-tests"), rows)
    click.echo(
        f"repeat each {measuring.REPETITIONS} times; sweep {values.named_bytes(measuring.SWEEP_BYTES[0])} to "
        f"{values.named_bytes(measuring.SWEEP_BYTES[1])} for 'fit sweep'; inside a node usually "
        f"{measuring.USUAL_RATIO:g} times the bandwidth between nodes"
    )

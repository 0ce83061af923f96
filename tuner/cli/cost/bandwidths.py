"""``nccl-tuner cost ideal``, ``measuring``: bandwidths of links, and how to measure them."""

from dataclasses import dataclass, field
from typing import Any

import click

from tuner.base.errors import BadInput, one_of
from tuner.base.records import json_form
from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_json, print_table
from tuner.times.costmodels import line, wires
from tuner.times.costmodels.line import EXPERIMENTS, Experiment, Repeated, repeated


@dataclass(frozen=True, slots=True)
class _Answer:
    """Ideal of one shape; bounds are None where links carry nothing, the efficiency without a measured busbw."""

    gpus_per_node: int
    nodes: int
    ideal_busbw_gbs: float
    intra_bound_gbs: float | None
    inter_bound_gbs: float | None
    limited_by: str
    inter_share: float
    busbw_gbs: float | None = field(metadata=json_form(optional=True))
    efficiency: float | None = field(metadata=json_form(optional=True))


@click.command(name="ideal", cls=options.Command)
@click.option(
    "--intra-gbs",
    type=values.POSITIVE,
    metavar="GBS",
    help="A GPU's bandwidth to GPUs of its node, 1e9 bytes per second in one direction.",
)
@click.option(
    "--inter-gbs", type=values.POSITIVE, metavar="GBS", help="A node's bandwidth to other nodes, all adapters together."
)
@click.option("--gpus-per-node", type=values.WHOLES, required=True, help="GPUs of each node; several with commas.")
@click.option("--nodes", type=values.WHOLES, default="1", show_default=True, help="Nodes; several with commas.")
@click.option("--busbw-gbs", type=values.POSITIVE, metavar="GBS", help="A measured busbw, for its efficiency.")
@options.json_option
def ideal_command(
    intra_gbs: float | None,
    inter_gbs: float | None,
    gpus_per_node: list[int],
    nodes: list[int],
    busbw_gbs: float | None,
    as_json: bool,
) -> None:
    """The bus bandwidth of links that carry the least there is to carry, and do nothing else.

    It is the same for every collective, and knows no reduction in the network.

    \b
    nccl-tuner cost ideal --intra-gbs 450 --inter-gbs 100 --gpus-per-node 8 --nodes 2
    """
    answers = [_answer(intra_gbs, inter_gbs, gpus, count, busbw_gbs) for gpus in gpus_per_node for count in nodes]
    if as_json:
        values.print_records(answers)
        return
    rows = [
        (
            one.gpus_per_node,
            one.nodes,
            *map(_gbs, (one.ideal_busbw_gbs, one.intra_bound_gbs, one.inter_bound_gbs)),
            one.limited_by,
            "-" if one.efficiency is None else f"{100 * one.efficiency:.1f} %",
        )
        for one in answers
    ]
    columns = (
        "GPUs per node",
        "nodes",
        "ideal busbw GB/s",
        "by links in the node",
        "by the network",
        "limited by",
        "efficiency",
    )
    print_table("Ideal communication bandwidth", columns, rows)


def _answer(
    intra_gbs: float | None, inter_gbs: float | None, gpus: int, nodes: int, busbw_gbs: float | None
) -> _Answer:
    times = wires.ideal(intra_gbs, inter_gbs, gpus, nodes)
    return _Answer(
        gpus,
        nodes,
        float(times.busbw_gbs),
        _bound(times.intra_gbs),
        _bound(times.inter_gbs),
        "network" if times.inter_limits else "links in the node",
        float(wires.inter_share(gpus, nodes)),
        busbw_gbs,
        None if busbw_gbs is None else float(times.efficiency(busbw_gbs)),
    )


def _bound(gbs: Any) -> float | None:
    """None where these links carry nothing."""
    return float(gbs) if gbs < float("inf") else None


def _gbs(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


@dataclass(frozen=True, slots=True)
class _Protocol:
    """Measuring of a parameter: its AllReduce, how often, in what range it usually is, and nccl-tests' arguments."""

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
    """Result of repetitions; in us of a latency, in GB/s of a bandwidth."""

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
def measuring_command(
    parameter: str | None,
    elapsed_us: list[float] | None,
    ranks: int | None,
    iterations: int | None,
    size: list[int] | None,
    as_json: bool,
) -> None:
    """The four parameters of two levels, and the ring AllReduce that measures each; with PARAMETER, what one gave.

    Repeat each experiment five times for a mean and a deviation; 'fit alpha-beta --sweep' takes sweeps over sizes.

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
        return repeated([float(line.alpha_us(each, iterations, ranks)) for each in elapsed_us])
    return repeated([float(line.beta_gbs(size, each, iterations, ranks)) for each in elapsed_us])


def _protocol(each: Experiment) -> _Protocol:
    return _Protocol(
        each.parameter,
        each.ranks,
        each.bytes,
        each.iterations,
        each.warmup,
        line.REPETITIONS,
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
        f"repeat each {line.REPETITIONS} times; sweep {values.named_bytes(line.SWEEP_BYTES[0])} to "
        f"{values.named_bytes(line.SWEEP_BYTES[1])} for 'fit alpha-beta --sweep'; inside a node usually "
        f"{line.USUAL_RATIO:g} times the bandwidth between nodes"
    )

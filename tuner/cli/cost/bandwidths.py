"""``nccl-tuner cost busbw``, ``ideal``, ``crossover``, ``measuring``: bandwidths, and how to measure them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import click

from tuner.base.errors import BadInput, one_of
from tuner.base.names import DataType
from tuner.base.records import json_form
from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_json, print_table
from tuner.times.costmodels import algorithms, line, operations, wires
from tuner.times.costmodels.alphabeta import crossover_bytes, fastest
from tuner.times.costmodels.line import EXPERIMENTS, Experiment, Repeated, repeated
from tuner.times.costmodels.operations import CostOperation, size_bytes


@click.command(name="busbw", cls=options.Command)
@values.operation_argument
@values.ranks_option
@click.option(
    "--bytes",
    "sizes",
    type=options.Sizes(),
    help="nccl-tests' size: the whole array. 1GB is 1e9 bytes, 1GiB and 1G are 2**30.",
)
@click.option("--count", type=int, help="Instead of --bytes, NCCL's count argument, of --dtype.")
@click.option("--dtype", type=options.Named(DataType, "type"), default="float32", show_default=True, help="Its type.")
@click.option("--time-us", type=values.POSITIVES, help="Measured times; several with commas.")
@click.option("--busbw-gbs", type=values.POSITIVES, help="Instead of --time-us: bus bandwidths, for the times.")
@click.option(
    "--peak-gbs", type=values.POSITIVE, metavar="GBS", help="Peak of the hardware in one direction, for an efficiency."
)
@click.option(
    "--peak-gbps", type=values.POSITIVE, metavar="GBPS", help="The same in 1e9 bits per second, as networks are sold."
)
@click.option(
    "--algorithm", metavar="NAME", help="What ran: ring, tree, nvls, nvlstree, pat; adds what the wires carried."
)
@click.option("--gpus-per-node", type=int, help="With --algorithm. [default: all ranks on one node]")
@click.option(
    "--ranks-per-switch",
    type=int,
    help="With --algorithm ring or pat: adds the uplinks of switches to so many neighbouring ranks.",
)
@options.json_option
def busbw_command(
    operation: CostOperation,
    ranks: list[int],
    sizes: list[int] | None,
    count: int | None,
    dtype: DataType,
    time_us: list[float] | None,
    busbw_gbs: list[float] | None,
    as_json: bool,
    **more: Any,
) -> None:
    """Algorithm and bus bandwidth of OPERATION, as nccl-tests defines them.

    \b
    nccl-tuner cost busbw allreduce --ranks 8 --bytes 1GB --time-us 80000 --peak-gbps 400
    nccl-tuner cost busbw allreduce --ranks 8 --bytes 1GB --busbw-gbs 480 --algorithm nvls
    """
    if (sizes is None) == (count is None):
        raise BadInput("--bytes or --count; valid: one of them")
    if (time_us is None) == (busbw_gbs is None):
        raise BadInput("--time-us or --busbw-gbs; valid: one of them")
    if more["peak_gbs"] is not None and more["peak_gbps"] is not None:
        raise BadInput("--peak-gbs and --peak-gbps; valid: one of them")
    for name in ("gpus_per_node", "ranks_per_switch"):
        if more[name] is not None and more["algorithm"] is None:
            raise BadInput(f"--{name.replace('_', '-')} without --algorithm; valid: with the one that ran")
    hardware = _Hardware(**more)
    records = []
    for n in ranks:
        for size in sizes or [int(size_bytes(operation, count or 0, dtype.size_bytes, n))]:
            times = time_us or [float(operations.time_us(operation, size, gbs, n)) for gbs in busbw_gbs or ()]
            records += [_bandwidths(_Call(operation, n, size, time), hardware) for time in times]
    if as_json:
        values.print_records(records)
    else:
        _print(operation, records)


@dataclass(frozen=True, slots=True)
class _Call:
    operation: CostOperation
    ranks: int
    bytes: int
    time_us: float


@dataclass(frozen=True, slots=True)
class _Hardware:
    """The options that say what ran on what."""

    peak_gbs: float | None
    peak_gbps: float | None
    algorithm: str | None
    gpus_per_node: int | None
    ranks_per_switch: int | None


@dataclass(frozen=True, slots=True)
class OfPeak:
    """How much of the hardware's peak was reached, of 1."""

    peak_gbs: float
    efficiency: float


@dataclass(frozen=True, slots=True)
class OnWires:
    """What an algorithm makes the wires carry: as a share of algorithm bandwidth, and in GB/s."""

    algorithm: str
    gpus_per_node: int
    gpu_share: float
    gpu_wire_gbs: float
    node_share: float
    node_wire_gbs: float


@dataclass(frozen=True, slots=True)
class OnUplinks:
    """The same on a switch's uplinks."""

    uplink_share: float
    uplink_wire_gbs: float


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Algorithm and bus bandwidth of a call, GB/s (1e9 bytes per second)."""

    operation: CostOperation
    ranks: int
    bytes: int
    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    bus_factor: float
    of_peak: OfPeak | None = field(metadata=json_form(merged=True, optional=True))
    on_wires: OnWires | None = field(metadata=json_form(merged=True, optional=True))
    on_uplinks: OnUplinks | None = field(metadata=json_form(merged=True, optional=True))


def _bandwidths(call: _Call, hardware: _Hardware) -> Bandwidths:
    algbw_gbs = float(operations.algorithm_gbs(call.bytes, call.time_us))
    busbw_gbs = float(operations.bus_gbs(call.operation, call.bytes, call.time_us, call.ranks))
    peak_gbs = hardware.peak_gbs if hardware.peak_gbps is None else float(operations.of_bits(hardware.peak_gbps))
    return Bandwidths(
        operation=call.operation,
        ranks=call.ranks,
        bytes=call.bytes,
        time_us=call.time_us,
        algbw_gbs=algbw_gbs,
        busbw_gbs=busbw_gbs,
        bus_factor=float(operations.bus_factor(call.operation, call.ranks)),
        of_peak=None if peak_gbs is None else OfPeak(peak_gbs, busbw_gbs / peak_gbs),
        on_wires=_on_wires(call, hardware, algbw_gbs),
        on_uplinks=_on_uplinks(call, hardware, algbw_gbs),
    )


def _on_wires(call: _Call, hardware: _Hardware, algbw_gbs: float) -> OnWires | None:
    if hardware.algorithm is None:
        return None
    gpus, nodes = values.shape(call.ranks, hardware.gpus_per_node)
    loads = wires.loads(call.operation, hardware.algorithm, gpus, nodes)
    return OnWires(
        algorithm=hardware.algorithm,
        gpus_per_node=gpus,
        gpu_share=float(loads.gpu_share),
        gpu_wire_gbs=float(algbw_gbs * loads.gpu_share),
        node_share=float(loads.node_share),
        node_wire_gbs=float(algbw_gbs * loads.node_share),
    )


def _on_uplinks(call: _Call, hardware: _Hardware, algbw_gbs: float) -> OnUplinks | None:
    if hardware.algorithm is None or hardware.ranks_per_switch is None:
        return None
    share = wires.uplink_share(call.operation, hardware.algorithm, call.ranks, hardware.ranks_per_switch)
    return OnUplinks(float(share), float(algbw_gbs * share))


def _print(operation: CostOperation, records: list[Bandwidths]) -> None:
    columns = ["ranks", "size", "time us", "algbw GB/s", "busbw GB/s"]
    columns += ["efficiency"] if records[0].of_peak else []
    columns += ["on a GPU's links", "on a node's network"] if records[0].on_wires else []
    columns += ["on a switch's uplink"] if records[0].on_uplinks else []
    title = f"{operation.name}: bandwidths in 1e9 bytes per second"
    print_table(title, columns, [tuple(_cells(record)) for record in records])


def _cells(record: Bandwidths) -> Iterator[object]:
    yield from (record.ranks, values.named_bytes(record.bytes), f"{record.time_us:.2f}")
    yield from (f"{record.algbw_gbs:.3f}", f"{record.busbw_gbs:.3f}")
    if record.of_peak:
        yield f"{100 * record.of_peak.efficiency:.2f} %"
    if record.on_wires:
        yield from (f"{record.on_wires.gpu_wire_gbs:.3f}", f"{record.on_wires.node_wire_gbs:.3f}")
    if record.on_uplinks:
        yield f"{record.on_uplinks.uplink_wire_gbs:.3f}"


@dataclass(frozen=True, slots=True)
class _Answer:
    """Of one shape; bounds are None where the links carry nothing, the efficiency without a measured busbw."""

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


@click.command(name="crossover", cls=options.Command)
@values.operation_argument
@values.ranks_option
@values.level_options
@options.json_option
def crossover_command(operation: CostOperation, ranks: list[int], as_json: bool, **level_values: Any) -> None:
    """The sizes at which two algorithms of OPERATION are equally fast, and which is the fastest from where on.

    Times are linear in the size, so the crossovers are solved, not searched.

    \b
    nccl-tuner cost crossover allreduce --ranks 64 --alpha-us 5 --beta-gbs 50
    nccl-tuner cost crossover allreduce --ranks 64 --gpus-per-node 8 --alpha-us 1 --beta-gbs 300 \
        --inter-alpha-us 5 --inter-beta-gbs 50
    """
    given = values.LevelValues(**level_values)
    levels = given.levels()
    records = [_crossovers(operation, count, given.gpus_per_node, levels) for count in ranks]
    if as_json:
        values.print_records(records)
        return
    for record in records:
        title = f"{operation.name} over {record.ranks} ranks"
        rows = [(values.named_bytes(each.from_bytes), each.algorithm) for each in record.fastest]
        print_table(f"{title}: fastest", ("from", "algorithm"), rows)
        pairs = [
            (
                *each.between,
                "-" if each.bytes is None else values.named_bytes(each.bytes),
                "-" if each.time_us is None else f"{each.time_us:.2f}",
            )
            for each in record.crossovers
        ]
        if pairs:
            print_table(f"{title}: equally fast", ("one", "other", "at", "time us"), pairs)


@dataclass(frozen=True, slots=True)
class Fastest:
    """The algorithm that is the fastest from a size on."""

    from_bytes: float
    algorithm: str


@dataclass(frozen=True, slots=True)
class EqualTimes:
    """The size at which two algorithms are equally fast, and their time there; None where there is none."""

    between: tuple[str, str]
    bytes: float | None
    time_us: float | None


@dataclass(frozen=True, slots=True)
class Crossovers:
    """Those of an operation over so many ranks."""

    operation: CostOperation
    ranks: int
    gpus_per_node: int
    nodes: int
    fastest: tuple[Fastest, ...]
    crossovers: tuple[EqualTimes, ...]


def _crossovers(
    operation: CostOperation, ranks: int, gpus_per_node: int | None, levels: algorithms.Levels
) -> Crossovers:
    gpus, nodes = values.shape(ranks, gpus_per_node)
    costs = algorithms.costs(operation, gpus, nodes, levels)
    crossovers = []
    for one, other in combinations(costs, 2):
        at = float(crossover_bytes(costs[one], costs[other]))
        known = at == at  # not "not a number"
        time_us = float(costs[one].time_us(at)) if known else None
        crossovers.append(EqualTimes((one, other), at if known else None, time_us))
    ranges = tuple(Fastest(at, name) for at, name in fastest(costs))
    return Crossovers(operation, ranks, gpus, nodes, ranges, tuple(crossovers))


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
def measuring_command(
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
        f"{values.named_bytes(line.SWEEP_BYTES[1])} for 'fit sweep'; inside a node usually "
        f"{line.USUAL_RATIO:g} times the bandwidth between nodes"
    )

"""``nccl-tuner cost allreduce`` and other operations: times from alpha and beta, bandwidths, crossovers."""

from collections.abc import Mapping
from dataclasses import field, fields, replace
from itertools import combinations, product
from typing import Any

import click

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.names import DataType
from tuner.base.records import json_form
from tuner.base.sizes import named_bytes
from tuner.base.view import Column, as_percent, column, columns_of
from tuner.cli import options
from tuner.cli.command import Params, has, needs, only
from tuner.cli.cost import values
from tuner.cli.output import print_view, say, show
from tuner.times.costmodels import algorithms, line, operations, wires
from tuner.times.costmodels.algorithms import USUAL, Overheads, overheads
from tuner.times.costmodels.alphabeta import crossover_bytes, fastest
from tuner.times.costmodels.operations import CostOperation, size_bytes


def _usual(factor: str) -> str:
    least, most = USUAL[factor]
    return f"{least:g} to {most:g} are usual"


NETWORK = ("alpha_us", "beta_gbs", "inter_alpha_us", "inter_beta_gbs")
OF_CROSSOVERS = ("ranks", "gpus_per_node", "crossovers", *NETWORK)
OF_MEASURED = (
    *("ranks", "sizes", "count", "dtype", "time_us", "busbw_gbs"),
    *("peak_gbs", "peak_gbps", "algorithm", "gpus_per_node", "ranks_per_switch"),
)
ONLY_MEASURED = ("count", "dtype", "peak_gbs", "peak_gbps", "ranks_per_switch")


def _of_times(params: Params) -> bool:
    return not params["crossovers"] and (params["time_us"] is not None or params["busbw_gbs"] is not None)


RULES = (
    only("--crossovers", *OF_CROSSOVERS, when=has("crossovers")),
    only("--time-us and --busbw-gbs", *OF_MEASURED, when=_of_times),
    needs("--time-us or --busbw-gbs", *ONLY_MEASURED, when=lambda params: not _of_times(params)),
)


@click.command(name="operation", cls=options.Command, rules=RULES)
@options.under(
    "What comes on top of alpha and beta",
    *("--overhead-us", "--gap-us", "--software-us", "--protocol", "--contention", "--copy-gbs", "--straggler"),
)
@options.under(
    "Bandwidths of measured calls",
    *("--time-us", "--busbw-gbs", "--count", "--dtype", "--peak-gbs", "--peak-gbps", "--ranks-per-switch"),
)
@options.under("Between nodes", "--inter-alpha-us", "--inter-beta-gbs")
@values.operation_argument
@options.option(
    "--algorithm",
    "The textbook's algorithm. [default: ring if the operation has one] With --time-us and --busbw-gbs: the "
    "algorithm that ran (ring, tree, nvls, nvlstree, pat); adds how much data the links carried.",
    metavar="NAME",
)
@values.ranks_option
@options.sizes_option("Size of the whole array, as nccl-tests counts it. 1GB is 1e9 bytes, 1GiB and 1G are 2**30.")
@values.level_options
@values.us_option(
    "--overhead-us",
    "Overhead o of a processor in the LogP model, in us. Each alpha is then LogP's latency L, and a step takes "
    "L + 2 o.",
    default=0.0,
)
@values.us_option("--gap-us", "Gap g in the LogP model, in us: the shortest time that a step can take.", default=0.0)
@values.us_option(
    "--software-us", f"Time that library, driver and launch add to a call, in us; {_usual('software')}.", default=0.0
)
@options.option(
    "--protocol",
    f"Share of the bandwidth that is lost to headers and retransmissions; {_usual('protocol')}.",
    type=values.SHARE,
    default=0.0,
    metavar="SHARE",
)
@options.option(
    "--contention",
    f"Share of the bandwidth that other jobs use; {_usual('contention')} in shared clusters.",
    type=values.SHARE,
    default=0.0,
    metavar="SHARE",
)
@values.gbs_option("--copy-gbs", "Bandwidth of an additional copy of the whole size, for example over PCIe, in GB/s.")
@options.option(
    "--straggler",
    f"By which factor the slowest rank takes longer; {_usual('straggler')}.",
    type=values.NOT_NEGATIVE,
    default=0.0,
    metavar="SHARE",
)
@options.option(
    "--measured-us", "A measured time in us, for which the model's error is shown.", type=values.POSITIVE, metavar="US"
)
@options.flag("--crossovers", "Show the sizes at which two algorithms are equally fast instead.")
@options.option(
    "--time-us",
    "Measured times in us, for which bandwidths are shown; several separated by commas.",
    type=values.POSITIVES,
)
@options.option(
    "--busbw-gbs", "Bus bandwidths in GB/s, for which times are shown; instead of --time-us.", type=values.POSITIVES
)
@options.option("--count", "NCCL's count argument, in elements of --dtype; instead of --bytes.", type=int)
@options.option("--dtype", "Its type.", type=options.Named(DataType, "type"), default="float32")
@values.gbs_option(
    "--peak-gbs", "The hardware's peak bandwidth in one direction, in GB/s; shows the share of it that was reached."
)
@options.option(
    "--peak-gbps",
    "The hardware's peak bandwidth in Gb/s (1e9 bits per second), as networks are specified.",
    type=values.POSITIVE,
    metavar="GBPS",
)
@options.option(
    "--ranks-per-switch",
    "With --algorithm ring or pat: also show the load on the uplinks of switches that connect this many "
    "neighbouring ranks each.",
    type=int,
)
@options.json_option
def operation_command(
    operation: CostOperation,
    algorithm: str | None,
    ranks: list[int],
    sizes: list[int] | None,
    crossovers: bool,
    time_us: list[float] | None,
    busbw_gbs: list[float] | None,
    measured_us: float | None,
    **given: Any,
) -> None:
    """Time of OPERATION by the alpha-beta model: steps of alpha, and a share of the size over beta.

    With --time-us or --busbw-gbs: the algorithm bandwidth and bus bandwidth of measured calls, as nccl-tests defines
    them. With --crossovers: the sizes at which two algorithms are equally fast, and from which size on which algorithm
    is the fastest; as times are linear in the size, these sizes are computed exactly. 'cost allreduce' alone means
    'cost operation allreduce'.

    \b
    nccl-tuner cost allreduce --algorithm ring --ranks 16 --bytes 100MB --alpha-us 10 --beta-gbs 100
    nccl-tuner cost alltoall --ranks 16 --bytes 100MB --alpha-us 10 --beta-gbs 100
    nccl-tuner cost allreduce --ranks 64 --crossovers --alpha-us 5 --beta-gbs 50
    nccl-tuner cost allreduce --ranks 64 --crossovers --gpus-per-node 8 --alpha-us 1 --beta-gbs 300 \
        --inter-alpha-us 5 --inter-beta-gbs 50
    nccl-tuner cost allreduce --ranks 8 --bytes 1GB --time-us 80000 --peak-gbps 400
    nccl-tuner cost allreduce --ranks 8 --bytes 1GB --busbw-gbs 480 --algorithm nvls
    """
    if crossovers:
        levels = values.levels(given)
        found = [_crossovers(operation, each, given["gpus_per_node"], levels) for each in ranks]
        show(found, _print_crossovers, several="answers")
    elif time_us is not None or busbw_gbs is not None:
        count, dtype = given["count"], given["dtype"]
        if (sizes is None) == (count is None):
            raise BadInput("give either --bytes or --count")
        if time_us is not None and busbw_gbs is not None:
            raise BadInput("give either --time-us or --busbw-gbs")
        if given["peak_gbs"] is not None and given["peak_gbps"] is not None:
            raise BadInput("give either --peak-gbs or --peak-gbps")
        for name in ("gpus_per_node", "ranks_per_switch"):
            if given[name] is not None and algorithm is None:
                raise BadInput(f"--{name.replace('_', '-')} needs --algorithm: name the algorithm that ran")
        records = []
        for n in ranks:
            for size in sizes or [int(size_bytes(operation, count or 0, dtype.size_bytes, n))]:
                times = time_us or [float(operations.time_us(operation, size, gbs, n)) for gbs in busbw_gbs or ()]
                records += [_bandwidths(operation, n, size, time, algorithm, given) for time in times]
        show(records, _print_bandwidths, several="answers")
    else:
        if sizes is None:
            raise BadInput("name the size whose time you want with --bytes SIZE, or add --crossovers")
        names = algorithms.names(operation)
        if algorithm is not None and algorithm not in names:
            raise BadInput(f"--algorithm {algorithm}: {operation.name} has no such algorithm; {one_of(names)}")
        predicted = [
            _predicted(operation, algorithm or names[0], n, size, measured_us, given)
            for n, size in product(ranks, sizes)
        ]
        show(predicted, _print, several="answers")


def _maybe(shown: Mapping[str, Any] | None = None) -> Any:
    """A field that is only in the JSON if it is known."""
    return field(default=None, metadata={**json_form(optional=True), **(shown or {})})


@dataclass(frozen=True, slots=True)
class JudgedTime:
    """A measured time compared with the model: the relative error, its class, and possible causes."""

    measured_us: float
    error: float
    verdict: str = field(metadata=json_form("class"))
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predicted:
    """The time of an operation by the alpha-beta model, and its parts.

    For the hierarchical algorithm, also the time of each phase, and the time of the first flat algorithm.
    """

    operation: CostOperation
    algorithm: str = field(metadata=column("algorithm"))
    ranks: int = field(metadata=column("ranks"))
    gpus_per_node: int
    nodes: int
    bytes: int = field(metadata=column("size", text=named_bytes))
    time_us: float = field(metadata=column("time us", digits=2))
    latency_us: float = field(metadata=column("latency us", digits=2))
    busbw_gbs: float = field(metadata=column("busbw GB/s", digits=3))
    parts_us: Mapping[str, float]
    phases_us: Mapping[str, float] | None = _maybe()
    flat_us: float | None = _maybe()
    judged: JudgedTime | None = field(default=None, metadata=json_form(merged=True, optional=True))


def _predicted(
    operation: CostOperation,
    algorithm: str,
    ranks: int,
    size: int,
    measured_us: float | None,
    given: Mapping[str, Any],
) -> Predicted:
    """The time of an operation; ``given`` has the values of the options about levels and overheads."""
    levels = values.levels(given, given["overhead_us"], given["gap_us"])
    gpus, nodes = values.shape(ranks, given["gpus_per_node"])
    taken = overheads(**{each.name: given[each.name] for each in fields(Overheads)})
    made = algorithms.predict(operation, algorithm, size, gpus, nodes, levels, taken)
    return Predicted(
        operation=operation,
        algorithm=algorithm,
        ranks=ranks,
        gpus_per_node=gpus,
        nodes=nodes,
        bytes=size,
        time_us=float(made.time_us),
        latency_us=float(made.latency_us),
        busbw_gbs=float(made.busbw_gbs),
        parts_us=values.floats(made.parts_us),
        phases_us=None if made.flat_us is None else values.floats(made.phases_us),
        flat_us=None if made.flat_us is None else float(made.flat_us),
        judged=None if measured_us is None else _judged(float(made.time_us), measured_us),
    )


def _judged(time_us: float, measured_us: float) -> JudgedTime:
    error = line.error(time_us, measured_us)
    of_error = line.of_error(error)
    return JudgedTime(measured_us, error, of_error.name, tuple(of_error.causes))


def _print(records: list[Predicted]) -> None:
    print_view(f"{records[0].operation.name}: time by the alpha-beta model", columns_of(Predicted), records)
    for record in records:
        if parts := _parts(record):
            say(f"{named_bytes(record.bytes)}: {parts}")
        if (judged := record.judged) is not None:
            error = f"{100 * judged.error:+.1f} %"
            say(f"measured {judged.measured_us:g} us: the model is off by {error}: {judged.verdict}")
            for cause in judged.causes:
                say(f"  look for {cause}")


def _parts(record: Predicted) -> str:
    """Rows for the phases of the time, and for what LogP's overheads add."""
    added = {f"{name} +{us:.2f}": us for name, us in record.parts_us.items() if name != "model" and us}
    if record.phases_us is None or record.flat_us is None:
        return ", ".join(added)
    parts = [f"{name} {us:.2f}" for name, us in record.phases_us.items()]
    longer = record.flat_us / record.parts_us["model"]
    return ", ".join([*parts, f"flat {record.flat_us:.2f} ({longer:.2f} times as long)", *added])


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Algorithm and bus bandwidth of a call, in GB/s (1e9 bytes per second).

    If known, also the reached share of the hardware's peak, and the load that an algorithm puts on the links of a GPU
    and of a node, and on a switch's uplinks: as a share of the algorithm bandwidth, and in GB/s.
    """

    operation: CostOperation
    ranks: int = field(metadata=column("ranks"))
    bytes: int = field(metadata=column("size", text=named_bytes))
    time_us: float = field(metadata=column("time us", digits=2))
    algbw_gbs: float = field(metadata=column("algbw GB/s", digits=3))
    busbw_gbs: float = field(metadata=column("busbw GB/s", digits=3))
    bus_factor: float
    peak_gbs: float | None = _maybe()
    efficiency: float | None = _maybe(column("efficiency", text=as_percent(".2f")))
    algorithm: str | None = _maybe()
    gpus_per_node: int | None = _maybe()
    gpu_share: float | None = _maybe()
    gpu_wire_gbs: float | None = _maybe(column("on a GPU's links", digits=3))
    node_share: float | None = _maybe()
    node_wire_gbs: float | None = _maybe(column("on a node's network", digits=3))
    uplink_share: float | None = _maybe()
    uplink_wire_gbs: float | None = _maybe(column("on a switch's uplink", digits=3))


def _bandwidths(
    operation: CostOperation,
    ranks: int,
    size: int,
    time_us: float,
    algorithm: str | None,
    hardware: Mapping[str, Any],
) -> Bandwidths:
    """The bandwidths of a call; ``hardware`` has the values of the options that say what was measured."""
    algbw_gbs = float(operations.algorithm_gbs(size, time_us))
    busbw_gbs = float(operations.bus_gbs(operation, size, time_us, ranks))
    factor = float(operations.bus_factor(operation, ranks))
    found = Bandwidths(operation, ranks, size, time_us, algbw_gbs, busbw_gbs, factor)
    peak_gbs, peak_gbps = hardware["peak_gbs"], hardware["peak_gbps"]
    if peak_gbps is not None:
        peak_gbs = float(operations.of_bits(peak_gbps))
    if peak_gbs is not None:
        found = replace(found, peak_gbs=peak_gbs, efficiency=busbw_gbs / peak_gbs)
    if algorithm is None:
        return found
    gpus, nodes = values.shape(ranks, hardware["gpus_per_node"])
    loads = wires.loads(operation, algorithm, gpus, nodes)
    gpu, node = float(loads.gpu_share), float(loads.node_share)
    found = replace(found, algorithm=algorithm, gpus_per_node=gpus, gpu_share=gpu, gpu_wire_gbs=algbw_gbs * gpu)
    found = replace(found, node_share=node, node_wire_gbs=algbw_gbs * node)
    if hardware["ranks_per_switch"] is None:
        return found
    uplink = float(wires.uplink_share(operation, algorithm, ranks, hardware["ranks_per_switch"]))
    return replace(found, uplink_share=uplink, uplink_wire_gbs=algbw_gbs * uplink)


def _print_bandwidths(records: list[Bandwidths]) -> None:
    known = [each for each in columns_of(Bandwidths) if each.value(records[0]) is not None]
    print_view(f"{records[0].operation.name}: bandwidths in 1e9 bytes per second", known, records)


@dataclass(frozen=True, slots=True)
class Fastest:
    """The algorithm that is fastest from this size on."""

    from_bytes: float = field(metadata=column("from", text=named_bytes))
    algorithm: str = field(metadata=column("algorithm"))


@dataclass(frozen=True, slots=True)
class EqualTimes:
    """The size at which two algorithms are equally fast, and their time at this size; None if there is no such size."""

    between: tuple[str, str]
    bytes: float | None = field(metadata=column("at", text=lambda at: "-" if at is None else named_bytes(at)))
    time_us: float | None = field(metadata=column("time us", digits=2))


EQUAL_TIMES = (
    Column("one", lambda pair: pair.between[0]),
    Column("other", lambda pair: pair.between[1]),
    *columns_of(EqualTimes),
)


@dataclass(frozen=True, slots=True)
class Crossovers:
    """Crossovers of an operation on this many ranks."""

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


def _print_crossovers(records: list[Crossovers]) -> None:
    for record in records:
        title = f"{record.operation.name} over {record.ranks} ranks"
        print_view(f"{title}: fastest", columns_of(Fastest), record.fastest)
        if record.crossovers:
            print_view(f"{title}: equally fast", EQUAL_TIMES, record.crossovers)

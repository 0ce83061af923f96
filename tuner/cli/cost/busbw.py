"""``nccl-tuner cost busbw``: bandwidths from a time, and the time from a bandwidth."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.base.names import DataType
from tuner.base.records import json_form
from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_table
from tuner.times.costmodels import bandwidth, wires
from tuner.times.costmodels.operations import Operation, size_bytes


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
def command(
    operation: Operation,
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
            times = time_us or [float(bandwidth.time_us(operation, size, gbs, n)) for gbs in busbw_gbs or ()]
            records += [_bandwidths(_Call(operation, n, size, time), hardware) for time in times]
    if as_json:
        values.print_records(records)
    else:
        _print(operation, records)


@dataclass(frozen=True, slots=True)
class _Call:
    operation: Operation
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

    operation: Operation
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
    algbw_gbs = float(bandwidth.algorithm_gbs(call.bytes, call.time_us))
    busbw_gbs = float(bandwidth.bus_gbs(call.operation, call.bytes, call.time_us, call.ranks))
    peak_gbs = hardware.peak_gbs if hardware.peak_gbps is None else float(bandwidth.of_bits(hardware.peak_gbps))
    return Bandwidths(
        operation=call.operation,
        ranks=call.ranks,
        bytes=call.bytes,
        time_us=call.time_us,
        algbw_gbs=algbw_gbs,
        busbw_gbs=busbw_gbs,
        bus_factor=float(bandwidth.bus_factor(call.operation, call.ranks)),
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


def _print(operation: Operation, records: list[Bandwidths]) -> None:
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

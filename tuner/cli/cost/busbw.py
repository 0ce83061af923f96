"""``nccl-tuner cost busbw``: bandwidths from a time, and the time from a bandwidth."""

from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.base.names import DataType
from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_table
from tuner.costmodels import bandwidth, wires
from tuner.costmodels.operations import Operation, size_bytes


@click.command(name="busbw")
@values.operation_argument
@values.ranks_option
@click.option(
    "--bytes",
    "sizes",
    type=options.Sizes(),
    help="nccl-tests' size: the whole array. 1GB is 1e9 bytes, 1GiB and 1G are 2**30.",
)
@click.option("--count", type=int, help="Instead of --bytes, NCCL's count argument, of --dtype.")
@click.option("--dtype", type=options.Named(DataType, "type"), default="float32", show_default=True)
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
    records = []
    for n in ranks:
        for size in sizes or [int(size_bytes(operation, count or 0, dtype.size_bytes, n))]:
            times = time_us or [float(bandwidth.time_us(operation, size, gbs, n)) for gbs in busbw_gbs or ()]
            records += [_record(operation, n, size, time, **more) for time in times]
    if as_json:
        values.print_records(records)
    else:
        _print(operation, records)


def _record(
    operation: Operation,
    ranks: int,
    size: int,
    time_us: float,
    peak_gbs: float | None,
    peak_gbps: float | None,
    algorithm: str | None,
    gpus_per_node: int | None,
    ranks_per_switch: int | None,
) -> dict[str, Any]:
    algbw, busbw = bandwidth.algorithm_gbs(size, time_us), bandwidth.bus_gbs(operation, size, time_us, ranks)
    found: dict[str, Any] = {
        "operation": operation.name,
        "ranks": ranks,
        "bytes": size,
        "time_us": time_us,
        "algbw_gbs": float(algbw),
        "busbw_gbs": float(busbw),
        "bus_factor": float(bandwidth.bus_factor(operation, ranks)),
    }
    if peak_gbps is not None:
        peak_gbs = float(bandwidth.of_bits(peak_gbps))
    if peak_gbs is not None:
        found |= {"peak_gbs": peak_gbs, "efficiency": float(busbw) / peak_gbs}
    if algorithm is not None:
        gpus, nodes = values.shape(ranks, gpus_per_node)
        loads = wires.loads(operation, algorithm, gpus, nodes)
        found |= {
            "algorithm": algorithm,
            "gpus_per_node": gpus,
            "gpu_share": float(loads.gpu_share),
            "gpu_wire_gbs": float(algbw * loads.gpu_share),
            "node_share": float(loads.node_share),
            "node_wire_gbs": float(algbw * loads.node_share),
        }
    if algorithm is not None and ranks_per_switch is not None:
        share = wires.uplink_share(operation, algorithm, ranks, ranks_per_switch)
        found |= {"uplink_share": float(share), "uplink_wire_gbs": float(algbw * share)}
    return found


def _print(operation: Operation, records: list[dict[str, Any]]) -> None:
    shown = {
        "efficiency": ("efficiency", lambda value: f"{100 * value:.2f} %"),
        "gpu_wire_gbs": ("on a GPU's links", "{:.3f}".format),
        "node_wire_gbs": ("on a node's network", "{:.3f}".format),
        "uplink_wire_gbs": ("on a switch's uplink", "{:.3f}".format),
    }
    more = [key for key in shown if key in records[0]]
    rows = [
        (
            record["ranks"],
            values.named_bytes(record["bytes"]),
            f"{record['time_us']:.2f}",
            f"{record['algbw_gbs']:.3f}",
            f"{record['busbw_gbs']:.3f}",
            *(shown[key][1](record[key]) for key in more),
        )
        for record in records
    ]
    columns = ("ranks", "size", "time us", "algbw GB/s", "busbw GB/s", *(shown[key][0] for key in more))
    print_table(f"{operation.name}: bandwidths in 1e9 bytes per second", columns, rows)

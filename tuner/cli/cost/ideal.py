"""``nccl-tuner cost ideal``: the ideal bus bandwidth."""

from typing import Any

import click

from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_table
from tuner.costmodels import ideal


@click.command(name="ideal")
@click.option(
    "--intra-gbs",
    type=values.POSITIVE,
    metavar="GBS",
    help="A GPU's bandwidth to GPUs of its node, 1e9 bytes per second in one direction.",
)
@click.option(
    "--inter-gbs", type=values.POSITIVE, metavar="GBS", help="A node's bandwidth to other nodes, all adapters together."
)
@click.option("--gpus-per-node", type=values.WHOLES, required=True)
@click.option("--nodes", type=values.WHOLES, default="1", show_default=True)
@click.option("--busbw-gbs", type=values.POSITIVE, metavar="GBS", help="A measured busbw, for its efficiency.")
@options.json_option
def command(
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
    records = [_record(intra_gbs, inter_gbs, gpus, count, busbw_gbs) for gpus in gpus_per_node for count in nodes]
    if as_json:
        values.print_records(records)
        return
    rows = [
        (
            record["gpus_per_node"],
            record["nodes"],
            *(_gbs(record[key]) for key in _BOUNDS),
            record["limited_by"],
            f"{100 * record['efficiency']:.1f} %" if "efficiency" in record else "-",
        )
        for record in records
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


_BOUNDS = ("ideal_busbw_gbs", "intra_bound_gbs", "inter_bound_gbs")


def _record(
    intra_gbs: float | None, inter_gbs: float | None, gpus: int, nodes: int, busbw_gbs: float | None
) -> dict[str, Any]:
    found = ideal.ideal(intra_gbs, inter_gbs, gpus, nodes)
    return {
        "gpus_per_node": gpus,
        "nodes": nodes,
        "ideal_busbw_gbs": float(found.busbw_gbs),
        "intra_bound_gbs": _bound(found.intra_gbs),
        "inter_bound_gbs": _bound(found.inter_gbs),
        "limited_by": "network" if found.inter_limits else "links in the node",
        "inter_share": float(ideal.inter_share(gpus, nodes)),
        **({} if busbw_gbs is None else {"busbw_gbs": busbw_gbs, "efficiency": float(found.efficiency(busbw_gbs))}),
    }


def _bound(gbs: Any) -> float | None:
    """None where these links carry nothing."""
    return float(gbs) if gbs < float("inf") else None


def _gbs(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"

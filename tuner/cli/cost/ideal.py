"""``nccl-tuner cost ideal``: the ideal bus bandwidth."""

from dataclasses import dataclass, field
from typing import Any

import click

from tuner.base.records import json_form
from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_table
from tuner.times.costmodels import ideal


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
    times = ideal.ideal(intra_gbs, inter_gbs, gpus, nodes)
    return _Answer(
        gpus,
        nodes,
        float(times.busbw_gbs),
        _bound(times.intra_gbs),
        _bound(times.inter_gbs),
        "network" if times.inter_limits else "links in the node",
        float(ideal.inter_share(gpus, nodes)),
        busbw_gbs,
        None if busbw_gbs is None else float(times.efficiency(busbw_gbs)),
    )


def _bound(gbs: Any) -> float | None:
    """None where these links carry nothing."""
    return float(gbs) if gbs < float("inf") else None


def _gbs(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"

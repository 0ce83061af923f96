"""``nccl-tuner cost crossover``: where algorithms are equally fast."""

from itertools import combinations
from typing import Any

import click

from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_table
from tuner.costmodels import algorithms
from tuner.costmodels.alphabeta import crossover_bytes, fastest
from tuner.costmodels.operations import Operation


@click.command(name="crossover")
@values.operation_argument
@values.ranks_option
@values.level_options
@options.json_option
def command(
    operation: Operation,
    ranks: list[int],
    alpha_us: float | None,
    beta_gbs: float | None,
    inter_alpha_us: float | None,
    inter_beta_gbs: float | None,
    gpus_per_node: int | None,
    as_json: bool,
) -> None:
    """The sizes at which two algorithms of OPERATION are equally fast, and which is the fastest from where on.

    Times are linear in the size, so the crossovers are solved, not searched.

    \b
    nccl-tuner cost crossover allreduce --ranks 64 --alpha-us 5 --beta-gbs 50
    nccl-tuner cost crossover allreduce --ranks 64 --gpus-per-node 8 --alpha-us 1 --beta-gbs 300 \\
        --inter-alpha-us 5 --inter-beta-gbs 50
    """
    levels = values.levels(alpha_us, beta_gbs, inter_alpha_us, inter_beta_gbs, gpus_per_node)
    records = [_record(operation, count, gpus_per_node, levels) for count in ranks]
    if as_json:
        values.print_records(records)
        return
    for record in records:
        title = f"{operation.name} over {record['ranks']} ranks"
        rows = [(values.named_bytes(each["from_bytes"]), each["algorithm"]) for each in record["fastest"]]
        print_table(f"{title}: fastest", ("from", "algorithm"), rows)
        pairs = [
            (
                *each["between"],
                "-" if each["bytes"] is None else values.named_bytes(each["bytes"]),
                "-" if each["bytes"] is None else f"{each['time_us']:.2f}",
            )
            for each in record["crossovers"]
        ]
        if pairs:
            print_table(f"{title}: equally fast", ("one", "other", "at", "time us"), pairs)


def _record(operation: Operation, ranks: int, gpus_per_node: int | None, levels: algorithms.Levels) -> dict[str, Any]:
    gpus, nodes = values.shape(ranks, gpus_per_node)
    found = algorithms.costs(operation, gpus, nodes, levels)
    crossovers = []
    for one, other in combinations(found, 2):
        at = float(crossover_bytes(found[one], found[other]))
        known = at == at  # not "not a number"
        crossovers.append(
            {
                "between": [one, other],
                "bytes": at if known else None,
                "time_us": float(found[one].time_us(at)) if known else None,
            }
        )
    return {
        "operation": operation.name,
        "ranks": ranks,
        "gpus_per_node": gpus,
        "nodes": nodes,
        "fastest": [{"from_bytes": at, "algorithm": name} for at, name in fastest(found)],
        "crossovers": crossovers,
    }

"""``nccl-tuner cost crossover``: where algorithms are equally fast."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import click

from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_table
from tuner.times.costmodels import algorithms
from tuner.times.costmodels.alphabeta import crossover_bytes, fastest
from tuner.times.costmodels.operations import Operation


@click.command(name="crossover", cls=options.Command)
@values.operation_argument
@values.ranks_option
@values.level_options
@options.json_option
def command(operation: Operation, ranks: list[int], as_json: bool, **level_values: Any) -> None:
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
class Crossover:
    """The size at which two algorithms are equally fast, and their time there; None where there is none."""

    between: tuple[str, str]
    bytes: float | None
    time_us: float | None


@dataclass(frozen=True, slots=True)
class Crossovers:
    """Those of an operation over so many ranks."""

    operation: Operation
    ranks: int
    gpus_per_node: int
    nodes: int
    fastest: tuple[Fastest, ...]
    crossovers: tuple[Crossover, ...]


def _crossovers(operation: Operation, ranks: int, gpus_per_node: int | None, levels: algorithms.Levels) -> Crossovers:
    gpus, nodes = values.shape(ranks, gpus_per_node)
    costs = algorithms.costs(operation, gpus, nodes, levels)
    crossovers = []
    for one, other in combinations(costs, 2):
        at = float(crossover_bytes(costs[one], costs[other]))
        known = at == at  # not "not a number"
        time_us = float(costs[one].time_us(at)) if known else None
        crossovers.append(Crossover((one, other), at if known else None, time_us))
    ranges = tuple(Fastest(at, name) for at, name in fastest(costs))
    return Crossovers(operation, ranks, gpus, nodes, ranges, tuple(crossovers))

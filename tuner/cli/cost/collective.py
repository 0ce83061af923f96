"""``nccl-tuner cost allreduce`` and the other operations: a time by the alpha-beta model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

import click

from tuner.base.errors import BadInput, one_of
from tuner.base.records import json_form
from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_table
from tuner.times.costmodels import algorithms, line
from tuner.times.costmodels.algorithms import USUAL, Overheads, overheads
from tuner.times.costmodels.operations import CostOperation


def _usual(factor: str) -> str:
    least, most = USUAL[factor]
    return f"{least:g} to {most:g} are usual"


@click.command(name="operation", cls=options.Command)
@options.under(
    "What comes on top of alpha and beta",
    *("--overhead-us", "--gap-us", "--software-us", "--protocol", "--contention", "--copy-gbs", "--straggler"),
)
@values.operation_argument
@click.option("--algorithm", metavar="NAME", help="Of the textbook. [default: ring where the operation has one]")
@values.ranks_option
@values.sizes_option
@values.level_options
@click.option(
    "--overhead-us",
    type=values.NOT_NEGATIVE,
    default=0.0,
    metavar="US",
    help="LogP's o of a processor: the alphas are then LogP's latency L, and a step takes L + 2 o.",
)
@click.option(
    "--gap-us", type=values.NOT_NEGATIVE, default=0.0, metavar="US", help="LogP's g, the least time of a step."
)
@click.option(
    "--software-us",
    type=values.NOT_NEGATIVE,
    default=0.0,
    metavar="US",
    help=f"Library, driver and launch of a call; {_usual('software')}.",
)
@click.option(
    "--protocol",
    type=values.SHARE,
    default=0.0,
    metavar="SHARE",
    help=f"Of the bandwidth, for headers and repeats; {_usual('protocol')}.",
)
@click.option(
    "--contention",
    type=values.SHARE,
    default=0.0,
    metavar="SHARE",
    help=f"Of the bandwidth, taken by others; {_usual('contention')} in shared clusters.",
)
@click.option(
    "--copy-gbs", type=values.POSITIVE, metavar="GBS", help="Bandwidth of a copy of the whole size, such as PCIe."
)
@click.option(
    "--straggler",
    type=values.NOT_NEGATIVE,
    default=0.0,
    metavar="SHARE",
    help=f"How much longer the slowest rank takes; {_usual('straggler')}.",
)
@click.option("--measured-us", type=values.POSITIVE, metavar="US", help="A measured time, for the model's error.")
@options.json_option
def operation_command(
    operation: CostOperation,
    algorithm: str | None,
    ranks: list[int],
    sizes: list[int],
    as_json: bool,
    measured_us: float | None,
    **given: Any,
) -> None:
    """Time of OPERATION by the alpha-beta model: steps of alpha, and a share of the size over beta.

    'cost allreduce' alone means 'cost operation allreduce'.

    \b
    nccl-tuner cost allreduce --algorithm ring --ranks 16 --bytes 100MB --alpha-us 10 --beta-gbs 100
    nccl-tuner cost alltoall --ranks 16 --bytes 100MB --alpha-us 10 --beta-gbs 100
    """
    names = algorithms.names(operation)
    if algorithm is not None and algorithm not in names:
        raise BadInput(f"--algorithm {algorithm}: {operation.name} has none such; {one_of(names)}")
    network = {each.name: given.pop(each.name) for each in fields(values.LevelValues)}
    model = _Model(
        operation,
        algorithm or names[0],
        values.LevelValues(**network),
        LogP(given.pop("overhead_us"), given.pop("gap_us")),
        overheads(**given),
    )
    predicted = [model.predict(count, size, measured_us) for count, size in product(ranks, sizes)]
    if as_json:
        values.print_records(predicted)
    else:
        _print(operation, predicted)


@dataclass(frozen=True, slots=True)
class LogP:
    """LogP's overhead o of a processor and gap g, the least time of a step."""

    overhead_us: float
    gap_us: float


@dataclass(frozen=True, slots=True)
class Phases:
    """The time of each phase of the hierarchical algorithm, and what the first flat one takes instead."""

    phases_us: Mapping[str, float]
    flat_us: float


@dataclass(frozen=True, slots=True)
class JudgedTime:
    """A measured time, and how well the model knows it: its error, of 1, the class of that and what may cause it."""

    measured_us: float
    error: float
    verdict: str = field(metadata=json_form("class"))
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predicted:
    """The time of an operation by the alpha-beta model, and the parts of it."""

    operation: CostOperation
    algorithm: str
    ranks: int
    gpus_per_node: int
    nodes: int
    bytes: int
    time_us: float
    latency_us: float
    busbw_gbs: float
    parts_us: Mapping[str, float]
    two_level: Phases | None = field(metadata=json_form(merged=True, optional=True))
    judged: JudgedTime | None = field(metadata=json_form(merged=True, optional=True))


@dataclass(frozen=True, slots=True)
class _Model:
    operation: CostOperation
    algorithm: str
    network: values.LevelValues
    logp: LogP
    overheads: Overheads

    def predict(self, ranks: int, size: int, measured_us: float | None) -> Predicted:
        levels = self.network.levels(self.logp.overhead_us, self.logp.gap_us)
        gpus, nodes = values.shape(ranks, self.network.gpus_per_node)
        made = algorithms.predict(
            self.operation, self.algorithm, size, algorithms.CostSystem(gpus, nodes, levels), self.overheads
        )
        return Predicted(
            operation=self.operation,
            algorithm=self.algorithm,
            ranks=ranks,
            gpus_per_node=gpus,
            nodes=nodes,
            bytes=size,
            time_us=float(made.time_us),
            latency_us=float(made.latency_us),
            busbw_gbs=float(made.busbw_gbs),
            parts_us=values.floats(made.parts_us),
            two_level=None if made.flat_us is None else Phases(values.floats(made.phases_us), float(made.flat_us)),
            judged=None if measured_us is None else _judged(float(made.time_us), measured_us),
        )


def _judged(time_us: float, measured_us: float) -> JudgedTime:
    error = line.error(time_us, measured_us)
    of_error = line.of_error(error)
    return JudgedTime(measured_us, error, of_error.name, tuple(of_error.causes))


def _print(operation: CostOperation, records: list[Predicted]) -> None:
    rows = [
        (
            record.algorithm,
            record.ranks,
            values.named_bytes(record.bytes),
            f"{record.time_us:.2f}",
            f"{record.latency_us:.2f}",
            f"{record.busbw_gbs:.3f}",
        )
        for record in records
    ]
    columns = ("algorithm", "ranks", "size", "time us", "latency us", "busbw GB/s")
    print_table(f"{operation.name} by alpha and beta", columns, rows)
    for record in records:
        if parts := _parts(record):
            click.echo(f"{values.named_bytes(record.bytes)}: {parts}")
        if (judged := record.judged) is not None:
            error = f"{100 * judged.error:+.1f} %"
            click.echo(f"measured {judged.measured_us:g} us: the model is off by {error}: {judged.verdict}")
            for cause in judged.causes:
                click.echo(f"  look for {cause}")


def _parts(record: Predicted) -> str:
    """The phases, and what overheads add to the model."""
    added = {f"{name} +{us:.2f}": us for name, us in record.parts_us.items() if name != "model" and us}
    if (two_level := record.two_level) is None:
        return ", ".join(added)
    parts = [f"{name} {us:.2f}" for name, us in two_level.phases_us.items()]
    longer = two_level.flat_us / record.parts_us["model"]
    return ", ".join([*parts, f"flat {two_level.flat_us:.2f} ({longer:.2f} times as long)", *added])

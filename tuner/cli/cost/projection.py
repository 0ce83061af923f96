"""``nccl-tuner cost projection``: scale-up and scale-out of nodes with tiled GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import click

from tuner.base.records import json_form
from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_json, print_table
from tuner.times.costmodels import fabric
from tuner.times.costmodels.fabric import PATHS, Fabric


@click.command(name="projection", cls=options.Command)
@options.under("Bandwidths", "--mdfi-gbs", "--xe-gbs", "--nic-gbs", "--pcie-gbs", "--nics-per-node")
@click.option(
    "--fabric", "name", default="aurora", show_default=True, metavar="NAME|FILE.toml", help="The described nodes."
)
@click.option("--profile", default="measured", show_default=True, help="Whose values: nominal, measured, tables.")
@click.option("--bytes", "sizes", type=options.Sizes(), help="Sizes of an AllReduce; 2GB is 2e9 bytes.")
@click.option("--nodes", type=values.WHOLES, default="2", show_default=True, help="Nodes; several with commas.")
@click.option(
    "--ranks-per-node",
    type=values.WHOLES,
    default="1",
    show_default=True,
    help="Several with commas.",
)
@click.option(
    "--path",
    type=click.Choice(PATHS),
    default="direct",
    show_default=True,
    help="direct: equations 4, 5 and 10; pcie: with copies to the host, 6; host: all through it, 1 and 7.",
)
@click.option("--one-tile-per-gpu", is_flag=True, help="Ranks on one tile of each GPU. [default: on both]")
@click.option(
    "--mdfi-gbs",
    type=values.POSITIVE,
    metavar="GBS",
    help="Inside a GPU, not the profile's; as the next ones.",
)
@click.option(
    "--xe-gbs",
    type=values.POSITIVE,
    metavar="GBS",
    help="Of the links between GPUs.",
)
@click.option("--nic-gbs", type=values.POSITIVE, metavar="GBS", help="Of an adapter.")
@click.option("--pcie-gbs", type=values.POSITIVE, metavar="GBS", help="Of PCIe.")
@click.option("--nics-per-node", type=int, help="Adapters of a node.")
@click.option("--measured-ms", type=values.POSITIVE, metavar="MS", help="A measured time, for its efficiency.")
@options.json_option
def command(
    name: str,
    profile: str,
    sizes: list[int] | None,
    nodes: list[int],
    ranks_per_node: list[int],
    path: str,
    one_tile_per_gpu: bool,
    measured_ms: float | None,
    as_json: bool,
    **other: float | None,
) -> None:
    """The time of an AllReduce by the links it passes; without --bytes, the tables of the fabric's file.

    \b
    nccl-tuner cost projection --bytes 2GB --nodes 2,4,8,16 --ranks-per-node 12
    nccl-tuner cost projection --profile tables
    """
    table = fabric.read(name)
    described = fabric.fabric(table, profile, **other)
    if sizes is None:
        _tables(described, table, as_json)
        return
    records = [
        _projected(described, _Job(size, count, ranks, path, one_tile_per_gpu), measured_ms)
        for size, count, ranks in product(sizes, nodes, ranks_per_node)
    ]
    if as_json:
        values.print_records(records)
    else:
        _print(f"AllReduce on {table.get('title', name)}, {profile}", records)


@dataclass(frozen=True, slots=True)
class _Job:
    bytes: int
    nodes: int
    ranks_per_node: int
    path: str
    one_tile_per_gpu: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured time, how much of it the model explains, and the bandwidth of an adapter that it speaks for."""

    measured_us: float
    efficiency: float
    effective_nic_gbs: float | None = field(metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True)
class Projected:
    """The time of an AllReduce by the links it passes, and the parts of it."""

    bytes: int
    nodes: int
    ranks_per_node: int
    path: str
    time_us: float
    parts_us: Mapping[str, float]
    measured: Measured | None = field(metadata=json_form(merged=True, optional=True))


@dataclass(frozen=True, slots=True)
class ProjectedTable:
    """A table of the fabric's file."""

    title: str
    rows: tuple[Projected, ...]


def _projected(described: Fabric, job: _Job, measured_ms: float | None) -> Projected:
    run = job.bytes, job.nodes, job.ranks_per_node
    parts_us = values.floats(described.parts_us(*run, job.path, job.one_tile_per_gpu))
    time_us = float(described.time_us(*run, job.path, job.one_tile_per_gpu))
    measured = None
    if measured_ms is not None:
        measured_us = 1000 * measured_ms
        nic_gbs = float(described.effective_nic_gbs(measured_us, *run)) if job.nodes > 1 else None
        measured = Measured(measured_us, time_us / measured_us, nic_gbs)
    return Projected(*run, job.path, time_us, {name: us for name, us in parts_us.items() if us}, measured)


def _tables(described: Fabric, table: Mapping[str, Any], as_json: bool) -> None:
    made = [
        ProjectedTable(
            one.title,
            tuple(
                _projected(described, _Job(one.nbytes, nodes, ranks, one.path, ranks in one.one_tile_per_gpu), ms)
                for nodes, ranks, ms in one.rows
            ),
        )
        for one in fabric.measured(table)
    ]
    if as_json:
        print_json(made)
        return
    for each in made:
        _print(each.title, each.rows)


def _print(title: str, records: Sequence[Projected]) -> None:
    rows = [
        (
            values.named_bytes(record.bytes),
            record.nodes,
            record.ranks_per_node,
            f"{record.time_us / 1000:.1f}",
            *(_measured(record.measured)),
            ", ".join(f"{name} {us / 1000:.1f}" for name, us in record.parts_us.items()),
        )
        for record in records
    ]
    columns = ("size", "nodes", "ranks per node", "model ms", "measured ms", "efficiency", "made of, ms")
    print_table(title, columns, rows)


def _measured(measured: Measured | None) -> tuple[str, str]:
    if measured is None:
        return "-", "-"
    return f"{measured.measured_us / 1000:g}", f"{100 * measured.efficiency:.1f} %"

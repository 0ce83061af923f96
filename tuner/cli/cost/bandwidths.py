"""``nccl-tuner cost ideal``: the bandwidth that links allow, and how to measure theirs for ``fit alpha-beta``."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import click

from tuner.base.errors import BadInput, one_of
from tuner.base.sizes import named_bytes
from tuner.base.view import columns_of
from tuner.cli import options
from tuner.cli.command import excludes, has, lacks, needs
from tuner.cli.cost import values
from tuner.cli.output import json_wanted, print_json, print_view, say, shown_as_json
from tuner.times.costmodels import fabric, line, wires
from tuner.times.costmodels.fabric import PATHS, Fabric, Projected
from tuner.times.costmodels.line import EXPERIMENTS, Experiment
from tuner.times.costmodels.wires import IdealOfShape

OF_LEVELS = ("intra_gbs", "inter_gbs", "gpus_per_node", "busbw_gbs")
OF_FABRICS = ("profile", "sizes", "ranks_per_node", "path", "one_tile_per_gpu", "measured_ms")
TILED = "Nodes with tiled GPUs"


RULES = (
    excludes("--fabric", *OF_LEVELS, when=has("name")),
    needs("--fabric", *OF_FABRICS, when=lacks("name")),
)


@click.command(name="ideal", cls=options.Command, rules=RULES)
@options.under(TILED, "--profile", "--bytes", "--ranks-per-node", "--path", "--one-tile-per-gpu", "--measured-ms")
@values.gbs_option(
    "--intra-gbs", "Bandwidth of a GPU to the GPUs of its node, in one direction, GB/s (1e9 bytes per second)."
)
@values.gbs_option("--inter-gbs", "Bandwidth of a node to other nodes, all adapters together, GB/s.")
@options.option("--gpus-per-node", "GPUs per node; several numbers separated by commas.", type=values.WHOLES)
@options.option(
    "--nodes", "Number of nodes; several numbers separated by commas. [default: 1, with --fabric 2]", type=values.WHOLES
)
@values.gbs_option("--busbw-gbs", "A measured bus bandwidth in GB/s, whose share of the ideal is shown.")
@options.option(
    "--fabric",
    "name",
    "Use a described kind of node whose GPUs consist of tiles, such as aurora, instead of --intra-gbs and --inter-gbs.",
    metavar="NAME|FILE.toml",
)
@options.option("--profile", "Which link values of --fabric to use: nominal, measured, tables.", default="measured")
@options.sizes_option("Sizes of the AllReduce; 2GB is 2e9 bytes. [default: those of the tables in the fabric's file]")
@options.option("--ranks-per-node", "Ranks per node; several separated by commas.", type=values.WHOLES, default="1")
@options.option(
    "--path",
    "How data reaches the network: direct (equations 4, 5 and 10), pcie (with copies to the host, equation 6), "
    "or host (all data goes through the host, equations 1 and 7).",
    type=click.Choice(PATHS),
    default="direct",
)
@options.flag("--one-tile-per-gpu", "Put ranks on only one tile of each GPU. [default: on both]")
@options.option(
    "--measured-ms", "A measured time in us, whose efficiency is shown.", type=values.POSITIVE, metavar="MS"
)
@options.json_option
def ideal_command(
    intra_gbs: float | None,
    inter_gbs: float | None,
    gpus_per_node: list[int] | None,
    nodes: list[int] | None,
    busbw_gbs: float | None,
    name: str | None,
    **projected: Any,
) -> None:
    """The bus bandwidth that links allow if they carry only the bytes that have to be sent, and nothing else costs
    time.

    It is the same for every collective, and does not model reduction in the network. With --fabric: the time of an
    AllReduce by the links that it crosses.

    \b
    nccl-tuner cost ideal --intra-gbs 450 --inter-gbs 100 --gpus-per-node 8 --nodes 2
    nccl-tuner cost ideal --fabric aurora --bytes 2GB --nodes 2,4,8,16 --ranks-per-node 12
    nccl-tuner cost ideal --fabric aurora --profile tables
    """
    if name is not None:
        _show_fabric(name, nodes or [2], **projected)
        return
    if not gpus_per_node:
        raise BadInput(
            "give the number of GPUs per node with --gpus-per-node, or a described kind of node with --fabric NAME"
        )
    answers = [
        wires.ideal_of(intra_gbs, inter_gbs, gpus, count, busbw_gbs) for gpus in gpus_per_node for count in nodes or [1]
    ]
    if not shown_as_json(answers, "answers"):
        print_view("Ideal communication bandwidth", columns_of(IdealOfShape), answers)


PROTOCOL = columns_of(Experiment, "parameter", "ranks", "bytes", "iterations", "usual", "nccl_tests")
PROJECTED = columns_of(
    Projected, "bytes", "nodes", "ranks_per_node", "time_us", "measured_us", "efficiency", "parts_us"
)
_BY_NAME = {each.parameter: each for each in EXPERIMENTS}


def show_experiment(
    parameter: str | None,
    elapsed_us: list[float] | None,
    ranks: int | None,
    iterations: int | None,
    size: list[int] | None,
) -> None:
    """Prints how to measure the four parameters of two levels, or the value of one parameter from its times. Raises
    BadInput."""
    if parameter is None:
        if (elapsed_us, ranks, iterations, size) != (None, None, None, None):
            raise BadInput(f"name the PARAMETER that these measurements are for; {one_of(_BY_NAME)}")
        _print_protocol()
        return
    if parameter not in _BY_NAME:
        raise BadInput(f"--experiment: no parameter {parameter!r}; {one_of(_BY_NAME)}")
    if not elapsed_us or ranks is None:
        raise BadInput(f"{parameter}: give both --elapsed-us and --ranks of the measured runs")
    experiment = _BY_NAME[parameter]
    calls = experiment.iterations if iterations is None else iterations
    found = experiment.measured(elapsed_us, ranks, calls, (size or [experiment.bytes])[0])
    if shown_as_json(found):
        return
    spread = "" if found.deviation is None else f" +- {found.deviation:.3f}"
    usual = "{:g} to {:g}".format(*found.usual_range)
    click.echo(f"{parameter}: {found.mean:.3f}{spread}, {'as usual' if found.usual else 'not as usual'}: {usual}")


def _print_protocol() -> None:
    if json_wanted():
        print_json(
            [
                {
                    "parameter": each.parameter,
                    "ranks": each.ranks,
                    "bytes": each.bytes,
                    "iterations": each.iterations,
                    "warmup": each.warmup,
                    "repetitions": line.REPETITIONS,
                    "usual_range": each.usual,
                    "nccl_tests": each.nccl_tests,
                }
                for each in EXPERIMENTS
            ],
            "experiments",
        )
        return
    print_view("Measure each parameter with a ring AllReduce", PROTOCOL, EXPERIMENTS)
    say(
        f"repeat each experiment {line.REPETITIONS} times; for 'fit alpha-beta --sweep' measure sizes from "
        f"{named_bytes(line.SWEEP_BYTES[0])} to {named_bytes(line.SWEEP_BYTES[1])}; the bandwidth inside a node is "
        f"usually {line.USUAL_RATIO:g} times that between nodes"
    )


def _show_fabric(
    name: str,
    nodes: list[int],
    *,
    profile: str,
    sizes: list[int] | None,
    ranks_per_node: list[int],
    path: str,
    one_tile_per_gpu: bool,
    measured_ms: float | None,
) -> None:
    table = fabric.read(name)
    described = fabric.fabric(table, profile)
    if sizes is None:
        _tables(described, table)
        return
    records = [
        described.projected((size, count, ranks), path, one_tile_per_gpu, measured_ms)
        for size, count, ranks in product(sizes, nodes, ranks_per_node)
    ]
    if not shown_as_json(records, "answers"):
        print_view(f"AllReduce on {table.get('title', name)}, {profile}", PROJECTED, records)


def _tables(described: Fabric, table: Mapping[str, Any]) -> None:
    made = fabric.projected_tables(described, table)
    if shown_as_json(made, "tables"):
        return
    for each in made:
        print_view(each.title, PROJECTED, each.rows)

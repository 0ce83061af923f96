"""The argument and options that say which log, which communicator of it, and what it does not say."""

from dataclasses import dataclass
from pathlib import Path

import click

from tuner.base.names import Collective
from tuner.cli.command import F, option, stacked
from tuner.cli.communicator_options import fact_options
from tuner.cli.options import Named
from tuner.cli.release_names import release_option
from tuner.machine import graphs, topology
from tuner.release.environment import parse_assignments
from tuner.scenario.logs import importer
from tuner.scenario.logs.imported import Given, Imported


def log_options(function: F) -> F:
    """The argument FILE, and the options that :func:`read_log` takes."""
    return stacked(
        function,
        click.argument("file", type=click.Path(path_type=Path)),
        click.option("--communicator", metavar="ID", help="Its commId in the log. [default: the largest]"),
        release_option("Release, instead of the log's line 'NCCL version'.", only_known=False),
        click.option("--nodes", type=click.IntRange(1), help="Number of nodes."),
        *fact_options(option, heading=None),
        option(
            "--nic-latency-us",
            "net_latency_us",
            former="--net-latency-us",
            type=click.FloatRange(0, 1e6),
            metavar="US",
            help="Latency that the network plugin reports.",
        ),
        click.option(
            "--topology",
            type=click.Path(path_type=Path),
            metavar="FILE.xml",
            help="A node's dump (NCCL_TOPO_DUMP_FILE): compute capability, CPU, NVSwitch.",
        ),
        option(
            "--topo-graphs",
            "graphs",
            former="--graphs",
            type=click.Path(path_type=Path),
            metavar="FILE.xml",
            help="A node's graphs (NCCL_GRAPH_DUMP_FILE), instead of the log's.",
        ),
        click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable the log does not show."),
        click.option(
            "--collective",
            type=Named(Collective, "collective"),
            help="The collective of all choices that do not name theirs (2.20 to 2.22).",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What :func:`log_options` hands a command, by the names of the options."""

    file: Path
    communicator: str | None
    nccl: str | None
    comp_cap: tuple[int, ...]
    nodes: int | None
    cpu_arch: str | None
    cpu_vendor: str | None
    nvswitch: bool | None
    net_latency_us: float | None
    net_gbs: float | None
    topology: Path | None
    graphs: Path | None
    env: tuple[str, ...]
    collective: Collective | None


def read_log(options: LogOptions) -> Imported:
    """What FILE and the options say together."""
    return importer.read(
        options.file,
        Given(
            communicator=options.communicator,
            release=options.nccl,
            nodes=options.nodes,
            comp_caps=options.comp_cap,
            cpu_arch=options.cpu_arch,
            cpu_vendor=options.cpu_vendor,
            nvswitch=options.nvswitch,
            net_latency_us=options.net_latency_us,
            net_gbs=options.net_gbs,
            environment=parse_assignments(options.env),
            collective=options.collective,
            topology=_topology(options.topology),
            graphs=_graphs(options.graphs),
        ),
    )


def _topology(path: Path | None) -> topology.Topology | None:
    return None if path is None else topology.read(path)


def _graphs(path: Path | None) -> graphs.Graphs | None:
    return None if path is None else graphs.read_dump(path)[0]

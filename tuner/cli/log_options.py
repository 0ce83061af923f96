"""The argument and options that say which log, which communicator of it, and what it does not say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.base.names import CPU_ARCHS, CPU_VENDORS, Collective
from tuner.cli.options import Named
from tuner.cli.stacked import F, stacked
from tuner.logs import importer
from tuner.logs.imported import Given, Imported
from tuner.machine import graphs, topology
from tuner.release.environment import parse_assignments


class CompCaps(click.ParamType):  # type: ignore[type-arg]
    """Compute capabilities: ``8.0`` or ``80``, one or one per rank."""

    name = "compute capabilities"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        words = [word.strip().replace(".", "") for word in str(value).split(",")]
        if not all(word.isdecimal() and 35 <= int(word) < 200 for word in words):
            raise BadInput(f"--comp-cap {value!r}: expected one such as 8.0 or 80, or one per rank: 80,80,90,90")
        return tuple(map(int, words))


def log_options(function: F) -> F:
    """The argument FILE, and the options that :func:`read_log` takes."""
    return stacked(
        function,
        click.argument("file", type=click.Path(path_type=Path)),
        click.option("--communicator", metavar="ID", help="Its commId in the log. [default: the largest]"),
        click.option("--nccl", metavar="RELEASE", help="Release, instead of the log's line 'NCCL version'."),
        click.option(
            "--comp-cap",
            type=CompCaps(),
            default=(),
            metavar="8.0",
            help="GPUs' compute capability: one, or one per rank. No line of NCCL's says it.",
        ),
        click.option("--nodes", type=click.IntRange(1), help="Number of nodes."),
        click.option("--cpu-arch", type=click.Choice(CPU_ARCHS), help="CPU architecture."),
        click.option("--cpu-vendor", type=click.Choice(CPU_VENDORS), help="CPU vendor."),
        click.option("--nvswitch/--no-nvswitch", default=None, help="Whether there is an NVSwitch."),
        click.option("--net-latency-us", type=click.FloatRange(0), help="Latency the network plugin reports."),
        click.option("--net-gbs", type=click.FloatRange(0), help="Slowest path from a GPU to its adapter, GB/s."),
        click.option(
            "--topology",
            type=click.Path(path_type=Path),
            metavar="FILE.xml",
            help="A node's dump (NCCL_TOPO_DUMP_FILE): compute capability, CPU, NVSwitch.",
        ),
        click.option(
            "--graphs",
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

"""``nccl-tuner graphs``: the channels that NCCL's search finds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import click

from tuner.answers import graphs
from tuner.answers.graphs import GraphsAcross
from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.base.names import Pattern
from tuner.cli import options
from tuner.cli.across import print_across
from tuner.cli.graphs_explained import print_explained
from tuner.cli.output import print_json, print_table, say
from tuner.cli.reports.machine_picture import picture
from tuner.graphs.system import HOST_BIT
from tuner.machine.graphs import COLLNET_GRAPHS, Graph, OrderedGraph

COLLNET, OF_COLLNET = "collnet", "collnet_direct"  # the short name is the graph that moves most
GRAPHS = ("ring", "tree", "nvls", *COLLNET_GRAPHS)


svg_option = click.option(
    "--svg",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Draw the machine: each link with what the channels of a graph take of it (--explain, else the ring).",
)
across_option = click.option(
    "--across",
    is_flag=True,
    help="Instead (in JSON besides) the channels of all ranks across nodes: rings, trees, heads, and their adapters.",
)


@click.command(name="graphs", cls=options.Command)
@options.communicator_options(changes=True)
@click.option(
    "--dump",
    type=click.Path(path_type=Path),
    metavar="FILE.xml",
    help="Write them to a file as NCCL does (NCCL_GRAPH_DUMP_FILE), which it reads back (NCCL_GRAPH_FILE).",
)
@click.option(
    "--explain",
    "explained",
    type=click.Choice((*GRAPHS, COLLNET)),
    help="Instead, why one graph has these channels: what refused more, what limits it, and what would lift that.",
)
@svg_option
@across_option
@options.json_option
def command(
    dump: Path | None,
    explained: str | None,
    svg: Path | None,
    across: bool,
    as_json: bool,
    communicator: options.CommunicatorOptions,
) -> None:
    """The graphs that NCCL's search finds on a node, every channel with its GPUs and adapters; without libnccl.

    \b
    nccl-tuner graphs --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner graphs --topology node.xml --nodes 2 --nccl 2.28.9 --dump graphs.xml
    nccl-tuner graphs --machine dgx-h100 --nodes 2 --nccl 2.28.9 --explain ring --svg ring.svg
    nccl-tuner graphs --machine dgx-h100 --nodes 3 --nccl 2.28.9 --across
    nccl-tuner graphs --machine dgx-h100 --nodes 2 --nccl 2.28.9 --change remove-nic=mlx5_0
    """
    if across and any(each is not None for each in (dump, explained, svg)):
        raise BadInput("--across cannot be combined with --dump, --explain or --svg, which show one node")
    if dump is not None and explained is not None:
        raise BadInput("graphs: --explain writes no graphs to a file; valid: --dump or --explain")
    described = communicator.scenario()
    graph = OF_COLLNET if explained == COLLNET else explained
    explanation = None if graph is None else graphs.explained(described, graph)
    if svg is not None:
        drawn = explanation.explanation if explanation else graphs.limited(described, "ring")
        write_text(svg, picture(drawn, described.title))
        say(f"picture of {described.title} written to {svg}", err=True)
    if explanation is not None:
        if as_json:
            print_json(explanation)
        else:
            print_explained(described.title, explanation)
        return
    if across:
        print_with_across(described.title, graphs.with_across(described), as_json)
        return
    if svg is not None and dump is None and not as_json:
        return
    found = graphs.of_scenario(described)
    if dump is not None:
        graphs.write_dump(described, dump)
        say(f"graphs of {described.title} written to {dump}", err=True)
    if as_json:
        print_json(found)
    elif dump is None:
        print_graphs(f"Graphs of {described.title}", found)
        print_channels(found)


def print_with_across(title: str, answer: GraphsAcross, as_json: bool) -> None:
    """The channels across nodes; in JSON beside the graphs of a node, where nodes are alike."""
    if as_json:
        print_json(answer)
    else:
        print_across(title, answer.across)


def print_graphs(title: str, found: Mapping[str, OrderedGraph]) -> None:
    """The numbers of each graph."""
    columns = [each.name for each in fields(Graph)]
    rows = [(name, *(_shown(getattr(each.graph, column)) for column in columns)) for name, each in found.items()]
    print_table(title, ("graph", *columns), rows)


def print_channels(found: Mapping[str, OrderedGraph]) -> None:
    """The devices of each channel, in a NVLink domain with their hosts; equal channels in a row are one line."""
    hosts = any(_number(device) >> HOST_BIT for each in found.values() for order in each.orders for device in order)
    for name, each in found.items():
        rows: list[tuple[str, str]] = []
        first = 0
        for channel, order in enumerate(each.orders):
            if channel + 1 == len(each.orders) or each.orders[channel + 1] != order:
                rows.append(
                    (str(first) if first == channel else f"{first}-{channel}", " ".join(_devices(order, hosts)))
                )
                first = channel + 1
        print_table(f"Channels of {name}", ("channel", "devices in their order"), rows)


def _devices(order: Sequence[str], hosts: bool) -> Iterator[str]:
    """As NCCL's log has them: ``gpu:1-0`` is device 0 of host 1."""
    for device in order:
        kind, number, rank = _parts(device)
        of_host = f"{number >> HOST_BIT}-{number & (1 << HOST_BIT) - 1}" if hosts and number >= 0 else str(number)
        yield f"{kind}:{of_host}{rank}"


def _number(device: str) -> int:
    return max(_parts(device)[1], 0)


def _parts(device: str) -> tuple[str, int, str]:
    kind, _, rest = device.partition(":")
    number, slash, rank = rest.partition("/")
    return kind, int(number), slash + rank


def _shown(value: object) -> object:
    """Of Python's own words none: what is not there is a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.name if isinstance(value, Pattern) else value

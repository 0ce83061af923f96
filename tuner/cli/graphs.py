"""``nccl-tuner graphs``: the channels that NCCL's search finds."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from tuner.answers import graphs
from tuner.base.errors import BadInput
from tuner.base.names import Pattern
from tuner.cli import options
from tuner.cli.output import print_json, print_table
from tuner.machine.graphs import COLLNET_GRAPHS, Graph, OrderedGraph
from tuner.search.explain import Explanation

GRAPHS = ("ring", "tree", "nvls", *COLLNET_GRAPHS)


@click.command(name="graphs")
@options.scenario_options
@click.option(
    "--dump",
    type=click.Path(path_type=Path),
    metavar="FILE.xml",
    help="Write them to a file as NCCL does (NCCL_GRAPH_DUMP_FILE), which it reads back (NCCL_GRAPH_FILE).",
)
@click.option(
    "--explain",
    "explained",
    type=click.Choice(GRAPHS),
    help="Instead, every search that is tried for one graph: what it asks for, what it finds, what refuses.",
)
@options.json_option
def command(dump: Path | None, explained: str | None, as_json: bool, **scenario: Any) -> None:
    """The graphs that NCCL's search finds on a node, every channel with its GPUs and adapters; without libnccl.

    \b
    nccl-tuner graphs --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner graphs --topology node.xml --nodes 2 --nccl 2.28.9 --dump graphs.xml
    nccl-tuner graphs --machine dgx-h100 --nodes 2 --nccl 2.28.9 --explain ring
    """
    if dump is not None and explained is not None:
        raise BadInput("graphs: --explain writes no graphs to a file; valid: --dump or --explain")
    described = options.scenario_of(**scenario)
    if explained is not None:
        print_searches(described.title, graphs.explained(described, explained), as_json)
        return
    found = graphs.of_scenario(described)
    if dump is not None:
        graphs.write_dump(described, dump)
        click.echo(f"graphs of {described.title} written to {dump}", err=True)
    if as_json:
        print_json(found)
    elif dump is None:
        print_graphs(f"Graphs of {described.title}", found)
        print_channels(found)


def print_graphs(title: str, found: Mapping[str, OrderedGraph]) -> None:
    """The numbers of each graph."""
    columns = [each.name for each in fields(Graph)]
    rows = [(name, *(_shown(getattr(each.graph, column)) for column in columns)) for name, each in found.items()]
    print_table(title, ("graph", *columns), rows)


def print_searches(title: str, explanation: Explanation, as_json: bool) -> None:
    """The searches for one graph; those that repeat one before are left out of the table."""
    if as_json:
        print_json(explanation)
        return
    click.echo(
        f"{explanation.graph} of {title}\n"
        f"a channel has at most {explanation.max_gbs:g} GB/s, the best path from a GPU; "
        f"all channels have at most {explanation.total_gbs:g} GB/s, the links of a GPU"
    )
    new = [search for search in explanation.searches if not search.repeats]
    rows = [
        (
            search.pattern.name,
            f"{search.bw_intra_gbs:g} {search.bw_inter_gbs:g}",
            f"{search.type_intra} {search.type_inter}",
            search.cross_nic,
            "alike" if search.same_channels else "any",
            f"{search.min_channels}-{search.max_channels}",
            f"{search.tried} of {search.allowed}",
            search.outcome,
            search.channels,
            "-" if search.refused is None else f"{search.refused.link} ({search.refused.link_gbs:g} GB/s)",
        )
        for search in new
    ]
    asked = "pattern", "GB/s intra inter", "types", "cross nic", "channels", "number"
    print_table("", (*asked, "GPUs tried", "outcome", "found so far", "refused most often"), rows)
    left_out = len(explanation.searches) - len(new)
    if left_out:
        click.echo(f"{left_out} more repeat one of these, with path types that no path has")


def print_channels(found: Mapping[str, OrderedGraph]) -> None:
    """The devices of each channel; equal channels that follow each other are one line."""
    for name, each in found.items():
        rows: list[tuple[str, str]] = []
        first = 0
        for channel, order in enumerate(each.orders):
            if channel + 1 == len(each.orders) or each.orders[channel + 1] != order:
                rows.append((str(first) if first == channel else f"{first}-{channel}", " ".join(order)))
                first = channel + 1
        print_table(f"Channels of {name}", ("channel", "devices in their order"), rows)


def _shown(value: object) -> object:
    return value.name if isinstance(value, Pattern) else value

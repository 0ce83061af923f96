"""``nccl-tuner graphs``: the channels that NCCL's search finds on a topology, why, and across nodes."""

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import click

from tuner.answers import graphs
from tuner.answers.graphs import Explained, GraphsAcross
from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.base.names import Pattern
from tuner.base.numerics import Float, shortest
from tuner.base.printable import printable
from tuner.base.sizes import plural
from tuner.cli import options
from tuner.cli.output import json_wanted, print_json, print_table, say, shown_as_json
from tuner.cli.reports.machine_picture import picture
from tuner.emulator.connect import Across, Crossing, RingOrder, TreeOrder
from tuner.graphs.explain.records import GraphExplanation, SearchTried
from tuner.graphs.explain.runs import PATHS, of_found
from tuner.graphs.system import HOST_BIT
from tuner.machine.graphs import COLLNET_GRAPHS, OrderedGraph
from tuner.scenario import Scenario

WIDTH = 80
LINK_KINDS = frozenset({"adapter", "pcie", "nvlink", "c2c", "sockets"})


def print_explained(title: str, explained: Explained) -> None:
    """Prints what was found, why not more, what limits it, what would lift the limits, and the searches."""
    explanation = explained.explanation
    several = explanation.several_nodes
    found = explanation.found
    _say(f"{explanation.graph} of {title}", "")
    if found.channels:
        ways = f"GPUs {PATHS[found.type_intra]} ({found.type_intra})"
        ways += f", adapters {PATHS[found.type_inter]} ({found.type_inter})" if several else ""
        _say(f"{of_found(found, several)}: {ways}.", "")
    else:
        _say("No channels were found.", "")
    _say(*_communicator(explained))
    _list("Why not more", [reason.says for reason in (explanation.one_more, explanation.faster) if reason is not None])
    _list("What else led to this graph", [reason.says for reason in explanation.reasons])
    _list(
        "What limits it: what NCCL finds if it searches again without one of these limits",
        list(_limits(explanation, several)),
    )
    _lifts(explanation, several)
    _searches(explanation)


def _say(*paragraphs: str) -> None:
    for paragraph in paragraphs:
        click.echo(textwrap.fill(paragraph, WIDTH))


def _list(title: str, items: list[str]) -> None:
    if not items:
        return
    say(f"{title}\n")
    for item in items:
        _item(item)
    click.echo("")


def _item(text: str) -> None:
    click.echo(textwrap.fill(text, WIDTH, initial_indent="  - ", subsequent_indent="    "))


def _communicator(explained: Explained) -> Iterator[str]:
    made = explained.communicator
    if made is None:
        return
    text = f"Collectives then use {plural(made.channels, 'channel')}."
    if made.channels != made.without_variables:
        names = " and ".join(f"{name}={value}" for name, value in made.variables.items())
        text += f" That is because of {names}; without these variables, they use {made.without_variables}."
    yield text
    yield ""


def _limits(explanation: GraphExplanation, several: bool) -> Iterator[str]:
    for limit in explanation.limits:
        links = LINK_KINDS & set(limit.kinds)
        freed = "twice the bandwidth on all links of its kind" if links else "that"
        if len(limit.kinds) > 1:
            freed = "twice the bandwidth on all of these" if links == set(limit.kinds) else "all of this together"
        without = f"With {freed}" if links else "Without that"
        says = f"{limit.says} {without}: {of_found(limit.then, several)}."
        yield says + (" Removing only some of these limits changes nothing." if len(limit.kinds) > 1 else "")


def _lifts(explanation: GraphExplanation, several: bool) -> None:
    """Prints what NCCL would find without each limit; the changes that lift it are on separate lines, which are not
    folded.
    """
    if not explanation.lifts:
        return
    click.echo("What would lift the limits: what NCCL finds if it searches again after a change\n")
    for lift in explanation.lifts:
        finds = of_found(lift.found, several) if lift.more else "no more"
        _item(f"{lift.change}: {finds}")
        click.echo("    " + " ".join(f"--change {shlex.quote(change)}" for change in lift.changes))
    click.echo("")


def _searches(explanation: GraphExplanation) -> None:
    """Prints the searches; repeated ones are left out of the table."""
    new = [search for search in explanation.searches if not search.repeats]
    if not new:
        return
    click.echo(
        f"Searches, in NCCL's order\n\n"
        f"a channel has at most {explanation.max_gbs:g} GB/s, the best path from a GPU\n"
        f"all channels have at most {explanation.total_gbs:g} GB/s, the links of a GPU\n"
        "tried: GPUs tried as the next of a channel; found: channels found so far"
    )
    rows = [_row(list(alike)) for _, alike in groupby(new, _kind)]
    print_table("", ("GB/s", "types", "channels", "searches", "tried", "better", "found"), rows)
    left_out = len(explanation.searches) - len(new)
    if left_out:
        click.echo(f"{left_out} more searches repeat one of these, with path types that no path has")


def _kind(search: SearchTried) -> tuple[str, str, str]:
    """Sort of a search: successive searches that ask for the same and find the same are printed as one line."""
    better = "all" if search.outcome == "all channels" else "yes" if search.outcome.startswith("better") else "no"
    asked = f"{search.min_channels}-{search.max_channels}"
    return _speed(search), asked, better


def _row(searches: list[SearchTried]) -> tuple[object, ...]:
    speed, asked, better = _kind(searches[0])
    types = list(dict.fromkeys(f"{search.type_intra} {search.type_inter}" for search in searches))
    between = types[0] if len(types) == 1 else f"{types[0]} to {types[-1]}"
    tried = sum(search.tried for search in searches)
    return speed, between, asked, len(searches), tried, better, searches[-1].channels


def _speed(search: SearchTried) -> str:
    if search.bw_intra_gbs == search.bw_inter_gbs:
        return f"{search.bw_intra_gbs:g}"
    return f"{search.bw_intra_gbs:g} {search.bw_inter_gbs:g}"


def print_across(title: str, across: Across, *, only_present: bool = False) -> None:
    """Prints all tables of channels, with equal channels on one line. ``only_present``: empty tables are left out."""
    nodes = {rank: node for node, ranks in enumerate(across.ranks_of_nodes) for rank in ranks}
    rings = {ring.channel: (_ring(ring),) for ring in across.rings}
    if rings or not only_present:
        print_table(f"Rings of {title}", ("channels", "ranks in their order"), alike(rings))
    if across.trees or not only_present:
        print_trees("Trees, from every node up to its parent", across.trees, nodes)
    if across.nvls_heads:
        heads = [(head, " ".join(map(str, ranks))) for head, ranks in enumerate(across.nvls_heads)]
        print_table("Heads of NVLS", ("head", "its rank on each node"), heads)
    if across.nvls_trees:
        print_trees("Trees of NVLS heads, from every node up to its parent", across.nvls_trees, nodes)
    if across.collnet_chains:
        chains = {tree.channel: (" ".join(map(str, _roots(tree, nodes))),) for tree in across.collnet_chains}
        print_table("Chains of CollNet", ("channels", "ranks that reduce inside the network"), alike(chains))
    if heads_of_direct := [rank for rank, place in enumerate(across.collnet_direct) if place.head is not None]:
        click.echo(f"Heads of CollNet direct: {' '.join(map(str, heads_of_direct))}\n")
    if across.pat_peers:
        peers = [(rank, " ".join(map(str, peers))) for rank, peers in enumerate(across.pat_peers)]
        print_table("PAT, in all channels", ("rank", "sends to and receives from"), peers)


def print_trees(title: str, trees: Sequence[TreeOrder], nodes: Mapping[int, int]) -> None:
    """Prints the roots of trees, and the connections between nodes from child to parent; the other direction uses the
    same adapters."""
    rows = {
        tree.channel: (
            " ".join(str(rank) for rank in _roots(tree, nodes) if tree.children[rank]),
            ", ".join(
                _crossed(crossing) for crossing in tree.crossings if tree.parents[crossing.sender] == crossing.receiver
            ),
        )
        for tree in trees
    }
    print_table(title, ("channels", "roots", "child and parent on two nodes"), alike(rows))


def _roots(tree: TreeOrder, nodes: Mapping[int, int]) -> list[int]:
    return [rank for rank in nodes if tree.parents[rank] is None]


def _ring(ring: RingOrder) -> str:
    """Text of a ring: its ranks, with the adapters between nodes."""
    leaving = {crossing.sender: crossing for crossing in ring.crossings}
    return " ".join(f"{rank} {_adapters(leaving[rank])}" if rank in leaving else str(rank) for rank in ring.ranks)


def _crossed(crossing: Crossing) -> str:
    return f"{crossing.sender} {_adapters(crossing)} {crossing.receiver}"


def _adapters(crossing: Crossing) -> str:
    """Text for the adapters of the sender and of the receiver, with the rank on the sender's node that relays the
    data."""
    over = "" if crossing.relay == crossing.sender else f"over {crossing.relay}, "
    return f"[{over}{_net(crossing.send_net)} > {_net(crossing.receive_net)}]"


def _net(number: int | None) -> str:
    return "no net" if number is None else f"net:{number}"


def alike(of_channel: Mapping[int, tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Merges equal rows; each has the channels that share it."""
    channels: dict[tuple[str, ...], list[int]] = {}
    for channel, row in of_channel.items():
        channels.setdefault(row, []).append(channel)
    return [(numbers_in_words(numbers), *row) for row, numbers in channels.items()]


def numbers_in_words(numbers: Iterable[int]) -> str:
    """Text of numbers in their order, with runs as ranges: ``0-3 8``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return " ".join("-".join(map(str, ends)) for ends in ranges)


COLLNET, OF_COLLNET = "collnet", "collnet_direct"  # the short name is the graph that moves most
GRAPHS = ("ring", "tree", "nvls", *COLLNET_GRAPHS)


@click.command(name="graphs", cls=options.Command)
@options.communicator_options(changes=True, build=True)
@options.file_option(
    "--dump",
    "FILE.xml",
    "Write the graphs to this file, as NCCL dumps them (NCCL_GRAPH_DUMP_FILE) and reads them back (NCCL_GRAPH_FILE).",
)
@options.option(
    "--explain",
    "explained",
    "Explain instead why one graph has these channels: why there are not more, what limits the graph, and which "
    "changes would lift the limits.",
    type=click.Choice((*GRAPHS, COLLNET)),
)
@options.file_option(
    "--svg",
    "FILE.svg",
    "Draw the machine, and on each link the bandwidth that the channels of a graph use (the graph of --explain, "
    "or else the ring).",
)
@options.flag(
    "--across",
    "Show the channels of all ranks across nodes instead: rings, trees, heads, and their adapters. JSON has both.",
)
@options.libnccl_option("Show the graphs that the real libnccl finds instead, with exact bandwidths.")
@options.json_option
def command(
    dump: Path | None,
    explained: str | None,
    svg: Path | None,
    across: bool,
    libnccl: float | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Shows the graphs that NCCL's search finds on a node: each channel with its GPUs and adapters.

    \b
    nccl-tuner graphs --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner graphs --topology node.xml --nodes 2 --nccl 2.28.9 --dump graphs.xml
    nccl-tuner graphs --machine dgx-h100 --nodes 2 --nccl 2.28.9 --explain ring --svg ring.svg
    nccl-tuner graphs --machine dgx-h100 --nodes 3 --nccl 2.28.9 --across
    nccl-tuner graphs --machine dgx-h100 --nodes 2 --nccl 2.28.9 --change remove-nic=mlx5_0
    nccl-tuner graphs --machine dgx-h100 --nodes 3 --nccl 2.28.9 --across --libnccl
    """
    if across and any(each is not None for each in (dump, explained, svg)):
        raise BadInput("--across cannot be combined with --dump, --explain or --svg, which show one node")
    if dump is not None and explained is not None:
        raise BadInput("--explain writes no graphs to a file: use either --dump or --explain")
    described = communicator.scenario()
    if libnccl is not None:
        if any(each is not None for each in (dump, explained, svg)):
            raise BadInput("--libnccl only shows libnccl's graphs: remove --dump, --explain and --svg")
        _show_libnccl(described, libnccl, across)
        return
    graph = OF_COLLNET if explained == COLLNET else explained
    explanation = None if graph is None else graphs.explained(described, graph)
    if svg is not None:
        drawn = explanation.explanation if explanation else graphs.limited(described, "ring")
        write_text(svg, printable(picture(drawn, described.title)))
        say(f"picture of {described.title} written to {svg}", err=True)
    if explanation is not None:
        if not shown_as_json(explanation):
            print_explained(described.title, explanation)
        return
    if across:
        print_with_across(described.title, graphs.with_across(described))
        return
    if svg is not None and dump is None and not json_wanted():
        return
    found = graphs.of_scenario(described)
    if dump is not None:
        graphs.write_dump(described, dump)
        say(f"graphs of {described.title} written to {dump}", err=True)
    if json_wanted():
        print_json({"graphs": found})
    elif dump is None:
        print_graphs(f"Graphs of {described.title}", found)
        print_channels(found)


def _show_libnccl(described: Scenario, timeout_s: float, across: bool) -> None:
    from tuner.answers import library

    if across:
        print_with_across(described.title, library.with_across(described, timeout_s))
    elif json_wanted():
        print_json({"graphs": library.graphs(described, timeout_s)})
    else:
        print_graphs(f"Graphs of {described.title}", library.graphs(described, timeout_s))


def print_with_across(title: str, answer: GraphsAcross) -> None:
    """Prints the channels across nodes; if nodes are equal, the JSON also has the graphs of a node."""
    if not shown_as_json(answer):
        print_across(title, answer.across)


NUMBERS = {  # of a graph, by their headings; bandwidths are those of a channel
    "pattern": "pattern",
    "channels": "channels",
    "same channels": "same_channels",
    "node GB/s": "bw_intra_gbs",
    "network GB/s": "bw_inter_gbs",
    "latency us": "latency_inter_us",
    "GPUs by": "type_intra",
    "NICs by": "type_inter",
    "cross NIC": "cross_nic",
    "heads": "heads",
}
SPARE = ("heads", "latency us", "same channels", "cross NIC")  # where little room is


def print_graphs(title: str, found: Mapping[str, OrderedGraph]) -> None:
    """Prints the numbers of each graph."""
    rows = [(name, *(_shown(getattr(each.graph, own)) for own in NUMBERS.values())) for name, each in found.items()]
    print_table(title, ("graph", *NUMBERS), rows, SPARE)


def print_channels(found: Mapping[str, OrderedGraph]) -> None:
    """Prints the devices of each channel, in an NVLink domain with their hosts; equal channels in a row are one
    line."""
    hosts = any(_number(device) >> HOST_BIT for each in found.values() for order in each.orders for device in order)
    for name, each in found.items():
        rows = [
            (numbers_in_words(channel for channel, _ in same), " ".join(_devices(order, hosts)))
            for order, same in groupby(enumerate(each.orders), key=itemgetter(1))
        ]
        print_table(f"Channels of {name}", ("channel", "devices in their order"), rows)


def _devices(order: Sequence[str], hosts: bool) -> Iterator[str]:
    """Devices as NCCL's log has them: ``gpu:1-0`` is device 0 of host 1."""
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
    """A value as text for people: None is a dash, and a number is the shortest that is the same float32."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return shortest(Float(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.name if isinstance(value, Pattern) else value

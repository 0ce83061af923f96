"""Channels across nodes as text: rings and trees with the adapters by which they leave a node."""

from collections.abc import Iterable, Mapping, Sequence

import click

from tuner.cli.output import print_table
from tuner.emulator.connect import Across, Crossing, RingOrder, TreeOrder


def print_across(title: str, across: Across, *, only_present: bool = False) -> None:
    """All tables; channels that are alike are one line. ``only_present``: no table of rings or trees without one."""
    nodes = {rank: node for node, ranks in enumerate(across.ranks_of_nodes) for rank in ranks}
    rings = {ring.channel: (_ring(ring),) for ring in across.rings}
    if rings or not only_present:
        print_table(f"Rings of {title}", ("channels", "ranks in their order"), _alike(rings))
    if across.trees or not only_present:
        print_trees("Trees, from every node up to its parent", across.trees, nodes)
    if across.nvls_heads:
        heads = [(head, " ".join(map(str, ranks))) for head, ranks in enumerate(across.nvls_heads)]
        print_table("Heads of NVLS", ("head", "its rank on each node"), heads)
    if across.nvls_trees:
        print_trees("Trees of NVLS heads, from every node up to its parent", across.nvls_trees, nodes)
    if across.collnet_chains:
        chains = {tree.channel: (" ".join(map(str, _roots(tree, nodes))),) for tree in across.collnet_chains}
        print_table("Chains of CollNet", ("channels", "ranks that reduce inside the network"), _alike(chains))
    if heads_of_direct := [rank for rank, place in enumerate(across.collnet_direct) if place.head is not None]:
        click.echo(f"Heads of CollNet direct: {' '.join(map(str, heads_of_direct))}\n")
    if across.pat_peers:
        peers = [(rank, " ".join(map(str, peers))) for rank, peers in enumerate(across.pat_peers)]
        print_table("PAT, in all channels", ("rank", "sends to and receives from"), peers)


def print_trees(title: str, trees: Sequence[TreeOrder], nodes: Mapping[int, int]) -> None:
    """The roots, and what goes up between nodes; what goes down takes the same adapters of both ranks."""
    rows = {
        tree.channel: (
            " ".join(str(rank) for rank in _roots(tree, nodes) if tree.children[rank]),
            ", ".join(
                _crossed(crossing) for crossing in tree.crossings if tree.parents[crossing.sender] == crossing.receiver
            ),
        )
        for tree in trees
    }
    print_table(title, ("channels", "roots", "child and parent on two nodes"), _alike(rows))


def _roots(tree: TreeOrder, nodes: Mapping[int, int]) -> list[int]:
    return [rank for rank in nodes if tree.parents[rank] is None]


def _ring(ring: RingOrder) -> str:
    """The ranks, and between two nodes the adapters."""
    leaving = {crossing.sender: crossing for crossing in ring.crossings}
    return " ".join(f"{rank} {_adapters(leaving[rank])}" if rank in leaving else str(rank) for rank in ring.ranks)


def _crossed(crossing: Crossing) -> str:
    return f"{crossing.sender} {_adapters(crossing)} {crossing.receiver}"


def _adapters(crossing: Crossing) -> str:
    """The adapter of the sender and of the receiver, with the rank that the data goes over on the sender's node."""
    over = "" if crossing.relay == crossing.sender else f"over {crossing.relay}, "
    return f"[{over}{_net(crossing.send_net)} > {_net(crossing.receive_net)}]"


def _net(number: int | None) -> str:
    return "no net" if number is None else f"net:{number}"


def _alike(of_channel: Mapping[int, tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows with the channels that they are of."""
    channels: dict[tuple[str, ...], list[int]] = {}
    for channel, row in of_channel.items():
        channels.setdefault(row, []).append(channel)
    return [(numbers_in_words(numbers), *row) for row, numbers in channels.items()]


def numbers_in_words(numbers: Iterable[int]) -> str:
    """Numbers in their order, those that follow each other as a range: ``0-3 8``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return " ".join("-".join(map(str, ends)) for ends in ranges)

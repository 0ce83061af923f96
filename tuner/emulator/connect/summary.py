"""The channels of a communicator in the form in which they are printed: rings, trees, heads, and who leaves a node."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import chain, pairwise

from tuner.base.dataclass import dataclass
from tuner.base.records import json_form
from tuner.emulator.communicator import Communicator
from tuner.emulator.connect.join import Join, double_tree
from tuner.emulator.connect.nodes import (
    ChannelAdapter,
    CollNetDirect,
    Connected,
    Nodes,
    NvlsChannel,
    RankChannel,
    Tree,
    keeping_all,
)

OPTIONAL = json_form(optional=True)


@dataclass(frozen=True, slots=True)
class Crossing:
    """One direction of a connection between two nodes; network devices by their numbers on their nodes."""

    sender: int
    relay: int  # the rank that hands the data to the device: the sender, or another of its node (PXN)
    send_net: int | None  # None where NCCL knows no device
    receive_net: int | None
    receiver: int


@dataclass(frozen=True, slots=True)
class RingOrder:
    """One channel's ring, from rank 0 on, or from the rank that was asked for."""

    channel: int
    ranks: tuple[int, ...]
    crossings: tuple[Crossing, ...]


@dataclass(frozen=True, slots=True)
class TreeOrder:
    """One channel's tree, by rank; the root's parent is None."""

    channel: int
    parents: tuple[int | None, ...]
    children: tuple[tuple[int, ...], ...]
    crossings: tuple[Crossing, ...]


@dataclass(frozen=True, slots=True)
class Across:
    """All channels of a communicator; JSON has nothing of what the communicator does not have."""

    ranks_of_nodes: tuple[tuple[int, ...], ...]
    rings: tuple[RingOrder, ...]
    trees: tuple[TreeOrder, ...]
    nvls_heads: tuple[tuple[int, ...], ...] = field(metadata=OPTIONAL)  # by head: one rank of each node
    nvls_trees: tuple[TreeOrder, ...] = field(metadata=OPTIONAL)  # of the heads, between nodes (NVLSTree)
    collnet_chains: tuple[TreeOrder, ...] = field(metadata=OPTIONAL)  # one in each node; their roots reach the network
    collnet_direct: tuple[CollNetDirect, ...] = field(metadata=OPTIONAL)  # by rank, the same in all channels
    pat_peers: tuple[tuple[int, ...], ...] = field(metadata=OPTIONAL)  # by rank: whom PAT sends to, in all channels


@dataclass(frozen=True, slots=True)
class _Place:
    """A rank in a tree, and its adapter."""

    tree: Tree
    adapter: ChannelAdapter | None


_NOWHERE = _Place(Tree(None, ()), None)


@keeping_all()
def summarize(connected: Connected, rank: int = 0) -> Across:
    """The channels of all ranks, as many as ``rank`` has; its rings begin there."""
    nodes, channels = connected.node_of_rank, [rank.channels for rank in connected.ranks]
    several, numbers = len(set(nodes)) > 1, range(len(channels[rank]))
    nvls_numbers = range(len(connected.ranks[rank].nvls) if several else 0)
    chained = any(channel.chain is not None for channel in channels[rank])
    direct = [each[0].direct for each in channels if each]
    return Across(
        ranks_of_nodes=tuple(map(tuple, _ranks_of_nodes(nodes))),
        rings=tuple(_ring(number, rank, channels, nodes) for number in numbers),
        trees=tuple(_order(number, [_in_tree(number, each) for each in channels], nodes) for number in numbers),
        nvls_heads=tuple(_heads(connected)),
        nvls_trees=tuple(
            _order(number, [_in_nvls(number, rank.nvls) for rank in connected.ranks], nodes) for number in nvls_numbers
        ),
        collnet_chains=tuple(
            _order(number, [_in_chain(number, each) for each in channels], nodes) for number in numbers if chained
        ),
        collnet_direct=tuple(place for place in direct if place is not None),
        pat_peers=tuple(rank.pat_peers for rank in connected.ranks if rank.pat_peers),
    )


def _ranks_of_nodes(nodes: Sequence[int]) -> Iterable[list[int]]:
    """The ranks of each node, in the order of their first ranks."""
    found: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        found.setdefault(node, []).append(rank)
    return found.values()


def _in_tree(number: int, channels: Sequence[RankChannel]) -> _Place:
    """A rank in the tree of a channel, which it may not have."""
    return _Place(channels[number].tree, channels[number].tree_adapter) if number < len(channels) else _NOWHERE


def _in_nvls(number: int, channels: Sequence[NvlsChannel]) -> _Place:
    return _Place(channels[number].tree, channels[number].adapter) if number < len(channels) else _NOWHERE


def _in_chain(number: int, channels: Sequence[RankChannel]) -> _Place:
    chain = channels[number].chain if number < len(channels) else None
    return _NOWHERE if chain is None else _Place(chain, None)


def _ring(number: int, first: int, channels: Sequence[Sequence[RankChannel]], nodes: Sequence[int]) -> RingOrder:
    """The ring from a rank on, as far as all that follow each other have the channel."""
    order = {first: None}  # by the place in the ring
    last = first
    while number < len(channels[last]) and (following := channels[last][number].next) not in order:
        order[following] = None
        last = following
    adapters: list[ChannelAdapter | None] = [None] * len(nodes)
    pairs = []
    for rank in order:
        if number < len(channels[rank]):
            here = channels[rank][number]
            adapters[rank] = here.ring_adapter
            pairs.append((rank, here.next))
    return RingOrder(number, tuple(order), tuple(_crossings(pairs, adapters, nodes)))


def _order(number: int, places: Sequence[_Place], nodes: Sequence[int]) -> TreeOrder:
    pairs = [(rank, peer) for rank, place in enumerate(places) for peer in place.tree.peers]
    adapters = [place.adapter for place in places]
    return TreeOrder(
        number,
        tuple(place.tree.parent for place in places),
        tuple(place.tree.children for place in places),
        tuple(_crossings(pairs, adapters, nodes)),
    )


def _crossings(
    pairs: Iterable[tuple[int, int]], adapters: Sequence[ChannelAdapter | None], nodes: Sequence[int]
) -> Iterator[Crossing]:
    """Pairs of sender and receiver that are on two nodes."""
    for sender, receiver in pairs:
        if nodes[sender] != nodes[receiver]:
            out, into = adapters[sender], adapters[receiver]
            yield Crossing(
                sender=sender,
                relay=sender if out is None else out.relay,
                send_net=None if out is None else out.net,
                receive_net=None if into is None else into.net,
                receiver=receiver,
            )


def _heads(connected: Connected) -> Iterator[tuple[int, ...]]:
    """The ranks that are heads of NVLS's first channel."""
    of_rank = [rank.nvls[0].head if rank.nvls else None for rank in connected.ranks]
    for head in sorted({head for head in of_rank if head is not None}):
        yield tuple(rank for rank, other in enumerate(of_rank) if other == head)


# The rings and trees of nodes that are alike, without all else that each rank knows of its channels.
#
# They are those of tuner.emulator.connect.summary.summarize, but for crossings; of many nodes these alone take
# far less.


def rings_and_trees(view: Communicator, nodes: Nodes) -> Across:
    """Rings and trees of nodes of one kind, whose ranks have this view. ValueError for nodes of several kinds."""
    if len(nodes.kinds) != 1:
        raise ValueError("nodes of several kinds")
    join, first = Join(view, nodes, 0), nodes.ranks_of[0][0]
    rings: dict[int, tuple[int, ...]] = {}
    trees: dict[tuple[int, bool], tuple[tuple[int | None, ...], tuple[tuple[int, ...], ...]]] = {}
    of_rings, of_trees = [], []
    for number, original in enumerate(view.copied_from[: view.channels]):
        at = original % join.count, original >= join.count
        if at[0] not in rings:
            rings[at[0]] = _order_of_ring(join, at[0], first)
        if at not in trees:
            trees[at] = _tree(join, *at)
        of_rings.append(RingOrder(number, rings[at[0]], ()))
        of_trees.append(TreeOrder(number, *trees[at], ()))
    return Across(tuple(map(tuple, nodes.ranks_of)), tuple(of_rings), tuple(of_trees), (), (), (), (), ())


def _order_of_ring(join: Join, channel: int, first: int) -> tuple[int, ...]:
    of_nodes = (
        [ranks[place] for place in join.ring_order(node, channel)] for node, ranks in enumerate(join.nodes.ranks_of)
    )
    ring = list(chain.from_iterable(of_nodes))
    at = ring.index(first)
    return (*ring[at:], *ring[:at])


def _tree(join: Join, channel: int, second: bool) -> tuple[tuple[int | None, ...], tuple[tuple[int, ...], ...]]:
    """The parent and the children of each rank in one of the channel's two trees."""
    of_all: Sequence[Sequence[int]] = join.nodes.ranks_of
    order, count = join.own.orders("tree")[channel], sum(map(len, of_all))
    parents: list[int | None] = [None] * count
    children: list[tuple[int, ...]] = [()] * count
    ends = [join.tree_ends(node, channel) for node in range(len(of_all))]
    for node, ranks in enumerate(of_all):
        inside = [ranks[place] for place in order]
        for above, below in pairwise(inside):
            parents[below], children[above] = above, (below,)
        place = double_tree(len(of_all), node)[second]
        to_parent, to_first, to_second = ends[node]
        if place.parent is not None:
            parents[to_parent] = ends[place.parent][2 if place.is_second else 1]
        if place.first is not None:
            children[to_first] += (ends[place.first][0],)
        if place.second is not None:
            children[to_second] += (ends[place.second][0],)
    return tuple(parents), tuple(children)

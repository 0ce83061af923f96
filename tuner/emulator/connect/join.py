"""Joins the graphs of all nodes into channels: rings, double binary trees, CollNet, and copies of all of them.

The channels are also summarized as they are printed: rings, trees, heads, and the connections between nodes.

Source: ncclTopoPreset and ncclTopoPostset, src/graph/connect.cc, v2.28.9-1.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import TypeAlias

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Pattern
from tuner.base.records import json_form
from tuner.emulator.communicator import Comm
from tuner.emulator.connect.nodes import (
    ChannelAdapter,
    CollNetDirect,
    Connected,
    NodeKind,
    Nodes,
    NvlsChannel,
    RankChannel,
    RankView,
    Tree,
    keeping_all,
)


@dataclass(frozen=True, slots=True)
class TreePlace:
    """A node's place in a binary tree of nodes."""

    parent: int | None
    first: int | None  # number of the first child
    second: int | None
    is_second: bool  # whether it is the second child of its parent


@lru_cache(4096)  # called for every channel of every rank
def double_tree(nodes: int, node: int) -> tuple[TreePlace, TreePlace]:
    """A node's places in the two trees. The second tree is the first one mirrored or, if ``nodes`` is odd, shifted by
    one."""
    first = binary_tree(nodes, node)
    if nodes % 2:
        return first, _renamed(binary_tree(nodes, (node - 1) % nodes), lambda other: (other + 1) % nodes)
    return first, _renamed(binary_tree(nodes, nodes - 1 - node), lambda other: nodes - 1 - other)


def binary_tree(nodes: int, node: int) -> TreePlace:
    """A node's place in the tree whose leaves are the odd nodes. Its root is node 0, which has one child."""
    bit = 1
    while bit < nodes and not bit & node:
        bit <<= 1
    if node == 0:
        return TreePlace(None, None, bit >> 1 if nodes > 1 else None, is_second=False)
    parent = (node ^ bit) | (bit << 1)
    if parent >= nodes:
        parent = node ^ bit
    low = bit >> 1
    if low == 0:
        return TreePlace(parent, None, None, is_second=node >= parent)
    second, step = node + low, low
    while second >= nodes:
        second, step = (node + step, step >> 1) if step else (-1, 0)
    return TreePlace(parent, node - low, None if second < 0 else second, is_second=node >= parent)


def _renamed(place: TreePlace, name: Callable[[int], int]) -> TreePlace:
    parent, first, second = (None if node is None else name(node) for node in (place.parent, place.first, place.second))
    return TreePlace(parent, first, second, place.is_second)


@keeping_all()
def connect(views: Sequence[Comm], nodes: Nodes) -> Connected:
    """The channels of a communicator that consists of these nodes.

    ``views`` has, for each kind of node, the communicator as the ranks of such nodes see it.

    ``views`` has the order of ``nodes.kinds``. Nodes have to be in the order of their first ranks.
    """
    of_rank = dict(chain.from_iterable(Join(view, nodes, own).ranks() for own, view in enumerate(views)))
    node_of_rank = {rank: node for node, ranks in enumerate(nodes.ranks_of) for rank in ranks}
    return Connected(
        node_of_rank=tuple(node_of_rank[rank] for rank in sorted(node_of_rank)),
        ranks=tuple(of_rank[rank] for rank in sorted(of_rank)),
    )


class Join:
    """Joins the graphs as the ranks of one kind of nodes do."""

    def __init__(self, view: Comm, nodes: Nodes, own: int) -> None:
        self.view, self.nodes, self.own = view, nodes, nodes.kinds[own]
        self.own_nodes = nodes.of_kind(own)
        self.count = view.graphs[Algorithm.Ring].channels  # number of channels of the graphs, on which all ranks agree
        self.nvls = Nvls(view, nodes, own)
        self.direct = Direct(view, nodes, own)

    def ranks(self) -> Iterator[tuple[int, RankView]]:
        """The ranks of the nodes of this kind, each with its number among all ranks."""
        for node in self.own_nodes:
            channels = self.channels(node)
            for rank, of_all in enumerate(self.nodes.ranks_of[node]):
                peers = peers_of_pat(self.view, of_all)
                own = tuple(channel[rank] for channel in channels)
                yield of_all, RankView(own, self.nvls.channels(node, rank), peers)

    def channels(self, node: int) -> list[list[RankChannel]]:
        """The channels of a node, by number and local rank, including copies."""
        ranks = self.nodes.ranks_of[node]
        members, direct = frozenset(ranks), [self.direct.place(node, rank) for rank in range(len(ranks))]
        rings: dict[int, list[tuple[int, int]]] = {}
        trees: dict[tuple[int, bool], list[Tree]] = {}
        found = []
        for number in range(self.view.channels):
            original = self.view.copied_from[number]
            of_graph, second = original % self.count, original >= self.count
            if of_graph not in rings:
                rings[of_graph] = self.ring(node, of_graph)
            if (of_graph, second) not in trees:
                trees[of_graph, second] = self.tree(node, of_graph, second)
            ring, tree, chains = rings[of_graph], trees[of_graph, second], self.chains(node, of_graph)
            found.append(
                [
                    RankChannel(
                        *ring[rank],
                        None if members.issuperset(ring[rank]) else self.adapter(node, rank, number, "ring"),
                        tree[rank],
                        None if members.issuperset(tree[rank].peers) else self.adapter(node, rank, number, "tree"),
                        chains[rank],
                        direct[rank],
                    )
                    for rank in range(len(ranks))
                ]
            )
        return found

    # --- rings ---

    @cached_property
    def swapped(self) -> tuple[bool, ...]:
        """For each kind of node: whether rings 2k and 2k + 1 are swapped on the odd-numbered nodes."""
        rule, own = self.view.release.connect.swapped_rings, self.own.cross_nic
        crossing = [kind.cross_nic for kind in self.nodes.kinds]
        even_nodes = len(self.nodes) % 2 == 0
        return tuple(
            self.count % 2 == 0
            and {
                "never": False,
                "by_own_graph": own != 0 and even_nodes,
                "by_any_graph": max(crossing) != 0,
                "by_any_pairs": max(crossing) == 2,
                "by_own_pairs": each == 2,
            }[rule]
            for each in crossing
        )

    def ring_order(self, node: int, channel: int) -> tuple[int, ...]:
        """The ranks of a node in the order of a ring."""
        kind = self.nodes.kind[node]
        if node % 2 and self.swapped[self.nodes.kinds.index(kind)]:
            channel ^= 1
        return kind.orders("ring")[channel]

    def ring(self, node: int, channel: int) -> list[tuple[int, int]]:
        """The rank before and the rank after each rank of the node on its ring."""
        order, all_ranks = self.ring_order(node, channel), self.nodes.ranks_of
        before, after = (node - 1) % len(self.nodes), (node + 1) % len(self.nodes)
        own = [all_ranks[node][rank] for rank in order]
        previous = [all_ranks[before][self.ring_order(before, channel)[-1]], *own]
        following = [*own[1:], all_ranks[after][self.ring_order(after, channel)[0]]]
        by_rank = dict(zip(order, zip(previous, following, strict=False), strict=True))
        return [by_rank[rank] for rank in range(len(order))]

    # --- trees ---

    def tree_ends(self, node: int, channel: int) -> tuple[int, int, int]:
        """The ranks of a node that are connected to its parent, to its first child and to its second child."""
        kind, ranks = self.nodes.kind[node], self.nodes.ranks_of[node]
        order, pattern = kind.orders("tree")[channel], kind.tree_pattern
        to_first = order[0 if pattern is Pattern.Tree else 1]
        to_second = order[1 if pattern is Pattern.SplitTree else 0]
        return ranks[order[0]], ranks[to_first], ranks[to_second]

    def tree(self, node: int, channel: int, second: bool) -> list[Tree]:
        """The place of each rank of the node in one of the channel's two trees."""
        places = self.chain_of(node, self.own.orders("tree")[channel])
        place = double_tree(len(self.nodes), node)[second]
        at = self.nodes.ranks_of[node].index
        to_parent, to_first, to_second = map(at, self.tree_ends(node, channel))
        if place.parent is not None:
            parent = self.tree_ends(place.parent, channel)[2 if place.is_second else 1]
            places[to_parent] = Tree(parent, places[to_parent].children)
        for end, child in ((to_first, place.first), (to_second, place.second)):
            if child is not None:
                tree = places[end]
                places[end] = Tree(tree.parent, (*tree.children, self.tree_ends(child, channel)[0]))
        return places

    def chain_of(self, node: int, order: Sequence[int]) -> list[Tree]:
        """The place of each rank of the node in a chain with this order of ranks."""
        own = [self.nodes.ranks_of[node][rank] for rank in order]
        children = [*((child,) for child in own[1:]), ()]
        by_rank = dict(zip(order, map(Tree, [None, *own], children), strict=False))
        return [by_rank[rank] for rank in range(len(order))]

    def chains(self, node: int, channel: int) -> Sequence[Tree | None]:
        """The place of each rank in CollNet's chain, whose first rank reduces inside the network."""
        if self.view.collnet is None:
            return [None] * len(self.nodes.ranks_of[node])
        return self.chain_of(node, self.own.orders("collnet_chain")[channel])

    # --- adapters ---

    def adapter(self, node: int, rank: int, number: int, graph: str) -> ChannelAdapter:
        """The adapter of a rank on a channel on which one of its peers is on another node (ncclTopoGetNetDev).

        As in NCCL, the adapter depends on the number of this channel, even if the channel is a copy of another one or
        was swapped with another one.
        """
        channel = number % self.count
        ends = self.own.adapters(graph)[channel]
        net = ends[0 if self.own.orders(graph)[channel][0] == rank else 1]
        return self.own.adapter(rank, net, self.nodes.ranks_of[node])


# CollNet direct: which ranks of a node reduce inside the network, each a part of the data. Source: connectCollNet,
# src/graph/connect.cc, v2.28.9-1.


class Direct:
    """CollNet direct as the ranks of one kind of nodes compute it; all channels are equal."""

    def __init__(self, view: Comm, nodes: Nodes, own: int) -> None:
        self.view, self.nodes, self.own = view, nodes, nodes.kinds[own]

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """The heads of the node, as local ranks; empty without CollNet, and on nodes with too many ranks."""
        most = self.view.release.limits.max_direct_local_ranks
        if self.view.collnet is None or self.view.max_local_ranks > most:
            return ()
        firsts = [order[0] for order in self.own.orders("collnet_direct")]
        firsts = firsts[: self.view.graphs[Algorithm.CollNetDirect].channels]
        distinct = tuple(dict.fromkeys(firsts))
        return distinct if len(distinct) == self.view.collnet.direct_heads else tuple(firsts)

    def place(self, node: int, rank: int) -> CollNetDirect | None:
        """A rank's place in CollNetDirect; None if the communicator does not have CollNetDirect."""
        if not self.heads:
            return None
        ranks, heads = self.nodes.ranks_of[node], self.heads
        head = heads.index(rank) if rank in heads else None
        # sic: the other ranks of a head come in the order of the channel with the head's number
        others = () if head is None else self.own.orders("collnet_direct")[head]
        up = tuple(ranks[other] for other in heads if other != rank)
        down = tuple(ranks[other] for other in others if other != rank)
        # sic: if more channels name a rank than fit, its number is written over the array of ranks below, which follows
        # in memory
        most = self.view.release.limits.max_direct_local_ranks - 1
        return CollNetDirect(
            head=head,
            up=up[:most],
            down=up[most:] + down[len(up[most:]) :],
            heads=len(heads),
            shift=ranks[rank] % self.own.ranks % len(heads),
        )


# The heads of NVLS, at which channels begin, and the trees between the heads of all nodes (NVLSTree).
#
# Source: ncclTopoPreset and connectNvls, src/graph/connect.cc; getNvlsNetDev, src/graph/search.cc, v2.28.9-1.

NOBODY = Tree(None, ())


class Nvls:
    """NVLS as the ranks of one kind of nodes compute it."""

    def __init__(self, view: Comm, nodes: Nodes, own: int) -> None:
        self.view, self.nodes, self.own = view, nodes, nodes.kinds[own]
        self.rules = view.release.connect

    @property
    def distinct(self) -> bool:
        """Whether every head is a different rank."""
        return self.rules.nvls_heads in ("distinct", "distinct_by_domain")

    @cached_property
    def searched(self) -> int:
        """Number of channels of the NVLS graph, on which all ranks agree."""
        return self.view.graphs[Algorithm.NVLS].channels if self.view.nvls_channels else 0

    @cached_property
    def heads(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that are heads, [head][node]."""
        of_kind = {kind: self._heads(kind) for kind in self.nodes.kinds}
        of_nodes = [
            [0 if head is None else ranks[head] for head in of_kind[kind]]
            for kind, ranks in zip(self.nodes.kind, self.nodes.ranks_of, strict=True)
        ]
        if self.distinct:
            of_nodes = [list(dict.fromkeys(heads)) for heads in of_nodes]
        return tuple(zip(*of_nodes, strict=False))  # as many heads as the node with the fewest has

    def _heads(self, kind: NodeKind) -> tuple[int | None, ...]:
        """The heads of a node; None stands for rank 0 of the communicator, which NCCL uses if it has no other (sic)."""
        found = [head for (head,) in kind.orders("nvls")]
        if not self.searched:
            return ()
        if self.rules.nvls_heads == "distinct_by_domain" and kind.domain_ranks:
            return tuple(_read_in_steps(found, kind.ranks, kind.domain_ranks))
        if self.distinct:
            return tuple(found)
        known = self.view.graphs[Algorithm.Ring].channels
        if self.rules.nvls_heads == "of_own_rings":
            known = min(len(kind.orders("ring")), len(kind.orders("tree")))
        return tuple(head if channel < known else None for channel, head in enumerate(found[: self.searched]))

    def channels(self, node: int, rank: int) -> tuple[NvlsChannel, ...]:
        """The channels of a rank of the node."""
        if not self.heads:
            return ()
        head, places = self._head(node, rank), double_tree(len(self.nodes), node)
        trees = [self._tree(node, rank, place) for place in places]
        copies = self.rules.nvls_joined == "before_copies"
        made: dict[tuple[int, int], NvlsChannel] = {}  # by tree and adapter, because only few of these differ
        nets, ranks, count = self._nets(rank), self.nodes.ranks_of[node], len(self.heads)
        channels = []
        for number in range(self.view.nvls_channels):
            at = (self.view.copied_from[number] if copies else number) % 2
            of_net = number % len(nets) if nets and self.rules.nvls_adapters == "in_turn" else 0
            if (at, of_net) not in made:
                has_adapter = nets and trees[at] != NOBODY
                adapter = self.own.adapter(rank, nets[of_net], ranks) if has_adapter else None
                made[at, of_net] = NvlsChannel(head, count, trees[at], adapter)
            channels.append(made[at, of_net])
        return tuple(channels)

    def _head(self, node: int, rank: int) -> int | None:
        """The number of the head that a rank is; if it is several heads, the last one."""
        of_all = self.nodes.ranks_of[node]
        if self.distinct:
            ranks = [heads[node] for heads in self.heads]
        else:
            ranks = [of_all[head] for (head,) in self.own.orders("nvls")[: self.searched]]
        return max((head for head, other in enumerate(ranks) if other == of_all[rank]), default=None)

    def _tree(self, node: int, rank: int, place: TreePlace) -> Tree:
        own = self.nodes.ranks_of[node][rank]
        peers = next((heads for heads in self.heads if heads[node] == own), None)
        if peers is None:
            return NOBODY
        parent = None if place.parent is None else peers[place.parent]
        return Tree(parent, tuple(peers[child] for child in (place.first, place.second) if child is not None))

    def _nets(self, rank: int) -> Sequence[int]:
        """The network devices of a head's channels; empty if NCCL finds none because the rank begins no channel."""
        ends = zip(self.own.orders("nvls")[: self.searched], self.own.adapters("nvls"), strict=False)
        return [net for (head,), (net, _) in ends if head == rank]


def _read_in_steps(heads: Sequence[int], ranks: int, step: int) -> Iterator[int | None]:
    """The heads that NCCL reads with stride ``step`` from an array of ``ranks`` numbers per head: first the head, then
    zeros."""
    for at in range(0, len(heads) * step, step):
        channel, behind = divmod(at, ranks)
        yield heads[channel] if channel < len(heads) and not behind else None


# The ranks to which PAT sends: with one rank per node, those at every distance that is a power of two. Source:
# ncclTransportPatConnect, src/transport/generic.cc, v2.28.9-1.


def peers_of_pat(view: Comm, rank: int) -> tuple[int, ...]:
    """The ranks at distances 1, 2, 4 ... above and below ``rank``, modulo the number of ranks.

    Empty if the release has no PAT, or if a node has several ranks.
    """
    rows = view.release.rules.exists.values()
    if view.max_local_ranks > 1 or not any(Algorithm.PAT in algorithms for algorithms in rows):
        return ()
    distances = [1 << bit for bit in range((view.ranks - 1).bit_length())]
    return tuple(sorted({(rank + way) % view.ranks for distance in distances for way in (distance, -distance)}))


OPTIONAL = json_form(optional=True)


@dataclass(frozen=True, slots=True)
class Crossing:
    """One direction of a connection between two nodes; network devices are numbered on their own nodes."""

    sender: int
    relay: int  # the rank that hands the data to the device: the sender, or another rank of its node (PXN)
    send_net: int | None  # None if NCCL knows no such device
    receive_net: int | None
    receiver: int


@dataclass(frozen=True, slots=True)
class RingOrder:
    """The ring of one channel, beginning at rank 0 or at the rank that was asked for."""

    channel: int
    ranks: tuple[int, ...]
    crossings: tuple[Crossing, ...]


@dataclass(frozen=True, slots=True)
class TreeOrder:
    """The tree of one channel, by rank; the parent of the root is None."""

    channel: int
    parents: tuple[int | None, ...]
    children: tuple[tuple[int, ...], ...]
    crossings: tuple[Crossing, ...]


@dataclass(frozen=True, slots=True)
class Across:
    """All channels of a communicator. JSON leaves out what the communicator does not have."""

    ranks_of_nodes: tuple[tuple[int, ...], ...]
    rings: tuple[RingOrder, ...]
    trees: tuple[TreeOrder, ...]
    nvls_heads: tuple[tuple[int, ...], ...] = field(metadata=OPTIONAL)  # for each head, its rank on each node
    nvls_trees: tuple[TreeOrder, ...] = field(metadata=OPTIONAL)  # trees of the heads between nodes (NVLSTree)
    # One in each node; the roots are connected to the network
    collnet_chains: tuple[TreeOrder, ...] = field(metadata=OPTIONAL)
    collnet_direct: tuple[CollNetDirect, ...] = field(metadata=OPTIONAL)  # by rank, the same for all channels
    # By rank, the ranks to which PAT sends; the same for all channels
    pat_peers: tuple[tuple[int, ...], ...] = field(metadata=OPTIONAL)


_Placed: TypeAlias = tuple[Tree, ChannelAdapter | None]  # a rank's place in a tree, and its adapter
_NOWHERE: _Placed = (Tree(None, ()), None)


@keeping_all()
def summarize(connected: Connected, rank: int = 0) -> Across:
    """Summarises the channels of all ranks, up to the number of channels that ``rank`` has; rings begin at ``rank``."""
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


def _in_tree(number: int, channels: Sequence[RankChannel]) -> _Placed:
    return (channels[number].tree, channels[number].tree_adapter) if number < len(channels) else _NOWHERE


def _in_nvls(number: int, channels: Sequence[NvlsChannel]) -> _Placed:
    return (channels[number].tree, channels[number].adapter) if number < len(channels) else _NOWHERE


def _in_chain(number: int, channels: Sequence[RankChannel]) -> _Placed:
    chain = channels[number].chain if number < len(channels) else None
    return _NOWHERE if chain is None else (chain, None)


def _ring(number: int, first: int, channels: Sequence[Sequence[RankChannel]], nodes: Sequence[int]) -> RingOrder:
    """The ring that begins at the rank ``first``; it ends early at a rank without this channel."""
    order = {first: None}  # by the place in the ring
    last = first
    while number < len(channels[last]) and (following := channels[last][number].next) not in order:
        order[following] = None
        last = following
    crossings = []
    for rank in order:
        if number < len(channels[rank]) and nodes[following := channels[rank][number].next] != nodes[rank]:
            into = channels[following][number].ring_adapter if number < len(channels[following]) else None
            crossings.append(_crossing(rank, following, channels[rank][number].ring_adapter, into))
    return RingOrder(number, tuple(order), tuple(crossings))


def _order(number: int, places: Sequence[_Placed], nodes: Sequence[int]) -> TreeOrder:
    trees, adapters = zip(*places, strict=True)
    pairs = [
        (rank, peer)
        for rank, (tree, node) in enumerate(zip(trees, nodes, strict=True))
        for peer in tree.peers
        if nodes[peer] != node
    ]
    return TreeOrder(
        number,
        tuple([tree.parent for tree in trees]),
        tuple([tree.children for tree in trees]),
        tuple([_crossing(one, other, adapters[one], adapters[other]) for one, other in pairs]),
    )


def _crossing(sender: int, receiver: int, out: ChannelAdapter | None, into: ChannelAdapter | None) -> Crossing:
    """A sender and a receiver on two different nodes, with the adapters that they use."""
    return Crossing(
        sender=sender,
        relay=sender if out is None else out.relay,
        send_net=None if out is None else out.net,
        receive_net=None if into is None else into.net,
        receiver=receiver,
    )


def _heads(connected: Connected) -> Iterator[tuple[int, ...]]:
    """The ranks that are heads of the first channel of NVLS."""
    of_rank = [rank.nvls[0].head if rank.nvls else None for rank in connected.ranks]
    for head in sorted({head for head in of_rank if head is not None}):
        yield tuple(rank for rank, other in enumerate(of_rank) if other == head)


# Computes the rings and trees of equal nodes without everything else that a rank knows of its channels. The result is
# that of tuner.emulator.connect.join.summarize, except for crossings, but takes far less time for many nodes.


def rings_and_trees(view: Comm, nodes: Nodes) -> Across:
    """The rings and trees of nodes of one kind, whose ranks share this view. ValueError if there are several kinds of
    nodes."""
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

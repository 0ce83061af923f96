"""The graphs of all nodes joined into channels: rings, double binary trees, CollNet, and copies of all of them.

Source: ncclTopoPreset and ncclTopoPostset, src/graph/connect.cc, v2.28.9-1.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain

from tuner.base.names import Algorithm, Pattern
from tuner.emulator.communicator import Communicator
from tuner.emulator.connect import pat
from tuner.emulator.connect.binary_trees import double_tree
from tuner.emulator.connect.direct import Direct
from tuner.emulator.connect.nodes import Nodes
from tuner.emulator.connect.nvls import Nvls
from tuner.emulator.connect.records import Adapter, Connected, RankChannel, RankView, Tree


def connect(views: Sequence[Communicator], nodes: Nodes) -> Connected:
    """The channels of a communicator of these nodes; each kind's ranks go by their own view of it, in the same order.

    Nodes have to be in the order of their first ranks.
    """
    of_rank = dict(chain.from_iterable(Join(view, nodes, own).ranks() for own, view in enumerate(views)))
    node_of_rank = {rank: node for node, ranks in enumerate(nodes.ranks_of) for rank in ranks}
    return Connected(
        node_of_rank=tuple(node_of_rank[rank] for rank in sorted(node_of_rank)),
        ranks=tuple(of_rank[rank] for rank in sorted(of_rank)),
    )


class Join:
    """The communicator as the ranks of one kind of nodes compute it."""

    def __init__(self, view: Communicator, nodes: Nodes, own: int) -> None:
        self.view, self.nodes, self.own = view, nodes, nodes.kinds[own]
        self.own_nodes = nodes.of_kind(own)
        self.count = view.graphs[Algorithm.Ring].channels  # of the graphs, on which all ranks agree
        self.nvls = Nvls(view, nodes, own)
        self.direct = Direct(view, nodes, own)

    def ranks(self) -> Iterator[tuple[int, RankView]]:
        """The ranks of the kind's nodes, each with its number among all ranks."""
        for node in self.own_nodes:
            for rank, of_all in enumerate(self.nodes.ranks_of[node]):
                channels = tuple(self.channel(node, rank, number) for number in range(self.view.channels))
                peers = pat.peers(self.view, of_all)
                yield of_all, RankView(channels, self.nvls.channels(node, rank), peers)

    def channel(self, node: int, rank: int, number: int) -> RankChannel:
        """One channel of a rank of the node, as a copy of the channel that NCCL copies."""
        original = self.view.copied_from[number]
        of_graph, second = original % self.count, original >= self.count
        previous, following = self.ring(node, rank, of_graph)
        tree = self.tree(node, rank, of_graph, second)
        return RankChannel(
            previous,
            following,
            self.adapter(node, rank, number, "ring", (previous, following)),
            tree,
            self.adapter(node, rank, number, "tree", tree.peers),
            self.chain(node, rank, of_graph),
            self.direct.place(node, rank),
        )

    # --- rings ---

    @cached_property
    def swapped(self) -> tuple[bool, ...]:
        """Of each kind of nodes: whether rings 2k and 2k + 1 change places on nodes with an odd number."""
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
        """The ranks of a node's part of a ring."""
        kind = self.nodes.kind[node]
        if node % 2 and self.swapped[self.nodes.kinds.index(kind)]:
            channel ^= 1
        return kind.orders("ring")[channel]

    def ring(self, node: int, rank: int, channel: int) -> tuple[int, int]:
        """The ranks before and after a rank of the node on its ring."""
        order, ranks = self.ring_order(node, channel), self.nodes.ranks_of
        before, after = (node - 1) % len(self.nodes), (node + 1) % len(self.nodes)
        place = order.index(rank)
        previous = ranks[node][order[place - 1]]
        if place == 0:
            previous = ranks[before][self.ring_order(before, channel)[-1]]
        if place + 1 < len(order):
            return previous, ranks[node][order[place + 1]]
        return previous, ranks[after][self.ring_order(after, channel)[0]]

    # --- trees ---

    def tree_ends(self, node: int, channel: int) -> tuple[int, int, int]:
        """The ranks of a node that talk to its parent, to its first child and to its second child."""
        kind, ranks = self.nodes.kind[node], self.nodes.ranks_of[node]
        order, pattern = kind.orders("tree")[channel], kind.tree_pattern
        to_first = order[0 if pattern is Pattern.Tree else 1]
        to_second = order[1 if pattern is Pattern.SplitTree else 0]
        return ranks[order[0]], ranks[to_first], ranks[to_second]

    def tree(self, node: int, rank: int, channel: int, second: bool) -> Tree:
        """A rank's place in one of the channel's two trees."""
        inside = self.chain_of(node, rank, self.own.orders("tree")[channel])
        parent, children = inside.parent, list(inside.children)
        place = double_tree(len(self.nodes), node)[second]
        to_parent, to_first, to_second = self.tree_ends(node, channel)
        own = self.nodes.ranks_of[node][rank]
        if own == to_parent and place.parent is not None:
            parent = self.tree_ends(place.parent, channel)[2 if place.is_second else 1]
        if own == to_first and place.first is not None:
            children.append(self.tree_ends(place.first, channel)[0])
        if own == to_second and place.second is not None:
            children.append(self.tree_ends(place.second, channel)[0])
        return Tree(parent, tuple(children))

    def chain_of(self, node: int, rank: int, order: Sequence[int]) -> Tree:
        """A rank's place in the chain of its node's ranks."""
        ranks, place = self.nodes.ranks_of[node], order.index(rank)
        parent = None if place == 0 else ranks[order[place - 1]]
        return Tree(parent, tuple(ranks[child] for child in order[place + 1 : place + 2]))

    def chain(self, node: int, rank: int, channel: int) -> Tree | None:
        """A rank's place in the chain of CollNet, whose first rank reduces inside the network."""
        if self.view.collnet is None:
            return None
        return self.chain_of(node, rank, self.own.orders("collnet_chain")[channel])

    # --- adapters ---

    def adapter(self, node: int, rank: int, number: int, graph: str, peers: Sequence[int]) -> Adapter | None:
        """The adapter of a rank on a channel, if any of its peers is on another node (ncclTopoGetNetDev).

        It goes by the channel's own number, even where the channel is a copy of another or has changed places (sic).
        """
        ranks = self.nodes.ranks_of[node]
        if all(peer in ranks for peer in peers):
            return None
        channel = number % self.count
        ends = self.own.adapters(graph)[channel]
        net = ends[0 if self.own.orders(graph)[channel][0] == rank else 1]
        return self.own.adapter(rank, net, ranks)

"""The heads of NVLS, at which channels begin, and the trees between the heads of all nodes (NVLSTree).

Source: ncclTopoPreset and connectNvls, src/graph/connect.cc; getNvlsNetDev, src/graph/search.cc, v2.28.9-1.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

from tuner.base.names import Algorithm
from tuner.emulator.communicator import Communicator
from tuner.emulator.connect.binary_trees import Place, double_tree
from tuner.emulator.connect.nodes import NodeKind, Nodes
from tuner.emulator.connect.records import Adapter, NvlsChannel, Tree

NOBODY = Tree(None, ())


class Nvls:
    """NVLS as the ranks of one kind of nodes compute it."""

    def __init__(self, view: Communicator, nodes: Nodes, own: int) -> None:
        self.view, self.nodes, self.own = view, nodes, nodes.kinds[own]
        self.rules = view.release.connect

    @property
    def distinct(self) -> bool:
        """Whether no rank is several heads."""
        return self.rules.nvls_heads in ("distinct", "distinct_by_domain")

    @cached_property
    def searched(self) -> int:
        """Channels of the graph, on which all ranks agree."""
        return self.view.graphs[Algorithm.NVLS].channels if self.view.nvls_channels else 0

    @cached_property
    def heads(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that are heads, by head and node."""
        of_kind = {kind: self._heads(kind) for kind in self.nodes.kinds}
        of_nodes = [
            [0 if head is None else ranks[head] for head in of_kind[kind]]
            for kind, ranks in zip(self.nodes.kind, self.nodes.ranks_of, strict=True)
        ]
        if self.distinct:
            of_nodes = [list(dict.fromkeys(heads)) for heads in of_nodes]
        return tuple(zip(*of_nodes, strict=False))  # as many as the node with the fewest has

    def _heads(self, kind: NodeKind) -> tuple[int | None, ...]:
        """The heads of a node; None stands for rank 0 of all, which NCCL takes where it has no other (sic)."""
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
        numbers = range(self.view.nvls_channels)
        of_trees = [trees[(self.view.copied_from[number] if copies else number) % 2] for number in numbers]
        return tuple(
            NvlsChannel(head, len(self.heads), tree, None if tree == NOBODY else self._adapter(node, rank, number))
            for number, tree in zip(numbers, of_trees, strict=True)
        )

    def _head(self, node: int, rank: int) -> int | None:
        """Which head a rank is; the last where it is several."""
        of_all = self.nodes.ranks_of[node]
        if self.distinct:
            ranks = [heads[node] for heads in self.heads]
        else:
            ranks = [of_all[head] for (head,) in self.own.orders("nvls")[: self.searched]]
        return max((head for head, other in enumerate(ranks) if other == of_all[rank]), default=None)

    def _tree(self, node: int, rank: int, place: Place) -> Tree:
        own = self.nodes.ranks_of[node][rank]
        peers = next((heads for heads in self.heads if heads[node] == own), None)
        if peers is None:
            return NOBODY
        parent = None if place.parent is None else peers[place.parent]
        return Tree(parent, tuple(peers[child] for child in (place.first, place.second) if child is not None))

    def _adapter(self, node: int, rank: int, number: int) -> Adapter | None:
        """The adapter of a head's channel; None where NCCL finds none, as the rank begins no channel."""
        ends = zip(self.own.orders("nvls")[: self.searched], self.own.adapters("nvls"), strict=False)
        nets = [net for (head,), (net, _) in ends if head == rank]
        if not nets:
            return None
        net = nets[number % len(nets) if self.rules.nvls_adapters == "in_turn" else 0]
        return self.own.adapter(rank, net, self.nodes.ranks_of[node])


def _read_in_steps(heads: Sequence[int], ranks: int, step: int) -> Iterator[int | None]:
    """The heads that NCCL reads in steps of ``step`` where each is the first of ``ranks`` numbers; the others are 0."""
    for at in range(0, len(heads) * step, step):
        channel, behind = divmod(at, ranks)
        yield heads[channel] if channel < len(heads) and not behind else None

"""CollNet direct: the ranks of a node that reduce inside the network, each a part of the data.

Source: connectCollNet, src/graph/connect.cc, v2.28.9-1.
"""

from functools import cached_property

from tuner.base.names import Algorithm
from tuner.emulator.communicator import Communicator
from tuner.emulator.connect.nodes import Nodes
from tuner.emulator.connect.records import CollNetDirect


class Direct:
    """CollNet direct as the ranks of one kind of nodes compute it; all channels are alike."""

    def __init__(self, view: Communicator, nodes: Nodes, own: int) -> None:
        self.view, self.nodes, self.own = view, nodes, nodes.kinds[own]

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """The heads of the node, by rank of the node; none without CollNet, and on nodes that are too large for it."""
        most = self.view.release.limits.max_direct_local_ranks
        if self.view.collnet is None or self.view.max_local_ranks > most:
            return ()
        firsts = [order[0] for order in self.own.orders("collnet_direct")]
        firsts = firsts[: self.view.graphs[Algorithm.CollNetDirect].channels]
        distinct = tuple(dict.fromkeys(firsts))
        return distinct if len(distinct) == self.view.collnet.direct_heads else tuple(firsts)

    def place(self, node: int, rank: int) -> CollNetDirect | None:
        """A rank's place; None without CollNet direct."""
        if not self.heads:
            return None
        ranks, heads = self.nodes.ranks_of[node], self.heads
        head = heads.index(rank) if rank in heads else None
        # sic: a head's other ranks come in the order of the channel that has the head's number
        others = () if head is None else self.own.orders("collnet_direct")[head]
        up = tuple(ranks[other] for other in heads if other != rank)
        down = tuple(ranks[other] for other in others if other != rank)
        # sic: a rank that is named by more channels than fit is written over the ranks below, which stand behind
        most = self.view.release.limits.max_direct_local_ranks - 1
        return CollNetDirect(
            head=head,
            up=up[:most],
            down=up[most:] + down[len(up[most:]) :],
            heads=len(heads),
            shift=ranks[rank] % self.own.ranks % len(heads),
        )

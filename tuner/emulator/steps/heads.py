"""The heads of each node, which hand a part of the data to the switch or to the network."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.base.errors import BadInput
from tuner.emulator.connect import Across
from tuner.emulator.steps.chunk_step import Place
from tuner.emulator.steps.records import Pieces


@dataclass(frozen=True, slots=True)
class NodeHeads:
    """The heads as one rank sees them: ``of_nodes`` are ranks, [node][head]."""

    of_nodes: tuple[tuple[int, ...], ...]
    node: int
    own: int | None  # which of its node's heads the rank is

    @property
    def count(self) -> int:
        """Heads of a node."""
        return len(self.of_nodes[0])

    def own_piece(self, count: int) -> Place:
        """What of a rail's chunk is in this node's part, for parts of ``count`` elements."""
        return lambda first, elements: tuple(self._of_rail(self.own or 0, count, first, elements, {self.node}))

    def of_rail(self, head: int, count: int) -> Place:
        """A rail's chunk in the buffer: a rail is the parts of all heads of one number, node after node.

        Source: Scatterer of src/device/all_gather.h and reduce_scatter.h, v2.28.9-1.
        """
        nodes = set(range(len(self.of_nodes)))
        return lambda first, elements: tuple(self._of_rail(head, count, first, elements, nodes))

    def _of_rail(self, head: int, count: int, first: int, elements: int, nodes: set[int]) -> Pieces:
        end, found = first + elements, []
        for node in range(first // count, -(-end // count)):
            low, high = max(first, node * count), min(end, (node + 1) * count)
            if node in nodes and low < high:
                found.append((self.of_nodes[node][head] * count + low - node * count, high - low))
        return tuple(found)


def of_switch(across: Across, rank: int) -> NodeHeads:
    """The heads of NVLS. BadInput where NCCL counts a rank as several heads, or has none."""
    return _heads(across, [[ranks[node] for ranks in across.nvls_heads] for node in _nodes(across.nvls_heads)], rank)


def of_network(across: Across, rank: int) -> NodeHeads:
    """The heads of CollNet direct."""
    by_node = []
    for ranks in across.ranks_of_nodes:
        known = {across.collnet_direct[each].head: each for each in ranks}
        by_node.append([known[head] for head in sorted(head for head in known if head is not None)])
    if {place.heads for place in across.collnet_direct} != set(map(len, by_node)):
        by_node = []
    return _heads(across, by_node, rank)


def _nodes(heads: Sequence[Sequence[int]]) -> range:
    return range(min(map(len, heads), default=0))


def _heads(across: Across, by_node: Sequence[Sequence[int]], rank: int) -> NodeHeads:
    counts = {len(heads) for heads in by_node}
    if len(by_node) != len(across.ranks_of_nodes) or len(counts) != 1 or 0 in counts:
        raise BadInput("schedule: not of nodes that differ in their heads; valid: `env` NCCL_ALGO=Ring")
    node = next(number for number, ranks in enumerate(across.ranks_of_nodes) if rank in ranks)
    own = by_node[node].index(rank) if rank in by_node[node] else None
    return NodeHeads(tuple(map(tuple, by_node)), node, own)

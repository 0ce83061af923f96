"""What the search of a node gives."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.machine.graphs import OrderedGraph


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the search of a node gives."""

    graphs: Mapping[str, OrderedGraph]  # by name; one that NCCL finds no channels for has none
    net_gbs: float  # slowest path from a GPU to its own adapter, 1e9 bytes per second; 0 for a release without it
    part_of_rank: tuple[int, ...]  # which of the nodes that NCCL takes the node for each of its ranks is in
    # Who sends over another GPU (PXN): a rank of the node (of its part, by order), the network device, by its number
    # as in a channel's order, and the rank that it sends over
    relays: tuple[tuple[int, int, int], ...] = ()

    @property
    def parts(self) -> int:
        """As how many nodes NCCL takes the node."""
        return len(set(self.part_of_rank))

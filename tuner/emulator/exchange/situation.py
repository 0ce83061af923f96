"""What the plan of sends and receives goes by, beside the messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.emulator.communicator import Communicator
from tuner.emulator.exchange.order import Order
from tuner.emulator.exchange.peers import PeerChannels


@dataclass(frozen=True, slots=True)
class Situation:
    """A communicator, its channels for sends and receives, and one rank's order of peers."""

    communicator: Communicator
    channels: PeerChannels
    order: Order
    joined_by_network: frozenset[tuple[int, int]]  # pairs of ranks of the own node, by their place among them
    beyond_nodes: frozenset[int]  # ranks of other nodes that shared memory or NVLink joins to the own one
    rings: Callable[[], Sequence[Sequence[int]]]  # by channel the ranks of the ring, from the own one on

    def by_network(self, peer: int) -> bool:
        """Whether nothing but the network joins a rank: of most other nodes, or of another socket with its adapters."""
        (own, place), (other, other_place) = (self.order.place(rank) for rank in (self.order.rank, peer))
        if own == other:
            return (place, other_place) in self.joined_by_network
        return peer not in self.beyond_nodes

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
    rings: Callable[[], Sequence[Sequence[int]]]  # by channel the ranks of the ring, from the own one on

    def by_network(self, peer: int) -> bool:
        """Whether a rank is on another node, as NCCL counts them, and NVLink does not join both."""
        own, other = (self.order.place(rank)[0] for rank in (self.order.rank, peer))
        fabric = self.communicator.release.exchange.fabric_reaches_hosts and self.communicator.fabric
        return own != other and not fabric

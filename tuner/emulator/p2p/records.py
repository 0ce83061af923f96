"""What sends and receives become: messages, transfers, and the works of kernels."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Protocol
from tuner.emulator.communicator import Communicator
from tuner.emulator.p2p.peers import PeerChannels, PeerOrder


@dataclass(frozen=True, slots=True)
class Message:
    """One send or receive of a rank; ``offset_bytes`` is where its buffer begins, which nothing is decided by."""

    peer: int
    bytes: int
    sends: bool
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message, or a chunk of one up to 2.21, as a kernel has it.

    ``channels`` are in the order of its parts, each of ``part_bytes`` but the last; ``chunk_bytes`` is what goes
    through a buffer at once, of LL without its flags from 2.22 on. ``network``: not by peer-to-peer or shared memory.
    """

    message: Message
    bytes: int
    offset_bytes: int
    protocol: Protocol
    network: bool
    channels: tuple[int, ...]
    part_bytes: int
    chunk_bytes: int

    @property
    def peer(self) -> int:
        """The message's."""
        return self.message.peer

    @property
    def sends(self) -> bool:
        """Whether the message does."""
        return self.message.sends


@dataclass(frozen=True, slots=True)
class P2pWork:
    """What one round of the order has for a kernel: a transfer out and one in, from the same first channel on."""

    round: int
    send_rank: int
    receive_rank: int
    first_channel: int
    send: Transfer | None
    receive: Transfer | None


@dataclass(frozen=True, slots=True)
class WorkElement:
    """A chunk's place among the 16 of a work, up to 2.21, and the warps that do it."""

    place: int
    transfer: Transfer
    warps: int
    first_warp: int
    groups: int


@dataclass(frozen=True, slots=True)
class ExchangeKernel:
    """One launch of sends and receives.

    ``batches`` has, by channel in the order in which its block does them, what is done together: works by their number
    in ``works``, or the elements of a work.
    """

    threads: int
    works: tuple[P2pWork, ...]
    batches: dict[int, tuple[tuple[int, ...] | tuple[WorkElement, ...], ...]]

    @property
    def channels(self) -> tuple[int, ...]:
        """A block each."""
        return tuple(sorted(self.batches))

    @property
    def transfers(self) -> Iterator[tuple[Transfer, int | None]]:
        """The messages with their rounds, receives and sends by round; or the chunks channel by channel, without."""
        for work in self.works:
            yield from ((each, work.round) for each in (work.receive, work.send) if each is not None)
        elements = (item for batches in self.batches.values() for batch in batches for item in batch)
        yield from ((item.transfer, None) for item in elements if isinstance(item, WorkElement))


# What the plan of sends and receives goes by, beside the messages.


@dataclass(frozen=True, slots=True)
class P2pContext:
    """A communicator, its channels for sends and receives, and one rank's order of peers."""

    communicator: Communicator
    channels: PeerChannels
    order: PeerOrder
    joined_by_network: frozenset[tuple[int, int]]  # pairs of ranks of the own node, by their place among them
    beyond_nodes: frozenset[int]  # ranks of other nodes that shared memory or NVLink joins to the own one
    rings: Callable[[], Sequence[Sequence[int]]]  # by channel the ranks of the ring, from the own one on

    def by_network(self, peer: int) -> bool:
        """Whether nothing but the network joins a rank: of most other nodes, or of another socket with its adapters."""
        (own, place), (other, other_place) = (self.order.place(rank) for rank in (self.order.rank, peer))
        if own == other:
            return (place, other_place) in self.joined_by_network
        return peer not in self.beyond_nodes


class Queues:
    """The messages of one rank."""

    def __init__(self, messages: Iterable[Message], rank: int) -> None:
        self._waiting: dict[tuple[int, bool], deque[Message]] = defaultdict(deque)
        self._count = 0
        for message in messages:
            self._waiting[message.peer, message.sends].append(message)
            self._count += 1
        own = [len(self._waiting[rank, sends]) for sends in (True, False)]
        if own[0] != own[1]:
            raise BadInput(f"rank {rank} sends itself {own[0]} messages and receives {own[1]}; valid: as many")

    def __bool__(self) -> bool:
        return self._count > 0

    def peers(self, sends: bool) -> list[int]:
        """The ranks that messages go to, or come from."""
        return [peer for (peer, sent), waiting in self._waiting.items() if sent is sends and waiting]

    def first(self, to: int | None, whence: int | None) -> tuple[Message | None, Message | None]:
        """The next message to one rank, and the next one from another."""
        return self._first(to, True), self._first(whence, False)

    def _first(self, peer: int | None, sends: bool) -> Message | None:
        if peer is None or not (waiting := self._waiting.get((peer, sends))):
            return None
        return waiting[0]

    def take(self, *messages: Message | None) -> None:
        """Messages that were the first of theirs wait no longer."""
        for message in messages:
            if message is not None:
                self._waiting[message.peer, message.sends].popleft()
                self._count -= 1

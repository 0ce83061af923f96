"""Messages that wait, by peer and direction, in the order of the calls."""

from collections import defaultdict, deque
from collections.abc import Iterable

from tuner.base.errors import BadInput
from tuner.emulator.p2p.records import Message


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

"""Records that the steps of all calls share: messages that ranks send and receive step by step."""

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TypeAlias

from tuner.base.dataclass import dataclass
from tuner.base.names import Protocol

# The bytes of data in a unit that is sent at once, and the bytes of that unit with its flags. Source: ncclLLFifoLine,
# src/include/device.h; WireWordPerSlice, src/device/prims_ll128.h.
ON_THE_WIRE = {Protocol.LL: (8, 16), Protocol.LL128: (1920, 2048), Protocol.Simple: (1, 1)}


class InNetwork(Enum):
    """Hardware between ranks that takes part: the switch of a node (NVLink SHARP), or the network (SHARP).

    The hardware adds what all ranks send for an element, or gives all ranks a copy of what one rank sends. For the
    switch, "all ranks" are those of its node; for the network, they are the heads with the same number.
    """

    switch_adds = "switch adds"
    switch_copies = "switch copies"
    network_adds = "network adds"
    network_copies = "network copies"


Peer: TypeAlias = int | InNetwork
Pieces: TypeAlias = tuple[tuple[int, int], ...]  # first element and number of elements of each range


@dataclass(frozen=True, slots=True)
class Step:
    """One act of some threads of a rank's block: they wait for what peers send, and send the result.

    Each message has the elements of ``pieces``. Elements are counted from the start of the whole buffer, which has all
    ranks' parts in turn for AllGather and ReduceScatter.
    """

    channel: int
    rank: int
    threads: int  # number of the threads within the block, from 0; groups of threads run independently
    number: int  # number of the step among those of these threads on this channel, from 0
    receive_from: tuple[Peer, ...]
    send_to: tuple[Peer, ...]
    pieces: Pieces
    adds: bool  # whether what is received is added to the rank's own numbers
    protocol: Protocol
    unused: int = 0  # elements that are sent along and that nobody reads (PAT)
    connection: int = 0  # number of the connection, of two between the two ranks
    # Number of the kernel in the launch; a kernel begins when all blocks of the previous one have ended
    kernel: int = 0
    # Number of the batch of the channel's block; a batch begins when all threads have ended the previous one
    batch: int = 0

    @property
    def elements(self) -> int:
        """Number of elements of a message; 0 if the call's elements end before it and nothing goes over the wire."""
        return sum(elements for _, elements in self.pieces)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of a call. ``steps`` returns the steps of one rank, ordered by kernel, channel, batch and threads."""

    ranks: int
    channels: tuple[int, ...]
    threads: int  # largest number of groups of threads of a block
    connections: int  # between two ranks on a channel, in one direction
    element_bytes: int
    steps: Callable[[int], Iterator[Step]]
    fabrics: tuple[InNetwork, ...] = ()  # switches or networks that take part
    title: str = ""  # describes the call


def wire_bytes(protocol: Protocol, nbytes: int) -> int:
    """The bytes that a message takes on NVLink, including the flags that LL and LL128 send."""
    unit, on_the_wire = ON_THE_WIRE[protocol]
    return -(-nbytes // unit) * on_the_wire


@dataclass(frozen=True, slots=True)
class ScheduledOperation:
    """One end of a message, a send or a receive. Numbers count the rank's operations, from 0."""

    number: int
    step: Step
    sends: bool
    peer: Peer
    bytes: int
    wire_bytes: int  # including the flags of LL and LL128 and unused elements
    tag: int  # a different one for each message between two ranks
    after: tuple[int, ...]  # receives that have ended before
    begun: tuple[int, ...]  # sends that have begun before


@dataclass(slots=True)
class _Before:
    """What a rank's next operation waits for: operations of the same threads, and those of the previous batch and
    kernel."""

    threads: tuple[int, int, int, int] | None = None  # kernel, channel, batch, threads
    received: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()  # the last operations of the previous batch
    ended: tuple[int, ...] = ()  # those of this batch so far
    kernel: tuple[int, ...] = ()
    ended_in_kernel: tuple[int, ...] = ()

    def go_to(self, step: Step) -> None:
        """Continues with the threads of a step."""
        threads = step.kernel, step.channel, step.batch, step.threads
        if threads == self.threads:
            return
        last = tuple(dict.fromkeys((*self.received, *self.sent)))
        if last != self.batch:
            self.ended = (*self.ended, *last)
        if self.threads is not None and threads[:3] != self.threads[:3]:
            self._go_on(threads, self.threads)
        self.threads, self.received, self.sent = threads, self.batch, ()

    def _go_on(self, threads: tuple[int, ...], before: tuple[int, ...]) -> None:
        if threads[:2] == before[:2]:
            self.batch, self.ended = self.ended or self.batch, ()
            return
        self.ended_in_kernel = (*self.ended_in_kernel, *self.ended)
        if threads[0] != before[0]:
            self.kernel, self.ended_in_kernel = self.ended_in_kernel or self.kernel, ()
        self.batch, self.ended = self.kernel, ()


def operations(schedule: Schedule, rank: int) -> Iterator[ScheduledOperation]:
    """A rank's sends and receives, without empty ones. BadInput if the call has no schedule."""
    places = {channel: place for place, channel in enumerate(schedule.channels)}
    messages = Counter[tuple[bool, int, int, Peer]]()
    number, before = 0, _Before()
    for step in schedule.steps(rank):
        before.go_to(step)
        ends = [(False, peer) for peer in step.receive_from] + [(True, peer) for peer in step.send_to]
        here: dict[bool, list[int]] = {False: [], True: []}
        for sends, peer in ends:
            key = sends, step.channel, step.connection, peer
            tag = (messages[key] * len(places) + places[step.channel]) * schedule.connections + step.connection
            messages[key] += 1
            if not step.elements:
                continue
            nbytes = step.elements * schedule.element_bytes
            after = tuple(here[False]) or before.received if sends else before.received
            on_the_wire = wire_bytes(step.protocol, nbytes + step.unused * schedule.element_bytes)
            yield ScheduledOperation(
                number, step, sends, peer, nbytes, on_the_wire, tag, after, before.sent if sends else ()
            )
            here[sends].append(number)
            number += 1
        before.received = tuple(here[False]) or before.received
        before.sent = tuple(here[True]) or before.sent

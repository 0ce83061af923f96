"""A schedule as sends and receives that depend on each other: what simulators of networks take.

A block goes on to its next step when it has received what this one waits for. Sends are put into buffers and wait for
nobody: each begins after the one before it began, and after what it sends was received.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.emulator.steps.records import Peer, Schedule, Step, wire_bytes


@dataclass(frozen=True, slots=True)
class Operation:
    """One message at one of its ends. Numbers are those of the rank's operations, from 0."""

    number: int
    step: Step
    sends: bool
    peer: Peer
    bytes: int
    wire_bytes: int  # with the flags of LL and LL128, and what goes along unused
    tag: int  # one of its own for each message between two ranks
    after: tuple[int, ...]  # receives that have come to their end before
    begun: tuple[int, ...]  # sends that have begun before


@dataclass(slots=True)
class _Before:
    """What the next operation of a rank waits for: by threads, after the batch and the kernel before theirs."""

    threads: tuple[int, int, int, int] | None = None  # kernel, channel, batch, threads
    received: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()  # the last operations of what the batch waits for
    ended: tuple[int, ...] = ()  # those of this batch so far
    kernel: tuple[int, ...] = ()
    ended_in_kernel: tuple[int, ...] = ()

    def go_to(self, step: Step) -> None:
        """To the threads of a step."""
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


def operations(schedule: Schedule, rank: int) -> Iterator[Operation]:
    """What a rank sends and receives, without what is empty. Errors: those of the schedule."""
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
            yield Operation(number, step, sends, peer, nbytes, on_the_wire, tag, after, before.sent if sends else ())
            here[sends].append(number)
            number += 1
        before.received = tuple(here[False]) or before.received
        before.sent = tuple(here[True]) or before.sent

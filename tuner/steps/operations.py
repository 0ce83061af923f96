"""A schedule as sends and receives that depend on each other: what simulators of networks take.

A block goes on to its next step when it has received what this one waits for. Sends are put into buffers and wait for
nobody: each begins after the one before it began, and after what it sends was received.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.connect import Across
from tuner.emulator.launch.records import Work
from tuner.steps.schedule import Step, schedule, wire_bytes


@dataclass(frozen=True, slots=True)
class Operation:
    """One message at one of its ends. Numbers are those of the rank's operations, from 0."""

    number: int
    step: Step
    sends: bool
    peer: int
    bytes: int
    wire_bytes: int  # with the flags of LL and LL128
    tag: int  # one of its own for each message between two ranks
    after: tuple[int, ...]  # receives that have come to their end before
    begun: tuple[int, ...]  # sends that have begun before


def operations(work: Work, across: Across, rank: int) -> Iterator[Operation]:
    """What a rank sends and receives, without what is empty. Errors: those of the schedule."""
    places = {share.channel: place for place, share in enumerate(work.shares)}
    messages = Counter[tuple[bool, int, int]]()
    number, threads = 0, None
    received: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()
    for step in schedule(work, across, rank):
        if (step.channel, step.threads) != threads:
            received, sent, threads = (), (), (step.channel, step.threads)
        ends = [(False, peer) for peer in step.receive_from] + [(True, peer) for peer in step.send_to]
        here: dict[bool, list[int]] = {False: [], True: []}
        for sends, peer in ends:
            tag = messages[sends, step.channel, peer] * len(places) + places[step.channel]
            messages[sends, step.channel, peer] += 1
            if not step.elements:
                continue
            nbytes = step.elements * work.dtype.size_bytes
            after = tuple(here[False]) or received if sends else received
            on_the_wire = wire_bytes(work.protocol, nbytes)
            yield Operation(number, step, sends, peer, nbytes, on_the_wire, tag, after, sent if sends else ())
            here[sends].append(number)
            number += 1
        received, sent = tuple(here[False]) or received, tuple(here[True]) or sent

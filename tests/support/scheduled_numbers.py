"""Schedules carried out on numbers: every message takes the sender's numbers along, and all of them must arrive.

Numbers are random 64-bit integers, whose sums wrap around: a result that lacks a number, or has one twice, differs.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tuner.base.names import Collective
from tuner.emulator.steps.records import InNetwork, Peer, Pieces, Schedule, Step

Numbers = NDArray[np.uint64]
ADDS = (InNetwork.switch_adds, InNetwork.network_adds)
OF_SWITCH = (InNetwork.switch_adds, InNetwork.switch_copies)


@dataclass
class Middle:
    """What the switch of a node, or the network, has of each element: the sum, and how many have sent it."""

    total: Numbers
    senders: NDArray[np.int64]
    needs: int  # how many have to send an element before it can be had

    def take(self, pieces: Pieces, numbers: Sequence[Numbers]) -> None:
        for (first, elements), each in zip(pieces, numbers, strict=True):
            self.total[first : first + elements] += each
            self.senders[first : first + elements] += 1

    def give(self, pieces: Pieces) -> list[Numbers] | None:
        """None where something is missing."""
        where = [slice(first, first + elements) for first, elements in pieces]
        if any((self.senders[each] < self.needs).any() for each in where):
            return None
        return [self.total[each].copy() for each in where]


@dataclass
class Run:
    """A schedule under way. ``sources`` are what ranks send from, ``results`` where they put what arrives."""

    schedule: Schedule
    sources: list[Numbers]
    results: list[Numbers]
    ranks_of_nodes: tuple[tuple[int, ...], ...]
    queues: dict[tuple[int, int, int, int], deque[list[Numbers]]] = field(default_factory=lambda: defaultdict(deque))
    middles: dict[tuple[InNetwork, int], Middle] = field(default_factory=dict)
    sent_elements: dict[Peer, int] = field(default_factory=lambda: defaultdict(int))
    moves: int = 0  # messages that were sent, and messages that were received

    def middle(self, fabric: InNetwork, rank: int) -> Middle:
        node = next(number for number, ranks in enumerate(self.ranks_of_nodes) if rank in ranks)
        of_switch = fabric in OF_SWITCH
        key = fabric, node if of_switch else 0
        if key not in self.middles:
            needs = 1
            if fabric in ADDS:
                needs = len(self.ranks_of_nodes[node]) if of_switch else len(self.ranks_of_nodes)
            count = len(self.sources[0])
            self.middles[key] = Middle(np.zeros(count, np.uint64), np.zeros(count, np.int64), needs)
        return self.middles[key]

    def threads(self, steps: Sequence[Step]) -> Iterator[None]:
        """Those steps one after the other; it stops where something is missing."""
        for step in steps:
            if not step.elements:
                continue
            total: list[Numbers] | None = None
            for peer in step.receive_from:
                while (came := self._receive(step, peer)) is None:
                    yield
                self.moves += 1
                total = came if total is None else [one + other for one, other in zip(total, came, strict=True)]
            if total is not None:
                for (first, elements), each in zip(step.pieces, total, strict=True):
                    own = self.results[step.rank][first : first + elements]
                    own[:] = own + each if step.adds else each
            for peer in step.send_to:
                self.moves += 1
                numbers = [self.sources[step.rank][first : first + elements].copy() for first, elements in step.pieces]
                self.sent_elements[peer if isinstance(peer, InNetwork) else 0] += step.elements
                if isinstance(peer, InNetwork):
                    self.middle(peer, step.rank).take(step.pieces, numbers)
                else:
                    self.queues[step.channel, step.connection, step.rank, peer].append(numbers)

    def _receive(self, step: Step, peer: Peer) -> list[Numbers] | None:
        if isinstance(peer, InNetwork):
            return self.middle(peer, step.rank).give(step.pieces)
        queue = self.queues[step.channel, step.connection, peer, step.rank]
        if not queue:
            return None
        numbers = queue.popleft()
        assert list(map(len, numbers)) == [elements for _, elements in step.pieces], "both ends have other sizes"
        return numbers

    def block(self, steps: Sequence[Step]) -> Iterator[None]:
        """A channel's block of one kernel: batch after batch, the threads of each at their own pace."""
        batches: dict[int, dict[int, list[Step]]] = defaultdict(lambda: defaultdict(list))
        for step in steps:
            batches[step.batch][step.threads].append(step)
        for _, threads in sorted(batches.items()):
            yield from together([self.threads(each) for each in threads.values()])

    def rank(self, rank: int) -> Iterator[None]:
        """Kernel after kernel, the blocks of each at their own pace."""
        kernels: dict[int, dict[int, list[Step]]] = defaultdict(lambda: defaultdict(list))
        for step in self.schedule.steps(rank):
            assert step.rank == rank
            kernels[step.kernel][step.channel].append(step)
        for _, blocks in sorted(kernels.items()):
            yield from together([self.block(each) for each in blocks.values()])

    def to_its_end(self) -> None:
        """AssertionError where every rank waits for another, and where something is sent that nobody receives."""
        running, before = [self.rank(rank) for rank in range(self.schedule.ranks)], -1
        while running:
            running = [each for each in running if _goes_on(each)]
            assert not running or self.moves != before, "every rank waits for another"
            before = self.moves
        assert not any(self.queues.values()), "something was sent that nobody received"


def together(running: list[Iterator[None]]) -> Iterator[None]:
    while running:
        running = [each for each in running if _goes_on(each)]
        if running:
            yield


def _goes_on(each: Iterator[None]) -> bool:
    for _ in each:
        return True
    return False


def of_collective(
    random: Generator, schedule: Schedule, collective: Collective, count: int, nodes: tuple[tuple[int, ...], ...]
) -> Run:
    """Carries a collective out on ``count`` elements of each rank.

    AssertionError where a rank has not what it must have; of Broadcast and Reduce see ``results``.
    """
    ranks = schedule.ranks
    parts = ranks if collective in (Collective.AllGather, Collective.ReduceScatter) else 1
    whole = parts * count
    own = [random.integers(0, 1 << 64, whole, np.uint64, endpoint=False) for _ in range(ranks)]
    if collective is Collective.AllGather:
        for rank, numbers in enumerate(own):
            numbers[: rank * count] = 0
            numbers[(rank + 1) * count :] = 0
    inputs = [each.copy() for each in own]
    run = Run(schedule, own, own, nodes)
    run.to_its_end()
    total = np.stack(inputs).sum(axis=0, dtype=np.uint64)
    for rank in range(ranks):
        if collective in (Collective.AllReduce, Collective.AllGather):
            assert np.array_equal(own[rank], total), f"rank {rank}"
        elif collective is Collective.ReduceScatter:
            part = slice(rank * count, (rank + 1) * count)
            assert np.array_equal(own[rank][part], total[part]), f"rank {rank}"
    return run

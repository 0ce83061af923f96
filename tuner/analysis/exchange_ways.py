"""Which way messages go by their size - protocol, channels, chunks - and where that is another after a change."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.base import breakpoints
from tuner.base.names import DataType, PeerCall, Protocol
from tuner.base.numerics import SizeArray
from tuner.emulator.exchange.plan import ExchangeCall, plan
from tuner.emulator.exchange.records import Transfer
from tuner.emulator.exchange.situation import Situation
from tuner.scenario import Scenario
from tuner.scenario.exchange import situation
from tuner.scenario.resolved import ResolvedScenario

BOTH = (PeerCall.Send, PeerCall.Recv)


@dataclass(frozen=True, slots=True)
class Way:
    """How a message reaches a peer: of the same node, or over the network."""

    network: bool
    channels: int
    protocol: Protocol
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What one call takes of rank 0: kernels, blocks of the largest, and the ways of its messages to other ranks.

    Of a send or receive, one to the nearest rank and one to another node, each a kernel of its own.
    """

    kernels: int
    channels: int
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class WaysAtSize:
    """One size before and after a change; ``bytes`` of a message, or what a rank or root has in all."""

    call: PeerCall
    bytes: int
    before: Taken
    after: Taken


@dataclass(frozen=True, slots=True)
class WaysChange:
    """A range of sizes in which messages go another way after a change. NCCL has no time of either."""

    call: PeerCall
    from_bytes: int
    to_bytes: int
    before: Taken
    after: Taken


class ExchangeSides:
    """A communicator before and after a change. BadInput as of :func:`tuner.scenario.exchange.situation`."""

    def __init__(self, before: Scenario, after: Scenario) -> None:
        self._sides = tuple(situation(ResolvedScenario(each)) for each in (before, after))

    def at(self, call: PeerCall, size: int) -> WaysAtSize:
        """One size."""
        before, after = (taken(side, call, size) for side in self._sides)
        return WaysAtSize(call, size, before, after)

    def changes(self, call: PeerCall, low: int, high: int) -> list[WaysChange]:
        """The ranges from ``low`` to ``high`` bytes in which both differ."""
        known: dict[tuple[Taken, Taken], int] = {}

        def labels(sizes: SizeArray) -> NDArray[np.generic]:
            both = (self.at(call, int(size)) for size in sizes)
            return np.array([known.setdefault((each.before, each.after), len(known)) for each in both])

        starts = [int(each) for each in breakpoints.find(labels, low, high, steps=0)]
        ends = [*(start - 1 for start in starts[1:]), high]
        both = [self.at(call, start) for start in starts]
        ranges = [WaysChange(call, one.bytes, end, one.before, one.after) for one, end in zip(both, ends, strict=True)]
        return [each for each in ranges if each.before != each.after]


def taken(where: Situation, function: PeerCall, size: int) -> Taken:
    """What one call of so many bytes takes."""
    groups = [plan(where, each) for each in _groups(where, function, size)]
    transfers = [each for kernels in groups for kernel in kernels for each in kernel.transfers]
    return Taken(
        max((len(kernels) for kernels in groups), default=0),
        max((len(kernel.channels) for kernels in groups for kernel in kernels), default=0),
        tuple(_ways(transfers, where.order.rank)),
    )


def _groups(where: Situation, function: PeerCall, size: int) -> Iterator[list[ExchangeCall]]:
    """The messages of rank 0, which is the root; one to the nearest rank and one to another node, if it is one."""
    ranks_of, ranks = where.order.ranks_of, where.communicator.ranks
    send, receive = BOTH
    directions = {PeerCall.AlltoAll: BOTH, PeerCall.Gather: (receive,), PeerCall.Scatter: (send,)}
    if function not in BOTH:
        peers = range(ranks) if function is PeerCall.AlltoAll else range(1, ranks)
        messages = [(each, peer) for peer in peers for each in directions[function]]
        if function is not PeerCall.AlltoAll:
            messages += [(each, where.order.rank) for each in BOTH]
        yield [ExchangeCall(each, DataType.int8, size // ranks, peer) for each, peer in messages]
        return
    own = next(node for node in ranks_of if where.order.rank in node)
    near = [rank for rank in own if rank != where.order.rank][:1]
    far = [node[0] for node in ranks_of if node is not own][:1]
    for peer in near + far:
        yield [ExchangeCall(function, DataType.int8, size, peer)]


def _ways(transfers: Sequence[Transfer], rank: int) -> Iterator[Way]:
    seen: dict[tuple[int, bool], list[Transfer]] = defaultdict(list)
    for each in transfers:
        if each.message.peer != rank:
            seen[each.message.peer, each.message.sends].append(each)
    ways = (
        Way(
            messages[0].network,
            len({channel for each in messages for channel in each.channels}),
            messages[0].protocol,
            messages[0].chunk_bytes,
        )
        for messages in seen.values()
    )
    yield from sorted(dict.fromkeys(ways), key=lambda way: (way.network, way.channels, way.chunk_bytes))

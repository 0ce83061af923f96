"""Which way messages go by their size - protocol, channels, chunks - and where that is another after a change."""

import typing
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.base import breakpoints
from tuner.base.dataclass import dataclass
from tuner.base.names import DataType, PeerCall, Protocol
from tuner.base.numerics import SizeArray
from tuner.emulator.p2p.plan import POINT_TO_POINT, ExchangeCall, plan, written
from tuner.emulator.p2p.records import P2pContext
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context
from tuner.scenario.resolved import ResolvedScenario


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
    """A communicator before and after a change. BadInput as of :func:`tuner.scenario.p2p.p2p_context`."""

    def __init__(self, before: Scenario, after: Scenario) -> None:
        self._sides = tuple(p2p_context(ResolvedScenario(each)) for each in (before, after))

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


def taken(where: P2pContext, function: PeerCall, size: int) -> Taken:
    """What one call of so many bytes takes."""
    groups = [plan(where, each) for each in _groups(where, function, size)]
    transfers = [each for kernels in groups for kernel in kernels for each, _ in kernel.transfers]
    return Taken(
        max((len(kernels) for kernels in groups), default=0),
        max((len(kernel.channels) for kernels in groups for kernel in kernels), default=0),
        tuple(ways(each for each in transfers if each.peer != where.order.rank)),
    )


def _groups(where: P2pContext, function: PeerCall, size: int) -> Iterator[list[ExchangeCall]]:
    """The messages of rank 0, which is the root; one to the nearest rank and one to another node, if it is one."""
    rank = where.order.rank
    if function not in POINT_TO_POINT:
        yield written(where, ExchangeCall(function, DataType.int8, size // where.communicator.ranks, rank))
        return
    ranks_of = where.order.ranks_of
    own = next(node for node in ranks_of if rank in node)
    near = [each for each in own if each != rank][:1]
    far = [node[0] for node in ranks_of if node is not own][:1]
    for peer in near + far:
        yield [ExchangeCall(function, DataType.int8, size, peer)]


class _Sent(typing.Protocol):
    """A message, or the part of one on a channel: one of the emulator, or of an answer."""

    @property
    def peer(self) -> int: ...
    @property
    def sends(self) -> bool: ...
    @property
    def network(self) -> bool: ...
    @property
    def protocol(self) -> Protocol: ...
    @property
    def channels(self) -> Sequence[int]: ...
    @property
    def chunk_bytes(self) -> int: ...


def ways(transfers: Iterable[_Sent]) -> list[Way]:
    """How messages go, each way once: up to 2.21 a message is a transfer on each of its channels, later one on all."""
    seen: dict[tuple[int, bool], list[_Sent]] = defaultdict(list)
    for each in transfers:
        seen[each.peer, each.sends].append(each)
    found = (
        Way(
            parts[0].network,
            len({channel for each in parts for channel in each.channels}),
            parts[0].protocol,
            parts[0].chunk_bytes,
        )
        for parts in seen.values()
    )
    return sorted(dict.fromkeys(found), key=lambda way: (way.network, way.channels, way.chunk_bytes))

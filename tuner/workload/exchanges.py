"""Sends, receives and AllToAlls of a job: how often, how many bytes, and what NCCL launches for one of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.base.errors import BadInput
from tuner.base.names import DataType, PeerCall, Protocol
from tuner.emulator.exchange.plan import ExchangeCall, plan
from tuner.emulator.exchange.records import Transfer
from tuner.emulator.exchange.situation import Situation
from tuner.scenario import Scenario
from tuner.scenario.exchange import situation
from tuner.scenario.resolved import ResolvedScenario
from tuner.traces.calls import Call, peer_call
from tuner.traces.wanted import Wanted

OTHERS = {PeerCall.Send: PeerCall.Recv, PeerCall.Recv: PeerCall.Send}
ExchangeCounts = Mapping[tuple[PeerCall, int], float]


@dataclass(frozen=True, slots=True)
class Way:
    """How a message reaches a peer: of the same node, or over the network."""

    network: bool
    channels: int
    protocol: Protocol
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class ExchangesOf:
    """All calls of one kind and size; ``bytes`` of a message, or what a rank sends in all in an AllToAll.

    ``total_bytes`` are those of all calls. ``channels`` are the blocks of rank 0's kernel for one AllToAll, and
    ``kernels`` how many it takes; of a send or receive, which file says no peer of, the most blocks that one takes.
    ``ways`` are those of its messages, to the nearest rank and to one of another node.
    """

    call: PeerCall
    bytes: int
    calls: float
    total_bytes: float
    kernels: int
    channels: int
    ways: tuple[Way, ...]


def count(calls: Iterable[Call], wanted: Wanted) -> ExchangeCounts:
    """How many there are by kind and size, of the communicators that count and where the file says a size."""
    counted: dict[tuple[PeerCall, int], float] = defaultdict(float)
    for call in calls:
        function = peer_call(call.name)
        if function is not None and call.bytes and call.unusable is None and wanted.elsewhere(call) is None:
            counted[function, call.bytes] += call.calls
    return dict(counted)


def launched(scenario: Scenario, counts: ExchangeCounts) -> tuple[ExchangesOf, ...]:
    """What one of each takes on the scenario's communicator; none where its links are not known."""
    if not counts:
        return ()
    try:
        where = situation(ResolvedScenario(scenario))
    except BadInput:
        return ()
    return tuple(_launched(where, *key, calls) for key, calls in sorted(counts.items()))


def _launched(where: Situation, function: PeerCall, size: int, calls: float) -> ExchangesOf:
    groups = [plan(where, each) for each in _groups(where, function, size)]
    transfers = [each for kernels in groups for kernel in kernels for each in kernel.transfers]
    return ExchangesOf(
        function,
        size,
        calls,
        size * calls,
        max((len(kernels) for kernels in groups), default=0),
        max((len(kernel.channels) for kernels in groups for kernel in kernels), default=0),
        tuple(_ways(transfers, where.order.rank)),
    )


def _groups(where: Situation, function: PeerCall, size: int) -> Iterator[list[ExchangeCall]]:
    """An AllToAll, or one message to the nearest rank and one to another node."""
    ranks_of, ranks = where.order.ranks_of, where.communicator.ranks
    if function is PeerCall.AlltoAll:
        count = size // ranks
        yield [ExchangeCall(each, DataType.int8, count, peer) for peer in range(ranks) for each in OTHERS]
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
    yield from dict.fromkeys(ways)

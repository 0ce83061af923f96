"""What NCCL makes of a rank's sends and receives in one group."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.base.errors import BadInput
from tuner.base.names import DataType, PeerCall
from tuner.emulator.p2p import chunks, rounds
from tuner.emulator.p2p.queues import Queues
from tuner.emulator.p2p.records import ExchangeKernel, Message, P2pContext

POINT_TO_POINT = (PeerCall.Send, PeerCall.Recv)


@dataclass(frozen=True, slots=True)
class ExchangeCall:
    """One call as a rank makes it: ``count`` elements as NCCL's function takes them, ``root`` the root, or the peer."""

    function: PeerCall
    dtype: DataType
    count: int
    root: int = 0
    offset_bytes: int = 0  # of a send or receive: where its buffer begins, which nothing is decided by


def plan(p2p_context: P2pContext, calls: Sequence[ExchangeCall], captured: bool = False) -> tuple[ExchangeKernel, ...]:
    """The kernels of a group of calls on any buffers, of which a send to the rank itself has two.

    ``captured``: into a CUDA graph, where a kernel holds more. BadInput for calls that the release does not have, and
    for sends to the rank itself without a receive.
    """
    queues = Queues(messages(p2p_context, calls), p2p_context.order.rank)
    if p2p_context.communicator.release.exchange.planner == "rounds":
        return tuple(rounds.kernels(p2p_context, queues, captured))
    return tuple(chunks.kernels(p2p_context, queues, captured))


def messages(p2p_context: P2pContext, calls: Iterable[ExchangeCall]) -> Iterable[Message]:
    """The sends and receives of calls, in NCCL's order. BadInput as of :func:`plan`.

    Source: taskAppend, src/enqueue.cc, v2.28.9-1.
    """
    communicator, rank = p2p_context.communicator, p2p_context.order.rank
    for call in calls:
        size = call.count * call.dtype.size_bytes
        if not 0 <= call.root < communicator.ranks:
            raise BadInput(f"{call.function.name} with rank {call.root}; valid: 0 to {communicator.ranks - 1}")
        own = call.function not in POINT_TO_POINT
        if own and not communicator.release.exchange.own_functions:
            raise BadInput(
                f"NCCL {communicator.release.name} has no function for {call.function.name}; "
                "valid: sends and receives in a group"
            )
        if own and not size:
            continue
        yield from _of_call(call, size, range(communicator.ranks), rank)


def written(p2p_context: P2pContext, call: ExchangeCall) -> list[ExchangeCall]:
    """The call, or the sends and receives that people write where the release has no such function."""
    communicator = p2p_context.communicator
    if call.function in POINT_TO_POINT or communicator.release.exchange.own_functions:
        return [call]
    send, receive = POINT_TO_POINT
    size = call.count * call.dtype.size_bytes
    messages = _of_call(call, size, range(communicator.ranks), p2p_context.order.rank)
    return [
        ExchangeCall(send if each.sends else receive, call.dtype, call.count, each.peer, each.offset_bytes)
        for each in messages
    ]


def _of_call(call: ExchangeCall, size: int, ranks: Iterable[int], rank: int) -> Iterable[Message]:
    match call.function:
        case PeerCall.Send | PeerCall.Recv:
            yield Message(call.root, size, call.function is PeerCall.Send, call.offset_bytes)
        case PeerCall.AllToAll:
            for peer in ranks:
                yield Message(peer, size, True, peer * size)
                yield Message(peer, size, False, peer * size)
        case PeerCall.Gather:
            yield Message(call.root, size, True)
            if rank == call.root:
                yield from (Message(peer, size, False, peer * size) for peer in ranks)
        case PeerCall.Scatter:
            if rank == call.root:
                yield from (Message(peer, size, True, peer * size) for peer in ranks)
            yield Message(call.root, size, False)

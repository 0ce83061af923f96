"""Plans a rank's sends and receives in one group: which kernels NCCL launches for them, and what each kernel contains.

Calls become messages, one per peer and direction, which wait in a queue for each peer. NCCL serves its peers in the
order of rounds (:class:`tuner.emulator.p2p.records.PeerOrder`), again and again until nothing waits. Up to 2.21 a round
takes a chunk of the next message to and from a peer, each on one channel; chunks of a channel that are done together
are a work, in which each connection occurs at most once, and a kernel holds a limited number of works. From 2.22 on, a
round takes whole messages. A work then has one message out and one in, on a number of channels that depends on their
sizes, and a channel does works in batches. A kernel contains the batches and works that fit into its arguments or into
the ring of works. Chunks use LL if little is sent and the connection has LL buffers. What does not fit begins the next
kernel.

Source: scheduleP2pTasksToPlan, addP2pToPlan, src/enqueue.cc, v2.28.9-1 and v2.21.5-1.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import DataType, PeerCall, Protocol
from tuner.base.numerics import as_size_t, ceil_div, mirrored
from tuner.emulator.p2p.records import (
    TOGETHER,
    ExchangeKernel,
    Message,
    P2pContext,
    P2pWork,
    Queues,
    Transfer,
    WorkElement,
)
from tuner.emulator.rules.schedule.scheduler import Batches, Works

POINT_TO_POINT = (PeerCall.Send, PeerCall.Recv)


@dataclass(frozen=True, slots=True)
class ExchangeCall:
    """One call as a rank makes it: ``count`` elements as NCCL's function takes them.

    ``root`` is the peer of a Send or Recv.
    """

    function: PeerCall
    dtype: DataType
    count: int
    root: int = 0
    offset_bytes: int = 0  # where the buffer of a send or receive begins; no choice depends on it


def plan(p2p_context: P2pContext, calls: Sequence[ExchangeCall], captured: bool = False) -> tuple[ExchangeKernel, ...]:
    """The kernels of a group of calls; a send to the rank itself needs a receive from it.

    ``captured``: whether a CUDA graph captures the group, in which a kernel holds more. BadInput for calls that the
    release does not have, and for sends to the rank itself without a receive.
    """
    queues = Queues(messages(p2p_context, calls), p2p_context.order.rank)
    if p2p_context.communicator.release.exchange.planner == "rounds":
        return tuple(kernels_of_rounds(p2p_context, queues, captured))
    return tuple(kernels_of_chunks(p2p_context, queues, captured))


def messages(p2p_context: P2pContext, calls: Iterable[ExchangeCall]) -> Iterable[Message]:
    """The sends and receives of calls, in NCCL's order.

    BadInput for a peer that is no rank, and for a call that the release does not have.

    Source: taskAppend, src/enqueue.cc, v2.28.9-1.
    """
    communicator, rank = p2p_context.communicator, p2p_context.order.rank
    for call in calls:
        size = call.count * call.dtype.size_bytes
        if not 0 <= call.root < communicator.ranks:
            raise BadInput(f"{call.function.name} with rank {call.root}: valid are ranks 0 to {communicator.ranks - 1}")
        own = call.function not in POINT_TO_POINT
        if own and not communicator.release.exchange.own_functions:
            raise BadInput(
                f"NCCL {communicator.release.name} has no function for {call.function.name}: give its sends and "
                "receives as a group"
            )
        if own and not size:
            continue
        yield from _of_call(call, size, range(communicator.ranks), rank)


def written(p2p_context: P2pContext, call: ExchangeCall) -> list[ExchangeCall]:
    """The call itself or, if the release has no function for it, the sends and receives that do the same."""
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


WARPS = 20  # number of warps of a block with 640 threads
ELEMENTS = 2 * TOGETHER  # elements of a work: receives have even places, sends odd ones


@dataclass(slots=True)
class _Left:
    """The rest of a message that is not in a kernel yet."""

    message: Message
    chunk_bytes: int  # the largest part, NCCL's recvChunkBytesMax
    chunk: int = 0

    @property
    def done(self) -> bool:
        return self.chunk * self.chunk_bytes >= self.message.bytes and self.chunk > 0


class _ChunkWork:
    """A work of a channel: chunks by their places."""

    def __init__(self) -> None:
        self.chunks: dict[int, Transfer] = {}
        self.next = {False: 0, True: 1}  # the next place for receives, and for sends

    def takes(self, transfer: Transfer) -> bool:
        """Whether the work can hold the chunk.

        It needs a free place, and no other chunk of the work may have the same peer and direction.
        """
        sends = transfer.message.sends
        same = (place for place in range(int(sends), self.next[sends], 2))
        return self.next[sends] < ELEMENTS and all(
            self.chunks[place].message.peer != transfer.message.peer for place in same
        )

    def add(self, transfer: Transfer) -> None:
        sends = transfer.message.sends
        self.chunks[self.next[sends]] = transfer
        self.next[sends] += 2

    def elements(self) -> tuple[WorkElement, ...]:
        """The chunks of the work, each with the warps that send or receive it (finishWorkP2p)."""
        groups, warps = 1 << max(self.chunks).bit_length(), 1
        while warps * groups <= WARPS // 2:
            warps *= 2
        return tuple(
            WorkElement(
                place,
                transfer,
                warps + (place % 2 if warps >= 2 else 0),
                place * WARPS // groups,
                groups,
            )
            for place, transfer in sorted(self.chunks.items())
        )


class _ChunkKernel:
    """A kernel that is being filled, with room for ``room`` more works."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.of_channel: dict[int, list[_ChunkWork]] = {}

    def add(self, transfer: Transfer, fused: bool) -> None:
        (channel,) = transfer.channels
        works = self.of_channel.setdefault(channel, [])
        if not works or not fused or not works[-1].takes(transfer):
            works.append(_ChunkWork())
            self.room -= 1
        works[-1].add(transfer)

    def done(self, threads: int) -> ExchangeKernel:
        batches = {channel: tuple(work.elements() for work in works) for channel, works in self.of_channel.items()}
        return ExchangeKernel(threads, (), dict(sorted(batches.items())))


def kernels_of_chunks(
    p2p_context: P2pContext, queues: Queues, captured: bool, room: int | None = None
) -> Iterator[ExchangeKernel]:
    """The kernels that send and receive the messages chunk by chunk.

    ``captured``: whether a CUDA graph captures the group.

    ``room``: the number of works for which the first kernel has room beside its collectives; None if it has no
    collectives.
    """
    whole = Works(p2p_context.communicator, captured).left
    return _ChunkPlanner(p2p_context, queues).kernels(whole, whole if room is None else room)


class _ChunkPlanner:
    def __init__(self, p2p_context: P2pContext, queues: Queues) -> None:
        self.p2p_context, self.queues = p2p_context, queues
        self.data = p2p_context.communicator.release.exchange
        self.fewest, self.most = self._bounds()
        self.fused = False
        self.steps = p2p_context.order.rounds_with(queues.peers(sends=True), queues.peers(sends=False))
        self.left: dict[tuple[int, bool], _Left] = {}  # messages of which some chunks are in kernels

    def _bounds(self) -> tuple[int, int]:
        peers, ranks = self.p2p_context.channels, self.p2p_context.communicator.ranks
        fewest = most = peers.per_peer
        one_node = len(self.p2p_context.order.ranks_of) == 1
        rule = self.data.fewer_for_many_ranks
        limited = rule == "always" or (rule == "on_one_node" and one_node)
        while (limited or rule == "for_small") and fewest * ranks > peers.channels and fewest > 1:
            fewest //= 2
        while limited and most * ranks > peers.channels * 4 and most > 1:
            most //= 2
        return fewest, most

    def kernels(self, whole: int, room: int) -> Iterator[ExchangeKernel]:
        threads = self.p2p_context.communicator.release.limits.max_threads
        kernel = _ChunkKernel(room)
        while self.queues:
            if self._sweep(kernel):
                yield kernel.done(threads)
                if not kernel.of_channel and kernel.room >= whole:
                    raise BadInput(Works.TOO_SMALL)
                kernel, self.fused = _ChunkKernel(whole), False
        if kernel.of_channel:
            yield kernel.done(threads)

    def _sweep(self, kernel: _ChunkKernel) -> bool:
        """Goes through every peer once; returns whether the kernel is full."""
        order, before = self.p2p_context.order, -1
        for step in self.steps:
            anew = step % TOGETHER == 0
            if self.data.fused == "by_step" and step // TOGETHER != before // TOGETHER:
                self.fused = False
            before = step
            sending, receiving = self.queues.first(*order.pair(step))
            waiting = [self._left_of(message) for message in (receiving, sending) if message is not None]
            while waiting:
                if anew and self.data.fused == "by_chunk":
                    self.fused = False
                for left in list(waiting):
                    if kernel.room < 1:
                        return True
                    kernel.add(self._chunk(left), self.fused)
                    self.fused = True
                    left.chunk += 1
                    if left.done:
                        self.queues.take(left.message)
                        del self.left[left.message.peer, left.message.sends]
                        waiting.remove(left)
        return False

    def _left_of(self, message: Message) -> _Left:
        key = message.peer, message.sends
        if key not in self.left:
            self.left[key] = _Left(message, self._part_bytes(message.bytes))
        return self.left[key]

    def _part_bytes(self, size: int) -> int:
        """The size of the largest part of a message that is one chunk (calcP2pChunkSize)."""
        step, across = self.p2p_context.channels.chunk_bytes, len(self.p2p_context.order.ranks_of) > 1
        least = step // (self.data.least_part_across_nodes if across else 8)
        _, part = divided(size, self.fewest, self.most, (least, step if across else step * 32))
        return part + least - 1 & -least  # alignUp assumes a power of two (sic)

    def _chunk(self, left: _Left) -> Transfer:
        message, begin = left.message, left.chunk * left.chunk_bytes
        size = min(message.bytes - begin, left.chunk_bytes)
        p2p_context, own = self.p2p_context, message.peer == self.p2p_context.order.rank
        network = p2p_context.by_network(message.peer)
        has_ll = not own and (not network or p2p_context.channels.ll_over_network)
        low_latency = has_ll and size <= as_size_t(p2p_context.channels.ll_threshold_bytes)
        step = p2p_context.channels.ll_chunk_bytes if low_latency else p2p_context.channels.chunk_bytes
        chunk = step
        if network and size < step and (self.data.quarter_chunks == "always" or not low_latency):
            chunk //= 4
        elif network and size < 8 * step:
            chunk //= 2
        return Transfer(
            message,
            size,
            message.offset_bytes + begin,
            Protocol.LL if low_latency else Protocol.Simple,
            network,
            (self._channel(message, left.chunk),),
            size,
            p2p_context.channels.forced_chunk_bytes or chunk,
        )

    def _channel(self, message: Message, chunk: int) -> int:
        order, channels = self.p2p_context.order, self.p2p_context.channels
        (node, own), (other_node, other) = order.place(order.rank), order.place(message.peer)
        nodes, most = len(order.ranks_of), order.most_of_node
        sign = 1 if message.sends else -1
        step, delta = sign * (other - own) % most, sign * (other_node - node) % nodes
        base = delta + step // TOGETHER if nodes > 1 else step
        first = mirrored(base % channels.channels, channels.channels)
        return (first + chunk % channels.per_peer) % channels.channels


WORK_BYTES = 48  # ncclDevWorkP2p
FARTHEST = 63  # the farthest work from its first that a batch can refer to
PAGE_BYTES = 4096  # parts are multiples of this (ncclP2pPartBounds, src/include/device.h)


@dataclass(slots=True)
class _Tail:
    """The last batch of a channel."""

    sweep: int
    rounds: list[int]
    base: int  # the work at which it begins, in bytes


@dataclass(slots=True)
class _RoundKernel:
    """A kernel that is being filled; ``batches`` and ``work_bytes`` include those of earlier collectives."""

    batches: int
    work_bytes: int
    works: list[P2pWork] = field(default_factory=list)
    of_channel: dict[int, list[list[int]]] = field(default_factory=dict)
    tails: dict[int, _Tail] = field(default_factory=dict)

    def done(self, threads: int) -> ExchangeKernel:
        return ExchangeKernel(
            threads,
            tuple(self.works),
            {channel: tuple(map(tuple, batches)) for channel, batches in sorted(self.of_channel.items())},
        )


def kernels_of_rounds(
    p2p_context: P2pContext, queues: Queues, captured: bool, before: Sequence[tuple[int, int]] = ()
) -> Iterator[ExchangeKernel]:
    """The kernels that send and receive the messages round by round.

    ``captured``: whether a CUDA graph captures the group.

    ``before``: for each kernel of the group's collectives, its batches and the bytes of its works; the last of these
    kernels may have room for messages. BadInput if the works do not fit into the ring of works, or if no kernel can
    hold anything.
    """
    *full, last = before or [(0, 0)]
    return _RoundPlanner(p2p_context, queues, Batches(p2p_context.communicator, captured), full).kernels(
        _RoundKernel(*last)
    )


class _RoundPlanner:
    def __init__(
        self, p2p_context: P2pContext, queues: Queues, room: Batches, before: Sequence[tuple[int, int]]
    ) -> None:
        self.p2p_context, self.queues = p2p_context, queues
        self.data = p2p_context.communicator.release.exchange
        self.room = room
        self.in_ring = sum(self.room.in_ring(*each) for each in before)
        peers = p2p_context.channels
        self.most = self.fewest = peers.per_peer
        while self.fewest * p2p_context.communicator.ranks > peers.channels and self.fewest > 1:
            self.fewest //= 2
        epochs = p2p_context.communicator.environment.number("NCCL_P2P_EPOCH_ENABLE", 1)
        self.sweeps_apart = self.data.sweeps == "apart" and epochs != 0

    def kernels(self, kernel: _RoundKernel) -> Iterator[ExchangeKernel]:
        order, threads = self.p2p_context.order, self.p2p_context.communicator.release.limits.max_threads
        numbers = order.rounds_with(self.queues.peers(sends=True), self.queues.peers(sends=False))
        sweep = start = 0
        while self.queues:
            for place in range(start, len(numbers)):
                number = numbers[place]
                send, receive = self.queues.first(*order.pair(number))
                if send is None and receive is None:
                    continue
                if not self.room.holds(kernel.batches + self.most, kernel.work_bytes + WORK_BYTES):
                    if not kernel.batches:
                        raise BadInput(Batches.TOO_SMALL)
                    self._launch(kernel)
                    yield kernel.done(threads)
                    kernel, start = _RoundKernel(0, 0), place if self.data.resumes else 0
                    break
                self._add(kernel, number, sweep)
                self.queues.take(send, receive)
            else:
                sweep, start = sweep + 1, 0
        self._launch(kernel)
        if kernel.works:
            yield kernel.done(threads)

    def _launch(self, kernel: _RoundKernel) -> None:
        self.in_ring += self.room.in_ring(kernel.batches, kernel.work_bytes)
        self.room.check_ring(self.in_ring)

    def _add(self, kernel: _RoundKernel, number: int, sweep: int) -> None:
        to, whence = self.p2p_context.order.pair(number)
        assert to is not None
        assert whence is not None
        send, receive = self.queues.first(to, whence)
        base = self._first_channel(number)
        sent, received = (self._transfer(message, base) for message in (send, receive))
        work = P2pWork(number, to, whence, base, sent, received)
        parts = max(len(each.channels) for each in (sent, received) if each is not None)
        for part in range(parts):
            self._put(kernel, self._channel(base, part), number, sweep)
        kernel.works.append(work)
        kernel.work_bytes += WORK_BYTES

    def _put(self, kernel: _RoundKernel, channel: int, number: int, sweep: int) -> None:
        """Adds the work to the last batch of a channel, or to a new batch; a batch that reaches too far is extended."""
        here, tail = kernel.work_bytes, kernel.tails.get(channel)
        near = self.data.batches_of_near_rounds
        anew = (
            tail is None
            or len(tail.rounds) == TOGETHER
            or number in tail.rounds
            or (near and any(number // TOGETHER != other // TOGETHER for other in tail.rounds))
            or (self.sweeps_apart and sweep != tail.sweep)
        )
        if anew or tail is None:
            tail = kernel.tails[channel] = _Tail(sweep, [], here)
            kernel.of_channel.setdefault(channel, []).append([])
            kernel.batches += 1
        elif here - tail.base > FARTHEST * WORK_BYTES:
            tail.base = here
            kernel.batches += 1
        tail.rounds.append(number)
        tail.sweep = sweep
        kernel.of_channel[channel][-1].append(len(kernel.works))

    def _first_channel(self, number: int) -> int:
        order, base = self.p2p_context.order, number
        if len(order.ranks_of) > 1:
            group, own = divmod(number, order.group_ranks)
            base = group * ceil_div(order.group_ranks, TOGETHER) + own // TOGETHER
        if self.data.spread == "first_channel":
            base = mirrored(base, self.p2p_context.channels.channels)
        return base & 0xFF

    def _channel(self, base: int, part: int) -> int:
        channels = self.p2p_context.channels.channels
        away = part if self.data.spread == "first_channel" else mirrored(part, channels)
        return (base + away) & (channels - 1)

    def _transfer(self, message: Message | None, base: int) -> Transfer | None:
        if message is None:
            return None
        p2p_context, own = self.p2p_context, message.peer == self.p2p_context.order.rank
        network, simple = p2p_context.by_network(message.peer), p2p_context.channels.chunk_bytes
        has_ll = not own and (not network or p2p_context.channels.ll_over_network)
        threshold = p2p_context.channels.ll_threshold_bytes
        if self.data.ll_bytes_per == "channel_of_peer":
            low_latency = has_ll and message.bytes <= self.most * threshold
            step = p2p_context.channels.ll_chunk_bytes if low_latency else simple
            count = self._count(message.bytes, step)
        else:
            count = self._count(message.bytes, simple)
            low_latency = has_ll and message.bytes <= count * threshold
            step = p2p_context.channels.ll_chunk_bytes if low_latency else simple
        chunk = p2p_context.channels.forced_chunk_bytes
        if not chunk:
            chunk = step
            if network and not low_latency and message.bytes < step:
                chunk //= 4
            elif network and message.bytes < 8 * step:
                chunk //= 2
        return Transfer(
            message,
            message.bytes,
            message.offset_bytes,
            Protocol.LL if low_latency else Protocol.Simple,
            network,
            tuple(self._channel(base, part) for part in range(count)),
            ceil_div(ceil_div(message.bytes, count), PAGE_BYTES) * PAGE_BYTES,
            in_eight_bits(chunk // 2 if low_latency else chunk),
        )

    def _count(self, size: int, step: int) -> int:
        """The number of channels of a message."""
        if size == 0:
            return 1
        across = len(self.p2p_context.order.ranks_of) > 1
        least, most = (step // self.data.least_part_across_nodes, step) if across else (step // 8, step * 32)
        return divided(size, min(self.fewest, int(ceil_div(size, least))), self.most, (least, most))[0]


def divided(size: int, count: int, most: int, part_bytes: tuple[int, int]) -> tuple[int, int]:
    """Divides a message among channels: their number, and the bytes of the part of each.

    The number begins with ``count`` and is doubled while the parts are too large, but does not exceed ``most``.
    """
    least, largest = part_bytes
    part = max(least, int(ceil_div(size, count)))
    while part > largest and count <= most // 2:
        count *= 2
        part = int(ceil_div(size, count))
    return count, part


def in_eight_bits(value: int) -> int:
    """A number rounded as NCCL stores it in 8 bits: the leading bit and three more (u32fp8Encode, bitops.h)."""
    cut = max(value.bit_length() - 4, 0)
    return value >> cut << cut

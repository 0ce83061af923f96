"""Sends and receives up to 2.21: chunks of messages, each on one channel, in works of up to 16.

Source: scheduleP2pTasksToPlan, addP2pToPlan and appendWorkElemP2p, src/enqueue.cc; ncclProxyComputeP2p, src/proxy.cc;
ncclChannelCompute, src/include/channel.h, v2.21.5-1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.base.errors import BadInput
from tuner.base.names import Protocol
from tuner.base.numerics import as_size_t, ceil_div
from tuner.emulator.p2p.peers import TOGETHER
from tuner.emulator.p2p.queues import Queues
from tuner.emulator.p2p.records import Element, ExchangeKernel, Message, P2pContext, Transfer
from tuner.emulator.p2p.rounds import mirrored
from tuner.emulator.rules.schedule.works import Works

WARPS = 20  # of a block of 640 threads
ELEMENTS = 2 * TOGETHER  # of a work: receives on the even places, sends on the odd ones


@dataclass(slots=True)
class _Left:
    """What of a message is not in a kernel yet."""

    message: Message
    chunk_bytes: int  # of its parts, NCCL's recvChunkBytesMax
    chunk: int = 0

    @property
    def done(self) -> bool:
        return self.chunk * self.chunk_bytes >= self.message.bytes and self.chunk > 0


class _Work:
    """A work of a channel: chunks by their places."""

    def __init__(self) -> None:
        self.chunks: dict[int, Transfer] = {}
        self.next = {False: 0, True: 1}  # places, by whether it sends

    def takes(self, transfer: Transfer) -> bool:
        """A connection is used once in a work."""
        sends = transfer.message.sends
        same = (place for place in range(int(sends), self.next[sends], 2))
        return self.next[sends] < ELEMENTS and all(
            self.chunks[place].message.peer != transfer.message.peer for place in same
        )

    def add(self, transfer: Transfer) -> None:
        sends = transfer.message.sends
        self.chunks[self.next[sends]] = transfer
        self.next[sends] += 2

    def elements(self) -> tuple[Element, ...]:
        """The chunks with their warps (finishWorkP2p)."""
        groups, warps = 1 << max(self.chunks).bit_length(), 1
        while warps * groups <= WARPS // 2:
            warps *= 2
        return tuple(
            Element(
                place,
                transfer,
                warps + (place % 2 if warps >= 2 else 0),
                place * WARPS // groups,
                groups,
            )
            for place, transfer in sorted(self.chunks.items())
        )


class _Kernel:
    """A kernel that is being filled, with room for so many works."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.of_channel: dict[int, list[_Work]] = {}

    def add(self, transfer: Transfer, fused: bool) -> None:
        (channel,) = transfer.channels
        works = self.of_channel.setdefault(channel, [])
        if not works or not fused or not works[-1].takes(transfer):
            works.append(_Work())
            self.room -= 1
        works[-1].add(transfer)

    def done(self, threads: int) -> ExchangeKernel:
        batches = {channel: tuple(work.elements() for work in works) for channel, works in self.of_channel.items()}
        return ExchangeKernel(threads, (), dict(sorted(batches.items())))


def kernels(
    p2p_context: P2pContext, queues: Queues, captured: bool, room: int | None = None
) -> Iterator[ExchangeKernel]:
    """The kernels of the messages, in a CUDA graph if ``captured``.

    The first has ``room`` for so many works beside those of collectives, if there are any.
    """
    whole = Works(p2p_context.communicator, captured).left
    return _Planner(p2p_context, queues).kernels(whole, whole if room is None else room)


class _Planner:
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
        kernel = _Kernel(room)
        while self.queues:
            if self._sweep(kernel):
                yield kernel.done(threads)
                if not kernel.of_channel and kernel.room >= whole:
                    raise BadInput(Works.TOO_SMALL)
                kernel, self.fused = _Kernel(whole), False
        if kernel.of_channel:
            yield kernel.done(threads)

    def _sweep(self, kernel: _Kernel) -> bool:
        """Turns to every peer once; whether the kernel is full."""
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
        """The most of a message that is one chunk (calcP2pChunkSize)."""
        step, across = self.p2p_context.channels.chunk_bytes, len(self.p2p_context.order.ranks_of) > 1
        least = step // (self.data.least_part_across_nodes if across else 8)
        most, count = step if across else step * 32, self.fewest
        part = max(least, ceil_div(size, count))
        while part > most and count <= self.most // 2:
            count *= 2
            part = ceil_div(size, count)
        return int(part + least - 1 & -least)  # alignUp takes it for a power of two (sic)

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

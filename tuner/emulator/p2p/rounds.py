"""Sends and receives from 2.22 on: rounds of one send and one receive, in parts on neighbouring channels.

Source: scheduleP2pTasksToPlan, addP2pToPlan and addWorkBatchToPlan, src/enqueue.cc, v2.28.9-1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.base.errors import BadInput
from tuner.base.names import Protocol
from tuner.base.numerics import ceil_div
from tuner.emulator.p2p.peers import TOGETHER
from tuner.emulator.p2p.queues import Queues
from tuner.emulator.p2p.records import ExchangeKernel, Message, P2pContext, Transfer, Work
from tuner.emulator.rules.schedule.batches import Batches

WORK_BYTES = 48  # ncclDevWorkP2p
FARTHEST = 63  # works that a batch reaches from its first
PAGE_BYTES = 4096  # parts are multiples of it (ncclP2pPartBounds, src/include/device.h)


@dataclass(slots=True)
class _Tail:
    """A channel's last batch."""

    sweep: int
    rounds: list[int]
    base: int  # the work that it begins at, in bytes


@dataclass(slots=True)
class _Kernel:
    """A kernel that is being filled; ``batches`` and ``work_bytes`` are with those of collectives before."""

    batches: int
    work_bytes: int
    works: list[Work] = field(default_factory=list)
    of_channel: dict[int, list[list[int]]] = field(default_factory=dict)
    tails: dict[int, _Tail] = field(default_factory=dict)

    def done(self, threads: int) -> ExchangeKernel:
        return ExchangeKernel(
            threads,
            tuple(self.works),
            {channel: tuple(map(tuple, batches)) for channel, batches in sorted(self.of_channel.items())},
        )


def kernels(
    p2p_context: P2pContext, queues: Queues, captured: bool, before: Sequence[tuple[int, int]] = ()
) -> Iterator[ExchangeKernel]:
    """The kernels of the messages, the first of which may hold collectives already; in a CUDA graph if ``captured``.

    ``before``: batches and bytes of works of the kernels of collectives, the last of which may have room. Errors:
    those of :meth:`Batches.check_ring`; BadInput where a kernel holds nothing.
    """
    *full, last = before or [(0, 0)]
    return _Planner(p2p_context, queues, Batches(p2p_context.communicator, captured), full).kernels(_Kernel(*last))


class _Planner:
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

    def kernels(self, kernel: _Kernel) -> Iterator[ExchangeKernel]:
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
                    kernel, start = _Kernel(0, 0), place if self.data.resumes else 0
                    break
                self._add(kernel, number, sweep)
                self.queues.take(send, receive)
            else:
                sweep, start = sweep + 1, 0
        self._launch(kernel)
        if kernel.works:
            yield kernel.done(threads)

    def _launch(self, kernel: _Kernel) -> None:
        self.in_ring += self.room.in_ring(kernel.batches, kernel.work_bytes)
        self.room.check_ring(self.in_ring)

    def _add(self, kernel: _Kernel, number: int, sweep: int) -> None:
        to, whence = self.p2p_context.order.pair(number)
        assert to is not None
        assert whence is not None
        send, receive = self.queues.first(to, whence)
        base = self._first_channel(number)
        sent, received = (self._transfer(message, base) for message in (send, receive))
        work = Work(number, to, whence, base, sent, received)
        parts = max(len(each.channels) for each in (sent, received) if each is not None)
        for part in range(parts):
            self._put(kernel, self._channel(base, part), number, sweep)
        kernel.works.append(work)
        kernel.work_bytes += WORK_BYTES

    def _put(self, kernel: _Kernel, channel: int, number: int, sweep: int) -> None:
        """Adds the work to the last batch of a channel, or to a new one; one that reaches too far is extended."""
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
        """Number of channels of a message."""
        if size == 0:
            return 1
        count: int
        across = len(self.p2p_context.order.ranks_of) > 1
        least, most = (step // self.data.least_part_across_nodes, step) if across else (step // 8, step * 32)
        count = min(self.fewest, ceil_div(size, least))
        part = max(least, ceil_div(size, count))
        while part > most and count <= self.most // 2:
            count *= 2
            part = ceil_div(size, count)
        return count


def mirrored(value: int, power_of_two: int) -> int:
    """The lowest bits of a number, as many as the power of two has, in reverse order (reverseBits)."""
    bits = power_of_two.bit_length() - 1
    return sum(1 << (bits - 1 - bit) for bit in range(bits) if value >> bit & 1)


def in_eight_bits(value: int) -> int:
    """A number as NCCL keeps it in 8 bits: with the leading bit and three more (u32fp8Encode, src/include/bitops.h)."""
    cut = max(value.bit_length() - 4, 0)
    return value >> cut << cut

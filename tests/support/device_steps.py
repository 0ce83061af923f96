"""An execution of NCCL's kernels step by step, on float32 numbers: each rank sends, receives and adds as they do.

It follows src/device (all_reduce.h, reduce_scatter.h, reduce.h, all_gather.h, broadcast.h, prims_*.h; v2.28.9-1,
v2.21.5-1 and v2.19.4-1) line by line, reads the work of a launch and the neighbours of each rank, and uses nothing of
tuner.emulator.steps: what that claims is compared with this.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.emulator.connect.nodes import RankChannel
from tuner.emulator.launches import ChannelShare, Sharing, Work

Numbers = NDArray[Any]
Steps = Iterator[None]


@dataclass
class Wires:
    """What is on its way: messages by channel, sender and receiver; and a log of all that was sent."""

    queues: dict[tuple[int, int, int], deque[Numbers]] = field(default_factory=lambda: defaultdict(deque))
    sent: list[tuple[int, int, int, int]] = field(default_factory=list)  # channel, sender, receiver, elements


@dataclass
class Primitives:
    """The primitives of one block of one rank: whom it receives from and sends to, and its buffers."""

    wires: Wires
    channel: int
    rank: int
    receive_from: list[int]
    send_to: list[int]
    input: Numbers
    output: Numbers
    scale: np.float32 | None  # ncclDevPreMulSum
    slice_per_chunk: int = 1
    step_elements: int = 0  # stepSize * StepPerSlice

    def generic(self, steps: str, source: int, destination: int, count: int) -> Steps:
        """GenericOp, slice by slice: ``steps`` names what is done, as primitives are called: "recvReduceCopySend"."""
        count = max(count, 0)
        per_slice = self.slice_per_chunk
        slice_size = max((count + 16 * per_slice - 1) // (16 * per_slice) * 16, self.step_elements // 32)
        if self.step_elements == 0:  # LL and LL128 have none
            slice_size = count
        offset = 0
        for _ in range(per_slice):
            slice_size = min(slice_size, count - offset)
            yield from self.one_slice(steps, source + offset, destination + offset, slice_size)
            offset += slice_size

    def one_slice(self, steps: str, source: int, destination: int, count: int) -> Steps:
        total = None
        words = steps.lower()
        if "reduce" in words or words in ("send", "copysend"):
            total = self.input[source : source + count]
            if self.scale is not None:
                total = total * self.scale
        if "fromoutput" in words:
            total = self.output[destination : destination + count]
        if words.startswith("recv"):
            for peer in self.receive_from:
                queue = self.wires.queues[self.channel, peer, self.rank]
                while not queue:
                    yield
                peer_data = queue.popleft()
                assert len(peer_data) == count, "sender and receiver disagree about the number of elements"
                total = peer_data if total is None else total + peer_data
        assert total is not None
        if "copy" in words or words == "recv":
            self.output[destination : destination + count] = total
        if "send" in words:
            for peer in self.send_to:
                self.wires.queues[self.channel, self.rank, peer].append(np.array(total))
                self.wires.sent.append((self.channel, self.rank, peer, count))


@dataclass
class Block:
    """One block: the work, its share of it, the rank's place in the channel."""

    work: Work
    share: ChannelShare
    rank: int
    ranks: int
    here: RankChannel
    user_ranks: list[int]  # ring->userRanks: the ring from this rank on
    prims: Callable[[list[int], list[int]], Primitives]

    @property
    def ring_index(self) -> int:
        """ring->index: how far from rank 0."""
        return (self.ranks - self.user_ranks.index(0)) % self.ranks

    def part(self) -> tuple[int, int, int]:
        """ncclCollCbdPart: offset, count, elements of a chunk."""
        return self.share.offset, self.share.count, self.share.chunk

    # --- 2.20 on: each channel has a range ---

    def all_reduce_ring(self) -> Steps:
        grid_offset, channel_count, chunk_count = self.part()
        prims, n = self.prims([self.here.previous], [self.here.next]), self.ranks
        loop_count = n * chunk_count
        for element in range(0, channel_count, loop_count):
            rest = channel_count - element
            if rest < loop_count:
                if self.share.last_chunk is not None:
                    chunk_count = self.share.last_chunk
                else:
                    align = 16 // self.work.dtype.size_bytes
                    chunk_count = -(-rest // n)
                    chunk_count = (chunk_count + align - 1) // align * align
            yield from self.twice_around(
                prims,
                lambda chunk, size=chunk_count, start=grid_offset + element: start + chunk * size,
                lambda chunk, size=chunk_count, rest=rest: min(size, rest - chunk * size),
            )

    def twice_around(self, prims: Primitives, at: Callable[[int], int], elements: Callable[[int], int]) -> Steps:
        n, index = self.ranks, self.ring_index
        chunk = (index + n - 1) % n
        yield from prims.generic("send", at(chunk), at(chunk), elements(chunk))
        for j in range(2, n):
            chunk = (index + n - j) % n
            yield from prims.generic("recvReduceSend", at(chunk), at(chunk), elements(chunk))
        yield from prims.generic("recvReduceCopySend", at(index), at(index), elements(index))
        for j in range(1, n - 1):
            chunk = (index + n - j) % n
            yield from prims.generic("recvCopySend", at(chunk), at(chunk), elements(chunk))
        chunk = (index + 1) % n
        yield from prims.generic("recv", at(chunk), at(chunk), elements(chunk))

    def in_loops(self, once: Callable[[int, int], Steps]) -> Steps:
        """The loops of a channel that takes one chunk each time: of its range, or in turns."""
        if self.work.sharing is Sharing.ranges:
            offset, count, chunk = self.part()
            for element in range(0, count, chunk):
                yield from once(offset + element, min(chunk, count - element))
            return
        size, channels = self.work.count, len(self.work.shares)
        for grid in range(0, size, channels * self.share.chunk):
            chunk = self.real_chunk(size - grid, channels)
            at = grid + self.share.turn * chunk
            yield from once(at, min(chunk, size - at))

    def reduce_scatter_ring(self) -> Steps:
        prims, n = self.prims([self.here.previous], [self.here.next]), self.ranks

        def once(at: int, elements: int) -> Steps:
            def offset(place: int) -> int:
                return at + self.user_ranks[place] * self.work.count

            yield from prims.generic("send", offset(n - 1), 0, elements)
            for j in range(2, n):
                yield from prims.generic("recvReduceSend", offset(n - j), 0, elements)
            yield from prims.generic("recvReduceCopy", offset(0), at, elements)

        yield from self.in_loops(once)

    def reduce_ring(self) -> Steps:
        prims, root = self.prims([self.here.previous], [self.here.next]), self.work.root
        step = "recvReduceCopy" if self.rank == root else "recvReduceSend"
        if self.user_ranks[self.ranks - 1] == root:
            step = "send"
        yield from self.in_loops(lambda at, elements: prims.generic(step, at, at, elements))

    def all_gather_ring(self) -> Steps:
        prims, n = self.prims([self.here.previous], [self.here.next]), self.ranks

        def once(at: int, elements: int) -> Steps:
            def offset(place: int) -> int:
                return at + self.user_ranks[place] * self.work.count

            yield from prims.generic("copySend", at, offset(0), elements)
            for j in range(1, n - 1):
                yield from prims.generic("recvCopySend", 0, offset(n - j), elements)
            yield from prims.generic("recv", 0, offset(1), elements)

        yield from self.in_loops(once)

    def broadcast_ring(self) -> Steps:
        prims, root = self.prims([self.here.previous], [self.here.next]), self.work.root
        step = "copySend" if self.rank == root else "recvCopySend"
        if self.user_ranks[1] == root:
            step = "recv"
        yield from self.in_loops(lambda at, elements: prims.generic(step, at, at, elements))

    def tree_loops(self) -> Iterator[tuple[int, int]]:
        if self.work.sharing is Sharing.ranges:
            offset, count, chunk = self.part()
            for element in range(0, count, chunk):
                yield offset + element, min(chunk, count - element)
            return
        size, channels, chunk = self.work.count, len(self.work.shares), self.share.chunk
        loop_size = channels * chunk
        if loop_size > size:
            threads, bytes_ = self.work.warps * 32, self.work.dtype.size_bytes
            least = {
                Protocol.Simple: (threads - 64) * 8 * (8 // bytes_),
                Protocol.LL: threads * (8 // bytes_),
                Protocol.LL128: threads * (60 // bytes_) // 8,
            }[self.work.protocol]
            chunk = -(-size // (channels * least)) * least
        for grid in range(0, size, loop_size):
            at = grid + self.share.turn * chunk
            yield at, min(chunk, size - at)

    def tree_up(self) -> Steps:
        """The root's one pair of primitives, or the first group of threads of the others (runTreeSplit)."""
        up, down = self.here.tree.parent, list(self.here.tree.children)
        if up is None:
            prims, step = self.prims(down, down), "recvReduceCopySend"
        else:
            prims, step = self.prims(down, [up]), "recvReduceSend" if down else "send"
        for at, elements in self.tree_loops():
            yield from prims.generic(step, at, at, elements)

    def tree_down(self) -> Steps:
        """The second group of threads, which the root does not have."""
        up, down = self.here.tree.parent, list(self.here.tree.children)
        if up is None:
            return
        prims = self.prims([up], down)
        for at, elements in self.tree_loops():
            yield from prims.generic("recvCopySend" if down else "recv", at, at, elements)

    # --- up to 2.19: channels take turns ---

    def all_reduce_ring_in_turns(self) -> Steps:
        prims, n, bid = self.prims([self.here.previous], [self.here.next]), self.ranks, self.share.turn
        channels, size = len(self.work.shares), self.work.count
        for grid in range(0, size, channels * n * self.share.chunk):
            real = self.real_chunk(size - grid, channels * n)

            def at(chunk: int, grid: int = grid, real: int = real) -> int:
                if self.work.protocol is Protocol.Simple:
                    return grid + bid * n * real + chunk * real
                return grid + (chunk * channels + bid) * real

            yield from self.twice_around(prims, at, lambda chunk, at=at, real=real: min(real, size - at(chunk)))

    def real_chunk(self, left: int, sharers: int) -> int:
        threads, bytes_, chunk = self.work.warps * 32, self.work.dtype.size_bytes, self.share.chunk
        all_reduce = self.work.collective is Collective.AllReduce
        if self.work.protocol is Protocol.Simple:
            real = min(chunk, -(-left // sharers))
            align = (threads - 32) * 8 // bytes_
            return (real + align - 1) // align * align
        if self.work.protocol is Protocol.LL:
            if not all_reduce:
                assert self.share.last_chunk is not None
                return self.share.last_chunk if left < sharers * chunk else chunk
            least = threads * (8 // bytes_)
        else:
            least = threads * (60 // bytes_)
            if self.work.collective not in (Collective.Reduce, Collective.Broadcast):
                least //= 2
        return min(chunk, -(-left // (sharers * least)) * least)

    def groups(self) -> list[Steps]:
        """The groups of threads of this block."""
        if self.work.algorithm is Algorithm.Tree:
            return [self.tree_up(), self.tree_down()]
        if self.work.collective is Collective.AllReduce:
            ranges = self.work.sharing is Sharing.ranges
            return [self.all_reduce_ring() if ranges else self.all_reduce_ring_in_turns()]
        return [
            {
                Collective.ReduceScatter: self.reduce_scatter_ring,
                Collective.Reduce: self.reduce_ring,
                Collective.AllGather: self.all_gather_ring,
                Collective.Broadcast: self.broadcast_ring,
            }[self.work.collective]()
        ]


def execute(
    work: Work, channels: list[tuple[RankChannel, ...]], inputs: list[Numbers], scale: np.float32 | None = None
) -> tuple[list[Numbers], Wires]:
    """Runs a work on the inputs of all ranks: their outputs, and what was sent. ``channels`` are by rank."""
    ranks, wires = len(inputs), Wires()
    whole = work.count * (ranks if work.collective is Collective.AllGather else 1)
    outputs = [np.full(whole, np.nan, inputs[0].dtype) for _ in range(ranks)]
    running: list[Steps] = []
    for share in work.shares:
        for rank in range(ranks):
            ring = [rank]
            while len(ring) < ranks:
                ring.append(channels[ring[-1]][share.channel].next)

            def prims(down: list[int], up: list[int], rank: int = rank, share: ChannelShare = share) -> Primitives:
                own = Primitives(wires, share.channel, rank, down, up, inputs[rank], outputs[rank], scale)
                if work.protocol is Protocol.Simple:
                    proxy = share.proxy
                    own.slice_per_chunk = proxy.chunk_steps // proxy.slice_steps
                    own.step_elements = proxy.step_bytes // work.dtype.size_bytes
                return own

            running += Block(work, share, rank, ranks, channels[rank][share.channel], ring, prims).groups()
    while running:
        before, progress = len(running), sum(map(len, wires.queues.values())) + len(wires.sent)
        running = [steps for steps in running if _runs_on(steps)]
        stuck = before == len(running) and progress == sum(map(len, wires.queues.values())) + len(wires.sent)
        assert not stuck, "every block waits for another"
    assert not any(wires.queues.values()), "something was sent that nobody received"
    return outputs, wires


def _runs_on(steps: Steps) -> bool:
    """Runs until a message is missing; whether the block has not come to its end."""
    for _ in steps:
        return True
    return False

"""The elements that a channel's block processes, and in which loops, as the device code computes them from its work.

A loop processes one chunk of each of ``parts`` parts: one part per rank in a ring's AllReduce, else a single part.
Source: ncclCollCbdPart, src/include/device.h, and src/device/*.h, v2.28.9-1; src/device/*.h, v2.21.5-1 and v2.19.4-1.
"""

from collections.abc import Iterator

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import IntArray, ceil_div
from tuner.emulator.launches import ChannelShare, Sharing, Work

WARP = 32
LAST_CHUNK_ALIGNMENT_BYTES = 16
GRAIN_BYTES = {Protocol.LL: 8, Protocol.LL128: 60}  # calcBytePerGrain: the bytes that a thread moves at once
# 60 bytes per thread are more than LL128 needs for its smallest chunk (sic): it takes half of them, and an eighth in
# trees.
LL128_SHARE = {Algorithm.Ring: 2, Algorithm.Tree: 8}
HALVED = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)


@dataclass(frozen=True, slots=True)
class Loops:
    """Equal loops of one channel; all numbers count elements.

    Part p of loop i begins at ``first + i * step + p * part_step`` and has ``chunk`` elements, fewer before ``end``.
    """

    first: int
    step: int
    times: int
    parts: int
    part_step: int
    chunk: int
    end: int

    def chunks(self, part: int) -> tuple[IntArray, IntArray]:
        """First elements of a part's chunks, and the chunks' numbers of elements, which may be 0; both [loop]."""
        first = self.first + part * self.part_step + self.step * np.arange(self.times, dtype=np.int64)
        return first, np.minimum(np.maximum(self.end - first, 0), self.chunk)  # np.clip takes three times as long


def loops(work: Work, share: ChannelShare, ranks: int) -> Iterator[Loops]:
    """The loops of one channel, in their order."""
    parts = ranks if work.algorithm is Algorithm.Ring and work.collective is Collective.AllReduce else 1
    if work.sharing is Sharing.ranges:
        yield from _over_range(work, share, parts, LAST_CHUNK_ALIGNMENT_BYTES)
    elif work.algorithm is Algorithm.Tree:
        yield from _tree_in_turns(work, share)
    else:
        yield from _ring_in_turns(work, share, parts)


def loops_of_heads(work: Work, share: ChannelShare, heads: int, count: int) -> Iterator[Loops]:
    """The loops of a channel whose chunks go to the switch or the network; a loop has one chunk for each head, or a
    single one.

    ``count``: the elements that all channels together work on if they take turns; for a rail, those of all its heads.
    Source: RunWorkColl of NVLS, NVLSTree, CollNetDirect and CollNetChain, src/device/*.h, v2.28.9-1.
    """
    if work.sharing is Sharing.ranges:
        of_switch = work.algorithm is Algorithm.NVLS
        yield from _over_range(
            work, share, heads, work.nvls_alignment_bytes if of_switch else LAST_CHUNK_ALIGNMENT_BYTES
        )
        return
    at_once = len(work.shares) * heads * share.chunk
    first = share.turn * heads * share.chunk
    yield Loops(first, at_once, int(ceil_div(count, at_once)), heads, share.chunk, share.chunk, count)


def _over_range(work: Work, share: ChannelShare, parts: int, alignment_bytes: int) -> Iterator[Loops]:
    end = share.offset + share.count
    if parts == 1:
        yield Loops(share.offset, share.chunk, ceil_div(share.count, share.chunk), 1, 0, share.chunk, end)
        return
    whole, rest = divmod(share.count, parts * share.chunk)
    if whole:
        yield Loops(share.offset, parts * share.chunk, whole, parts, share.chunk, share.chunk, end)
    if rest:
        chunk = share.last_chunk
        if chunk is None:
            chunk = _rounded_up(ceil_div(rest, parts), alignment_bytes // work.dtype.size_bytes)
        yield Loops(end - rest, parts * share.chunk, 1, parts, chunk, chunk, end)


def _ring_in_turns(work: Work, share: ChannelShare, parts: int) -> Iterator[Loops]:
    """All channels share the count; the chunks of the last loop are shorter."""
    channels = len(work.shares)
    at_once = channels * parts * share.chunk
    whole, rest = divmod(work.count, at_once)
    for first, times, left in ((0, whole, work.count), (whole * at_once, bool(rest), rest)):
        if not times:
            continue
        chunk = _chunk_in_turns(work, share, channels * parts, left)
        if parts > 1 and work.protocol is Protocol.Simple:  # the chunks of a channel are adjacent
            own, part_step = share.turn * parts * chunk, chunk
        else:
            own, part_step = share.turn * chunk, channels * chunk
        yield Loops(first + own, at_once, int(times), parts, part_step, chunk, work.count)


def _chunk_in_turns(work: Work, share: ChannelShare, sharers: int, left: int) -> int:
    """The elements of a chunk if ``left`` elements are left for ``sharers`` chunks."""
    size, threads = work.dtype.size_bytes, work.warps * WARP
    if work.protocol is Protocol.Simple:
        return _rounded_up(min(share.chunk, ceil_div(left, sharers)), (threads - WARP) * 8 // size)
    if work.protocol is Protocol.LL and work.collective is not Collective.AllReduce:
        if left >= share.chunk * sharers:
            return share.chunk
        return share.chunk if share.last_chunk is None else share.last_chunk
    least = threads * (GRAIN_BYTES[work.protocol] // size)
    if work.protocol is Protocol.LL128 and work.collective in HALVED:
        least //= LL128_SHARE[Algorithm.Ring]
    return min(share.chunk, int(ceil_div(left, sharers * least)) * least)


def _tree_in_turns(work: Work, share: ChannelShare) -> Iterator[Loops]:
    size, threads, channels = work.dtype.size_bytes, work.warps * WARP, len(work.shares)
    chunk = share.chunk
    at_once = channels * chunk
    if at_once > work.count:
        if work.protocol is Protocol.Simple:
            least = (threads - 2 * WARP) * 8 * (8 // size)
        else:
            least = threads * (GRAIN_BYTES[work.protocol] // size)
            least //= LL128_SHARE[Algorithm.Tree] if work.protocol is Protocol.LL128 else 1
        chunk = ceil_div(work.count, channels * least) * least
    yield Loops(share.turn * chunk, at_once, ceil_div(work.count, at_once), 1, 0, chunk, work.count)


def _rounded_up(value: int, step: int) -> int:
    return int(ceil_div(value, step)) * step

"""From the pick to the launched grid and block.

Source: topoGetAlgoInfo and scheduleCollTasksToPlan, src/enqueue.cc, v2.28.9-1; one operation in its group.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tuner.cfloat import IntArray, SizeArray, as_size_t, ceil_div, int32
from tuner.communicator import Communicator
from tuner.model import Tables
from tuner.names import Algorithm, Protocol
from tuner.registry import Registry
from tuner.rules.request import Request

Cell: TypeAlias = tuple[Algorithm, Protocol]
LaunchRule = Callable[[Communicator, Tables, Request, Cell, SizeArray], tuple[IntArray, IntArray]]
NVLS_BOUND_RULES: Registry[Callable[[Communicator, Cell], int]] = Registry()
TRAFFIC_RULES: Registry[Callable[[SizeArray, int, int], SizeArray]] = Registry()
RULES: Registry[LaunchRule] = Registry()

NVLS = (Algorithm.NVLS, Algorithm.NVLSTree)


@RULES
def shrink_then_cells(
    communicator: Communicator, tables: Tables, request: Request, cell: Cell, nbytes: SizeArray
) -> tuple[IntArray, IntArray]:
    """Channels and threads by size: a bound that shrinks with the size, then cells dealt out to the channels."""
    bound, threads = _bounds(communicator, tables, cell, nbytes)
    return _dealt_channels(communicator, request, cell, nbytes, bound), threads


def _bounds(
    communicator: Communicator, tables: Tables, cell: Cell, nbytes: SizeArray
) -> tuple[IntArray, IntArray]:
    """The most channels the operation may use, and the threads of its blocks."""
    threads = int(tables.max_threads[cell])
    threshold = int32(int(tables.thread_thresholds_bytes[cell]))
    (nvls_rule,) = communicator.release.rules("nvls_bound")
    if cell[0] in NVLS:
        bound = np.full(nbytes.shape, NVLS_BOUND_RULES[nvls_rule](communicator, cell), np.int64)
        shrunk = np.full(nbytes.shape, threads, np.int64)
    else:
        bound = _fewer_channels(nbytes, communicator.channels, threads, threshold)
        shrunk = _fewer_threads(nbytes, bound, threads, threshold)
    return bound, _block_threads(communicator, cell, shrunk)


@NVLS_BOUND_RULES
def fewer_between_nodes(communicator: Communicator, cell: Cell) -> int:
    if cell[0] is Algorithm.NVLS and communicator.nodes > 1:
        return min(communicator.nvls_channels, communicator.channels)
    return communicator.nvls_channels


@NVLS_BOUND_RULES
def nvls_channels_only(communicator: Communicator, cell: Cell) -> int:
    return communicator.nvls_channels


def _fewer_channels(nbytes: SizeArray, most: int, threads: int, threshold: int) -> IntArray:
    """The most channels that all threads can be kept busy on, at least one.

    NCCL counts down while size < channels * threads * threshold, an int product that wraps for thousands of ranks.
    """
    counts = np.arange(most, 1, -1)
    needs = np.array([as_size_t(int32(int32(int(n) * threads) * threshold)) for n in counts], np.uint64)
    # Counting down stops at the first need that the size meets: so the running minimum is what has to be met.
    reached = np.minimum.accumulate(needs)[::-1]
    channels: IntArray = 1 + np.searchsorted(reached, nbytes, side="right")
    return channels


def _fewer_threads(nbytes: SizeArray, channels: IntArray, threads: int, threshold: int) -> IntArray:
    """Threads halve (as long as whole warps of four remain) while they are too many for the size."""
    result = np.full(nbytes.shape, threads, np.int64)
    while threads > 0 and threads % 128 == 0:
        alone = np.uint64(as_size_t(int32(int32(threads) * threshold)))
        # With several channels the size already fills all threads, so only one channel can still shrink.
        halve = (result == threads) & (channels == 1) & (nbytes < alone)
        threads //= 2
        result[halve] = threads
    return result


def _block_threads(communicator: Communicator, cell: Cell, threads: IntArray) -> IntArray:
    limit = communicator.release.limit
    warp = limit("warp_size")
    if cell[0] in (Algorithm.Tree, Algorithm.PAT):
        return np.full(threads.shape, limit("max_threads"), np.int64)
    extra = warp if cell == (Algorithm.Ring, Protocol.Simple) else 0  # one more warp synchronises
    warps = np.maximum((threads + extra) // warp, 3)
    blocks: IntArray = np.maximum(warps * warp, limit("min_block_threads"))
    return blocks


def _dealt_channels(
    communicator: Communicator, request: Request, cell: Cell, nbytes: SizeArray, bound: IntArray
) -> IntArray:
    """Channels that get work: the buffer is cut into cells of a least traffic, dealt out evenly, the rest last."""
    limit = communicator.release.limit
    most = communicator.nvls_channels if cell[0] in NVLS else communicator.channels
    least = limit("min_traffic_per_channel_bytes")
    per_byte = request.traffic_per_byte(communicator.ranks)
    # All of this is size_t in NCCL, so unsigned here.
    count_bytes = np.maximum(nbytes // np.uint64(communicator.ranks if request.spreads else 1), np.uint64(1))
    per_byte *= limit("ll_traffic") if cell[1] is Protocol.LL else 1

    align = limit("cell_alignment_bytes")
    (rule,) = communicator.release.rules("traffic_per_channel")
    traffic = np.maximum(count_bytes * np.uint64(per_byte), np.uint64(least))
    per_channel = TRAFFIC_RULES[rule](traffic // np.minimum(bound, most).astype(np.uint64), least, align)
    cell_bytes = ceil_div(ceil_div(least, per_byte), align) * align
    cells = ceil_div(count_bytes, cell_bytes)
    first = np.minimum(cells, ceil_div(per_channel, cell_bytes * per_byte))
    used = 1 + ceil_div(cells - first, first)
    # What would need more channels than there are is spread over all of them.
    dealt: IntArray = np.minimum(used, np.uint64(most)).astype(np.int64)
    return dealt


@TRAFFIC_RULES
def at_least_the_minimum(per_channel: SizeArray, least: int, align: int) -> SizeArray:
    return np.maximum(per_channel, np.uint64(least))


@TRAFFIC_RULES
def rounded_up(per_channel: SizeArray, least: int, align: int) -> SizeArray:
    rounded: SizeArray = ceil_div(per_channel, align) * np.uint64(align)
    return rounded

"""From the pick to the launched grid and block, of one operation in its group.

Source: topoGetAlgoInfo and scheduleCollTasksToPlan, src/enqueue.cc, v2.28.9-1.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.base import trace
from tuner.base.names import AlgoProto, Algorithm, Collective, Protocol
from tuner.base.numerics import IntArray, SizeArray, as_size_t, ceil_div, int32
from tuner.base.registry import Registry
from tuner.emulator.communicator import Communicator
from tuner.emulator.model import Tables
from tuner.emulator.request import Request
from tuner.emulator.rules import registered

LaunchRule = Callable[[Communicator, Tables, Request, AlgoProto, SizeArray], tuple[IntArray, IntArray]]
NVLS_KIND_RULES: Registry[Callable[[Communicator, Algorithm], bool]] = Registry()
NVLS_BOUND_RULES: Registry[Callable[[Communicator, AlgoProto], int]] = Registry()
DealRule = Callable[[SizeArray, SizeArray, int, int, int, int], IntArray]
DEAL_RULES: Registry[DealRule] = Registry()
TRAFFIC_RULES: Registry[Callable[[SizeArray, int, int], SizeArray]] = Registry()
BLOCK_RULES: Registry[Callable[[Communicator, AlgoProto, IntArray], IntArray]] = Registry()
PRODUCT_RULES: Registry[Callable[[int, int, int], list[int]]] = Registry()
BOUND_CHANNELS_RULES: Registry[Callable[[Communicator], int]] = Registry()
RULES: Registry[LaunchRule] = Registry()

NVLS = (Algorithm.NVLS, Algorithm.NVLSTree)
COLLNET = (Algorithm.CollNetDirect, Algorithm.CollNetChain)


@RULES
def shrink_then_cells(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: AlgoProto, nbytes: SizeArray
) -> tuple[IntArray, IntArray]:
    """Channels and threads by size: a bound that shrinks with the size, then cells dealt out to the channels."""
    bound, threads = _bounds(communicator, tables, request, algo_proto, nbytes, communicator.channels)
    return _dealt_channels(communicator, request, algo_proto, nbytes, bound), threads


@RULES
def shrink_within_ctas_then_cells(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: AlgoProto, nbytes: SizeArray
) -> tuple[IntArray, IntArray]:
    """The fewest and the most blocks of a collective hold for the bound, before cells are dealt out to the channels.

    Source: src/enqueue/enqueue.cc, v2.31.2-1.
    """
    bound, threads = _bounds(communicator, tables, request, algo_proto, nbytes, communicator.channels)
    within = np.clip(bound, *ctas(communicator, request))
    trace.step("channels", "", shrink_within_ctas_then_cells, bound, within)
    return _dealt_channels(communicator, request, algo_proto, nbytes, within), threads


@RULES
def shrink_then_bytes(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: AlgoProto, nbytes: SizeArray
) -> tuple[IntArray, IntArray]:
    """Bytes are cut into equal parts, one a channel of the bound, each rounded up to what a block moves at once.

    Source: addCBDCollToPlan and computeCollAlignCount, src/enqueue.cc, v2.21.5-1.
    """
    bound, threads = _bounds(communicator, tables, request, algo_proto, nbytes, communicator.coll_channels)
    if like_collnet(communicator, algo_proto):
        return bound, threads
    limit = communicator.release.limit
    type_bytes = request.device_dtype.size_bytes
    work_bytes = nbytes // np.uint64(request.parts(communicator.ranks))
    part_bytes = ceil_div(ceil_div(work_bytes, bound.astype(np.uint64)), limit("part_alignment_bytes"))
    part_bytes *= np.uint64(limit("part_alignment_bytes"))
    elements = np.asarray(elements_at_once(communicator, request, algo_proto, threads)).astype(np.uint64)
    part = ceil_div(ceil_div(part_bytes, np.uint64(type_bytes)), elements) * elements
    part = np.maximum(part, np.uint64(1))  # less than an element a rank, which no call has, is nobody's part
    channels: IntArray = ceil_div(work_bytes // np.uint64(type_bytes), part).astype(np.int64)
    trace.step("channels", "", shrink_then_bytes, bound, channels)
    return channels, threads


def elements_at_once(communicator: Communicator, request: Request, algo_proto: AlgoProto, threads: Any) -> Any:
    """What a block of so many threads (an int or an array of them) moves at once."""
    limit, type_bytes = communicator.release.limit, request.device_dtype.size_bytes
    if algo_proto[1] is Protocol.Simple:
        return limit("simple_alignment_bytes") // type_bytes
    if algo_proto[1] is Protocol.LL128:
        return limit("ll128_alignment_bytes_per_warp") // type_bytes * (threads // limit("warp_size"))
    return limit("ll_alignment_bytes_per_thread") // type_bytes * threads


@RULES
def shrink_only(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: AlgoProto, nbytes: SizeArray
) -> tuple[IntArray, IntArray]:
    """All channels of the bound. Source: getAlgoInfo and addCollToPlan, src/enqueue.cc, v2.18.3-1."""
    return _bounds(communicator, tables, request, algo_proto, nbytes, communicator.coll_channels)


def ctas(communicator: Communicator, request: Request) -> tuple[int, int]:
    """The fewest and the most blocks of a call, which looks at the environment again; Broadcast does not (sic).

    A least number above the most is 1 there, and not the most.
    """
    least, most = communicator.ctas
    if request.collective is not Collective.Broadcast:
        asked = communicator.environment.optional("NCCL_MIN_CTAS")
        if asked is not None and 1 <= asked <= communicator.release.limit("max_channels"):
            least = asked if asked <= most else 1
    return least, most


def bound(communicator: Communicator, tables: Tables, request: Request, algo_proto: AlgoProto, nbytes: int) -> int:
    """The most channels one operation may use."""
    return int(bounds(communicator, tables, request, algo_proto, np.array([nbytes], np.uint64))[0][0])


def bounds(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: AlgoProto, nbytes: SizeArray
) -> tuple[IntArray, IntArray]:
    """:func:`bound` of each size, and the threads of its blocks."""
    (rule,) = communicator.release.rules("bound_channels")
    most = BOUND_CHANNELS_RULES[rule](communicator)
    return _bounds(communicator, tables, request, algo_proto, nbytes, most)


@BOUND_CHANNELS_RULES
def all_channels(communicator: Communicator) -> int:
    return communicator.channels


@BOUND_CHANNELS_RULES
def coll_channels_only(communicator: Communicator) -> int:
    return communicator.coll_channels


def _bounds(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: AlgoProto, nbytes: SizeArray, most: int
) -> tuple[IntArray, IntArray]:
    """The most channels the operation may use, and the threads of its blocks."""
    bound = plain_bound(communicator, tables, algo_proto, nbytes, most)
    trace.step("channels", "", plain_bound, most, bound)
    threads = int(tables.max_threads[algo_proto])
    if like_nvls(communicator, algo_proto) or algo_proto[0] is Algorithm.CollNetDirect:
        shrunk = np.full(nbytes.shape, threads, np.int64)
    else:
        shrunk = fewer_threads(
            nbytes,
            bound,
            threads,
            int32(int(tables.thread_thresholds_bytes[algo_proto])),
            _products(communicator, tables, algo_proto, most)[-1],
        )
    trace.step("threads", "", fewer_threads, threads, shrunk)
    if registered.knows(communicator, request):
        for name in communicator.release.rules("registered"):
            before, bound = bound, registered.RULES[name](communicator, tables, request, algo_proto, bound)
            trace.step("channels", "", registered.RULES[name], before, bound)
    (block_rule,) = communicator.release.rules("block")
    block = BLOCK_RULES[block_rule](communicator, algo_proto, shrunk)
    trace.step("threads", "", BLOCK_RULES[block_rule], shrunk, block)
    return bound, block


def plain_bound(
    communicator: Communicator, tables: Tables, algo_proto: AlgoProto, nbytes: SizeArray, most: int
) -> IntArray:
    """The most channels the operation may use, whatever its buffers."""
    if like_nvls(communicator, algo_proto):
        (nvls_rule,) = communicator.release.rules("nvls_bound")
        return np.full(nbytes.shape, NVLS_BOUND_RULES[nvls_rule](communicator, algo_proto), np.int64)
    threads = int(tables.max_threads[algo_proto])
    threshold = int32(int(tables.thread_thresholds_bytes[algo_proto]))
    if algo_proto[0] is Algorithm.CollNetDirect:
        assert communicator.collnet is not None
        return _fewer_direct_channels(nbytes, most, threads * communicator.collnet.direct_heads, threshold)
    return _fewer_channels(nbytes, _products(communicator, tables, algo_proto, most))


@NVLS_BOUND_RULES
def fewer_between_nodes(communicator: Communicator, algo_proto: AlgoProto) -> int:
    if algo_proto[0] is Algorithm.NVLS and communicator.nodes > 1:
        return min(communicator.nvls_channels, communicator.channels)
    return communicator.nvls_channels


@NVLS_BOUND_RULES
def fewer_between_nodes_and_for_pat(communicator: Communicator, algo_proto: AlgoProto) -> int:
    if algo_proto[0] is Algorithm.PAT:
        return min(communicator.nvls_channels, communicator.channels)
    return fewer_between_nodes(communicator, algo_proto)


@NVLS_BOUND_RULES
def nvls_channels_only(communicator: Communicator, algo_proto: AlgoProto) -> int:
    return communicator.nvls_channels


@NVLS_KIND_RULES
def nvls_algorithms(communicator: Communicator, algorithm: Algorithm) -> bool:
    return algorithm in NVLS


@NVLS_KIND_RULES
def nvls_algorithms_and_pat_of_several_ranks(communicator: Communicator, algorithm: Algorithm) -> bool:
    return algorithm in NVLS or (algorithm is Algorithm.PAT and communicator.ranks > communicator.nodes)


def like_nvls(communicator: Communicator, algo_proto: AlgoProto) -> bool:
    """Whether the operation runs on NVLS's channels."""
    (rule,) = communicator.release.rules("nvls_kind")
    return NVLS_KIND_RULES[rule](communicator, algo_proto[0])


def like_collnet(communicator: Communicator, algo_proto: AlgoProto) -> bool:
    """Whether the network takes part, so that every channel of the bound is used."""
    return algo_proto[0] in COLLNET or (algo_proto[0] is Algorithm.NVLS and communicator.nodes > 1)


def _products(communicator: Communicator, tables: Tables, algo_proto: AlgoProto, most: int) -> list[int]:
    """channels * threads * threshold, from the most channels down to one: an int, which wraps for thousands of ranks.

    To overflow is undefined in C, so what becomes of it is the compiler's choice, and libnccl's alone to tell.
    """
    (rule,) = communicator.release.rules("product")
    return PRODUCT_RULES[rule](
        most, int(tables.max_threads[algo_proto]), int32(int(tables.thread_thresholds_bytes[algo_proto]))
    )


@PRODUCT_RULES
def wraps_each_time(most: int, threads: int, threshold: int) -> list[int]:
    return [int32(channels * threads * threshold) for channels in range(most, 0, -1)]


@PRODUCT_RULES
def wraps_twice(most: int, threads: int, threshold: int) -> list[int]:
    """The first two wrap; the others count down from the second in 64 bits, up to the threads' own, which is anew."""
    return [*wraps_twice_and_for_threads(most, threads, threshold)[:-1], int32(threads * threshold)]


@PRODUCT_RULES
def wraps_twice_and_for_threads(most: int, threads: int, threshold: int) -> list[int]:
    """The same, and the threads go by what was counted down to first."""
    step, wrapped = int32(threads * threshold), wraps_each_time(most, threads, threshold)
    return [*wrapped[:1], *(wrapped[1] - further * step for further in range(most - 1))]


def _fewer_channels(nbytes: SizeArray, products: list[int]) -> IntArray:
    """The most channels that all threads can be kept busy on, at least one.

    NCCL counts down while size < channels * threads * threshold.
    """
    needs = np.array([as_size_t(product) for product in products[:-1]], np.uint64)
    # Counting down stops at the first need that the size meets: so the running minimum is what has to be met.
    reached = np.minimum.accumulate(needs)[::-1]
    channels: IntArray = 1 + np.searchsorted(reached, nbytes, side="right")
    return channels


def _fewer_direct_channels(nbytes: SizeArray, most: int, threads: int, threshold: int) -> IntArray:
    """Channels of CollNetDirect: counted down to 16, 8, 4, 2, 1; half way to each, the threshold halves too.

    ``threads`` are those of all heads.
    """
    counts: list[int] = []
    needs: list[int] = []
    for goal in (16, 8, 4, 2, 1):
        for count in range(min(most, counts[-1] - 1 if counts else most), goal, -1):
            counts.append(count)
            needs.append(count * threads * threshold)
            threshold //= 2 if count == goal + goal // 2 else 1
    unmet = len(needs) - np.searchsorted(np.array(needs[::-1], np.uint64), nbytes, side="right")
    channels: IntArray = np.array([*counts, 1], np.int64)[unmet]
    return channels


def fewer_threads(nbytes: SizeArray, channels: IntArray, threads: int, threshold: int, alone: int) -> IntArray:
    """Threads halve (as long as whole warps of four remain) while they are too many for the size.

    ``alone`` is the product of one channel with all threads.
    """
    result = np.full(nbytes.shape, threads, np.int64)
    while threads > 0 and threads % 128 == 0:
        # With several channels the size already fills all threads, so only one channel can still shrink.
        halve = (result == threads) & (channels == 1) & (nbytes < np.uint64(as_size_t(alone)))
        threads //= 2
        alone = int32(threads * threshold)
        result[halve] = threads
    return result


@BLOCK_RULES
def whole_for_trees(communicator: Communicator, algo_proto: AlgoProto, threads: IntArray) -> IntArray:
    """Threads of the block: the most for trees and PAT; Ring/Simple adds a warp to synchronise."""
    if algo_proto[0] in (Algorithm.Tree, Algorithm.PAT):
        return np.full(threads.shape, communicator.release.limit("max_threads"), np.int64)
    return _block_threads(communicator, threads, 1 if algo_proto == (Algorithm.Ring, Protocol.Simple) else 0)


@BLOCK_RULES
def more_warps_for_simple(communicator: Communicator, algo_proto: AlgoProto, threads: IntArray) -> IntArray:
    """Threads of the block: Simple adds warps, one to a ring to synchronise, four to the two halves of a tree."""
    more = {(Algorithm.Ring, Protocol.Simple): 1, (Algorithm.Tree, Protocol.Simple): 4}
    return _block_threads(communicator, threads, more.get(algo_proto, 0))


def _block_threads(communicator: Communicator, threads: IntArray, more_warps: int) -> IntArray:
    limit = communicator.release.limit
    warp = limit("warp_size")
    warps = np.maximum(threads // warp + more_warps, 3)
    blocks: IntArray = np.maximum(warps * warp, limit("min_block_threads"))
    return blocks


def _dealt_channels(
    communicator: Communicator, request: Request, algo_proto: AlgoProto, nbytes: SizeArray, bound: IntArray
) -> IntArray:
    """Channels that get work: the buffer is cut into cells of a least traffic, dealt out evenly, the rest last.

    Operations that the network takes part in use every channel of their bound.
    """
    if like_collnet(communicator, algo_proto):
        return bound
    limit = communicator.release.limit
    most = communicator.nvls_channels if like_nvls(communicator, algo_proto) else communicator.channels
    least = limit("min_traffic_per_channel_bytes")
    per_byte = request.traffic_per_byte(communicator.ranks)
    # All of this is size_t in NCCL, so unsigned here.
    count_bytes = np.maximum(nbytes // np.uint64(request.parts(communicator.ranks)), np.uint64(1))
    per_byte *= limit("ll_traffic") if algo_proto[1] is Protocol.LL else 1

    align = limit("cell_alignment_bytes")
    (rule,) = communicator.release.rules("traffic_per_channel")
    traffic = np.maximum(count_bytes * np.uint64(per_byte), np.uint64(least))
    per_channel = TRAFFIC_RULES[rule](traffic // np.minimum(bound, most).astype(np.uint64), least, align)
    (deal,) = communicator.release.rules("deal")
    channels = DEAL_RULES[deal](count_bytes, per_channel, per_byte, most, least, align)
    trace.step("channels", "", DEAL_RULES[deal], bound, channels)
    return channels


@DEAL_RULES
def cells_of_the_least_traffic(
    count_bytes: SizeArray, per_channel: SizeArray, per_byte: int, most: int, least: int, align: int
) -> IntArray:
    """Channels used when cells of the least traffic are dealt out, each channel up to its share and not less."""
    cell_bytes = ceil_div(ceil_div(least, per_byte), align) * align
    cells = ceil_div(count_bytes, cell_bytes)
    first = np.minimum(cells, ceil_div(per_channel, cell_bytes * per_byte))
    used = 1 + ceil_div(cells - first, first)
    # What would need more channels than there are is spread over all of them.
    dealt: IntArray = np.minimum(used, np.uint64(most)).astype(np.int64)
    return dealt


@DEAL_RULES
def cells_of_16_bytes(
    count_bytes: SizeArray, per_channel: SizeArray, per_byte: int, most: int, least: int, align: int
) -> IntArray:
    """Channels used when cells of 16 bytes are dealt out; the first takes whole ones only, and none where none fits."""
    if most == 1:
        return np.ones(count_bytes.shape, np.int64)
    cells = ceil_div(count_bytes, align)
    share = np.minimum(cells, ceil_div(per_channel, align * per_byte))
    first = np.minimum(cells, per_channel // np.uint64(align * per_byte))
    started = (first != 0).astype(np.int64)
    used = started + ceil_div(cells - first, share).astype(np.int64)
    dealt: IntArray = np.where(used > most, most - 1 + started, used)
    return dealt


@TRAFFIC_RULES
def at_least_the_minimum(per_channel: SizeArray, least: int, align: int) -> SizeArray:
    return np.maximum(per_channel, np.uint64(least))


@TRAFFIC_RULES
def rounded_up(per_channel: SizeArray, least: int, align: int) -> SizeArray:
    rounded: SizeArray = ceil_div(per_channel, align) * np.uint64(align)
    return rounded

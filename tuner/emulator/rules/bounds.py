"""The most channels an operation may use, and the threads of its blocks, by its size.

Shapes: sizes are arrays of nBytes; channels and threads are arrays of integers with one element per size, [size].
"""

from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from tuner.base import trace
from tuner.base.names import AlgoProto, Algorithm, Protocol
from tuner.base.numerics import IntArray, SizeArray, as_size_t, int32
from tuner.base.registry import Registry, found_in
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.model import Tables
from tuner.emulator.rules import registered
from tuner.emulator.rules.call import RuleCall

NVLS_KIND_RULES: Registry[Callable[[Comm, Algorithm], bool]] = Registry()
NvlsBoundRule = Callable[[Comm, AlgoProto], int]
NVLS_BOUND_RULES: Registry[NvlsBoundRule] = Registry()
BlockRule = Callable[[Comm, AlgoProto, IntArray, int], IntArray]
BLOCK_RULES: Registry[BlockRule] = Registry()
ProductRule = Callable[[int, int, int], list[int]]
PRODUCT_RULES: Registry[ProductRule] = Registry()
BOUND_CHANNELS_RULES: Registry[Callable[[Comm], int]] = Registry()
TUNED_RULES: Registry[Callable[[int, int], int]] = Registry()  # called with NCCL's own bound and a tuner's channels
TUNED_THREADS_RULES: Registry[Callable[[int], int]] = Registry()  # called with a tuner's channels, 0 for none

NVLS = (Algorithm.NVLS, Algorithm.NVLSTree)


def bound(call: RuleCall, tables: Tables, nbytes: int) -> int:
    """The largest number of channels that one operation may use."""
    return int(bounds(call, tables, np.array([nbytes], np.uint64))[0][0])


def bounds(call: RuleCall, tables: Tables, nbytes: SizeArray) -> tuple[IntArray, IntArray]:
    """The :func:`bound` of each size, and the threads of a block; both are arrays [size]."""
    most = call.rules.bound_channels(call.communicator)
    bound = plain_bound(most, call, tables, nbytes)
    trace.step("channels", "", plain_bound, most, bound)
    shrunk = _shrunk_threads(most, call, tables, nbytes, bound)
    trace.step("threads", "", fewer_threads, int(tables.max_threads[call.algo_proto]), shrunk)
    bound = of_registered(call, tables, bound)
    block = call.rules.block(call.communicator, call.algo_proto, shrunk, call.limits.min_block_threads)
    trace.step("threads", "", call.rules.block, shrunk, block)
    return bound, block


@BOUND_CHANNELS_RULES(nccl.TOPO_GET_ALGO_INFO(since="2.22.3"), nccl.TUNING_GET_CHANNELS(since="2.31.2"))
def all_channels(communicator: Comm) -> int:
    """Aggregated and single operations have the same channels."""
    return communicator.channels


@BOUND_CHANNELS_RULES(
    nccl.GET_ALGO_INFO(since="2.18.1"),
    nccl.TOPO_GET_ALGO_INFO(since="2.19.3"),
    nccl.GET_CHANNEL_THREAD_INFO(since="2.20.5"),
)
def coll_channels_only(communicator: Comm) -> int:
    """The channels before aggregation raises them."""
    return communicator.coll_channels


@TUNED_RULES(
    nccl.GET_ALGO_INFO(since="2.18.1"),
    nccl.GET_TUNER_INFO(since="2.20.5"),
    nccl.GET_ALGO_INFO(since="2.22.3"),
    nccl.GET_ALGO_INFO_EXPORTED(since="2.29.2"),
)
def as_the_tuner_says(own: int, tuned: int) -> int:
    """The tuner's channels, even if NCCL's own number would be smaller for the size."""
    return tuned


@TUNED_RULES(nccl.BINARY("ncclTuningGetChannels", since="2.31.2"))
def no_more_than_nccls_own(own: int, tuned: int) -> int:
    """The tuner's channels, or NCCL's own number if that is smaller for the size."""
    return min(own, tuned)


@TUNED_THREADS_RULES(
    nccl.GET_ALGO_INFO(since="2.18.1"),
    nccl.TOPO_GET_ALGO_INFO(since="2.22.3"),
    nccl.TUNING_GET_CHANNELS(since="2.31.2"),
)
def as_without_a_tuner(tuned: int) -> int:
    """Threads depend on NCCL's own channels; the tuner's are applied afterwards."""
    return 0


@TUNED_THREADS_RULES(nccl.GET_CHANNEL_THREAD_INFO(since="2.20.5"))
def by_the_tuners_channels(tuned: int) -> int:
    """Threads depend on the tuner's channels, over which the size is divided."""
    return tuned


def of_registered(call: RuleCall, tables: Tables, bound: IntArray) -> IntArray:
    """Bounds, numbers of channels [size], after the rules for registered buffers; unchanged without these."""
    if registered.kept(call.communicator, call.request):
        for rule in call.rules.registered:
            before, bound = bound, rule(call, tables, bound)
            trace.step("channels", "", rule, before, bound)
    return bound


def block_threads(call: RuleCall, tables: Tables, nbytes: SizeArray, tuned: int) -> IntArray:
    """Threads of a block for operations of these sizes, [size], if a tuner sets ``tuned`` channels (0: no tuner)."""
    return _block(call, tables, nbytes, tuned, call.limits.min_block_threads)


def own_threads(call: RuleCall, tables: Tables, nbytes: SizeArray, tuned: int) -> IntArray:
    """Threads that work on operations of these sizes, [size]; their block may have more."""
    return _block(call, tables, nbytes, tuned, 0)


def _block(call: RuleCall, tables: Tables, nbytes: SizeArray, tuned: int, least: int) -> IntArray:
    most, over = call.rules.bound_channels(call.communicator), call.rules.tuned_threads(tuned)
    if over and not _keeps_threads(call):
        threads, threshold = int(tables.max_threads[call.algo_proto]), over * _threshold(call, tables)
        one = np.ones(nbytes.shape, np.int64)
        shrunk = fewer_threads(nbytes, one, threads, threshold, int32(threads * threshold))
    else:
        shrunk = _shrunk_threads(most, call, tables, nbytes, plain_bound(most, call, tables, nbytes))
    return call.rules.block(call.communicator, call.algo_proto, shrunk, least)


def _keeps_threads(call: RuleCall) -> bool:
    """Whether a block has all threads at every size."""
    return call.like_nvls or call.algorithm is Algorithm.CollNetDirect


def _shrunk_threads(most: int, call: RuleCall, tables: Tables, nbytes: SizeArray, bound: IntArray) -> IntArray:
    """Threads without the warps that some algorithms add."""
    threads = int(tables.max_threads[call.algo_proto])
    if _keeps_threads(call):
        return np.full(nbytes.shape, threads, np.int64)
    alone = _needs(most, call, tables)[1]
    return fewer_threads(nbytes, bound, threads, _threshold(call, tables), alone)


@found_in(
    nccl.GET_ALGO_INFO(since="2.18.1"),
    nccl.TOPO_GET_ALGO_INFO(since="2.19.3"),
    nccl.GET_CHANNEL_THREAD_INFO(since="2.20.5"),
    nccl.TOPO_GET_ALGO_INFO(since="2.22.3"),
    nccl.TUNING_GET_CHANNELS(since="2.31.2"),
)
def plain_bound(most: int, call: RuleCall, tables: Tables, nbytes: SizeArray) -> IntArray:
    """The largest number of channels [size] that the operation may use, whatever its buffers are."""
    if call.like_nvls:
        return np.full(nbytes.shape, call.rules.nvls_bound(call.communicator, call.algo_proto), np.int64)
    if call.algorithm is Algorithm.CollNetDirect:
        assert call.communicator.collnet is not None
        threads = int(tables.max_threads[call.algo_proto]) * call.communicator.collnet.direct_heads
        return _fewer_direct_channels(nbytes, most, threads, _threshold(call, tables))
    return _fewer_channels(nbytes, _needs(most, call, tables)[0])


def _threshold(call: RuleCall, tables: Tables) -> int:
    return int32(int(tables.thread_thresholds_bytes[call.algo_proto]))


@NVLS_BOUND_RULES(nccl.TOPO_GET_ALGO_INFO(since="2.28.3"), nccl.BINARY("ncclTuningGetChannels", since="2.32.3"))
def fewer_between_nodes(communicator: Comm, algo_proto: AlgoProto) -> int:
    """NVLS's channels; NVLS between nodes has no more than the communicator."""
    if algo_proto[0] is Algorithm.NVLS and communicator.nodes > 1:
        return min(communicator.nvls_channels, communicator.channels)
    return communicator.nvls_channels


@NVLS_BOUND_RULES(nccl.TUNING_GET_CHANNELS(since="2.31.2"))
def fewer_between_nodes_and_for_pat(communicator: Comm, algo_proto: AlgoProto) -> int:
    """NVLS's channels; NVLS between nodes and PAT have no more than the communicator."""
    if algo_proto[0] is Algorithm.PAT:
        return min(communicator.nvls_channels, communicator.channels)
    return fewer_between_nodes(communicator, algo_proto)


@NVLS_BOUND_RULES(
    nccl.GET_ALGO_INFO(since="2.18.1"),
    nccl.TOPO_GET_ALGO_INFO(since="2.19.3"),
    nccl.GET_CHANNEL_THREAD_INFO(since="2.20.5"),
    nccl.TOPO_GET_ALGO_INFO(since="2.22.3"),
)
def nvls_channels_only(communicator: Comm, algo_proto: AlgoProto) -> int:
    """NVLS's channels."""
    return communicator.nvls_channels


@NVLS_KIND_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.18.1"), nccl.PREPARE_TASKS(since="2.22.3"))
def nvls_algorithms(communicator: Comm, algorithm: Algorithm) -> bool:
    """NVLS and NVLSTree run on NVLS's channels."""
    return algorithm in NVLS


@NVLS_KIND_RULES(nccl.PREPARE_TASKS_MOVED(since="2.31.2"))
def nvls_algorithms_and_pat_of_several_ranks(communicator: Comm, algorithm: Algorithm) -> bool:
    """NVLS, NVLSTree, and PAT with several ranks per node run on NVLS's channels."""
    return algorithm in NVLS or (algorithm is Algorithm.PAT and communicator.ranks > communicator.nodes)


def _needs(most: int, call: RuleCall, tables: Tables) -> tuple[SizeArray, int]:
    threads = int(tables.max_threads[call.algo_proto])
    return _needs_by(call.rules.thread_product, most, threads, _threshold(call, tables))


@cache
def _needs_by(rule: ProductRule, most: int, threads: int, threshold: int) -> tuple[SizeArray, int]:
    """The sizes in bytes from which 2, 3 and more channels are used, in ascending order, and the size that all threads
    of one channel need.

    Each size is channels * threads * threshold, computed from the most channels down to one in an int, which wraps
    around for thousands of ranks. Overflow is undefined in C, so only the compiled libnccl shows the result.
    """
    *products, alone = rule(most, threads, threshold)
    needs = np.array([as_size_t(product) for product in products], np.uint64)
    # NCCL counts down and stops at the first size that is reached, so the running minimum is what has to be reached.
    return np.minimum.accumulate(needs)[::-1], alone


@PRODUCT_RULES(nccl.GET_ALGO_INFO(since="2.18.1"), nccl.TOPO_GET_ALGO_INFO(since="2.19.3"))
def wraps_each_time(most: int, threads: int, threshold: int) -> list[int]:
    """Each product is computed as a separate int, which may wrap around."""
    return [int32(channels * threads * threshold) for channels in range(most, 0, -1)]


@PRODUCT_RULES(nccl.GET_CHANNEL_THREAD_INFO(since="2.20.5"))
def wraps_twice(most: int, threads: int, threshold: int) -> list[int]:
    """The first two products may wrap around; the others count down from the second one in 64 bits.

    Only the product of the threads themselves is computed separately.
    """
    return [*wraps_twice_and_for_threads(most, threads, threshold)[:-1], int32(threads * threshold)]


@PRODUCT_RULES(nccl.TOPO_GET_ALGO_INFO(since="2.22.3"), nccl.TUNING_GET_CHANNELS(since="2.31.2"))
def wraps_twice_and_for_threads(most: int, threads: int, threshold: int) -> list[int]:
    """The first two products may wrap around; all others count down from the second one in 64 bits.

    This includes the last product, that of the threads.
    """
    step, wrapped = int32(threads * threshold), wraps_each_time(most, threads, threshold)
    return [*wrapped[:1], *(wrapped[1] - further * step for further in range(most - 1))]


def _fewer_channels(nbytes: SizeArray, needs: SizeArray) -> IntArray:
    """The largest number of channels on which all threads have work, at least one.

    NCCL counts down while size < channels * threads * threshold.
    """
    channels: IntArray = 1 + np.searchsorted(needs, nbytes, side="right")
    return channels


def _fewer_direct_channels(nbytes: SizeArray, most: int, threads: int, threshold: int) -> IntArray:
    """The channels of CollNetDirect, which are counted down to 16, 8, 4, 2 and 1; half way to each of these, the
    threshold is halved, too.

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


@found_in(
    nccl.GET_ALGO_INFO(since="2.18.1"),
    nccl.TOPO_GET_ALGO_INFO(since="2.19.3"),
    nccl.GET_CHANNEL_THREAD_INFO(since="2.20.5"),
    nccl.TOPO_GET_ALGO_INFO(since="2.22.3"),
    nccl.TUNING_GET_CHANNELS(since="2.31.2"),
)
def fewer_threads(nbytes: SizeArray, channels: IntArray, threads: int, threshold: int, alone: int) -> IntArray:
    """Threads halve (as long as whole warps of four remain) while they are too many for the size.

    ``alone`` is the size in bytes that one channel with all threads needs.
    """
    result = np.full(nbytes.shape, threads, np.int64)
    needs, fewer = _halved(threads, threshold, alone)
    if not len(needs):
        return result
    # With several channels the size already fills all threads, so only one channel can still shrink.
    alone_too_many = np.flatnonzero((channels == 1) & (nbytes < needs[-1]))
    if len(alone_too_many):
        result[alone_too_many] = fewer.take(np.searchsorted(needs, nbytes[alone_too_many], side="right"))
    return result


@lru_cache(1024)
def _halved(threads: int, threshold: int, alone: int) -> tuple[SizeArray, IntArray]:
    """The sizes in bytes that keep a channel's threads from one more halving, rising; threads below each of them.

    As with channels, the first need that a size meets ends it, so the running minimum is what has to be met.
    """
    needs, left = list[int](), list[int]()
    while threads > 0 and threads % 128 == 0:
        needs.append(as_size_t(alone))
        threads //= 2
        left.append(threads)
        alone = int32(threads * threshold)
    least = np.minimum.accumulate(np.array(needs, np.uint64))
    return least[::-1], np.array(left[::-1], np.int64)


@BLOCK_RULES(nccl.TOPO_GET_ALGO_INFO(since="2.22.3"), nccl.TUNING_GET_CHANNELS(since="2.31.2"))
def whole_for_trees(communicator: Comm, algo_proto: AlgoProto, threads: IntArray, least: int) -> IntArray:
    """Threads of the block: the maximum for trees and PAT; Ring/Simple adds a warp to synchronise."""
    if algo_proto[0] in (Algorithm.Tree, Algorithm.PAT):
        return np.full(threads.shape, communicator.release.limits.max_threads, np.int64)
    more_warps = 1 if algo_proto == (Algorithm.Ring, Protocol.Simple) else 0
    return np.maximum(_block_threads(communicator, threads, more_warps), least)


@BLOCK_RULES(
    nccl.GET_ALGO_INFO(since="2.18.1"),
    nccl.TOPO_GET_ALGO_INFO(since="2.19.3"),
    nccl.GET_CHANNEL_THREAD_INFO(since="2.20.5"),
)
def more_warps_for_simple(communicator: Comm, algo_proto: AlgoProto, threads: IntArray, least: int) -> IntArray:
    """Threads of the block: Simple adds warps, one to synchronise for a ring, four for the two halves of a tree."""
    more = {(Algorithm.Ring, Protocol.Simple): 1, (Algorithm.Tree, Protocol.Simple): 4}
    return np.maximum(_block_threads(communicator, threads, more.get(algo_proto, 0)), least)


def _block_threads(communicator: Comm, threads: IntArray, more_warps: int) -> IntArray:
    warp = communicator.release.limits.warp_size
    blocks: IntArray = np.maximum(threads // warp + more_warps, 3) * warp
    return blocks

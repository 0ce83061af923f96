"""The work of each channel of a scheduled task: its elements, its chunks, and the steps of its proxy.

For each algorithm, the chunks of a channel are smaller if the channel would otherwise have few loops.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, NcclFails, Remedy
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import ceil_div, f32, int32, log2i
from tuner.base.registry import Registry, Variant, found_in
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.launches import ChannelShare, ProxyOperation, Sharing
from tuner.emulator.model import Tables
from tuner.emulator.rules.bounds import NVLS
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.rules.launch import elements_at_once
from tuner.emulator.rules.registered import (
    LL128_DATA,
    LL128_LINE,
    VARIABLES,
    Heads,
    chunk_and_slice_steps,
    grain_bytes,
    step_bytes,
    switch_takes_buffers,
)
from tuner.emulator.rules.schedule.task import ChannelPart, CollectiveTask
from tuner.emulator.tuner_plugin import ChunkQuestion

READS, WRITES = 2, 1  # NCCL_P2P_READ, NCCL_P2P_WRITE: src/include/device.h, v2.28.9-1
DIRECT_RULES: Registry[Callable[[int], int]] = Registry()


@dataclass(frozen=True, slots=True)
class Sized:
    """The bytes of a call and the number of channels for which a chunk is computed."""

    call: RuleCall
    tables: Tables
    heads: Heads
    channels: int
    nbytes: int

    @property
    def communicator(self) -> Comm:
        """The communicator of the call."""
        return self.call.communicator


class NvlsChunk(Variant, ABC):
    """A rule for the largest chunk of NVLS and NVLSTree, in bytes."""

    # Whether the chunk is not set if NVLS belongs to another communicator; NCCL then divides by it
    unset_where_shared = False

    @abstractmethod
    def __call__(self, communicator: Comm) -> int:
        """The chunk for NVLS."""

    @abstractmethod
    def of_tree(self, communicator: Comm, step: int) -> int:
        """The chunk for NVLSTree; ``step``: bytes of a step of the buffer."""


NVLS_RULES: Registry[NvlsChunk] = Registry()


@NVLS_RULES.variant(nccl.COMPUTE_COLL(since="2.18.1"))
class Fixed(NvlsChunk):
    """The largest chunk is 128 KiB for NVLS, and one step of the connection's buffer for NVLSTree."""

    def __call__(self, communicator: Comm) -> int:
        return communicator.release.limits.nvls_chunk_bytes

    def of_tree(self, communicator: Comm, step: int) -> int:
        return step


@NVLS_RULES.variant(nccl.COMPUTE_COLL(since="2.19.3"))
class SlowNetworks(Fixed):
    """As :class:`Fixed`, but less with little bandwidth between nodes, and 64 KiB for NVLSTree on 4 nodes or more."""

    slow_gbs, slow_bytes = 150, 32768
    tree_nodes, tree_bytes = 4, 65536

    def of_tree(self, communicator: Comm, step: int) -> int:
        return self.tree_bytes if communicator.nodes >= self.tree_nodes else step


@NVLS_RULES.variant(nccl.COMPUTE_COLL_CHUNK_INFO(since="2.20.5"))
class RequestedForTrees(SlowNetworks):
    """As :class:`SlowNetworks`, but NVLSTree's chunks have at most NCCL_NVLSTREE_MAX_CHUNKSIZE bytes if that is set."""

    def of_tree(self, communicator: Comm, step: int) -> int:
        most = communicator.environment.c_int("NCCL_NVLSTREE_MAX_CHUNKSIZE", -2)
        return min(step, super().of_tree(communicator, step) if most == -2 else most)


@NVLS_RULES.variant(nccl.CALC_COLL_CHUNKING(since="2.22.3"))
class Requested(RequestedForTrees):
    """NCCL_NVLS_CHUNKSIZE for NVLS, and at most that for trees."""

    def __call__(self, communicator: Comm) -> int:
        return communicator.environment.c_int("NCCL_NVLS_CHUNKSIZE", communicator.release.limits.nvls_chunk_bytes)

    def of_tree(self, communicator: Comm, step: int) -> int:
        return super().of_tree(communicator, self(communicator))


@NVLS_RULES.variant(nccl.COMPUTE_COLL_CHUNK_INFO(since="2.21.5"))
class RequestedUnlessShared(Requested):
    """Chunks of :class:`Requested`, but NCCL sets none if NVLS is shared with the communicator that was split (sic)."""

    unset_where_shared = True


@NVLS_RULES.variant(nccl.NVLS_TUNING(since="2.30.3"))
class TunedForBlackwell(Requested):
    """Chunks of :class:`Requested`; on Blackwell between nodes, they depend on nodes, GPUs and adapters."""

    def __call__(self, communicator: Comm) -> int:
        tuned, _ = self._tuned(communicator)
        return (
            tuned
            if tuned and not communicator.environment.text("NCCL_NVLS_CHUNKSIZE")
            else super().__call__(communicator)
        )

    def of_tree(self, communicator: Comm, step: int) -> int:
        _, tuned = self._tuned(communicator)
        if tuned and communicator.environment.number("NCCL_NVLSTREE_MAX_CHUNKSIZE", -2) == -2:
            return min(self(communicator), tuned)
        return super().of_tree(communicator, step)

    def _tuned(self, communicator: Comm) -> tuple[int, int]:
        """The chunk of NVLS and the largest of NVLSTree; 0 if NCCL tunes none. Source: ncclNvlsTreeSm100Tuning."""
        if communicator.shared is not None and communicator.shared.nvls:
            # The buffers were laid out with this communicator's chunks (ncclNvlsSetup)
            communicator = communicator.shared
        nodes, local, net_gbs = communicator.nodes, communicator.min_local_ranks, communicator.net_gbs
        if communicator.min_comp_cap < 100 or nodes == 1:
            return 0, 0
        types = communicator.release.paths
        near = types.rank(communicator.graphs[Algorithm.NVLS].type_inter) <= types.rank("PXB")
        if nodes == 2 and net_gbs >= 48:
            if local <= 4:
                return 256 << 10, 256 << 10
            return 128 << 10, 64 << 10 if local >= 16 or (local <= 8 and near and net_gbs < 96) else 128 << 10
        if net_gbs >= 96:
            if local <= 8:
                return 256 << 10, 256 << 10
            return 128 << 10, 128 << 10 if local < 32 else 64 << 10
        if net_gbs >= 48:
            return 128 << 10, 64 << 10 if near else 128 << 10
        return 128 << 10, 0


@DIRECT_RULES(
    nccl.COMPUTE_COLL(since="2.18.1"), nccl.INIT_COLL_WORK_ELEM(since="2.20.5"), nccl.CALC_COLL_CHUNKING(since="2.22.3")
)
def writes_up_to_1_mib(channel_bytes: int) -> int:
    """CollNetDirect writes to its peers up to 1 MiB per channel, and reads from them if there is more."""
    return WRITES if channel_bytes <= 1 << 20 else READS


@DIRECT_RULES(nccl.CALC_COLL_CHUNKING(since="2.23.4"))
def reads_up_to_4_kib(channel_bytes: int) -> int:
    """CollNetDirect reads from its peers up to 4 KiB per channel, and writes to them if there is more."""
    return READS if channel_bytes <= 4 << 10 else WRITES


@DIRECT_RULES(nccl.CALC_COLL_CHUNKING(since="2.29.2"), nccl.CALC_COLL_CHUNKING_MOVED(since="2.31.2"))
def always_writes(channel_bytes: int) -> int:
    """CollNetDirect writes to its peers."""
    return WRITES


def direct(sized: Sized) -> int:
    """The flags of direct access to peers; 0 for all but CollNetDirect."""
    if sized.call.algorithm is not Algorithm.CollNetDirect:
        return 0
    return sized.call.rules.direct_access(sized.nbytes // sized.channels)


def whole_chunk_bytes(call: RuleCall, effective: bool) -> int:
    """The chunk size in bytes before it is reduced for small calls.

    If ``effective`` is true, the flags of LL and LL128 do not count, only the data.
    """
    chunk = step_bytes(call.communicator, call.protocol) * chunk_and_slice_steps(call)[0]
    if effective and call.protocol is Protocol.LL:
        return chunk // 2
    return chunk // LL128_LINE * LL128_DATA if effective and call.protocol is Protocol.LL128 else chunk


@found_in(
    nccl.COMPUTE_COLL(since="2.18.1"),
    nccl.COMPUTE_COLL_CHUNK_INFO(since="2.20.5"),
    nccl.CALC_COLL_CHUNKING(since="2.22.3"),
    nccl.CALC_COLL_CHUNKING_MOVED(since="2.31.2"),
)
def chunk_bytes(sized: Sized, whole: int) -> int:
    """The bytes of a chunk: ``whole``, or less if the call would have few loops with that size."""
    by_algorithm = {
        Algorithm.CollNetDirect: _collnet_direct,
        Algorithm.CollNetChain: _collnet_chain,
        Algorithm.NVLS: _nvls,
        Algorithm.NVLSTree: _nvls_tree,
        Algorithm.PAT: _pat,
    }
    if sized.call.algo_proto == (Algorithm.Tree, Protocol.LL128):
        return _tree_ll128(sized, whole)
    shorten = by_algorithm.get(sized.call.algorithm)
    return whole if shorten is None else shorten(sized, whole)


def halved(sized: Sized, chunk: int, heads: int, needs: Sequence[tuple[int, int]]) -> int:
    """Halves a chunk while the call makes fewer loops than needed, down to a floor. ``needs`` are pairs (loops, floor),
    applied one after the other."""
    for loops, floor in needs:
        while sized.nbytes // (sized.channels * heads * chunk) < loops and chunk > floor:
            chunk //= 2
    return chunk


def _collnet_direct(sized: Sized, chunk: int) -> int:
    depth = sized.heads.direct_depth
    needs = (depth * 64, 131072), (depth * 8, 65536), (depth * 8, 32768)
    return halved(sized, chunk, sized.heads.direct, needs)


def _collnet_chain(sized: Sized, chunk: int) -> int:
    depth = sized.communicator.ranks // sized.communicator.nodes
    chunk = min(256 << 10, step_bytes(sized.communicator, Protocol.Simple))
    return halved(sized, chunk, 1, ((depth * 64, 131072), (depth * 8, 65536), (depth, 32768)))


def _nvls(sized: Sized, chunk: int) -> int:
    rule, communicator = sized.call.rules.nvls_chunk, sized.communicator
    moved = sized.call.request.collective in (Collective.AllGather, Collective.ReduceScatter)
    whole_steps = moved and communicator.release.registration.switch_moves_whole_steps
    if whole_steps and switch_takes_buffers(sized.call):
        return step_bytes(communicator, Protocol.Simple)
    most = rule(communicator)
    if isinstance(rule, SlowNetworks) and communicator.nodes > 1:
        nvls_gbs = sized.tables.bandwidth_gbs[Collective.AllReduce, Algorithm.NVLS, Protocol.Simple]
        most = rule.slow_bytes if nvls_gbs < rule.slow_gbs else most
    return _limited(sized, min(chunk, most), ((64, 65536), (8, 32768), (2, 16384)))


def _nvls_tree(sized: Sized, chunk: int) -> int:
    most = sized.call.rules.nvls_chunk.of_tree(sized.communicator, chunk)
    return _limited(sized, most, ((32, 262144), (16, 131072), (4, 65536), (1, 32768)))


def _limited(sized: Sized, chunk: int, limits: Sequence[tuple[int, int]]) -> int:
    """The chunk, reduced if it would make too few loops; ``limits`` are (loops, bytes), applied in order."""
    for loops, most in limits:
        if sized.nbytes < loops * sized.channels * sized.heads.nvls * chunk and chunk > most:
            chunk = most
    return chunk


def _tree_ll128(sized: Sized, chunk: int) -> int:
    """The chunk of Tree/LL128, by the steps of the tree over the ranks per node in float32."""
    communicator = sized.communicator
    per_node = f32(communicator.ranks) / f32(communicator.nodes)
    steps = f32(1 + log2i(communicator.nodes) + 0.1 * float(per_node))
    for factor, floor in ((64, 131072), (16, 32768)):
        loops = steps * f32(factor) / per_node
        while np.float32(sized.nbytes // (sized.channels * chunk)) < loops and chunk > floor:
            chunk //= 2
    return chunk


def _pat(sized: Sized, chunk: int) -> int:
    if sized.call.like_nvls:
        chunk = min(chunk, sized.call.rules.nvls_chunk(sized.communicator))
    loops = 32 if sized.call.request.collective is Collective.AllGather else 16
    while int32(chunk * sized.channels * loops) > sized.nbytes and chunk > 65536:
        chunk //= 2
    return chunk


PATTERNS = {
    (Collective.Broadcast, Algorithm.Tree): "TreeDown",
    (Collective.Broadcast, Algorithm.Ring): "PipelineFrom",
    (Collective.Reduce, Algorithm.Tree): "TreeUp",
    (Collective.Reduce, Algorithm.Ring): "PipelineTo",
    (Collective.ReduceScatter, Algorithm.PAT): "PatUp",
    (Collective.AllGather, Algorithm.PAT): "PatDown",
    (Collective.AllReduce, Algorithm.Ring): "RingTwice",
    (Collective.AllReduce, Algorithm.Tree): "TreeUpDown",
}
OF_ALGORITHM = {
    Algorithm.Ring: "Ring",
    Algorithm.NVLS: "Nvls",
    Algorithm.NVLSTree: "NvlsTree",
    Algorithm.CollNetDirect: "CollnetDirect",
    Algorithm.CollNetChain: "CollnetChain",
}

MAX_NET_BYTES = 1 << 30  # NCCL_MAX_NET_SIZE: src/include/collectives.h, v2.24.3-1


@dataclass(frozen=True, slots=True)
class Shared:
    """How a task is divided: the part of each of its channels."""

    sharing: Sharing
    shares: tuple[ChannelShare, ...]  # one for each channel
    direct: int


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """A task whose channels are known, and what its chunks depend on."""

    task: CollectiveTask
    call: RuleCall
    tables: Tables
    heads: Heads
    network_takes_buffers: bool = False

    def sized(self, channels: int, nbytes: int) -> Sized:
        """What the chunk size depends on, for this many bytes on this many channels."""
        return Sized(self.call, self.tables, self.heads, channels, nbytes)

    @property
    def element_bytes(self) -> int:
        """The size of an element of the type that the device sees."""
        return self.task.request.device_dtype.size_bytes


class ChannelWork(Variant, ABC):
    """A rule that computes the work of each channel of a task, as a release does."""

    in_grains = False  # chunks consist of whole grains; fewer bytes than a grain count as none

    @abstractmethod
    def __call__(self, scheduled: ScheduledTask) -> Shared:
        """The parts of the work, by channel."""


RULES: Registry[ChannelWork] = Registry()


def pattern(call: RuleCall) -> str:
    """ncclPattern_t without its prefix. Source: calcCollChunking, src/enqueue.cc, v2.28.9-1."""
    own = PATTERNS.get((call.request.collective, call.algorithm))
    return OF_ALGORITHM[call.algorithm] if own is None else own


def loops_of(call: RuleCall, heads: Heads) -> tuple[int, int]:
    """Steps and chunks of one loop, by the pattern. Source: calcCollChunking, src/enqueue.cc, v2.28.9-1."""
    ranks, name = call.communicator.ranks, pattern(call)
    if name in ("Ring", "RingTwice"):
        return (ranks - 1) * (2 if name == "RingTwice" else 1), ranks
    if name in ("Nvls", "NvlsTree"):
        return 1, heads.nvls
    return 1, heads.direct if name == "CollnetDirect" else 1


def _chunk(scheduled: ScheduledTask, sized: Sized, effective: bool) -> int:
    """A chunk in bytes. BadInput if it is so small that NCCL divides by zero."""
    whole = whole_chunk_bytes(sized.call, effective)
    _check(scheduled, whole)
    chunk = _with_tuner(scheduled, sized, chunk_bytes(sized, whole), whole)
    _check(scheduled, chunk)
    return chunk


def _with_tuner(scheduled: ScheduledTask, sized: Sized, chunk: int, most: int) -> int:
    """The chunk that a tuner names, at most ``most``, or NCCL's own. Source: calcCollChunking."""
    communicator, task = sized.communicator, scheduled.task
    if communicator.tuner is None:
        return chunk
    question = ChunkQuestion(
        communicator, task.request, task.algo_proto, task.together_bytes or task.nbytes, sized.nbytes, chunk
    )
    named = communicator.tuner.chunk_bytes(question)
    return chunk if named is None else min(named, most)


def _check(scheduled: ScheduledTask, chunk: int) -> None:
    if chunk >= scheduled.element_bytes:
        return
    algorithm, protocol = scheduled.task.algo_proto
    own = ("NCCL_NVLS_CHUNKSIZE", "NCCL_NVLSTREE_MAX_CHUNKSIZE") if algorithm in NVLS else ()
    raise BadInput(
        f"{algorithm.name}/{protocol.name}: chunks of {chunk} bytes are too small: set a larger "
        f"{' or '.join((VARIABLES[protocol], *own))}"
    )


def check_buffer(call: RuleCall) -> None:
    """Raises NcclFails if a variable makes chunks so small that NCCL divides by zero when it launches the call."""
    variable = VARIABLES[call.protocol]
    if variable not in call.communicator.environment.values:
        return
    least = grain_bytes(call.protocol, call.limits.warp_size) if call.rules.channel_work.in_grains else 1
    if (chunk := whole_chunk_bytes(call, effective=True)) < least:
        raise NcclFails(
            f"{variable}={call.communicator.environment.values[variable]} leaves {call.algorithm.name}/"
            f"{call.protocol.name} chunks of {max(chunk, 0)} bytes, of {least} at least, and NCCL divides by zero as "
            f"it launches {call.request.collective.name}; valid: without {variable}"
        ).cured(Remedy("env", None, variable))


def _steps(sized: Sized, chunk: int) -> int:
    """Steps of a proxy."""
    steps, chunks = loops_of(sized.call, sized.heads)
    loops = int32(ceil_div(sized.nbytes, sized.channels * chunks * chunk))
    return int32(steps * loops * chunk_and_slice_steps(sized.call)[0])


def _proxy(sized: Sized, chunk: int, steps: int) -> ProxyOperation:
    call = sized.call
    chunk_steps, slice_steps = chunk_and_slice_steps(call)
    of_buffer = Protocol.Simple if call.algorithm is Algorithm.CollNetChain else call.protocol
    step = step_bytes(call.communicator, of_buffer) * slice_steps
    return ProxyOperation(pattern(call), steps, chunk_steps, slice_steps, chunk, step)


@found_in(nccl.CALC_COLL_CHUNKING(since="2.24.3"), nccl.CALC_COLL_CHUNKING_MOVED(since="2.31.2"))
def _of_own_buffers(proxy: ProxyOperation, sized: Sized) -> ProxyOperation:
    """The proxy of a ring whose adapters read and write the user's buffers."""
    communicator = sized.communicator
    proxy = replace(proxy, step_bytes=sized.nbytes, registered=True)
    if communicator.max_local_ranks > 1 or sized.call.request.collective is not Collective.AllGather:
        return proxy
    steps, chunks = loops_of(sized.call, sized.heads)
    loop = sized.channels * chunks * MAX_NET_BYTES
    return replace(
        proxy,
        steps=ceil_div(sized.nbytes, loop) * steps,
        chunk_steps=1,
        slice_steps=1,
        chunk_bytes=MAX_NET_BYTES,
        slice_bytes=MAX_NET_BYTES,
        loop_bytes=loop,
        loop_offset_bytes=0,
    )


@RULES.variant(nccl.CALC_COLL_CHUNKING(since="2.22.3"))
class ChunksOfEachRange(ChannelWork):
    """Each channel has a range and its own chunks; if the network takes part, all channels share the count."""

    in_grains = True

    def __call__(self, scheduled: ScheduledTask) -> Shared:
        task, own = scheduled.task, scheduled.task.nbytes // max(scheduled.task.elements, 1)
        if scheduled.call.like_collnet:
            sized = scheduled.sized(len(task.parts), own * task.elements)
            share = self._share(scheduled, sized, task.parts[0])
            turns = [replace(share, channel=part.channel, turn=turn) for turn, part in enumerate(task.parts)]
            return Shared(Sharing.turns, tuple(turns), direct(sized))
        parts = {part.count: part for part in task.parts}  # most parts are equal
        alike = {count: self._share(scheduled, scheduled.sized(1, own * count), part) for count, part in parts.items()}
        shares = tuple(
            self._ranged(alike[part.count], turn, part, scheduled.element_bytes) for turn, part in enumerate(task.parts)
        )
        return Shared(Sharing.ranges, shares, 0)

    def _share(self, scheduled: ScheduledTask, sized: Sized, part: ChannelPart) -> ChannelShare:
        call = sized.call
        grain = grain_bytes(call.protocol, call.limits.warp_size)
        chunk = _chunk(scheduled, sized, effective=True) // grain * grain
        _check(scheduled, chunk)
        proxy = self._with_loops(_proxy(sized, chunk, _steps(sized, chunk)), sized)
        if call.algorithm is Algorithm.PAT:
            proxy = replace(proxy, step_bytes=ceil_div(sized.nbytes, sized.channels))
        if scheduled.network_takes_buffers:
            proxy = _of_own_buffers(proxy, sized)
        elements = proxy.chunk_bytes // scheduled.element_bytes
        return ChannelShare(part.channel, 0, part.offset, part.count, elements, None, proxy)

    def _with_loops(self, proxy: ProxyOperation, sized: Sized) -> ProxyOperation:
        return proxy

    def _ranged(self, alike: ChannelShare, turn: int, part: ChannelPart, element_bytes: int) -> ChannelShare:
        return replace(alike, channel=part.channel, turn=turn, offset=part.offset)


@RULES.variant(nccl.CALC_COLL_CHUNKING(since="2.24.3"), nccl.CALC_COLL_CHUNKING_MOVED(since="2.31.2"))
class ChunksOfEachRangeWithLoops(ChunksOfEachRange):
    """Work of :class:`ChunksOfEachRange`; proxies also get the bytes of slices, loops and ranges."""

    def _with_loops(self, proxy: ProxyOperation, sized: Sized) -> ProxyOperation:
        chunks = loops_of(sized.call, sized.heads)[1]
        head = {"Nvls": sized.heads.own_nvls, "CollnetDirect": sized.heads.own_direct}.get(proxy.pattern, 0)
        head = -1 if head is None else head  # sic: also for a rank that is no head
        return replace(
            proxy,
            slice_bytes=proxy.chunk_bytes // proxy.chunk_steps * proxy.slice_steps,
            loop_bytes=sized.channels * chunks * proxy.chunk_bytes,
            loop_offset_bytes=sized.channels * proxy.chunk_bytes * head,
            channel_bytes=0,
        )

    def _ranged(self, alike: ChannelShare, turn: int, part: ChannelPart, element_bytes: int) -> ChannelShare:
        offset, count = part.offset * element_bytes, part.count * element_bytes
        proxy = replace(alike.proxy, loop_offset_bytes=offset, channel_bytes=count)
        return ChannelShare(part.channel, turn, part.offset, part.count, alike.chunk, None, proxy)


@RULES.variant(nccl.COMPUTE_COLL_CHUNK_INFO(since="2.20.5"))
class ChunksOfAllRanges(ChannelWork):
    """Each channel has a range; the chunk is computed for all calls chosen together; the kernel gets the last, too."""

    COUNT_BITS = 25

    def __call__(self, scheduled: ScheduledTask) -> Shared:
        task, call = scheduled.task, scheduled.call
        nbytes = task.nbytes if task.tuned or call.like_collnet else task.together_bytes
        sized = scheduled.sized(task.chunk_channels, nbytes)
        chunk = _chunk(scheduled, sized, effective=True)
        elements = chunk // scheduled.element_bytes
        proxy = _proxy(sized, chunk, 0)
        if call.like_collnet:
            steps = _steps(replace(sized, channels=len(task.parts)), chunk)
            shares = [
                ChannelShare(part.channel, turn, 0, part.count, elements, None, replace(proxy, steps=steps))
                for turn, part in enumerate(task.parts)
            ]
            return Shared(Sharing.turns, tuple(shares), direct(sized))
        shares = [
            ChannelShare(
                part.channel,
                turn,
                part.offset,
                part.count,
                elements,
                self._last(scheduled, elements, part) % (1 << self.COUNT_BITS),
                replace(proxy, steps=self._steps(scheduled, elements, part) % 2**32),
            )
            for turn, part in enumerate(task.parts)
        ]
        return Shared(Sharing.ranges, tuple(sorted(shares, key=lambda share: share.channel)), direct(sized))

    def _steps(self, scheduled: ScheduledTask, elements: int, part: ChannelPart) -> int:
        """Steps of the proxy. Source: computeCollSteps, src/enqueue.cc, v2.21.5-1."""
        call = scheduled.call
        steps, chunks = loops_of(call, scheduled.heads)
        if call.request.collective is not Collective.AllReduce:
            chunks = 1  # counts are those of one rank, and the steps of NVLS depend on the chunks of all heads (sic)
        return int(ceil_div(part.count, chunks * elements) * steps * chunk_and_slice_steps(call)[0])

    def _last(self, scheduled: ScheduledTask, elements: int, part: ChannelPart) -> int:
        """The size of the last chunk of a channel. Source: computeCollLastChunkInfo, src/enqueue.cc, v2.21.5-1."""
        call = scheduled.call
        chunks = loops_of(call, scheduled.heads)[1]
        shortened = (Algorithm.Ring, Algorithm.NVLS, Algorithm.NVLSTree, Algorithm.CollNetDirect)
        if call.request.collective is not Collective.AllReduce or call.algorithm not in shortened:
            return elements
        at_once = int(elements_at_once(call, scheduled.task.threads))
        rest = part.count % (chunks * elements)
        return int(ceil_div(ceil_div(rest, chunks), at_once) * at_once)


@RULES.variant(nccl.COMPUTE_COLL(since="2.18.1"))
class ChunksInTurns(ChannelWork):
    """All channels share the whole count in turns; the kernel is told the last chunk, unless the device computes it."""

    LAST_IS_ALL = (Algorithm.CollNetDirect, Algorithm.CollNetChain, Algorithm.NVLS, Algorithm.NVLSTree)

    def __call__(self, scheduled: ScheduledTask) -> Shared:
        task, call = scheduled.task, scheduled.call
        sized = scheduled.sized(len(task.parts), task.nbytes)
        chunk = _chunk(scheduled, sized, effective=False)
        if call.algo_proto == (Algorithm.Tree, Protocol.Simple) and pattern(call) == "TreeUpDown":
            depth = _tree_depth(call)
            chunk = halved(sized, chunk, 1, ((depth * 8, 131072), (depth * 4, 65536), (depth, 32768)))
        effective = self._effective(call, chunk)
        _check(scheduled, effective)
        last = self._last(scheduled, sized, chunk)
        proxy = _proxy(sized, chunk, _steps(sized, effective))
        elements = effective // scheduled.element_bytes
        shares = [
            ChannelShare(part.channel, turn, 0, part.count, elements, last, proxy)
            for turn, part in enumerate(task.parts)
        ]
        return Shared(Sharing.turns, tuple(sorted(shares, key=lambda share: share.channel)), direct(sized))

    def _effective(self, call: RuleCall, chunk: int) -> int:
        if call.protocol is Protocol.LL:
            return chunk // 2
        return chunk // 16 * 15 if call.protocol is Protocol.LL128 else chunk

    def _last(self, scheduled: ScheduledTask, sized: Sized, chunk: int) -> int:
        """The number of elements of the last chunk; 0 if the device computes it."""
        call, element_bytes = scheduled.call, scheduled.element_bytes
        if call.algo_proto == (Algorithm.Tree, Protocol.Simple) or call.algorithm in self.LAST_IS_ALL:
            return chunk // element_bytes
        if call.protocol is Protocol.LL:
            each = sized.channels * loops_of(call, sized.heads)[1]
            at_once = scheduled.task.threads * 8
            rest = ceil_div(sized.nbytes % (each * self._effective(call, chunk)), each)
            return int(ceil_div(rest, at_once) * at_once // element_bytes)
        return chunk * 15 // (16 * element_bytes) if call.algorithm is Algorithm.Tree else 0


def _tree_depth(call: RuleCall) -> int:
    """Depth of the tree in rank 0's channels. Source: connectTrees, src/graph/connect.cc, v2.18.1-1."""
    communicator = call.communicator
    return communicator.ranks // communicator.nodes - 1 + communicator.nodes.bit_length() - 1

"""Bytes that a chunk of a call has, by algorithm: the fewer loops there are, the smaller."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import f32, int32, log2i
from tuner.base.registry import Registry, Variant, found_in
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.model import Tables
from tuner.emulator.rules.buffers import LL128_DATA, LL128_LINE, chunk_and_slice_steps, step_bytes
from tuner.emulator.rules.call import Call
from tuner.emulator.rules.registered import Heads, switch_takes_buffers

READS, WRITES = 2, 1  # NCCL_P2P_READ, NCCL_P2P_WRITE: src/include/device.h, v2.28.9-1
DIRECT_RULES: Registry[Callable[[int], int]] = Registry()


@dataclass(frozen=True, slots=True)
class Sized:
    """What a chunk is made for: so many bytes of a call on so many channels."""

    call: Call
    tables: Tables
    heads: Heads
    channels: int
    nbytes: int

    @property
    def communicator(self) -> Communicator:
        """The communicator of the call."""
        return self.call.communicator


class NvlsChunk(Variant, ABC):
    """The most bytes of a chunk that the switch takes."""

    unset_where_shared = False  # with the NVLS of another communicator, which NCCL then divides by

    @abstractmethod
    def __call__(self, communicator: Communicator) -> int:
        """For NVLS."""

    @abstractmethod
    def of_tree(self, communicator: Communicator, step: int) -> int:
        """For NVLSTree; ``step``: bytes of a step of the buffer."""


NVLS_RULES: Registry[NvlsChunk] = Registry()


@NVLS_RULES.variant(nccl.COMPUTE_COLL(since="2.18.1"))
class Fixed(NvlsChunk):
    """128 KiB, of trees a step."""

    def __call__(self, communicator: Communicator) -> int:
        return communicator.release.limits.nvls_chunk_bytes

    def of_tree(self, communicator: Communicator, step: int) -> int:
        return step


@NVLS_RULES.variant(nccl.COMPUTE_COLL(since="2.19.3"))
class SlowNetworks(Fixed):
    """Less where the model has little bandwidth between nodes; trees of four nodes and more have 64 KiB."""

    slow_gbs, slow_bytes = 150, 32768
    tree_nodes, tree_bytes = 4, 65536

    def of_tree(self, communicator: Communicator, step: int) -> int:
        return self.tree_bytes if communicator.nodes >= self.tree_nodes else step


@NVLS_RULES.variant(nccl.COMPUTE_COLL_CHUNK_INFO(since="2.20.5"))
class RequestedForTrees(SlowNetworks):
    """Trees have NCCL_NVLSTREE_MAX_CHUNKSIZE at most."""

    def of_tree(self, communicator: Communicator, step: int) -> int:
        most = communicator.environment.c_int("NCCL_NVLSTREE_MAX_CHUNKSIZE", -2)
        return min(step, super().of_tree(communicator, step) if most == -2 else most)


@NVLS_RULES.variant(nccl.CALC_COLL_CHUNKING(since="2.22.3"))
class Requested(RequestedForTrees):
    """NCCL_NVLS_CHUNKSIZE, trees no more than that."""

    def __call__(self, communicator: Communicator) -> int:
        return communicator.environment.c_int("NCCL_NVLS_CHUNKSIZE", communicator.release.limits.nvls_chunk_bytes)

    def of_tree(self, communicator: Communicator, step: int) -> int:
        return super().of_tree(communicator, self(communicator))


@NVLS_RULES.variant(nccl.COMPUTE_COLL_CHUNK_INFO(since="2.21.5"))
class RequestedUnlessShared(Requested):
    """As :class:`Requested`, but not set where NVLS is that of the communicator it was split off (sic)."""

    unset_where_shared = True


@NVLS_RULES.variant(nccl.NVLS_TUNING(since="2.30.3"))
class TunedForBlackwell(Requested):
    """As :class:`Requested`, but Blackwell's between nodes go by their number, their GPUs and the adapters."""

    def __call__(self, communicator: Communicator) -> int:
        tuned, _ = self._tuned(communicator)
        return (
            tuned
            if tuned and not communicator.environment.text("NCCL_NVLS_CHUNKSIZE")
            else super().__call__(communicator)
        )

    def of_tree(self, communicator: Communicator, step: int) -> int:
        _, tuned = self._tuned(communicator)
        if tuned and communicator.environment.number("NCCL_NVLSTREE_MAX_CHUNKSIZE", -2) == -2:
            return min(self(communicator), tuned)
        return super().of_tree(communicator, step)

    def _tuned(self, communicator: Communicator) -> tuple[int, int]:
        """Chunks and the most of trees; 0 where nothing is tuned. Source: ncclNvlsTreeSm100Tuning."""
        if communicator.shared is not None and communicator.shared.nvls:
            communicator = communicator.shared  # whose buffers were laid out with its chunks (ncclNvlsSetup)
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
    """CollNetDirect writes to its peers up to 1 MiB a channel and reads more."""
    return WRITES if channel_bytes <= 1 << 20 else READS


@DIRECT_RULES(nccl.CALC_COLL_CHUNKING(since="2.23.4"))
def reads_up_to_4_kib(channel_bytes: int) -> int:
    """CollNetDirect reads of its peers up to 4 KiB a channel and writes more."""
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


def whole_chunk_bytes(call: Call, effective: bool) -> int:
    """A chunk of a call that is large enough; ``effective``: without what LL and LL128 need beside data."""
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
    """The bytes of a chunk: the ``whole`` one, or less where the call would have few loops of it."""
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
    """Halves a chunk while there are fewer loops of it than needed, down to a floor: by (loops, floor) in turn."""
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
    """A chunk that is at most so large where there are fewer loops of it: (loops, bytes) one after the other."""
    for loops, most in limits:
        if sized.nbytes < loops * sized.channels * sized.heads.nvls * chunk and chunk > most:
            chunk = most
    return chunk


def _tree_ll128(sized: Sized, chunk: int) -> int:
    """A chunk by float32: the steps of the tree over the ranks per node."""
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

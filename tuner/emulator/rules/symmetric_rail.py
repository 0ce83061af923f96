"""Symmetric kernels of several nodes: NVLink inside a node, and transfers that GPUs start (GIN) between nodes.

Ranks with the same place in their nodes are a rail. Source: queryModel_gin, src/sym_kernels.cc, v2.30.7-1.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Collective, Protocol, Sides
from tuner.base.numerics import ceil_div, f32
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.request import Request
from tuner.emulator.rules import launch, symmetric_variables
from tuner.emulator.rules.symmetric_variables import GinUnknown
from tuner.release.schema import given
from tuner.release.symmetric import RailKernels, RailRow

ClassicProtocol = Callable[
    [Request, int], Protocol | None
]  # called with a size: the protocol of the classic path; None if nothing runs
LowLatencyRule = Callable[[Comm, Request, int, ClassicProtocol], bool]
RULES: Registry[LowLatencyRule] = Registry()  # whether a low-latency kernel is used

# What kernels other than low-latency ones read or write in other ranks' memory; for other collectives, both.
REACHED = {Collective.AllGather: Sides.receive, Collective.ReduceScatter: Sides.send}


def are_asked(communicator: Comm, sides: Sides) -> bool:
    """Whether NCCL looks for symmetric kernels if these buffers are in symmetric windows."""
    return sides is Sides.both or communicator.release.symmetric.windows_of_a_call == "any"


def suffice(communicator: Comm, request: Request) -> bool:
    """Whether enough buffers are in symmetric windows for kernels other than those of low latency.

    Source: ncclSymkPickKernel, src/sym_kernels.cc, v2.29.2-1.
    """
    between_nodes = communicator.nodes > 1 and request.collective is Collective.AllGather
    reached = Sides.both if between_nodes else REACHED.get(request.collective, Sides.both)
    return reached in request.symmetric


def suffice_to_copy(communicator: Comm, sides: Sides) -> bool:
    """Whether the buffers that copy engines need are in windows. Source: ncclCeAvailable, src/ce_coll.cc, v2.29.2-1,
    and taskAppend before.
    """
    return are_asked(communicator, sides) and Sides.receive in sides


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.29.2"))
def if_named_or_asked_and_classic_is_ll(
    communicator: Comm, request: Request, nbytes: int, classic: ClassicProtocol
) -> bool:
    """A low-latency kernel runs if one is named, or if the classic path would use LL.

    In the second case, a call without windows also needs a request (NCCL_SYM_NOWIN_ENABLE).
    """
    if symmetric_variables.names_a_kernel(communicator):
        return True
    return _asked(communicator, request) and classic(request, nbytes) is Protocol.LL


@RULES(nccl.TUNING_COMPUTE(since="2.31.2"))
def if_asked_and_classic_without_latency_is_ll(
    communicator: Comm, request: Request, nbytes: int, classic: ClassicProtocol
) -> bool:
    """A low-latency kernel runs if the classic path would use LL with all latencies 0 (sic).

    Without windows it also needs a request (NCCL_SYM_NOWIN_ENABLE).

    NCCL asks the classic path for a call with one rank's bytes, rounded up to whole cells (sic).
    """
    cells_bytes = in_whole_cells(communicator, own_bytes_of(communicator, request, nbytes))
    return _asked(communicator, request) and classic(replace(request, pipelined=0), cells_bytes) is Protocol.LL


def _asked(communicator: Comm, request: Request) -> bool:
    return request.symmetric is not Sides.none or symmetric_variables.without_windows(communicator)


def own_bytes_of(communicator: Comm, request: Request, nbytes: int) -> int:
    """The number of bytes of a call that belong to one rank."""
    return nbytes // request.parts(communicator.ranks)


def in_whole_cells(communicator: Comm, own_bytes: int) -> int:
    """Bytes rounded up to whole cells of symmetric kernels."""
    cell_bytes = communicator.release.symmetric.cell_bytes
    return -(-own_bytes // cell_bytes) * cell_bytes


GBS, SECONDS, MICROSECONDS = 1e9, 1e-6, 1e6

RingRule = Callable[[Comm, Request, int], "RailChoice"]  # AllGather with this many bytes for each rank
RING_RULES: Registry[RingRule] = Registry()


@dataclass(frozen=True, slots=True)
class RailChoice:
    """A kernel with its number of blocks. NCCL itself stores the time of AllGather's only kernel in seconds (sic)."""

    name: str
    blocks: int
    time_us: np.float32
    reads_multicast: bool


def exist(communicator: Comm) -> bool:
    """Whether the communicator may run rail kernels. BadInput if that is not known."""
    table = communicator.release.symmetric.rail
    if table is None or not symmetric_variables.are_made(communicator):
        return False
    return not table.can_be_disabled or symmetric_variables.rails_enabled(communicator)


def exist_for(communicator: Comm, request: Request) -> bool:
    """Whether there are rail kernels for the collective. BadInput if that is not known."""
    return (
        exist(communicator)
        and (request.collective is Collective.AllGather or _scatters(communicator, request.collective))
        and suffice(communicator, request)
    )


def exist_without_windows(communicator: Comm) -> bool:
    """Whether there are rail kernels for calls outside of windows; False if nothing says whether GIN is available."""
    try:
        return exist(communicator)
    except GinUnknown:
        return False


def may_take(communicator: Comm, collective: Collective, noted: bool) -> bool:
    """Whether NCCL looks for a rail kernel on any buffers; ``noted``: NCCL knows whether the GPUs multicast.

    AllGather's kernel needs multicast. Later releases find out about it when they make windows.
    """
    symmetric = communicator.release.symmetric
    multicast = communicator.nvls and communicator.lsa_ranks >= symmetric.multicast_from_ranks
    known = noted or _table(communicator).multicast_is_known
    return (collective is Collective.AllGather and known and multicast) or _scatters(communicator, collective)


def weighed(communicator: Comm, request: Request, nbytes: int, multicast: bool) -> Iterator[RailChoice]:
    """The kernels that can do a call of ``nbytes`` for each rank, in NCCL's order, with their times."""
    if request.collective is Collective.AllGather and multicast:
        yield given(communicator.rules.symmetric_ring, "rules.symmetric_ring")(communicator, request, nbytes)
    if _scatters(communicator, request.collective):
        yield _Gathered(communicator, False).choice(request, nbytes)
        if multicast:
            yield _Gathered(communicator, True).choice(request, nbytes)


@RING_RULES(nccl.QUERY_MODEL_GIN(since="2.29.2"))
def hierarchical_ring(communicator: Comm, request: Request, nbytes: int) -> RailChoice:
    """AllGather around the rail; multicast passes each chunk on inside the node. Bytes over GB/s count as us (sic)."""
    chunks, others = ceil_div(nbytes, _table(communicator).ring_chunk_bytes), _rail_ranks(communicator) - 1
    fewest, most = communicator.ctas
    blocks = max(fewest, min(most, communicator.release.symmetric.max_blocks, chunks, _multicast_blocks(communicator)))
    inside = f32(nbytes * communicator.ranks) / f32(_row(communicator).link_gbs)
    between = f32(nbytes * others) / f32(communicator.net_gbs)
    time_us = f32((chunks * others) % 2**32) * f32(_net_latency_us(communicator)) + max(inside, between)
    return RailChoice("GinHier_MCRing", blocks, f32(time_us), False)


@RING_RULES(nccl.QUERY_MODEL_GIN(since="2.29.7"))
def rail_ring(communicator: Comm, request: Request, nbytes: int) -> RailChoice:
    """The data goes around the rail, and multicast passes each chunk on inside the node."""
    fewest, most = _limits(communicator, request, _multicast_blocks(communicator))
    chunks, others = ceil_div(nbytes, _table(communicator).ring_chunk_bytes), _rail_ranks(communicator) - 1
    inside = f32(nbytes * communicator.ranks) / f32(_link_bps(communicator))
    between = f32(nbytes * others) / f32(_net_bps(communicator))
    seconds = (chunks * others) % 2**32 * SECONDS * _net_latency_us(communicator) + float(max(inside, between))
    return RailChoice("RailRing_LsaSTMC", max(fewest, min(most, chunks)), f32(MICROSECONDS * seconds), False)


def _multicast_blocks(communicator: Comm) -> int:
    row = communicator.release.symmetric.row(communicator.min_comp_cap)
    blocks: int = ceil_div(row.multicast_blocks, communicator.nvls_heads)
    return blocks


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Every node adds up its ranks' parts for each other node, and sends the sum along the rail."""

    communicator: Comm
    reads_multicast: bool

    def choice(self, request: Request, nbytes: int) -> RailChoice:
        default = given(_table(self.communicator).chunk_bytes, "symmetric.rail.chunk_bytes")
        chunk = symmetric_variables.rail_chunk_bytes(self.communicator, default)
        fewest, most = _limits(self.communicator, request, self.communicator.release.symmetric.max_blocks)
        most = min(most, _inbox_blocks(self.communicator), self.saturating_blocks)
        blocks = max(fewest, min(most, ceil_div(nbytes, chunk)))
        link, net = _link_bps(self.communicator), _net_bps(self.communicator)
        rate = min(blocks * (self.block_bps / self.in_block), self.wires_bps)
        seconds = nbytes / rate
        seconds += min(nbytes, chunk * blocks) * (self.over_links / link + self.over_net / net)
        seconds += SECONDS * _net_latency_us(self.communicator)
        name = "RailA2A_LsaLDMC" if self.reads_multicast else "RailA2A_LsaLD"
        return RailChoice(name, blocks, f32(MICROSECONDS * seconds), self.reads_multicast)

    @property
    def saturating_blocks(self) -> int:
        """The number of blocks that keeps the slower of links and network busy."""
        return math.ceil(min(float(1 << 30), self.wires_bps / (self.block_bps / self.in_block)))

    @property
    def wires_bps(self) -> float:
        """The bandwidth of the slower of links and network; if a node has only one rank, it has no links to wait
        for."""
        links = _link_bps(self.communicator) / self.over_links if self.over_links else math.inf
        return min(links, _net_bps(self.communicator) / self.over_net)

    @property
    def block_bps(self) -> float:
        row = _row(self.communicator)
        block_gbs = row.multicast_block_gbs if self.reads_multicast else row.block_gbs
        return GBS * given(block_gbs, "symmetric.rail.block_gbs")

    @property
    def over_links(self) -> float:
        """Number of times that a rank's part crosses NVLink."""
        local = self.communicator.lsa_ranks
        return float(max((local if self.reads_multicast else local - 1), local - 1) * _rail_ranks(self.communicator))

    @property
    def over_net(self) -> float:
        return float(_rail_ranks(self.communicator) - 1)

    @property
    def in_block(self) -> float:
        """Number of times that a block reads the input."""
        local, others = self.communicator.lsa_ranks, _rail_ranks(self.communicator) - 1
        parts = 1 if self.reads_multicast else local
        return float((0 if local == 1 else parts * others) + parts + others)


def _inbox_blocks(communicator: Comm) -> int:
    """The number of blocks for which there are buffers, which are allocated once for both kernels."""
    fewest, most = communicator.ctas
    blocks = max(_Gathered(communicator, reads).saturating_blocks for reads in (False, True))
    requested = symmetric_variables.requested_blocks(communicator)
    blocks = min(max(blocks, fewest), most) if requested is None else requested
    return min(blocks, communicator.release.symmetric.max_blocks)


def _limits(communicator: Comm, request: Request, own: int) -> tuple[int, int]:
    """The fewest and the most blocks of a kernel that may have ``own`` blocks."""
    requested = symmetric_variables.requested_blocks(communicator)
    if requested is not None:
        return requested, requested
    of_call = _table(communicator).blocks_of_call
    fewest, most = launch.ctas(communicator, request) if of_call else communicator.ctas
    most = min(most, communicator.release.symmetric.max_blocks, own)
    return min(fewest, most) if of_call else fewest, most


def _scatters(communicator: Comm, collective: Collective) -> bool:
    return collective is Collective.ReduceScatter and _table(communicator).chunk_bytes is not None


def _rail_ranks(communicator: Comm) -> int:
    """The number of ranks of a rail (ncclTeamRail): the number of nodes, if all nodes have the same number of ranks."""
    return communicator.ranks // communicator.lsa_ranks


def _table(communicator: Comm) -> RailKernels:
    return given(communicator.release.symmetric.rail, "symmetric.rail")


def _row(communicator: Comm) -> RailRow:
    return _table(communicator).blackwell if communicator.min_comp_cap >= 100 else _table(communicator).hopper


def _link_bps(communicator: Comm) -> float:
    return GBS * _row(communicator).link_gbs


def _net_bps(communicator: Comm) -> float:
    return GBS * float(f32(communicator.net_gbs))


def _net_latency_us(communicator: Comm) -> float:
    return communicator.release.hw_latency_us["net"][Algorithm.Ring][Protocol.Simple]

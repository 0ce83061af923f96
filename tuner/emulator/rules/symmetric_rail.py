"""Symmetric kernels of several nodes: NVLink inside a node, and transfers that GPUs start (GIN) between nodes.

Ranks with the same place in their nodes are a rail. Source: queryModel_gin, src/sym_kernels.cc, v2.30.7-1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import ceil_div, f32
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.rules import launch, symmetric_sides, symmetric_variables, windows
from tuner.release.schema import given
from tuner.release.symmetric import RailKernels, RailRow

GBS, SECONDS, MICROSECONDS = 1e9, 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class RailChoice:
    """A kernel on its blocks. NCCL keeps the time of AllGather's only one in seconds (sic)."""

    name: str
    blocks: int
    time_us: np.float32
    reads_multicast: bool


def exist(communicator: Communicator) -> bool:
    """Whether the communicator may run kernels of rails. Errors: those of :func:`windows.are_made`."""
    known = communicator.release.symmetric.rail is not None
    return known and windows.are_made(communicator) and symmetric_variables.rails_enabled(communicator)


def exist_for(communicator: Communicator, request: Request) -> bool:
    """Whether there are any for the collective. Errors: those of :func:`windows.are_made`."""
    for_call = request.collective in (Collective.AllGather, Collective.ReduceScatter)
    return exist(communicator) and for_call and symmetric_sides.suffice(communicator, request)


def exist_without_windows(communicator: Communicator) -> bool:
    """The same where there are no windows and nothing says whether there is GIN: then there is none."""
    said = communicator.environment.number(symmetric_variables.GIN, symmetric_variables.NO_GIN)
    return said == symmetric_variables.GDAKI and exist(communicator)


def weighed(communicator: Communicator, request: Request, nbytes: int, multicast: bool) -> Iterator[RailChoice]:
    """The kernels that can do a call of ``nbytes`` for each rank, in NCCL's order, with their times."""
    if request.collective is Collective.AllGather and multicast:
        yield _ring(communicator, request, nbytes)
    if request.collective is Collective.ReduceScatter:
        yield _Gathered(communicator, False).choice(request, nbytes)
        if multicast:
            yield _Gathered(communicator, True).choice(request, nbytes)


def _ring(communicator: Communicator, request: Request, nbytes: int) -> RailChoice:
    """Around the rail, each chunk handed on inside the node by multicast."""
    table = _table(communicator)
    row = communicator.release.symmetric.row(communicator.min_comp_cap)
    fewest, most = _limits(communicator, request, ceil_div(row.multicast_blocks, communicator.nvls_heads))
    chunks, others = ceil_div(nbytes, table.ring_chunk_bytes), communicator.nodes - 1
    inside = f32(nbytes * communicator.ranks) / f32(_link_bps(communicator))
    between = f32(nbytes * others) / f32(_net_bps(communicator))
    seconds = (chunks * others) % 2**32 * _net_latency(communicator) + float(max(inside, between))
    return RailChoice("RailRing_LsaSTMC", max(fewest, min(most, chunks)), f32(MICROSECONDS * seconds), False)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Every node adds its ranks' parts for each other node and sends the sum along the rail."""

    communicator: Communicator
    reads_multicast: bool

    def choice(self, request: Request, nbytes: int) -> RailChoice:
        chunk = symmetric_variables.rail_chunk_bytes(self.communicator, _table(self.communicator).chunk_bytes)
        fewest, most = _limits(self.communicator, request, self.communicator.release.symmetric.max_blocks)
        most = min(most, _inbox_blocks(self.communicator), self.saturating_blocks)
        blocks = max(fewest, min(most, ceil_div(nbytes, chunk)))
        link, net = _link_bps(self.communicator), _net_bps(self.communicator)
        rate = min(blocks * (self.block_bps / self.in_block), self.wires_bps)
        seconds = nbytes / rate
        seconds += min(nbytes, chunk * blocks) * (self.over_links / link + self.over_net / net)
        seconds += _net_latency(self.communicator)
        name = "RailA2A_LsaLDMC" if self.reads_multicast else "RailA2A_LsaLD"
        return RailChoice(name, blocks, f32(MICROSECONDS * seconds), self.reads_multicast)

    @property
    def saturating_blocks(self) -> int:
        """Blocks that keep the slower of links and network busy."""
        return math.ceil(min(float(1 << 30), self.wires_bps / (self.block_bps / self.in_block)))

    @property
    def wires_bps(self) -> float:
        """Of the slower of links and network; a rank alone in its node has no links to wait for."""
        links = _link_bps(self.communicator) / self.over_links if self.over_links else math.inf
        return min(links, _net_bps(self.communicator) / self.over_net)

    @property
    def block_bps(self) -> float:
        row = _row(self.communicator)
        return GBS * (row.multicast_block_gbs if self.reads_multicast else row.block_gbs)

    @property
    def over_links(self) -> float:
        """How often a rank's part crosses NVLink."""
        local = self.communicator.local_ranks
        return float(max((local if self.reads_multicast else local - 1), local - 1) * self.communicator.nodes)

    @property
    def over_net(self) -> float:
        return float(self.communicator.nodes - 1)

    @property
    def in_block(self) -> float:
        """How often a block reads it."""
        local, others = self.communicator.local_ranks, self.communicator.nodes - 1
        parts = 1 if self.reads_multicast else local
        return float((0 if local == 1 else parts * others) + parts + others)


def _inbox_blocks(communicator: Communicator) -> int:
    """For how many blocks there are buffers: made once, for either kernel."""
    fewest, most = communicator.ctas
    blocks = max(_Gathered(communicator, reads).saturating_blocks for reads in (False, True))
    requested = symmetric_variables.requested_blocks(communicator)
    blocks = min(max(blocks, fewest), most) if requested is None else requested
    return min(blocks, communicator.release.symmetric.max_blocks)


def _limits(communicator: Communicator, request: Request, own: int) -> tuple[int, int]:
    """The fewest and the most blocks of a kernel that may have ``own``."""
    requested = symmetric_variables.requested_blocks(communicator)
    if requested is not None:
        return requested, requested
    of_call = _table(communicator).blocks_of_call
    fewest, most = launch.ctas(communicator, request) if of_call else communicator.ctas
    most = min(most, communicator.release.symmetric.max_blocks, own)
    return min(fewest, most) if of_call else fewest, most


def _table(communicator: Communicator) -> RailKernels:
    return given(communicator.release.symmetric.rail, "symmetric.rail")


def _row(communicator: Communicator) -> RailRow:
    return _table(communicator).blackwell if communicator.min_comp_cap >= 100 else _table(communicator).hopper


def _link_bps(communicator: Communicator) -> float:
    return GBS * _row(communicator).link_gbs


def _net_bps(communicator: Communicator) -> float:
    return GBS * float(f32(communicator.net_gbs))


def _net_latency(communicator: Communicator) -> float:
    """Seconds."""
    return SECONDS * communicator.release.hw_latency_us["net"][Algorithm.Ring][Protocol.Simple]

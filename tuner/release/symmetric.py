"""Constants of NCCL's model of its symmetric kernels, which carry calls on symmetric windows."""

from collections.abc import Mapping
from typing import Annotated, Literal

from tuner.base.dataclass import dataclass
from tuner.base.names import Collective
from tuner.release.convert import PARTIAL

ByCollective = Annotated[Mapping[Collective, float], PARTIAL]
Bus = Literal["low_latency", "scatter_and_gather", "switch", "others"]
Multiplier = Literal["one", "a_tenth_more", "ranks", "more_than_half_the_ranks", "nearly_as_much"]


@dataclass(frozen=True, slots=True, eq=False)
class BaseLatency:
    """Latencies of a collective before any byte is moved."""

    low_latency: ByCollective
    bulk: ByCollective


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricRow:
    """The model's constants for one GPU generation."""

    multicast_blocks: int  # blocks that share the switch's multicast, all ranks together
    base_us: BaseLatency
    block_gbs: ByCollective
    peak_gbs: ByCollective
    peak_reduce_gbs: float  # for reductions in the switch


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricKernel:
    """One symmetric kernel: which bytes cross the bus, what the kernel needs, and how it differs from its generation's
    row."""

    bus: Bus
    multiplier: Multiplier = "one"  # on the bandwidth of a block
    low_latency: bool = False
    few: bool = False  # all ranks together run at most ``multicast_blocks`` blocks of it
    multicast: bool = False
    reads_multicast: bool = False
    reduces_in_switch: bool = False
    base_more_us: float = 0.0
    peak_gbs: float | None = None
    peak_factor: float = 1.0
    bulk_unit_bytes: int | None = None  # the smallest unit of a kernel that copies in bulk (TMA)
    bulk_per_rank: bool = False
    bulk_per_block: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class AllToAll:
    """Constants of one AllGather kernel, in the model that counts the work of blocks and of links."""

    base_us: float
    rank_us: float
    compute_gbs: float  # 0: the work of blocks is not counted
    block_gbs: float
    peak_gbs: float
    copies: Literal["all", "one", "others"]
    scale: Literal["none", "alone", "dip"] = "none"
    overlap_blocks: float | None = None
    efficient_peak: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RailRow:
    """Constants of kernels that span several nodes. A block's bandwidth depends on how it reads its own node's data."""

    link_gbs: float
    block_gbs: float | None = None
    multicast_block_gbs: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RailKernels:
    """The kernels that span several nodes, in which GPUs start network transfers themselves."""

    hopper: RailRow  # below compute capability 10.0
    blackwell: RailRow
    ring_chunk_bytes: int
    chunk_bytes: int | None = None  # for ReduceScatter; None: the release has no such kernels for ReduceScatter
    can_be_disabled: bool = True  # NCCL_SYM_GIN_KERNELS_ENABLE can turn these kernels off
    multicast_is_known: bool = False  # whether multicast works is known before any window is made
    chunk_is_variable: bool = False
    # The lowest and highest numbers of blocks come from the call; the lowest is at most the kernel's highest
    blocks_of_call: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Symmetric:
    """The symmetric kernels of a release. ``names`` lists all kernels with their collective, in NCCL's order."""

    names: tuple[str, ...]
    # How buffers in windows count if symmetric memory is not supported
    unsupported_windows: Literal["registered", "plain"]
    window_flags: tuple[str, ...]  # the flags of NCCL_WIN_* that the release has, besides the default
    # What has to join all GPUs of a node: peer-to-peer within NCCL_P2P_LEVEL, or CUDA's peer access at any distance
    gpus_joined_by: Literal["peer_to_peer", "cuda"]
    # Which of a call's buffers have to be in windows before NCCL looks for a kernel
    windows_of_a_call: Literal["both", "any"]
    # Buffers in windows count as registered by ncclCommRegister, unless NCCL_LOCAL_REGISTER=0
    windows_are_registered: bool
    threads: int
    max_blocks: int
    cell_bytes: int
    # Blocks get cells of several calls; otherwise a kernel carries one call, and its blocks compute their own parts
    deals_cells: bool
    symbol: str  # the beginning of the kernels' symbols
    argument_head_bytes: int  # bytes of a kernel's arguments before those of each block and each call
    low_latency_below_bytes: int
    below_bytes: int
    multicast_from_ranks: int
    # NCCL notes that multicast works only when a kernel has been launched, if no window was made
    multicast_is_noted_late: bool
    # The flags of the windows whose creation notes that multicast works
    multicast_is_noted_by: Literal["symmetric_windows", "windows"]
    waits_for_any: bool  # calls of a group wait for kernels whatever NCCL_SYM_KERNEL allows
    last_of_equals: bool  # if several kernels have the same score, the last one wins; otherwise the first
    copies_in_bulk: bool  # kernels copy in bulk unless NCCL_SYM_TMA_ENABLE says otherwise
    ops: tuple[str, ...]
    ops_without_kernels: Annotated[Mapping[Collective, tuple[str, ...]], PARTIAL]
    hopper: SymmetricRow  # below compute capability 10.0
    blackwell: SymmetricRow
    kernels: Annotated[Mapping[Collective, Mapping[str, SymmetricKernel]], PARTIAL]
    copied_over_elements: int | None = None  # AllGather on Blackwell uses copy engines above this
    copied_over_times_without_multicast: int | None = None
    all_to_all: Mapping[str, AllToAll] | None = None
    rail: RailKernels | None = None

    def row(self, comp_cap: int) -> SymmetricRow:
        """The constants of the GPU generation of a compute capability (90 for 9.0)."""
        return self.blackwell if comp_cap >= 100 else self.hopper

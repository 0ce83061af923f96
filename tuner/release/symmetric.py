"""Constants of calls on symmetric windows: NCCL's model of its symmetric kernels."""

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
    """Latencies before any byte is moved, by collective."""

    low_latency: ByCollective
    bulk: ByCollective


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricRow:
    """The model's constants for one generation of GPUs."""

    multicast_blocks: int  # shared by the ranks
    base_us: BaseLatency
    block_gbs: ByCollective
    peak_gbs: ByCollective
    peak_reduce_gbs: float  # where the switch reduces


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricKernel:
    """One kernel: which bytes cross the bus, what it needs, and how it differs from its row."""

    bus: Bus
    multiplier: Multiplier = "one"  # of a block's bandwidth
    low_latency: bool = False
    few: bool = False  # on no more than the blocks that share the switch
    multicast: bool = False
    reads_multicast: bool = False
    reduces_in_switch: bool = False
    base_more_us: float = 0.0
    peak_gbs: float | None = None
    peak_factor: float = 1.0
    bulk_unit_bytes: int | None = None  # the least that a kernel that copies in bulk (TMA) takes
    bulk_per_rank: bool = False
    bulk_per_block: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class AllToAll:
    """Constants of one AllGather kernel in the model that counts the work of blocks and of links."""

    base_us: float
    rank_us: float
    compute_gbs: float  # 0: the blocks' work is not counted
    block_gbs: float
    peak_gbs: float
    copies: Literal["all", "one", "others"]
    scale: Literal["none", "alone", "dip"] = "none"
    overlap_blocks: float | None = None
    efficient_peak: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RailRow:
    """Constants of kernels of several nodes; a block's bandwidth depends on how it reads its node's parts."""

    link_gbs: float
    block_gbs: float | None = None
    multicast_block_gbs: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RailKernels:
    """The kernels of several nodes, between which GPUs start transfers themselves."""

    hopper: RailRow  # before compute capability 10.0
    blackwell: RailRow
    ring_chunk_bytes: int
    chunk_bytes: int | None = None  # of ReduceScatter; without it there are no kernels of that
    can_be_disabled: bool = True  # by NCCL_SYM_GIN_KERNELS_ENABLE
    multicast_is_known: bool = False  # before any window is made
    chunk_is_variable: bool = False
    blocks_of_call: bool = False  # the fewest and the most are the call's, the fewest no more than the kernel's most


@dataclass(frozen=True, slots=True, eq=False)
class Symmetric:
    """Everything about symmetric kernels; ``names`` lists all kernels with their collective, in NCCL's order."""

    names: tuple[str, ...]
    unsupported_windows: Literal["registered", "plain"]  # what buffers in windows are without symmetric memory
    window_flags: tuple[str, ...]  # of NCCL_WIN_*, besides the default
    gpus_joined_by: Literal["peer_to_peer", "cuda"]  # what has to join all of a node: within NCCL_P2P_LEVEL, or at all
    windows_of_a_call: Literal["both", "any"]  # which buffers have to be in windows before kernels are looked for
    windows_are_registered: bool  # as by ncclCommRegister, which NCCL_LOCAL_REGISTER=0 keeps from having an effect
    threads: int
    max_blocks: int
    cell_bytes: int
    deals_cells: bool  # to blocks, of several calls; else a kernel does one call, whose blocks know their parts
    symbol: str  # what kernels' symbols begin with
    argument_head_bytes: int  # of a kernel, before what each block and each call have
    low_latency_below_bytes: int
    below_bytes: int
    multicast_from_ranks: int
    multicast_is_noted_late: bool  # outside windows: when a kernel has been launched
    multicast_is_noted_by: Literal["symmetric_windows", "windows"]  # of which flags, as they are made
    waits_for_any: bool  # calls of a group wait for kernels whatever NCCL_SYM_KERNEL leaves of them
    last_of_equals: bool  # of kernels of equal score the last wins, else the first
    copies_in_bulk: bool  # unless NCCL_SYM_TMA_ENABLE says otherwise
    ops: tuple[str, ...]
    ops_without_kernels: Annotated[Mapping[Collective, tuple[str, ...]], PARTIAL]
    hopper: SymmetricRow  # before compute capability 10.0
    blackwell: SymmetricRow
    kernels: Annotated[Mapping[Collective, Mapping[str, SymmetricKernel]], PARTIAL]
    copied_over_elements: int | None = None  # AllGather on Blackwell: copy engines beyond it
    copied_over_times_without_multicast: int | None = None
    all_to_all: Mapping[str, AllToAll] | None = None
    rail: RailKernels | None = None

    def row(self, comp_cap: int) -> SymmetricRow:
        """The constants of the GPU generation with this compute capability, 90 for 9.0."""
        return self.blackwell if comp_cap >= 100 else self.hopper

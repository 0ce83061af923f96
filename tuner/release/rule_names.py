"""Names of the rules that a release is made of; ``tuner.emulator.rules.resolved`` has the functions of these names.

A tuple is applied in its order. None stands where no rule of that kind applies: ``[]`` in a release's file.
"""

from collections.abc import Mapping
from typing import Annotated

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Collective
from tuner.release.convert import PARTIAL

ByAlgorithm = Annotated[Mapping[Algorithm, tuple[str, ...]], PARTIAL]


@dataclass(frozen=True, slots=True, eq=False)
class RuleNames:
    """The table ``[rules]`` of a release."""

    # A communicator's init: variables, channels, CollNet, what ranks agree on
    ctas: str
    cta_policy: str
    grammar: str  # of NCCL_ALGO and NCCL_PROTO
    channels: tuple[str, ...]
    nvls_channels: str
    nvls_search_start: str | None  # the type of a NVLS graph without channels; None where it reaches no latency
    collnet: tuple[str, ...]
    collnet_heads: str
    collnet_direct_heads: str
    comp_caps: str
    cpu: str
    table_cpu: str
    tree_pattern: str
    domains: str  # which NVLink domains are nodes
    nvls_if_shared: str | None  # where NVLS is off as ranks share GPUs; None: none do

    # The tables of latency and bandwidth
    exists: Mapping[Collective, tuple[Algorithm, ...]]  # the rows the model fills
    fills: ByAlgorithm  # conditions for a row to be filled at all
    enabled: tuple[str, ...]
    ring_backup: tuple[str, ...]  # what Ring's backup obeys; empty: there is none
    bandwidth: ByAlgorithm
    latency: ByAlgorithm
    hw_latency_row: tuple[str, ...]
    network_step: str
    ring_network_steps: str
    printed_table: str

    # The pick of a call
    fp8_needs_hopper: str
    candidate: tuple[str, ...]
    time: tuple[str, ...]
    penalty: tuple[str, ...]
    pick: str

    # Its launch: channels and threads
    launch: str
    thread_product: str
    nvls_kind: str
    nvls_bound: str
    bound_channels: str
    tuned_channels: str  # the bound where a tuner plugin sets channels
    tuned_threads: str  # the channels that threads go by then
    block: str
    channel_split: str
    traffic_per_channel: str
    registered: tuple[str, ...]  # on registered buffers; empty: the release registers none

    # Groups of calls
    schedule: str
    task_order: str
    counted_traffic: str
    device_op: str
    function: str
    device_functions: str
    channel_work: str  # what each channel of a call is handed
    nvls_chunk: str
    direct_access: str
    op_argument: str
    bypass_first: str | None  # what a group sets aside for symmetric kernels and copy engines
    symmetric_queue: str | None  # what waits for symmetric kernels even without windows
    symmetric_reach: str | None  # where symmetric kernels reach every rank
    group_bytes: str | None  # bytes of a group that shrink a channel's share
    channel_bytes: str | None  # the most bytes of a channel before that
    work_estimate: str | None  # bytes that decide whether a kernel has room

    # Calls on symmetric windows
    non_classic_path: str
    symmetric_blocks: str
    symmetric_time: str
    windows_between_nodes: str | None  # whether a window is made there
    copies_between_nodes: str | None  # what copy engines do there
    symmetric_ring: str | None  # AllGather's kernel between nodes
    symmetric_requested: str  # which kernels NCCL_SYM_KERNEL leaves
    symmetric_arguments: str | None  # which calls fail without room for a symmetric kernel's arguments
    symmetric_low_latency: str | None  # where calls not all in windows get symmetric kernels of low latency

"""Records of a release's file: the constants of NCCL's model and selection, each named as in the file.

Units are in the names: ``_us``, ``_gbs`` (1e9 bytes per second), ``_bytes``. A constant that only some releases have is
None in the others. :mod:`tuner.release.reader` checks and converts; ``tables/nccl`` has the sources. Most records
cannot be compared, as creating that method would slow down every command.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadReleaseFile
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.release.convert import PARTIAL
from tuner.release.search import Search
from tuner.release.standing import Standing
from tuner.release.symmetric import Symmetric

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
    nvls_search_start: str | None  # the type of a NVLS graph without channels; None if it reaches no latency
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
    tuned_threads: str  # the channels that threads depend on then
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


# What a release's file says of sends and receives: named rules and numbers, table ``[exchange]``.
#
# ``tuner.emulator.p2p`` has what the names stand for.


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeTable:
    """The table ``[exchange]``."""

    # What goes into a kernel: messages cut into chunks, each on one channel, in works of 16; or rounds of one send and
    # one receive each, whose parts are on neighbouring channels, in batches of 8.
    planner: Literal["chunks", "rounds"]
    # The order of peers: nodes near and far in turn, and the ranks of each; differences of node, then of rank, that
    # grow by one more each time; the same of groups of ranks, and every rank of a group.
    order: Literal["nodes_up_and_down", "growing_steps", "growing_steps_of_groups"]
    group_ranks: Literal["of_node", "fixed", "fixed_across_nodes"]  # in a group: a node's, or so many
    # Which channels: part by part as their numbers' bits are mirrored; or neighbours, from a mirrored first one on.
    spread: Literal["parts", "first_channel"]

    # Channels per peer over the network without NCCL_NCHANNELS_PER_NET_PEER: 2; as many as a GPU's adapters, and 2
    # where there are few ranks; as many as the adapters' bandwidth needs.
    net_channels: Literal["two", "by_adapters", "by_bandwidth"]
    # Which values of NCCL_NCHANNELS_PER_NET_PEER count; others are as if it was not set. Below 0 they limit nothing.
    per_net_peer_counts: Literal["all", "but_minus_one", "from_one"]
    least_of: Literal["own_node", "all_ranks"]  # whose links limit the channels per peer
    max_peers: bool  # NCCL_P2P_MAX_PEERS, or all ranks, share the channels
    nvb_counts_links: bool  # two hops of NVLink have as many channels as links, not two
    all_nvlink: Literal["nearest", "farthest"]  # the path between GPUs that says whether all reach each other by NVLink
    # Whether hosts that NVLink joins reach each other by it where they are nodes; "off": NCCL_MNNVL_ENABLE=0;
    # "where_used": domains are, and NCCL takes parts of them for nodes.
    fabric_reaches_hosts: Literal["never", "where_used", "unless_off", "always"]
    parts_share_memory: bool  # the nodes that one host is for NCCL reach each other by shared memory
    chunk_within_buffer: bool  # a chunk is no larger than a step of the buffer of Simple
    net_chunks_of_arm_blackwell: int  # how many times larger a network chunk is there

    # How many channels one message has
    fewer_for_many_ranks: Literal["always", "on_one_node", "for_small"]
    least_part_across_nodes: int  # parts of a chunk: a message has no channel for less
    ll_bytes_per: Literal["message", "channel_of_peer", "channel_used"]  # what NCCL_P2P_LL_THRESHOLD is of
    quarter_chunks: Literal["always", "simple"]  # of small messages over the network: whatever the protocol, or Simple

    # What runs together
    fused: Literal["by_step", "by_chunk"]  # when works begin anew every 8 steps of the order
    batches_of_near_rounds: bool  # only rounds of the same eight
    sweeps: Literal["any", "apart"]  # whether a batch may have messages of several sweeps over all peers
    resumes: bool  # the next kernel goes on where the order stopped as one was full, and not with the nearest peer

    channel_bandwidth_gbs: float  # NCCL_P2P_PER_CHANNEL_NET_BW
    net_chunk_bytes: int
    nvlink_chunk_bytes: int
    pci_chunk_bytes: int
    ll_threshold_bytes: int
    broadcasts_together: bool  # those of a group from several roots are one call, AllGatherV
    own_functions: bool  # ncclAlltoAll, ncclGather, ncclScatter


# What a release's file says of how NCCL joins the graphs of nodes into channels: named rules, table ``[connect]``.
#
# ``tuner.emulator.connect`` has what the names stand for.


@dataclass(frozen=True, slots=True, eq=False)
class Connect:
    """The table ``[connect]``."""

    # Where rings 2k and 2k + 1 of every second node change places, so that both ends of a connection are on one rail:
    # on an even number of nodes where the own ring crosses adapters; where any node's does; where any node's was
    # searched in pairs (crossNic 2); on the nodes whose ring was.
    swapped_rings: Literal["never", "by_own_graph", "by_any_graph", "by_any_pairs", "by_own_pairs"]
    # The GPUs at which NVLS channels begin: of as many channels as all rings, or as the node's rings, have, and rank 0
    # for further ones; or each GPU once; or the same, read in steps of as many as a NVLink domain has ranks (sic),
    # which are more than the node's where NCCL takes the domain for several.
    nvls_heads: Literal["of_common_rings", "of_own_rings", "distinct", "distinct_by_domain"]
    nvls_joined: Literal["before_copies", "after_copies"]  # when the channels get these heads and their trees
    nvls_adapters: Literal["first", "in_turn"]  # of a head at which several channels begin
    # Where PAT is connected as a communicator is made, if that is not left to the first call.
    pat_at_once: Literal["one_rank_per_node", "or_with_nvls"]
    split_keeps_collnet: bool  # where it has as many nodes as the whole and shares nothing; else it has none


T = TypeVar("T")
Generation = Literal["volta", "ampere", "hopper", "blackwell"]
Hardware = Literal["nvlink", "pci", "net"]
CapName = Literal["ll", "ring_ll128_per_channel", "tree_ll128_per_channel", "tree_per_channel", "nvls_tree_per_channel"]
PathName = Literal["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"]
Latencies = Mapping[Algorithm, Mapping[Protocol, float]]
HARDWARE: tuple[Hardware, ...] = ("nvlink", "pci", "net")
SEARCHED_FOR = ("NCCL_COLLNET_ENABLE", "NCCL_NVLS_ENABLE")  # which graphs are searched for, beside other effects
BUILDS = ("cu12", "cu13")  # of libnccl, by the major version of CUDA; the first where none is named


@dataclass(frozen=True, slots=True, eq=False)
class LibraryFile:
    """libnccl.so.2 of one of the release's wheels, for one processor architecture."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Plugin:
    """How the release treats tuner plugins."""

    api: int  # newest version of the interface that it looks up
    longest_path: int  # characters of a path that works as NCCL_TUNER_PLUGIN; 0: a name alone does
    keeps_constants: bool  # what a plugin's init makes of the constants reaches the model
    none_turns_off: bool  # NCCL_TUNER_PLUGIN=none is no file that is missing, but turns every tuner off
    network_has_one: bool  # where the named file is missing, the network plugin's library is asked for a tuner
    negative_excludes: bool  # a time below 0 that a tuner writes excludes the cell; else it is the least there is
    revives: bool  # a time that a tuner writes into a cell that NCCL ignores makes that one to choose from


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of NCCL's structures and bounds of its loops."""

    algorithms: int
    data_types: int
    max_channels: int
    warp_size: int
    max_threads: int
    min_block_threads: int
    min_traffic_per_channel_bytes: int
    ll_traffic: int  # how often a byte of LL counts as traffic
    cell_alignment_bytes: int
    work_bytes: int
    batch_bytes: int
    work_fifo_bytes: int
    work_fifo_holds_group: bool  # what a group puts into it is taken out when all its kernels are launched
    colls_per_batch: int
    max_direct_local_ranks: int
    max_nvls_local_ranks: int
    tree_corrections: int
    kernel_args_bytes: int
    work_batch_bytes: int
    max_time_us: float
    buffer_steps: int  # of a connection's buffer
    ll_buffer_bytes: int
    ll128_buffer_bytes: int
    simple_buffer_bytes: int
    nvls_chunk_bytes: int
    nvls_last_chunk_alignment_bytes: int  # of the chunks that the device shortens itself
    simple_buffer_bytes_on_arm: int | None = None
    nvls_tree_corrections: int | None = None
    nvls_tree_corrections_on_two_arm_nodes: int | None = None
    max_nvls_gather_channels: int | None = None
    gpus_without_nvls: int | None = None
    work_fifo_depth: int | None = None
    work_fifo_bytes_of_blackwell_domain: int | None = None  # of multi-node NVLink; None: as elsewhere
    part_alignment_bytes: int | None = None
    simple_alignment_bytes: int | None = None
    ll128_alignment_bytes_per_warp: int | None = None
    ll_alignment_bytes_per_thread: int | None = None
    aggregated_bytes_per_channel_and_rank: int | None = None
    aggregated_bytes_per_channel_with_collnet: int | None = None
    aggregated_ranks: int | None = None
    min_aggregated_bytes_per_channel: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """Types of paths, the nearest first; ``gpu_direct`` is the farthest adapter that may read a GPU's memory."""

    types: tuple[PathName, ...]
    gpu_direct: PathName

    def rank(self, path_type: str) -> int:
        """The number NCCL gives a path type; smaller is nearer."""
        names: tuple[str, ...] = self.types
        return names.index(path_type)


@dataclass(frozen=True, slots=True, eq=False)
class LL128:
    """Compute capabilities (90 for 9.0) that LL128 was tested on."""

    tested: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RingPlateau:
    """Factors on the latency of Ring/Simple AllReduce, by generation."""

    from_bytes_per_channel_and_rank: int
    volta: float
    ampere: float
    hopper: float
    blackwell: float
    fade: float | None = None  # how much of the factor on one Blackwell node fades with the size
    fades_from_bytes_per_channel_and_rank: int | None = None

    @property
    def factors(self) -> Mapping[Generation, float]:
        """Values by generation, in the order of the tables."""
        return {"volta": self.volta, "ampere": self.ampere, "hopper": self.hopper, "blackwell": self.blackwell}


@dataclass(frozen=True, slots=True, eq=False)
class Threads:
    """Threads of a block: ``default``, or what the variable ``env`` sets, within ``min`` and ``max``.

    ``slow_default`` applies if a ring has at most ``slow_gbs``.
    """

    default: int
    min: int | None = None
    max: int | None = None
    env: str | None = None
    slow_default: int | None = None
    slow_gbs: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ThreadThresholds:
    """Bytes that each thread gets before there are more threads."""

    ll: int
    ll128: int
    simple: int
    collnet_simple: int


@dataclass(frozen=True, slots=True, eq=False)
class NvlsChannels:
    """Channels of NVLS by generation; ``blackwell_fewer`` from three nodes on, if adapters reach ``fast_net_gbs``.

    From ``fastest_net_gbs`` on, with more than ``fastest_net_few_ranks`` per node, the number is the full one again.
    """

    hopper: int
    blackwell: int
    blackwell_one_node: int
    rubin: int | None = None
    rubin_one_node: int | None = None
    blackwell_fewer: int | None = None
    fast_net_gbs: float | None = None
    fastest_net_gbs: float | None = None
    fastest_net_few_ranks: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredNvlsRow:
    """Channels by collective; between nodes ``nodes_fast`` if adapters reach ``fast_net_gbs``."""

    one_node: Annotated[Mapping[Collective, int], PARTIAL]
    nodes: Annotated[Mapping[Collective, int], PARTIAL]
    nodes_fast: Annotated[Mapping[Collective, int], PARTIAL]
    fast_net_gbs: float


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredNvlsChannels:
    """Channels of NVLS on registered buffers, for eight GPUs per node."""

    fast_reduce_scatter_gbs: float
    hopper: RegisteredNvlsRow
    blackwell: RegisteredNvlsRow


@dataclass(frozen=True, slots=True, eq=False)
class ArmNodes:
    """Nodes with ARM processors on which NVLSTree is corrected."""

    local_ranks: int
    fast_net_gbs: float


@dataclass(frozen=True, slots=True, eq=False)
class Variables:
    """Environment variables by what they affect.

    ``non_numeric_is_default``: a text instead of a number means the default; if false, such a text means 0.
    """

    non_numeric_is_default: bool
    known: tuple[str, ...]
    search: tuple[str, ...]  # the search of graphs alone
    nvlink_domains: tuple[str, ...]  # only communicators of several hosts that NVLink joins
    symmetric_kernels: tuple[str, ...]  # only symmetric kernels, which plain buffers may get by them
    registered_buffers: tuple[str, ...]  # only calls on registered buffers, which are refused with them
    indifferent: Mapping[str, tuple[str, ...]]  # no choice, by what they are for
    shares_gpus: str | None = None  # the one that lets several ranks share a GPU; without it none do
    calls_alone: str | None = None  # the one that has each call of a group chosen alone


@dataclass(frozen=True, slots=True, eq=False)
class RankRules:
    """How NCCL treats ranks of one communicator that were started with different settings."""

    checks_release: bool  # the communicator fails where ranks have other releases
    counts_adapters: bool  # and with NCCL_IGNORE_NET_MISMATCH=0 where they have other numbers of adapters
    threads_divide_data: bool  # a block cuts its share by its number of threads, which then has to be the same
    named_configuration_file: bool  # NCCL_CONF_FILE is read instead of the home folder's .nccl.conf
    home_variable: bool  # the home folder is HOME's, not passwd's
    drops_carriage_return: bool  # a line of nccl.conf may end with CR LF; else the CR belongs to the value


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseFile:
    """One file as it was read; ``table`` does not include the parent's."""

    path: str
    table: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """How NCCL treats users' buffers when it chooses."""

    captured_buffers: Literal["registered", "plain"]  # of calls in a CUDA graph
    ring_buffers: Literal["both", "receive"]  # which a ring inside a node takes over to peers
    # Whether peers read and write each other's buffers, and what has to join all of a node then: peer-to-peer, perhaps
    # over a GPU in between, or without.
    peers: Literal["never", "connected", "direct"]
    network: Literal["never", "always", "but_averages"]  # whether adapters read and write the buffers of rings
    flag_of_device: Literal["whether", "by_whom"]  # regUsed: 1, or an ncclRegBufferType
    switch_moves_whole_steps: bool  # AllGather and ReduceScatter in chunks of a step of the buffer


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """One release: its own file merged with its parents'."""

    name: str
    library: Mapping[str, Mapping[str, LibraryFile]]  # by build (cu12, cu13) and architecture (x86_64)
    limits: Limits
    paths: Paths
    generations: Mapping[Generation, int]  # the least compute capability of each (90 for 9.0)
    base_latency_us: Latencies
    hw_latency_us: Mapping[Hardware, Latencies]
    cap_gbs: Mapping[CapName, Mapping[Generation, tuple[float, float, float]]]  # 1 node, 2 nodes, more
    nvls_efficiency: Mapping[Generation, float]
    tree_correction: Mapping[Protocol, tuple[float, ...]]  # by log2(bytes / 64)
    ring_plateau: RingPlateau
    net_overhead_us: Mapping[Literal["intel", "amd", "other"], float]
    threads: Annotated[Mapping[Algorithm, Annotated[Mapping[Protocol, Threads], PARTIAL]], PARTIAL]
    thread_threshold_bytes: ThreadThresholds
    nvls_channels: NvlsChannels
    registration: Registration
    registered_nvls_channels: RegisteredNvlsChannels
    symmetric: Symmetric
    search: Search
    connect: Connect
    exchange: ExchangeTable
    rules: RuleNames
    environment: Variables
    ranks: RankRules
    plugin: Plugin | None = None
    ll128: LL128 | None = None
    nvls_tree_correction_on_arm: ArmNodes | None = None
    # The share of the model's bandwidth that was measured: in no release's file, but in fitted constants.
    efficiency: Annotated[Mapping[Algorithm, Annotated[Mapping[Protocol, float], PARTIAL]], PARTIAL] = field(
        default_factory=lambda: MappingProxyType({})
    )
    files: tuple[ReleaseFile, ...] = field(default=(), repr=False)  # its own first, then its parents'
    standing: Standing | None = None  # of one that was not compared with its library

    @property
    def read_as(self) -> str:
        """The release whose source was read for these rules: itself, or one that it does not differ from."""
        if self.standing is None:
            return self.name
        own = self.files[0].table
        return str(own["parent"] if own.keys() == {"release", "parent"} else own["release"])

    def generation(self, comp_cap: int) -> Generation:
        """The row of a compute capability (90 for 9.0) in the tables by generation."""
        rows = self.generations
        return max((row for row, least in rows.items() if comp_cap >= least), key=rows.__getitem__)

    @property
    def indifferent_variables(self) -> set[str]:
        """The variables that affect no choice."""
        return {name for names in self.environment.indifferent.values() for name in names}

    @property
    def listed_variables(self) -> set[str]:
        """The variables that are emulated or affect no choice, without those that only the search reads."""
        of = self.environment
        of_some = [each for each in (of.shares_gpus, of.calls_alone) if each is not None]
        return {
            *of.known,
            *of.nvlink_domains,
            *of.symmetric_kernels,
            *of.registered_buffers,
            *of_some,
            *self.indifferent_variables,
        }

    @property
    def search_variables(self) -> frozenset[str]:
        """The variables that the search of graphs reads."""
        return frozenset({*self.environment.search, *self.environment.nvlink_domains, *SEARCHED_FOR})

    def file_of(self, key: str) -> str:
        """The file that a dotted key comes from; for an unknown key, the release's own."""
        return file_of(self.files, key)


def given(constant: T | None, key: str) -> T:
    """A constant that only some releases have, for a rule that needs it. BadReleaseFile names a missing key."""
    if constant is None:
        raise BadReleaseFile(f"{key}: missing from the release's file, and one of its rules depends on it")
    return constant


def file_of(files: Sequence[ReleaseFile], key: str) -> str:
    """The first of ``files`` that has a dotted key; for an unknown key, the first of all."""
    parts = key.split("[")[0].split(".")
    for file in files:
        if _has(file.table, parts):
            return file.path
        if parts[0] in file.table.get("without", []):
            break
    return files[0].path


def _has(table: Any, parts: list[str]) -> bool:
    for part in parts:
        if not isinstance(table, Mapping) or part not in table:
            return False
        table = table[part]
    return True

"""Records of a release's file: the constants of NCCL's model and selection, each named as in the file.

Units are in the names: ``_us``, ``_gbs`` (1e9 bytes per second), ``_bytes``. A constant that only some releases have is
None in the others. :mod:`tuner.release.reader` checks and converts the files; ``tables/nccl`` names the source of each
value. Most records have no ``==``, because creating that method would slow down every command.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import lru_cache
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
    """The table ``[rules]`` of a release's file: the name of the rule that the release uses for each step."""

    # Rules of a communicator's init: variables, channels, CollNet, and what the ranks agree on
    ctas: str
    cta_policy: str
    grammar: str  # how NCCL_ALGO and NCCL_PROTO are parsed
    channels: tuple[str, ...]
    nvls_channels: str
    # The type that the search of an NVLS graph starts from, if it finds no channels; None if it affects no latency
    nvls_search_start: str | None
    collnet: tuple[str, ...]
    collnet_heads: str
    collnet_direct_heads: str
    comp_caps: str
    cpu: str
    table_cpu: str
    tree_pattern: str
    domains: str  # which NVLink domains NCCL treats as nodes
    nvls_if_shared: str | None  # when NCCL turns NVLS off because ranks share a GPU; None if ranks cannot share one

    # Rules of the tables of latency and bandwidth
    exists: Mapping[Collective, tuple[Algorithm, ...]]  # the rows that the model fills
    fills: ByAlgorithm  # the conditions for filling a row at all
    enabled: tuple[str, ...]
    # The conditions for Ring's backup bandwidth, which NCCL keeps from before NCCL_ALGO; empty: the release keeps none
    ring_backup: tuple[str, ...]
    bandwidth: ByAlgorithm
    latency: ByAlgorithm
    hw_latency_row: tuple[str, ...]
    network_step: str
    ring_network_steps: str
    printed_table: str

    # Rules of the pick of a call
    fp8_needs_hopper: str
    candidate: tuple[str, ...]
    time: tuple[str, ...]
    penalty: tuple[str, ...]
    pick: str

    # Rules of its launch: channels and threads
    launch: str
    thread_product: str
    nvls_kind: str
    nvls_bound: str
    bound_channels: str
    tuned_channels: str  # how many channels NCCL uses if a tuner plugin sets a number
    tuned_threads: str  # the number of channels from which NCCL then computes the threads
    block: str
    channel_split: str
    traffic_per_channel: str
    registered: tuple[str, ...]  # rules for registered buffers; empty: the release registers none

    # Rules of groups of calls
    schedule: str
    task_order: str
    counted_traffic: str
    device_op: str
    function: str
    device_functions: str
    channel_work: str  # what part of a call each channel gets
    nvls_chunk: str
    direct_access: str
    op_argument: str
    bypass_first: str | None  # which calls of a group go first to symmetric kernels and copy engines; None: none do
    symmetric_queue: str | None  # which calls wait for symmetric kernels even if their buffers are in no window
    symmetric_reach: str | None  # when symmetric kernels reach every rank
    group_bytes: str | None  # the bytes of a group, which reduce what a channel may get
    channel_bytes: str | None  # the most bytes that a channel gets before that reduction
    work_estimate: str | None  # the bytes by which NCCL decides whether a kernel has room for another call

    # Rules of calls on symmetric windows
    non_classic_path: str
    symmetric_blocks: str
    symmetric_time: str
    windows_between_nodes: str | None  # whether communicators of several nodes can make symmetric windows
    copies_between_nodes: str | None  # which collectives copy engines carry between nodes
    symmetric_ring: str | None  # the AllGather kernel between nodes
    symmetric_requested: str  # which kernels NCCL_SYM_KERNEL allows
    symmetric_arguments: str | None  # which calls fail because a symmetric kernel's arguments do not fit
    # Which calls get a low-latency symmetric kernel although not all of their buffers are in windows
    symmetric_low_latency: str | None


# Constants and named rules of sends and receives in a release's file: the table ``[exchange]``. ``tuner.emulator.p2p``
# implements the names.


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeTable:
    """The table ``[exchange]`` of a release's file: how NCCL schedules sends and receives."""

    # What a kernel contains. "chunks": messages are cut into chunks, each on one channel, in works of 16. "rounds":
    # each round has one send and one receive, whose parts are on neighbouring channels, in batches of 8.
    planner: Literal["chunks", "rounds"]
    # The order of peers. "nodes_up_and_down": nodes near and far in turn, with all ranks of each. "growing_steps": the
    # difference of nodes, then of ranks, grows by one with each step. "growing_steps_of_groups": the same for groups of
    # ranks, then every rank of a group.
    order: Literal["nodes_up_and_down", "growing_steps", "growing_steps_of_groups"]
    # Ranks in a group: those of a node, or a fixed number
    group_ranks: Literal["of_node", "fixed", "fixed_across_nodes"]
    # Which channels a message uses. "parts": part by part, each on the channel whose number has mirrored bits.
    # "first_channel": neighbouring channels, beginning with a mirrored one.
    spread: Literal["parts", "first_channel"]

    # Channels per peer over the network if NCCL_NCHANNELS_PER_NET_PEER is not set. "two": 2. "by_adapters": the number
    # of a GPU's adapters, and 2 if there are few ranks. "by_bandwidth": enough for the adapters' bandwidth.
    net_channels: Literal["two", "by_adapters", "by_bandwidth"]
    # Which values of NCCL_NCHANNELS_PER_NET_PEER count; NCCL treats others as not set. A value below 0 limits nothing.
    per_net_peer_counts: Literal["all", "but_minus_one", "from_one"]
    least_of: Literal["own_node", "all_ranks"]  # the ranks whose links limit the channels per peer
    max_peers: bool  # whether NCCL_P2P_MAX_PEERS limits how many ranks share the channels; otherwise all ranks do
    nvb_counts_links: bool  # a path over two NVLinks gets one channel per link; otherwise it gets two
    # Which path between GPUs decides whether all GPUs reach each other by NVLink
    all_nvlink: Literal["nearest", "farthest"]
    # Whether nodes that are hosts joined by NVLink reach each other over it. "unless_off": unless NCCL_MNNVL_ENABLE=0.
    # "where_used": if the communicator uses NVLink domains and NCCL treats parts of them as nodes.
    fabric_reaches_hosts: Literal["never", "where_used", "unless_off", "always"]
    parts_share_memory: bool  # if NCCL treats one host as several nodes, these reach each other through shared memory
    chunk_within_buffer: bool  # a chunk is at most as large as a step of Simple's buffer
    net_chunks_of_arm_blackwell: int  # the factor by which network chunks are larger on Blackwell with ARM processors

    # Number of channels of one message
    fewer_for_many_ranks: Literal["always", "on_one_node", "for_small"]
    least_part_across_nodes: int  # a message gets another channel only for at least 1 / this of a chunk
    # What the bytes of NCCL_P2P_LL_THRESHOLD are compared with
    ll_bytes_per: Literal["message", "channel_of_peer", "channel_used"]
    # Small messages over the network have quarter chunks: with every protocol, or with Simple alone
    quarter_chunks: Literal["always", "simple"]

    # Which messages run together
    # Works begin anew once every 8 steps of the order of peers, or at every chunk of each such step
    fused: Literal["by_step", "by_chunk"]
    batches_of_near_rounds: bool  # a batch only contains rounds from the same group of eight
    sweeps: Literal["any", "apart"]  # whether a batch may contain messages of several sweeps over all peers
    # If a kernel is full, the next one continues at that point of the order; otherwise it begins again with the nearest
    # peer
    resumes: bool

    channel_bandwidth_gbs: float  # NCCL_P2P_PER_CHANNEL_NET_BW
    net_chunk_bytes: int
    nvlink_chunk_bytes: int
    pci_chunk_bytes: int
    ll_threshold_bytes: int
    broadcasts_together: bool  # broadcasts of one group from several roots become one call, AllGatherV
    own_functions: bool  # the release has ncclAlltoAll, ncclGather and ncclScatter


# Named rules by which NCCL joins the graphs of nodes into channels, in a release's file: the table ``[connect]``.
# ``tuner.emulator.connect`` implements the names.


@dataclass(frozen=True, slots=True, eq=False)
class Connect:
    """The table ``[connect]`` of a release's file: how NCCL joins the graphs of nodes into channels."""

    # When rings 2k and 2k + 1 are exchanged on every second node, so that both ends of a connection are on one rail.
    # "by_own_graph": if the number of nodes is even and this node's ring crosses adapters. "by_any_graph": if any
    # node's ring crosses them. "by_any_pairs": if any node's ring was searched in pairs (crossNic 2). "by_own_pairs":
    # on the nodes whose ring was.
    swapped_rings: Literal["never", "by_own_graph", "by_any_graph", "by_any_pairs", "by_own_pairs"]
    # The GPUs at which NVLS channels begin. "of_common_rings": as in the channels that all rings have, then rank 0.
    # "of_own_rings": as in the rings of the node, then rank 0. "distinct": each GPU once. "distinct_by_domain": the
    # same, but NCCL reads the list in steps of the NVLink domain's number of ranks (sic), which is more than the node's
    # if NCCL treats the domain as several nodes.
    nvls_heads: Literal["of_common_rings", "of_own_rings", "distinct", "distinct_by_domain"]
    # When the channels get these heads and their trees: before or after channels are copied
    nvls_joined: Literal["before_copies", "after_copies"]
    # The adapters of a head at which several channels begin: always its first, or one after the other
    nvls_adapters: Literal["first", "in_turn"]
    # When PAT is connected already as the communicator is made; otherwise NCCL connects it at the first call.
    pat_at_once: Literal["one_rank_per_node", "or_with_nvls"]
    # A communicator made by ncclCommSplit has CollNet if it has as many nodes as its parent and shares nothing with it
    split_keeps_collnet: bool


T = TypeVar("T")
Generation = Literal["volta", "ampere", "hopper", "blackwell"]
Hardware = Literal["nvlink", "pci", "net"]
CapName = Literal["ll", "ring_ll128_per_channel", "tree_ll128_per_channel", "tree_per_channel", "nvls_tree_per_channel"]
PathName = Literal["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"]
Latencies = Mapping[Algorithm, Mapping[Protocol, float]]
HARDWARE: tuple[Hardware, ...] = ("nvlink", "pci", "net")
SEARCHED_FOR = ("NCCL_COLLNET_ENABLE", "NCCL_NVLS_ENABLE")  # these variables also decide which graphs are searched
BUILDS = ("cu12", "cu13")  # builds of libnccl by the major version of CUDA; the first is the default


@dataclass(frozen=True, slots=True, eq=False)
class LibraryFile:
    """The libnccl.so.2 of one of the release's wheels, for one processor architecture."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Plugin:
    """How the release treats tuner plugins."""

    api: int  # the newest version of the plugin interface that the release looks for
    longest_path: int  # the longest path, in characters, that works as NCCL_TUNER_PLUGIN; 0: only a name works, no path
    keeps_constants: bool  # the model uses constants that the plugin's init has changed
    none_turns_off: bool  # NCCL_TUNER_PLUGIN=none turns every tuner off; otherwise it is the name of a missing file
    network_has_one: bool  # if the named file is missing, NCCL looks for a tuner in the network plugin's library
    negative_excludes: bool  # a negative time from a tuner excludes the cell; otherwise it is the shortest time
    revives: bool  # if a tuner writes a time into a cell that NCCL ignores, NCCL may choose that cell


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
    ll_traffic: int  # how many times the traffic of a call with LL counts
    cell_alignment_bytes: int
    work_bytes: int
    batch_bytes: int
    work_fifo_bytes: int
    work_fifo_holds_group: bool  # a group's works stay in the work FIFO until all kernels of the group are launched
    colls_per_batch: int
    max_direct_local_ranks: int
    max_nvls_local_ranks: int
    tree_corrections: int
    kernel_args_bytes: int
    work_batch_bytes: int
    max_time_us: float
    buffer_steps: int  # steps of a connection's buffer
    ll_buffer_bytes: int
    ll128_buffer_bytes: int
    simple_buffer_bytes: int
    nvls_chunk_bytes: int
    nvls_last_chunk_alignment_bytes: int  # alignment of the chunks that the device shortens itself
    simple_buffer_bytes_on_arm: int | None = None
    nvls_tree_corrections: int | None = None
    nvls_tree_corrections_on_two_arm_nodes: int | None = None
    max_nvls_gather_channels: int | None = None
    gpus_without_nvls: int | None = None
    work_fifo_depth: int | None = None
    work_fifo_bytes_of_blackwell_domain: int | None = None  # for multi-node NVLink on Blackwell; None: as elsewhere
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
    """Types of paths, the nearest first; ``gpu_direct`` is the farthest type over which an adapter may read a GPU's
    memory."""

    types: tuple[PathName, ...]
    gpu_direct: PathName

    def rank(self, path_type: str) -> int:
        """The number NCCL gives a path type; smaller is nearer."""
        names: tuple[str, ...] = self.types
        return names.index(path_type)


@dataclass(frozen=True, slots=True, eq=False)
class LL128:
    """The compute capabilities (90 for 9.0) for which NCCL's authors tested LL128."""

    tested: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RingPlateau:
    """Factors on the latency of Ring/Simple AllReduce, by GPU generation."""

    from_bytes_per_channel_and_rank: int
    volta: float
    ampere: float
    hopper: float
    blackwell: float
    fade: float | None = None  # how much of the factor on one Blackwell node disappears with growing size
    fades_from_bytes_per_channel_and_rank: int | None = None

    @property
    def factors(self) -> Mapping[Generation, float]:
        """The factors by generation, in the order of the tables."""
        return {"volta": self.volta, "ampere": self.ampere, "hopper": self.hopper, "blackwell": self.blackwell}


@dataclass(frozen=True, slots=True, eq=False)
class Threads:
    """Threads of a block: ``default``, or what the variable ``env`` sets, within ``min`` and ``max``.

    ``slow_default`` replaces ``default`` if a ring's bandwidth is at most ``slow_gbs``.
    """

    default: int
    min: int | None = None
    max: int | None = None
    env: str | None = None
    slow_default: int | None = None
    slow_gbs: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ThreadThresholds:
    """How many bytes each thread must have before NCCL uses more threads, by protocol."""

    ll: int
    ll128: int
    simple: int
    collnet_simple: int


@dataclass(frozen=True, slots=True, eq=False)
class NvlsChannels:
    """Numbers of channels of NVLS by GPU generation.

    On three or more nodes, Blackwell uses ``blackwell_fewer`` channels if adapters reach ``fast_net_gbs``. If adapters
    reach ``fastest_net_gbs`` and a node has more than ``fastest_net_few_ranks`` ranks, Blackwell uses the full number
    again.
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
    """Numbers of channels by collective: on one node, on several nodes, and (``nodes_fast``) on several nodes whose
    adapters reach ``fast_net_gbs``."""

    one_node: Annotated[Mapping[Collective, int], PARTIAL]
    nodes: Annotated[Mapping[Collective, int], PARTIAL]
    nodes_fast: Annotated[Mapping[Collective, int], PARTIAL]
    fast_net_gbs: float


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredNvlsChannels:
    """Numbers of channels of NVLS if buffers are registered and each node has eight GPUs."""

    fast_reduce_scatter_gbs: float
    hopper: RegisteredNvlsRow
    blackwell: RegisteredNvlsRow


@dataclass(frozen=True, slots=True, eq=False)
class ArmNodes:
    """The number of local ranks and the adapters' bandwidth that decide when NVLSTree is corrected on nodes with ARM
    processors."""

    local_ranks: int
    fast_net_gbs: float


@dataclass(frozen=True, slots=True, eq=False)
class Variables:
    """The environment variables of a release, grouped by what they affect.

    ``non_numeric_is_default`` says what a text without digits means where NCCL expects a number: the default if it is
    true, or 0 if it is false.
    """

    non_numeric_is_default: bool
    known: tuple[str, ...]
    search: tuple[str, ...]  # these only affect the search of graphs
    nvlink_domains: tuple[str, ...]  # these only affect communicators of several hosts that NVLink joins
    symmetric_kernels: tuple[str, ...]  # these only affect symmetric kernels; some let plain buffers use such kernels
    # These only affect calls on registered buffers, which are refused if one of them is set
    registered_buffers: tuple[str, ...]
    indifferent: Mapping[str, tuple[str, ...]]  # these affect no choice; the key says what they are for
    shares_gpus: str | None = None  # the variable that lets several ranks share a GPU; None: ranks cannot share one
    calls_alone: str | None = None  # the variable that makes NCCL choose for each call of a group by itself


@dataclass(frozen=True, slots=True, eq=False)
class RankRules:
    """How NCCL treats a communicator's ranks that were started with different settings."""

    checks_release: bool  # the communicator fails if its ranks run different releases
    # The communicator fails if NCCL_IGNORE_NET_MISMATCH=0 and ranks have different numbers of adapters
    counts_adapters: bool
    # A block divides its data by its number of threads, which therefore has to be the same on all ranks
    threads_divide_data: bool
    # NCCL reads the file named by NCCL_CONF_FILE instead of .nccl.conf in the home folder
    named_configuration_file: bool
    home_variable: bool  # the home folder is that of the variable HOME, not the one in passwd
    drops_carriage_return: bool  # a line of nccl.conf may end with CR LF; otherwise the CR becomes part of the value


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseFile:
    """A release's file as it was read; ``table`` does not include what the parent's file says."""

    path: str
    table: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """How NCCL treats users' registered buffers when it chooses."""

    captured_buffers: Literal["registered", "plain"]  # how buffers of calls that are captured in a CUDA graph count
    # The registered buffers that a ring inside a node lets peers access: both, or only the receive buffer
    ring_buffers: Literal["both", "receive"]
    # Whether peers read and write each other's buffers. All GPUs of the node then need peer-to-peer: "connected" allows
    # a path over a GPU in between, "direct" does not.
    peers: Literal["never", "connected", "direct"]
    # Whether adapters read and write the buffers of rings; "but_averages": except for averages
    network: Literal["never", "always", "but_averages"]
    flag_of_device: Literal["whether", "by_whom"]  # what regUsed says: 1, or an ncclRegBufferType
    # On registered buffers, NVLS runs AllGather and ReduceScatter in chunks of a whole step of the buffer
    switch_moves_whole_steps: bool


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """One release: its own file merged with those of its parents."""

    name: str
    # Libnccl by CUDA build (cu12, cu13) and processor architecture (x86_64)
    library: Mapping[str, Mapping[str, LibraryFile]]
    limits: Limits
    paths: Paths
    generations: Mapping[Generation, int]  # the lowest compute capability of each generation (90 for 9.0)
    base_latency_us: Latencies
    hw_latency_us: Mapping[Hardware, Latencies]
    cap_gbs: Mapping[CapName, Mapping[Generation, tuple[float, float, float]]]  # for 1 node, 2 nodes, and more
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
    # The measured share of the model's bandwidth; only files of fitted constants have it, no release's file does.
    efficiency: Annotated[Mapping[Algorithm, Annotated[Mapping[Protocol, float], PARTIAL]], PARTIAL] = field(
        default_factory=lambda: MappingProxyType({})
    )
    files: tuple[ReleaseFile, ...] = field(default=(), repr=False)  # the release's own file first, then its parents'
    standing: Standing | None = None  # what the answers rest on, for a release that was not compared with its library

    @property
    def read_as(self) -> str:
        """The release whose source was read for these rules: this one, or one that it does not differ from."""
        if self.standing is None:
            return self.name
        own = self.files[0].table
        return str(own["parent"] if own.keys() == {"release", "parent"} else own["release"])

    def generation(self, comp_cap: int) -> Generation:
        """The generation whose row applies to a compute capability (90 for 9.0)."""
        return _generation(self, comp_cap)

    @property
    def indifferent_variables(self) -> set[str]:
        """The variables that affect no choice of NCCL."""
        return {name for names in self.environment.indifferent.values() for name in names}

    @property
    def listed_variables(self) -> set[str]:
        """The variables that are emulated or affect no choice, without those that only the search of graphs reads."""
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
        """The file that sets a dotted key; for an unknown key, the release's own file."""
        return file_of(self.files, key)


@lru_cache(1024)  # every rule with a table by generation asks
def _generation(nccl: Release, comp_cap: int) -> Generation:
    rows = nccl.generations
    return max((row for row, least in rows.items() if comp_cap >= least), key=rows.__getitem__)


def given(constant: T | None, key: str) -> T:
    """Returns ``constant``, which a rule needs and only some releases have. Raises BadReleaseFile, which names ``key``,
    if ``constant`` is None."""
    if constant is None:
        raise BadReleaseFile(f"{key}: missing from the release's file, and one of its rules depends on it")
    return constant


def file_of(files: Sequence[ReleaseFile], key: str) -> str:
    """The path of the first of ``files`` that sets a dotted key; the path of the first file if none of them sets it."""
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

"""What a release's file says, as records: the constants of NCCL's model and selection, each named as in the file.

Units are in the names: ``_us``, ``_gbs`` (1e9 bytes per second), ``_bytes``. What only some releases have is None in
the others. :mod:`tuner.release.reader` checks and converts; the sources stand in ``tables/nccl``.
Most are without equality, which takes time to make and every command would wait for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from tuner.base.errors import BadInput, BadReleaseFile
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.release.connect import Connect
from tuner.release.convert import PARTIAL
from tuner.release.exchange import Exchange
from tuner.release.rule_names import RuleNames
from tuner.release.search import Search
from tuner.release.symmetric import Symmetric

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
    """How the release takes tuner plugins."""

    api: int  # newest version of the interface that it looks up
    longest_path: int  # characters of a path that works as NCCL_TUNER_PLUGIN; 0: a name alone does
    keeps_constants: bool  # what a plugin's init makes of the constants reaches the model


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
        """By generation, in the order of the tables."""
        return {"volta": self.volta, "ampere": self.ampere, "hopper": self.hopper, "blackwell": self.blackwell}


@dataclass(frozen=True, slots=True, eq=False)
class Threads:
    """Threads of a block: ``default``, within ``min`` and ``max`` where the variable ``env`` sets them.

    ``slow_default`` holds where a ring has at most ``slow_gbs``.
    """

    default: int
    min: int | None = None
    max: int | None = None
    env: str | None = None
    slow_default: int | None = None
    slow_gbs: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ThreadThresholds:
    """Bytes that a thread gets before there are more of them."""

    ll: int
    ll128: int
    simple: int
    collnet_simple: int


@dataclass(frozen=True, slots=True, eq=False)
class NvlsChannels:
    """Channels of NVLS by generation; ``blackwell_fewer`` from three nodes on, where adapters reach ``fast_net_gbs``.

    From ``fastest_net_gbs`` on, with more than ``fastest_net_few_ranks`` per node, it is all again.
    """

    hopper: int
    blackwell: int
    blackwell_one_node: int
    blackwell_fewer: int | None = None
    fast_net_gbs: float | None = None
    fastest_net_gbs: float | None = None
    fastest_net_few_ranks: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredNvlsRow:
    """Channels by collective; between nodes ``nodes_fast`` where adapters reach ``fast_net_gbs``."""

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
    """Environment variables by what they reach; ``non_numeric_is_default``: of an integer, else it is 0."""

    non_numeric_is_default: bool
    known: tuple[str, ...]
    search: tuple[str, ...]  # the search of graphs alone
    nvlink_domains: tuple[str, ...]  # only communicators of several hosts that NVLink joins
    symmetric_kernels: tuple[str, ...]  # only symmetric kernels, which plain buffers may get by them
    registered_buffers: tuple[str, ...]  # only calls on registered buffers, which are refused with them
    indifferent: Mapping[str, tuple[str, ...]]  # no choice, by what they are for
    shares_gpus: str | None = None  # the one that lets several ranks share a GPU; without it none do


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """What a release does about ranks of a communicator that were started with different things."""

    checks_release: bool  # the communicator fails where ranks have other releases
    counts_adapters: bool  # and with NCCL_IGNORE_NET_MISMATCH=0 where they have other numbers of adapters
    threads_divide_data: bool  # a block cuts its share by its number of threads, which then has to be the same
    named_configuration_file: bool  # NCCL_CONF_FILE is read instead of the home folder's .nccl.conf


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseFile:
    """One file as it was read; ``table`` without the parent's."""

    path: str
    table: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """What buffers are when NCCL chooses."""

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
    """One release: its own file and its parents' together."""

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
    exchange: Exchange
    rules: RuleNames
    environment: Variables
    ranks: Ranks
    plugin: Plugin | None = None
    ll128: LL128 | None = None
    nvls_tree_correction_on_arm: ArmNodes | None = None
    # The share of the model's bandwidth that was measured: in no release's file, but in fitted constants.
    efficiency: Annotated[Mapping[Algorithm, Annotated[Mapping[Protocol, float], PARTIAL]], PARTIAL] = field(
        default_factory=lambda: MappingProxyType({})
    )
    files: tuple[ReleaseFile, ...] = field(default=(), repr=False)  # its own first, then its parents'

    def generation(self, comp_cap: int) -> Generation:
        """The row of a compute capability (90 for 9.0) in the tables by generation."""
        rows = self.generations
        return max((row for row, least in rows.items() if comp_cap >= least), key=rows.__getitem__)

    def check_capabilities(self, comp_caps: Iterable[int]) -> None:
        """BadInput for GPUs (90 for 9.0) that the release knows and its table does not."""
        unknown = self.search.devices.unknown_generations
        for comp_cap in sorted(set(comp_caps)):
            if any(first <= comp_cap <= last for first, last in unknown):
                raise BadInput(
                    f"NCCL {self.name} has bandwidths of its own for GPUs of compute capability {comp_cap / 10:g}, "
                    "which are not emulated; valid: other GPUs, an earlier release, or `nccl-tuner oracle`"
                )

    @property
    def indifferent_variables(self) -> set[str]:
        """The variables that reach no choice."""
        return {name for names in self.environment.indifferent.values() for name in names}

    @property
    def listed_variables(self) -> set[str]:
        """The variables that are emulated, or reach no choice; without those of the search alone."""
        of = self.environment
        shares = () if of.shares_gpus is None else (of.shares_gpus,)
        return {
            *of.known,
            *of.nvlink_domains,
            *of.symmetric_kernels,
            *of.registered_buffers,
            *shares,
            *self.indifferent_variables,
        }

    @property
    def search_variables(self) -> frozenset[str]:
        """The variables that the search of graphs reads."""
        return frozenset({*self.environment.search, *self.environment.nvlink_domains, *SEARCHED_FOR})

    def file_of(self, key: str) -> str:
        """The file that a dotted key comes from; of one that is nowhere, the release's own."""
        return file_of(self.files, key)


def given(constant: T | None, key: str) -> T:
    """A constant that only some releases have, for a rule that goes by it. BadReleaseFile names the key of none."""
    if constant is None:
        raise BadReleaseFile(f"{key}: missing from the release's file, and one of its rules goes by it")
    return constant


def file_of(files: Sequence[ReleaseFile], key: str) -> str:
    """The first of ``files`` that has a dotted key; of one that is nowhere, the first of all."""
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

"""A communicator as NCCL knows it before it tunes: ranks, nodes, channels, NVLS, processors."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Pattern
from tuner.emulator.rules.collnet import CollNet
from tuner.machine.adapters import PeerLinks
from tuner.machine.graphs import Graph, Graphs
from tuner.release import Generation, Release
from tuner.release.environment import Environment

if TYPE_CHECKING:  # the rules are about communicators, so their modules import this one
    from tuner.emulator.rules.resolved import Rules
    from tuner.emulator.tuner_plugin import TunerPlugin


@dataclass(frozen=True, slots=True)
class AnyMergesAdapters:
    """A callable that says whether any of these nodes merges adapters. Unlike closures, two such objects for equal
    nodes are equal."""

    nodes: "tuple[Node, ...]"

    def __call__(self) -> bool:
        return any(node.merges_adapters is not None and node.merges_adapters() for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its graphs, the compute capabilities of its ranks (90 for 9.0), its CPU in NCCL's spelling, its
    switches."""

    graphs: Graphs
    comp_caps: tuple[int, ...]
    cpu_arch: str
    cpu_vendor: str | None
    has_nvswitch: bool
    direct_nvlink: bool  # every GPU reaches every other one over NVLink without passing a third
    net_gbs: float  # bandwidth of the slowest path from a GPU to its own adapter; 0 if there is no adapter
    some_nvlink: bool = False  # a GPU reaches another over NVLink without passing a third
    # Whether adapters can read and write GPU memory; None if only some can, or if nothing says it
    gpu_direct: bool | None = None
    shares_gpus: bool = False  # several ranks are on one GPU; ``comp_caps`` then has one entry for each rank
    hosts: int = 1  # number of hosts of the NVLink domain
    fabric: bool = False  # NCCL uses NVLink between the hosts of its ranks, if there is more than one host
    parts_of_whole: int = 1  # the number of nodes as which NCCL treats the node's host or NVLink domain
    links: Callable[[], PeerLinks] | None = field(default=None, compare=False, repr=False)  # None without a topology
    merges_adapters: Callable[[], bool] | None = field(
        default=None, compare=False, repr=False
    )  # whether it merges adapters, if it is one of several nodes
    # The rank at which each channel of a graph begins; None if only the numbers of the graphs are known
    first_ranks: Callable[[str], tuple[int, ...]] | None = field(default=None, compare=False, repr=False)
    # The one of NCCL's own networks to which its adapters belong; None: another network, or nothing says it
    network: str | None = None
    network_reduces: bool = False  # a plugin for CollNet is loaded, and every adapter can do collectives
    offers_gin: bool | None = None  # GPUs can start transfers over its adapters by themselves; None: not known


@dataclass(frozen=True, slots=True, eq=False)
class Comm:
    """One communicator (``struct ncclComm``) as the model sees it; ``channels``: "coll channels" in NCCL's log.

    ``coll_channels`` does not count the channels that only aggregated operations may use.
    """

    release: Release
    environment: Environment
    ranks: int
    nodes: int
    nodes_are_alike: bool
    local_ranks: int  # number of ranks of rank 0's node
    min_local_ranks: int
    max_local_ranks: int
    # Size of the teams within nodes for windows (ncclTeamLsa): the largest number that divides the ranks of every node
    lsa_ranks: int
    graphs: Mapping[Algorithm, Graph]
    channels: int
    copied_from: tuple[int, ...]  # for each possible channel, the channel that it copies
    coll_channels: int
    nvls_channels: int
    min_comp_cap: int
    max_comp_cap: int
    cpu_arch: str  # "mixed" if nodes differ; the vendor, too
    cpu_vendor: str | None  # None if NCCL knows no vendor, as for CPUs other than x86
    # The processor for which the model's tables are made; if nodes differ, it depends on the release which one counts
    table_cpu_arch: str
    table_cpu_vendor: str | None
    tree_pattern: Pattern | None
    has_nvswitch: bool  # on rank 0's node
    # On rank 0's node, if NCCL may use it; NCCL_P2P_DISABLE and other variables can forbid NVLink to the ring
    direct_nvlink: bool
    net_gbs: float  # the smallest of all nodes if ranks agree on it, else that of rank 0's node
    gpu_direct: bool | None  # on rank 0's node, as in :class:`Node`
    shares_gpus: bool  # on any node
    hosts: int  # of rank 0's node; more than one in an NVLink domain
    fabric: bool  # NVLink between hosts is on for rank 0 (NCCL's MNNVL)
    splits_hosts: bool  # NCCL treats a host or an NVLink domain as several nodes
    ctas: tuple[int, int]  # the fewest and the most blocks of a collective
    collnet: CollNet | None
    rules: "Rules" = field(repr=False)  # the rules of the release
    links: Callable[[], PeerLinks] | None = field(default=None, repr=False)  # on rank 0's node, as in :class:`Node`
    merges_adapters: Callable[[], bool] | None = field(default=None, repr=False)  # of any node, as in :class:`Node`
    network: str | None = None  # the same on all nodes, as in :class:`Node`
    network_reduces: bool = False  # a plugin for CollNet is loaded, whether or not CollNet is requested
    offers_gin: bool | None = None  # on all nodes, as in :class:`Node`
    ranks_share_processes: bool = False  # a process of rank 0's node has several ranks
    shared: "Comm | None" = None  # the communicator from which this one was split, if it shares that one's resources
    tuner: "TunerPlugin | None" = None  # the tuner plugin that its NCCL has loaded

    @property
    def generation(self) -> Generation:
        """The generation of its GPUs, by which the release's tables have rows."""
        return self.release.generation(self.min_comp_cap)

    @property
    def nvls_heads(self) -> int:
        """The number of GPUs of a node at which an NVLS channel begins."""
        return min(self.graphs[Algorithm.NVLS].channels, self.max_local_ranks)

    @property
    def nvls(self) -> bool:
        """Whether NVLS can be used at all."""
        return self.nvls_channels > 0

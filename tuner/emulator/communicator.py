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

if TYPE_CHECKING:  # the rules are about communicators: they import this
    from tuner.emulator.rules.resolved import Rules
    from tuner.emulator.tuner_plugin import TunerPlugin


@dataclass(frozen=True, slots=True)
class AnyMergesAdapters:
    """A callable that tells whether any of these nodes merges adapters; equal for equal nodes, unlike a closure."""

    nodes: "tuple[Node, ...]"

    def __call__(self) -> bool:
        return any(node.merges_adapters is not None and node.merges_adapters() for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its graphs, its ranks' compute capabilities (90 for 9.0), its CPU as NCCL spells it, its switches."""

    graphs: Graphs
    comp_caps: tuple[int, ...]
    cpu_arch: str
    cpu_vendor: str | None
    has_nvswitch: bool
    direct_nvlink: bool  # every GPU reaches every other over NVLink without passing a third
    net_gbs: float  # slowest path from a GPU to its own adapter, 0 where there is no adapter
    some_nvlink: bool = False  # a GPU reaches another over NVLink without passing a third
    gpu_direct: bool | None = None  # whether adapters can read and write GPU memory; None if some do or none knows
    shares_gpus: bool = False  # several ranks are on one GPU; ``comp_caps`` has one for each rank
    hosts: int = 1  # of a NVLink domain
    fabric: bool = False  # NCCL uses NVLink between hosts for its ranks, if there is more than one host
    parts_of_whole: int = 1  # as how many nodes NCCL takes its host or NVLink domain
    links: Callable[[], PeerLinks] | None = field(default=None, compare=False, repr=False)  # None without a topology
    merges_adapters: Callable[[], bool] | None = field(
        default=None, compare=False, repr=False
    )  # as one of several nodes
    # Rank at which each channel of a graph begins; None if only the graphs' numbers are known
    first_ranks: Callable[[str], tuple[int, ...]] | None = field(default=None, compare=False, repr=False)
    network: str | None = None  # which of NCCL's own its adapters are of; None: another, or nothing says it
    network_reduces: bool = False  # a plugin for CollNet is loaded, and every adapter does collectives
    offers_gin: bool | None = None  # GPUs can start transfers over its adapters themselves; None: not known


@dataclass(frozen=True, slots=True, eq=False)
class Comm:
    """One communicator (``struct ncclComm``) as the model sees it; ``channels``: "coll channels" in NCCL's log.

    ``coll_channels`` leaves out the channels that only aggregated operations may use.
    """

    release: Release
    environment: Environment
    ranks: int
    nodes: int
    nodes_are_alike: bool
    local_ranks: int  # of rank 0's node
    min_local_ranks: int
    max_local_ranks: int
    lsa_ranks: int  # of the teams within nodes on windows (ncclTeamLsa): the most that divide the ranks of every node
    graphs: Mapping[Algorithm, Graph]
    channels: int
    copied_from: tuple[int, ...]  # which channel each is a copy of, for as many as there may be
    coll_channels: int
    nvls_channels: int
    min_comp_cap: int
    max_comp_cap: int
    cpu_arch: str  # "mixed" where nodes differ, as the vendor
    cpu_vendor: str | None  # None if NCCL knows none: CPUs other than x86
    table_cpu_arch: str  # the processor of the model's tables; releases differ in which one of a mixture counts
    table_cpu_vendor: str | None
    tree_pattern: Pattern | None
    has_nvswitch: bool  # of rank 0's node
    direct_nvlink: bool  # of rank 0's node, where NCCL may use it: NCCL_P2P_DISABLE and others leave the ring no NVLink
    net_gbs: float  # the least of a node's, as far as ranks agree on it; else of rank 0's
    gpu_direct: bool | None  # of rank 0's node, as of a Node
    shares_gpus: bool  # on any node
    hosts: int  # of rank 0's node: more than one in a NVLink domain
    fabric: bool  # NVLink between hosts is on for rank 0, NCCL's MNNVL
    splits_hosts: bool  # a host or a NVLink domain is several nodes
    ctas: tuple[int, int]  # the fewest and the most blocks of a collective
    collnet: CollNet | None
    rules: "Rules" = field(repr=False)  # those of the release
    links: Callable[[], PeerLinks] | None = field(default=None, repr=False)  # of rank 0's node, as of a Node
    merges_adapters: Callable[[], bool] | None = field(default=None, repr=False)  # of any node, as of a Node
    network: str | None = None  # of all nodes, as of a Node
    network_reduces: bool = False  # a plugin for CollNet is loaded, whether or not it is asked for
    offers_gin: bool | None = None  # of all nodes, as of a Node
    ranks_share_processes: bool = False  # a process of rank 0's node has several ranks
    shared: "Comm | None" = None  # whose resources this one shares, which was split off it
    tuner: "TunerPlugin | None" = None  # that its NCCL has loaded

    @property
    def generation(self) -> Generation:
        """The GPUs' generation, by which the release's tables have rows."""
        return self.release.generation(self.min_comp_cap)

    @property
    def nvls_heads(self) -> int:
        """The number of a node's GPUs at which an NVLS channel begins."""
        return min(self.graphs[Algorithm.NVLS].channels, self.max_local_ranks)

    @property
    def nvls(self) -> bool:
        """Whether NVLS can be used at all."""
        return self.nvls_channels > 0

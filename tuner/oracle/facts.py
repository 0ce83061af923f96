"""Reads facts from NCCL's own memory: from the struct ncclComm of rank 0 after initialisation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Pattern
from tuner.emulator.connect.nodes import (
    ChannelAdapter,
    CollNetDirect,
    Connected,
    NvlsChannel,
    RankChannel,
    RankView,
    Tree,
)
from tuner.machine.graphs import EMPTY, ENTER_THE_NETWORK, OF_ALGORITHM, Graph
from tuner.oracle.messages import ChannelsMessage, RankMemory, StructLayout


@dataclass(frozen=True, slots=True)
class OracleTables:
    """The tables of NCCL's model, in us and GB/s, indexed [collective][algorithm][protocol]; 0 means that NCCL disabled
    the cell.

    Threads and their thresholds are indexed [algorithm][protocol].
    """

    latency_us: NDArray[np.float32]  # [5, A, 3]
    bandwidth_gbs: NDArray[np.float32]  # [5, A, 3]
    max_threads: NDArray[np.int32]  # [A, 3]
    thread_thresholds_bytes: NDArray[np.int64]  # [A, 3]


@dataclass(frozen=True, slots=True)
class Facts:
    """NCCL's values of a communicator, on one rank; None if the release has no such member."""

    release: str
    library_sha256: str
    n_ranks: int
    n_nodes: int
    local_ranks: int
    max_local_ranks: int
    n_channels: int
    min_local_ranks: int | None = None
    coll_channels: int | None = None
    nvls_channels: int | None = None
    p2p_channels: int | None = None
    p2p_channels_per_peer: int | None = None
    nvls_support: int | None = None
    collnet: int | None = None
    min_comp_cap: int | None = None
    max_comp_cap: int | None = None
    cpu_arch: int | None = None
    cpu_vendor: int | None = None
    tree_pattern: int | None = None
    one_rank_per_node: bool | None = None
    all_nvlink: bool | None = None
    mnnvl: int | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None
    buffer_bytes: tuple[int, ...] | None = None  # by protocol
    nvls_chunk_bytes: int | None = None
    p2p_chunk_bytes: int | None = None
    symmetric_support: bool | None = None


# The members of struct ncclComm that have had these facts, newest first.
_FACTS = {
    "n_ranks": ("nRanks",),
    "n_nodes": ("nNodes",),
    "local_ranks": ("localRanks",),
    "max_local_ranks": ("maxLocalRanks",),
    "min_local_ranks": ("minLocalRanks",),
    "n_channels": ("nChannels",),
    "coll_channels": ("collChannels",),
    "nvls_channels": ("nvlsChannels",),
    "p2p_channels": ("p2pnChannels",),
    "p2p_channels_per_peer": ("p2pnChannelsPerPeer",),
    "nvls_support": ("nvlsSupport",),
    "collnet": ("config.collnetEnable", "collNetSupport"),
    "min_comp_cap": ("minCompCap",),
    "max_comp_cap": ("maxCompCap",),
    "cpu_arch": ("cpuArch",),
    "cpu_vendor": ("cpuVendor",),
    "tree_pattern": ("maxTreePattern",),
    "one_rank_per_node": ("isOneRPN",),
    "all_nvlink": ("isAllNvlink",),
    "mnnvl": ("MNNVL",),
    "min_ctas": ("config.minCTAs",),
    "max_ctas": ("config.maxCTAs",),
    "buffer_bytes": ("buffSizes",),
    "nvls_chunk_bytes": ("nvlsChunkSize",),
    "p2p_chunk_bytes": ("p2pChunkSize",),
    "symmetric_support": ("symmetricSupport",),
}


def of(comm: Mapping[str, Any], name: str) -> Any:
    """The value in struct ncclComm of a field of :class:`Facts`; None if the release has no such member."""
    return next((comm[member] for member in _FACTS[name] if member in comm), None)


def facts(comm: Mapping[str, Any], release: str, library_sha256: str) -> Facts:
    """Makes :class:`Facts` from the members of struct ncclComm."""
    members = {name: of(comm, name) for name in _FACTS}
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in members.items()
    }
    return Facts(release=release, library_sha256=library_sha256, **plain)


# The members of struct ncclComm that have had the tables.
TABLES = {
    "latency_us": ("latencies", "tuningContext.generalLatencies"),
    "bandwidth_gbs": ("bandwidths", "tuningContext.generalBandwidths"),
    "max_threads": ("maxThreads", "tuningContext.maxThreads"),
    "thread_thresholds_bytes": ("threadThresholds", "tuningContext.threadThresholds"),
}
ENABLED = "tuningContext.enabled"  # in newer releases, by the number of an algorithm and protocol, and by collective

# Algorithms without a graph of their own are tuned with another one's.
_BORROWED = {Algorithm.NVLSTree: Algorithm.NVLS, Algorithm.PAT: Algorithm.Tree}


def graphs(raw: Sequence[Mapping[str, Any]], local_ranks: int, types: Sequence[str]) -> dict[Algorithm, Graph]:
    """The channel graphs that NCCL's tuning uses, ``comm->graphs``, with the weakest values over all ranks, keyed by
    algorithm. ``local_ranks`` is the number of ranks of a node.

    ``types`` are the release's types of paths. A graph without channels, because there is none or the communicator does
    not support it, is ``EMPTY``.
    """
    algorithms = list(Algorithm)[: len(raw)]
    found = [_graph(graph, OF_ALGORITHM[each], local_ranks, types) for each, graph in zip(algorithms, raw, strict=True)]
    return {each: found[_BORROWED.get(each, each)] for each in algorithms}


def _graph(graph: Mapping[str, Any], name: str, local_ranks: int, types: Sequence[str]) -> Graph:
    if graph["nChannels"] <= 0:
        return EMPTY
    heads = tuple(sorted(set(graph["intra"][: graph["nChannels"] * local_ranks : local_ranks])))
    return Graph(
        pattern=Pattern(graph["pattern"]),
        channels=graph["nChannels"],
        same_channels=bool(graph["sameChannels"]),
        bw_intra_gbs=graph["bwIntra"],
        bw_inter_gbs=graph["bwInter"],
        latency_inter_us=graph.get("latencyInter", 0.0),
        type_intra=types[graph["typeIntra"]],
        type_inter=types[graph["typeInter"]],
        cross_nic=graph["crossNic"],
        heads=heads if name in ENTER_THE_NETWORK and len(heads) != local_ranks else None,
    )


def tables(comm: Mapping[str, Any], layout: StructLayout) -> OracleTables:
    """The tables in struct ncclComm, with the release's number of algorithms.

    Releases from 2.31 on keep a separate matrix that says which cells are enabled, and mark unimplemented cells by -1.
    In this result, unimplemented cells are 0, and the bandwidth of a cell is 0 exactly if NCCL may not use the cell, as
    in older releases.
    """

    def table(field: str, kind: Any) -> Any:
        name = next(name for name in TABLES[field] if name in layout.members)
        return np.array(comm[name], kind).reshape(layout.members[name].dims)

    latency_us, bandwidth_gbs = table("latency_us", np.float32), table("bandwidth_gbs", np.float32)
    if ENABLED in layout.members:
        latency_us[latency_us == -1] = 0
        bandwidth_gbs[_enabled(comm, layout, bandwidth_gbs.shape) == 0] = 0
    return OracleTables(
        latency_us=latency_us,
        bandwidth_gbs=bandwidth_gbs,
        max_threads=table("max_threads", np.int32),
        thread_thresholds_bytes=table("thread_thresholds_bytes", np.int64),
    )


def _enabled(comm: Mapping[str, Any], layout: StructLayout, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """The matrix of enabled cells as an array [collective][algorithm][protocol]; rows after those of the general
    kernels are left out."""
    collectives, algorithms, protocols = shape
    matrix = np.array(comm[ENABLED], np.int32).reshape(layout.members[ENABLED].dims)[: algorithms * protocols]
    enabled: NDArray[np.int32] = matrix.reshape(algorithms, protocols, collectives).transpose(2, 0, 1)
    return enabled


def connected(answer: ChannelsMessage, most_in_direct: int) -> Connected:
    """The connections of each rank. NCCL uses CollNet direct for at most ``most_in_direct`` ranks per node."""
    local_ranks = of(answer.comms[0], "max_local_ranks")
    collnet = bool(of(answer.comms[0], "collnet"))
    ranks = tuple(
        _Rank(memory, comm, rank, answer.node_of_rank).view(collnet, collnet and local_ranks <= most_in_direct)
        for rank, (memory, comm) in enumerate(zip(answer.ranks, answer.comms, strict=True))
    )
    return Connected(answer.node_of_rank, ranks)


class _Rank:
    def __init__(self, memory: RankMemory, comm: Mapping[str, Any], rank: int, node_of_rank: Sequence[int]) -> None:
        self.memory, self.comm, self.rank, self.node_of_rank = memory, comm, rank, node_of_rank

    def view(self, collnet: bool, direct: bool) -> RankView:
        channels = [self.channel(number, collnet, direct) for number in range(self.comm["nChannels"])]
        return RankView(tuple(channels), tuple(map(self.nvls, range(self.comm["nvlsChannels"]))), self.pat_peers())

    def pat_peers(self) -> tuple[int, ...]:
        everywhere = (1 << self.comm["nChannels"]) - 1
        noted = enumerate(self.memory.pat_channels)
        return tuple(peer for peer, channels in noted if channels == (everywhere, everywhere))

    def channel(self, number: int, collnet: bool, direct: bool) -> RankChannel:
        channel = self.memory.channels[number]
        tree = _tree(channel["tree.up"], channel["tree.down"])
        previous, following = channel["ring.prev"], channel["ring.next"]
        return RankChannel(
            previous=previous,
            next=following,
            ring_adapter=self.adapter("ring", number, (previous, following)),
            tree=tree,
            tree_adapter=self.adapter("tree", number, tree.peers),
            chain=self.chain(channel) if collnet else None,
            direct=_direct(channel) if direct else None,
        )

    def chain(self, channel: Mapping[str, Any]) -> Tree:
        """The chain of CollNet as a tree. NCCL numbers the network like the rank after the last one."""
        up = channel["collnetChain.up"]
        return _tree(-1 if up == len(self.node_of_rank) else up, channel["collnetChain.down"])

    def nvls(self, number: int) -> NvlsChannel:
        channel = self.memory.channels[number]
        tree = _tree(channel["nvls.treeUp"], channel["nvls.treeDown"][1:])  # the first child is the node's own NVSwitch
        head, heads = channel["nvls.headRank"], channel["nvls.nHeads"]
        return NvlsChannel(None if head < 0 else head, heads, tree, self.adapter("nvls", number, tree.peers))

    def adapter(self, graph: str, number: int, peers: Sequence[int]) -> ChannelAdapter | None:
        if all(self.node_of_rank[peer] == self.node_of_rank[self.rank] for peer in peers):
            return None
        found = self.memory.adapters[graph][number]
        return None if found is None else ChannelAdapter(*found)


def _tree(up: int, down: Sequence[int]) -> Tree:
    return Tree(None if up < 0 else up, tuple(child for child in down if child >= 0))


def _direct(channel: Mapping[str, Any]) -> CollNetDirect:
    head = channel["collnetDirect.headRank"]
    return CollNetDirect(
        head=None if head < 0 else head,
        up=tuple(rank for rank in channel["collnetDirect.up"] if rank >= 0),
        down=tuple(rank for rank in channel["collnetDirect.down"] if rank >= 0),
        heads=channel["collnetDirect.nHeads"],
        shift=channel["collnetDirect.shift"],
    )

"""What is read out of NCCL's own memory: struct ncclComm of rank 0 after initialisation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm
from tuner.oracle.messages import Layout


@dataclass(frozen=True, slots=True)
class Graph:
    """A channel graph as NCCL tunes with it: the weakest of all ranks. Types are NCCL's numbers."""

    pattern: int
    n_channels: int  # 0: none, or not supported by the communicator
    same_channels: int
    bw_intra_gbs: float  # per channel; exactly a float32
    bw_inter_gbs: float
    type_intra: int
    type_inter: int
    latency_inter_us: float
    cross_nic: int
    heads: tuple[int, ...]  # the ranks at which its channels start


@dataclass(frozen=True, slots=True)
class Tables:
    """What the model is made of, us and GB/s, [collective][algorithm][protocol]; 0 is NCCL's "disabled".

    Threads and their thresholds are [algorithm][protocol].
    """

    latency_us: NDArray[np.float32]  # [5, A, 3]
    bandwidth_gbs: NDArray[np.float32]  # [5, A, 3]
    max_threads: NDArray[np.int32]  # [A, 3]
    thread_thresholds_bytes: NDArray[np.int64]  # [A, 3]


@dataclass(frozen=True, slots=True)
class Facts:
    """What NCCL knows of a communicator, on one rank. None: the release has no such member."""

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


# Where struct ncclComm has had them, newest first.
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
    """One fact of struct ncclComm by its name in :class:`Facts`; None where the release has no such member."""
    return next((comm[member] for member in _FACTS[name] if member in comm), None)


def facts(comm: Mapping[str, Any], release: str, library_sha256: str) -> Facts:
    """Facts of struct ncclComm under this project's names."""
    members = {name: of(comm, name) for name in _FACTS}
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in members.items()
    }
    return Facts(release=release, library_sha256=library_sha256, **plain)


# Where struct ncclComm has had the tables.
TABLES = {
    "latency_us": ("latencies", "tuningContext.generalLatencies"),
    "bandwidth_gbs": ("bandwidths", "tuningContext.generalBandwidths"),
    "max_threads": ("maxThreads", "tuningContext.maxThreads"),
    "thread_thresholds_bytes": ("threadThresholds", "tuningContext.threadThresholds"),
}
ENABLED = "tuningContext.enabled"  # by the number of an algorithm and protocol, and by collective; newer releases

# Algorithms without a graph of their own tune with another's.
_BORROWED = {Algorithm.NVLSTree: Algorithm.NVLS, Algorithm.PAT: Algorithm.Tree}


def graphs(raw: Sequence[Mapping[str, Any]], local_ranks: int) -> dict[Algorithm, Graph]:
    """``comm->graphs`` by algorithm, of a node of ``local_ranks``."""
    by_algorithm = {}
    for algorithm in list(Algorithm)[: len(raw)]:
        graph = raw[_BORROWED.get(algorithm, algorithm)]
        by_algorithm[algorithm] = Graph(
            pattern=graph["pattern"],
            n_channels=graph["nChannels"],
            same_channels=graph["sameChannels"],
            bw_intra_gbs=graph["bwIntra"],
            bw_inter_gbs=graph["bwInter"],
            type_intra=graph["typeIntra"],
            type_inter=graph["typeInter"],
            latency_inter_us=graph.get("latencyInter", 0.0),
            cross_nic=graph["crossNic"],
            heads=tuple(sorted(set(graph["intra"][: graph["nChannels"] * local_ranks : local_ranks]))),
        )
    return by_algorithm


def shape(layout: Layout) -> tuple[int, int]:
    """Numbers of algorithms and protocols of the release."""
    algorithms, protocols = layout.members[next(name for name in TABLES["max_threads"] if name in layout.members)].dims
    return algorithms, protocols


def tables(comm: Mapping[str, Any], layout: Layout) -> Tables:
    """The tables in struct ncclComm, in the shapes the release has.

    Releases that keep what is enabled in a matrix of its own, and mark what an algorithm does not implement by -1
    (2.31 and later), get the zeros of the older ones: a bandwidth is 0 exactly where a cell may not be used.
    """

    def table(field: str, kind: Any) -> Any:
        name = next(name for name in TABLES[field] if name in layout.members)
        return np.array(comm[name], kind).reshape(layout.members[name].dims)

    latency_us, bandwidth_gbs = table("latency_us", np.float32), table("bandwidth_gbs", np.float32)
    if ENABLED in layout.members:
        latency_us[latency_us == -1] = 0
        bandwidth_gbs[_enabled(comm, layout, bandwidth_gbs.shape) == 0] = 0
    return Tables(
        latency_us=latency_us,
        bandwidth_gbs=bandwidth_gbs,
        max_threads=table("max_threads", np.int32),
        thread_thresholds_bytes=table("thread_thresholds_bytes", np.int64),
    )


def _enabled(comm: Mapping[str, Any], layout: Layout, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """The matrix as [collective, algorithm, protocol]; its rows beyond the general kernels are left out."""
    collectives, algorithms, protocols = shape
    matrix = np.array(comm[ENABLED], np.int32).reshape(layout.members[ENABLED].dims)[: algorithms * protocols]
    enabled: NDArray[np.int32] = matrix.reshape(algorithms, protocols, collectives).transpose(2, 0, 1)
    return enabled

"""Graphs from the lines ``Pattern ...``: of one rank, and the weakest of several."""

from collections.abc import Sequence

import numpy as np

from tuner.base.names import PATH_NAMES, Pattern
from tuner.machine.graphs import Graph, Graphs
from tuner.scenario.logs.reader import PrintedGraph


def of_rank(printed: Sequence[PrintedGraph], latency_us: float) -> tuple[Graphs, list[str]]:
    """A rank's graphs by name, also those without a channel, and what is not certain of them.

    ``latency_us`` is the network's, which no line says. NCCL prints ring, tree, CollNet's and NVLS's in this order
    (initTransportsRank, src/init.cc, v2.18.1-1 to v2.30.7-1).
    """
    graphs: dict[str, Graph] = {}
    doubts: list[str] = []
    for line in printed:
        if line.pattern not in list(Pattern) or not {line.type_intra, line.type_inter} <= set(PATH_NAMES):
            doubts.append(f"a graph of an unknown kind was passed over: {line}")
            continue
        pattern = Pattern(line.pattern)
        name = _NAMES.get(pattern, "collnet_chain" if "tree" in graphs else "tree")
        graphs[name] = _graph(line, pattern, latency_us, doubts)
    if "collnet_chain" in graphs:  # one graph for both up to 2.21
        graphs.setdefault("collnet_direct", graphs["collnet_chain"])
    return graphs, doubts


_NAMES = {Pattern.Ring: "ring", Pattern.NVLS: "nvls", Pattern.CollNetDirect: "collnet_direct"}


def _graph(line: PrintedGraph, pattern: Pattern, latency_us: float, doubts: list[str]) -> Graph:
    (intra, sure_of_intra), (inter, sure_of_inter) = bandwidth_gbs(line.bw_intra), bandwidth_gbs(line.bw_inter)
    if not (sure_of_intra and sure_of_inter):
        bandwidths = f"{line.bw_intra}/{line.bw_inter}"
        doubts.append(f"bandwidths {bandwidths} are of no search, their float32 is not certain: `graphs` takes a dump")
    return Graph(
        pattern=pattern,
        channels=line.channels,
        same_channels=line.same_channels,
        bw_intra_gbs=intra,
        bw_inter_gbs=inter,
        latency_inter_us=latency_us,
        type_intra=line.type_intra,
        type_inter=line.type_inter,
        cross_nic=line.cross_nic,
    )


def bandwidth_gbs(text: str) -> tuple[float, bool]:
    """The float32 that NCCL printed as ``text`` with six decimals, and whether it is the only one that can be.

    A search finds a speed of its table, which has two decimals at most, divided by a whole number where channels are
    duplicated (ncclTopoCompute and ncclTopoDupChannels, src/graph/search.cc, v2.28.9-1). Any other value, as of a
    graph file, is read as its nearest float32.
    """
    for parts in range(1, 65):
        value = np.float32(round(float(text) * parts, 2)) / np.float32(parts)
        if f"{value:f}" == text:
            return float(value), True
    nearest = np.float32(text)
    neighbours = (np.nextafter(nearest, np.float32(side)) for side in (0, np.inf))
    return float(nearest), all(f"{value:f}" != text for value in neighbours)

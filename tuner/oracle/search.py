"""Makes this project's records from results of the real library: graphs, and completed topologies.

Importing this module loads the oracle, which takes longer than many answers. Import it only if the library is asked.
"""

import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

from tuner.base.errors import OracleFailed
from tuner.machine import skeleton
from tuner.machine.graphs import IN_ORDER, OF_ALGORITHM, Graphs, OrderedGraph, read_orders
from tuner.machine.skeleton import Skeleton
from tuner.oracle.api import Oracle
from tuner.scenario.oracle_configuration import OracleConfiguration


@cache
def completed(file: Path, gpu: str, net_gbps: float | None, net_latency_us: float | None, nccl: str) -> str:
    """The topology that NCCL of the release ``nccl`` makes from a skeleton.

    BadTopology, BadInput or UnknownGpu for an incomplete skeleton. OracleUnavailable if the library cannot be loaded
    here. OracleFailed if NCCL wrote no topology.
    """
    described = skeleton.read(file, gpu, net_gbps, net_latency_us)
    with Oracle(of_skeleton(described, nccl)) as oracle:
        dump = oracle.topology_xml()
    if dump is None:
        raise OracleFailed(f"NCCL {nccl} wrote no topology for {file}")
    return skeleton.tidy(dump, ET.fromstring(described.topology))


def of_skeleton(described: Skeleton, nccl: str, nodes: int = 1) -> OracleConfiguration:
    """The configuration of a communicator in which libnccl completes the skeleton."""
    return OracleConfiguration(described.topology, nodes, described.gpus, nccl, env={}, skeleton=described)


def net_gbs(oracle: Oracle) -> float | None:
    """Bandwidth in GB/s of the slowest path from a GPU to its own adapter; None if the release does not compute it."""
    value: float | None = oracle.memory.get("minNetBw")
    return value


def graphs(oracle: Oracle) -> Graphs:
    """Graphs by name, without those that NCCL did not search or that have no channels."""
    found = {OF_ALGORITHM[algorithm]: graph for algorithm, graph in oracle.graphs.items() if graph.channels}
    return {name: found[name] for name in IN_ORDER if name in found}


def ordered_graphs(oracle: Oracle) -> dict[str, OrderedGraph]:
    """Graphs with their channels, as rank 0 found them. OracleFailed if NCCL wrote no graphs."""
    dump = oracle.graph_xml()
    if dump is None:
        raise OracleFailed(f"NCCL {oracle.facts.release} wrote no graphs")
    orders = read_orders(dump)
    return {name: OrderedGraph(graph, orders[name][: graph.channels]) for name, graph in graphs(oracle).items()}

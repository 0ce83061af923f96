"""The graphs of a machine of the catalogue, searched for every number of its GPUs: its graphs.json.

On one node and on several, without and with CollNet; more nodes than two change nothing, because NCCL searches one
node's graphs and asks only whether there are others.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product

from tuner.base.errors import BadInput, BadTopology
from tuner.graphs.cached import rules_of, searched
from tuner.graphs.request import Request, SearchResult
from tuner.machine.catalogue import Machine
from tuner.machine.graph_tables import GraphTable, Shape
from tuner.machine.graphs import COLLNET_GRAPHS, WITH_COLLNET, Graph
from tuner.release import load

Found = tuple[dict[str, Graph], float]


def find_all(machine: Machine, releases: Iterable[str], processes: int | None = None) -> GraphTable:
    """The machine's table of graphs with these releases searched anew; others that are in it stay.

    Shapes that NCCL refuses, or takes for several nodes, are left out. ``processes``: as many as processors.
    """
    kept = machine.graph_table
    graphs, net_gbs = dict(kept.graphs), dict(kept.net_gbs)
    alike: dict[str, list[str]] = {}
    for name in releases:
        alike.setdefault(rules_of(name), []).append(name)
    of_trays = [machine.gpus_per_node * trays for trays in machine.tray_counts]
    counts = [*of_trays, *range(machine.gpus_per_node, 0, -1)]  # the longest searches first
    shapes: list[Shape] = [(names[0], *shape) for names in alike.values() for shape in product(counts, (False, True))]
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        for (first, gpus, several), found in zip(shapes, pool.map(partial(of_shape, machine), shapes), strict=True):
            for name in alike[rules_of(first)]:
                shape = name, gpus, several
                graphs.pop(shape, None), net_gbs.pop(shape, None)
                if found is not None:
                    graphs[shape], net = found
                    if load(name).search.routing.net_gbs != "unknown":
                        net_gbs[shape] = net
    return GraphTable(machine.topology_sha256, graphs, net_gbs)


def of_shape(machine: Machine, shape: Shape) -> Found | None:
    """The graphs of one shape as :class:`GraphTable` has them, and the adapters' bandwidth; None for none."""
    release, gpus, several = shape
    try:
        plain, with_collnet = (
            searched(replace(_request(machine, gpus, several, variables), network_reduces=True), release)
            for variables in ({}, {"NCCL_COLLNET_ENABLE": "1"})
        )
    except (BadInput, BadTopology):
        return None
    if plain.parts > 1:
        return None
    graphs = _with_channels(plain)
    for name, graph in _with_channels(with_collnet).items():
        if graph != graphs.get(name):
            graphs[name if name in COLLNET_GRAPHS else f"{name}{WITH_COLLNET}"] = graph
    return graphs, plain.net_gbs


def _with_channels(found: SearchResult) -> dict[str, Graph]:
    return {name: each.graph for name, each in found.graphs.items() if each.graph.channels}


def _request(machine: Machine, gpus: int, several: bool, variables: dict[str, str]) -> Request:
    """GPUs of a host, or of whole trays where the GPUs are more than one has."""
    environment, of_host = {**machine.environment, **variables}, min(gpus, machine.gpus_per_node)
    across = machine.peer_to_peer_across_sockets
    return Request(machine.topology_xml, of_host, several, environment, across, hosts=gpus // of_host)

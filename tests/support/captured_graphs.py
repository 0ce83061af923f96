"""The graphs that the real libnccl finds on a machine of the catalogue, as a file: what our own search is held against.

`tests.scripts.search_graphs --libnccl` writes it.

Two runs of the library, with and without CollNet, per number of GPUs per node, on one node and on two. More nodes
change nothing, because NCCL searches one node's graphs and asks only whether there are others
(tests/unit/test_machines.py checks it at 3 and 4).
"""

import os
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.base.names import Pattern
from tuner.machine.catalogue import Machine, load
from tuner.machine.graphs import COLLNET_GRAPHS, WITH_COLLNET, Graph, Graphs, GraphTable, from_table, release_key, rows
from tuner.oracle import search
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

FOLDER = Path(__file__).parents[1] / "golden" / "graphs"
SEVERAL = 2  # nodes
TIMEOUT_S = 600.0  # some searches take minutes


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A file of captured graphs; ``libnccl_sha256`` by release."""

    table: GraphTable
    libnccl_sha256: Mapping[str, str]


def read(file: Path) -> Captured:
    """Read a file of graphs that libnccl was asked for; empty where there is none. BadInput for any other file."""
    if not file.exists():
        return Captured(GraphTable(""), {})
    try:
        table = tomllib.loads(file.read_text("utf-8"))
        return Captured(from_table(table), table["libnccl_sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        valid = "valid: a file of graphs that libnccl was asked for"
        raise BadInput(f"{file}: no captured graphs: {error!r}; {valid}") from None


def capture(name: str, release: str, file: Path) -> None:
    """Captures one release of one machine into the file.

    Releases captured before stay, unless they were captured from another topology.xml.
    """
    machine = load(name)
    old = read(file)
    kept = old.table.of(machine.topology_sha256).without(release)
    graphs, nets = dict(kept.graphs), dict(kept.net_gbs)
    libnccl = {r: sha for r, sha in old.libnccl_sha256.items() if r in kept.releases}
    asked = list(product(reversed(machine.gpu_counts), (1, SEVERAL)))  # the longest searches first
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda shape: ask(machine, release, shape[1], shape[0]), asked))
    for (gpus, nodes), (found, net, libnccl[release]) in zip(asked, answers, strict=True):
        shape = release, gpus, nodes > 1
        graphs[shape] = found
        if net is not None:
            nets[shape] = net
    write_text(file, render(name, Captured(GraphTable(machine.topology_sha256, graphs, nets), libnccl)))


def ask(machine: Machine, release: str, nodes: int, gpus_per_node: int) -> tuple[Graphs, float | None, str]:
    """The graphs that libnccl finds for one shape, its adapters' bandwidth, and the sha256 of that libnccl.

    CollNet's two graphs are those it finds with CollNet on, which it searches on one node too. Where that changes
    another graph, the other is there twice.
    """
    scenario = Scenario(release, nodes, machine=machine.name, gpus_per_node=gpus_per_node)
    graphs, net_gbs, sha256 = _searched(scenario)
    with_collnet, _, _ = _searched(replace(scenario, collnet=True, environment={"NCCL_COLLNET_ENABLE": "1"}))
    for name, graph in with_collnet.items():
        if graph != graphs.get(name):
            graphs[name if name in COLLNET_GRAPHS else f"{name}{WITH_COLLNET}"] = graph
    return graphs, net_gbs, sha256


def _searched(scenario: Scenario) -> tuple[dict[str, Graph], float | None, str]:
    with Oracle(scenario.oracle_configuration(), TIMEOUT_S) as oracle:
        _check_nodes(oracle)
        return dict(search.graphs(oracle)), search.net_gbs(oracle), oracle.facts.library_sha256


def _check_nodes(oracle: Oracle) -> None:
    """Raises BadInput if NCCL treats one host as several nodes (ncclTopoCheckNet, src/graph/paths.cc, v2.28.9-1)."""
    hosts, domains = len(oracle.configuration.hosts), len(oracle.configuration.domains)
    nodes = oracle.facts.n_nodes
    if nodes > hosts or (nodes < hosts and not domains):
        raise BadInput(
            f"NCCL takes {hosts} of these hosts with {oracle.configuration.gpus_per_node} GPUs for {nodes} nodes, "
            "whose graphs differ and are not captured: set NCCL_NET_DISABLE_INTRA=1"
        )


def render(name: str, captured: Captured) -> str:
    """The text of such a file; equal graphs share an entry."""
    sha256 = captured.libnccl_sha256
    nets = {shape: {"slowest_gbs": value} for shape, value in captured.table.net_gbs.items()}
    lines = [
        f"# Autogenerated by 'python -m tests.scripts.search_graphs {name}', which asked libnccl; do not edit.",
        "# What libnccl's search found on topology.xml with no NCCL_* variable set but machine.toml's, and those that",
        "# NCCL_COLLNET_ENABLE=1 adds or changes. Decimals are the shortest that give the float32 back. Absent: not",
        "# searched. Heads are the GPUs at which the channels of a graph that enters the network start, if not at all.",
        f'topology_sha256 = "{captured.table.topology_sha256}"',
        "",
        "[libnccl_sha256]",
        *(f'"{release}" = "{sha256[release]}"' for release in sorted(sha256, key=release_key)),
        "",
        "[graphs]",
        *_lists(captured.table.graphs),
        "",
        "[adapters]  # slowest path from a GPU to its own adapter, for the releases that know it",
        *_lists(nets),
    ]
    return "\n".join(lines) + "\n"


def _lists(by_shape: Mapping[Any, Mapping[str, Graph | float]]) -> list[str]:
    lines = []
    for kind, entries in rows(by_shape).items():
        lines += [f"{kind} = [", *map(_line, entries), "]"]
    return lines


def _line(row: Mapping[str, Any]) -> str:
    return "    {" + ", ".join(f"{name} = {_value(value)}" for name, value in row.items()) + "},"


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Pattern):
        return f'"{value.name}"'
    if isinstance(value, float):
        return str(np.float32(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


def names() -> list[str]:
    """The machines that libnccl was asked about; a machine may be in the catalogue without."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


@cache
def of(machine: str) -> Captured:
    return read(FOLDER / f"{machine}.toml")

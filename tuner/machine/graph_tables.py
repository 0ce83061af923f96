"""The graphs of a machine for many releases and numbers of GPUs, as rows in which equal graphs stand once.

``graphs.json`` of the catalogue has such rows, and so have the graphs that libnccl was asked for (tests/golden/graphs).
"""

import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, field
from itertools import groupby, product
from typing import Any, TypeVar

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.names import Pattern
from tuner.machine.graphs import Graph, Graphs

Shape = tuple[str, int, bool]  # release, GPUs per node, several nodes
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class GraphTable:
    """Graphs by shape, as they were found on the topology with that sha256 and with the machine's own variables.

    CollNet's two graphs are those that NCCL_COLLNET_ENABLE=1 adds; another graph that it changes is there twice, the
    other one by its name and ``_with_collnet``. ``net_gbs``: the slowest path from a GPU to its own adapter, 1e9 bytes
    per second, for the releases that know it.
    """

    topology_sha256: str
    graphs: Mapping[Shape, Graphs] = field(default_factory=dict)
    net_gbs: Mapping[Shape, float] = field(default_factory=dict)

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases that it has graphs of, oldest first."""
        return tuple(sorted({release for release, _, _ in self.graphs}, key=release_key))

    def of(self, topology_sha256: str) -> "GraphTable":
        """The table, or an empty one where it was found on another topology."""
        return self if self.topology_sha256 == topology_sha256 else GraphTable(topology_sha256)

    def without(self, release: str) -> "GraphTable":
        """All but one release."""
        graphs = {shape: found for shape, found in self.graphs.items() if shape[0] != release}
        net_gbs = {shape: gbs for shape, gbs in self.net_gbs.items() if shape[0] != release}
        return GraphTable(self.topology_sha256, graphs, net_gbs)


def from_table(table: Mapping[str, Any]) -> GraphTable:
    """The graphs of a parsed file."""
    return GraphTable(table.get("topology_sha256", ""), shapes(table), net_gbs(table))


def shapes(table: Mapping[str, Any]) -> dict[Shape, dict[str, Graph]]:
    """The graphs by release, GPUs per node and whether there are several nodes."""
    by_shape: dict[Shape, dict[str, Graph]] = {}
    for name, rows in table.get("graphs", {}).items():
        for row in rows:
            graph = _graph({column: row.get(column) for column in Graph.__dataclass_fields__})
            for shape in _shapes_of(row):
                by_shape.setdefault(shape, {})[name] = graph
    return by_shape


def net_gbs(table: Mapping[str, Any]) -> dict[Shape, float]:
    """The slowest path from a GPU to its own adapter, 1e9 bytes per second."""
    return {
        shape: float(np.float32(row["gbs"]))
        for row in table.get("adapters", {}).get("slowest_gbs", [])
        for shape in _shapes_of(row)
    }


def rows(by_shape: Mapping[Shape, Mapping[str, Graph | float]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of what was found, by name; one node first, fewest GPUs first. Absent values are left out."""
    return {
        kind: [_row(entry) for entry in entries]
        for kind, entries in groupby(_entries(by_shape), key=lambda entry: entry[0][0])
    }


def to_json(table: GraphTable) -> str:
    """The text of a graphs.json, one row a line; decimals are the shortest that give the float32 back."""
    parts = {"graphs": rows(table.graphs), "adapters": rows(_named(table.net_gbs))}
    lines = [f' "topology_sha256": {json.dumps(table.topology_sha256)}']
    for part, lists in parts.items():
        inner = [_list(name, some) for name, some in lists.items()]
        lines.append(f' "{part}": {{\n' + ",\n".join(inner) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def release_key(release: str) -> tuple[int, ...]:
    """Sorts 2.9 before 2.28."""
    return tuple(int(part) for part in re.findall(r"\d+", release))


def _named(net_gbs: Mapping[Shape, float]) -> dict[Shape, dict[str, float]]:
    return {shape: {"slowest_gbs": value} for shape, value in net_gbs.items()}


def _shapes_of(row: Mapping[str, Any]) -> Iterator[Shape]:
    for release, gpus, nodes in product(row["releases"], row["gpus_per_node"], row["nodes"]):
        yield release, gpus, nodes == "several"


def _graph(row: Mapping[str, Any]) -> Graph:
    """A row with its decimals back as the float32 they were printed from."""
    numbers = {name: float(np.float32(value)) for name, value in row.items() if isinstance(value, float)}
    heads = None if row["heads"] is None else tuple(row["heads"])
    return Graph(**{**row, **numbers, "pattern": Pattern[row["pattern"]], "heads": heads})


Found = Graph | float
Entry = tuple[tuple[str, Found], tuple[str, ...], tuple[int, ...], tuple[str, ...]]


def _entries(by_shape: Mapping[Shape, Mapping[str, Found]]) -> list[Entry]:
    """Releases x GPUs per node x nodes with one graph; by its name, one node first, fewest GPUs first."""
    order = sorted(by_shape, key=lambda shape: (release_key(shape[0]), *shape[1:]))
    cells = [(graph, *shape) for shape in order for graph in by_shape[shape].items()]
    releases = _gather(((graph, gpus, several), release) for graph, release, gpus, several in cells)
    gpus_per_node = _gather(((graph, r, several), gpus) for (graph, gpus, several), r in releases.items())
    nodes = _gather(
        ((graph, r, g), "several" if several else "one") for (graph, r, several), g in gpus_per_node.items()
    )
    entries = [(graph, r, g, n) for (graph, r, g), n in nodes.items()]
    return sorted(entries, key=lambda entry: (entry[0][0], entry[3], entry[2], release_key(entry[1][0])))


def _gather(pairs: Iterable[tuple[K, V]]) -> dict[K, tuple[V, ...]]:
    """All values of each key, in order."""
    gathered: dict[K, tuple[V, ...]] = {}
    for key, value in pairs:
        gathered[key] = (*gathered.get(key, ()), value)
    return gathered


def _row(entry: Entry) -> dict[str, Any]:
    (_, graph), releases, gpus_per_node, nodes = entry
    values = asdict(graph) if isinstance(graph, Graph) else {"gbs": graph}
    known = {name: value for name, value in values.items() if value is not None}
    return {"nodes": nodes, "gpus_per_node": gpus_per_node} | known | {"releases": releases}


def _list(name: str, some: Iterable[Mapping[str, Any]]) -> str:
    return f'  "{name}": [\n' + ",\n".join(f"   {_json(row)}" for row in some) + "\n  ]"


def _json(row: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f'"{name}": {_json_value(value)}' for name, value in row.items()) + "}"


def _json_value(value: object) -> str:
    if isinstance(value, Pattern):
        return f'"{value.name}"'
    return str(np.float32(value)) if isinstance(value, float) else json.dumps(value)

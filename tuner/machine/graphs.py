"""Records of the channel graphs that NCCL's search found, and the reader of NCCL's own graph dump.

Graphs are kept in mappings by name, without those that NCCL did not search. For these, NCCL computes with zeros, as in
``EMPTY``.
"""

import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from itertools import groupby, product
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadTopology, one_of
from tuner.base.files import contents
from tuner.base.names import PATH_NAMES, Algorithm, Pattern
from tuner.base.records import json_form
from tuner.machine.topology.xml import MAX_BYTES, Element, parse


@dataclass(frozen=True, slots=True)
class Graph:
    """The numbers of ``struct ncclTopoGraph`` that the tuning model reads. Bandwidths are per channel, as exact float32
    values."""

    pattern: Pattern | None
    channels: int
    same_channels: bool
    bw_intra_gbs: float
    bw_inter_gbs: float
    latency_inter_us: float
    type_intra: str
    type_inter: str
    cross_nic: int
    # Indices of the GPUs of a node at which a graph from the network starts; None: all GPUs
    heads: tuple[int, ...] | None = None


Graphs: TypeAlias = Mapping[str, Graph]


@dataclass(frozen=True, slots=True)
class OrderedGraph:
    """A graph with its channels: the devices of each channel in order, such as ``net:0`` and ``gpu:3`` with NCCL's
    numbers.

    For NVLS, NCCL only names the GPU at which a channel begins.
    """

    graph: Graph = field(metadata=json_form(merged=True))
    orders: tuple[tuple[str, ...], ...]


EMPTY = Graph(
    pattern=None,
    channels=0,
    same_channels=False,
    bw_intra_gbs=0.0,
    bw_inter_gbs=0.0,
    latency_inter_us=0.0,
    type_intra="LOC",
    type_inter="LOC",
    cross_nic=0,
)

# The graph on which each algorithm runs. Source: initTransportsRank, src/init.cc, v2.28.9-1.
OF_ALGORITHM = {
    Algorithm.Tree: "tree",
    Algorithm.Ring: "ring",
    Algorithm.CollNetDirect: "collnet_direct",
    Algorithm.CollNetChain: "collnet_chain",
    Algorithm.NVLS: "nvls",
    Algorithm.NVLSTree: "nvls",
    Algorithm.PAT: "tree",
}

PLAIN_GRAPHS = frozenset({"ring", "tree", "nvls"})
IN_ORDER = ("ring", "tree", "collnet_chain", "collnet_direct", "nvls")  # in the order in which NCCL searches them
COLLNET_GRAPHS = ("collnet_direct", "collnet_chain")
WITH_COLLNET = "_with_collnet"  # end of the name of a graph that is different if CollNet is on
ENTER_THE_NETWORK = ("collnet_direct", "collnet_chain", "nvls")

# The ids of graphs in a dump (ncclTopoDumpGraphs, src/graph/search.cc, v2.28.9-1).
DUMP_IDS = {0: "ring", 1: "tree", 2: "collnet_chain", 3: "nvls", 4: "collnet_direct"}


def read_dump(path: Path) -> tuple[dict[str, Graph], int]:
    """The graphs in a file that NCCL wrote to NCCL_GRAPH_DUMP_FILE, by name, and the number of ranks in the graphs.

    BadTopology if it is not such a file.
    """
    try:
        data = contents(path, MAX_BYTES)
    except OSError as error:
        raise BadTopology(f"{path}: {error.strerror}") from None
    root = parse(data, str(path), by_nccl=False)[0]
    if root.tag != "graphs":
        raise BadTopology(f"{path}: the root element is <{root.tag}>, not <graphs>, as NCCL_GRAPH_DUMP_FILE writes it")
    channel = next((channel for graph in root.findall("graph") for channel in graph.findall("channel")), None)
    listed = list(channel.iter("gpu")) if channel is not None else []
    devs = {_whole(gpu, "dev", path) for gpu in listed}
    # GPUs that ranks share occur several times; only releases that let ranks share a GPU write the ranks
    attribute = "dev" if len(devs) == len(listed) else "rank"
    gpus = sorted({_whole(gpu, attribute, path) for gpu in listed})
    named = [(DUMP_IDS.get(_number(element, "id", path, int)), element) for element in root.iter("graph")]
    # Up to 2.22 it has collnet_chain's id and comes first; up to 2.21 there is only one such graph
    if "collnet_direct" not in dict(named):
        named += [("collnet_direct", element) for name, element in named if name == "collnet_chain"][:1]
    graphs = {
        name: _graph(name, element, (attribute, gpus), path)
        for name, element in named
        if name is not None and _number(element, "nchannels", path, int) > 0
    }
    missing = [name for name in ("ring", "tree") if name not in graphs]
    if missing:
        raise BadTopology(
            f"{path}: has no {' and no '.join(missing)} graph with channels, although NCCL always finds both"
        )
    return graphs, len(gpus)


def read_orders(dump: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The channels of each graph in the text of a dump, in the form of :class:`OrderedGraph`."""
    orders: dict[str, tuple[tuple[str, ...], ...]] = {}
    root = parse(dump.encode(), "graphs", by_nccl=False)[0]
    shared = any(_shares(channel) for channel in root.iter("channel"))
    for element in root.iter("graph"):
        name = DUMP_IDS[int(element.get("id", ""))]
        channels = tuple(_order(channel, shared) for channel in element.iter("channel"))
        if name in orders:  # in 2.22 both CollNet graphs have one id, and the first is the direct one
            orders["collnet_direct"] = orders[name]
        orders[name] = channels
    orders.setdefault("collnet_direct", orders.get("collnet_chain", ()))  # up to 2.21 both are one graph
    orders["nvls"] = tuple(_head_of(order) for order in orders.get("nvls", ()))
    return orders


def _shares(channel: Element) -> bool:
    """Whether ranks of a channel share a GPU. Releases that allow this write the ranks into the dump."""
    devs = [gpu.get("dev") for gpu in channel.iter("gpu") if gpu.get("rank") is not None]
    return len(set(devs)) < len(devs)


def _order(channel: Element, shared: bool) -> tuple[str, ...]:
    return tuple(_device(element, shared) for element in channel.children)


def _device(element: Element, shared: bool) -> str:
    number = int(element.get("dev", ""), 0)
    rank = f"/{element.get('rank')}" if shared and element.tag == "gpu" else ""
    return f"{element.tag}:{number - 2**64 if number >= 2**63 else number}{rank}"


def _head_of(order: tuple[str, ...]) -> tuple[str, ...]:
    """A channel of NVLS with only its head, because NCCL up to 2.20 writes meaningless GPUs after the head."""
    gpus = [device for device in order if device.startswith("gpu")]
    return tuple(device for device in order if device not in gpus or device is gpus[0])


def _graph(name: str, element: Element, gpus: tuple[str, Sequence[int]], path: Path) -> Graph:
    """The graph of an element; ``gpus``: the attribute that tells a dump's ranks apart, and its values in order."""
    pattern = _number(element, "pattern", path, int)
    if pattern not in list(Pattern):
        valid = one_of(f"{known.value} ({known.name})" for known in Pattern)
        raise BadTopology(f"{path}: graph pattern {pattern} is unknown; {valid}")
    return Graph(
        pattern=Pattern(pattern),
        channels=_number(element, "nchannels", path, int),
        same_channels=bool(_number(element, "samechannels", path, int)),
        bw_intra_gbs=_number(element, "speedintra", path, float),
        bw_inter_gbs=_number(element, "speedinter", path, float),
        latency_inter_us=_number(element, "latencyinter", path, float, default="0"),
        type_intra=_path_type(element, "typeintra", path),
        type_inter=_path_type(element, "typeinter", path),
        cross_nic=_number(element, "crossnic", path, int, default="0"),
        heads=_heads(element, gpus, path) if name in ENTER_THE_NETWORK else None,
    )


def _heads(element: Element, known: tuple[str, Sequence[int]], path: Path) -> tuple[int, ...] | None:
    """The first GPU of each channel, as indices of the dump's GPUs; None if these are all of the GPUs."""
    attribute, gpus = known
    firsts = {_whole(gpu, attribute, path) for channel in element.iter("channel") for gpu in channel.findall("gpu")[:1]}
    if unknown := firsts - set(gpus):
        raise BadTopology(f"{path}: a channel starts at GPU {min(unknown)}; {one_of(gpus)}, those of the first channel")
    return None if len(firsts) == len(gpus) else tuple(gpus.index(dev) for dev in sorted(firsts))


def _whole(gpu: Element, name: str, path: Path) -> int:
    """A number of a GPU, which is decimal, or hexadecimal with 0x in newer releases."""
    text = gpu.get(name, "")
    try:
        return int(text, 0)
    except ValueError:
        raise BadTopology(f"{path}: <gpu> attribute {name}={text!r} is not a number") from None


def _number(element: Element, name: str, path: Path, kind: type, default: str | None = None) -> int:
    text = element.get(name, default)
    try:
        value = kind(text)
    except (TypeError, ValueError):
        raise BadTopology(f"{path}: <graph> attribute {name}={text!r} is not a number") from None
    if not 0 <= value < 1e9:
        raise BadTopology(f"{path}: <graph> attribute {name}={text!r} is out of range")
    return value  # type: ignore[no-any-return]


def _path_type(element: Element, name: str, path: Path) -> str:
    text = element.get(name)
    if text not in PATH_NAMES:
        raise BadTopology(f"{path}: <graph> attribute {name}={text!r} is not a path type; {one_of(PATH_NAMES)}")
    return text


Shape = tuple[str, int, bool]  # release, GPUs per node, whether there are several nodes
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class GraphTable:
    """The graphs that NCCL finds on one machine, by shape: release, GPUs per node, and whether there are several nodes.

    They were searched on the topology with ``topology_sha256``, and no variables were set but the machine's own.

    NCCL_COLLNET_ENABLE=1 adds CollNet's two graphs. Each other graph that this variable changes is stored twice: the
    changed graph has ``_with_collnet`` after its name. ``net_gbs`` is the bandwidth of the slowest path from a GPU to
    its own adapter, 1e9 bytes per second, for releases that use it.
    """

    topology_sha256: str
    graphs: Mapping[Shape, Graphs] = field(default_factory=dict)
    net_gbs: Mapping[Shape, float] = field(default_factory=dict)

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases whose graphs the table has, oldest first."""
        return tuple(sorted({release for release, _, _ in self.graphs}, key=release_key))

    def of(self, topology_sha256: str) -> "GraphTable":
        """This table if it was made for the topology with this SHA-256; else an empty table."""
        return self if self.topology_sha256 == topology_sha256 else GraphTable(topology_sha256)

    def without(self, release: str) -> "GraphTable":
        """The table without the graphs of one release."""
        graphs = {shape: found for shape, found in self.graphs.items() if shape[0] != release}
        net_gbs = {shape: gbs for shape, gbs in self.net_gbs.items() if shape[0] != release}
        return GraphTable(self.topology_sha256, graphs, net_gbs)


def from_table(table: Mapping[str, Any]) -> GraphTable:
    """The graphs in a parsed file."""
    return GraphTable(table.get("topology_sha256", ""), shapes(table), net_gbs(table))


def shapes(table: Mapping[str, Any]) -> dict[Shape, dict[str, Graph]]:
    """The graphs by shape: release, GPUs per node, and whether there are several nodes."""
    by_shape: dict[Shape, dict[str, Graph]] = {}
    for name, rows in table.get("graphs", {}).items():
        for row in rows:
            graph = _graph_of_row({column: row.get(column) for column in Graph.__dataclass_fields__})
            for shape in _shapes_of(row):
                by_shape.setdefault(shape, {})[name] = graph
    return by_shape


def net_gbs(table: Mapping[str, Any]) -> dict[Shape, float]:
    """The bandwidth of the slowest path from a GPU to its own adapter, by shape, 1e9 bytes per second."""
    return {
        shape: float(np.float32(row["gbs"]))
        for row in table.get("adapters", {}).get("slowest_gbs", [])
        for shape in _shapes_of(row)
    }


def rows(by_shape: Mapping[Shape, Mapping[str, Graph | float]]) -> dict[str, list[dict[str, object]]]:
    """The rows of graphs or bandwidths as they are in the file, by name.

    For each name, rows for one node come before those for several nodes, and rows for fewer GPUs before those for more.
    Missing values are left out.
    """
    return {
        kind: [_row(entry) for entry in entries]
        for kind, entries in groupby(_entries(by_shape), key=lambda entry: entry[0][0])
    }


def to_json(table: GraphTable) -> str:
    """The text of a graphs.json, one row per line; decimals are the shortest that read back to the same float32."""
    parts = {"graphs": rows(table.graphs), "adapters": rows(_named(table.net_gbs))}
    lines = [f' "topology_sha256": {json.dumps(table.topology_sha256)}']
    for part, lists in parts.items():
        inner = [_list(name, some) for name, some in lists.items()]
        lines.append(f' "{part}": {{\n' + ",\n".join(inner) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def release_key(release: str) -> tuple[int, ...]:
    """A sort key for releases, so that 2.9 comes before 2.28."""
    return tuple(int(part) for part in re.findall(r"\d+", release))


def _named(net_gbs: Mapping[Shape, float]) -> dict[Shape, dict[str, float]]:
    return {shape: {"slowest_gbs": value} for shape, value in net_gbs.items()}


def _shapes_of(row: Mapping[str, Any]) -> Iterator[Shape]:
    for release, gpus, nodes in product(row["releases"], row["gpus_per_node"], row["nodes"]):
        yield release, gpus, nodes == "several"


def _graph_of_row(row: Mapping[str, Any]) -> Graph:
    """The graph in a row, whose decimals are converted back to the float32 values that were printed."""
    numbers = {name: float(np.float32(value)) for name, value in row.items() if isinstance(value, float)}
    heads = None if row["heads"] is None else tuple(row["heads"])
    return Graph(**{**row, **numbers, "pattern": Pattern[row["pattern"]], "heads": heads})


Found = Graph | float
Entry = tuple[tuple[str, Found], tuple[str, ...], tuple[int, ...], tuple[str, ...]]


def _entries(by_shape: Mapping[Shape, Mapping[str, Found]]) -> list[Entry]:
    """The entries of one graph in the file: releases, numbers of GPUs per node and of nodes for which the graph is the
    same. Sorted by the graph's name, one node first, then fewest GPUs first."""
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
    """Values grouped by key, in the order of the keys' first occurrence."""
    gathered: dict[K, tuple[V, ...]] = {}
    for key, value in pairs:
        gathered[key] = (*gathered.get(key, ()), value)
    return gathered


def _row(entry: Entry) -> dict[str, object]:
    (_, graph), releases, gpus_per_node, nodes = entry
    values = asdict(graph) if isinstance(graph, Graph) else {"gbs": graph}
    known = {name: value for name, value in values.items() if value is not None}
    return {"nodes": nodes, "gpus_per_node": gpus_per_node} | known | {"releases": releases}


def _list(name: str, some: Iterable[Mapping[str, object]]) -> str:
    return f'  "{name}": [\n' + ",\n".join(f"   {_json(row)}" for row in some) + "\n  ]"


def _json(row: Mapping[str, object]) -> str:
    return "{" + ", ".join(f'"{name}": {_json_value(value)}' for name, value in row.items()) + "}"


def _json_value(value: object) -> str:
    if isinstance(value, Pattern):
        return f'"{value.name}"'
    return str(np.float32(value)) if isinstance(value, float) else json.dumps(value)

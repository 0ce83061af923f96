"""The channel graphs NCCL's search found, as records, and the reader of NCCL's own graph dump.

A graph that NCCL did not search is absent from the mapping; NCCL then computes with zeros, and so does ``EMPTY``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TypeAlias

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadTopology, one_of
from tuner.base.files import contents
from tuner.base.names import PATH_NAMES, Algorithm, Pattern
from tuner.base.records import json_form
from tuner.machine.topology.xml import MAX_BYTES, Element, parse


@dataclass(frozen=True, slots=True)
class Graph:
    """What the tuning model reads of ``struct ncclTopoGraph``; bandwidths are per channel, exact float32 values."""

    pattern: Pattern | None
    channels: int
    same_channels: bool
    bw_intra_gbs: float
    bw_inter_gbs: float
    latency_inter_us: float
    type_intra: str
    type_inter: str
    cross_nic: int
    heads: tuple[int, ...] | None = None  # GPUs of a node at which a graph that enters the network starts; None: all


Graphs: TypeAlias = Mapping[str, Graph]


@dataclass(frozen=True, slots=True)
class OrderedGraph:
    """A graph with its channels: the devices of each in order, such as ``net:0`` and ``gpu:3`` by NCCL's numbers.

    Of NVLS NCCL says only the GPU at which a channel begins.
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

# Which graph an algorithm runs on. Source: initTransportsRank, src/init.cc, v2.28.9-1.
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
IN_ORDER = ("ring", "tree", "collnet_chain", "collnet_direct", "nvls")  # as NCCL searches them
COLLNET_GRAPHS = ("collnet_direct", "collnet_chain")
WITH_COLLNET = "_with_collnet"  # ends the name of a graph that differs where CollNet is on
ENTER_THE_NETWORK = ("collnet_direct", "collnet_chain", "nvls")

# The ids of a dump (ncclTopoDumpGraphs, src/graph/search.cc, v2.28.9-1).
DUMP_IDS = {0: "ring", 1: "tree", 2: "collnet_chain", 3: "nvls", 4: "collnet_direct"}


def read_dump(path: Path) -> tuple[dict[str, Graph], int]:
    """The graphs of a file that NCCL_GRAPH_DUMP_FILE wrote, and the number of ranks they run through.

    BadTopology where it is not such a file.
    """
    try:
        data = contents(path, MAX_BYTES)
    except OSError as error:
        raise BadTopology(f"{path}: {error.strerror}") from None
    root = parse(data, str(path), by_nccl=False)[0]
    if root.tag != "graphs":
        raise BadTopology(f"{path}: root element is <{root.tag}>; valid: <graphs>, as NCCL_GRAPH_DUMP_FILE writes it")
    channel = next((channel for graph in root.findall("graph") for channel in graph.findall("channel")), None)
    devs = [_dev(gpu, path) for gpu in channel.iter("gpu")] if channel is not None else []
    place = _dev if len(set(devs)) == len(devs) else _rank  # GPUs that ranks share come several times
    places = _Places(sorted({place(gpu, path) for gpu in channel.iter("gpu")} if channel is not None else ()), place)
    named = [(DUMP_IDS.get(_number(element, "id", path, int)), element) for element in root.iter("graph")]
    if "collnet_direct" not in dict(named):  # its id is collnet_chain's up to 2.22, and it comes first; one up to 2.21
        named += [("collnet_direct", element) for name, element in named if name == "collnet_chain"][:1]
    graphs = {
        name: _graph(name, element, places, path)
        for name, element in named
        if name is not None and _number(element, "nchannels", path, int) > 0
    }
    missing = [name for name in ("ring", "tree") if name not in graphs]
    if missing:
        raise BadTopology(f"{path}: no {' and no '.join(missing)} graph with channels in it; NCCL always finds both")
    return graphs, len(places.all)


def read_orders(dump: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The channels of each graph of a dump's text, as an :class:`OrderedGraph` has them."""
    orders: dict[str, tuple[tuple[str, ...], ...]] = {}
    root = parse(dump.encode(), "graphs", by_nccl=False)[0]
    shared = any(_shares(channel) for channel in root.iter("channel"))
    for element in root.iter("graph"):
        name = DUMP_IDS[int(element.get("id", ""))]
        channels = tuple(_order(channel, shared) for channel in element.iter("channel"))
        if name in orders:  # the ids of both of CollNet's graphs are one in 2.22, and the first is the direct one's
            orders["collnet_direct"] = orders[name]
        orders[name] = channels
    orders.setdefault("collnet_direct", orders.get("collnet_chain", ()))  # one graph up to 2.21
    orders["nvls"] = tuple(_head_of(order) for order in orders.get("nvls", ()))
    return orders


def _shares(channel: Element) -> bool:
    """Whether ranks of a channel share a GPU; releases that let them write ranks."""
    devs = [gpu.get("dev") for gpu in channel.iter("gpu") if gpu.get("rank") is not None]
    return len(set(devs)) < len(devs)


def _order(channel: Element, shared: bool) -> tuple[str, ...]:
    return tuple(_device(element, shared) for element in channel.children)


def _device(element: Element, shared: bool) -> str:
    number = int(element.get("dev", ""), 0)
    rank = f"/{element.get('rank')}" if shared and element.tag == "gpu" else ""
    return f"{element.tag}:{number - 2**64 if number >= 2**63 else number}{rank}"


def _head_of(order: tuple[str, ...]) -> tuple[str, ...]:
    """A channel of NVLS with its head alone; NCCL up to 2.20 writes GPUs after it that mean nothing."""
    gpus = [device for device in order if device.startswith("gpu")]
    return tuple(device for device in order if device not in gpus or device is gpus[0])


@dataclass(frozen=True, slots=True)
class _Places:
    """What tells the ranks of a node apart in a dump, of all of them in order, and how to read it."""

    all: Sequence[int]
    of: Callable[[Element, Path], int]


def _graph(name: str, element: Element, places: _Places, path: Path) -> Graph:
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
        heads=_heads(element, places, path) if name in ENTER_THE_NETWORK else None,
    )


def _heads(element: Element, places: _Places, path: Path) -> tuple[int, ...] | None:
    """The first GPUs of the channels, by their place among all of them."""
    gpus = places.all
    firsts = {places.of(gpu, path) for channel in element.iter("channel") for gpu in channel.findall("gpu")[:1]}
    if unknown := firsts - set(gpus):
        raise BadTopology(f"{path}: a channel starts at GPU {min(unknown)}; {one_of(gpus)}, those of the first channel")
    return None if len(firsts) == len(gpus) else tuple(gpus.index(dev) for dev in sorted(firsts))


def _dev(gpu: Element, path: Path) -> int:
    """A GPU's number: decimal, or hexadecimal with 0x in newer releases."""
    return _whole(gpu, "dev", path)


def _rank(gpu: Element, path: Path) -> int:
    """The rank, which releases say that let several share a GPU."""
    return _whole(gpu, "rank", path)


def _whole(gpu: Element, name: str, path: Path) -> int:
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
        raise BadTopology(f"{path}: <graph> attribute {name}={text!r} is no path type; {one_of(PATH_NAMES)}")
    return text

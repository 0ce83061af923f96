"""Graphs as NCCL writes them to NCCL_GRAPH_DUMP_FILE, and reads them from NCCL_GRAPH_FILE.

Source: ncclTopoGetXmlFromGraphs, src/graph/search.cc; ncclTopoDumpXmlRec, src/graph/xml.cc, v2.28.9-1.
"""

from collections.abc import Iterator, Mapping

from tuner.base.names import Pattern
from tuner.machine.graphs import EMPTY, Graph, OrderedGraph
from tuner.release.search import Dump

PATTERNS = {
    "ring": Pattern.Ring,
    "tree": Pattern.BalancedTree,
    "collnet_chain": Pattern.Tree,
    "collnet_direct": Pattern.CollNetDirect,
    "nvls": Pattern.NVLS,
}
NOT_SEARCHED = OrderedGraph(EMPTY, ())


def text(found: Mapping[str, OrderedGraph], form: Dump) -> str:
    """The file; a graph that was not searched is in it without channels."""
    written = dict(found)
    if "nvls" in found and not form.nvls_heads_only:
        written["nvls"] = _filled(found["nvls"], found["ring"])
    graphs = zip(form.graphs, form.ids, strict=True)
    lines = [line for name, number in graphs for line in _graph(name, number, written.get(name, NOT_SEARCHED), form)]
    return "\n".join(['<graphs version="1">', *lines, "</graphs>"]) + "\n"


def _filled(nvls: OrderedGraph, ring: OrderedGraph) -> OrderedGraph:
    """NVLS with a GPU for each after the head, which NCCL does not set: the first, as of ring channels."""
    gpus = sorted({int(device[4:]) for device in ring.orders[0] if device.startswith("gpu:")})
    rest = (f"gpu:{gpus[0]}",) * (len(gpus) - 1)

    def filled(order: tuple[str, ...]) -> tuple[str, ...]:
        head = next(at for at, device in enumerate(order) if device.startswith("gpu:")) + 1
        return (*order[:head], *rest, *order[head:])

    return OrderedGraph(nvls.graph, tuple(map(filled, nvls.orders)))


def _graph(name: str, number: int, found: OrderedGraph, form: Dump) -> Iterator[str]:
    attributes = _attributes(name, number, found.graph)
    if not found.orders:
        yield f"  <graph {attributes}/>"
        return
    yield f"  <graph {attributes}>"
    for order in found.orders:
        yield "    <channel>"
        for device in order:
            yield f"      {_device(device, form)}"
        yield "    </channel>"
    yield "  </graph>"


def _attributes(name: str, number: int, graph: Graph) -> str:
    values = {
        "id": number,
        "pattern": int(PATTERNS[name] if graph.pattern is None else graph.pattern),
        "crossnic": graph.cross_nic,
        "nchannels": graph.channels,
        "speedintra": f"{graph.bw_intra_gbs:g}",
        "speedinter": f"{graph.bw_inter_gbs:g}",
        "latencyinter": f"{graph.latency_inter_us:g}",
        "typeintra": graph.type_intra,
        "typeinter": graph.type_inter,
        "samechannels": int(graph.same_channels),
    }
    return " ".join(f'{key}="{value}"' for key, value in values.items())


def _device(device: str, form: Dump) -> str:
    kind, _, numbers = device.partition(":")
    number, _, own = numbers.partition("/")
    dev = int(number) % 2**64 if form.hexadecimal else int(number)
    written = f"{dev:#x}" if form.hexadecimal and dev else str(dev)
    rank = f' rank="{own or number}"' if form.ranks and kind == "gpu" else ""
    return f'<{kind} dev="{written}"{rank}/>'

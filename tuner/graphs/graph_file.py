"""Graphs that NCCL reads from the file NCCL_GRAPH_FILE instead of searching for them.

Source: ncclTopoGetGraphFromXml and what it calls, and ncclTopoCompute, src/graph/search.cc;
ncclTopoGetXmlGraphFromFile, src/graph/xml.cc, v2.28.9-1.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from tuner.base.errors import BadInput, BadTopology, one_of
from tuner.base.expressions import expression
from tuner.base.names import PATHS_WITHOUT_WORD, Pattern
from tuner.base.numerics import f32, parse_long
from tuner.graphs.request import SearchRequest
from tuner.graphs.system import HOST_BIT, GpuDevice, System
from tuner.graphs.trial import Trial
from tuner.machine.graphs import EMPTY, Graph, OrderedGraph
from tuner.machine.topology.xml import Element, parse
from tuner.release.environment import Environment
from tuner.release.search import Dump

VARIABLE = "NCCL_GRAPH_FILE"
VERSION = "1"  # NCCL_GRAPH_XML_VERSION, xml.h
DECIMAL = expression(r"\s*([+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)", re.ASCII)
HEXADECIMAL = expression(r"\s*([+-]?)(0[xX])?([0-9a-fA-F]+)", re.ASCII)
MOST_NUMBER = 2**63 - 1  # the largest number that strtol returns


class GraphFile:
    """A file of graphs, as one release reads it. BadInput if NCCL fails on the file."""

    def __init__(self, path: str, text: str, form: Dump) -> None:
        self.path, self.form = path, form
        try:
            root = parse(text.encode(), f"{VARIABLE}={path}", by_nccl=False)[0]
        except BadTopology as error:
            raise BadInput(str(error)) from None
        if root.tag != "graphs":
            raise self._bad(f"the root element is <{root.tag}>; valid: <graphs>, as NCCL_GRAPH_DUMP_FILE writes it")
        if root.get("version") != VERSION:
            raise self._bad(f"version={root.get('version')!r} is unknown; valid: {VERSION!r}")
        self.graphs = root.findall("graph")

    def fill(self, trial: Trial, number: int, system: System, variables: Environment) -> bool:
        """Takes the graph with this id from the file, if the file has it. Returns True if no search is needed.

        A graph without channels in the file is searched. As in NCCL, the search uses the file's pattern and starts with
        the file's path types.
        """
        for element in self.graphs:
            if self._integer(element, "id") == number:
                self._fill(trial, element, system, variables)
        return trial.channels > 0

    def _fill(self, trial: Trial, element: Element, system: System, variables: Environment) -> None:
        crosses = self._integer(element, "crossnic")
        if crosses == 1 and variables.c_int("NCCL_CROSS_NIC", 2) == 0:
            return
        trial.cross_nic = crosses
        trial.pattern = self._pattern(element)
        trial.channels = self._integer(element, "nchannels")
        trial.bw_intra, trial.bw_inter = self._decimal(element, "speedintra"), self._decimal(element, "speedinter")
        trial.latency_us = self._decimal(element, "latencyinter", "0")
        trial.type_intra = self._type(element, "typeintra", system)
        trial.type_inter = self._type(element, "typeinter", system)
        trial.same_channels = self._integer(element, "samechannels") != 0
        channels = element.findall("channel")
        if not 0 <= trial.channels <= len(channels):
            raise self._bad(
                f"nchannels={trial.channels} of graph {element.get('id')}, which has {len(channels)} channels"
            )
        if trial.channels:
            self._lay(trial, channels, system)

    def _lay(self, trial: Trial, channels: Sequence[Element], system: System) -> None:
        """Writes all channels into one array, as NCCL does: if one channel has too many GPUs, the surplus becomes the
        start of the next channel."""
        gpus = len(system.gpus)
        intra, inter = [0] * gpus * len(channels), [0] * 2 * len(channels)
        for number, channel in enumerate(channels):
            at = {"gpu": gpus * number, "net": 2 * number}
            for device in channel.children:
                if device.tag not in at:
                    continue
                array = intra if device.tag == "gpu" else inter
                if at[device.tag] == len(array):
                    raise self._bad(f"channel {number} has more devices than NCCL has room for")
                array[at[device.tag]] = self._gpu(device, system) if device.tag == "gpu" else self._device(device)
                at[device.tag] += 1
        trial.intra = [intra[first : first + gpus] for first in range(0, len(intra), gpus)][: trial.channels]
        trial.inter = [inter[first : first + 2] for first in range(0, len(inter), 2)][: trial.channels]

    def _gpu(self, element: Element, system: System) -> int:
        device, rank = self._device(element), element.get("rank") if self.form.ranks else None
        if rank is not None and system.several_nodes:
            raise self._bad(
                "NCCL fails on several nodes, as every node takes these ranks; valid there: <gpu> without rank"
            )
        found = [
            number
            for number, gpu in enumerate(system.gpus)
            if (_own(gpu) == device if rank is None else gpu.rank == parse_long(rank))
        ]
        if not found:
            known = [hex(_own(gpu)) if self.form.hexadecimal else str(gpu.dev) for gpu in system.gpus]
            of_rank = "" if rank is None else f" of rank {rank}"
            raise self._bad(f"GPU {element.get('dev')}{of_rank} is not on the node; {one_of(known)}")
        return found[-1]

    def _device(self, element: Element) -> int:
        text = self._text(element, "dev")
        if not self.form.hexadecimal:
            return parse_long(text)
        digits = HEXADECIMAL.match(text)
        number = int(digits[3], 16) if digits else 0
        return min(-number if digits and digits[1] == "-" else number, MOST_NUMBER)

    def _pattern(self, element: Element) -> Pattern:
        number = self._integer(element, "pattern")
        if number not in list(Pattern):
            valid = one_of(f"{known.value} ({known.name})" for known in Pattern)
            raise self._bad(f"graph pattern {number} is unknown; {valid}")
        return Pattern(number)

    def _type(self, element: Element, name: str, system: System) -> int:
        """The path type in an attribute; an unknown word counts as the nearest type."""
        text, names = self._text(element, name), system.types.names
        matching = (at for at, each in enumerate(names) if each not in PATHS_WITHOUT_WORD and text.startswith(each))
        return next(matching, 0)

    def _integer(self, element: Element, name: str) -> int:
        return parse_long(self._text(element, name))

    def _decimal(self, element: Element, name: str, default: str | None = None) -> float:
        number = DECIMAL.match(self._text(element, name, default))
        return float(f32(number[1])) if number else 0.0

    def _text(self, element: Element, name: str, default: str | None = None) -> str:
        text = element.get(name, default)
        if text is None:
            raise self._bad(f"<{element.tag}> has no {name}")
        return text

    def _bad(self, why: str) -> BadInput:
        return BadInput(f"{VARIABLE}={self.path}: {why}")


def of_request(request: SearchRequest, form: Dump) -> GraphFile | None:
    """The graph file that a request names; None if it names none. BadInput if NCCL fails on the file."""
    if request.graph_file is None:
        return None
    return GraphFile(request.environment.get(VARIABLE, ""), request.graph_file, form)


def _own(gpu: GpuDevice) -> int:
    return (gpu.host << HOST_BIT) + gpu.dev


PATTERNS = {
    "ring": Pattern.Ring,
    "tree": Pattern.BalancedTree,
    "collnet_chain": Pattern.Tree,
    "collnet_direct": Pattern.CollNetDirect,
    "nvls": Pattern.NVLS,
}
NOT_SEARCHED = OrderedGraph(EMPTY, ())


def text(found: Mapping[str, OrderedGraph], form: Dump) -> str:
    """The text of the file that NCCL would write; it lists a graph that was not searched without channels."""
    written = dict(found)
    if "nvls" in found and not form.nvls_heads_only:
        written["nvls"] = _filled(found["nvls"], found["ring"])
    graphs = zip(form.graphs, form.ids, strict=True)
    ranks = _ranks(found.get("ring", NOT_SEARCHED))
    lines = [
        line for name, number in graphs for line in _graph(name, number, written.get(name, NOT_SEARCHED), form, ranks)
    ]
    return "\n".join(['<graphs version="1">', *lines, "</graphs>"]) + "\n"


def _filled(nvls: OrderedGraph, ring: OrderedGraph) -> OrderedGraph:
    """The channels of NVLS. NCCL leaves the places after each head unset; here they have the first GPU."""
    gpus = sorted({int(device[4:]) for device in ring.orders[0] if device.startswith("gpu:")})
    rest = (f"gpu:{gpus[0]}",) * (len(gpus) - 1)

    def filled(order: tuple[str, ...]) -> tuple[str, ...]:
        head = next(at for at, device in enumerate(order) if device.startswith("gpu:")) + 1
        return (*order[:head], *rest, *order[head:])

    return OrderedGraph(nvls.graph, tuple(map(filled, nvls.orders)))


def _ranks(ring: OrderedGraph) -> dict[str, int]:
    """The rank of each GPU of a node, by the order of the GPUs' numbers, which may have gaps."""
    gpus = (
        {device for device in ring.orders[0] if device.startswith("gpu:") and "/" not in device} if ring.orders else {}
    )
    return {device: rank for rank, device in enumerate(sorted(gpus, key=lambda gpu: int(gpu[4:])))}


def _graph(name: str, number: int, found: OrderedGraph, form: Dump, ranks: Mapping[str, int]) -> Iterator[str]:
    attributes = _attributes(name, number, found.graph)
    if not found.orders:
        yield f"  <graph {attributes}/>"
        return
    yield f"  <graph {attributes}>"
    for order in found.orders:
        yield "    <channel>"
        for device in order:
            yield f"      {_device(device, form, ranks)}"
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


def _device(device: str, form: Dump, ranks: Mapping[str, int]) -> str:
    kind, _, numbers = device.partition(":")
    number, _, own = numbers.partition("/")
    dev = int(number) % 2**64 if form.hexadecimal else int(number)
    written = f"{dev:#x}" if form.hexadecimal and dev else str(dev)
    rank = f' rank="{own or ranks.get(device, number)}"' if form.ranks and kind == "gpu" else ""
    return f'<{kind} dev="{written}"{rank}/>'

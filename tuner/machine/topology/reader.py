"""Reads NCCL's topology XML.

It follows NCCL's topo.cc and xml.h (``src/graph``, v2.28.9-1) in which attributes are required, which defaults the
others have, and in which base a number is read.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from itertools import groupby, pairwise
from pathlib import Path

from tuner.base.errors import BadTopology, one_of
from tuner.base.expressions import expression
from tuner.base.files import contents
from tuner.base.names import CPU_ARCHS, CPU_VENDORS
from tuner.machine.topology.records import Cpu, Gpu, Net, NvLink, Topology
from tuner.machine.topology.xml import MAX_BYTES, Element, parse, to_text

DUMP = "a complete one is what NCCL_TOPO_DUMP_FILE writes"
NUMBER = expression(r"-?(0[xX][0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,19})")
DECIMAL = expression(
    r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE
)  # forms of numbers that C's strtof and Python read in the same way
BUS_ID = expression(r"[.:-]*[0-9a-fA-F][0-9a-fA-F.:-]*")  # busIdToInt64, src/misc/utils.cc
MOST_LATENCY_US = 1e6  # the same limit as for the latency of adapters that users give; far beyond any network
DEFAULT_SPEED_MBPS = 10000  # ncclTopoAddNet: "Some NICs define speed = -1"


def read(source: str | Path, where: str = "topology") -> Topology:
    """Reads the node that a file (a ``Path``) or a text (a ``str``) describes. BadTopology if it does not describe a
    node.

    Errors about a text call it ``where``.
    """
    if isinstance(source, str):
        return of_elements(parse(source.encode("utf-8", "replace"), where), where)
    try:
        data = contents(source, MAX_BYTES)
    except OSError as error:
        raise BadTopology(f"{source}: {error.strerror}") from None
    return of_elements(parse(data, str(source)), str(source))


def of_elements(elements: list[Element], where: str) -> Topology:
    """The node that a parsed document describes. BadTopology if it does not describe a node; messages call the document
    ``where``.
    """
    root = elements[0]
    if root.tag != "system":
        root.fail("is not a topology; valid root: <system>")
    if root.attributes.get("version") != "1":
        root.fail(f"version={root.attributes.get('version')!r} is unknown; valid: '1' ('2' is RCCL's, of AMD GPUs)")
    by_tag: dict[str, list[Element]] = {"cpu": [], "gpu": [], "net": [], "pci": []}
    for element in elements:
        by_tag.get(element.tag, []).append(element)
    for element in by_tag["pci"]:
        _check_slot(element)
    cpus = tuple(_cpu(element) for element in by_tag["cpu"])
    ranks = by_tag["gpu"]
    for element in ranks:
        _check_whole(element)
    gpus = sorted((_gpu(element) for element in ranks if _first_rank(element) is element), key=lambda gpu: gpu.dev)
    # Every rank puts an adapter that is not a PCI device below its own first CPU, so a dump has the same device several
    # times.
    by_place = {(net.dev, net.name): net for net in map(_net, reversed(by_tag["net"]))}
    nets = sorted(by_place.values(), key=lambda net: net.dev)
    if not gpus:
        raise BadTopology(f"{where}: has no <gpu>; {DUMP}")
    _distinct(where, "<cpu numaid>", (cpu.numaid for cpu in cpus))
    _distinct(where, "<gpu dev>", (gpu.dev for gpu in gpus))
    _distinct(where, "GPU <pci busid>", (gpu.busid for gpu in gpus))
    _distinct(where, "<net dev>", (net.dev for net in nets))
    return Topology(cpus, tuple(gpus), tuple(nets), _gpu_of_rank(ranks, gpus) if len(ranks) > len(gpus) else ())


def _distinct(where: str, what: str, values: Iterable[object]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise BadTopology(f"{where}: has {what}={value} twice: give one node, with each of its devices once")
        seen.add(value)


def _check_slot(element: Element) -> None:
    """Checks those attributes of a PCI device that the search of graphs reads."""
    if "busid" in element.attributes:
        _bus_id(element, "busid")
    if element.attributes.get("link_width"):  # NCCL leaves the attribute empty if it did not find the width
        _integer(element, "link_width", high=1 << 16)  # NCCL multiplies it by the speed of a lane and stores an int


def _bus_id(element: Element, name: str) -> str:
    text = _text(element, name)
    if not BUS_ID.fullmatch(text):
        element.fail(f"{name}={text[:40]!r} is not of hexadecimal digits; valid: as in 0000:1b:00.0")
    return text.lower()


def _cpu(element: Element) -> Cpu:
    arch = _one_of(element, "arch", CPU_ARCHS[:3])
    x86 = arch == "x86_64"
    return Cpu(
        numaid=_integer(element, "numaid", low=-1),
        arch=arch,
        vendor=_one_of(element, "vendor", CPU_VENDORS[:4]) if x86 else None,
        family=_integer(element, "familyid") if x86 else None,
        model=_integer(element, "modelid") if x86 else None,
    )


def _gpu(element: Element) -> Gpu:
    pci = element.ancestor("pci")
    if pci is None:
        element.fail("is not inside a <pci>")
    return Gpu(
        dev=_integer(element, "dev"),
        busid=_bus_id(pci, "busid"),
        sm=_integer(element, "sm", low=35),
        numaid=_numaid(element),
        gpu_direct=_gpu_direct(element),
        nvlinks=tuple(
            NvLink(_bus_id(link, "target"), _integer(link, "count", low=1), _text(link, "tclass"))
            for link in element.children
            if link.tag == "nvlink"
        ),
        device=pci.attributes.get("device"),
    )


def _first_rank(element: Element) -> Element:
    """The <gpu> of the first rank on the same GPU. NCCL writes a <gpu> for every rank into the GPU's <pci>."""
    beside = element.parent.children if element.parent is not None and element.parent.tag == "pci" else []
    return next((each for each in beside if each.tag == element.tag), element)


def _check_whole(element: Element) -> None:
    """Checks that an element is a whole GPU, with the same number for all its ranks; NCCL's MLOPart divides a GPU into
    several.
    """
    if _integer(element, "mlopart", low=-1, default=-1) >= 0:
        element.fail("is a part of a GPU (mlopart); valid: whole GPUs, MLOPart is not emulated")
    first = _first_rank(element)
    for name in ("dev", "sm"):
        if _integer(element, name) != _integer(first, name):
            element.fail(f"has another {name} than the first <gpu> of its <pci>; valid: ranks that share one GPU")


def _gpu_of_rank(ranks: list[Element], gpus: list[Gpu]) -> tuple[int, ...]:
    """The index of the GPU of each rank, in the order of ranks."""
    devs = [gpu.dev for gpu in gpus]
    placed = sorted((_integer(element, "rank"), devs.index(_integer(element, "dev"))) for element in ranks)
    for (rank, _), (after, _) in pairwise(placed):
        if rank == after:
            raise BadTopology(f"{ranks[0].where}: has <gpu rank>={rank} twice: each rank may occur once")
    return tuple(gpu for _, gpu in placed)


def _net(element: Element) -> Net:
    pci = element.ancestor("pci")
    speed_mbps = _integer(element, "speed", low=-1, default=0)
    _integer(element, "maxconn", default=0)  # the search of graphs reads it
    return Net(
        dev=_integer(element, "dev"),
        name=_text(element, "name"),
        port=_integer(element, "port", default=0),
        speed_mbps=speed_mbps if speed_mbps > 0 else DEFAULT_SPEED_MBPS,
        latency_us=_latency_us(element),
        guid=_integer(element, "guid", high=2**64) if "guid" in element.attributes else None,
        numaid=_numaid(element),
        busid=None if pci is None else _bus_id(pci, "busid"),
        gpu_direct=_gpu_direct(element),
        reduces=_integer(element, "coll", default=0) != 0,
    )


def _gpu_direct(element: Element) -> bool:
    return _integer(element, "gdr", default=1) != 0


def _numaid(element: Element) -> int:
    cpu = element.ancestor("cpu")
    if cpu is None:
        element.fail("is not inside a <cpu>")
    return _integer(cpu, "numaid", low=-1)


def _text(element: Element, name: str) -> str:
    value = element.attributes.get(name)
    if not value:
        element.fail(f"has no {name}; {DUMP}")
    return value


def _one_of(element: Element, name: str, valid: tuple[str, ...]) -> str:
    value = _text(element, name)
    if value not in valid:
        element.fail(f"{name}={value!r} is unknown; {one_of(valid)}")
    return value


def _integer(element: Element, name: str, *, low: int = 0, high: int = 2**31, default: int | None = None) -> int:
    """The value of an attribute, at least ``low`` and below ``high``, decimal or with 0x as in C's strtol; ``default``
    if it is absent."""
    if default is not None and name not in element.attributes:
        return default
    text = _text(element, name)
    if not NUMBER.fullmatch(text):
        element.fail(f"{name}={text[:40]!r} is not a whole number")
    value = int(text, 0)
    if not low <= value < high:
        element.fail(f"{name}={text[:40]!r} is out of range; valid: {low} to {high - 1}")
    return value


def _latency_us(element: Element) -> float:
    text = element.attributes.get("latency", "0")
    if not DECIMAL.fullmatch(text):
        element.fail(f"latency={text[:40]!r} is not a number")
    value = float(text)
    if not 0 <= value <= MOST_LATENCY_US:
        element.fail(f"latency={text[:40]!r} is out of range; valid: microseconds, 0 to {MOST_LATENCY_US:g}")
    return value


HOST = "host_hash"
_OF_ONE_HOST = expression(r'\s(?:host_hash|guid|rank)="[^"]*"')  # what differs between hosts that are otherwise equal


def hosts_of(file: Path) -> tuple[tuple[str, int], ...]:
    """The texts of the topologies of a file's hosts, in order; empty if the file has only one host.

    Successive equal hosts have one entry: the topology, and the number of these hosts.

    Hosts count as equal if they differ only in hashes, guids and ranks. BadTopology if the file cannot be read.
    """
    try:
        data = contents(file, MAX_BYTES)
    except OSError as error:
        raise BadTopology(f"{file}: {error.strerror}") from None
    if HOST.encode() not in data or b"<!" in data.replace(b"<!--", b""):
        return ()  # whoever reads the whole file refuses one that declares entities
    try:
        root = ET.fromstring(data)
    except ET.ParseError:
        return ()  # whoever reads the whole file says what is wrong
    by_host: dict[str, list[ET.Element]] = {}
    for cpu in root.findall("cpu"):
        cpu.tail = "\n"
        by_host.setdefault(cpu.get(HOST, ""), []).append(cpu)
    if len(by_host) < 2:
        return ()
    texts = []
    for cpus in by_host.values():
        host = ET.Element(root.tag, dict(root.attrib))
        host.extend(cpus)
        texts.append(to_text(host))
    groups = (list(alike) for _, alike in groupby(texts, key=lambda text: _OF_ONE_HOST.sub("", text)))
    return tuple((alike[0], len(alike)) for alike in groups)

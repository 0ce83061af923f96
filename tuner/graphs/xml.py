"""The topology XML as NCCL has it when it builds its system graph: what each rank keeps of the file, fused.

A rank marks its own GPU and all network devices and drops what leads to none of them; the XMLs of the ranks of a host,
or of a NVLink domain, are then put together (ncclTopoGetSystem, src/graph/topo.cc, and src/graph/xml.cc, v2.28.9-1).
The order of elements is what the search goes by, so it is kept here as NCCL makes it.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from tuner.base.errors import BadTopology
from tuner.base.numerics import parse_long
from tuner.graphs.merging import MergedAdapters, merged
from tuner.graphs.request import SearchRequest
from tuner.machine import adapters
from tuner.machine.topology import Gpu, Net, Topology
from tuner.release.environment import Environment
from tuner.release.search import Merging, Search, XmlReading

CHILDREN = {
    "system": ("cpu",),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic", "pcilink"),
    "gpu": ("nvlink", "c2c"),
    "nic": ("net",),
}
MOST_ATTRIBUTES = 16  # MAX_ATTR_COUNT, xml.h
KEEP = "keep"
HOST = "host_hash"  # of a <cpu>: the same on all of a host
HOST_OF_GUID_BIT = 32  # in a NVLink domain the host's number is added to its adapters' guids
MOST_CONNECTIONS = "131072"  # of an adapter, as NCCL's own InfiniBand network has it
ETHERNET = {
    "name": "eth0",
    "dev": "0",
    "latency": "0",
    "speed": "10000",
    "port": "1",
    "guid": "0x1",
    "maxconn": MOST_CONNECTIONS,
    "gdr": "0",
}


def of_hosts(request: SearchRequest, topologies: Mapping[str, Topology], rules: Search) -> ET.Element:
    """The <system> that all ranks of a host see, or of a NVLink domain; ``topologies`` by their text.

    Errors: BadTopology; BadInput for variables with which NCCL fails.
    """
    reading = rules.reading
    seen, first_rank = ET.Element("system"), 0
    for number, host in enumerate(request.each_host):
        topology = topologies[host.topology]
        used = topology.first_gpus(host.gpus)
        gpus = [used[gpu] for gpu in host.gpu_of_rank] or used
        file = _known(ET.fromstring(host.topology), reading)
        for cpu in file.findall("cpu"):
            cpu.set(HOST, hex(number + 1))
        nets = [topology.nets[net] for net in adapters.used(topology.nets, request.environment)]
        virtual = _merged(file, nets, rules.merging, request.environment)
        for local in [[rank] for rank in range(len(gpus))] if reading.own_gpu_only else [list(range(len(gpus)))]:
            own = _copy(file)
            _mark_gpus(own, {first_rank + rank: gpus[rank] for rank in local})
            _mark_nets(own, nets, number, request.network_reduces, reading)
            if virtual is not None:
                replace(virtual, leaks=virtual.rules.leaks and request.later).apply(own)
            _trim(own, reading.trimmed)
            _fuse(seen, own)
        first_rank += len(gpus)
    return seen


def merges(request: SearchRequest, topology: Topology, rules: Merging | None) -> bool:
    """Whether NCCL merges any adapters of the request's first host. BadInput for variables with which NCCL fails."""
    nets = [topology.nets[net] for net in adapters.used(topology.nets, request.environment)]
    made = _merged(ET.fromstring(request.topology), nets, rules, request.environment)
    return made is not None and any(len(group) > 1 for group in made.groups)


def _merged(
    file: ET.Element, nets: Sequence[Net], rules: Merging | None, variables: Mapping[str, str]
) -> MergedAdapters | None:
    """What NCCL merges of the adapters that it uses."""
    if rules is None or not adapters.mergeable(nets, variables):
        return None
    return merged(file, [(net.name, net.port) for net in nets], rules, Environment(variables))


def _known(element: ET.Element, reading: XmlReading) -> ET.Element:
    """The elements that NCCL's parser knows, with the attributes that it has room for."""
    known = ET.Element(element.tag, dict(islice(element.attrib.items(), MOST_ATTRIBUTES)))
    names = CHILDREN.get(element.tag, ())
    known.extend(_known(child, reading) for child in element if child.tag in names and child.tag not in reading.unread)
    return known


def _copy(element: ET.Element) -> ET.Element:
    copy = ET.Element(element.tag, dict(element.attrib))
    copy.extend(map(_copy, element))
    return copy


def _mark_gpus(root: ET.Element, gpu_of_rank: Mapping[int, Gpu]) -> None:
    """Marks the GPUs of these ranks, and fills what the file lacks on the way from there to the CPU."""
    parents = {child: parent for parent in root.iter() for child in parent}
    by_bus_id = {pci.get("busid", "").lower(): pci for pci in root.iter("pci")}
    for rank, used in gpu_of_rank.items():
        pci: ET.Element | None = by_bus_id[used.busid]
        gpu = pci.find("gpu") if pci is not None else None
        if pci is None or gpu is None:
            raise BadTopology(f"<pci busid={used.busid!r}> has no <gpu> of its own")
        gpu.attrib.update({KEEP: "1", "rank": str(rank)})
        gpu.attrib.setdefault("gdr", "1")
        pci.attrib.setdefault("class", "0x03")
        while pci is not None and pci.tag == "pci":
            for name in ("link_speed", "link_width"):
                pci.attrib.setdefault(name, "")
            pci = parents.get(pci)


def _mark_nets(root: ET.Element, nets: Sequence[Net], host: int, reduces: bool, reading: XmlReading) -> None:
    """Marks the network devices by name, as the network lists them: its numbers replace those of the file."""
    if not nets:
        _add_ethernet(root, host)
    elements: dict[str, ET.Element] = {}
    for each in root.iter("net"):
        elements.setdefault(each.get("name", ""), each)
    for dev, net in enumerate(nets):
        element = elements[net.name]
        if not (reading.drops_collnet_adapters and not reduces and element.get("coll") == "1"):
            element.set(KEEP, "1")
        element.set("dev", str(dev))
        facts = {
            "latency": f"{net.latency_us:f}",
            "speed": str(net.speed_mbps),
            "port": "1",
            "guid": hex(dev + 1),
            "maxconn": MOST_CONNECTIONS,
            "gdr": "1",
        }
        for name, value in facts.items():
            element.attrib.setdefault(name, value)
        element.set("guid", _guid(element, host))
        if reduces:
            element.attrib.setdefault("coll", "1")
        if reduces and reading.collnet_is_one_rail:
            element.attrib.setdefault("rail", "0")
            element.attrib.setdefault("plane", "0")


def _guid(net: ET.Element, host: int) -> str:
    """A file is of one host, and no two hosts have the same adapter."""
    guid = net.get("guid", "")
    return hex(int(guid, 16) + (host << HOST_OF_GUID_BIT) & (1 << 64) - 1) if host else guid


def _add_ethernet(root: ET.Element, host: int) -> None:
    """The network that a host without network devices still has: no PCI device, below the first CPU."""
    cpu = root.find("cpu")
    if cpu is None:
        raise BadTopology("no <cpu> in it")
    nic = cpu.find("nic")
    net = ET.SubElement(ET.SubElement(cpu, "nic") if nic is None else nic, "net", ETHERNET)
    net.set("guid", _guid(net, host))
    net.set(KEEP, "1")


def _trim(element: ET.Element, trimmed: Sequence[str]) -> bool:
    """Drops elements below which nothing is kept; says whether to keep this one. ``trimmed``: which, empty: all."""
    if element.attrib.pop(KEEP, None) == "1":
        return True
    kept = False
    for child in list(element):
        keep = _trim(child, trimmed)
        kept |= keep
        if not keep and (not trimmed or child.tag in trimmed):
            element.remove(child)
    return kept


def _fuse(into: ET.Element, other: ET.Element) -> None:
    """Adds the children that have no equal, and goes on below those that have."""
    for child in other:
        equal = next((own for own in into if own.tag == child.tag and own.attrib == child.attrib), None)
        if equal is None:
            into.append(child)
        else:
            _fuse(equal, child)


def integer(element: ET.Element, name: str, default: int | None = None) -> int:
    """A number of NCCL's XML, as C's strtol reads it. BadTopology where there is none, and no default."""
    text = element.get(name)
    if text is None:
        if default is None:
            raise BadTopology(f"<{element.tag}> has no {name}")
        return default
    return parse_long(text)

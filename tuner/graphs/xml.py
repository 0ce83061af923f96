"""Makes the topology XML from which NCCL builds its system graph, by merging the parts that each rank keeps.

A rank marks its own GPU and all network devices, and drops elements that lead to none of them. The XMLs of the ranks of
a host, or of an NVLink domain, are then merged (ncclTopoGetSystem, src/graph/topo.cc, and src/graph/xml.cc, v2.28.9-1).
The search depends on the order of elements, so it is the same as in NCCL.

Before that, NCCL merges adapters into virtual ones (NIC fusion): ncclTopoProcessNet and what it calls,
src/graph/topo.cc, and ncclIbMakeVDevice in the network, src/transport/net_ib.cc.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from enum import IntEnum
from itertools import islice

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadTopology, NcclFails, Remedy
from tuner.base.numerics import parse_long
from tuner.graphs.request import SearchRequest
from tuner.machine import adapters
from tuner.machine.adapters import is_listed, name_list
from tuner.machine.topology import Gpu, Net, Topology
from tuner.release.environment import Environment
from tuner.release.search import Devices, Merging, Search, XmlReading

# Relations of adapters in a topology XML: on one PCI device, below one switch, on one processor. Source:
# ncclTopoGetPath, ncclTopoCheckPix, ncclFindFirstPciParent, src/graph/topo.cc, v2.28.9-1.

Parents = Mapping[ET.Element, ET.Element]


class Distance(IntEnum):
    """How near adapters are to each other that may be merged."""

    LOC = 0
    PORT = 1  # on one PCI device or its functions
    PIX = 2
    PXB = 3
    P2C = 4  # P2C and PXN only occur as levels
    PXN = 5
    PHB = 6
    SYS = 7
    DIS = 8


def parents_of(root: ET.Element) -> Parents:
    """The parent of each element."""
    return {child: parent for parent in root.iter() for child in parent}


def chain(node: ET.Element, parents: Parents, until: ET.Element | None = None) -> list[ET.Element]:
    """A node, its parent, and so on, up to the root, or to ``until``, which is not included."""
    found = []
    above: ET.Element | None = node
    while above is not None and above is not until:
        found.append(above)
        above = parents.get(above)
    return found


def between(nodes: Sequence[ET.Element], parents: Parents) -> tuple[Distance, ET.Element]:
    """How near nodes are to each other, and the innermost element that contains them all (ncclTopoGetPath)."""
    if len(nodes) == 1:
        return Distance.LOC, nodes[0]
    chains = [chain(node, parents)[::-1] for node in nodes]
    common, depth = chains[0][0], 0
    while depth < len(chains[0]) and all(other[depth : depth + 1] == chains[0][depth : depth + 1] for other in chains):
        common = chains[0][depth]
        depth += 1
    if depth < len(chains[0]) and _functions_of_one([other[depth] for other in chains if depth < len(other)]):
        return Distance.PORT, common
    if common.tag == "pci":
        return (Distance.PIX if _directly_below(common, nodes, parents) else Distance.PXB), common
    return {"system": Distance.SYS, "cpu": Distance.PHB}.get(common.tag, Distance.PORT), common


def _functions_of_one(elements: Sequence[ET.Element]) -> bool:
    """Whether the bus ids differ only in the last digit, the function."""
    bus_ids = [element.get("busid") for element in elements]
    known = [bus_id for bus_id in bus_ids if bus_id is not None]
    return len(known) == len(bus_ids) and len({(len(bus_id), bus_id[:-1]) for bus_id in known}) == 1


def _directly_below(common: ET.Element, nodes: Sequence[ET.Element], parents: Parents) -> bool:
    for node in nodes:
        device = parents[parents[node]]
        if device.tag == "pci" and parents[device] is not common:
            return False
    return True


def pci_above(node: ET.Element, parents: Parents) -> ET.Element:
    """The nearest <pci> among an element and the elements around it; the element itself if there is none."""
    return next((above for above in chain(node, parents) if above.tag == "pci"), node)


LEVEL, FORCE, NETWORK = "NCCL_NET_MERGE_LEVEL", "NCCL_NET_FORCE_MERGE", "NCCL_IB_MERGE_NICS"
POLICY, BY_RAIL = "NCCL_NET_MERGE_POLICY", "RAIL"
BRIDGE = "0x060400"  # PCI class of a switch
MOST_BUS_IDS = 100  # the most bus ids that are tried for a new PCI device
Group = tuple[int, ...]  # numbers of adapters


@dataclass(frozen=True, slots=True)
class MergedAdapters:
    """The groups of adapters that become virtual adapters, in the order of the virtual adapters' numbers.

    In some releases, single adapters also form groups.
    """

    rules: Merging
    names: tuple[str, ...]  # names of all adapters, in the order of their numbers
    groups: tuple[Group, ...]
    leaks: bool = False  # the merged adapters remain beside the virtual ones

    def apply(self, root: ET.Element) -> None:
        """Adds the virtual adapters to a <system> in which adapters are marked, and unmarks the adapters that they
        consist of."""
        if not self.groups:
            return
        nets = _by_name(root, self.names)
        if self.rules.adapters == "every":
            for net in nets:
                if net.get("coll") != "1":
                    net.set("keep", "0")
        for number, group in enumerate(self.groups, start=len(self.names)):
            self._make(root, [nets[adapter] for adapter in group], number)

    def _make(self, root: ET.Element, nets: Sequence[ET.Element], dev: int) -> None:
        name = "+".join(net.get("name", "") for net in nets)
        if self.rules.adapters != "every" and not self.leaks:
            self._unmark(nets)
        old = next((net for net in root.iter("net") if net.get("name") == name), None)
        if old is not None:
            if old.get("coll") != "1":
                old.set("keep", "1")
            old.set("dev", str(dev))
            return
        parent = self._parent(root, nets)
        nic = parent.find("nic")
        first = {key: value for key, value in nets[0].attrib.items() if key in ("port", "guid", "maxconn", "gdr")}
        ET.SubElement(
            ET.SubElement(parent, "nic") if nic is None else nic,
            "net",
            first,
            name=name,
            keep="1",
            dev=str(dev),
            latency=str(int(float(nets[0].get("latency", "0")))),
            speed=str(sum(parse_long(net.get("speed", "0")) for net in nets)),
        )

    def _unmark(self, nets: Sequence[ET.Element]) -> None:
        for net in nets:
            if self.rules.collnet_keeps and net.get("coll") == "1":
                net.set("net", "0")
            else:
                net.set("keep", "0")

    def _parent(self, root: ET.Element, nets: Sequence[ET.Element]) -> ET.Element:
        """The element below which a virtual adapter is put (ncclTopoGetVNicParent)."""
        parents = parents_of(root)
        distance, common = between(nets, parents)
        if self.rules.below_pci_devices:
            common = pci_above(common, parents)
        if common.tag == "system" and self.rules.refuses_sockets:
            raise NcclFails(f"NCCL refuses to merge adapters of different sockets: {_names(nets)}")
        width = 0
        if self.rules.widened != "none" and distance in (Distance.PHB, Distance.PXB, Distance.PIX):
            width = sum(_width(child, nets)[1] for child in common)
        if width and self.rules.widened == "adapters":
            _widen([common, *(above for net in nets for above in chain(net, parents, until=common))], width)
        place = common
        if _adds_device(common, self.rules.new_devices_below):
            place = _new_device(root, common, nets[0], parents)
        if width and self.rules.widened == "virtual_adapter":
            _widen([place, common], width)
        return place


def merged(
    file: ET.Element,
    adapters: Sequence[tuple[str, int]],
    rules: Merging,
    variables: Environment,
    by_rail: bool = False,
) -> MergedAdapters:
    """The groups of adapters that NCCL merges; ``adapters`` are the names and ports of all adapters.

    ``by_rail``: the policy is RAIL if NCCL_NET_MERGE_POLICY is not set.

    BadInput for variables with which NCCL fails.
    """
    names = tuple(name for name, _ in adapters)
    groups = _Groups(file, adapters, rules, variables, by_rail).all()
    return MergedAdapters(rules, names, tuple(groups))


class _Groups:
    """Forms the groups of adapters to merge: first those that NCCL_NET_FORCE_MERGE names, then adapters that are near
    each other."""

    def __init__(
        self,
        file: ET.Element,
        adapters: Sequence[tuple[str, int]],
        rules: Merging,
        variables: Environment,
        by_rail: bool,
    ) -> None:
        self.adapters, self.rules = adapters, rules
        self.refuses = variables.number(NETWORK, 1) == 0
        self.level = _level(variables.text(LEVEL), rules)
        self.forced = variables.text(FORCE)
        policy = variables.text(POLICY)
        self.by_rail = rules.by_rail and (by_rail if policy is None else policy.upper() == BY_RAIL)
        self.nets = _by_name(file, [name for name, _ in adapters])
        self.parents = parents_of(file)
        self.placed: set[int] = set()
        self.made: list[Group] = []

    def all(self) -> list[Group]:
        """All groups: first those that NCCL_NET_FORCE_MERGE names, then those of adapters that are near each other."""
        for text in (self.forced or "").split(";"):
            if text:
                self._force(text)
        self._merge_near()
        return self.made

    def _make(self, group: Group) -> bool:
        if len(group) > 1 and self.refuses:
            return False
        if len(group) > 1 or self.rules.adapters == "every":
            self.made.append(group)
        return True

    def _force(self, text: str) -> None:
        wanted = name_list(text, self.rules.most)
        if not wanted:
            raise self._refused(f"NCCL hangs on a group without a name, such as {text!r}")
        group = tuple(n for n, (name, port) in enumerate(self.adapters) if is_listed(wanted, name, port, exact=True))
        if len(group) != len(wanted) or not self._make(group):
            why = f"{NETWORK} is 0" if len(group) == len(wanted) else f"{len(group)} adapters match it"
            raise self._refused(f"NCCL refuses the group {text!r}, as {why}")
        self.placed.update(group)

    def _refused(self, why: str) -> NcclFails:
        return NcclFails(f"{FORCE}={self.forced!r}: {why}").cured(Remedy("env", None, FORCE))

    def _merge_near(self) -> None:
        """Merges adapters that are near each other. After a failure it begins again, as NCCL does, but at the second
        adapter instead of the first."""
        apart: set[frozenset[int]] = set()
        at = 0
        while at < len(self.adapters):
            if at not in self.placed:
                group = self._near(at, apart)
                self.placed.update(group)
                if not self._make(group):
                    if self.rules.failure == "is_an_error":
                        raise NcclFails(
                            f"{NETWORK}=0: NCCL fails where it would merge adapters; valid: {LEVEL}=LOC"
                        ).cured(Remedy("env", "LOC", LEVEL))
                    self.placed.difference_update(group)
                    apart.update(frozenset((at, other)) for other in group[1:])
                    at = 0
            at += 1

    def _near(self, at: int, apart: set[frozenset[int]]) -> Group:
        group = [at]
        if self.by_rail:  # only NCCL_IB_HCA says which rail an adapter is on, and values that do so are refused
            return tuple(group)
        for other in range(len(self.adapters)):
            free = other not in self.placed and other != at and frozenset((at, other)) not in apart
            if free and between([self.nets[at], self.nets[other]], self.parents)[0] <= self.level:
                group.append(other)
            if len(group) == self.rules.most:
                break
        return tuple(group)


def _level(text: str | None, rules: Merging) -> Distance:
    if text is None:
        return Distance.PORT
    return next((Distance[name] for name in rules.levels if text.startswith(name)), Distance.LOC)


def _by_name(root: ET.Element, names: Sequence[str]) -> list[ET.Element]:
    elements: dict[str, ET.Element] = {}
    for each in root.iter("net"):
        elements.setdefault(each.get("name", ""), each)
    return [elements[name] for name in names]


def _names(nets: Sequence[ET.Element]) -> str:
    return ", ".join(net.get("name", "") for net in nets)


def _width(element: ET.Element, nets: Sequence[ET.Element]) -> tuple[bool, int]:
    """Whether an element contains one of the adapters, and the sum of the widths of their links
    (ncclTopoFindLinkWidthRec)."""
    own = 0
    if element.tag == "pci":
        text = element.get("link_width")
        if text is None:
            raise BadTopology(f"<pci busid={element.get('busid')!r}> has no link_width, which merged adapters need")
        own = parse_long(text)
    below = [_width(child, nets) for child in element]
    total = sum(width for found, width in below if found)
    if not (any(element is net for net in nets) or any(found for found, _ in below)):
        return False, 0
    if not total:
        return True, own
    return True, min(own, total) if own > 0 else total


def _widen(elements: Sequence[ET.Element], width: int) -> None:
    for element in elements:
        if element.tag == "pci":
            element.set("link_width", str(width))


def _adds_device(common: ET.Element, below: Sequence[str]) -> bool:
    kinds = {common.tag} | ({"bridge"} if common.tag == "pci" and common.get("class") == BRIDGE else set())
    return not kinds.isdisjoint(below)


def _new_device(root: ET.Element, parent: ET.Element, net: ET.Element, parents: Parents) -> ET.Element:
    """Makes a PCI device like that of an adapter, with another bus id (ncclTopoMakePciParent)."""
    device = parents[parents[net]]
    if device.tag != "pci":
        raise BadInput(f"NCCL merges only PCI devices, and {net.get('name')} is not one")
    taken = {pci.get("busid") for pci in root.iter("pci")}
    digits = "".join(char for char in device.get("busid", "") if char not in ".:-")
    first = int(digits, 16) + 1
    bus_ids = map(_bus_id, range(first, first + MOST_BUS_IDS))
    bus_id = next((bus_id for bus_id in bus_ids if bus_id not in taken), None)
    if bus_id is None:
        raise BadInput(f"NCCL finds no bus id for the merged adapter of {net.get('name')}")
    new = ET.SubElement(parent, "pci", device.attrib)
    new.set("busid", bus_id)
    return new


def _bus_id(number: int) -> str:
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


CHILDREN = {
    "system": ("cpu",),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic", "pcilink"),
    "gpu": ("nvlink", "c2c"),
    "nic": ("net",),
}
MOST_ATTRIBUTES = 16  # MAX_ATTR_COUNT, xml.h
KEEP = "keep"
HOST = "host_hash"  # attribute of a <cpu>, the same for all CPUs of a host
HOST_OF_GUID_BIT = 32  # in an NVLink domain, the host's number is added to its adapters' guids at this bit
MOST_CONNECTIONS = "131072"  # value that NCCL's own InfiniBand network reports for an adapter
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
    """The <system> that all ranks of a host or NVLink domain see. ``topologies`` has the parsed topologies by their
    text.

    BadTopology if a topology is invalid, BadInput for variables with which NCCL fails.
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
        virtual = _merged(file, nets, rules, request.environment)
        for local in [[rank] for rank in range(len(gpus))] if reading.own_gpu_only else [list(range(len(gpus)))]:
            own = deepcopy(file)
            _mark_gpus(own, {first_rank + rank: gpus[rank] for rank in local})
            _mark_nets(own, nets, number, request.network_reduces, reading)
            if virtual is not None:
                replace(virtual, leaks=virtual.rules.leaks and request.later).apply(own)
            _trim(own, reading.trimmed)
            _fuse(seen, own)
        first_rank += len(gpus)
    return seen


def merges(request: SearchRequest, topology: Topology, rules: Search) -> bool:
    """Whether NCCL merges any adapters of the request's first host. BadInput for variables with which NCCL fails."""
    nets = [topology.nets[net] for net in adapters.used(topology.nets, request.environment)]
    made = _merged(ET.fromstring(request.topology), nets, rules, request.environment)
    return made is not None and any(len(group) > 1 for group in made.groups)


def _merged(
    file: ET.Element, nets: Sequence[Net], rules: Search, variables: Mapping[str, str]
) -> MergedAdapters | None:
    """The merged adapters, formed from those that NCCL uses."""
    if rules.merging is None or not adapters.mergeable(nets, variables):
        return None
    names = [(net.name, net.port) for net in nets]
    return merged(file, names, rules.merging, Environment(variables), by_rail=_merges_by_rail(file, rules.devices))


def _merges_by_rail(file: ET.Element, devices: Devices) -> bool:
    """Whether NCCL_NET_MERGE_POLICY is RAIL by default: on Rubin with ARM processors.

    Source: ncclTopoGetMergePolicy of the libnccl of 2.32.3.
    """
    capabilities = [parse_long(gpu.get("sm", "0")) for gpu in file.iter("gpu")]
    on_arm = any(cpu.get("arch") == "arm64" for cpu in file.iter("cpu"))
    return on_arm and bool(capabilities) and devices.is_rubin(min(capabilities))


def _known(element: ET.Element, reading: XmlReading) -> ET.Element:
    """The elements that NCCL's parser knows, each with only those attributes for which the parser has room."""
    known = ET.Element(element.tag, dict(islice(element.attrib.items(), MOST_ATTRIBUTES)))
    names = CHILDREN.get(element.tag, ())
    known.extend(_known(child, reading) for child in element if child.tag in names and child.tag not in reading.unread)
    return known


def _mark_gpus(root: ET.Element, gpu_of_rank: Mapping[int, Gpu]) -> None:
    """Marks the GPUs of these ranks, and adds elements that the file lacks between them and the CPU."""
    parents = parents_of(root)
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
    """Marks the network devices by name, and gives them the numbers under which the network lists them instead of those
    in the file."""
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
    """The GUID of an adapter, different on each host: a file describes one host, and hosts share no adapter."""
    guid = net.get("guid", "")
    return hex(int(guid, 16) + (host << HOST_OF_GUID_BIT) & (1 << 64) - 1) if host else guid


def _add_ethernet(root: ET.Element, host: int) -> None:
    """Adds the network that a host without network devices still has: below the first CPU, without a PCI device."""
    cpu = root.find("cpu")
    if cpu is None:
        raise BadTopology("the topology has no <cpu>")
    nic = cpu.find("nic")
    net = ET.SubElement(ET.SubElement(cpu, "nic") if nic is None else nic, "net", ETHERNET)
    net.set("guid", _guid(net, host))
    net.set(KEEP, "1")


def _trim(element: ET.Element, trimmed: Sequence[str]) -> bool:
    """Drops elements below which nothing is kept, and returns whether to keep this one. ``trimmed``: the elements that
    may be dropped (empty: all)."""
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
    """Merges an element into another one: children without an equal there are added, others are merged in the same
    way."""
    for child in other:
        equal = next((own for own in into if own.tag == child.tag and own.attrib == child.attrib), None)
        if equal is None:
            into.append(child)
        else:
            _fuse(equal, child)


def integer(element: ET.Element, name: str, default: int | None = None) -> int:
    """The value of an attribute as a number, read like C's strtol; ``default`` if the attribute is missing.

    BadTopology if the attribute is missing and there is no default.
    """
    text = element.get(name)
    if text is None:
        if default is None:
            raise BadTopology(f"<{element.tag}> has no {name}")
        return default
    return parse_long(text)

"""Changes of a topology's XML that may lift a limit: faster or more links of one kind, more adapters, GPUDirect."""

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator

from tuner.machine.topology.edit_links import PCIE_SPEEDS
from tuner.machine.topology.edit_places import sockets
from tuner.machine.topology.xml import to_text
from tuner.search.build import bus_id
from tuner.search.explain.links import LinkClass, class_of
from tuner.search.explain.links import bus_id as text_of
from tuner.search.explain.runs import Run
from tuner.search.system import Kind, Node

GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64.0": 6}
UNKNOWN_GENERATION = 3  # what NCCL takes a link for whose speed it does not know
FULL_WIDTH = 16
FREE_BUS_IDS = range(0xE000 << 20 | 0x1000, 0xE000 << 20 | 0x100000, 0x1000)  # in a domain that no computer has
FREE_GUID = 0x3000000000000000  # invented and distinct, as NCCL tells adapters apart by it
Change = Callable[[ET.Element], None]


def changed(topology: str, *changes: Change) -> str:
    """The text of a topology after changes."""
    root = ET.fromstring(topology)
    for change in changes:
        change(root)
    return to_text(root)


def twice_the_adapters(root: ET.Element) -> None:
    """Network ports of twice the speed."""
    for net in root.iter("net"):
        net.set("speed", str(2 * max(int(net.get("speed", "0"), 0), 0) or 20000))


def twice_the_nvlinks(root: ET.Element) -> None:
    """Twice as many NVLinks everywhere."""
    for link in root.iter("nvlink"):
        link.set("count", str(2 * int(link.get("count", "1"), 0)))


def gpu_direct(root: ET.Element) -> None:
    """GPUDirect RDMA with every adapter and GPU."""
    for element in (*root.iter("net"), *root.iter("gpu")):
        element.set("gdr", "1")


def one_socket(root: ET.Element) -> None:
    """All devices at the first socket that has any."""
    sockets(root, "1")


def faster_pcie(found: Run, classes: frozenset[LinkClass]) -> Change:
    """PCIe links of these classes of the next generation, or with all lanes where they are of the last."""
    pairs = _pairs(found, classes)

    def change(root: ET.Element) -> None:
        for element, above in _links(root, found):
            if frozenset((bus_id(element.get("busid", "")), above)) in pairs:
                _widen(element)

    return change


def _widen(element: ET.Element) -> None:
    number = element.get("link_speed", "").split(" ")[0]
    generation = GENERATIONS.get(number, UNKNOWN_GENERATION)
    width = int(element.get("link_width") or FULL_WIDTH) or FULL_WIDTH
    if width < FULL_WIDTH:
        element.set("link_width", str(2 * width))
    else:
        element.set("link_speed", PCIE_SPEEDS[min(generation + 1, max(PCIE_SPEEDS))])


def _pairs(found: Run, classes: frozenset[LinkClass]) -> set[frozenset[int | str]]:
    """The ends of the links of these classes: bus ids as numbers, and CPUs by NUMA node."""
    load = found.loop.channels.load
    owners = {id(link): node for node in found.system.everything() for link in node.links}
    bare = zip(load.links, found.bare_gbs, strict=True)
    links = [(owners[id(link)], link) for link, gbs in bare if class_of(owners[id(link)], link, gbs) in classes]
    return {frozenset((_key(owner), _key(link.to))) for owner, link in links}


def _key(node: Node) -> int | str:
    return f"cpu {node.id}" if node.kind is Kind.CPU else node.id


def _links(root: ET.Element, found: Run) -> Iterator[tuple[ET.Element, int | str]]:
    """Every <pci>, and the next device above it that the system has: flattened switches are gone there."""
    there = {node.id for kind in (Kind.PCI, Kind.GPU, Kind.NIC, Kind.DEV) for node in found.system.nodes[kind]}

    def below(element: ET.Element, above: int | str) -> Iterator[tuple[ET.Element, int | str]]:
        for child in element.findall("pci"):
            own = bus_id(child.get("busid", ""))
            yield child, above
            yield from below(child, own if own in there else above)

    for cpu in root.findall("cpu"):
        yield from below(cpu, f"cpu {int(cpu.get('numaid', '0'), 0)}")


def more_adapters(only: str | None = None) -> Change:
    """One more adapter beside each that is a PCI device, or beside that of one bus id, with a link of its own."""

    def change(root: ET.Element) -> None:
        parents = {child: parent for parent in root.iter() for child in parent}
        nets = list(root.iter("net"))
        free = 1 + max(int(net.get("dev", "0"), 0) for net in nets)
        taken = {bus_id(pci.get("busid", "0")) for pci in root.iter("pci")}
        seen = set[str]()
        for net in nets:
            pci = parents[parents[net]]
            if pci.tag != "pci" or pci.get("busid", "") in seen or (only and pci.get("busid", "").lower() != only):
                continue
            seen.add(pci.get("busid", ""))
            number = next(bus for bus in FREE_BUS_IDS if bus not in taken)
            taken.add(number)
            element = ET.fromstring(ET.tostring(pci))
            element.set("busid", text_of(number))
            for copied in list(element.iter("net")):
                names = {"dev": str(free), "name": f"more{free}", "guid": hex(FREE_GUID + free)}
                copied.attrib.update(names)
                free += 1
            above = parents[pci]
            above.insert(list(above).index(pci) + 1, element)

    return change

"""What joins adapters in a topology XML: one PCI device, a switch, a processor.

Source: ncclTopoGetPath, ncclTopoCheckPix, ncclFindFirstPciParent, src/graph/topo.cc, v2.28.9-1.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from enum import IntEnum

Parents = Mapping[ET.Element, ET.Element]


class Distance(IntEnum):
    """What joins adapters."""

    LOC = 0
    PORT = 1  # one PCI device, or its functions
    PIX = 2
    PXB = 3
    P2C = 4  # P2C and PXN are levels only
    PXN = 5
    PHB = 6
    SYS = 7
    DIS = 8


def parents_of(root: ET.Element) -> Parents:
    """What each element is in."""
    return {child: parent for parent in root.iter() for child in parent}


def chain(node: ET.Element, parents: Parents, until: ET.Element | None = None) -> list[ET.Element]:
    """A node, what it is in, and so on up to the root, or to ``until``, which is left out."""
    found = []
    above: ET.Element | None = node
    while above is not None and above is not until:
        found.append(above)
        above = parents.get(above)
    return found


def between(nodes: Sequence[ET.Element], parents: Parents) -> tuple[Distance, ET.Element]:
    """What joins nodes, and the last element that they are all in (ncclTopoGetPath)."""
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
    """Whether the bus ids differ in their last digit alone."""
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
    """The nearest PCI device that an element is in; itself where it is in none."""
    return next((above for above in chain(node, parents) if above.tag == "pci"), node)

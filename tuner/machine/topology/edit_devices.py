"""Devices of a topology by the names that a change has for them.

A GPU is ``gpu:3`` (its ``dev``), an adapter ``mlx5_3`` (its name) or ``net:3``, any PCI device its bus id, and a NUMA
node ``cpu:1`` (its ``numaid``).
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator

from tuner.base.errors import BadInput, one_of


def assigned(change: str) -> Iterator[tuple[str, str | None]]:
    """The values of KEY=VALUE[@DEVICE][,VALUE[@DEVICE]]..., each with the device that it is for; None: all.

    BadInput for another form.
    """
    for each in change.partition("=")[2].split(","):
        value, at, device = each.partition("@")
        if not value or (at and not device):
            raise BadInput(f"{change}: valid: VALUE, or VALUE@DEVICE; several with a comma between")
        yield value, device or None


def placed(change: str, what: str) -> Iterator[tuple[str, str]]:
    """Devices where each is to be somewhere: ``what``@PLACE. BadInput for another form."""
    for value, place in assigned(change):
        if place is None:
            raise BadInput(f"{change}: valid: {what}@PLACE, where PLACE is the bus id of a PCI switch, or cpu:0")
        yield value, place


def number(element: ET.Element, name: str) -> int:
    """An attribute that is a whole number, as the reader has checked."""
    return int(element.get(name, "0"), 0)


def in_order(elements: Iterable[ET.Element]) -> list[ET.Element]:
    """GPUs or adapters by ``dev``."""
    return sorted(elements, key=lambda each: number(each, "dev"))


def parent(root: ET.Element, element: ET.Element) -> ET.Element:
    """What an element is in."""
    return next(above for above in root.iter() for child in above if child is element)


def gpu(root: ET.Element, name: str, change: str) -> ET.Element:
    """The <pci> of a GPU. BadInput where there is none of that name."""
    slots = [pci for pci in root.iter("pci") if pci.find("gpu") is not None]
    for pci in slots:
        if name.lower() in (_gpu_name(pci), pci.get("busid", "").lower()):
            return pci
    raise BadInput(f"{change}: no GPU {name}; {one_of(map(_gpu_name, slots))}")


def nets(root: ET.Element, change: str) -> list[ET.Element]:
    """All adapters by ``dev``; an adapter may be there several times in a dump. BadInput where there are none."""
    if found := in_order(root.iter("net")):
        return found
    raise BadInput(f"{change}: this node has no adapters")


def net(root: ET.Element, name: str, change: str) -> list[ET.Element]:
    """One adapter, as often as it is there. BadInput where there is none of that name."""
    every = nets(root, change)
    if found := [each for each in every if name in (each.get("name"), f"net:{number(each, 'dev')}")]:
        return found
    raise BadInput(f"{change}: no adapter {name}; {one_of(dict.fromkeys(each.get('name', '') for each in every))}")


def slot(root: ET.Element, name: str, change: str) -> ET.Element:
    """The <pci> of any device. BadInput where there is none of that name."""
    if re.fullmatch(r"gpu:\d+", name):
        return gpu(root, name, change)
    for pci in root.iter("pci"):
        if pci.get("busid", "").lower() == name.lower():
            return pci
    names = {each.get("name") for each in root.iter("net")}
    if name in names or name.startswith("net:"):
        return slot_of_net(root, net(root, name, change)[0], change)
    raise BadInput(f"{change}: no device {name}; valid: a bus id, gpu:0 or the name of an adapter")


def slot_of_net(root: ET.Element, element: ET.Element, change: str) -> ET.Element:
    """The <pci> of an adapter. BadInput where it is no PCI device."""
    above = parent(root, parent(root, element))
    if above.tag != "pci":
        raise BadInput(f"{change}: {element.get('name')} is no PCI device; valid: those that are")
    return above


def place(root: ET.Element, name: str, change: str) -> ET.Element:
    """A PCI switch by its bus id, or a NUMA node: what devices can be put into. BadInput where there is none."""
    places = {f"cpu:{cpu.get('numaid')}": cpu for cpu in root.iter("cpu")}
    places |= {pci.get("busid", "").lower(): pci for pci in root.iter("pci") if _is_switch(pci)}
    if name.lower() not in places:
        raise BadInput(f"{change}: no PCI switch and no NUMA node {name}; {one_of(places)}")
    return places[name.lower()]


def _is_switch(pci: ET.Element) -> bool:
    return pci.find("pci") is not None or pci.get("class", "").startswith("0x0604")


def _gpu_name(pci: ET.Element) -> str:
    own = pci.find("gpu")
    assert own is not None
    return f"gpu:{number(own, 'dev')}"

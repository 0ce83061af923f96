"""Matches a topology's devices with those of a machine of the catalogue, and finds where each of them belongs."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count

from tuner.answers.doctor.records import ExaminedNode, gpu_name, number
from tuner.base.dataclass import dataclass


def counterparts(node: ExaminedNode) -> dict[ET.Element, ET.Element]:
    """The machine's <pci> for each <pci> of a GPU or adapter of the node. GPUs are paired by number, adapters by name
    if the machine has all their names, else by number.

    The result is empty if the node is compared with no machine. It leaves out the GPUs if the node and the machine have
    different numbers of GPUs, and the adapters if the machine has neither all their names nor the same number of them.
    """
    if node.like_root is None:
        return {}
    theirs = sorted((pci for pci in node.like_root.iter("pci") if pci.find("gpu") is not None), key=_dev)
    found = dict(zip(node.gpus, theirs, strict=True)) if len(theirs) == len(node.gpus) else {}
    slots = {net.get("name", ""): pci for pci in node.like_root.iter("pci") for net in pci.findall("nic/net")}
    nets = sorted(slots, key=lambda name: next(number(net, "dev") for net in slots[name].findall("nic/net")))
    mine = [net for net in node.adapters if node.slot(net) is not None]
    names = [net.get("name", "") for net in mine]
    if set(names) <= set(nets):
        nets = names
    if len(mine) == len(nets):
        found |= {
            slot: slots[name] for net, name in zip(mine, nets, strict=True) if (slot := node.slot(net)) is not None
        }
    return found


def switches(node: ExaminedNode) -> dict[ET.Element, ET.Element]:
    """Pairs PCI switches above the same devices with those of the machine, the outermost of several switches first."""
    pairs = counterparts(node)
    if node.like_root is None or not pairs:
        return {}
    mine, theirs = (
        _above(node.root, {pci: pci for pci in pairs}),
        _above(node.like_root, {v: k for k, v in pairs.items()}),
    )
    return {
        one: other
        for devices, here in mine.items()
        if len(here) == len(there := theirs.get(devices, []))
        for one, other in zip(here, there, strict=True)
    }


def _above(root: ET.Element, devices: Mapping[ET.Element, ET.Element]) -> dict[frozenset[ET.Element], list[ET.Element]]:
    """Switches, indexed by the devices below them."""
    found: dict[frozenset[ET.Element], list[ET.Element]] = {}
    for pci in root.iter("pci"):
        below = frozenset(devices[each] for each in pci.iter("pci") if each in devices)
        if pci not in devices and below:
            found.setdefault(below, []).append(pci)
    return found


def _dev(pci: ET.Element) -> int:
    return number(pci.find("gpu"), "dev")


@dataclass(slots=True)
class PlacementPlan:
    """The changes that put devices where they belong. ``moved``: names of moved devices; ``sockets``: names of those
    that move to another <cpu>.
    """

    changes: list[str]
    moved: list[str]
    sockets: list[str]
    switches: int = 0  # that are added
    cpus: int = 0


def plan(node: ExaminedNode) -> PlacementPlan:
    """The changes by which the node becomes like the machine; no changes if it already is."""
    pairs = counterparts(node)
    made = PlacementPlan([], [], [])
    if node.like_root is None or not pairs:
        return made
    theirs = {other: mine for mine, other in pairs.items()}
    of_like = {child: parent for parent in node.like_root.iter() for child in parent}
    containers = [each for each in node.like_root.iter() if each.tag in ("cpu", "pci") and each not in theirs]
    below = {each: {theirs[pci] for pci in each.iter("pci") if pci in theirs} for each in containers}
    containers = [each for each in containers if below[each]]
    chosen = _chosen(node, containers, below)
    places, free = dict[ET.Element, str](), _free(node)
    numbers = {cpu.get("numaid") for cpu in node.root.iter("cpu")}
    for each in containers:
        mine = chosen.get(each)
        if mine is not None:
            places[each] = _name(mine)
            if each.tag == "pci" and _name(node.above[mine]) != places[of_like[each]]:
                made.changes.append(f"move-switch={places[each]}@{places[of_like[each]]}")
        elif each.tag == "cpu":
            own = next(str(n) for n in chain((number(each, "numaid"),), count()) if str(n) not in numbers)
            numbers.add(own)
            places[each] = f"cpu:{own}"
            made.cpus += 1
            made.changes.append(f"add-cpu={own}")
        else:
            places[each] = next(free)
            made.switches += 1
            made.changes.append(f"add-switch={places[each]}@{places[of_like[each]]}")
            if link := pcie_words(each):
                made.changes.append(f"pcie={link}@{places[each]}")
            if known := _ids(each):
                made.changes.append(f"ids={known}@{places[each]}")
    _move(node, pairs, (of_like, places), made)
    if made.changes:  # what is moved comes last in its place, and NCCL's search depends on the order of the file
        in_order = [theirs[pci] for pci in node.like_root.iter("pci") if pci in theirs]
        made.changes.append(f"order={','.join(device_name(pci) for pci in in_order)}")
    return made


def _move(
    node: ExaminedNode,
    pairs: Mapping[ET.Element, ET.Element],
    wanted: tuple[Mapping[ET.Element, ET.Element], Mapping[ET.Element, str]],
    made: PlacementPlan,
) -> None:
    """Adds to ``made`` the moves of devices that are in another place than in the machine. ``wanted``: the element
    below which each device belongs, and names of elements.
    """
    of_like, places = wanted
    for mine, other in pairs.items():
        place = places[of_like[other]]
        if _name(node.above[mine]) == place:
            continue
        name = device_name(mine)
        made.moved.append(name)
        made.changes.append(f"{'move-nic' if mine.find('gpu') is None else 'move-gpu'}={name}@{place}")
        cpu = _cpu(node.above, mine)
        there = places[_cpu(of_like, other)]
        if _name(cpu) != there:
            made.sockets.append(name)


def _ids(pci: ET.Element) -> str:
    """Ids of the device as changes write them; empty if the device has no ids."""
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    numbers = [pci.get(name, "").lower().removeprefix("0x") for name in names]
    return ":".join(numbers if all(numbers) else numbers[:2]) if all(numbers[:2]) else ""


def device_name(pci: ET.Element) -> str:
    """The text by which changes name a device: a GPU's name, such as ``gpu:0``, an adapter's name, or the bus id of any
    other PCI device.
    """
    if pci.find("gpu") is not None:
        return gpu_name(pci)
    net = pci.find("nic/net")
    return pci.get("busid", "") if net is None else net.get("name", "")


def _cpu(above: Mapping[ET.Element, ET.Element], element: ET.Element) -> ET.Element:
    while element.tag != "cpu":
        element = above[element]
    return element


def _chosen(
    node: ExaminedNode, containers: Sequence[ET.Element], below: Mapping[ET.Element, set[ET.Element]]
) -> dict[ET.Element, ET.Element]:
    """For each <cpu> and switch of the machine, the node's <cpu> or switch that shares most devices with it; each is
    used only once.
    """
    own = {
        each: {pci for pci in each.iter("pci") if pci in set().union(*below.values()) and pci is not each}
        for each in node.root.iter()
        if each.tag == "cpu" or (each.tag == "pci" and each.find("gpu") is None and each.find("nic") is None)
    }
    ranked = sorted(
        (
            (-len(here & devices) / len(here | devices), at, each, mine)
            for at, each in enumerate(containers)
            for devices in [below[each]]
            for mine, here in own.items()
            if mine.tag == each.tag and here & devices
        ),
        key=lambda one: one[:2],
    )
    found: dict[ET.Element, ET.Element] = {}
    for _, _, each, mine in ranked:
        if each not in found and mine not in found.values():
            found[each] = mine
    return found


def _name(element: ET.Element) -> str:
    return f"cpu:{element.get('numaid')}" if element.tag == "cpu" else element.get("busid", "").lower()


def _free(node: ExaminedNode) -> Iterator[str]:
    """Yields bus ids that no device has."""
    used = {pci.get("busid", "").lower() for pci in node.root.iter("pci")}
    return (bus for n in count(1) if (bus := f"ffff:{n // 32:02x}:{n % 32:02x}.0") not in used)


GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def link(pci: ET.Element) -> tuple[int | None, int | None]:
    """Generation and lanes of a device's PCIe link, each None if the file does not say it."""
    words = pci.get("link_speed", "").split()
    try:
        generation = GENERATIONS.get(float(words[0])) if words else None
    except ValueError:
        generation = None
    width = pci.get("link_width", "")
    return generation, int(width, 0) if width and width not in ("0", "255") else None


def pcie_words(pci: ET.Element) -> str | None:
    """The device's PCIe link as changes write it, such as ``5x16``; None if it is not known."""
    generation, lanes = link(pci)
    return f"{generation}x{lanes}" if generation and lanes else None

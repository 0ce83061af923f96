"""Changes of a node's network adapters. Each raises BadInput for a value that the node cannot have.

What the attributes mean is ncclTopoAddNet's (src/graph/topo.cc, v2.28.9-1).
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Collection
from itertools import count

from tuner.base.errors import BadInput
from tuner.machine.topology import edit_devices as devices

MOST_GBPS = 1_000_000
MOST_LATENCY_US = 1_000_000
SWITCHED = {"on": "1", "off": "0", "1": "1", "0": "0"}
DECIMAL = re.compile(r"\d+(\.\d{1,3})?")


def nic_gbps(root: ET.Element, value: str) -> None:
    """Their speed, 1e9 bits per second. BadInput for no speed, and for no adapter."""
    change = f"nic-gbps={value}"
    for gbps, name in devices.assigned(change):
        if not DECIMAL.fullmatch(gbps) or not 0.001 <= float(gbps) <= MOST_GBPS:
            raise BadInput(f"{change}: valid: 0.001 to {MOST_GBPS}, 1e9 bits per second, such as 400 or 400@mlx5_0")
        for net in _chosen(root, name, change):
            net.set("speed", str(round(float(gbps) * 1000)))


def nic_latency_us(root: ET.Element, value: str) -> None:
    """The latency that the network reports for them, in microseconds. BadInput for no latency, and for no adapter."""
    change = f"nic-latency-us={value}"
    for latency, name in devices.assigned(change):
        if not DECIMAL.fullmatch(latency) or float(latency) > MOST_LATENCY_US:
            raise BadInput(f"{change}: valid: 0 to {MOST_LATENCY_US} microseconds, such as 75 or 75@mlx5_0")
        for net in _chosen(root, name, change):
            net.set("latency", latency)


def gpudirect(root: ET.Element, value: str) -> None:
    """Whether they, or the GPUs that are named, can do GPUDirect RDMA. BadInput for no such device."""
    change = f"gpudirect={value}"
    for switched, name in devices.assigned(change):
        if switched not in SWITCHED:
            raise BadInput(f"{change}: valid: on or off, such as off@mlx5_0 or off@gpu:0")
        if name is not None and name.startswith("gpu:"):
            chosen = devices.gpu(root, name, change).findall("gpu")
        else:
            chosen = _chosen(root, name, change)
        for element in chosen:
            element.set("gdr", SWITCHED[switched])


def nics(root: ET.Element, value: str) -> None:
    """The number of adapters: those kept lie evenly among all of them. NCCL drops what holds none any more.

    BadInput for more than there are.
    """
    devs = sorted({devices.number(net, "dev") for net in devices.nets(root, f"nics={value}")})
    if not value.isdecimal() or not 1 <= int(value) <= len(devs):
        raise BadInput(f"nics={value}: valid: 1 to {len(devs)} of this node's; add-nic=NAME@PLACE adds one")
    _keep(root, [devs[at * len(devs) // int(value)] for at in range(int(value))])


MOST_PORTS = 2  # NCCL_IB_MAX_DEVS_PER_NIC, src/transport/net_ib.cc, v2.20.5-1 to v2.23.4-1


def merge_ports(root: ET.Element, devs: Collection[int], if_all: bool) -> bool:
    """Whether any of the adapters by ``dev`` are ports of one device, which then become one of their speeds together.

    Ports are on one PCI device, or on functions of one. ``if_all``: only where all adapters have as many ports. All are
    counted from 0 again.
    """
    parents = {child: parent for parent in root.iter() for child in parent}
    device_of = {net: pci.get("busid", "")[:-1] for pci in root.iter("pci") for net in pci.findall("nic/net")}
    groups: list[list[ET.Element]] = []
    open_groups: dict[tuple[object, str | None], list[ET.Element]] = {}
    for net in devices.in_order(root.iter("net")):
        key = device_of.get(net, net), net.get("guid")
        group = open_groups.get(key, [])
        if devices.number(net, "dev") not in devs or not 1 <= len(group) < MOST_PORTS:
            group = []
            groups.append(group)
            if devices.number(net, "dev") in devs:
                open_groups[key] = group
        group.append(net)
    sizes = {len(group) for group in groups if devices.number(group[0], "dev") in devs}
    if sizes <= {1} or (if_all and len(sizes) > 1):
        return False
    for number, (first, *others) in enumerate(groups):
        first.set("name", "+".join(net.get("name", "") for net in (first, *others)))
        first.set("speed", str(sum(devices.number(net, "speed") for net in (first, *others))))
        first.set("dev", str(number))
        for net in others:
            parents[net].remove(net)
    return True


def remove_nic(root: ET.Element, value: str) -> None:
    """Adapters that are gone; the others are counted from 0 again, as NCCL's networks count."""
    change = f"remove-nic={value}"
    gone = {devices.number(each, "dev") for name in value.split(",") for each in devices.net(root, name, change)}
    _keep(root, sorted({devices.number(net, "dev") for net in root.iter("net")} - gone))


def add_nic(root: ET.Element, value: str) -> None:
    """An adapter more: NAME@PLACE. It is like the first at that place, else like the first of all.

    BadInput for a name that is used, and for no such place.
    """
    change = f"add-nic={value}"
    for name, where in devices.placed(change, "NAME"):
        every = devices.nets(root, change)
        if name in {net.get("name") for net in every} or name.startswith(("net:", "gpu:", "cpu:")):
            raise BadInput(f"{change}: {name} is there already, or names another kind of device; valid: a new name")
        place = devices.place(root, where, change)
        like = next(iter(place.findall("pci/nic/net")), every[0])
        own_slot = devices.slot_of_net(root, like, change)
        used = {pci.get("busid", "").lower() for pci in root.iter("pci")}
        free = next(bus for n in count(0xF0) if (bus := f"{n:04x}:00:00.0") not in used)
        pci = ET.SubElement(place, "pci", {**own_slot.attrib, "busid": free})
        net = ET.SubElement(ET.SubElement(pci, "nic"), "net", like.attrib)
        net.attrib.update(name=name, dev=str(devices.number(every[-1], "dev") + 1))
        guids = [devices.number(each, "guid") for each in every if each.get("guid") is not None]
        if guids:  # NCCL tells adapters apart by it
            net.set("guid", hex(next(guid for guid in count(1) if guid not in guids)))


def move_nic(root: ET.Element, value: str) -> None:
    """Adapters that are elsewhere: NAME@PLACE. What shares the PCI device goes with it."""
    change = f"move-nic={value}"
    for name, where in devices.placed(change, "NAME"):
        move(root, devices.slot_of_net(root, devices.net(root, name, change)[0], change), where, change)


def move(root: ET.Element, pci: ET.Element, where: str, change: str) -> None:
    """Puts a device with all that is below it into another place. BadInput for no such place."""
    place = devices.place(root, where, change)
    if place in pci.iter():
        raise BadInput(f"{change}: {where} is below the device itself; valid: another place")
    devices.parent(root, pci).remove(pci)
    place.append(pci)


def _chosen(root: ET.Element, name: str | None, change: str) -> list[ET.Element]:
    return devices.nets(root, change) if name is None else devices.net(root, name, change)


def _keep(root: ET.Element, devs: Collection[int]) -> None:
    """Only these, counted from 0."""
    kept = list(devs)
    for nic in root.iter("nic"):
        for net in nic.findall("net"):
            dev = devices.number(net, "dev")
            if dev in kept:
                net.set("dev", str(kept.index(dev)))
            else:
                nic.remove(net)

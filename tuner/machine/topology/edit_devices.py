"""Changes the devices and links of a topology. Users name these devices and links in the form that this docstring
describes.

A GPU is ``gpu:3`` (its ``dev``), an adapter ``mlx5_3`` (its name) or ``net:3``, any PCI device its bus id, and a NUMA
node ``cpu:1`` (its ``numaid``). ncclTopoAddPci and ncclTopoAddNvLinks (src/graph/topo.cc, v2.28.9-1) say what
attributes of links mean.
"""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count

from tuner.base.errors import BadInput, one_of
from tuner.base.expressions import expression
from tuner.machine.gpus import most_nvlinks
from tuner.machine.topology.records import NvLink, Target


def assigned(change: str) -> Iterator[tuple[str, str | None]]:
    """Yields the values of KEY=VALUE[@DEVICE][,VALUE[@DEVICE]]..., each with its device.

    The device is None for a value that is for all devices.

    BadInput for another form.
    """
    for each in change.partition("=")[2].split(","):
        value, at, device = each.partition("@")
        if not value or (at and not device):
            raise BadInput(f"{change}: give VALUE or VALUE@DEVICE, several with commas between them")
        yield value, device or None


def placed(change: str, what: str) -> Iterator[tuple[str, str]]:
    """Yields devices, each with the place to which it is moved or added, from ``what``@PLACE. BadInput for another
    form."""
    for value, place in assigned(change):
        if place is None:
            raise BadInput(f"{change}: give {what}@PLACE, where PLACE is the bus id of a PCI switch, or cpu:0")
        yield value, place


def number(element: ET.Element, name: str) -> int:
    """The value of an attribute as a whole number; the reader has already checked that it is one."""
    return int(element.get(name, "0"), 0)


def in_order(elements: Iterable[ET.Element]) -> list[ET.Element]:
    """GPUs or adapters in the order of ``dev``."""
    return sorted(elements, key=lambda each: number(each, "dev"))


def parent(root: ET.Element, element: ET.Element) -> ET.Element:
    """The parent of an element."""
    return next(above for above in root.iter() for child in above if child is element)


def gpu_at(root: ET.Element, name: str, change: str) -> ET.Element:
    """The <pci> of a GPU. BadInput if there is no such GPU."""
    slots = [pci for pci in root.iter("pci") if pci.find("gpu") is not None]
    for pci in slots:
        if name.lower() in (_gpu_name(pci), pci.get("busid", "").lower()):
            return pci
    raise BadInput(f"{change}: no GPU {name}; {one_of(map(_gpu_name, slots))}")


def all_nets(root: ET.Element, change: str) -> list[ET.Element]:
    """All adapters in the order of ``dev``. A dump may have the same adapter several times. BadInput if there is no
    adapter."""
    if found := in_order(root.iter("net")):
        return found
    raise BadInput(f"{change}: this node has no adapters")


def net_at(root: ET.Element, name: str, change: str) -> list[ET.Element]:
    """The elements of one adapter, of which a dump may have several. BadInput if there is no such adapter."""
    every = all_nets(root, change)
    if found := [each for each in every if name in (each.get("name"), f"net:{number(each, 'dev')}")]:
        return found
    raise BadInput(f"{change}: no adapter {name}; {one_of(dict.fromkeys(each.get('name', '') for each in every))}")


def slot(root: ET.Element, name: str, change: str) -> ET.Element:
    """The <pci> of any device. BadInput if there is no such device."""
    if re.fullmatch(r"gpu:\d+", name):
        return gpu_at(root, name, change)
    for pci in root.iter("pci"):
        if pci.get("busid", "").lower() == name.lower():
            return pci
    names = {each.get("name") for each in root.iter("net")}
    if name in names or name.startswith("net:"):
        return slot_of_net(root, net_at(root, name, change)[0], change)
    raise BadInput(f"{change}: no device {name}: give a bus id, gpu:0 or the name of an adapter")


def slot_of_net(root: ET.Element, element: ET.Element, change: str) -> ET.Element:
    """The <pci> of an adapter. BadInput if the adapter is not a PCI device."""
    above = parent(root, parent(root, element))
    if above.tag != "pci":
        raise BadInput(f"{change}: {element.get('name')} is not a PCI device: name one that is")
    return above


def place_at(root: ET.Element, name: str, change: str) -> ET.Element:
    """A place for devices: the PCI switch with a bus id, or a NUMA node. BadInput if there is no such place."""
    places = {f"cpu:{cpu.get('numaid')}": cpu for cpu in root.iter("cpu")}
    places |= {pci.get("busid", "").lower(): pci for pci in root.iter("pci") if _is_switch(pci)}
    if name.lower() not in places:
        raise BadInput(f"{change}: {name} is neither a PCI switch nor a NUMA node; {one_of(places)}")
    return places[name.lower()]


def _is_switch(pci: ET.Element) -> bool:
    return pci.find("pci") is not None or pci.get("class", "").startswith("0x0604")


def _gpu_name(pci: ET.Element) -> str:
    own = pci.find("gpu")
    assert own is not None
    return f"gpu:{number(own, 'dev')}"


MOST_GBPS = 1_000_000
MOST_LATENCY_US = 1_000_000
SWITCHED = {"on": "1", "off": "0", "1": "1", "0": "0"}
DECIMAL = expression(r"\d+(\.\d{1,3})?")


def nic_gbps(root: ET.Element, value: str, change: str) -> None:
    """Sets the speed of adapters, 1e9 bits per second. BadInput for an impossible speed, or if there is no such
    adapter.
    """
    for gbps, name in assigned(change):
        if not DECIMAL.fullmatch(gbps) or not 0.001 <= float(gbps) <= MOST_GBPS:
            raise BadInput(
                f"{change}: give a speed of 0.001 to {MOST_GBPS} Gb/s (1e9 bits per second), such as 400 or 400@mlx5_0"
            )
        for net in _chosen(root, name, change):
            net.set("speed", str(round(float(gbps) * 1000)))


def nic_latency_us(root: ET.Element, value: str, change: str) -> None:
    """Sets the latency that the network reports for adapters, in microseconds. BadInput for an impossible latency, or
    if there is no such adapter.
    """
    for latency, name in assigned(change):
        if not DECIMAL.fullmatch(latency) or float(latency) > MOST_LATENCY_US:
            raise BadInput(f"{change}: give a latency of 0 to {MOST_LATENCY_US} us, such as 75 or 75@mlx5_0")
        for net in _chosen(root, name, change):
            net.set("latency", latency)


def gpudirect(root: ET.Element, value: str, change: str) -> None:
    """Sets whether adapters or named GPUs can do GPUDirect RDMA. BadInput if there is no such device."""
    for switched, name in assigned(change):
        if switched not in SWITCHED:
            raise BadInput(f"{change}: give on or off, such as off@mlx5_0 or off@gpu:0")
        if name is not None and name.startswith("gpu:"):
            chosen = gpu_at(root, name, change).findall("gpu")
        else:
            chosen = _chosen(root, name, change)
        for element in chosen:
            element.set("gdr", SWITCHED[switched])


def over_ip(root: ET.Element) -> None:
    """Turns adapters into their IP interfaces, which NCCL's sockets see: no port, and no access to GPUs' memory.

    Source: ncclNetSocketGetProperties, src/transport/net_socket.cc, v2.28.9-1.
    """
    for net in root.iter("net"):
        net.attrib.update(port="0", gdr="0", latency="0")
        net.attrib.pop("coll", None)


def nics(root: ET.Element, value: str, change: str) -> None:
    """Reduces the number of adapters. The adapters that stay are spread evenly among all. NCCL then drops devices
    without adapters.

    BadInput for more adapters than there are.
    """
    devs = sorted({number(net, "dev") for net in all_nets(root, change)})
    if not value.isdecimal() or not 1 <= int(value) <= len(devs):
        raise BadInput(f"{change}: valid are 1 to {len(devs)} of this node's adapters; add-nic=NAME@PLACE adds one")
    _keep(root, [devs[at * len(devs) // int(value)] for at in range(int(value))])


MOST_PORTS = 2  # NCCL_IB_MAX_DEVS_PER_NIC, src/transport/net_ib.cc, v2.20.5-1 to v2.23.4-1


def merge_ports(root: ET.Element, devs: Collection[int], if_all: bool) -> bool:
    """Merges those adapters among ``devs`` that are ports of one device into one adapter with their total speed.
    Returns whether any adapters were merged.

    Ports belong to one device if they are on the same PCI device, or on its functions. If ``if_all`` is true, nothing
    is merged unless all adapters have equally many ports. All adapters are renumbered from 0.
    """
    parents = {child: parent for parent in root.iter() for child in parent}
    device_of = {net: pci.get("busid", "")[:-1] for pci in root.iter("pci") for net in pci.findall("nic/net")}
    groups: list[list[ET.Element]] = []
    open_groups: dict[tuple[object, str | None], list[ET.Element]] = {}
    for net in in_order(root.iter("net")):
        key = device_of.get(net, net), net.get("guid")
        group = open_groups.get(key, [])
        if number(net, "dev") not in devs or not 1 <= len(group) < MOST_PORTS:
            group = []
            groups.append(group)
            if number(net, "dev") in devs:
                open_groups[key] = group
        group.append(net)
    sizes = {len(group) for group in groups if number(group[0], "dev") in devs}
    if sizes <= {1} or (if_all and len(sizes) > 1):
        return False
    for at, (first, *others) in enumerate(groups):
        first.set("name", "+".join(net.get("name", "") for net in (first, *others)))
        first.set("speed", str(sum(number(net, "speed") for net in (first, *others))))
        first.set("dev", str(at))
        for net in others:
            parents[net].remove(net)
    return True


def remove_nic(root: ET.Element, value: str, change: str) -> None:
    """Removes adapters; the others are renumbered from 0, as NCCL's networks number them."""
    gone = {number(each, "dev") for name in value.split(",") for each in net_at(root, name, change)}
    _keep(root, sorted({number(net, "dev") for net in root.iter("net")} - gone))


def add_nic(root: ET.Element, value: str, change: str) -> None:
    """Adds an adapter: NAME@PLACE. The new adapter is a copy of the first one at that place, or of the first of all if
    that place has none.

    BadInput if the name is used, or if there is no such place.
    """
    for name, where in placed(change, "NAME"):
        every = all_nets(root, change)
        if name in {net.get("name") for net in every} or name.startswith(("net:", "gpu:", "cpu:")):
            raise BadInput(f"{change}: {name} is there already, or names another kind of device: give a new name")
        place = place_at(root, where, change)
        like = next(iter(place.findall("pci/nic/net")), every[0])
        own_slot = slot_of_net(root, like, change)
        used = {pci.get("busid", "").lower() for pci in root.iter("pci")}
        free = next(bus for n in count(0xF0) if (bus := f"{n:04x}:00:00.0") not in used)
        pci = ET.SubElement(place, "pci", {**own_slot.attrib, "busid": free})
        net = ET.SubElement(ET.SubElement(pci, "nic"), "net", like.attrib)
        net.attrib.update(name=name, dev=str(number(every[-1], "dev") + 1))
        guids = [number(each, "guid") for each in every if each.get("guid") is not None]
        if guids:  # NCCL tells adapters apart by their guid
            net.set("guid", hex(next(guid for guid in count(1) if guid not in guids)))


def move_nic(root: ET.Element, value: str, change: str) -> None:
    """Moves adapters: NAME@PLACE.

    With an adapter, everything else on its PCI device moves, too.
    """
    for name, where in placed(change, "NAME"):
        move(root, slot_of_net(root, net_at(root, name, change)[0], change), where, change)


def move(root: ET.Element, pci: ET.Element, where: str, change: str) -> None:
    """Moves a device with everything below it to another place. BadInput if there is no such place."""
    place = place_at(root, where, change)
    if place in pci.iter():
        raise BadInput(f"{change}: {where} is below the device itself: give another place")
    parent(root, pci).remove(pci)
    place.append(pci)


def _chosen(root: ET.Element, name: str | None, change: str) -> list[ET.Element]:
    return all_nets(root, change) if name is None else net_at(root, name, change)


def _keep(root: ET.Element, devs: Collection[int]) -> None:
    """Keeps only the adapters with these ``dev``, and renumbers them from 0."""
    kept = list(devs)
    for nic in root.iter("nic"):
        for net in nic.findall("net"):
            dev = number(net, "dev")
            if dev in kept:
                net.set("dev", str(kept.index(dev)))
            else:
                nic.remove(net)


X86 = expression(r"(GenuineIntel|AuthenticAMD|CentaurHauls|  Shanghai  ):(\d{1,3}):(\d{1,3})")
OTHERS = ("arm64", "ppc64")


def move_gpu(root: ET.Element, value: str, change: str) -> None:
    """Moves GPUs: gpu:0@PLACE."""
    for name, where in placed(change, "gpu:0"):
        move(root, gpu_at(root, name, change), where, change)


def remove_gpu(root: ET.Element, value: str, change: str) -> None:
    """Removes GPUs, with the NVLinks to them; the others are renumbered from 0, as CUDA numbers them.

    BadInput if no GPU is left, or if ranks share GPUs.
    """
    for pci in [gpu_at(root, name, change) for name in dict.fromkeys(value.split(","))]:
        _remove(root, pci)
    left = in_order(root.iter("gpu"))
    if not left:
        raise BadInput(f"{change}: would leave no GPU: name fewer of them")
    if len({gpu.get("dev") for gpu in left}) < len(left):
        raise BadInput(f"{change}: cannot be applied if ranks share GPUs: use a topology with one rank per GPU")
    for dev, gpu in enumerate(left):
        gpu.set("dev", str(dev))
        if gpu.get("rank") is not None:
            gpu.set("rank", str(dev))


def only_gpus(root: ET.Element, numbers: Sequence[int]) -> None:
    """Keeps only the GPUs with these places in the order of ``dev``, and removes the others with the NVLinks to them.
    The GPUs keep their numbers."""
    kept = [gpu for number, gpu in enumerate(in_order(root.iter("gpu"))) if number in numbers]
    for pci in [each for each in root.iter("pci") if (gpu := each.find("gpu")) is not None and gpu not in kept]:
        _remove(root, pci)


def _remove(root: ET.Element, pci: ET.Element) -> None:
    parent(root, pci).remove(pci)
    for gpu in root.iter("gpu"):
        for link in gpu.findall("nvlink"):
            if link.get("target", "").lower() == pci.get("busid", "").lower():
                gpu.remove(link)


def sockets(root: ET.Element, value: str, change: str) -> None:
    """Sets the number of sockets, each with one NUMA node. Devices are distributed among them in order, as evenly as
    possible.

    New sockets are copies of the first one. BadInput if some socket would have no device.
    """
    now = [cpu for cpu in root.findall("cpu") if len(cpu)]
    trees = [child for cpu in now for child in cpu]
    if not value.isdecimal() or not 1 <= int(value) <= len(trees):
        raise BadInput(f"{change}: valid are 1 to {len(trees)}, the PCI switches and devices at this node's sockets")
    count = int(value)
    most = max(int(cpu.get("numaid", "0"), 0) for cpu in root.findall("cpu"))
    for cpu in root.findall("cpu"):
        if cpu not in now[:count]:
            root.remove(cpu)
    added = [
        ET.SubElement(root, "cpu", {**now[0].attrib, "numaid": str(most + n)}) for n in range(1, count - len(now) + 1)
    ]
    cpus = [*now[:count], *added]
    for cpu in cpus:
        cpu[:] = []
    for at, tree in enumerate(trees):
        cpus[at * count // len(trees)].append(tree)


def cpu(root: ET.Element, value: str, change: str) -> None:
    """Sets the processors: VENDOR:FAMILY:MODEL of an x86 processor in NCCL's numbering, or another architecture.
    BadInput for anything else."""
    x86 = X86.fullmatch(value)
    if x86 is None and value not in OTHERS:
        raise BadInput(
            f"{change}: give VENDOR:FAMILY:MODEL as NCCL counts them, such as GenuineIntel:6:143 or "
            f"AuthenticAMD:143:49, or {' or '.join(OTHERS)}"
        )
    names = ("vendor", "familyid", "modelid")
    for element in root.findall("cpu"):
        for name in names:
            element.attrib.pop(name, None)
        element.set("arch", "x86_64" if x86 else value)
        if x86:
            element.attrib.update(zip(names, x86.groups(), strict=True))


# PCIe speeds by generation. Source: kvDictPciGen, in which any other text counts as generation 3.
PCIE_SPEEDS = {
    number: f"{speed} GT/s PCIe" for number, speed in enumerate(("2.5", "5.0", "8.0", "16.0", "32.0", "64.0"), 1)
}
PCIE_LANES = (1, 2, 4, 8, 16)


def pcie(root: ET.Element, value: str, change: str) -> None:
    """Sets the generation and, if given, the number of lanes of PCIe links. BadInput for an impossible link or an
    unknown device."""
    for link, name in assigned(change):
        match = re.fullmatch(r"([1-6])(?:x(\d+))?", link)
        if match is None or (match[2] is not None and int(match[2]) not in PCIE_LANES):
            raise BadInput(
                f"{change}: give a PCIe generation from 1 to 6, and lanes if they change too, as in 5, 4x8 or 4x8@gpu:0"
            )
        for pci in root.iter("pci") if name is None else [slot(root, name, change)]:
            pci.set("link_speed", PCIE_SPEEDS[int(match[1])])
            if match[2] is not None:
                pci.set("link_width", match[2])


def nvlinks(root: ET.Element, value: str, change: str) -> None:
    """Sets the number of NVLinks of GPUs.

    The NVLinks of a GPU are spread over the switches. If they lead to other GPUs instead, each of these keeps its
    share. 0 removes all NVLinks.

    For one GPU (N@gpu:0), both ends of its links change; for two GPUs (N@gpu:0-gpu:1), only the links between them.
    BadInput for more NVLinks than such GPUs can have, and for GPUs without NVLinks.
    """
    if not any(gpu.find("nvlink") is not None for gpu in root.iter("gpu")):
        raise BadInput(f"{change}: no GPU of this node has NVLinks")
    for links, names in assigned(change):
        wanted = _count(root, links, change)
        if names is None:
            for pci in _linked(root):
                _set_all(_gpu(pci), wanted, change)
        elif "-" in names:
            here, _, there = names.partition("-")
            _set_between(gpu_at(root, here, change), gpu_at(root, there, change), wanted, change)
        else:
            _set_of_one(root, gpu_at(root, names, change), wanted, change)
    for pci in _linked(root):
        gpu = _gpu(pci)
        have, most = sum(_links(gpu).values()), most_nvlinks(number(gpu, "sm"))
        if have > most:
            raise BadInput(
                f"{change}: gpu:{number(gpu, 'dev')} would have {have} links, but such a GPU has at most {most}"
            )


def _count(root: ET.Element, text: str, change: str) -> int:
    """The number of links in a text. BadInput if some GPU of the node cannot have that many."""
    most = min(most_nvlinks(number(gpu, "sm")) for gpu in root.iter("gpu"))
    if not text.isdecimal() or int(text) > most:
        raise BadInput(f"{change}: valid are 0 to {most} per GPU, the most that these GPUs have")
    return int(text)


def _linked(root: ET.Element) -> list[ET.Element]:
    return [pci for pci in root.iter("pci") if pci.find("gpu/nvlink") is not None]


def _gpu(pci: ET.Element) -> ET.Element:
    gpu = pci.find("gpu")
    assert gpu is not None
    return gpu


def _links(gpu: ET.Element) -> dict[str, int]:
    """The number of a GPU's NVLinks to each device, by the bus id of the device."""
    return {link.get("target", "").lower(): number(link, "count") for link in gpu.findall("nvlink")}


def _set_all(gpu: ET.Element, count: int, change: str) -> None:
    links = gpu.findall("nvlink")
    for link, links_now in zip(links, _dealt(links, count, change), strict=True):
        _set(gpu, link, links_now)


def _set_of_one(root: ET.Element, pci: ET.Element, count: int, change: str) -> None:
    gpu, busid = _gpu(pci), pci.get("busid", "").lower()
    if count and gpu.find("nvlink") is None:
        raise BadInput(f"{change}: gpu:{number(gpu, 'dev')} has no NVLinks: name a GPU that has some")
    _set_all(gpu, count, change)
    now = _links(gpu)
    for other in _linked(root):
        for link in _gpu(other).findall("nvlink"):
            if link.get("target", "").lower() == busid:
                _set(_gpu(other), link, now.get(other.get("busid", "").lower(), 0))


def _set_between(here: ET.Element, there: ET.Element, count: int, change: str) -> None:
    for pci, other in ((here, there), (there, here)):
        gpu, target = _gpu(pci), other.get("busid", "").lower()
        link = next((each for each in gpu.findall("nvlink") if each.get("target", "").lower() == target), None)
        if pci is other or link is None:
            linked = [each.get("target", "") for each in gpu.findall("nvlink")]
            raise BadInput(
                f"{change}: no NVLink connects these GPUs: name GPUs that are linked; gpu:{number(gpu, 'dev')} is "
                f"linked with {', '.join(linked) or 'none'}"
            )
        _set(gpu, link, count)


def _set(gpu: ET.Element, link: ET.Element, count: int) -> None:
    if count:
        link.set("count", str(count))
    else:
        gpu.remove(link)


def _dealt(links: Sequence[ET.Element], count: int, change: str) -> list[int]:
    kinds = {NvLink(link.get("target", ""), 1, link.get("tclass", "")).kind for link in links}
    if kinds <= {Target.SWITCH}:  # NCCL treats all switches as one
        return [(count + at) // len(links) for at in range(len(links))]
    before = [number(link, "count") for link in links]
    if any(count * one % sum(before) for one in before):
        raise BadInput(
            f"{change}: a GPU's {sum(before)} links go to neighbours as {'+'.join(map(str, before))}, and {count} "
            f"cannot be divided like that: give a multiple of {sum(before) // math.gcd(*before)}"
        )
    return [count * one // sum(before) for one in before]

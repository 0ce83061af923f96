"""Changes the hardware of a node in its topology XML; NCCL's search is then repeated on the changed node."""

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import count

from tuner.base.errors import BadInput, one_of
from tuner.base.expressions import expression
from tuner.machine.gpus import HIDDEN_NVSWITCH, most_nvlinks
from tuner.machine.topology import edit_devices as devices
from tuner.machine.topology.edit_devices import move
from tuner.machine.topology.reader import read
from tuner.machine.topology.xml import to_text

BUS_ID = expression(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
IDS = expression(r"[0-9a-f]{4}:[0-9a-f]{4}(:[0-9a-f]{4}:[0-9a-f]{4})?")
SWITCH = {"class": "0x060400", "link_speed": "32.0 GT/s PCIe", "link_width": "16"}
NVSWITCH_CLASS = "0x068000"


def add_switch(root: ET.Element, value: str, change: str) -> None:
    """Adds a PCI switch: BUSID@PLACE, with a link as fast as the place's. Other changes then move devices to the
    switch.

    BadInput if the bus id is used or invalid, or if there is no such place.
    """
    for busid, where in devices.placed(change, "ffff:00:01.0"):
        used = {pci.get("busid", "").lower() for pci in root.iter("pci")}
        if BUS_ID.fullmatch(busid) is None or busid in used:
            raise BadInput(f"{change}: give a bus id that no device has, as in ffff:00:01.0")
        above = devices.place_at(root, where, change)
        facts = {name: above.get(name, value) if above.tag == "pci" else value for name, value in SWITCH.items()}
        ET.SubElement(above, "pci", {"busid": busid, **facts, "class": SWITCH["class"]})


def move_switch(root: ET.Element, value: str, change: str) -> None:
    """Moves PCI switches, with everything below them: BUSID@PLACE."""
    for busid, where in devices.placed(change, "BUSID"):
        move(root, devices.slot(root, busid, change), where, change)


def add_cpu(root: ET.Element, value: str, change: str) -> None:
    """Adds a NUMA node with a number; its processors are like the first node's. BadInput if the number is used."""
    for number in value.split(","):
        used = {cpu.get("numaid") for cpu in root.iter("cpu")}
        first = root.find("cpu")
        if first is None or not number.isdecimal() or number in used:
            there = ", ".join(sorted(filter(None, used)))
            raise BadInput(f"{change}: give a number that no NUMA node has yet; there are {there}")
        facts = {name: text for name, text in first.attrib.items() if name not in ("affinity", "numaid")}
        ET.SubElement(root, "cpu", {"numaid": number, **facts})


def ids(root: ET.Element, value: str, change: str) -> None:
    """Sets the ids of PCI devices, as in 1000:c010:1000:a064@BUSID.

    The ids are those of the vendor and the device and, if given, those of the subsystem's vendor and device.

    By these ids NCCL recognises the two levels of one Broadcom switch (ncclTopoFlattenBcmSwitches). BadInput for other
    forms.
    """
    for numbers, busid in devices.assigned(change):
        if busid is None or IDS.fullmatch(numbers) is None:
            raise BadInput(f"{change}: give four hexadecimal digits each, as in 1000:c010@ffff:00:01.0")
        names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
        pci = devices.slot(root, busid, change)
        pci.attrib.update({name: f"0x{each}" for name, each in zip(names, numbers.split(":"), strict=False)})


def order(root: ET.Element, value: str, change: str) -> None:
    """Sets the order of devices in the file, on which NCCL's search depends. ``mlx5_0,gpu:0,mlx5_1`` puts these three
    first.

    Devices stay in their switch or NUMA node.
    """
    ranks = {devices.slot(root, name, change): at for at, name in enumerate(value.split(","))}
    for above in root.iter():
        if above.tag in ("system", "cpu", "pci"):
            above[:] = sorted(above, key=lambda child: min(_ranks(child, ranks), default=len(ranks)))


def _ranks(child: ET.Element, ranks: Mapping[ET.Element, int]) -> Iterator[int]:
    return (ranks.get(pci, len(ranks)) for pci in child.iter("pci"))


def nvswitch(root: ET.Element, value: str, change: str) -> None:
    """Sets the number of NVLinks from GPUs to NVSwitches, and removes all other NVLinks of these GPUs.

    The NVLinks lead to the NVSwitches that the topology already has for these or other GPUs; if there are none, to one
    hidden NVSwitch.

    BadInput for more NVLinks than such GPUs can have.
    """
    slots = {f"gpu:{devices.number(gpu, 'dev')}": gpu for pci in root.iter("pci") for gpu in pci.findall("gpu")}
    for links, name in devices.assigned(change):
        chosen = list(slots.values()) if name is None else devices.gpu_at(root, name, change).findall("gpu")
        most = min(most_nvlinks(devices.number(gpu, "sm")) for gpu in chosen)
        if not links.isdecimal() or not 1 <= int(links) <= most:
            raise BadInput(f"{change}: valid are 1 to {most} per GPU, as many as these GPUs have at most")
        for gpu in chosen:
            others = (link for other in slots.values() if other not in chosen for link in other.findall("nvlink"))
            own = [link.get("target", "") for link in (*gpu.findall("nvlink"), *others) if _is_switch(link)]
            targets = list(dict.fromkeys(own)) or [HIDDEN_NVSWITCH]
            for link in gpu.findall("nvlink"):
                gpu.remove(link)
            for at, target in enumerate(targets[: int(links)]):
                here = (int(links) + at) // len(targets[: int(links)])
                ET.SubElement(gpu, "nvlink", {"target": target, "count": str(here), "tclass": NVSWITCH_CLASS})


def _is_switch(link: ET.Element) -> bool:
    return not link.get("tclass", "").startswith(("0x03", "0x068001"))


def link_gpus(root: ET.Element, value: str, change: str) -> None:
    """Sets the number of NVLinks between two GPUs, which may have had none before: N@gpu:0-gpu:1. Links of a GPU to
    itself are removed.

    BadInput for other forms, or if there are no such GPUs.
    """
    for links, names in devices.assigned(change):
        here, dash, there = (names or "").partition("-")
        if not dash or not links.isdecimal() or int(links) < 1:
            raise BadInput(f"{change}: give a number of links between two GPUs, as in 2@gpu:0-gpu:1")
        ends = devices.gpu_at(root, here, change), devices.gpu_at(root, there, change)
        if ends[0] is ends[1]:
            raise BadInput(f"{change}: names {here} twice: give two GPUs")
        for pci, other in (ends, ends[::-1]):
            target, gpu = other.get("busid", ""), pci.find("gpu")
            assert gpu is not None
            for link in gpu.findall("nvlink"):
                if link.get("target", "").lower() in (target.lower(), pci.get("busid", "").lower()):
                    gpu.remove(link)
            tclass = other.get("class", "0x030200")
            ET.SubElement(gpu, "nvlink", {"target": target, "count": links, "tclass": tclass})


def new_guid(root: ET.Element, value: str, change: str) -> None:
    """Gives adapters a guid that no other adapter has, because NCCL treats adapters with the same guid and port as
    one."""
    for name in value.split(","):
        for net in devices.net_at(root, name, change):
            used = {devices.number(each, "guid") for each in root.iter("net") if each.get("guid") is not None}
            net.set("guid", hex(next(guid for guid in count(1) if guid not in used)))


def keep(root: ET.Element, value: str, change: str) -> None:
    """Marks adapters with ``keep="1"``, so that NCCL keeps them. Without this mark, 2.24 to 2.26 drop adapters with
    ``coll="1"`` from a file."""
    for name in value.split(","):
        for net in devices.net_at(root, name, change):
            net.set("keep", "1")


def sm(root: ET.Element, value: str, change: str) -> None:
    """Sets the compute capability of GPUs: 90, 90@gpu:3. BadInput for a value that no GPU has."""
    valid = ("60", "61", "70", "75", "80", "86", "87", "89", "90", "100", "103", "110", "120", "121")
    for number, name in devices.assigned(change):
        if number not in valid:
            raise BadInput(f"{change}: {one_of(valid)}, such as 90 or 90@gpu:0")
        for gpu in root.iter("gpu") if name is None else devices.gpu_at(root, name, change).findall("gpu"):
            gpu.set("sm", number)


# The edits by key. Each gets the tree, the value, and KEY=VALUE, by which messages name the change.
EDITS: dict[str, Callable[[ET.Element, str, str], None]] = {
    "nic-gbps": devices.nic_gbps,
    "nic-latency-us": devices.nic_latency_us,
    "nics": devices.nics,
    "add-nic": devices.add_nic,
    "move-nic": devices.move_nic,
    "remove-nic": devices.remove_nic,
    "gpudirect": devices.gpudirect,
    "nvlinks": devices.nvlinks,
    "pcie": devices.pcie,
    "move-gpu": devices.move_gpu,
    "remove-gpu": devices.remove_gpu,
    "sockets": devices.sockets,
    "cpu": devices.cpu,
    "add-cpu": add_cpu,
    "add-switch": add_switch,
    "move-switch": move_switch,
    "ids": ids,
    "order": order,
    "nvswitch": nvswitch,
    "link-gpus": link_gpus,
    "new-guid": new_guid,
    "keep": keep,
    "sm": sm,
}
# The keys whose second value does not replace the first.
ADD_UP = frozenset(
    {"add-nic", "move-nic", "remove-nic", "move-gpu", "remove-gpu", "add-cpu", "add-switch", "move-switch"}
    | {"new-guid", "keep"}
)


def together(key: str, before: str | None, value: str) -> str:
    """The value of a change after an earlier change with the same key, whose value is ``before``.

    If the two add up, both values are joined with a comma; else the later value counts.
    """
    return f"{before},{value}" if before is not None and adds_up(key, value) else value


def adds_up(key: str, value: str) -> bool:
    """Whether a change is made in addition to an earlier one with the same key, instead of replacing it."""
    return key in ADD_UP or (key in EDITS and "@" in value)


def change(root: ET.Element, key: str, value: str) -> None:
    """Makes one of :data:`EDITS`. BadInput for a value that this node cannot have."""
    EDITS[key](root, value, f"{key}={value}")


def edited(topology: str, changes: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """The text of a topology after ``changes``, which are made in their order.

    Their keys are those of :data:`EDITS`.

    BadInput for a value that this node cannot have. BadTopology if the text is not a topology.
    """
    return _edited(topology, tuple(changes.items() if isinstance(changes, Mapping) else changes))


@cache
def _edited(topology: str, changes: tuple[tuple[str, str], ...]) -> str:
    read(topology)  # refuses what is not a topology
    root = ET.fromstring(topology)
    for key, value in changes:
        change(root, key, value)
    return to_text(root)


@cache
def of_gpus(topology: str, numbers: tuple[int, ...]) -> str:
    """The text of a topology with only some of its GPUs, which keep their ``dev``.

    ``numbers`` are the places of these GPUs in the order of ``dev``.
    """
    root = ET.fromstring(topology)
    devices.only_gpus(root, numbers)
    return to_text(root)


@cache
def with_ports_merged(topology: str, devs: tuple[int, ...], if_all: bool) -> str:
    """The text of a topology in which every two ports of one device become one adapter.

    Only adapters whose ``dev`` is in ``devs`` are merged.

    ``if_all``: only if all adapters have equally many ports. Source: ncclIbFindMatchingDev and ncclIbInit,
    src/transport/net_ib.cc, v2.21.5-1 and v2.23.4-1.
    """
    root = ET.fromstring(topology)
    return to_text(root) if devices.merge_ports(root, devs, if_all) else topology


@cache
def over_ip(topology: str) -> str:
    """The text of a topology in which adapters are replaced by the IP interfaces that NCCL's sockets see."""
    root = ET.fromstring(topology)
    devices.over_ip(root)
    return to_text(root)


def each_gpu_once(topology: str) -> str:
    """The text of a topology in which several ranks may share a GPU, with only one <gpu> for each GPU.

    If libnccl read the topology with all of them, it would count them as ranks of the new communicator.
    """
    root = ET.fromstring(topology)
    for pci in root.iter("pci"):
        for gpu in pci.findall("gpu")[1:]:
            pci.remove(gpu)
    return to_text(root)

"""Reads what ``lstopo --of xml`` writes (hwloc 1.x to 3.x), and arranges the devices as NCCL would find them in
sysfs.
"""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tuner.base.errors import BadTopology
from tuner.base.expressions import expression
from tuner.machine.gpus import nccls_family
from tuner.machine.listings.shape import Listing
from tuner.machine.topology.edit_devices import PCIE_SPEEDS
from tuner.machine.topology.xml import Element

# class, device and subsystem, such as "0302 [10de:2330] [10de:16c1] a1 00"
PCI_TYPE = expression(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\] \[([0-9a-f]{4}):([0-9a-f]{4})\].*")
NVIDIA = "10de"
# osdev_type of InfiniBand and RoCE devices, by the version of the format
OPEN_FABRICS = {"1": "3", "2": "3", "3": "32"}
# Bandwidth of one lane in one direction in GB/s, as hwloc counts it (hwloc/pci-common.c): 8 of 10 bits carry data,
# later 128 of 130.
LANE_GBS = {1: 0.25, 2: 0.5, 3: 8 * 128 / 130 / 8, 4: 16 * 128 / 130 / 8, 5: 32 * 128 / 130 / 8, 6: 64 * 242 / 256 / 8}
# Linux's names of processor architectures that NCCL calls otherwise
ARCHITECTURES = {"aarch64": "arm64", "ppc64le": "ppc64"}


def is_it(root: Element) -> bool:
    """Whether hwloc wrote the document."""
    return root.tag == "topology" and any(child.tag == "object" for child in root.children)


def listing(elements: Sequence[Element], where: str) -> Listing:
    """The listing of a document. BadTopology if there is no GPU in it."""
    read = _Document(elements, where)
    root, notes = ET.Element("system", {"version": "1"}), list[str]()
    gpus = sorted(filter(_is_gpu, read.devices), key=_bus_id)
    if not gpus:
        raise BadTopology(
            f"{where}: has no NVIDIA GPU (PCI class 0302 or 0300, vendor 10de): give what lstopo --of xml prints"
        )
    nets = read.adapters(notes)
    for device in read.devices:
        if device in gpus or device.attributes["pci_busid"] in nets:
            below = read.put(root, device)
            if device in gpus:
                ET.SubElement(below, "gpu", {"dev": str(gpus.index(device))})
            else:
                _add_nets(ET.SubElement(below, "nic"), nets[device.attributes["pci_busid"]], read)
    links, to_switches = read.nvlinks([_bus_id(gpu) for gpu in gpus])
    models = dict.fromkeys(f"0x{match[3]}" for gpu in gpus if (match := PCI_TYPE.match(gpu.get("pci_type") or "")))
    return Listing(where, f"lstopo ({read.version})", root, len(gpus), links, to_switches, tuple(models), tuple(notes))


def _bus_id(device: Element) -> str:
    return device.attributes.get("pci_busid", "").lower()


def _is_gpu(device: Element) -> bool:
    match = PCI_TYPE.match(device.get("pci_type") or "")
    return match is not None and match[1].startswith("03") and match[2] == NVIDIA


def _add_nets(nic: ET.Element, names: Sequence[str], read: "_Document") -> None:
    for port, name in enumerate(names, start=1):
        number = read.next_adapter()
        facts = {"name": name, "dev": str(number), "port": str(port), "guid": hex(number + 1)}
        ET.SubElement(nic, "net", facts)


_MASK = expression(r"((0x)?[0-9a-fA-F]{1,16})?(,((0x)?[0-9a-fA-F]{1,16})?)*")


class _Document:
    """The objects of hwloc in a document, and the topology that is made from them."""

    def __init__(self, elements: Sequence[Element], where: str) -> None:
        self._where, self._elements = where, elements
        self.version = f"hwloc {elements[0].get('version') or '1'}"
        self._major = (elements[0].get("version") or "1").partition(".")[0]
        objects = [element for element in elements if element.tag == "object"]
        self.devices = [each for each in objects if each.get("type") == "PCIDev" and each.get("pci_busid")]
        self._numa_nodes = [each for each in objects if each.get("type") in ("NUMANode", "Node")]
        self._objects = {f"{each.get('type')}:{each.get('gp_index')}": each for each in objects}
        self._adapters = 0
        self._places: dict[str, ET.Element] = {}

    def next_adapter(self) -> int:
        """The number of the next adapter. Adapters are numbered in the order of the document, which is the order of bus
        ids."""
        self._adapters += 1
        return self._adapters - 1

    def adapters(self, notes: list[str]) -> Mapping[str, tuple[str, ...]]:
        """The names of InfiniBand and RoCE devices, by bus id.

        If the document names none, each device of the PCI class InfiniBand gets a name: nic0, nic1, ...
        """
        found = {
            device.attributes["pci_busid"]: names
            for device in self.devices
            if (names := tuple(name for child in device.children if (name := self._open_fabrics(child))))
        }
        if found:
            return found
        bare = [device for device in self.devices if (device.get("pci_type") or "").startswith("0207")]
        if bare:
            notes.append("lstopo found no names of adapters: all of class InfiniBand are taken, as nic0 and so on")
        return {device.attributes["pci_busid"]: (f"nic{number}",) for number, device in enumerate(bare)}

    def _open_fabrics(self, child: Element) -> str | None:
        kind = child.get("osdev_type") or ""
        if child.get("type") != "OSDev" or not kind.isdecimal():
            return None
        wanted = int(OPEN_FABRICS.get(self._major, "32"))
        is_one = int(kind) == wanted if self._major in ("1", "2") else bool(int(kind) & wanted)
        return child.get("name") if is_one else None

    def put(self, root: ET.Element, device: Element) -> ET.Element:
        """Adds the <pci> of a device below the bridges that NCCL keeps, and returns it.

        NCCL keeps every second bridge, because a path through a switch passes two of them (ncclTopoGetXmlFromSys,
        src/graph/xml.cc, v2.28.9-1).
        """
        bridges = list(_bridges(device))  # the innermost bridge first
        above = self._cpu(root, device)
        for bridge in reversed(bridges[1::2]):
            above = self._pci(above, bridge)
        return self._pci(above, device)

    def _pci(self, above: ET.Element, device: Element) -> ET.Element:
        busid = _bus_id(device)
        if busid not in self._places:
            facts = {"busid": busid, **_ids(device), **_link(device)}
            self._places[busid] = ET.SubElement(above, "pci", facts)
        return self._places[busid]

    def _cpu(self, root: ET.Element, device: Element) -> ET.Element:
        number, node = self._numa(device)
        if (name := f"cpu:{number}") not in self._places:
            facts = {"numaid": number}
            cpus = node.get("cpuset") if node is not None else None
            if cpus and "f...f" not in cpus:
                if node is not None and not _MASK.fullmatch(cpus):
                    node.fail(f"cpuset={cpus[:40]!r} is no mask of processors")
                facts["affinity"] = ",".join(f"{int(part or '0', 16):08x}" for part in cpus.split(","))
            self._places[name] = ET.SubElement(root, "cpu", facts | self._processor())
        return self._places[name]

    def _numa(self, device: Element) -> tuple[str, Element | None]:
        """The number of a device's NUMA node, and its element. Both come from the nearest object around the device that
        contains exactly one NUMA node; -1 and None if no such object exists."""
        above = device.parent
        while above is not None:
            inside = [child for child in above.children if child in self._numa_nodes]
            nodeset = above.get("nodeset") or ""
            if above in self._numa_nodes:
                return above.get("os_index") or "0", above
            if re.fullmatch(r"0x[0-9a-f]{1,8}", nodeset) and (bits := int(nodeset, 16)).bit_count() == 1:
                number = str(bits.bit_length() - 1)
                return number, next((each for each in self._numa_nodes if each.get("os_index") == number), None)
            if len(inside) == 1 and not nodeset:
                return inside[0].get("os_index") or "0", inside[0]
            above = above.parent
        return ("0", self._numa_nodes[0]) if len(self._numa_nodes) == 1 else ("-1", None)

    def _processor(self) -> dict[str, str]:
        """The attributes of the processors in NCCL's numbering; empty if the document does not describe them."""
        infos: dict[str, str] = {}
        for element in self._elements:
            if element.tag == "info" and (name := element.get("name")):
                infos.setdefault(name, element.get("value") or "")
        architecture = ARCHITECTURES.get(infos.get("Architecture", ""), infos.get("Architecture", ""))
        family, model = infos.get("CPUFamilyNumber", ""), infos.get("CPUModelNumber", "")
        if architecture in ARCHITECTURES.values():
            return {"arch": architecture}
        if not (family.isdecimal() and model.isdecimal() and infos.get("CPUVendor")):
            return {}
        vendor = infos["CPUVendor"]
        return {"arch": "x86_64", "vendor": vendor, "familyid": str(nccls_family(int(family))), "modelid": model}

    def nvlinks(self, gpus: Sequence[str]) -> tuple[Mapping[tuple[int, int], int] | None, Mapping[int, int]]:
        """The links between GPUs and to NVSwitches, from the matrix NVLinkBandwidth; None without that matrix."""
        matrix = next((each for each in self._elements if each.get("name") == "NVLinkBandwidth"), None)
        if matrix is None:
            return None, {}
        names = " ".join(self._texts(matrix, "indexes")).split()
        values = [int(each) for each in " ".join(self._texts(matrix, "u64values")).split() if each.isdecimal()]
        if len(values) != len(names) ** 2:
            matrix.fail(f"has {len(values)} values of {len(names)} devices; valid: {len(names) ** 2}")
        per_link = next((mbs for mbs in (25000, 20000) if all(value % mbs == 0 for value in values)), 25000)
        of = [self._gpu_number(name, gpus) for name in names]
        links = {(a, b): 0 for a in range(len(gpus)) for b in range(a + 1, len(gpus))}
        switches: Counter[int] = Counter()
        for at, value in enumerate(values):
            a, b = of[at // len(names)], of[at % len(names)]
            if a is not None and b is not None and a < b:
                links[a, b] = value // per_link
            elif a is not None and b is None and value and names[at % len(names)].startswith("PCIDev"):
                switches[a] += value // per_link
        # The matrix does not show NVSwitches that the host does not see; it then contains only zeros.
        return (links, dict(switches)) if any(links.values()) or switches else (None, {})

    def _texts(self, matrix: Element, tag: str) -> Iterator[str]:
        return (child.text for child in matrix.children if child.tag == tag)

    def _gpu_number(self, name: str, gpus: Sequence[str]) -> int | None:
        """The number of the GPU that has a device of the operating system such as nvml0; None if it is not one of
        ``gpus``."""
        device = self._objects.get(name)
        slot = device if device is None or device.get("pci_busid") else device.parent
        busid = "" if slot is None else _bus_id(slot)
        return gpus.index(busid) if busid in gpus else None


def _bridges(device: Element) -> Iterator[Element]:
    """The PCI-to-PCI bridges around a device, innermost first; host bridges do not count."""
    above = device.parent
    while above is not None and above.get("type") == "Bridge":
        if above.get("pci_busid"):
            yield above
        above = above.parent


def _ids(device: Element) -> dict[str, str]:
    match = PCI_TYPE.match(device.get("pci_type") or "")
    if match is None:
        return {"class": "0x060400"}
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    ids = {name: f"0x{value}" for name, value in zip(names, match.groups()[1:], strict=True)}
    return {"class": f"0x{match[1]}00", **ids}


def _link(device: Element) -> dict[str, str]:
    """The speed and width of a link: the widest link that has this bandwidth, because NCCL only sees the product. Empty
    if the bandwidth is 0."""
    try:
        gbs = float(device.get("pci_link_speed") or 0)
    except ValueError:
        device.fail(f"pci_link_speed={device.get('pci_link_speed')!r} is not a number")
    for lanes in (16, 8, 4, 2, 1):
        for generation, lane_gbs in LANE_GBS.items():
            if gbs > 0 and abs(gbs - lanes * lane_gbs) < 0.01 * gbs:
                return {"link_speed": PCIE_SPEEDS[generation], "link_width": str(lanes)}
    return {}

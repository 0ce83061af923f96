"""Every machine of the catalogue is found again from what nvidia-smi and lstopo would print of it."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tuner.machine import catalogue, gpus
from tuner.machine.gpus import GpuModel
from tuner.machine.listings import Listing, ListingAdditions, completed, read
from tuner.machine.listings.complete import ranked
from tuner.machine.listings.shape import WORDS, nearness, of_listing, of_topology, path_out
from tuner.scenario import Scenario

WORD_OF_LINKS = "NV"


def nvidia_smi(topology: str, names: bool = True) -> str:
    """``nvidia-smi topo -m``: all GPUs, all adapters, a legend with their names."""
    root, shape = ET.fromstring(topology), of_topology(topology)
    above = {child: parent for parent in root.iter() for child in parent}
    by_dev = {int(gpu.get("dev", "0"), 0): gpu for gpu in root.iter("gpu")}
    nets = sorted({net.get("name"): net for net in root.iter("net")}.values(), key=lambda net: int(net.get("dev", "0")))
    devices = [by_dev[dev] for dev in sorted(by_dev)] + nets
    titles = [f"GPU{n}" for n in range(len(by_dev))] + [f"NIC{n}" for n in range(len(nets))]
    paths = [path_out(device, above) for device in devices]
    numa = {number: at for at, gpus in enumerate(shape.sockets) for number in gpus}
    lines = ["\t" + "\t".join(titles) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for a, title in enumerate(titles):
        cells = []
        for b in range(len(titles)):
            links = (shape.nvlinks or {}).get((min(a, b), max(a, b)), 0)
            cells.append(" X " if a == b else f"NV{links}" if links else WORDS[nearness(paths[a], paths[b])])
        affinity = f"\t{8 * numa[a]}-{8 * numa[a] + 7}\t{numa[a]}\t\tN/A" if title.startswith("GPU") else "\t\t\t\t"
        lines.append(f"{title}\t" + "\t".join(cells) + affinity)
    legend = ["", "NIC Legend:", "", *(f"  NIC{n}: {net.get('name')}" for n, net in enumerate(nets))]
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", *(legend if names and nets else [])]) + "\n"


def lstopo(topology: str) -> str:
    """``lstopo --of xml`` of hwloc 2: a switch is two bridges, and a device is below one more, or a root port."""
    root, numbers = ET.fromstring(topology), count(1)
    document = ET.Element("topology", {"version": "2.0"})
    machine = ET.SubElement(document, "object", {"type": "Machine", "os_index": "0", "nodeset": "0x000000ff"})
    for cpu in root.findall("cpu"):
        number = max(0, int(cpu.get("numaid", "0")))  # NCCL's -1 is a system that shows none; hwloc then has one
        nodeset = f"0x{1 << number:08x}"
        package = ET.SubElement(machine, "object", {"type": "Package", "nodeset": nodeset})
        if cpu.get("arch") == "x86_64":
            family = int(cpu.get("familyid", "0"))
            linux = family if family <= 15 else 15 + ((family - 15) >> 4)
            facts = {"CPUVendor": cpu.get("vendor", ""), "CPUFamilyNumber": str(linux)}
            facts |= {"CPUModelNumber": cpu.get("modelid", ""), "Architecture": "x86_64"}
        else:
            facts = {"Architecture": "aarch64"}
        for name, value in facts.items():
            ET.SubElement(package, "info", {"name": name, "value": value})
        ET.SubElement(package, "object", {"type": "NUMANode", "os_index": str(number), "nodeset": nodeset})
        for pci in cpu.findall("pci"):
            host = ET.SubElement(
                package, "object", {"type": "Bridge", "bridge_type": "0-1", "bridge_pci": "0000:[0-ff]"}
            )
            _put(host, pci, numbers)
    _add_links(document, topology, [pci for pci in root.iter("pci") if pci.find("gpu") is not None])
    text = ET.tostring(document, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n{text}\n'


def _add_links(document: ET.Element, topology: str, gpus: list[ET.Element]) -> None:
    """The matrix of NVLinks between GPUs; NVSwitches are not seen."""
    gpus.sort(key=lambda pci: pci.get("busid", ""))
    devices = {pci.get("pci_busid"): pci for pci in document.iter("object")}
    for number, pci in enumerate(gpus):
        facts = {"type": "OSDev", "name": f"nvml{number}", "osdev_type": "1", "gp_index": str(9000 + number)}
        ET.SubElement(devices[pci.get("busid")], "object", facts)
    links = {
        (pci.get("busid", ""), link.get("target", "")): int(link.get("count", "0"))
        for pci in gpus
        for link in pci.findall("gpu/nvlink")
    }
    matrix = ET.SubElement(document, "distances2hetero", {"nbobjs": str(len(gpus)), "name": "NVLinkBandwidth"})
    ET.SubElement(matrix, "indexes").text = " ".join(f"OSDev:{9000 + number}" for number in range(len(gpus)))
    for one in gpus:
        values = (25000 * links.get((one.get("busid", ""), other.get("busid", "")), 0) for other in gpus)
        ET.SubElement(matrix, "u64values").text = " ".join(map(str, values)) + " "


def _put(above: ET.Element, pci: ET.Element, numbers: "count[int]") -> None:
    """Below a bridge that NCCL skips: the root port, or the downstream port of the switch above."""
    port = {"type": "Bridge", "bridge_type": "1-1", "pci_busid": f"00ee:{next(numbers):02x}:00.0"}
    below = ET.SubElement(above, "object", port)
    facts = {"pci_busid": pci.get("busid", ""), "pci_link_speed": f"{_gbs(pci):.6f}", "pci_type": _pci_type(pci)}
    switches = pci.findall("pci")
    kind = {"type": "Bridge", "bridge_type": "1-1"} if switches else {"type": "PCIDev"}
    device = ET.SubElement(below, "object", kind | facts)
    for child in switches:
        _put(device, child, numbers)
    for net in pci.findall("nic/net"):
        ET.SubElement(device, "object", {"type": "OSDev", "name": net.get("name", ""), "osdev_type": "3"})


def _pci_type(pci: ET.Element) -> str:
    ids = [pci.get(name, "0x0000")[2:] for name in ("vendor", "device", "subsystem_vendor", "subsystem_device")]
    return f"{pci.get('class', '0x0000')[2:6]} [{ids[0]}:{ids[1]}] [{ids[2]}:{ids[3]}] a1 00"


def _gbs(pci: ET.Element) -> float:
    rates = {"2.5": 0.25, "5": 0.5, "8": 0.984615, "16": 1.969231, "32": 3.938462, "64": 7.5625}
    speed = pci.get("link_speed", "").split(" ")[0].removesuffix(".0")
    return rates[speed] * int(pci.get("link_width", "16"))


HOSTS = [name for name in catalogue.names() if catalogue.load(name).trays is None]
NCCL = "2.28.9"
SEARCHED = ["dgx-h100", "hgx-h200", "dgx-a100", "azure-nd-h100-v5", "aws-p4d", "a100-4x-2nic"]


def model_of(machine: str) -> GpuModel | None:
    devices = of_topology(catalogue.load(machine).topology_xml).devices
    found = [gpus.load(name) for name in gpus.names() if set(gpus.load(name).pci_devices) & set(devices)]
    return found[0] if found else None


def listed(tmp_path: Path, text: str) -> Listing:
    file = tmp_path / "listing"
    file.write_text(text)
    found = read(file)
    assert found is not None
    return found


@pytest.mark.parametrize("machine", HOSTS)
def test_nvidia_smi_shows_the_shape_of_a_machine(machine: str, tmp_path: Path) -> None:
    xml = catalogue.load(machine).topology_xml
    shown, own = of_listing(listed(tmp_path, nvidia_smi(xml)), None), of_topology(xml)
    assert (sorted(shown.sockets), shown.nvlinks) == (sorted(own.sockets), own.nvlinks)
    assert (shown.near, shown.adapters) == (own.near, own.adapters)


@pytest.mark.parametrize("machine", HOSTS)
def test_lstopo_shows_the_shape_of_a_machine(machine: str, tmp_path: Path) -> None:
    xml = catalogue.load(machine).topology_xml
    shown, own = of_listing(listed(tmp_path, lstopo(xml)), None), of_topology(xml)
    assert (sorted(shown.sockets), shown.near) == (sorted(own.sockets), own.near)
    assert (set(shown.adapters), shown.devices) == (set(own.adapters), own.devices)
    assert shown.cpu is not None
    assert own.cpu is not None
    assert (shown.cpu.arch, shown.cpu.vendor, shown.cpu.model) == (own.cpu.arch, own.cpu.vendor, own.cpu.model)


@pytest.mark.parametrize("kind", [nvidia_smi, lstopo])
@pytest.mark.parametrize("machine", HOSTS)
def test_the_nearest_machine_is_that_machine(machine: str, kind: object, tmp_path: Path) -> None:
    xml = catalogue.load(machine).topology_xml
    node = of_listing(listed(tmp_path, nvidia_smi(xml) if kind is nvidia_smi else lstopo(xml)), model_of(machine))
    every = ranked(node)
    own = next(near for near in every if near.machine == machine)
    assert own.differs == ()
    assert own.rank == every[0].rank, every[0].in_words
    assert "adapters' speed" in own.unknown or not node.adapters


@pytest.mark.parametrize("kind", [nvidia_smi, lstopo])
@pytest.mark.parametrize("machine", SEARCHED)
def test_a_listing_completed_has_the_graphs_of_the_machine(machine: str, kind: object, tmp_path: Path) -> None:
    known, model = catalogue.load(machine), model_of(machine)
    assert model is not None
    gbps = known.topology.nets[0].speed_mbps / 1000
    cpu = known.topology.cpu
    words = f"{cpu.vendor}:{cpu.family}:{cpu.model}"
    latency = known.topology.nets[0].latency_us
    text = nvidia_smi(known.topology_xml) if kind is nvidia_smi else lstopo(known.topology_xml)
    file = tmp_path / "listing"
    file.write_text(text)
    topology, _ = completed(file, ListingAdditions(model.name, gbps, latency, words if kind is nvidia_smi else None))
    out = tmp_path / "node.xml"
    out.write_text(topology)
    scenarios = Scenario(NCCL, 2, topology=out), Scenario(NCCL, 2, machine=machine)
    ours, own = (scenario.resolve().own.for_emulator(several=True) for scenario in scenarios)
    kept = {name: graph for name, graph in own.graphs.items() if name in ours.graphs}
    assert ours == replace(own, graphs=kept)
    assert {"ring", "tree"} <= kept.keys()

"""Changes of a node's NVLinks and PCIe links.

What the attributes mean is ncclTopoAddPci's and ncclTopoAddNvLinks' (src/graph/topo.cc, v2.28.9-1).
"""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from tuner.base.errors import BadInput
from tuner.machine.gpus import most_nvlinks
from tuner.machine.topology import edit_devices as devices
from tuner.machine.topology.records import NvLink, Target

# By generation. Source: kvDictPciGen, where any other text counts as generation 3.
PCIE_SPEEDS = {
    number: f"{speed} GT/s PCIe" for number, speed in enumerate(("2.5", "5.0", "8.0", "16.0", "32.0", "64.0"), 1)
}
PCIE_LANES = (1, 2, 4, 8, 16)


def pcie(root: ET.Element, value: str) -> None:
    """Generation, and lanes if given, of the PCIe links. BadInput for what no link is, and for no such device."""
    change = f"pcie={value}"
    for link, name in devices.assigned(change):
        match = re.fullmatch(r"([1-6])(?:x(\d+))?", link)
        if match is None or (match[2] is not None and int(match[2]) not in PCIE_LANES):
            raise BadInput(
                f"{change}: valid: a generation from 1 to 6, and lanes if they change too, as in 5, 4x8 or 4x8@gpu:0"
            )
        for pci in root.iter("pci") if name is None else [devices.slot(root, name, change)]:
            pci.set("link_speed", PCIE_SPEEDS[int(match[1])])
            if match[2] is not None:
                pci.set("link_width", match[2])


def nvlinks(root: ET.Element, value: str) -> None:
    """The NVLinks of GPUs: dealt out over the switches, else each neighbour keeps its part; 0 takes them away.

    Of one GPU (N@gpu:0) both ends change, and between two GPUs (N@gpu:0-gpu:1) no others. BadInput for more than
    such GPUs have, and for GPUs that have none.
    """
    change = f"nvlinks={value}"
    if not any(gpu.find("nvlink") is not None for gpu in root.iter("gpu")):
        raise BadInput(f"{change}: no GPU of this node has NVLinks; valid: nodes with NVLinks")
    for count, names in devices.assigned(change):
        wanted = _count(root, count, change)
        if names is None:
            for pci in _linked(root):
                _set_all(_gpu(pci), wanted, change)
        elif "-" in names:
            here, _, there = names.partition("-")
            _set_between(devices.gpu_at(root, here, change), devices.gpu_at(root, there, change), wanted, change)
        else:
            _set_of_one(root, devices.gpu_at(root, names, change), wanted, change)
    for pci in _linked(root):
        gpu = _gpu(pci)
        have, most = sum(_links(gpu).values()), most_nvlinks(devices.number(gpu, "sm"))
        if have > most:
            raise BadInput(f"{change}: gpu:{devices.number(gpu, 'dev')} would have {have} links; valid: up to {most}")


def _count(root: ET.Element, text: str, change: str) -> int:
    """A number of links that all of the node's GPUs can have."""
    most = min(most_nvlinks(devices.number(gpu, "sm")) for gpu in root.iter("gpu"))
    if not text.isdecimal() or int(text) > most:
        raise BadInput(f"{change}: valid: 0 to {most} per GPU, as many as these GPUs have at most")
    return int(text)


def _linked(root: ET.Element) -> list[ET.Element]:
    return [pci for pci in root.iter("pci") if pci.find("gpu/nvlink") is not None]


def _gpu(pci: ET.Element) -> ET.Element:
    gpu = pci.find("gpu")
    assert gpu is not None
    return gpu


def _links(gpu: ET.Element) -> dict[str, int]:
    """Links by the bus id at their end."""
    return {link.get("target", "").lower(): devices.number(link, "count") for link in gpu.findall("nvlink")}


def _set_all(gpu: ET.Element, count: int, change: str) -> None:
    links = gpu.findall("nvlink")
    for link, links_now in zip(links, _dealt(links, count, change), strict=True):
        _set(gpu, link, links_now)


def _set_of_one(root: ET.Element, pci: ET.Element, count: int, change: str) -> None:
    gpu, busid = _gpu(pci), pci.get("busid", "").lower()
    if count and gpu.find("nvlink") is None:
        raise BadInput(f"{change}: gpu:{devices.number(gpu, 'dev')} has no NVLinks; valid: GPUs with NVLinks")
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
                f"{change}: no NVLink leads from the one to the other; valid: between GPUs that are linked, as "
                f"gpu:{devices.number(gpu, 'dev')} is with {', '.join(linked) or 'none'}"
            )
        _set(gpu, link, count)


def _set(gpu: ET.Element, link: ET.Element, count: int) -> None:
    if count:
        link.set("count", str(count))
    else:
        gpu.remove(link)


def _dealt(links: Sequence[ET.Element], count: int, change: str) -> list[int]:
    kinds = {NvLink(link.get("target", ""), 1, link.get("tclass", "")).kind for link in links}
    if kinds <= {Target.SWITCH}:  # which NCCL takes for one
        return [(count + at) // len(links) for at in range(len(links))]
    before = [devices.number(link, "count") for link in links]
    if any(count * one % sum(before) for one in before):
        raise BadInput(
            f"{change}: a GPU's {sum(before)} links go to neighbours as {'+'.join(map(str, before))}, and "
            f"{count} cannot be divided like that; valid: a multiple of {sum(before) // math.gcd(*before)}"
        )
    return [count * one // sum(before) for one in before]

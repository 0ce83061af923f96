"""A node with other hardware: its topology XML changed, for libnccl to search again.

What the attributes mean is ncclTopoAddNet's, ncclTopoAddPci's and ncclTopoAddNvLinks' (src/graph/topo.cc, v2.28.9-1).
"""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from tuner.base.errors import BadInput, one_of
from tuner.machine.topology.reader import read
from tuner.machine.topology.records import NvLink, Target
from tuner.machine.topology.xml import to_text

MOST_LINKS = 1024
MOST_GBPS = 1_000_000
# By generation. Source: kvDictPciGen, where any other text counts as generation 3.
PCIE_SPEEDS = {
    number: f"{speed} GT/s PCIe" for number, speed in enumerate(("2.5", "5.0", "8.0", "16.0", "32.0", "64.0"), 1)
}
PCIE_LANES = (1, 2, 4, 8, 16)


def edited(topology: str, changes: Mapping[str, str]) -> str:
    """The text of a topology after ``changes``, whose keys are those of :data:`EDITS`.

    Errors: BadInput for a value that this node cannot have.
    """
    return _edited(topology, tuple(changes.items()))


@cache
def _edited(topology: str, changes: tuple[tuple[str, str], ...]) -> str:
    read(topology)  # which refuses what is no topology
    root = ET.fromstring(topology)
    for key, value in changes:
        EDITS[key](root, value)
    return to_text(root)


def each_gpu_once(topology: str) -> str:
    """The text of a topology whose GPUs ranks shared as libnccl has to be given it: a <gpu> for every rank in it is one
    that this rank had, and NCCL would take them for ranks of the new communicator as well."""
    root = ET.fromstring(topology)
    for pci in root.iter("pci"):
        for gpu in pci.findall("gpu")[1:]:
            pci.remove(gpu)
    return to_text(root)


def _nic_gbps(root: ET.Element, value: str) -> None:
    """The speed of every adapter, 1e9 bits per second."""
    if not re.fullmatch(r"\d+(\.\d{1,3})?", value) or not 0.001 <= float(value) <= MOST_GBPS:
        raise BadInput(f"nic-gbps={value}: valid: 0.001 to {MOST_GBPS}, 1e9 bits per second, such as 400")
    for net in _nets(root, f"nic-gbps={value}"):
        net.set("speed", str(round(float(value) * 1000)))


def _nics(root: ET.Element, value: str) -> None:
    """The number of adapters: those kept lie evenly among all of them. NCCL drops what holds none any more."""
    nets = _nets(root, f"nics={value}")
    devs = sorted({int(net.get("dev", ""), 0) for net in nets})  # as a dump may have one adapter several times
    count = _whole("nics", value, 1, len(devs), "of this node's")
    kept = [devs[at * len(devs) // count] for at in range(count)]
    for nic in root.iter("nic"):
        for net in nic.findall("net"):
            dev = int(net.get("dev", ""), 0)
            if dev in kept:
                net.set("dev", str(kept.index(dev)))
            else:
                nic.remove(net)


def _nvlinks(root: ET.Element, value: str) -> None:
    """The NVLinks of every GPU: dealt out over its switches, else each neighbour keeps its part; 0 takes them away."""
    count = _whole("nvlinks", value, 0, MOST_LINKS, "per GPU")
    linked = [gpu for gpu in root.iter("gpu") if gpu.find("nvlink") is not None]
    if not linked:
        raise BadInput(f"nvlinks={value}: no GPU of this node has NVLinks; {one_of(_without('nvlinks'))}")
    for gpu in linked:
        links = gpu.findall("nvlink")
        for link, links_now in zip(links, _dealt(links, count), strict=True):
            if links_now:
                link.set("count", str(links_now))
            else:
                gpu.remove(link)


def _dealt(links: Sequence[ET.Element], count: int) -> list[int]:
    kinds = {NvLink(link.get("target", ""), 1, link.get("tclass", "")).kind for link in links}
    if kinds == {Target.SWITCH}:  # which NCCL takes for one
        return [(count + at) // len(links) for at in range(len(links))]
    before = [int(link.get("count", ""), 0) for link in links]
    if any(count * one % sum(before) for one in before):
        raise BadInput(
            f"nvlinks={count}: a GPU's {sum(before)} links go to neighbours as {'+'.join(map(str, before))}, and "
            f"{count} cannot be divided like that; valid: a multiple of {sum(before) // math.gcd(*before)}"
        )
    return [count * one // sum(before) for one in before]


def _pcie(root: ET.Element, value: str) -> None:
    """Generation, and lanes if given, of every PCIe link of the node."""
    match = re.fullmatch(r"([1-6])(?:x(\d+))?", value)
    if match is None or (match[2] is not None and int(match[2]) not in PCIE_LANES):
        raise BadInput(f"pcie={value}: valid: a generation from 1 to 6, and lanes if they change too, as in 5 or 4x8")
    for pci in root.iter("pci"):
        pci.set("link_speed", PCIE_SPEEDS[int(match[1])])
        if match[2] is not None:
            pci.set("link_width", match[2])


def _nets(root: ET.Element, change: str) -> list[ET.Element]:
    if nets := list(root.iter("net")):
        return nets
    raise BadInput(f"{change}: this node has no adapters; {one_of(_without('nic'))}")


def _whole(key: str, value: str, low: int, high: int, what: str) -> int:
    if not value.isdecimal() or not low <= int(value) <= high:
        raise BadInput(f"{key}={value}: valid: {low} to {high} {what}")
    return int(value)


def _without(prefix: str) -> list[str]:
    return [key for key in EDITS if not key.startswith(prefix)]


EDITS: dict[str, Callable[[ET.Element, str], None]] = {
    "nic-gbps": _nic_gbps,
    "nics": _nics,
    "nvlinks": _nvlinks,
    "pcie": _pcie,
}

"""The shape of a node, which says where its GPUs and adapters are relative to each other, so that nodes can be
compared."""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations

from tuner.base.dataclass import dataclass
from tuner.machine.gpus import GpuModel
from tuner.machine.topology import Cpu, Target, Topology, read


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing that ``tool`` printed, in ``file``.

    ``root`` is a <system> with <cpu>, <pci>, <gpu dev> and <net name dev>, without attributes that the listing lacks.
    ``nvlinks`` counts the links between two GPUs, by the numbers of the GPUs, the lower one first; None if the listing
    does not show links. ``to_switches`` counts the links of a GPU to NVSwitches, if the listing shows these. ``models``
    are the distinct PCI device ids of the GPUs.
    """

    file: str
    tool: str
    root: ET.Element
    gpus: int
    nvlinks: Mapping[tuple[int, int], int] | None
    to_switches: Mapping[int, int]
    models: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the adapters, in the order of their numbers."""
        return tuple(
            net.get("name", "") for net in sorted(self.root.iter("net"), key=lambda net: int(net.get("dev", 0)))
        )

    def says_cpu(self) -> bool:
        """Whether the listing describes the processors."""
        return all(cpu.get("arch") is not None for cpu in self.root.iter("cpu"))


PIX, PXB, PHB, SYS = range(4)  # the words of nvidia-smi; NODE is the same as PHB to NCCL
WORDS = ("PIX", "PXB", "PHB", "SYS")


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The shape of a node. ``sockets``: the GPUs of each NUMA node. ``nvlinks``: the number of links between two GPUs,
    also through switches, by the numbers of the GPUs.

    ``near`` has, for each GPU, the distance of its nearest adapters and the number of adapters at this distance. A
    field is None if the fact is not known.
    """

    sockets: tuple[tuple[int, ...], ...]
    nvlinks: Mapping[tuple[int, int], int] | None
    near: tuple[tuple[int, int], ...]
    adapters: tuple[str, ...]
    devices: tuple[str, ...]  # PCI device ids that occur among the GPUs
    comp_cap: int | None
    cpu: Cpu | None
    gbps: tuple[float, ...] | None = None  # speeds that occur among the adapters

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return sum(map(len, self.sockets))


def of_listing(listing: Listing, model: GpuModel | None) -> NodeShape:
    """The shape of the node in a listing; ``model`` is the GPU model that the user names."""
    switched = {
        (a, b): min(listing.to_switches.get(a, 0), listing.to_switches.get(b, 0))
        for a, b in combinations(range(listing.gpus), 2)
    }
    links = None if listing.nvlinks is None else {pair: listing.nvlinks[pair] or switched[pair] for pair in switched}
    devices = listing.models or (() if model is None else model.pci_devices)
    comp_cap = None if model is None else model.compute_capability
    return NodeShape(*_places(listing.root, links), listing.adapters, devices, comp_cap, _cpu(listing.root))


@lru_cache(maxsize=128)
def of_topology(text: str) -> NodeShape:
    """The shape of the node in a topology of NCCL's format. BadTopology if the text is not a topology."""
    topology, root = read(text), ET.fromstring(text)
    devices = dict.fromkeys(pci.get("device", "") for pci in root.iter("pci") if pci.find("gpu") is not None)
    return NodeShape(
        *_places(root, _links(topology)),
        tuple(net.name for net in topology.nets),
        tuple(filter(None, devices)),
        topology.gpus[0].sm,
        topology.cpu,
        tuple(sorted({net.speed_mbps / 1000 for net in topology.nets})),
    )


def _links(topology: Topology) -> dict[tuple[int, int], int]:
    """The NVLinks between GPUs as nvidia-smi shows them: through switches, the number that both GPUs have."""
    to_switches = [gpu.count_nvlinks(Target.SWITCH) for gpu in topology.gpus]
    numbers = {gpu.busid: number for number, gpu in enumerate(topology.gpus)}
    direct = Counter[tuple[int, int]]()
    for own, gpu in enumerate(topology.gpus):
        for link in gpu.nvlinks:
            if own < (other := numbers.get(link.target, own)):
                direct[own, other] += link.count
    pairs = combinations(range(len(topology.gpus)), 2)
    return {(a, b): direct.get((a, b)) or min(to_switches[a], to_switches[b]) for a, b in pairs}


Placed = tuple[tuple[tuple[int, ...], ...], Mapping[tuple[int, int], int] | None, tuple[tuple[int, int], ...]]


def _places(root: ET.Element, links: Mapping[tuple[int, int], int] | None) -> Placed:
    """The sockets, the links, and the nearest adapters of each GPU."""
    above = {child: parent for parent in root.iter() for child in parent}
    by_dev = {int(gpu.get("dev", "0"), 0): gpu for gpu in root.iter("gpu")}
    gpus = [by_dev[dev] for dev in sorted(by_dev)]
    nets = {net.get("name"): net for net in root.iter("net")}.values()
    paths = {element: path_out(element, above) for element in (*gpus, *nets)}
    of_cpu: dict[ET.Element, list[int]] = {}
    for number, gpu in enumerate(gpus):
        of_cpu.setdefault(paths[gpu][-1], []).append(number)
    near = []
    for gpu in gpus:
        levels = [nearness(paths[gpu], paths[net]) for net in nets]
        near.append((min(levels, default=SYS), levels.count(min(levels, default=SYS))))
    return tuple(map(tuple, of_cpu.values())), links, tuple(near)


def path_out(element: ET.Element, above: Mapping[ET.Element, ET.Element]) -> list[ET.Element]:
    """The elements around a GPU or adapter, from the inside: its own <pci>, every <pci> above that, and its <cpu>."""
    path = []
    while element.tag != "system":
        element = above[element]
        if element.tag in ("pci", "cpu"):
            path.append(element)
    return path


def nearness(one: list[ET.Element], other: list[ET.Element]) -> int:
    """The distance of two devices, which follows from the elements that contain both."""
    if one[-1] is not other[-1]:
        return SYS
    common = [element for element in one if any(element is each for each in other)]
    if common[0].tag == "cpu":
        return PHB
    # Number of PCI devices on the way, with both ends, without what contains both
    between = len(one) + len(other) - 2 * len(common)
    return PIX if between <= 2 else PXB


def _cpu(root: ET.Element) -> Cpu | None:
    """The processor in a listing; all CPUs of a listing are the same. None if the listing does not describe it."""
    found = next((cpu for cpu in root.iter("cpu") if cpu.get("arch") is not None), None)
    if found is None:
        return None
    family, model = (None if (text := found.get(name)) is None else int(text) for name in ("familyid", "modelid"))
    return Cpu(0, found.get("arch", ""), found.get("vendor"), family, model)

"""Turns a listing into a topology. The GPU model and the adapters supply what the listing lacks; errors name the facts
that are still missing.

The module also finds the machines of the catalogue that are most similar to the node in a listing or a topology.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.spelling import option
from tuner.machine import catalogue, gpus, skeleton
from tuner.machine.adapters import ComparedFact, Nearness, nearness
from tuner.machine.gpus import HIDDEN_NVSWITCH, GpuModel, most_nvlinks
from tuner.machine.listings.read import read
from tuner.machine.listings.shape import PXB, SYS, WORDS, Listing, NodeShape, of_topology
from tuner.machine.topology import Cpu
from tuner.machine.topology.edit import change
from tuner.machine.topology.edit_devices import PCIE_SPEEDS
from tuner.machine.topology.xml import to_text

LANES = "16"  # lanes of a GPU's PCIe link, and of the links on the way to it


@dataclass(frozen=True, slots=True)
class ListingAdditions:
    """The facts that a user adds to a listing: about GPUs, adapters, CPUs and PCIe links.

    ``cpu`` and ``pcie`` have the form of the changes of a topology with these names.
    """

    gpu: str | None = None
    net_gbps: float | None = None
    net_latency_us: float | None = None
    cpu: str | None = None
    pcie: str | None = None


@cache
def completed(file: Path, given: ListingAdditions) -> tuple[str, tuple[str, ...]]:
    """A topology in NCCL's format, made from a listing or a skeleton; and notes on what was assumed.

    A skeleton is a topology file that only lacks facts about GPUs and adapters.

    BadInput, in one line, names everything that is missing. BadTopology if the file is invalid.
    """
    listing = read(file)
    if listing is None:
        return _of_skeleton(file, given), ()
    if missing := _missing(listing, given):
        raise BadInput(f"{file}: {listing.tool} does not say {'; '.join(missing)}")
    assert given.gpu is not None
    model, notes = gpus.load(given.gpu), list(listing.notes)
    root = deepcopy(listing.root)
    if given.cpu is not None:
        change(root, "cpu", given.cpu)
    _add_links(root, listing, model, notes)
    if given.pcie is None:
        _add_speeds(root, listing, model, notes)
    else:
        change(root, "pcie", given.pcie if "x" in given.pcie else f"{given.pcie}x{LANES}")
    speed = given.net_gbps if listing.adapters else None
    latency_us = given.net_latency_us if speed else None
    return skeleton.completed(to_text(root), model.name, speed, latency_us, str(file)), tuple(notes)


def _of_skeleton(file: Path, given: ListingAdditions) -> str:
    if given.gpu is None:
        raise BadInput(f"say what the GPUs of {file} are: {option('gpu')} MODEL; valid: {', '.join(gpus.names())}")
    if given.cpu is not None or given.pcie is not None:
        raise BadInput(
            f"{option('cpu')} and {option('pcie')} complete what nvidia-smi topo -m or lstopo --of xml printed, which "
            f"{file} is not: give such a file, or remove them"
        )
    return skeleton.completed(file, given.gpu, given.net_gbps, given.net_latency_us)


def _missing(listing: Listing, given: ListingAdditions) -> list[str]:
    """Texts about the missing facts, each with the option that supplies it."""
    wanted = []
    if given.gpu is None:
        models = list(dict.fromkeys(name for device in listing.models for name in gpus.of_device(device)))
        wanted.append(f"what its GPUs are: {option('gpu')} MODEL, one of {', '.join(models or gpus.names())}")
    if given.net_gbps is None and listing.adapters:
        names = listing.adapters
        wanted.append(
            f"how fast its {len(names)} adapters are ({names[0]} first): {option('net_gbps')} 400, 1e9 bits per second"
        )
    if given.cpu is None and not listing.says_cpu():
        wanted.append(
            f"what its CPUs are: {option('cpu')} GenuineIntel:6:143, AuthenticAMD:143:49 (as NCCL counts them) or arm64"
        )
    return wanted


def _add_links(root: ET.Element, listing: Listing, model: GpuModel, notes: list[str]) -> None:
    """Adds the NVLinks that the listing shows, or those of the model if it shows no NVLinks at all."""
    if listing.nvlinks is None:
        if model.nvlinks:
            notes.append(f"NVLinks are those of {model.name}: {listing.tool} was built without NVML, or shows none")
        return
    shown = any(listing.nvlinks.values()) or any(listing.to_switches.values())
    if not shown and model.nvlinks and listing.gpus > 1:
        without = [name for name in gpus.names() if _alike(gpus.load(name), model) and not gpus.load(name).nvlinks]
        raise BadInput(
            f"{listing.file}: {listing.tool} shows no NVLinks, and {model.name} has {model.nvlinks}; valid where they "
            f"are down or missing ('topo -mp' hides them): {' or '.join(without) or 'a model without NVLinks'}"
        )
    busids = {int(gpu.get("dev", "0")): pci for pci in root.iter("pci") for gpu in pci.findall("gpu")}
    for dev, pci in busids.items():
        to_gpus = {
            (b if a == dev else a): count for (a, b), count in listing.nvlinks.items() if dev in (a, b) and count
        }
        switched = listing.to_switches.get(dev) or _switched(to_gpus, listing, model)
        gpu = pci.find("gpu")
        assert gpu is not None
        if switched:
            ET.SubElement(gpu, "nvlink", {"target": HIDDEN_NVSWITCH, "count": str(switched), "tclass": "0x068000"})
            continue
        for other, count in sorted(to_gpus.items()):
            target = {"target": busids[other].get("busid", ""), "count": str(count), "tclass": "0x030200"}
            ET.SubElement(gpu, "nvlink", target)


def _alike(one: GpuModel, other: GpuModel) -> bool:
    return one.compute_capability == other.compute_capability


def _switched(to_gpus: Mapping[int, int], listing: Listing, model: GpuModel) -> int | None:
    """The number of NVLinks from a GPU to NVSwitches; None if they do not lead to switches. ``to_gpus``: the links that
    nvidia-smi shows to each other GPU; through switches these are all that both have."""
    most, every = max(to_gpus.values(), default=0), sum(to_gpus.values())
    whole = model.lead_to == "nvswitch" and most == model.nvlinks and len(to_gpus) == listing.gpus - 1
    return most if whole or every > most_nvlinks(model.compute_capability) else None


def _add_speeds(root: ET.Element, listing: Listing, model: GpuModel, notes: list[str]) -> None:
    """Gives PCIe links without a speed the model's speed, and also slower links of GPUs, which were slow because they
    were idle."""
    generation, lanes = model.pcie_link
    own = PCIE_SPEEDS[generation]
    assumed, idle = 0, 0
    for pci in root.iter("pci"):
        is_gpu, speed = pci.find("gpu") is not None, pci.get("link_speed")
        if speed is None:
            assumed += 1
        elif not is_gpu or list(PCIE_SPEEDS.values()).index(speed) + 1 >= generation:
            continue
        else:
            idle += 1
        pci.attrib.update(link_speed=own, link_width=str(lanes))
    rest = f"PCIe {generation}.0 with {lanes} lanes, as {model.name} has; {option('pcie')} says another"
    if assumed:
        notes.append(f"{assumed} PCIe links, of which {listing.tool} says nothing: assumed to be {rest}")
    if idle:
        notes.append(
            f"{idle} GPUs' PCIe links are slower in the listing, as those of idle GPUs are: assumed to be {rest}"
        )


def ranked(node: NodeShape, trays: bool = False) -> list[Nearness]:
    """Compares machines with a node and returns the most similar first. ``trays``: also compare one host of each NVLink
    domain."""
    names = [name for name in catalogue.names() if trays or catalogue.load(name).trays is None]
    return sorted((compared(name, node) for name in names), key=lambda near: near.rank)


def compared(machine: str, node: NodeShape) -> Nearness:
    """Compares one machine with the node."""
    unknown = ["PCIe links' speed"] if node.gbps is None else []
    return nearness(machine, _facts(_shape(machine), node), unknown)


@cache
def _shape(machine: str) -> NodeShape:
    return of_topology(catalogue.load(machine).topology_xml)


def _facts(machine: NodeShape, node: NodeShape) -> Iterator[ComparedFact]:
    yield ComparedFact(f"{node.gpus} GPUs", node.gpus == machine.gpus)
    if node.devices:
        same = bool(set(node.devices) & set(machine.devices))
        yield ComparedFact(f"GPUs {_models_in_words(node.devices)}", same, identifies=True)
    else:
        yield ComparedFact("GPUs' model", None)
    if node.comp_cap is not None and not node.devices:
        yield ComparedFact(f"compute capability {node.comp_cap / 10:.1f}", node.comp_cap == machine.comp_cap)
    if node.nvlinks is None:
        yield ComparedFact("NVLinks", None)
    else:
        linked = any(node.nvlinks.values())
        yield ComparedFact(_links_in_words(node.nvlinks), _same_links(node, machine), identifies=linked)
    each = "+".join(str(len(gpus)) for gpus in node.sockets)
    yield ComparedFact(f"GPUs of NUMA nodes: {each}", sorted(node.sockets) == sorted(machine.sockets))
    if not node.adapters:
        yield ComparedFact("adapters", None)
    else:
        below = any(level <= PXB for level, _ in node.near)
        yield ComparedFact(_near_in_words(node), _same_near(node, machine), identifies=below)
        yield ComparedFact(f"{len(node.adapters)} adapters", len(node.adapters) == len(machine.adapters), decides=False)
        names = set(node.adapters) == set(machine.adapters)
        yield ComparedFact("names of adapters", names, identifies=True, decides=False)
    if node.gbps is None:
        yield ComparedFact("adapters' speed", None)
    elif node.adapters:
        speeds = ", ".join(f"{gbps:g}" for gbps in node.gbps)
        yield ComparedFact(f"adapters of {speeds} Gb/s", node.gbps == machine.gbps)
    if node.cpu is None:
        yield ComparedFact("CPUs", None)
    else:
        yield ComparedFact(f"CPUs {_cpu_in_words(node.cpu)}", _same(node.cpu, machine.cpu))


def _models_in_words(devices: Sequence[str]) -> str:
    """A text with the models that have these device ids, each in one form factor; the ids if no model is known."""
    models = list(dict.fromkeys(name for device in devices for name in gpus.of_device(device)))
    models = [name for name in models if not any(name.startswith(f"{other}-") for other in models)]
    return " or ".join(models) or ", ".join(devices)


def _nearest(node: NodeShape) -> tuple[tuple[int, int], ...]:
    """For each GPU: the distance of its nearest adapters and, if these are below its PCI switch, their number (else
    0)."""
    return tuple((level, count if level <= PXB else 0) for level, count in node.near)


def _same_near(node: NodeShape, machine: NodeShape) -> bool:
    """Whether each GPU's nearest adapters are equally many at the same distance. If the numbers of GPUs differ, whether
    the same distances and numbers occur."""
    mine, others = _nearest(node), _nearest(machine)
    return mine == others if node.gpus == machine.gpus else set(mine) == set(others)


def _same_links(node: NodeShape, machine: NodeShape) -> bool:
    """Whether each pair of GPUs has the same number of links; if the numbers of GPUs differ, whether the same numbers
    of links occur.
    """
    mine, others = node.nvlinks or {}, machine.nvlinks or {}
    return mine == others if node.gpus == machine.gpus else set(mine.values()) == set(others.values())


def _near_in_words(node: NodeShape) -> str:
    levels = sorted(set(_nearest(node)))
    if len(levels) > 1 and max(levels)[0] <= PXB:
        return "adapters below the PCI switch of each GPU, not as many each"
    if len(levels) > 1:
        return "adapters near some GPUs alone"
    ((level, count),) = levels
    if level <= PXB:
        return f"{count} {'adapter' if count == 1 else 'adapters'} {WORDS[level]} to each GPU"
    return "adapters of other sockets alone" if level == SYS else "no adapter below the PCI switch of a GPU"


def _links_in_words(links: Mapping[tuple[int, int], int]) -> str:
    counts = sorted(set(links.values()))
    if not any(counts):
        return "no NVLinks"
    return f"NV{counts[0]} between all GPUs" if len(counts) == 1 else f"NV{counts[-1]} at most between GPUs"


def _cpu_in_words(cpu: Cpu) -> str:
    return ":".join(str(part) for part in (cpu.vendor, cpu.family, cpu.model)) if cpu.vendor else cpu.arch


def _same(cpu: Cpu, other: Cpu | None) -> bool:
    """Whether NCCL treats two CPUs as equal: it distinguishes only Intel's, by family and model."""
    if other is None or (cpu.arch, cpu.vendor) != (other.arch, other.vendor):
        return False
    return cpu.vendor != "GenuineIntel" or (cpu.family, cpu.model) == (other.family, other.model)

"""A listing made a topology: what it does not say is asked for, and the rest is what NCCL asks NVML and its network."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tuner.base.errors import BadInput
from tuner.machine import gpus, skeleton
from tuner.machine.gpus import HIDDEN_NVSWITCH, GpuModel, most_nvlinks
from tuner.machine.listings.read import read
from tuner.machine.listings.shape import Listing
from tuner.machine.topology.edit_devices import cpu as set_cpu
from tuner.machine.topology.edit_links import PCIE_SPEEDS, pcie
from tuner.machine.topology.xml import to_text

LANES = "16"  # of a GPU's PCIe link, and of those on the way to it


@dataclass(frozen=True, slots=True)
class ListingAdditions:
    """What a user says besides a listing: GPU model, adapters, ``cpu`` and ``pcie`` in the words of ``--change``."""

    gpu: str | None = None
    net_gbps: float | None = None
    net_latency_us: float | None = None
    cpu: str | None = None
    pcie: str | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """A topology in NCCL's format, and in words what was assumed of it."""

    topology: str
    notes: tuple[str, ...]


@cache
def completed(file: Path, given: ListingAdditions) -> Completed:
    """The topology of a listing, or of a skeleton, which leaves less open.

    Errors: BadInput names all that is missing in one line; those of :func:`tuner.machine.skeleton.completed`.
    """
    listing = read(file)
    if listing is None:
        return _of_skeleton(file, given)
    if missing := _missing(listing, given):
        raise BadInput(f"{file}: {listing.tool} does not say {'; '.join(missing)}")
    assert given.gpu is not None
    model, notes = gpus.load(given.gpu), list(listing.notes)
    root = deepcopy(listing.root)
    if given.cpu is not None:
        set_cpu(root, given.cpu)
    _add_links(root, listing, model, notes)
    if given.pcie is None:
        _add_speeds(root, listing, model, notes)
    else:
        pcie(root, given.pcie if "x" in given.pcie else f"{given.pcie}x{LANES}")
    text = skeleton.SkeletonText(to_text(root), str(file))
    speed = given.net_gbps if listing.adapters else None
    return Completed(skeleton.completed(text, model.name, speed, given.net_latency_us if speed else None), tuple(notes))


def _of_skeleton(file: Path, given: ListingAdditions) -> Completed:
    if given.gpu is None:
        raise BadInput(f"say what the GPUs of {file} are: `gpu` MODEL; valid: {', '.join(gpus.names())}")
    if given.cpu is not None or given.pcie is not None:
        raise BadInput(
            f"{file}: nothing that nvidia-smi topo -m or lstopo --of xml printed, which `cpu` and `pcie` complete; "
            "valid: such a file, or another without them"
        )
    return Completed(skeleton.completed(file, given.gpu, given.net_gbps, given.net_latency_us), ())


def _missing(listing: Listing, given: ListingAdditions) -> list[str]:
    """What is asked for: an option each."""
    wanted = []
    if given.gpu is None:
        models = list(dict.fromkeys(name for device in listing.models for name in gpus.of_device(device)))
        wanted.append(f"what its GPUs are: `gpu` MODEL, one of {', '.join(models or gpus.names())}")
    if given.net_gbps is None and listing.adapters:
        names = listing.adapters
        wanted.append(f"how fast its {len(names)} adapters are ({names[0]} first): `net_gbps` 400, 1e9 bits per second")
    if given.cpu is None and not listing.says_cpu():
        wanted.append("what its CPUs are: `cpu` GenuineIntel:6:143, AuthenticAMD:143:49 (as NCCL counts them) or arm64")
    return wanted


def _add_links(root: ET.Element, listing: Listing, model: GpuModel, notes: list[str]) -> None:
    """NVLinks as the listing shows them; where it shows none at all, the model's own."""
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
    """How many links a GPU has to NVSwitches: nvidia-smi shows all that both have between any two GPUs."""
    most, every = max(to_gpus.values(), default=0), sum(to_gpus.values())
    whole = model.lead_to == "nvswitch" and most == model.nvlinks and len(to_gpus) == listing.gpus - 1
    return most if whole or every > most_nvlinks(model.compute_capability) else None


def _add_speeds(root: ET.Element, listing: Listing, model: GpuModel, notes: list[str]) -> None:
    """Each PCIe link that the listing says nothing of, and slower ones of GPUs, which idle: as the model's are."""
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
    rest = f"PCIe {generation}.0 with {lanes} lanes, as {model.name} has; `pcie` says another"
    if assumed:
        notes.append(f"{assumed} PCIe links, of which {listing.tool} says nothing: taken for {rest}")
    if idle:
        notes.append(f"{idle} GPUs' PCIe links are slower in the listing, as those of idle GPUs are: taken for {rest}")

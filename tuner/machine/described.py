"""Machines that are given by a description instead of a name: ``8xrtx-4090@2xmilan/4+2x200g`` means eight GPUs of one
model on two CPUs.

Nothing is guessed: the description gives the GPU model, the CPUs, the number of GPUs below each PCI switch, and the
adapters. All PCIe links have the generation of the GPU model. Bus ids, names and guids are invented, and no choice
depends on them.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Collection
from functools import cache

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.expressions import expression
from tuner.base.sizes import plural
from tuner.machine import gpus, skeleton
from tuner.machine.gpus import GpuModel
from tuner.machine.topology.edit_devices import PCIE_SPEEDS, cpu
from tuner.machine.topology.xml import to_text

EXAMPLE = "8xrtx-4090@2xmilan"
FORM = "GPUSxMODEL@CPUSxCPU[/GPUS below a PCI switch][+ADAPTERSxGBPSg]"
WORDS = expression(r"(\d{1,2})x([a-z0-9-]+)@(?:(\d{1,2})x)?([a-z][a-z0-9-]*)(?:/(\d{1,2}))?(?:\+(\d{1,2})x(\d{1,4})g)?")
BEGINS = expression(r"\d{1,2}x[a-z][a-z0-9-]*(@.*)?")
MOST_GPUS, MOST_CPUS = 16, 8
GPU_CLASS, ADAPTER_CLASS, SWITCH_CLASS = "0x030200", "0x020700", "0x060400"


@dataclass(frozen=True, slots=True)
class DescribedMachine:
    """A node made from its description: its title, its topology in NCCL's format, and what was assumed."""

    name: str
    title: str
    model: GpuModel
    gpus: int
    topology: str
    notes: tuple[str, ...]


@cache
def _cpus() -> dict[str, str]:
    """CPUs by the name of their generation, each as VENDOR:FAMILY:MODEL in NCCL's numbering, the form that changes of a
    topology use."""
    return {name: row["cpu"] for name, row in tables.toml(tables.folder() / "cpus.toml").items()}


def in_words(product: str, count: int) -> str | None:
    """An example description of a node with ``count`` GPUs of a product; None if the product cannot be described.

    ``product`` is CUDA's name of the GPU. The CPUs in the description are only an example.
    """
    models = [gpus.load(name) for name in gpus.names() if gpus.is_product(product, name)]
    if not (models and all(map(_is_describable, models))):
        return None
    return f"{count}x{models[0].name}@{1 + (count % 2 == 0 and count > 2)}xmilan"


def of_chip(asked: Collection[str], known: Collection[str]) -> str | None:
    """An example description with the GPU whose chip a user asked for; None if there is no such GPU model.

    It has the first model whose chip is among the words in ``asked`` and not in ``known``.
    """
    joined = f" {' '.join(re.sub('^[0-9]+x', '', each) for each in asked)} "
    for model in filter(_is_describable, map(gpus.load, gpus.names())):
        chip = gpus.chip(model.name)
        spellings = (chip.lower(), chip.lower().replace(" ", ""), *re.findall(r"[0-9]{4}$", chip))
        if chip not in known and any(f" {each} " in joined for each in spellings):
            return f"8x{model.name}@2xmilan"
    return None


def with_adapter(name: str) -> str | None:
    """The description ``name`` with an adapter added; None if it is not a description, or already has adapters."""
    match = WORDS.fullmatch(name)
    return None if match is None or match[6] else f"{name}+1x100g"


def _is_describable(model: GpuModel) -> bool:
    """Whether the model is a card that fits any server. Other models come on their maker's boards, which have
    adapters."""
    return model.lead_to != "nvswitch" and not model.c2c


@cache
def read(name: str) -> DescribedMachine | None:
    """The machine that a name describes; None if the name is not a description.

    UnknownGpu for an unknown model. BadInput if something is missing or impossible.
    """
    plain = "".join(name.lower().split())
    if BEGINS.fullmatch(plain) is None:
        return None
    match = WORDS.fullmatch(plain)
    if match is None or (match[6] and 0 in (int(match[6]), float(match[7]))):
        lacks = "the CPUs are missing; " if "@" not in plain else ""
        raise BadInput(f"machine {name!r}: {lacks}valid: {FORM}, such as {EXAMPLE}; CPU is one of {', '.join(_cpus())}")
    count, model_name, sockets, cpu_name, below, adapters, gbps = match.groups()
    sockets = sockets or "1"
    model = gpus.load(model_name)
    if cpu_name not in _cpus():
        raise BadInput(f"machine {name!r}: no CPU {cpu_name!r}{did_you_mean(cpu_name, _cpus())}; {one_of(_cpus())}")
    if not _is_describable(model):
        raise BadInput(
            f"machine {name!r}: {model.name} only comes on boards that the catalogue has: name one of its machines"
        )
    parts = _Parts(model, int(count), int(sockets), int(below or 0), int(adapters or 0))
    parts.check(name)
    root = parts.root()
    cpu(root, _cpus()[cpu_name], f"machine {name!r}")
    topology = skeleton.completed(to_text(root), model.name, float(gbps) if adapters else None, None, name)
    title = f"{count} x {model.title} on {sockets} x {cpu_name}"
    return DescribedMachine(plain, title, model, int(count), topology, tuple(parts.notes()))


@dataclass(frozen=True, slots=True)
class _Parts:
    model: GpuModel
    gpus: int
    sockets: int
    below: int  # GPUs below each PCI switch; 0: there are no switches
    adapters: int

    def check(self, name: str) -> None:
        most_of = {"GPUs": (self.gpus, MOST_GPUS), "CPUs": (self.sockets, MOST_CPUS)}
        for what, (number, most) in most_of.items():
            if not 1 <= number <= most:
                raise BadInput(f"machine {name!r}: {number} {what}: valid are 1 to {most}")
        if self.gpus % (self.sockets * max(self.below, 1)):
            switches = f", {self.below} a switch" if self.below else ""
            there = f"{plural(self.gpus, 'GPU')} on {plural(self.sockets, 'CPU')}{switches}"
            raise BadInput(f"machine {name!r}: {there}: each has to have the same number")

    def root(self) -> ET.Element:
        """The tree of all devices, with the GPUs and adapters spread evenly over the sockets."""
        generation, lanes = self.model.pcie_link
        link = {"link_speed": PCIE_SPEEDS[generation], "link_width": str(lanes)}
        root, of_socket = ET.Element("system", {"version": "1"}), self.gpus // self.sockets
        for socket in range(self.sockets):
            cpu = ET.SubElement(root, "cpu", {"numaid": str(socket)})
            above = cpu
            for number in range(socket * of_socket, (socket + 1) * of_socket):
                if self.below and number % self.below == 0:
                    busid = f"ff00:{number:02x}:00.0"
                    above = ET.SubElement(cpu, "pci", {"busid": busid, "class": SWITCH_CLASS, **link})
                device = {"class": GPU_CLASS, "vendor": skeleton.NVIDIA, "device": self.model.pci_devices[0]}
                ET.SubElement(above, "pci", {"busid": f"0000:{number:02x}:00.0", **device, **link})
            for number in range(self.adapters):
                if number * self.sockets // self.adapters == socket:
                    ET.SubElement(cpu, "pci", {"busid": f"0001:{number:02x}:00.0", "class": ADAPTER_CLASS, **link})
        return root

    def notes(self) -> list[str]:
        """Notes on what the description leaves open and what is assumed instead."""
        generation, lanes = self.model.pcie_link
        where = (
            f"{plural(self.below, 'GPU')} below each PCI switch"
            if self.below
            else "each GPU on its CPU, without PCI switches"
        )
        nets = f"{plural(self.adapters, 'adapter')} on the CPUs" if self.adapters else "no adapter, so one node"
        return [f"assumed: {where}, {nets}; PCIe {generation}.0 x{lanes}; 'nvidia-smi topo -m' would tell"]

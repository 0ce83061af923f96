"""Changes of where a node's GPUs are, and of how many sockets it has."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from tuner.base.errors import BadInput
from tuner.machine.topology import edit_devices as devices
from tuner.machine.topology.edit_adapters import move

X86 = re.compile(r"(GenuineIntel|AuthenticAMD|CentaurHauls|  Shanghai  ):(\d{1,3}):(\d{1,3})")
OTHERS = ("arm64", "ppc64")


def move_gpu(root: ET.Element, value: str) -> None:
    """GPUs that are elsewhere: gpu:0@PLACE."""
    change = f"move-gpu={value}"
    for name, where in devices.placed(change, "gpu:0"):
        move(root, devices.gpu(root, name, change), where, change)


def remove_gpu(root: ET.Element, value: str) -> None:
    """GPUs that are gone, with the NVLinks to them; the others are counted from 0 again, as CUDA counts.

    BadInput where none is left, and where ranks share them.
    """
    change = f"remove-gpu={value}"
    for pci in [devices.gpu(root, name, change) for name in dict.fromkeys(value.split(","))]:
        _remove(root, pci)
    left = devices.in_order(root.iter("gpu"))
    if not left:
        raise BadInput(f"{change}: no GPU would be left; valid: fewer of them")
    if len({gpu.get("dev") for gpu in left}) < len(left):
        raise BadInput(f"{change}: not where ranks share GPUs; valid: a topology with one rank per GPU")
    for dev, gpu in enumerate(left):
        gpu.set("dev", str(dev))
        if gpu.get("rank") is not None:
            gpu.set("rank", str(dev))


def only_gpus(root: ET.Element, numbers: Sequence[int]) -> None:
    """The other GPUs, by their place in the order of ``dev``, are gone with the NVLinks to them; no number changes."""
    kept = [gpu for number, gpu in enumerate(devices.in_order(root.iter("gpu"))) if number in numbers]
    for pci in [each for each in root.iter("pci") if (gpu := each.find("gpu")) is not None and gpu not in kept]:
        _remove(root, pci)


def _remove(root: ET.Element, pci: ET.Element) -> None:
    devices.parent(root, pci).remove(pci)
    for gpu in root.iter("gpu"):
        for link in gpu.findall("nvlink"):
            if link.get("target", "").lower() == pci.get("busid", "").lower():
                gpu.remove(link)


def sockets(root: ET.Element, value: str) -> None:
    """The number of sockets, of one NUMA node each: what is at them now is dealt out in its order, as evenly as it may.

    New ones are like the first. BadInput for more than can be dealt out.
    """
    now = [cpu for cpu in root.findall("cpu") if len(cpu)]
    trees = [child for cpu in now for child in cpu]
    if not value.isdecimal() or not 1 <= int(value) <= len(trees):
        raise BadInput(
            f"sockets={value}: valid: 1 to {len(trees)}, the PCI switches and devices that are at this node's sockets"
        )
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


def cpu(root: ET.Element, value: str) -> None:
    """The processors: VENDOR:FAMILY:MODEL of x86 as NCCL counts them, or another architecture. BadInput for others."""
    x86 = X86.fullmatch(value)
    if x86 is None and value not in OTHERS:
        raise BadInput(
            f"cpu={value}: valid: VENDOR:FAMILY:MODEL as NCCL counts them, such as GenuineIntel:6:143 or "
            f"AuthenticAMD:143:49, or {' or '.join(OTHERS)}"
        )
    names = ("vendor", "familyid", "modelid")
    for element in root.findall("cpu"):
        for name in names:
            element.attrib.pop(name, None)
        element.set("arch", "x86_64" if x86 else value)
        if x86:
            element.attrib.update(zip(names, x86.groups(), strict=True))

"""Faults that topologies have, done to sound ones: what a virtual machine hides, what is down or written wrong."""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass

Damage = Callable[[ET.Element], bool]  # whether this topology can have it


@dataclass(frozen=True)
class Fault:
    kind: str  # what the doctor calls it
    damage: Damage
    reaches_graphs: bool = True  # whether NCCL's search may find others


def _slots(root: ET.Element) -> list[ET.Element]:
    """The <pci> of GPUs and adapters."""
    return [pci for pci in root.iter("pci") if pci.find("gpu") is not None or pci.find("nic") is not None]


def _gpus(root: ET.Element) -> list[ET.Element]:
    slots = [pci for pci in root.iter("pci") if pci.find("gpu") is not None]
    return sorted(slots, key=lambda pci: int(pci.find("gpu").get("dev", "0")))  # type: ignore[union-attr]


def _parent(root: ET.Element, element: ET.Element) -> ET.Element:
    return next(above for above in root.iter() if element in list(above))


def _nets(root: ET.Element) -> list[ET.Element]:
    return [net for pci in root.iter("pci") for net in pci.findall("nic/net")]


def flatten(root: ET.Element) -> bool:
    """Every GPU and adapter at its CPU, as guests of a hypervisor without virtual switches."""
    done = False
    for cpu in root.findall("cpu"):
        slots = _slots(cpu)
        done |= any(_parent(root, slot) is not cpu for slot in slots)
        cpu[:] = slots
    return done


def one_numa_node(root: ET.Element) -> bool:
    """All below one CPU that has no number."""
    first, *others = [cpu for cpu in root.findall("cpu") if len(cpu)]
    for cpu in others:
        first.extend(list(cpu))
        root.remove(cpu)
    first.set("numaid", "-1")
    return bool(others) and len(_gpus(root)) > 2


def another_numa_node(root: ET.Element) -> bool:
    """What is at the first CPU with the first GPU is at the last."""
    cpus = [cpu for cpu in root.findall("cpu") if len(cpu) > 1]
    if len(cpus) < 2:
        return False
    tree = next(child for child in cpus[0] if child.find(".//gpu") is not None)
    cpus[0].remove(tree)
    cpus[-1].append(tree)
    return True


def two_adapters_swapped(root: ET.Element) -> bool:
    """The first and the last adapter are in each other's place."""
    slots = [pci for pci in root.iter("pci") if pci.find("nic/net") is not None]
    if len(slots) < 4:
        return False
    a, b = slots[0], slots[-1]
    of_a, of_b = _parent(root, a), _parent(root, b)
    if of_a is of_b:
        return False
    at_a, at_b = list(of_a).index(a), list(of_b).index(b)
    of_a[at_a], of_b[at_b] = b, a
    return True


def no_link_speeds(root: ET.Element) -> bool:
    for pci in root.iter("pci"):
        pci.attrib.update(link_speed="", link_width="0")
    return True


def unknown_link_speed(root: ET.Element) -> bool:
    _gpus(root)[-1].attrib.update(link_speed="Unknown", link_width="255")
    return True


def slow_gpu_link(root: ET.Element) -> bool:
    _gpus(root)[-1].attrib.update(link_speed="2.5 GT/s PCIe", link_width="16")
    return len(_gpus(root)) > 2


def narrow_gpu_link(root: ET.Element) -> bool:
    _gpus(root)[0].attrib.update(link_width="4")
    return len(_gpus(root)) > 2


def slow_adapter_link(root: ET.Element) -> bool:
    slots = [pci for pci in root.iter("pci") if pci.find("nic/net") is not None]
    if len(slots) > 2:
        slots[0].attrib.update(link_speed="8.0 GT/s PCIe", link_width="4")
    return len(slots) > 2


def _switched(gpu: ET.Element) -> list[ET.Element]:
    return [link for link in gpu.findall("nvlink") if link.get("tclass") == "0x068000"]


def one_nvlink_down(root: ET.Element) -> bool:
    links = _gpus(root)[-1].findall("gpu/nvlink")
    for link in links[:1]:
        link.set("count", str(int(link.get("count", "1")) - 1))
        if link.get("count") == "0":
            gpu = _gpus(root)[-1].find("gpu")
            assert gpu is not None
            gpu.remove(link)
    return bool(links)


def no_nvlinks_of_one_gpu(root: ET.Element) -> bool:
    gpu = _gpus(root)[0].find("gpu")
    assert gpu is not None
    links = _switched(gpu)
    for link in links:
        gpu.remove(link)
    return bool(links)


def no_nvlinks(root: ET.Element) -> bool:
    done = False
    for gpu in root.iter("gpu"):
        for link in _switched(gpu):
            gpu.remove(link)
            done = True
    return done


def nvlink_to_itself(root: ET.Element) -> bool:
    pci = _gpus(root)[0]
    links = [link for link in pci.findall("gpu/nvlink") if link.get("tclass", "").startswith("0x03")]
    for link in links[:1]:
        link.set("target", pci.get("busid", ""))
    return bool(links)


def gpus_without_gpudirect(root: ET.Element) -> bool:
    for gpu in root.iter("gpu"):
        gpu.set("gdr", "0")
    return bool(_nets(root))


def adapter_without_gpudirect(root: ET.Element) -> bool:
    for net in _nets(root)[:1]:
        net.set("gdr", "0")
    return bool(_nets(root))


def default_adapter_speed(root: ET.Element) -> bool:
    for net in _nets(root):
        net.set("speed", "10000")
    return bool(_nets(root))


def no_adapter_speed(root: ET.Element) -> bool:
    for net in _nets(root)[:1]:
        net.attrib.pop("speed")
    return bool(_nets(root))


def slow_adapter(root: ET.Element) -> bool:
    for net in _nets(root)[:1]:
        net.set("speed", str(int(net.get("speed", "0")) // 4))
    return len(_nets(root)) > 2


def shared_guid(root: ET.Element) -> bool:
    for net in _nets(root):
        net.set("guid", "0x1")
    return len(_nets(root)) > 1


def collnet_without_keep(root: ET.Element) -> bool:
    for net in _nets(root):
        net.set("coll", "1")
    return bool(_nets(root))


def wrong_compute_capability(root: ET.Element) -> bool:
    for gpu in root.iter("gpu"):
        gpu.set("sm", "70" if gpu.get("sm") != "70" else "80")
    return True


def two_processors(root: ET.Element) -> bool:
    cpus = root.findall("cpu")
    cpus[-1].set("modelid", "2" if cpus[0].get("modelid") != "2" else "3")
    return len(cpus) > 1 and cpus[0].get("arch") == "x86_64"


def empty_affinity(root: ET.Element) -> bool:
    for cpu in root.findall("cpu"):
        cpu.set("affinity", "00000000,00000000")
    return True


FAULTS = {
    fault.damage.__name__: fault
    for fault in (
        Fault("pci-flat", flatten),
        Fault("numa-nodes", one_numa_node),
        Fault("numa", another_numa_node),
        Fault("place|numa", two_adapters_swapped),
        Fault("link-speed", no_link_speeds),
        Fault("link-speed", unknown_link_speed),
        Fault("link-slow", slow_gpu_link),
        Fault("link-slow", narrow_gpu_link),
        Fault("link-slow", slow_adapter_link),
        Fault("nvlinks", one_nvlink_down),
        Fault("nvlinks", no_nvlinks_of_one_gpu),
        Fault("nvlinks", no_nvlinks),
        Fault("nvlink-target", nvlink_to_itself),
        Fault("gpudirect", gpus_without_gpudirect),
        Fault("gpudirect", adapter_without_gpudirect),
        Fault("adapter-speed", default_adapter_speed),
        Fault("adapter-speed", no_adapter_speed),
        Fault("adapter-speed", slow_adapter),
        Fault("guid", shared_guid),
        Fault("keep", collnet_without_keep, reaches_graphs=False),
        Fault("compute-capability", wrong_compute_capability),
        Fault("processors", two_processors, reaches_graphs=False),
        Fault("affinity", empty_affinity, reaches_graphs=False),
    )
}

"""Checks places of devices: PCI switches that a virtual machine hides, NUMA nodes, devices in a wrong place,
processors.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import combinations

from tuner.answers.doctor.match import PlacementPlan, counterparts, link, plan
from tuner.answers.doctor.records import NOTE, WRONG, ExaminedNode, TopologyFinding, ancestors, gpu_name, listed
from tuner.base.spelling import option
from tuner.machine.listings.shape import PXB, SYS, nearness

FROM_LINUX = {"23": "143", "25": "175", "26": "191"}  # AMD's families as Linux counts them, and as NCCL does
QEMU = "0x1b36"
MOST_MOVED = 0.5  # of all devices: where more lie elsewhere than in the machine, it is another one


def check(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Yields every finding about the places of devices."""
    yield from _virtual(node)
    yield from _structure(node)
    yield from _processors(node)
    yield from _affinity(node)
    yield from _far(node)


def _virtual(node: ExaminedNode) -> Iterator[TopologyFinding]:
    slots = [pci for pci in node.root.iter("pci") if pci.get("vendor", "").lower() == QEMU]
    if slots:
        names = [pci.get("busid", "") for pci in slots]
        yield TopologyFinding(
            "virtual-machine",
            NOTE,
            f"{listed(names)}: these devices are emulated by QEMU, so the file does not show what the host has "
            "above them",
            tuple(names),
            "dump the topology on the host, or use the vendor's topology file",
        )


def is_flat(node: ExaminedNode) -> bool:
    """Whether there are several GPUs, all directly below the CPUs without a PCI switch."""
    return all(node.above[pci].tag == "cpu" for pci in node.gpus) and len(node.gpus) > 1


def _structure(node: ExaminedNode) -> Iterator[TopologyFinding]:
    wanted = plan(node)
    like = node.like.name if node.like else ""
    if wanted.changes and not _judged(node):
        yield _elsewhere(wanted, len(node.gpus) + len(node.adapters), like)
        return
    if not wanted.changes:
        own_cpus = node.root.find(".//c2c") is not None
        if node.like is None and is_flat(node) and node.topology.has_nvswitch(len(node.gpus)) and not own_cpus:
            yield from _in_order(node)
        return
    devices = len(node.gpus) + len(node.adapters)
    if is_flat(node) and wanted.switches:
        severity, unlike = (WRONG, None) if _too_many_lanes(node) else node.judged()
        yield TopologyFinding(
            "pci-flat",
            severity,
            f"no PCI switch above any GPU or adapter, but {like} has {wanted.switches}: NCCL assumes that every path "
            "between them goes through the CPU, and does not use GPUDirect RDMA on such paths",
            tuple(wanted.moved),
            "a hypervisor hides them: give NCCL the repaired file with NCCL_TOPO_FILE",
            tuple(wanted.changes),
            unlike,
        )
        return
    if wanted.cpus:
        count = len({cpu.get("numaid") for cpu in node.root.iter("cpu") if cpu.find("pci") is not None})
        unknown = any(cpu.get("numaid") == "-1" for cpu in node.root.iter("cpu"))
        severity, unlike = node.judged()
        yield TopologyFinding(
            "numa-nodes",
            severity,
            f"NUMA nodes with devices: {count}{', numbered -1' if unknown else ''}; {like} has {count + wanted.cpus}",
            tuple(wanted.sockets),
            "a hypervisor or the firmware hides them (/sys/bus/pci/devices/*/numa_node): give NCCL the repaired "
            "file with NCCL_TOPO_FILE",
            tuple(wanted.changes),
            unlike,
        )
        return
    if len(wanted.moved) > MOST_MOVED * devices:
        yield _elsewhere(wanted, devices, like)
        return
    moved = wanted.moved or ["PCI switches"]
    kind = "numa" if wanted.sockets or any(change.startswith("move-switch") for change in wanted.changes) else "place"
    words = "below another NUMA node" if kind == "numa" else "below another PCI switch"
    severity, unlike = node.judged()
    yield TopologyFinding(
        kind,
        severity,
        f"{listed(moved)}: {words} than in {like}, which is otherwise the same",
        tuple(moved),
        "compare with lspci -tv and /sys/bus/pci/devices/*/numa_node on the host",
        tuple(wanted.changes),
        unlike,
    )


MOST_LANES = 192  # of all processors of a server: two Xeon 6900 have 96 each, two EPYC 9005 up to 160 together


def _too_many_lanes(node: ExaminedNode) -> bool:
    """Whether devices directly below the processors have more PCIe lanes than any two processors, so switches must
    be hidden.
    """
    slots = {*node.gpus, *filter(None, map(node.slot, node.adapters))}
    lanes = [
        found if (found := link(pci)[1]) else part.pcie[1] if (part := node.part(pci)) and part.pcie else 16
        for pci in slots
    ]
    return sum(lanes) > MOST_LANES


def _judged(node: ExaminedNode) -> bool:
    """Whether the machine is similar enough to say where devices belong: processors of the same maker, and counterparts
    for all GPUs and adapters.
    """
    assert node.like is not None
    theirs = node.like.topology
    alike = (node.topology.cpu_arch, node.topology.cpu_vendor) == (theirs.cpu_arch, theirs.cpu_vendor)
    return alike and len(counterparts(node)) == len({*node.gpus, *filter(None, map(node.slot, node.adapters))})


def _elsewhere(wanted: PlacementPlan, devices: int, like: str) -> TopologyFinding:
    return TopologyFinding(
        "another-layout",
        NOTE,
        f"{len(wanted.moved)} of {devices} devices are in another place than in {like}, the most similar "
        "machine, so their places are not judged",
        tuple(wanted.moved),
        f"name another {option('machine')}, if there is one",
    )


def _in_order(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Places devices without a machine to compare with: pairs GPUs and adapters of each NUMA node in the order of bus
    ids.
    """
    changes, names, switches = list[str](), list[str](), 0
    for cpu in node.root.iter("cpu"):
        gpus = [pci for pci in node.gpus if node.above[pci] is cpu]
        nets = [net for net in node.adapters if (slot := node.slot(net)) is not None and node.above[slot] is cpu]
        if not gpus or not nets or max(len(gpus), len(nets)) % min(len(gpus), len(nets)):
            return
        groups = min(len(gpus), len(nets))
        for at in range(groups):
            switches += 1
            switch = f"ffff:{switches:02x}:00.0"
            changes.append(f"add-switch={switch}@cpu:{cpu.get('numaid')}")
            for pci in gpus[at * len(gpus) // groups : (at + 1) * len(gpus) // groups]:
                changes.append(f"move-gpu={gpu_name(pci)}@{switch}")
                names.append(gpu_name(pci))
            for net in nets[at * len(nets) // groups : (at + 1) * len(nets) // groups]:
                changes.append(f"move-nic={net.get('name')}@{switch}")
                names.append(net.get("name", ""))
    if changes:
        changes.append(f"order={','.join(names)}")
        severity, unlike = (WRONG, None) if _too_many_lanes(node) else node.judged("servers with NVSwitches")
        yield TopologyFinding(
            "pci-flat",
            severity,
            "no PCI switch above any GPU or adapter, although servers with NVSwitches have them; the repair "
            "pairs GPUs and adapters in the order of bus ids",
            tuple(names),
            "check the pairs with lspci -tv on the host; give NCCL the repaired file with NCCL_TOPO_FILE",
            tuple(changes),
            unlike,
        )


def _processors(node: ExaminedNode) -> Iterator[TopologyFinding]:
    cpus = list(node.root.iter("cpu"))
    kinds = {tuple(cpu.get(name) for name in ("arch", "vendor", "familyid", "modelid")) for cpu in cpus}
    if len(kinds) > 1:
        yield TopologyFinding(
            "processors",
            WRONG,
            f"{len(kinds)} kinds of processors: NCCL tunes for the first one, and assumes the link between "
            "sockets that it has",
            tuple(f"cpu:{cpu.get('numaid')}" for cpu in cpus),
            "write the same values into each <cpu>",
            (f"cpu={_words(cpus[0])}",) if cpus[0].get("arch") == "x86_64" else (),
        )
    amd = [cpu for cpu in cpus if cpu.get("vendor") == "AuthenticAMD" and cpu.get("familyid") in FROM_LINUX]
    if amd:
        family = amd[0].get("familyid", "")
        yield TopologyFinding(
            "processor-family",
            NOTE,
            f"family {family} is Linux's number for this processor; NCCL would write {FROM_LINUX[family]}; no "
            "choice depends on it",
            tuple(f"cpu:{cpu.get('numaid')}" for cpu in amd),
            "nothing",
        )


def _words(cpu: ET.Element) -> str:
    return ":".join(cpu.get(name, "") for name in ("vendor", "familyid", "modelid"))


def _affinity(node: ExaminedNode) -> Iterator[TopologyFinding]:
    masks = {f"cpu:{cpu.get('numaid')}": _mask(cpu) for cpu in node.root.iter("cpu") if cpu.find("pci") is not None}
    says = None
    if empty := [name for name, mask in masks.items() if not mask]:
        says, names = f"{listed(empty)}: no CPUs in affinity: NCCL's threads are not bound near their GPUs", empty
    elif any(a & b for a, b in combinations(masks.values(), 2)):
        says, names = (
            f"{listed(list(masks))}: these affinities share CPUs, so threads may run far from their GPUs",
            list(masks),
        )
    if says:
        yield TopologyFinding(
            "affinity", NOTE, says, tuple(names), "no choice depends on it; lscpu shows the CPUs of each NUMA node"
        )


def _mask(cpu: ET.Element) -> int:
    digits = cpu.get("affinity", "").replace(",", "")
    try:
        return int(digits or "0", 16)
    except ValueError:
        return 0


def _far(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Finds adapters without a GPU near them, although other adapters have one: most of these are for storage, but NCCL
    uses them.
    """
    levels = {net.get("name", ""): _nearest_gpu(node, net) for net in node.adapters}
    if not any(level <= PXB for level in levels.values()):
        return
    there = counterparts(node)
    alone = [name for name, level in levels.items() if level > PXB]
    if there and plan(node).changes == []:  # as in the machine, which is like it
        return
    if alone and len(alone) < len(levels):
        yield TopologyFinding(
            "adapter-far",
            NOTE,
            f"{listed(alone)}: no GPU below the same PCI switch, as other adapters have",
            tuple(alone),
            f"if they are for storage or management, exclude them with NCCL_IB_HCA=^{','.join(alone)}",
        )


def _nearest_gpu(node: ExaminedNode, net: ET.Element) -> int:
    """Nearness of an adapter's nearest GPU, as NCCL's path type."""
    path = [each for each in ancestors(node, net) if each.tag in ("pci", "cpu")]
    return min((nearness([pci, *ancestors(node, pci)], path) for pci in node.gpus), default=SYS)

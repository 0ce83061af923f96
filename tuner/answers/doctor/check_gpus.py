"""Checks GPUs: fewer NVLinks than the model has, links that lead nowhere, GPUDirect RDMA, compute capability, unknown
ids.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping

from tuner.answers.doctor.match import counterparts
from tuner.answers.doctor.records import (
    NOTE,
    UNLIKE,
    WRONG,
    ExaminedNode,
    TopologyFinding,
    gpu_name,
    listed,
    most_common,
    number,
)
from tuner.base.expressions import expression
from tuner.machine.topology import Gpu, Target


def check(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Yields every finding about GPUs."""
    yield from _capability(node)
    yield from _dangling(node)
    switched = any(gpu.count_nvlinks(Target.SWITCH) for gpu in node.topology.gpus)
    direct = any(gpu.count_nvlinks(Target.GPU) for gpu in node.topology.gpus)
    if direct and not switched:
        yield from _between(node)
    else:
        yield from _to_switches(node)
    yield from _unknown(node)


def _capability(node: ExaminedNode) -> Iterator[TopologyFinding]:
    pairs = counterparts(node)
    for pci in node.gpus:
        part, other, has = node.part(pci), pairs.get(pci), number(pci.find("gpu"), "sm")
        known = None if part is None else part.comp_cap
        if known is None and other is not None and other.get("device") == pci.get("device") is not None:
            known = number(other.find("gpu"), "sm")
        if known not in (None, has):
            yield TopologyFinding(
                "compute-capability",
                WRONG,
                f"{gpu_name(pci)}: the file says sm={has}, but a GPU with device id {pci.get('device')} has sm={known}",
                (gpu_name(pci),),
                "write the right value into the file (without a file, NCCL asks CUDA)",
                (f"sm={known}@{gpu_name(pci)}",),
            )


def _dangling(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Finds links that lead to no GPU, which NCCL drops, and links to a GPU whose class is that of a switch."""
    busids = {gpu.busid: f"gpu:{gpu.dev}" for gpu in node.topology.gpus}
    for gpu in node.topology.gpus:
        for link in gpu.nvlinks:
            if link.kind is Target.GPU and (link.target not in busids or link.target == gpu.busid):
                what = "itself" if link.target == gpu.busid else f"{link.target}, which is no GPU here"
                yield TopologyFinding(
                    "nvlink-target",
                    WRONG,
                    f"gpu:{gpu.dev}: {link.count} NVLinks lead to {what}, so that NCCL does not use them",
                    (f"gpu:{gpu.dev}",),
                    "nvidia-smi nvlink -R says where they lead",
                )
            elif link.kind is Target.SWITCH and link.target in busids:
                yield TopologyFinding(
                    "nvlink-target",
                    WRONG,
                    f"gpu:{gpu.dev}: NVLinks to {busids[link.target]} have the class of a switch ({link.tclass})",
                    (f"gpu:{gpu.dev}",),
                    'tclass="0x030200"',
                    (f"link-gpus={link.count}@gpu:{gpu.dev}-{busids[link.target]}",),
                )


def _to_switches(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Finds GPUs with fewer links to NVSwitches than their model, the machine or most GPUs of the node have."""
    have = [gpu.count_nvlinks(Target.SWITCH) for gpu in node.topology.gpus]
    expected = _expected(node, have)
    fewer = [at for at, links in enumerate(have) if expected and links < expected]
    names = [f"gpu:{node.topology.gpus[at].dev}" for at in fewer]
    if not fewer or expected is None:
        return
    counts = ", ".join(map(str, sorted({have[at] for at in fewer})))
    if any(have) or _certain(node):
        yield TopologyFinding(
            "nvlinks",
            WRONG,
            f"{listed(names)}: {counts} of {expected} NVLinks; NCCL assumes the lowest number for all GPUs",
            tuple(names),
            "run nvidia-smi nvlink -s; a virtual machine needs all NVSwitches of its GPUs, or the host's fabric "
            "manager",
            tuple(f"nvswitch={expected}@{name}" for name in names),
        )


def _certain(node: ExaminedNode) -> bool:
    """Whether these GPUs must have NVLinks to NVSwitches, because the same machine or every form of their model has
    them.
    """
    forms = [part.nvlinks for pci in node.gpus if (part := node.part(pci)) is not None]
    always = len(forms) == len(node.gpus) and all(forms) and all(min(each) > 0 for each in forms)
    return len(node.gpus) > 1 and _like_switched(node) and _same_model(node) and (node.same or always)


def _same_model(node: ExaminedNode) -> bool:
    """Whether the machine's GPUs have the device ids of the file; true if the file has no device ids."""
    devices = {pci.get("device") for pci in node.gpus}
    there = set() if node.like_root is None else {pci.get("device") for pci in node.like_root.iter("pci")}
    return devices <= {None, *there}


def _like_switched(node: ExaminedNode) -> bool:
    like = node.like
    return like is not None and like.topology.has_nvswitch(len(like.topology.gpus))


def _expected(node: ExaminedNode, have: list[int]) -> int | None:
    like = node.like
    if like is not None and _like_switched(node) and _same_model(node):
        counts = {gpu.count_nvlinks(Target.SWITCH) for gpu in like.topology.gpus}
        return counts.pop() if len(counts) == 1 else None
    forms = {part.nvlinks for pci in node.gpus if (part := node.part(pci)) is not None}
    if any(have) and len(forms) == 1:
        return max(forms.pop(), default=0) or None
    return most_common(have)


def _between(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Finds missing links between two GPUs: only one of the two has them, or every form of their model or the same
    machine has them.
    """
    gpus, here = node.topology.gpus, _pairs(node.topology.gpus)
    same = node.same and node.like is not None and len(node.like.topology.gpus) == len(gpus) and _same_model(node)
    there = _pairs(node.like.topology.gpus) if node.like is not None and same else _by_form(node, here)
    for pair in sorted({tuple(sorted(each)) for each in (*here, *there)}):
        a, b = pair
        one, other = here.get((a, b), 0), here.get((b, a), 0)
        most = max(one, other, there.get((a, b), 0))
        if min(one, other) < most:
            names = f"gpu:{gpus[a].dev}", f"gpu:{gpus[b].dev}"
            yield TopologyFinding(
                "nvlinks",
                WRONG,
                f"{one} NVLinks from {names[0]} to {names[1]}, and {other} back; such GPUs have {most}",
                names,
                "run nvidia-smi nvlink -s, which shows a link that is down at both ends",
                (f"link-gpus={most}@{names[0]}-{names[1]}",),
            )


def _by_form(node: ExaminedNode, here: Mapping[tuple[int, int], int]) -> Mapping[tuple[int, int], int]:
    """Numbers of links between pairs of GPUs as in the next larger form of their model, for pairs that lack equally
    many.
    """
    wanted = dict(here)
    of_gpu = [sum(count for (own, _), count in here.items() if own == each) for each in range(len(node.gpus))]
    lack: dict[int, int] = {}
    for at, pci in enumerate(node.gpus):
        part = node.part(pci)
        forms = [] if part is None else [links for links in part.nvlinks if links >= of_gpu[at]]
        if of_gpu[at] and forms and min(forms) > of_gpu[at]:
            lack[at] = min(forms) - of_gpu[at]
    for (a, b), count in here.items():
        alone = [other for own, other in here if own == a and lack.get(other) == lack.get(a)] == [b]
        if a in lack and lack.get(b) == lack[a] and alone:
            wanted[a, b] = count + lack[a]
    return wanted


def _pairs(gpus: tuple[Gpu, ...]) -> Mapping[tuple[int, int], int]:
    at = {gpu.busid: number for number, gpu in enumerate(gpus)}
    return {
        (number, at[link.target]): link.count
        for number, gpu in enumerate(gpus)
        for link in gpu.nvlinks
        if link.kind is Target.GPU and link.target in at and at[link.target] != number
    }


def without_gpudirect(node: ExaminedNode) -> TopologyFinding | None:
    """Finds GPUs without GPUDirect RDMA, although their model supports it and the node has an adapter that can use it.

    If a node has only sockets and no such adapter, gdr="0" is no fault: NCCL then writes it for every GPU.
    """
    pairs = counterparts(node) if node.same else {}
    off = [pci for pci in node.gpus if _is_off(pci.find("gpu")) and not _is_off(_gpu(pairs.get(pci)))]
    able = [pci for pci in off if (part := node.part(pci)) is not None and part.gpudirect_rdma]
    if able and any(reaches_memory(node, net) for net in node.adapters):
        names = [gpu_name(pci) for pci in able]
        severity, unlike = (
            (WRONG, None) if node.same or len(off) < len(node.gpus) else node.judged(_model(node, able[0]))
        )
        return TopologyFinding(
            "gpudirect",
            severity,
            f'{listed(names)}: gdr="0": data to and from adapters goes over the CPU\'s memory',
            tuple(names),
            "load nvidia-peermem (lsmod), or use a kernel and driver with DMA-BUF",
            ("gpudirect=" + ",".join(f"on@{name}" for name in names),),
            unlike,
        )
    return None


def _model(node: ExaminedNode, pci: ET.Element) -> str:
    part = node.part(pci)
    return "such GPUs" if part is None else part.name


_INTERFACE = expression(r"(?:en|eth|ib|bond|br|docker|veth|lo|wl|virbr|team)[a-z]*\d[\w.]*|lo|docker0")


def reaches_memory(node: ExaminedNode, net: ET.Element) -> bool:
    """Whether an adapter can access a GPU's memory by itself (GPUDirect RDMA). A known part says whether it can; an
    unknown part can if it is an InfiniBand device. An interface for sockets cannot, whatever its part.
    """
    slot = node.slot(net)
    part = None if slot is None else node.part(slot)
    known = slot is not None and slot.get("class", "").startswith("0x0207") if part is None else part.gpudirect_rdma
    return known and _INTERFACE.fullmatch(net.get("name", "")) is None


def _gpu(pci: ET.Element | None) -> ET.Element | None:
    return None if pci is None else pci.find("gpu")


def _is_off(element: ET.Element | None) -> bool:
    return element is not None and element.get("gdr") == "0"


def _unknown(node: ExaminedNode) -> Iterator[TopologyFinding]:
    strange = [
        pci
        for pci in node.root.iter("pci")
        if pci.get("device") is not None and node.part(pci) is None and pci not in counterparts(node)
    ]
    ids = dict.fromkeys(f"{pci.get('vendor')}:{pci.get('device')}" for pci in strange)
    if ids:
        yield TopologyFinding(
            "unknown-device",
            NOTE,
            f"{listed(list(ids))}: these parts are not known here, so they are not judged",
            tuple(pci.get("busid", "") for pci in strange),
            "nothing",
        )
    count = len(node.gpus)
    if count > 2 and count & (count - 1) and node.topology.has_nvswitch(count):
        yield TopologyFinding(
            "gpus",
            UNLIKE,
            f"{count} GPUs with NVSwitches, but nodes with NVSwitches have 4, 8 or 16 GPUs",
            (),
            "look at nvidia-smi and dmesg (Xid 79): a GPU may have fallen off the bus; all GPUs of the node "
            "have to be visible",
            unlike="such boards",
        )

"""Adapters: speeds that are missing or low, GPUDirect RDMA, adapters that NCCL takes for one, or drops."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator

from tuner.answers.doctor.check_gpus import reaches_memory
from tuner.answers.doctor.match import counterparts
from tuner.answers.doctor.records import NOTE, WRONG, Finding, Node, listed, most_common, number
from tuner.machine.topology.reader import DEFAULT_SPEED_MBPS


def check(node: Node) -> Iterator[Finding]:
    """All of them."""
    yield from _speeds(node)
    yield from _gpudirect(node)
    yield from _guids(node)
    yield from _dropped(node)
    yield from _count(node)


def _speeds(node: Node) -> Iterator[Finding]:
    pairs = counterparts(node)
    groups: dict[tuple[str, float, tuple[str, str | None]], list[str]] = {}
    speeds = {net: number(net, "speed") for net in node.adapters}
    for net, speed in speeds.items():
        slot = node.slot(net)
        part = None if slot is None else node.part(slot)
        alike = [
            speeds[other]
            for other in node.adapters
            if (theirs := node.slot(other)) is not None and slot is not None and _ids(theirs) == _ids(slot)
        ]
        there = _of(pairs.get(slot)) if slot is not None else None
        can = round(1000 * part.gbps) if part is not None and part.gbps else 0
        unset = speed in (0, -1, DEFAULT_SPEED_MBPS)
        here = most_common(alike) or 0
        by: list[tuple[int, tuple[str, str | None]]] = [(here, (WRONG, None))]
        if there is not None:
            by.append((there, node.judged()))
        if unset and part is not None:
            by.append((can, (WRONG, None) if speed <= 0 else node.judged(part.name)))
        expected, judged = next(
            ((each, why) for each, why in by if each > max(speed, DEFAULT_SPEED_MBPS)), (0, by[0][1])
        )
        if speed < expected and (part is None or part.gpudirect_rdma):
            state = "no speed, which reads as 10 Gb/s" if speed <= 0 else f"{speed / 1000:g} Gb/s"
            groups.setdefault((state, expected / 1000, judged), []).append(net.get("name", ""))
    for (state, gbps, (severity, unlike)), names in groups.items():
        yield Finding(
            "adapter-speed",
            severity,
            f"{listed(names)}: {state}, where {gbps:g} Gb/s is usual for such adapters",
            tuple(names),
            "ibstat or ethtool: a link that is down or trained down; NCCL asks its network where a file leaves it open",
            ("nic-gbps=" + ",".join(f"{gbps:g}@{name}" for name in names),),
            unlike,
        )


def _of(slot: ET.Element | None) -> int | None:
    net = None if slot is None else slot.find("nic/net")
    return None if net is None else number(net, "speed")


def _ids(slot: ET.Element) -> tuple[str | None, str | None]:
    return slot.get("vendor"), slot.get("device")


def _gpudirect(node: Node) -> Iterator[Finding]:
    """Adapters that do not reach GPUs' memory, where they and a GPU can."""
    if not any(part.gpudirect_rdma for pci in node.gpus if (part := node.part(pci)) is not None):
        return
    pairs, names = counterparts(node) if node.same else {}, list[str]()
    for net in node.adapters:
        slot = node.slot(net)
        if net.get("gdr") != "0" or slot is None:
            continue
        there = None if (other := pairs.get(slot)) is None else other.find("nic/net")
        if reaches_memory(node, net) and (there is None or there.get("gdr") != "0"):
            names.append(net.get("name", ""))
    if names:
        some = any(net.get("gdr") != "0" for net in node.adapters)
        severity, unlike = (WRONG, None) if node.same or some else node.judged("such adapters")
        yield Finding(
            "gpudirect",
            severity,
            f'{listed(names)}: gdr="0": data to and from GPUs goes over the CPU\'s memory',
            tuple(names),
            "load nvidia-peermem (lsmod), or a kernel and driver with DMA-BUF; the network plugin has to support it",
            ("gpudirect=" + ",".join(f"on@{name}" for name in names),),
            unlike,
        )


def _guids(node: Node) -> Iterator[Finding]:
    """Adapters of different PCI devices with one guid and port."""
    seen: dict[tuple[str, str], list[ET.Element]] = {}
    for net in node.adapters:
        if net.get("guid") is not None:
            seen.setdefault((net.get("guid", "").lower(), net.get("port", "0")), []).append(net)
    for (guid, _), nets in seen.items():
        if len(nets) > 1 and len({node.slot(net) for net in nets}) == len(nets):
            names = [net.get("name", "") for net in nets]
            yield Finding(
                "guid",
                WRONG,
                f"{listed(names)} have one guid ({guid}) and port: NCCL takes them for one port, and its bandwidth",
                tuple(names),
                "write distinct guids; virtual functions get theirs from the hypervisor",
                (f"new-guid={','.join(names[1:])}",),
            )


def _dropped(node: Node) -> Iterator[Finding]:
    """Adapters with coll="1" and without keep="1"."""
    names = [net.get("name", "") for net in node.adapters if net.get("coll") == "1" and net.get("keep") != "1"]
    if names:
        yield Finding(
            "keep",
            NOTE,
            f'{listed(names)}: coll="1" without keep="1": given as NCCL_TOPO_FILE, NCCL 2.24 to 2.26 drop them',
            tuple(names),
            "dumps of runs with CollNet have coll: write keep, or leave coll out",
            (f"keep={','.join(names)}",),
        )


def _count(node: Node) -> Iterator[Finding]:
    if node.like is None:
        return
    have, there = len(node.adapters), len(node.like.topology.nets)
    if have != there:
        fewer = have < there
        severity, unlike = node.judged() if fewer else (NOTE, None)
        yield Finding(
            "adapters",
            severity,
            f"adapters: {have}, and {node.like.name} has {there}",
            (),
            "ibdev2netdev: some may be down or not passed" if fewer else "NCCL_IB_HCA excludes those for storage",
            unlike=unlike,
        )

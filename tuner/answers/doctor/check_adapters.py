"""Adapters: speeds that are missing or low, GPUDirect RDMA, adapters that NCCL takes for one, or drops."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator

from tuner.answers.doctor.match import counterparts
from tuner.answers.doctor.records import NOTE, UNUSUAL, WRONG, Finding, Node, listed, most_common, number
from tuner.machine.topology.reader import DEFAULT_SPEED_MBPS


def check(node: Node) -> Iterator[Finding]:
    """All of them."""
    yield from _speeds(node)
    yield from _gpudirect(node)
    yield from _guids(node)
    yield from _dropped(node)
    yield from _count(node)


def _speeds(node: Node) -> Iterator[Finding]:
    pairs, groups = counterparts(node), dict[tuple[str, float], list[str]]()
    speeds = {net: number(net, "speed") for net in node.adapters}
    for net, speed in speeds.items():
        slot = node.slot(net)
        part = None if slot is None else node.part(slot)
        alike = [
            speeds[other]
            for other in node.adapters
            if (theirs := node.slot(other)) is not None and slot is not None and _ids(theirs) == _ids(slot)
        ]
        like = pairs.get(slot) if slot is not None else None
        usual = _of(like) or most_common(alike) or 0
        can = round(1000 * part.gbps) if part is not None and part.gbps else 0
        unset = speed in (0, -1, DEFAULT_SPEED_MBPS)
        expected = usual if usual > DEFAULT_SPEED_MBPS else can if unset else usual
        if speed < expected and (part is None or part.gpudirect_rdma):
            state = "no speed, which reads as 10 Gb/s" if speed <= 0 else f"{speed / 1000:g} Gb/s"
            groups.setdefault((state, expected / 1000), []).append(net.get("name", ""))
    for (state, gbps), names in groups.items():
        yield Finding(
            "adapter-speed",
            WRONG,
            f"{listed(names)}: {state}, where {gbps:g} Gb/s is usual for such adapters",
            tuple(names),
            "ibstat or ethtool: a link that is down or trained down; NCCL asks its network where a file leaves it open",
            ("nic-gbps=" + ",".join(f"{gbps:g}@{name}" for name in names),),
        )


def _of(slot: ET.Element | None) -> int | None:
    net = None if slot is None else slot.find("nic/net")
    return None if net is None else number(net, "speed")


def _ids(slot: ET.Element) -> tuple[str | None, str | None]:
    return slot.get("vendor"), slot.get("device")


def _gpudirect(node: Node) -> Iterator[Finding]:
    pairs, names, known = counterparts(node), list[str](), True
    for net in node.adapters:
        slot = node.slot(net)
        if net.get("gdr") != "0" or slot is None:
            continue
        part, other = node.part(slot), pairs.get(slot)
        there = None if other is None else other.find("nic/net")
        rdma = slot.get("class", "").startswith("0x0207") if part is None else part.gpudirect_rdma
        if rdma and (there is None or there.get("gdr") != "0"):
            names.append(net.get("name", ""))
            known &= part is not None
    if names:
        yield Finding(
            "gpudirect",
            WRONG if known else UNUSUAL,
            f'{listed(names)}: gdr="0": data to and from GPUs goes over the CPU\'s memory',
            tuple(names),
            "load nvidia-peermem (lsmod), or a kernel and driver with DMA-BUF; the network plugin has to support it",
            ("gpudirect=" + ",".join(f"on@{name}" for name in names),),
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
            UNUSUAL,
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
        yield Finding(
            "adapters",
            UNUSUAL if fewer else NOTE,
            f"adapters: {have}, and {node.like.name} has {there}",
            (),
            "ibdev2netdev: some may be down or not passed" if fewer else "NCCL_IB_HCA excludes those for storage",
        )

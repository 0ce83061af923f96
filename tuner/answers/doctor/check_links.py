"""Checks PCIe links: speeds that are missing, or lower than the part can have or similar parts do have."""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tuner.answers.doctor.check_gpus import reaches_memory, without_gpudirect
from tuner.answers.doctor.match import counterparts, device_name, link, switches
from tuner.answers.doctor.records import NOTE, UNLIKE, WRONG, ExaminedNode, TopologyFinding, listed, most_common, number
from tuner.machine.topology.reader import DEFAULT_SPEED_MBPS

Link = tuple[int, int]  # generation, lanes
OTHERS = "the others here"
EMULATED = (1, 1)  # 2.5 GT/s and one lane
Kind = tuple[str | None, ...]  # class, vendor and device


def check_links(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Finds slow links, and links without a speed, which NCCL treats as PCIe 3.0."""
    wanted, by_part = _wanted(node)
    missing, slow = dict[ET.Element, Link | None](), dict[ET.Element, Link]()
    for pci in node.root.iter("pci"):
        if (pci.find("gpu") is None and pci.find("nic") is None and pci.find("pci") is None) or _built_in(node, pci):
            continue
        generation, lanes = link(pci)
        expected = wanted.get(pci)
        if generation is None or lanes is None:
            missing[pci] = expected
        elif expected is not None and _speed((generation, lanes)) < _speed(expected):
            slow[pci] = expected
    if missing:
        names = [device_name(pci) for pci in missing]
        yield TopologyFinding(
            "link-speed",
            WRONG,
            f"{listed(names)}: the PCIe link has no speed or number of lanes, so that NCCL assumes 8 GT/s and 16 lanes",
            tuple(names),
            "a hypervisor hides them (/sys/bus/pci/devices/*/max_link_speed): give NCCL a complete file with "
            "NCCL_TOPO_FILE",
            _changes(missing),
        )
    for expected, part in dict.fromkeys((each, by_part.get(pci)) for pci, each in slow.items()):
        alike = {pci: each for pci, each in slow.items() if (each, by_part.get(pci)) == (expected, part)}
        names = [device_name(pci) for pci in alike]
        have = ", ".join(dict.fromkeys(_in_words(link(pci)) for pci in alike))
        severity, unlike = (WRONG, None) if part is None else node.judged(part)
        usual = f"{part} can" if part not in (None, OTHERS) else "such devices here have"
        yield TopologyFinding(
            "link-slow",
            severity,
            f"{listed(names)}: PCIe {have}, but {usual} {_in_words(expected)}",
            tuple(names),
            "compare LnkSta with LnkCap in lspci -vv: if the link trained down, reseat its card; the slot "
            "itself may be slower",
            _changes(alike),
            unlike,
        )
    yield from _emulated(node)
    yield from _by_c2c(node)


def _emulated(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Finds bridges with one lane of PCIe 1.0 above faster devices, as virtual machines emulate them: NCCL believes
    this speed.
    """
    slow: dict[ET.Element, Link | None] = {}
    below = dict[ET.Element, Link]()
    for pci in node.root.iter("pci"):
        inside = [own for each in pci.iter("pci") if each is not pci and (own := _whole(link(each))) is not None]
        if link(pci) == EMULATED and inside and (fastest := max(inside, key=_speed)) > EMULATED:
            slow[pci], below[pci] = fastest, fastest
    if slow:
        names = [pci.get("busid", "") for pci in slow]
        yield TopologyFinding(
            "bridge-emulated",
            WRONG,
            f"{listed(names)}: bridges of PCIe {_in_words(EMULATED)} above devices of "
            f"{_in_words(max(below.values(), key=_speed))}, as a virtual machine emulates them: NCCL counts 0.2 GB/s "
            "for everything below them",
            tuple(names),
            "give NCCL the repaired file with NCCL_TOPO_FILE, or the topology of the host",
            _changes(slow),
        )


def _by_c2c(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Finds GPUs that NVLink-C2C connects with their CPU: NCCL's search counts only the GPU's PCIe link."""
    slow = [
        pci
        for pci in node.gpus
        if pci.find("gpu/c2c") is not None and None not in (own := link(pci)) and _speed(own) <= _speed((1, 16))  # type: ignore[arg-type]
    ]
    if slow:
        names = [device_name(pci) for pci in slow]
        yield TopologyFinding(
            "gpu-link",
            NOTE,
            f"{listed(names)}: PCIe {_in_words(link(slow[0]))} beside NVLink-C2C, as such parts show it: NCCL's search "
            "counts all links of such a GPU as the 3 GB/s of this one, and stops at channels of 3 GB/s between nodes",
            tuple(names),
            "nothing",
        )


def _built_in(node: ExaminedNode, pci: ET.Element) -> bool:
    """Whether the device is an adapter that cannot access GPUs' memory, such as an on-board one; its slow link is
    normal.
    """
    part = node.part(pci)
    return pci.find("gpu") is None and part is not None and not part.gpudirect_rdma


def _wanted(node: ExaminedNode) -> tuple[Mapping[ET.Element, Link], Mapping[ET.Element, str]]:
    """The link that each device should have: as in the same machine, else as most similar devices have, else what the
    part can do.

    Also names, for links whose difference may be intended, what a slower link differs from.
    """
    pairs, found = counterparts(node) | switches(node) if node.same else {}, dict[ET.Element, Link]()
    slots, by_part = list(node.root.iter("pci")), dict[ET.Element, str]()
    of_kind = _usual(slots)
    for pci in reversed(slots):  # switches after what is below them
        other = pairs.get(pci)
        known = None if other is None else _whole(link(other))
        part = node.part(pci)
        usual = of_kind[_kind(pci)]
        below = [found[each] for each in pci.iter("pci") if each is not pci and each in found]
        if known is not None:
            found[pci] = known
        elif pci.find("pci") is None:
            can = part.pcie if part and part.pcie else None
            best = max(filter(None, (usual, can)), key=_speed, default=None)
            if best is not None:
                found[pci] = best
            if part is not None and best is not None and (usual is None or _speed(usual) < _speed(best)):
                by_part[pci] = part.name
            elif pci.find("gpu") is None:  # a slot may have fewer lanes; a server gives all GPUs the same
                by_part[pci] = OTHERS
        elif usual is not None:
            found[pci], by_part[pci] = usual, OTHERS
        elif below and None in link(pci):
            found[pci] = max(below, key=_speed)
    return found, by_part


def _usual(slots: Sequence[ET.Element]) -> Mapping[Kind, Link | None]:
    """The link that more than half of the devices of a kind have, by kind; None if there is no such link."""
    by_kind: dict[Kind, list[Link | None]] = {}
    for pci in slots:
        by_kind.setdefault(_kind(pci), []).append(_whole(link(pci)))
    usual: dict[Kind, Link | None] = {}
    for kind, links in by_kind.items():
        ((value, count),) = Counter(links).most_common(1)
        usual[kind] = value if 2 * count > len(links) > 1 else None
    return usual


def _kind(pci: ET.Element) -> Kind:
    return (pci.get("class"), pci.get("vendor"), pci.get("device"))


def _whole(found: tuple[int | None, int | None]) -> Link | None:
    generation, lanes = found
    return None if generation is None or lanes is None else (generation, lanes)


def _speed(found: Link) -> int:
    return int(found[1] << found[0])


def _in_words(found: tuple[int | None, int | None]) -> str:
    return f"{found[0]}.0 x{found[1]}"


def _changes(found: Mapping[ET.Element, Link | None]) -> tuple[str, ...]:
    return tuple(f"pcie={each[0]}x{each[1]}@{device_name(pci)}" for pci, each in found.items() if each is not None)


def check_adapters(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Yields every finding about adapters."""
    yield from _speeds(node)
    yield from _gpudirect(node)
    yield from _guids(node)
    yield from _dropped(node)
    yield from _count(node)


def _speeds(node: ExaminedNode) -> Iterator[TopologyFinding]:
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
            if _is_adapter(slot)  # several may be shown below a bridge, which says nothing of them
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
            state = "no speed, so that NCCL assumes 10 Gb/s" if speed <= 0 else f"{speed / 1000:g} Gb/s"
            groups.setdefault((state, expected / 1000, judged), []).append(net.get("name", ""))
    for (state, gbps, (severity, unlike)), names in groups.items():
        yield TopologyFinding(
            "adapter-speed",
            severity,
            f"{listed(names)}: {state}, but {gbps:g} Gb/s is usual for such adapters",
            tuple(names),
            "look with ibstat or ethtool for a link that is down or trained down; if the file says no speed, "
            "NCCL asks its network",
            ("nic-gbps=" + ",".join(f"{gbps:g}@{name}" for name in names),),
            unlike,
        )


def _of(slot: ET.Element | None) -> int | None:
    net = None if slot is None else slot.find("nic/net")
    return None if net is None else number(net, "speed")


def _is_adapter(slot: ET.Element) -> bool:
    """Whether the class of a PCI device says that it is a network controller."""
    return slot.get("class", "").startswith("0x02")


def _ids(slot: ET.Element) -> tuple[str | None, str | None]:
    return slot.get("vendor"), slot.get("device")


def _gpudirect(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Finds GPUs and adapters without GPUDirect RDMA that could have it; one finding if it concerns both."""
    gpus, adapters = without_gpudirect(node), _without_gpudirect(node)
    if gpus is None or adapters is None or gpus.severity != adapters.severity:
        yield from filter(None, (gpus, adapters))
        return
    names = (*gpus.devices, *adapters.devices)
    yield replace(
        gpus,
        says=(
            f"{listed(gpus.devices)} and {listed(adapters.devices)}: "
            'gdr="0": data between GPUs and adapters goes over the CPU\'s memory'
        ),
        devices=names,
        do=adapters.do,
        changes=("gpudirect=" + ",".join(f"on@{name}" for name in names),),
    )


def _without_gpudirect(node: ExaminedNode) -> TopologyFinding | None:
    """Finds adapters without GPUDirect RDMA, although the adapters and a GPU support it."""
    if not any(part.gpudirect_rdma for pci in node.gpus if (part := node.part(pci)) is not None):
        return None
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
        return TopologyFinding(
            "gpudirect",
            severity,
            f'{listed(names)}: gdr="0": data to and from GPUs goes over the CPU\'s memory',
            tuple(names),
            "load nvidia-peermem (lsmod shows it), or use a kernel and driver with DMA-BUF; the network plugin "
            "has to support it",
            ("gpudirect=" + ",".join(f"on@{name}" for name in names),),
            unlike,
        )
    return None


def _guids(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Finds adapters of different PCI devices with the same guid and port."""
    seen: dict[tuple[str, str], list[ET.Element]] = {}
    for net in node.adapters:
        if net.get("guid") is not None:
            seen.setdefault((net.get("guid", "").lower(), net.get("port", "0")), []).append(net)
    for (guid, _), nets in seen.items():
        if len(nets) > 1 and len({node.slot(net) for net in nets}) == len(nets):
            names = [net.get("name", "") for net in nets]
            yield TopologyFinding(
                "guid",
                WRONG,
                f"{listed(names)} have the same guid ({guid}) and port: NCCL treats them as one port, with the "
                "bandwidth of one",
                tuple(names),
                "write different guids into the file; virtual functions get their guids from the hypervisor",
                (f"new-guid={','.join(names[1:])}",),
            )


def _dropped(node: ExaminedNode) -> Iterator[TopologyFinding]:
    """Finds adapters with coll="1" and without keep="1"."""
    names = [net.get("name", "") for net in node.adapters if net.get("coll") == "1" and net.get("keep") != "1"]
    if names:
        yield TopologyFinding(
            "keep",
            NOTE,
            f'{listed(names)}: coll="1" without keep="1": if the file is NCCL_TOPO_FILE, NCCL 2.24 to 2.26 '
            "ignore these adapters",
            tuple(names),
            "topologies dumped by runs with CollNet have coll: add keep, or remove coll",
            (f"keep={','.join(names)}",),
        )


def _are_some_of_the_same(node: ExaminedNode) -> bool:
    """Whether every adapter has the bus id of one of the machine's adapters."""
    there = set() if node.like_root is None else _places(node.like_root)
    return _places(node.root) <= there


def _places(root: ET.Element) -> set[str]:
    """The bus ids of all adapters."""
    return {pci.get("busid", "").lower() for pci in root.iter("pci") if pci.find("nic/net") is not None}


def _count(node: ExaminedNode) -> Iterator[TopologyFinding]:
    if node.like is None:
        return
    have, there = len(node.adapters), len(node.like.topology.nets)
    if have != there:
        fewer = have < there
        severity, unlike = node.judged() if fewer else (NOTE, None)
        if fewer and severity == WRONG and not _are_some_of_the_same(node):
            severity, unlike = UNLIKE, node.like.name  # bought with other adapters: they are not those that lack
        yield TopologyFinding(
            "adapters",
            severity,
            f"the file has these adapters: {have}; {node.like.name} has {there}",
            (),
            "look at ibdev2netdev: some adapters may be down, or not passed to the container or virtual machine"
            if fewer
            else "exclude adapters for storage with NCCL_IB_HCA",
            unlike=unlike,
        )

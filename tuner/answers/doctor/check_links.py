"""PCIe links: speeds that are missing, or lower than the part has, or than those of parts like it."""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tuner.answers.doctor.match import counterparts, link, switches
from tuner.answers.doctor.records import NOTE, WRONG, Finding, Node, gpu_name, listed

Link = tuple[int, int]  # generation, lanes
OTHERS = "the others here"
Kind = tuple[str | None, ...]  # class, vendor and device


def check(node: Node) -> Iterator[Finding]:
    """Links without a speed, which NCCL takes for PCIe 3.0, and slow ones."""
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
        names = [_name(pci) for pci in missing]
        yield Finding(
            "link-speed",
            WRONG,
            f"{listed(names)}: PCIe link without speed or lanes, which NCCL takes for 8 GT/s and for 16 lanes",
            tuple(names),
            "a hypervisor hides them (/sys/bus/pci/devices/*/max_link_speed): NCCL_TOPO_FILE",
            _changes(missing),
        )
    for expected, part in dict.fromkeys((each, by_part.get(pci)) for pci, each in slow.items()):
        alike = {pci: each for pci, each in slow.items() if (each, by_part.get(pci)) == (expected, part)}
        names = [_name(pci) for pci in alike]
        have = ", ".join(dict.fromkeys(_in_words(link(pci)) for pci in alike))
        severity, unlike = (WRONG, None) if part is None else node.judged(part)
        usual = f"{part} can" if part not in (None, OTHERS) else "such devices here have"
        yield Finding(
            "link-slow",
            severity,
            f"{listed(names)}: PCIe {have}, where {usual} {_in_words(expected)}",
            tuple(names),
            "lspci -vv (LnkSta, LnkCap): a link that trained down wants its card seated anew; a slot may have no more",
            _changes(alike),
            unlike,
        )
    yield from _by_c2c(node)


def _by_c2c(node: Node) -> Iterator[Finding]:
    """GPUs that NVLink-C2C joins with their CPU: NCCL's search counts all that a GPU has by its PCIe link."""
    slow = [
        pci
        for pci in node.gpus
        if pci.find("gpu/c2c") is not None and None not in (own := link(pci)) and _speed(own) <= _speed((1, 16))  # type: ignore[arg-type]
    ]
    if slow:
        names = [gpu_name(pci) for pci in slow]
        yield Finding(
            "gpu-link",
            NOTE,
            f"{listed(names)}: PCIe {_in_words(link(slow[0]))} beside NVLink-C2C, as such parts show it: NCCL's search "
            "counts all links of such a GPU as the 3 GB/s of this one, and stops at channels of 3 GB/s between nodes",
            tuple(names),
            "nothing",
        )


def _built_in(node: Node, pci: ET.Element) -> bool:
    """Adapters without memory access to GPUs, such as an on-board network, are as slow as they are."""
    part = node.part(pci)
    return pci.find("gpu") is None and part is not None and not part.gpudirect_rdma


def _wanted(node: Node) -> tuple[Mapping[ET.Element, Link], Mapping[ET.Element, str]]:
    """Links that each device should have: the same machine's, else what most like it have, else what the part can.

    With the name of what a slower one is unlike, where it may be so.
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
    """What more than half of the devices of a kind have."""
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
    return tuple(f"pcie={each[0]}x{each[1]}@{_name(pci)}" for pci, each in found.items() if each is not None)


def _name(pci: ET.Element) -> str:
    if pci.find("gpu") is not None:
        return gpu_name(pci)
    net = pci.find("nic/net")
    return pci.get("busid", "") if net is None else net.get("name", "")

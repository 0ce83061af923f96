"""Records: findings in a topology, and the node as the checks see it."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.records import json_form
from tuner.machine import gpus
from tuner.machine.catalogue import Machine
from tuner.machine.listings.shape import NodeShape
from tuner.machine.topology import Topology

NVIDIA = "10de"


@dataclass(frozen=True, slots=True)
class KnownPart:
    """A kind of device: ``kind`` is gpu, adapter or switch.

    ``pcie`` is the generation and the number of lanes, ``gbps`` the speed of a port; each is None if not known.
    ``nvlinks`` has the number of NVLinks for each form in which a GPU is sold: with bridges and without.
    """

    name: str
    kind: str
    pcie: tuple[int, int] | None = None
    gbps: float | None = None
    gpudirect_rdma: bool = True
    nvlinks: tuple[int, ...] = ()
    comp_cap: int | None = None


def of(vendor: str | None, device: str | None) -> KnownPart | None:
    """The part with these ids, as in ``vendor="0x10de" device="0x2330"``; None if they are not known."""
    key = f"{(vendor or '').lower().removeprefix('0x')}:{(device or '').lower().removeprefix('0x')}"
    return _gpus().get(key) or _others().get(key)


@cache
def _gpus() -> dict[str, KnownPart]:
    """Known GPUs by their ids; several models with the same device id are treated as forms of one part."""
    found: dict[str, KnownPart] = {}
    for name in gpus.names():
        model = gpus.load(name)
        for device in model.pci_devices:
            key = f"{NVIDIA}:{device.removeprefix('0x')}"
            first = found.get(key)
            links = sorted({model.nvlinks, *(first.nvlinks if first else ())})
            found[key] = KnownPart(
                first.name if first else name,
                "gpu",
                model.pcie_link,
                None,
                model.gpudirect_rdma,
                tuple(links),
                model.compute_capability,
            )
    return found


@cache
def _others() -> dict[str, KnownPart]:
    table = tables.toml(tables.folder() / "parts.toml")
    return {
        ids: KnownPart(
            row["name"],
            kind.removesuffix("s") if kind == "adapters" else "switch",
            _pcie(row.get("pcie")),
            row.get("gbps"),
            row.get("gpudirect_rdma", True),
        )
        for kind, rows in table.items()
        for ids, row in rows.items()
    }


def _pcie(text: str | None) -> tuple[int, int] | None:
    generation, _, lanes = (text or "").partition("x")
    return (int(generation), int(lanes)) if lanes else None


KINDS = (
    *(
        "pci-flat",
        "numa-nodes",
        "numa",
        "place",
        "another-layout",
        "link-speed",
        "link-slow",
        "bridge-emulated",
        "gpu-link",
        "split-host",
        "nvlinks",
        "nvlink-target",
    ),
    *("gpudirect", "adapter-speed", "adapter-far", "adapters", "gpus", "guid", "keep", "compute-capability"),
    *("processors", "processor-family", "affinity", "virtual-machine", "unknown-device"),
)
# Against physics, the part's own data, the other devices of the host or the same machine; otherwise than a machine or
# part that it need not be like; good to know.
WRONG, UNLIKE, NOTE = "wrong", "unlike", "note"


@dataclass(frozen=True, slots=True)
class TopologyFinding:
    """One finding: its ``kind``, its severity (``wrong``, ``unlike`` something, or a ``note``), a text, and its
    devices.

    ``changes`` are written as for ``diff``. They repair the fault, or make the node like the machine ``unlike``; there
    are none if only the hardware itself can be repaired. ``do`` says what to do on the machine. ``busbw_gbs_left`` is
    the bus bandwidth that NCCL predicts at the last size that was asked for, if everything except this finding is
    repaired.
    """

    kind: str
    severity: str
    says: str
    devices: tuple[str, ...]
    do: str
    changes: tuple[str, ...] = ()
    unlike: str | None = field(default=None, metadata=json_form(optional=True))  # a machine or part
    busbw_gbs_left: float | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True)
class ExaminedNode:
    """A node's topology as text, tree and records, its shape, and the machine with which it is compared, if any.

    ``above`` is the parent of each element. ``like_root`` is the tree of the machine.
    """

    text: str
    root: ET.Element
    topology: Topology
    shape: NodeShape
    above: Mapping[ET.Element, ET.Element]
    like: Machine | None
    like_root: ET.Element | None
    same: bool = False  # whether it is that machine: a user says so, or its GPUs and adapters have that one's bus ids

    def judged(self, name: str | None = None) -> tuple[str, str | None]:
        """The severity of a difference from the compared machine, or from the machine or part ``name``; and the name of
        that machine or part. If the node is the compared machine, a difference from it is wrong, and no name is
        returned.
        """
        if name is None and self.same:
            return WRONG, None
        return UNLIKE, name or (self.like.name if self.like else None)

    @property
    def gpus(self) -> list[ET.Element]:
        """The <pci> elements of GPUs, sorted by dev."""
        slots = [pci for pci in self.root.iter("pci") if pci.find("gpu") is not None]
        return sorted(slots, key=lambda pci: number(pci.find("gpu"), "dev"))

    @property
    def adapters(self) -> list[ET.Element]:
        """The <net> elements sorted by dev, each name once."""
        by_name = {net.get("name"): net for net in self.root.iter("net")}
        return sorted(by_name.values(), key=lambda net: number(net, "dev"))

    def slot(self, net: ET.Element) -> ET.Element | None:
        """The <pci> of an adapter; None if the adapter is not a PCI device."""
        above = self.above[self.above[net]]
        return above if above.tag == "pci" else None

    def part(self, pci: ET.Element) -> KnownPart | None:
        """The known part with the device's ids; None for unknown ids."""

        return of(pci.get("vendor"), pci.get("device"))


def number(element: ET.Element | None, name: str) -> int:
    """The value of a numeric attribute, which the reader has already checked."""
    return 0 if element is None else int(element.get(name, "0"), 0)


def gpu_name(pci: ET.Element) -> str:
    """Name of a GPU in changes, such as ``gpu:0``."""
    return f"gpu:{number(pci.find('gpu'), 'dev')}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """The names as a text: all names, or the first ones and how many more there are."""
    return (
        ", ".join(names) if len(names) <= most else f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    )


def most_common(values: Sequence[int]) -> int | None:
    """The value of more than half of ``values``; None if there is no such value."""
    return next((value for value in values if 2 * values.count(value) > len(values)), None)


def ancestors(node: ExaminedNode, element: ET.Element) -> Iterator[ET.Element]:
    """Elements around an element, innermost first, up to its <cpu>."""
    while element.tag not in ("cpu", "system"):
        element = node.above[element]
        yield element

"""Names links for people: by NCCL's names for the devices at both ends, and by the kind of link between them."""

from collections.abc import Iterable
from typing import NamedTuple

from tuner.graphs.build import RANK_OF_GPU_BIT
from tuner.graphs.system import HOST_BIT, AdapterDevice, DeviceKind, GpuDevice, Link, SystemDevice

OF_HOST = (1 << HOST_BIT) - 1  # the bits of an id without the host
OF_BUS = (1 << RANK_OF_GPU_BIT) - 1  # the bits of an id without the host and the rank
KINDS = {"PIX": "pcie", "NVL": "nvlink", "C2C": "c2c", "SYS": "sockets", "NET": "adapter", "LOC": "local"}
WORDS = {
    "PIX": "PCIe link",
    "NVL": "NVLink connection",
    "C2C": "C2C link",
    "SYS": "link between sockets",
    "NET": "network port",
    "LOC": "link",
}


class LinkClass(NamedTuple):
    """A class of equal links, in both directions: the sorted kinds of both ends, the kind of link, and its
    bandwidth."""

    ends: tuple[DeviceKind, DeviceKind]
    kind: str
    gbs: float


def class_of(owner: SystemDevice, link: Link, gbs: float | None = None) -> LinkClass:
    """The class of a link that starts at ``owner``.

    ``gbs`` is the link's bandwidth when nothing uses it; if it is None, the link's present bandwidth counts.
    """
    first, second = sorted((owner.kind, link.to.kind), key=lambda kind: kind.value)
    return LinkClass((first, second), link.kind, link.gbs if gbs is None else gbs)


def name(node: SystemDevice) -> str:
    """The name of a device: its number, or its bus id if it has no number. In an NVLink domain the host is added,
    unless it is the first."""
    if node.kind is DeviceKind.NVS:
        return "NVSwitch"
    number = _number(node)
    return f"{_kind(node).name.lower()}{' ' if number is None else ':'}{_numbered(node, number)}"


def called(node: SystemDevice) -> str:
    """What a sentence calls a device: its kind and its number, or its bus id if it has no number."""
    if node.kind is DeviceKind.NVS:
        return "the NVSwitch"
    number = _number(node)
    if number is None:
        what = "the adapter at" if node.kind is DeviceKind.NIC else "PCIe switch"
    else:
        what = "adapter" if node.kind is DeviceKind.NET else _kind(node).name
    return f"{what} {_numbered(node, number)}"


def place(node: SystemDevice) -> str:
    """The number of a device, or its bus id."""
    return _numbered(node, _number(node))


def _kind(node: SystemDevice) -> DeviceKind:
    return (
        DeviceKind.GPU if isinstance(node, GpuDevice) else node.kind
    )  # these also apply if the release keeps a GPU and its rank apart


def _number(node: SystemDevice) -> int | None:
    """The number that NCCL gives a GPU, an adapter or a CPU on its host."""
    if isinstance(node, GpuDevice):
        return node.dev
    if isinstance(node, AdapterDevice):
        return node.dev & OF_HOST
    return node.id & OF_HOST if node.kind is DeviceKind.CPU else None


def _numbered(node: SystemDevice, number: int | None) -> str:
    return f"{bus_id(node.id) if number is None else number}{f' of host {node.host}' if node.host else ''}"


def bus_id(number: int) -> str:
    """The bus id in a device's id, such as 0000:1b:00.0."""
    number &= OF_BUS
    domain, bus, device, function = number >> 20, number >> 12 & 0xFF, number >> 4 & 0xFF, number & 0xF
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def between(owner: SystemDevice, link: Link) -> str:
    """The name of a link, made of its two devices, such as ``gpu:3 -> pci 0000:1b:00.0``."""
    return f"{name(owner)} -> {name(link.to)}"


def phrase(owner: SystemDevice, link: Link) -> str:
    """The two ends of a link, in the words of a sentence."""
    if link.kind == "NET":
        net = owner if owner.kind is DeviceKind.NET else link.to
        return f"the network port of {called(net)}"
    return f"the {WORDS.get(link.kind, 'link')} from {called(owner)} to {called(link.to)}"


def gbs(value: float) -> str:
    """A bandwidth in GB/s, rounded to significant digits."""
    return f"{value:.4g} GB/s"


def listed(words: Iterable[str]) -> str:
    """The texts, joined with commas and a final "and"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last

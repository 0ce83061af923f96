"""A node with other hardware: its topology XML changed, to be searched again."""

import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from functools import cache

from tuner.machine.topology import edit_adapters, edit_links, edit_places, edit_repairs
from tuner.machine.topology.reader import read
from tuner.machine.topology.xml import to_text

EDITS: dict[str, Callable[[ET.Element, str], None]] = {
    "nic-gbps": edit_adapters.nic_gbps,
    "nic-latency-us": edit_adapters.nic_latency_us,
    "nics": edit_adapters.nics,
    "add-nic": edit_adapters.add_nic,
    "move-nic": edit_adapters.move_nic,
    "remove-nic": edit_adapters.remove_nic,
    "gpudirect": edit_adapters.gpudirect,
    "nvlinks": edit_links.nvlinks,
    "pcie": edit_links.pcie,
    "move-gpu": edit_places.move_gpu,
    "remove-gpu": edit_places.remove_gpu,
    "sockets": edit_places.sockets,
    "cpu": edit_places.cpu,
    "add-cpu": edit_repairs.add_cpu,
    "add-switch": edit_repairs.add_switch,
    "move-switch": edit_repairs.move_switch,
    "ids": edit_repairs.ids,
    "order": edit_repairs.order,
    "nvswitch": edit_repairs.nvswitch,
    "link-gpus": edit_repairs.link_gpus,
    "new-guid": edit_repairs.new_guid,
    "keep": edit_repairs.keep,
    "sm": edit_repairs.sm,
}
# Where what is said a second time does not replace what was said before.
ADD_UP = frozenset(
    {"add-nic", "move-nic", "remove-nic", "move-gpu", "remove-gpu", "add-cpu", "add-switch", "move-switch"}
    | {"new-guid", "keep"}
)


def together(key: str, before: str | None, value: str) -> str:
    """The value of a change that is made after another of the same key: devices by name are changed one by one."""
    return f"{before},{value}" if before is not None and adds_up(key, value) else value


def adds_up(key: str, value: str) -> bool:
    """Whether a change is made besides another of the same key, not instead of it."""
    return key in ADD_UP or (key in EDITS and "@" in value)


def edited(topology: str, changes: Mapping[str, str]) -> str:
    """The text of a topology after ``changes``, whose keys are those of :data:`EDITS`.

    Errors: BadInput for a value that this node cannot have.
    """
    return _edited(topology, tuple(changes.items()))


@cache
def _edited(topology: str, changes: tuple[tuple[str, str], ...]) -> str:
    read(topology)  # which refuses what is no topology
    root = ET.fromstring(topology)
    for key, value in changes:
        EDITS[key](root, value)
    return to_text(root)


@cache
def of_gpus(topology: str, numbers: tuple[int, ...]) -> str:
    """The text of a topology with these of its GPUs alone, by their place in the order of ``dev``, which they keep."""
    root = ET.fromstring(topology)
    edit_places.only_gpus(root, numbers)
    return to_text(root)


@cache
def with_ports_merged(topology: str, devs: tuple[int, ...], if_all: bool) -> str:
    """The text of a topology in which two ports of one device, among these adapters by ``dev``, are one adapter.

    ``if_all``: only where all adapters have as many ports. Source: ncclIbFindMatchingDev and ncclIbInit,
    src/transport/net_ib.cc, v2.21.5-1 and v2.23.4-1.
    """
    root = ET.fromstring(topology)
    return to_text(root) if edit_adapters.merge_ports(root, devs, if_all) else topology


def each_gpu_once(topology: str) -> str:
    """The text of a topology whose GPUs ranks shared as libnccl has to be given it: a <gpu> for every rank in it is one
    that this rank had, and NCCL would take them for ranks of the new communicator as well."""
    root = ET.fromstring(topology)
    for pci in root.iter("pci"):
        for gpu in pci.findall("gpu")[1:]:
            pci.remove(gpu)
    return to_text(root)

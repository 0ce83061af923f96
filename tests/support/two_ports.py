"""Topologies whose adapters have two ports each, made of those of the catalogue."""

import copy
import re
import xml.etree.ElementTree as ET
from typing import Literal

How = Literal["functions", "one device", "apart"]
HOW: tuple[How, ...] = ("functions", "one device", "apart")
MERGING: tuple[dict[str, str], ...] = (
    {},
    {"NCCL_NET_MERGE_LEVEL": "PIX"},
    {"NCCL_NET_MERGE_LEVEL": "PXB"},
    {"NCCL_NET_MERGE_LEVEL": "LOC"},
    {"NCCL_NET_MERGE_LEVEL": "SYS"},
    {"NCCL_IB_MERGE_NICS": "0"},
    {"NCCL_NET_MERGE_POLICY": "RAIL"},
    {"NCCL_NET_MERGE_POLICY": "all", "NCCL_NET_MERGE_LEVEL": "PXB"},
    {"NCCL_NET_MERGE_POLICY": "rail", "NCCL_NET_MERGE_LEVEL": "PXB", "NCCL_NET_FORCE_MERGE": "mlx5_0,mlx5_0_1"},
    {"NCCL_COLLNET_ENABLE": "1"},
)


def with_two_ports(topology: str, how: How) -> str:
    """A second port for each adapter: another function of its PCI device, the same device, or a device of its own."""
    root = ET.fromstring(topology)
    parents = {child: parent for parent in root.iter() for child in parent}
    nets = sorted(root.iter("net"), key=lambda net: int(net.get("dev", "0")))
    taken = {pci.get("busid") for pci in root.iter("pci")}
    for number, net in enumerate(nets):
        nic = parents[net]
        pci = parents[nic]
        second = copy.deepcopy(net)
        name = net.get("name", "")
        net.attrib.update(dev=str(2 * number), port="1")
        second.attrib.update(dev=str(2 * number + 1), name=f"{name}_1", port="1")
        if how == "one device":
            second.set("port", "2")
            nic.append(second)
            continue
        bus_id = pci.get("busid", "")
        bus_ids = [f"{bus_id[:-1]}{function}" for function in range(1, 8)]
        if how == "apart":
            bus_ids = [re.sub(r":..\.", f":{device:02x}.", bus_id) for device in range(1, 32)]
        device = ET.Element("pci", pci.attrib)
        device.set("busid", next(bus_id for bus_id in bus_ids if bus_id not in taken))
        taken.add(device.get("busid"))
        ET.SubElement(device, "nic").append(second)
        above = parents[pci]
        above.insert(list(above).index(pci) + 1, device)
    return ET.tostring(root, encoding="unicode")

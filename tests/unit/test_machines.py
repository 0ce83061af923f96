"""Every machine of the catalogue: what vendors document, restated here, what NCCL can read, and what libnccl found."""

import hashlib
import json
import re
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tests.support import captured_graphs
from tests.support.captured_graphs import Captured, ask, render
from tuner import release as releases
from tuner.base.errors import BadInput, OracleFailed, UnknownMachine
from tuner.base.names import PATH_NAMES, Collective, DataType, Op, Pattern
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection, of_picks
from tuner.machine import catalogue, graphs
from tuner.machine.catalogue import Alias, Machine
from tuner.machine.graphs import Graph, Graphs, GraphTable, from_table
from tuner.machine.topology import Target, read
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES
from tuner.scenario import Scenario


@dataclass(frozen=True)
class Documented:
    """What the vendors' documents say. A bus id of two digits is short for 0000:xx:00.0."""

    sm: int
    links: int  # NVLinks of a GPU
    link_targets: int  # that they lead to
    nvswitches: int  # addresses of all GPUs' switches
    mbps: int
    cpu: tuple[str, str | None, int | None, int | None]
    numa_nodes: int
    cpus: int
    threads: int  # of a core
    pci: set[tuple[str, str]]  # speed and width of its links
    roots: set[tuple[int, int]]  # GPUs and adapters below each device of a CPU
    gpus: str  # bus ids by dev
    nets: str
    names: str


INTEL, AMD = "GenuineIntel", "AuthenticAMD"
GEN3, GEN4, GEN5, GEN6 = (f"{gts}.0 GT/s PCIe" for gts in (8, 16, 32, 64))
L40S = Documented(
    89,
    0,
    0,
    0,
    100000,
    ("x86_64", INTEL, 6, 143),
    2,
    128,
    2,
    {(GEN5, "16"), (GEN4, "16")},
    {(4, 0), (0, 1)},
    "18 19 1a 1b 98 99 9a 9b",
    "2a aa",
    "mlx5_ 0 1",
)
DGX_H100 = Documented(
    90,
    18,
    4,
    4,
    400000,
    ("x86_64", INTEL, 6, 143),
    2,
    224,
    2,
    {(GEN5, "16")},
    {(1, 1)},
    "1b 43 52 61 9d c3 d1 df",
    "18 40 4f 5e 9a c0 ce dc",
    "mlx5_ 0 3 4 5 6 9 10 11",
)
GH200 = Documented(
    90,
    18,
    3,
    0,
    200000,
    ("arm64", None, None, None),
    4,
    288,
    1,
    {(GEN5, "16"), (GEN4, "16")},
    {(1, 0), (0, 1)},
    "0009:01:00.0 0019:01:00.0 0029:01:00.0 0039:01:00.0",
    "0001:01:00.0 0011:01:00.0 0021:01:00.0 0031:01:00.0",
    "cxi 0 1 2 3",
)
DOCUMENTED = {
    "dgx-1v": Documented(
        70,
        6,
        4,
        0,
        100000,
        ("x86_64", INTEL, 6, 79),
        2,
        80,
        2,
        {(GEN3, "16")},
        {(2, 1)},
        "06 07 0a 0b 85 86 89 8a",
        "05 0c 84 8b",
        "mlx5_ 0 1 2 3",
    ),
    "dgx-2": Documented(
        70,
        6,
        6,
        12,
        100000,
        ("x86_64", INTEL, 6, 85),
        2,
        96,
        2,
        {(GEN3, "16")},
        {(4, 2)},
        "34 36 39 3b 57 59 5c 5e b7 b9 bc be e0 e2 e5 e7",
        "35 3a 58 5d b8 bd e1 e6",
        "mlx5_ 0 1 2 3 6 7 8 9",
    ),
    "dgx-a100": Documented(
        80,
        12,
        6,
        6,
        200000,
        ("x86_64", AMD, 143, 49),
        4,
        256,
        2,
        {(GEN4, "16")},
        {(2, 2)},
        "07 0f 47 4e 87 90 b7 bd",
        "0c 12 4b 54 8d 94 ba cc",
        "mlx5_ 0 1 2 3 6 7 8 9",
    ),
    "dgx-h100": DGX_H100,
    "dgx-h200": DGX_H100,
    "dgx-b200": Documented(
        100,
        18,
        1,
        1,
        400000,
        ("x86_64", INTEL, 6, 207),
        2,
        224,
        2,
        {(GEN5, "16")},
        {(1, 1)},
        "1b 43 52 61 9d c3 d1 df",
        "18 40 4f 5e 9a c0 ce dc",
        "mlx5_ 4 7 8 9 10 13 14 15",
    ),
    "pcie-l40s": L40S,
    "pcie-l40s-no-p2p": L40S,
    "pcie-l40s-4nic": Documented(
        89,
        0,
        0,
        0,
        200000,
        ("x86_64", INTEL, 6, 143),
        2,
        128,
        2,
        {(GEN5, "16"), (GEN4, "16")},
        {(2, 1)},
        "19 1a 43 44 99 9a c3 c4",
        "18 42 98 c2",
        "mlx5_ 0 1 2 3",
    ),
    "pcie-l20": Documented(
        89,
        0,
        0,
        0,
        400000,
        ("x86_64", INTEL, 6, 143),
        2,
        192,
        2,
        {(GEN5, "16"), (GEN4, "16")},
        {(4, 2)},
        "10 11 42 43 4e 4f 58 59 8d 8e bf c0 cb cc d5 d6",
        "12 44 4d 57 8f c1 ca d4",
        "mlx5_ 1 2 3 4 5 6 7 8",
    ),
    "pcie-rtxpro6000": Documented(
        120,
        0,
        0,
        0,
        400000,
        ("x86_64", AMD, 191, 2),
        8,
        128,
        1,
        {(GEN5, "16")},
        {(1, 0), (1, 1)},
        "03 42 8c c7 0001:04:00.0 0001:44:00.0 0001:8e:00.0 0001:c8:00.0",
        "8e 0001:05:00.0",
        "mlx5_ 0 3",
    ),
    "dgx-spark": Documented(
        121,
        0,
        0,
        0,
        200000,
        ("arm64", None, None, None),
        1,
        20,
        1,
        {("2.5 GT/s PCIe", "16"), (GEN5, "4")},
        {(1, 0), (0, 1)},
        "000f:01:00.0",
        "0000:01:00.0 0002:01:00.0",
        "roce p1s0f1 P2p1s0f1",
    ),
    "ws-2x-a6000": Documented(
        86,
        4,
        1,
        0,
        10000,
        ("x86_64", AMD, 175, 8),
        1,
        64,
        2,
        {(GEN4, "16"), (GEN3, "2")},
        {(1, 0), (0, 1)},
        "21 41",
        "61",
        "enp97s 0",
    ),
    "a100-4x-1nic": Documented(
        80,
        12,
        3,
        0,
        200000,
        ("x86_64", AMD, 175, 1),
        4,
        64,
        1,
        {(GEN4, "16")},
        {(1, 0), (0, 1)},
        "07 46 85 c7",
        "c8",
        "cxi 0",
    ),
    "a100-4x-2nic": Documented(
        80,
        12,
        3,
        0,
        200000,
        ("x86_64", AMD, 175, 1),
        4,
        64,
        2,
        {(GEN4, "16")},
        {(1, 0), (0, 1)},
        "07 46 85 c7",
        "c8 47",
        "cxi 0 1",
    ),
    "aws-p4d": Documented(
        80,
        12,
        6,
        6,
        100000,
        ("x86_64", INTEL, 6, 85),
        2,
        96,
        2,
        {(GEN3, "16")},
        {(2, 1)},
        " ".join(f"0000:{bus}:1{gpu}.0" for bus in ("10", "20", "90", "a0") for gpu in "cd"),
        "0000:10:1b.0 0000:20:1b.0 0000:90:1b.0 0000:a0:1b.0",
        "rdmap 16s27 32s27 144s27 160s27",
    ),
    "aws-p5": Documented(
        90,
        18,
        4,
        4,
        100000,
        ("x86_64", AMD, 175, 1),
        2,
        192,
        2,
        {(GEN4, "8"), (GEN5, "16")},
        {(1, 4)},
        "53 64 75 86 97 a8 b9 ca",
        " ".join(f"{0x4F + 0x11 * gpu + k:02x}" for gpu in range(8) for k in range(4)),
        "rdmap " + " ".join(f"{0x4F + 0x11 * gpu + k}s0" for gpu in range(8) for k in range(4)),
    ),
    "aws-p5-rdma": Documented(
        90,
        18,
        4,
        4,
        400000,
        ("x86_64", AMD, 175, 1),
        2,
        192,
        2,
        {(GEN4, "8"), (GEN5, "16")},
        {(1, 1)},
        "53 64 75 86 97 a8 b9 ca",
        "4f 60 71 82 93 a4 b5 c6",
        "rdmap 79s0 96s0 113s0 130s0 147s0 164s0 181s0 198s0",
    ),
    "aws-p5en": Documented(
        90,
        18,
        4,
        4,
        400000,
        ("x86_64", INTEL, 6, 143),
        2,
        192,
        2,
        {(GEN5, "16")},
        {(2, 2)},
        "59 5a 72 73 8b 8c a4 a5",
        "55 57 6e 70 87 89 a0 a2",
        "rdmap 85s0 87s0 110s0 112s0 135s0 137s0 160s0 162s0",
    ),
    "aws-p6-b200": Documented(
        100,
        18,
        1,
        1,
        400000,
        ("x86_64", INTEL, 6, 207),
        2,
        192,
        2,
        {(GEN5, "16")},
        {(2, 2)},
        "51 52 62 63 75 76 86 87",
        "4f 50 60 61 71 72 84 85",
        "rdmap 79s0 80s0 96s0 97s0 113s0 114s0 132s0 133s0",
    ),
    "aws-p6-b300": Documented(
        103,
        18,
        1,
        1,
        800000,
        ("x86_64", INTEL, 6, 207),
        2,
        192,
        2,
        {(GEN5, "16"), (GEN6, "16")},
        {(1, 1)},
        "58 67 76 85 94 a3 b2 c1",
        "56 65 74 83 92 a1 b0 bf",
        "rdmap 86s0 101s0 116s0 131s0 146s0 161s0 176s0 191s0",
    ),
    "dgx-b300": Documented(
        103,
        18,
        1,
        1,
        800000,
        ("x86_64", INTEL, 6, 173),
        2,
        256,
        2,
        {(GEN5, "16"), (GEN6, "16")},
        {(1, 1)},
        "15 25 35 45 75 85 95 a5",
        "12 22 32 42 72 82 92 a2",
        "mlx5_ 0 1 2 3 4 5 6 7",
    ),
    "dgx-rubin-nvl8": Documented(
        107,
        36,
        1,
        1,
        800000,
        ("x86_64", INTEL, 6, 173),
        2,
        256,
        2,
        {(GEN5, "16"), (GEN6, "16")},
        {(1, 1)},
        "15 25 35 45 75 85 95 a5",
        "12 22 32 42 72 82 92 a2",
        "mlx5_ 0 1 2 3 4 5 6 7",
    ),
    "hgx-h200": Documented(
        90,
        18,
        4,
        4,
        400000,
        ("x86_64", INTEL, 6, 207),
        2,
        192,
        2,
        {(GEN5, "16")},
        {(1, 1)},
        "18 29 3a 4b 98 a9 ba cb",
        "19 2a 3b 4c 99 aa bb cc",
        "mlx5_ 0 1 2 3 4 5 6 7",
    ),
    "gcp-a3-mega": Documented(
        90,
        18,
        1,
        1,
        200000,
        ("x86_64", INTEL, 6, 143),
        2,
        208,
        2,
        {(GEN4, "16")},
        {(2, 2)},
        "04 05 0b 0c 84 85 8b 8c",
        "06 07 0d 0e 86 87 8d 8e",
        "eth 1 2 3 4 5 6 7 8",
    ),
    "gcp-a3-high": Documented(
        90,
        18,
        1,
        1,
        200000,
        ("x86_64", INTEL, 6, 143),
        2,
        208,
        2,
        {(GEN4, "16")},
        {(2, 1)},
        "04 05 0a 0b 84 85 8a 8b",
        "06 0c 86 8c",
        "enp 6s0 12s0 134s0 140s0",
    ),
    "gcp-a4": Documented(
        100,
        18,
        1,
        1,
        400000,
        ("x86_64", INTEL, 6, 207),
        2,
        224,
        2,
        {(GEN5, "16")},
        {(1, 1)},
        "18 29 3a 4b 98 a9 ba cb",
        "19 2a 3b 4c 99 aa bb cc",
        "mlx5_ 0 1 2 3 4 5 6 7",
    ),
    "hgx-h800": Documented(
        90,
        8,
        4,
        4,
        400000,
        ("x86_64", INTEL, 6, 143),
        2,
        224,
        2,
        {(GEN5, "16")},
        {(1, 1)},
        "28 36 48 58 a8 b6 c8 d8",
        "27 35 47 57 a7 b5 c7 d7",
        "mlx5_ 4 5 6 7 8 9 10 11",
    ),
    "oci-a100": Documented(
        80,
        12,
        6,
        6,
        100000,
        ("x86_64", AMD, 175, 1),
        4,
        128,
        1,
        {(GEN4, "16")},
        {(2, 4)},
        "0f 15 50 53 8c 91 d6 da",
        "47 47 4b 4b 0c 0c 16 16 c3 c3 d1 d1 89 89 93 93",
        "mlx5_ 28 29 30 31 18 19 26 27 22 23 24 25 32 33 20 21",
    ),
    "oci-h100": Documented(
        90,
        18,
        4,
        4,
        200000,
        ("x86_64", INTEL, 6, 143),
        2,
        224,
        2,
        {(GEN5, "16"), ("5.0 GT/s PCIe", "16")},
        {(1, 2)},
        "0f 2d 44 5b 89 a8 c0 d8",
        "0c 0c 2a 2a 41 41 58 58 86 86 a5 a5 bd bd d5 d5",
        "mlx5_ 18 19 26 27 28 29 30 31 32 33 20 21 22 23 24 25",
    ),
    "azure-nd-a100-v4": Documented(
        80,
        12,
        1,
        1,
        200000,
        ("x86_64", AMD, 23, 49),
        4,
        96,
        1,
        {(GEN4, "16")},
        {(2, 2)},
        "0001:00:00.0 0002:00:00.0 0003:00:00.0 0004:00:00.0 000b:00:00.0 000c:00:00.0 000d:00:00.0 000e:00:00.0",
        " ".join(f"010{n}:00:00.0" for n in range(1, 9)),
        "mlx5_ib 0 1 2 3 4 5 6 7",
    ),
    "azure-nd-h100-v5": Documented(
        90,
        18,
        1,
        1,
        400000,
        ("x86_64", INTEL, 6, 143),
        2,
        96,
        1,
        {(GEN5, "16")},
        {(1, 1)},
        "0001:00:00.0 0002:00:00.0 0003:00:00.0 0008:00:00.0 0009:00:00.0 000a:00:00.0 000b:00:00.0 000c:00:00.0",
        " ".join(f"010{n}:00:00.0" for n in range(1, 9)),
        "mlx5_ib 0 1 2 3 4 5 6 7",
    ),
    "gh200-4x": GH200,
    "alps": GH200,
    "gb200-nvl72": Documented(
        100,
        18,
        1,
        1,
        400000,
        ("arm64", None, None, None),
        2,
        144,
        1,
        {(GEN5, "16")},
        {(1, 0), (0, 1)},
        "0008:01:00.0 0009:01:00.0 0018:01:00.0 0019:01:00.0",
        "0000:03:00.0 0002:03:00.0 0010:03:00.0 0012:03:00.0",
        "mlx5_ 0 1 3 4",
    ),
    "aws-p6e-gb200": Documented(
        100,
        18,
        1,
        1,
        800000,
        ("arm64", None, None, None),
        2,
        144,
        1,
        {(GEN4, "1"), (GEN5, "16")},
        {(1, 1)},
        "29 3f 9c b2",
        "27 3d 9a b0",
        "rdmap 39s0 61s0 154s0 176s0",
    ),
    "gb300-nvl72": Documented(
        103,
        18,
        1,
        1,
        800000,
        ("arm64", None, None, None),
        2,
        144,
        1,
        {(GEN4, "1"), (GEN6, "16")},
        {(1, 1)},
        "0008:06:00.0 0009:06:00.0 0018:06:00.0 0019:06:00.0",
        "0009:03:00.0 0008:03:00.0 0019:03:00.0 0018:03:00.0",
        "rdma_vf_rail 0_dma 1_dma 2_dma 3_dma",
    ),
    "oci-b300": Documented(
        103,
        18,
        1,
        1,
        800000,
        ("x86_64", INTEL, 6, 207),
        2,
        256,
        2,
        {("5.0 GT/s PCIe", "16"), (GEN5, "16"), (GEN6, "16")},
        {(1, 1)},
        "14 32 49 60 8e ad c5 dd",
        "11 2f 46 5d 8b aa c2 da",
        "rdma_vf_rail 0 1 2 3 4 5 6 7",
    ),
    "hgx-h100-amd": Documented(
        90,
        18,
        4,
        4,
        400000,
        ("x86_64", AMD, 175, 17),
        2,
        384,
        2,
        {(GEN5, "16")},
        {(1, 1)},
        "03 23 43 63 83 a3 c3 e3",
        "04 24 44 64 84 a4 c4 e4",
        "mlx5_ 0 1 2 3 4 5 6 7",
    ),
}
NAMES = catalogue.names()


@pytest.fixture(params=NAMES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return catalogue.load(request.param)


def bus_ids(text: str) -> list[str]:
    return [word if ":" in word else f"0000:{word}:00.0" for word in text.split()]


def root_of(machine: Machine) -> ET.Element:
    return ET.fromstring(machine.topology_xml)


def test_every_machine_is_restated_here() -> None:
    assert set(NAMES) == set(DOCUMENTED)


def test_devices_are_the_documented_ones(machine: Machine) -> None:
    facts, topology = DOCUMENTED[machine.name], machine.topology
    gpus = len(topology.gpus)
    assert topology.compute_capabilities(gpus) == (facts.sm,) * gpus
    kind = Target.SWITCH if facts.nvswitches else Target.GPU
    assert [gpu.count_nvlinks(kind) for gpu in topology.gpus] == [facts.links] * gpus
    assert [len(gpu.nvlinks) for gpu in topology.gpus] == [facts.link_targets] * gpus
    assert topology.nvswitches == facts.nvswitches
    assert topology.has_nvswitch(1) == (facts.nvswitches > 0)
    assert {net.speed_mbps for net in topology.nets} == {facts.mbps}
    assert {(c.arch, c.vendor, c.family, c.model) for c in topology.cpus} == {facts.cpu}
    assert len(topology.cpus) == facts.numa_nodes
    assert (topology.cpu_arch, topology.cpu_vendor) == facts.cpu[:2]
    assert [gpu.busid for gpu in topology.gpus] == bus_ids(facts.gpus)
    assert [net.busid for net in topology.nets] == bus_ids(facts.nets)
    prefix, *numbers = facts.names.split()
    assert [net.name for net in topology.nets] == [prefix + number for number in numbers]
    assert [net.dev for net in topology.nets] == list(range(len(numbers)))
    adapters = {net.busid for net in topology.nets}  # whose ports share one guid
    assert (
        len({(net.guid, net.busid) for net in topology.nets})
        == len({net.guid for net in topology.nets})
        == len(adapters)
    )


def test_nvlinks_between_gpus_go_both_ways(machine: Machine) -> None:
    links = {(gpu.busid, link.target): link.count for gpu in machine.topology.gpus for link in gpu.nvlinks}
    between = {ends: count for ends, count in links.items() if ends[1] in {gpu.busid for gpu in machine.topology.gpus}}
    assert all(between[target, source] == count for (source, target), count in between.items())
    assert bool(between) == (DOCUMENTED[machine.name].links > 0 and not DOCUMENTED[machine.name].nvswitches)


def test_gpus_per_node_are_there(machine: Machine) -> None:
    assert machine.gpus_per_node == len(machine.topology.gpus)
    assert [gpu.dev for gpu in machine.topology.gpus] == list(range(machine.gpus_per_node))


def test_every_machine_names_its_sources(machine: Machine) -> None:
    assert machine.title
    assert machine.notes
    assert machine.sources
    for source in machine.sources:
        assert source.document.strip()
        assert source.section.strip()
        assert source.facts.strip()


def test_gpus_and_adapters_are_below_the_documented_pci_switches(machine: Machine) -> None:
    switches = root_of(machine).findall("cpu/pci")
    counts = {(len(switch.findall(".//gpu")), len(switch.findall(".//net"))) for switch in switches}
    assert counts == DOCUMENTED[machine.name].roots
    with_both = []
    for switch in switches:
        gpus = {int(gpu.attrib["dev"]) for gpu in switch.iter("gpu")}
        nets = {int(net.attrib["dev"]) for net in switch.iter("net")}
        if len(gpus) == len(nets):
            with_both.append((sorted(gpus), sorted(nets)))
    if machine.name == "pcie-rtxpro6000":  # only two of its GPUs have an adapter
        assert sorted(with_both) == [([2], [0]), ([4], [1])]
    elif machine.name == "gb300-nvl72":  # rails are numbered otherwise than GPUs
        assert sorted(with_both) == [([0], [1]), ([1], [0]), ([2], [3]), ([3], [2])]
    else:
        assert all(gpus == nets for gpus, nets in with_both)


def test_siblings_are_ordered_by_bus_id_as_nccl_orders_them(machine: Machine) -> None:
    for element in root_of(machine).iter("pci"):
        ids = [child.attrib["busid"] for child in element.findall("pci")]
        assert ids == sorted(ids)


def test_bus_ids_are_distinct(machine: Machine) -> None:
    ids = [element.get("busid") for element in root_of(machine).iter("pci")]
    assert len(ids) == len(set(ids))


HALF_WITHOUT_GPUS = {"dgx-a100", "oci-a100"}  # four of their eight NUMA nodes have no GPU


def test_cpu_masks_are_disjoint_and_complete(machine: Machine) -> None:
    facts = DOCUMENTED[machine.name]
    if machine.name == "dgx-spark":  # its system shows no NUMA node, and NCCL reads no mask
        assert [(cpu.attrib["numaid"], cpu.attrib["affinity"]) for cpu in root_of(machine).iter("cpu")] == [("-1", "")]
        return
    masks = [int(cpu.attrib["affinity"].replace(",", ""), 16) for cpu in root_of(machine).iter("cpu")]
    assert len({mask.bit_count() for mask in masks}) == 1
    listed = facts.cpus // 2 if machine.name in HALF_WITHOUT_GPUS else facts.cpus
    assert sum(mask.bit_count() for mask in masks) == listed
    assert not any(a & b for a, b in combinations(masks, 2))
    for cpu, mask in zip(root_of(machine).iter("cpu"), masks, strict=True):
        cores = facts.cpus // facts.threads
        parts = [mask >> (cores * thread) & ((1 << cores) - 1) for thread in range(facts.threads)]
        size = mask.bit_count() // facts.threads
        assert parts == [((1 << size) - 1) << (size * int(cpu.attrib["numaid"]))] * facts.threads


def test_nccls_own_parser_can_read_it(machine: Machine) -> None:
    """xmlGetNode, xml.cc: one space between attributes, no tabs, no declaration; limits of xml.h and topo.h."""
    text = re.sub(r"<!--.*?-->", "", machine.topology_xml, flags=re.DOTALL)
    assert "\t" not in machine.topology_xml
    assert "<?" not in text
    tags = re.findall(r"<[^>]*>", text)
    assert all(re.fullmatch(r'<[a-z0-9]+( [a-z_]+="[^"]{,254}")*/?>|</[a-z0-9]+>', tag) for tag in tags)
    elements = list(root_of(machine).iter())
    assert len(elements) <= 256
    assert max(len(element) for element in elements) <= 128
    assert max(len(element.attrib) for element in elements) <= 15  # NCCL adds host_hash to a cpu, keep to a gpu and net


def test_link_speeds_are_spelled_as_nccl_knows_them(machine: Machine) -> None:
    known = {"2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"}
    links = {(element.get("link_speed"), element.get("link_width")) for element in root_of(machine).iter("pci")}
    assert {speed for speed, _ in links} <= known
    assert links == DOCUMENTED[machine.name].pci


def test_the_topology_is_the_one_in_the_xml(machine: Machine) -> None:
    assert read(machine.topology_xml) == machine.topology


def test_an_unknown_machine_lists_the_valid_ones() -> None:
    with pytest.raises(UnknownMachine, match=r"'DGXH100'; did you mean dgx-h100\? \(all: nccl-tuner machines\)"):
        catalogue.load("DGXH100")
    with pytest.raises(UnknownMachine, match=r"no machine '\.\./nccl'; valid: "):
        catalogue.load("../nccl")


def test_a_machine_that_cannot_be_simulated_says_why_and_what_there_is_instead() -> None:
    with pytest.raises(UnknownMachine, match=r"^a4x-maxgpu-4g: 18 instances of 4 GB300 .*; valid: gb300-nvl72$"):
        catalogue.load("a4x-maxgpu-4g")
    for row in catalogue.missing().values():
        assert row.name not in NAMES
        assert row.why.strip()
        assert row.instead
        assert all(map(catalogue.load, row.instead))
        for name in (row.name, row.name.upper()):
            with pytest.raises(UnknownMachine, match=f"^{re.escape(row.name)}: .*; valid: {re.escape(row.instead[0])}"):
                catalogue.load(name)


@pytest.mark.parametrize(
    ("asked", "missing"),
    [("ND40rs_v2", "Standard_ND40rs_v2"), ("ml.g5.12xlarge", "g5.12xlarge"), ("G6E.24xlarge", "g6e.24xlarge")],
)
def test_what_a_cloud_puts_before_every_size_may_be_left_out_or_added(asked: str, missing: str) -> None:
    with pytest.raises(UnknownMachine, match=f"^{re.escape(missing)}: ") as refused:
        catalogue.load(asked)
    (remedy,) = refused.value.remedies
    assert catalogue.load(str(remedy.value)).gpus_per_node
    assert catalogue.load("ml.g6.48xlarge").name == "g6.48xlarge"


def test_the_environment_of_a_machine_is_what_only_the_search_reads(machine: Machine) -> None:
    assert set(machine.environment) <= set(releases.load("2.28.9").environment.search)


# On how many nodes, with how many GPUs of each, and how.
FAILURES = {
    "aws-p5": (2, 8, "was killed by SIGSEGV"),
    "aws-p6-b300": (2, 4, "was killed by SIGSEGV"),
    "dgx-b300": (2, 4, "was killed by SIGSEGV"),
    "oci-b300": (2, 4, "was killed by SIGSEGV"),
    "oci-h100": (2, 8, "was killed by SIGSEGV"),
}


@pytest.mark.live
@pytest.mark.parametrize(
    ("name", "nccl"), [(name, nccl) for name in catalogue.names() for nccl in catalogue.load(name).crashes]
)
def test_libnccl_crashes_where_that_is_said(name: str, nccl: str, tmp_path: Path) -> None:
    nodes, gpus, how = FAILURES[name]
    (tmp_path / "topology.xml").write_text(catalogue.load(name).topology_xml)
    with pytest.raises(BadInput, match=f"NCCL {nccl} crashes with .* NVLS heads on {gpus} GPUs"):
        Scenario(nccl=nccl, topology=tmp_path / "topology.xml", nodes=nodes, gpus_per_node=gpus).communicator()
    with pytest.raises(BadInput, match=f"NCCL {nccl} crashes there"):
        Scenario(nccl=nccl, machine=name, nodes=nodes, gpus_per_node=gpus).communicator()
    with pytest.raises(OracleFailed, match=how):
        Oracle(Scenario(nccl=nccl, machine=name, nodes=nodes, gpus_per_node=gpus).oracle_configuration()).close()


# Captured graphs.


@pytest.mark.parametrize("name", captured_graphs.names())
def test_every_shape_is_captured(name: str) -> None:
    machine, captured = catalogue.load(name), captured_graphs.of(name)
    assert [*machine.releases] == [name for name in releases.names() if name not in machine.crashes]
    for release in machine.releases:
        for gpus in machine.gpu_counts:
            for several in (False, True):
                graphs = captured.table.graphs[release, gpus, several]
                assert {"ring", "tree"} <= set(graphs)
                assert graphs["ring"].channels == graphs["tree"].channels


@pytest.mark.parametrize("name", captured_graphs.names())
def test_captured_graphs_are_of_this_topology_and_a_named_libnccl(name: str) -> None:
    machine, captured = catalogue.load(name), captured_graphs.of(name)
    assert captured.table.topology_sha256 == hashlib.sha256(machine.topology_xml.encode()).hexdigest()
    assert set(captured.libnccl_sha256) == set(machine.releases)
    assert all(re.fullmatch("[0-9a-f]{64}", sha) for sha in captured.libnccl_sha256.values())


def as_ranks_go_on(graphs: Graphs) -> Graphs:
    """With as many channels of ring and tree as both have, which is what libnccl's memory has of them afterwards."""
    both = min(graphs[name].channels for name in ("ring", "tree"))
    return {**graphs, **{name: replace(graphs[name], channels=both) for name in ("ring", "tree")}}


@pytest.mark.parametrize("name", captured_graphs.names())
def test_graphs_that_were_searched_before_are_those_that_libnccl_found(name: str) -> None:
    table, captured = catalogue.load(name).graph_table, captured_graphs.of(name).table
    assert captured.graphs.keys() <= table.graphs.keys()
    assert {shape: as_ranks_go_on(table.graphs[shape]) for shape in captured.graphs} == captured.graphs
    assert {shape: table.net_gbs.get(shape, 0.0) for shape in captured.net_gbs} == captured.net_gbs


def test_graphs_that_were_searched_before_are_of_this_topology_and_all_releases(machine: Machine) -> None:
    assert machine.graph_table.releases == machine.releases
    assert {gpus for _, gpus, _ in machine.graph_table.graphs} >= {1, machine.gpus_per_node}


def test_numbers_are_graphs(machine: Machine) -> None:
    for found in machine.graph_table.graphs.values():
        for graph in found.values():
            assert graph.channels > 0
            assert {graph.type_intra, graph.type_inter} <= set(PATH_NAMES)
            assert float(np.float32(graph.bw_intra_gbs)) == graph.bw_intra_gbs > 0


def test_graphs_of_another_topology_do_not_count() -> None:
    other = replace(catalogue.load("dgx-h100"), topology_xml=catalogue.load("dgx-a100").topology_xml)
    assert not other.graph_table.graphs


def graph(channels: int, bw: float = 20.6) -> Graph:
    return Graph(Pattern.Ring, channels, True, float(np.float32(bw)), 24.0, 0.0, "NVL", "PIX", 0)


def test_what_is_written_is_read_back_and_equal_graphs_share_an_entry() -> None:
    found = {
        (release, gpus, several): {"ring": graph(min(gpus, 3), 0.1), "tree": graph(4)}
        for release in ("2.28.9", "2.9.1")
        for gpus in (1, 2, 3, 4)
        for several in (False, True)
    }
    found["2.28.9", 4, True] = {"ring": graph(5), "nvls": graph(8), "tree": graph(4)}
    nets = dict.fromkeys(found, 48.0) | {("2.28.9", 1, False): 0.1}
    table_of = GraphTable("0" * 64, found, nets)
    text = render("m", Captured(table_of, {"2.28.9": "a" * 64, "2.9.1": "b" * 64}))
    table = tomllib.loads(text)
    for parsed in (from_table(table), from_table(json.loads(graphs.to_json(table_of)))):
        assert parsed.graphs == found
        assert parsed.net_gbs == {**nets, ("2.28.9", 1, False): float(np.float32(0.1))}
    rows = [(name, row) for name, rows in table["graphs"].items() for row in rows]
    assert [(name, row["releases"], row["gpus_per_node"], row["nodes"]) for name, row in rows] == [
        ("nvls", ["2.28.9"], [4], ["several"]),
        ("ring", ["2.9.1", "2.28.9"], [3, 4], ["one"]),
        ("ring", ["2.9.1", "2.28.9"], [1], ["one", "several"]),
        ("ring", ["2.9.1", "2.28.9"], [2], ["one", "several"]),
        ("ring", ["2.9.1", "2.28.9"], [3], ["several"]),
        ("ring", ["2.9.1"], [4], ["several"]),
        ("ring", ["2.28.9"], [4], ["several"]),
        ("tree", ["2.9.1", "2.28.9"], [1, 2, 3, 4], ["one", "several"]),
    ]
    assert text.index('"2.9.1" = ') < text.index('"2.28.9" = ')


# The real library.


SHAPES = [("dgx-h100", nodes, gpus) for nodes, gpus in ((3, 8), (4, 8), (7, 3), (1, 1), (2, 1), (9, 1))]
SHAPES += [(name, nodes, catalogue.load(name).gpus_per_node) for name in captured_graphs.names() for nodes in (1, 2)]
SHAPES = [shape for shape in SHAPES if shape[0] != "dgx-2"]
SHAPES += [(name, 3, 2) for name in captured_graphs.names()] + [("dgx-2", 1, 16)]


@pytest.mark.each_choice
@pytest.mark.live
@pytest.mark.parametrize(("name", "nodes", "gpus"), SHAPES)
def test_libnccl_finds_the_captured_graphs_on_any_number_of_nodes(name: str, nodes: int, gpus: int) -> None:
    machine = catalogue.load(name)
    graphs, _, sha256 = ask(machine, "2.28.9", nodes, gpus)
    captured = captured_graphs.of(name)
    assert graphs == captured.table.graphs["2.28.9", gpus, nodes > 1]
    assert sha256 == captured.libnccl_sha256["2.28.9"]


@pytest.mark.live
@pytest.mark.parametrize(("name", "reaches"), [("pcie-l40s", True), ("pcie-l40s-no-p2p", False)])
def test_without_peer_to_peer_across_sockets_nccl_sees_none(name: str, reaches: bool) -> None:
    for gpus, sockets_together in ((4, True), (8, reaches)):
        with Oracle(Scenario("2.28.9", 1, machine=name, gpus_per_node=gpus).oracle_configuration()) as oracle:
            assert oracle.memory["isAllDirectP2p"] == oracle.memory["isAllCudaP2p"] == sockets_together


@pytest.mark.live
def test_a_host_that_nccl_takes_for_two_nodes_is_two(tmp_path: Path) -> None:
    file = tmp_path / "topology.xml"
    file.write_text(catalogue.load("pcie-l40s-4nic").topology_xml)
    assert Scenario("2.28.9", 1, topology=file).communicator().nodes == 2
    environment = {"NCCL_NET_DISABLE_INTRA": "1"}
    assert Scenario("2.28.9", 1, topology=file, environment=environment).communicator().nodes == 1


@pytest.mark.parametrize("alias", catalogue.aliases().values(), ids=str)
def test_an_alias_is_a_machine_in_any_case_and_says_why(alias: Alias) -> None:
    assert alias.name not in catalogue.names()
    machine = catalogue.load(alias.machine)
    assert machine.name == alias.machine
    own = alias.name if alias.adapters or alias.one_node else alias.machine
    loaded = {catalogue.load(each(alias.name)).name for each in (str, str.lower, str.upper)}
    assert loaded == {own}
    assert [net.name for net in catalogue.load(own).topology.nets] == [
        *(alias.adapters or [net.name for net in machine.topology.nets])
    ]
    assert catalogue.alias(alias.name.upper()) == alias
    assert alias.same.strip()
    assert alias.source.strip()


@pytest.mark.parametrize("alias", [each for each in catalogue.aliases().values() if each.one_node], ids=str)
def test_an_alias_of_one_node_is_refused_where_more_than_its_nvlinks_counts(alias: Alias) -> None:
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)

    def picked(machine: str, nodes: int, **variables: str) -> object:
        scenario = Scenario("2.28.9", nodes, machine=catalogue.load(machine).name, environment=variables)
        return of_picks(Selection(scenario.communicator()).pick(request, [1 << power for power in range(10, 30)]))

    assert picked(alias.name, 1) == picked(alias.machine, 1)
    assert picked(alias.name, 1, NCCL_P2P_DISABLE="0") == picked(alias.machine, 1)
    for nodes, variables in ((2, {}), (1, {"NCCL_P2P_DISABLE": "1"})):
        with pytest.raises(UnknownMachine, match=re.escape(f"valid: one node, or {alias.machine}")):
            picked(alias.name, nodes, **variables)


@pytest.mark.parametrize("nccl", ["2.21.5", "2.26.2", "2.28.9", "2.32.3"])
@pytest.mark.parametrize("alias", [each for each in catalogue.aliases().values() if each.alike], ids=str)
def test_where_parts_of_an_assumed_machine_are_changes_no_pick(alias: Alias, nccl: str) -> None:
    sizes = [1 << power for power in range(10, 34)]
    for nodes in (1, 2, 4):
        scenarios = [Scenario(nccl, nodes, machine=machine) for machine in (alias.machine, *alias.alike)]
        own, *others = (Selection(scenario.communicator()) for scenario in scenarios)
        for request in ALL_COLLECTIVES:
            expected = of_picks(own.pick(request, sizes))
            assert all(of_picks(each.pick(request, sizes)) == expected for each in others)


def test_names_are_distinct_in_any_case() -> None:
    every = [*catalogue.names(), *catalogue.aliases(), *catalogue.missing()]
    assert len({name.lower() for name in every}) == len(every)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("a100-sxm", {"a100-4x-1nic", "a100-4x-2nic", "aws-p4d", "azure-nd-a100-v4", "dgx-a100", "oci-a100"}),
        ("azure-a100", {"azure-nd-a100-v4"}),
        ("DGXH100", {"dgx-h100"}),
        ("gh200", {"alps", "gh200-4x"}),
        ("aws-h100", {"aws-p5", "aws-p5-rdma"}),
        ("gb300", {"gb300-nvl72"}),
        ("ND_GB200", {"gb200-nvl72", "aws-p6e-gb200"}),
        ("rtx-pro-6000", {"pcie-rtxpro6000"}),
        ("l20", {"pcie-l20"}),
        ("l40s", {"pcie-l40s", "pcie-l40s-4nic", "pcie-l40s-no-p2p"}),
        ("p6", {"aws-p6-b200", "aws-p6-b300"}),
        ("b200-sxm", {"dgx-b200"}),
        ("BM.GPU.H100.16", {"hgx-h200", "oci-h100"}),
        ("nd96isr", {"azure-nd-h100-v5"}),
    ],
)
def test_an_unknown_name_leads_to_machines_with_its_words(asked: str, meant: set[str]) -> None:
    with pytest.raises(UnknownMachine) as error:
        catalogue.load(asked)
    found = re.search(r"did you mean (.*)\?", str(error.value))
    assert found
    assert set(found[1].split(", ")) == meant


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        ("a800", "hgx-a800"),
        ("4090", "pcie-rtx4090"),
        ("rtx4090", "pcie-rtx4090"),
        ("A2-MEGAGPU", "a2-megagpu-16g"),
        ("p3dn", "p3dn.24xlarge"),
    ],
)
def test_an_unknown_name_that_only_a_missing_machine_has_says_why_it_is_missing(asked: str, missing: str) -> None:
    row = catalogue.missing()[missing]
    words = re.escape(f"no machine '{asked}'; {missing} is missing: {row.why}; valid: {row.instead[0]}")
    with pytest.raises(UnknownMachine, match=f"^{words}"):
        catalogue.load(asked)


def test_an_unknown_name_that_several_missing_machines_have_names_them() -> None:
    every = "a2-highgpu-8g, a2-ultragpu-8g, a2-megagpu-16g"
    with pytest.raises(UnknownMachine, match=f"'a2'; {every} are missing: .*; valid: azure-nd-a100-v4, "):
        catalogue.load("a2")


@pytest.mark.parametrize("asked", ["v100-pcie-h100", "nothing", "tpu-v5", "mi300x"])
def test_an_unknown_name_leads_nowhere_where_no_machine_has_its_gpu(asked: str) -> None:
    with pytest.raises(UnknownMachine, match=f"^no machine '{asked}'; valid: "):
        catalogue.load(asked)

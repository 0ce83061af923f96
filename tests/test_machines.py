"""Every machine of the catalogue: what vendors document, restated here, what NCCL can read, and what libnccl found."""

import hashlib
import re
import tomllib
import xml.etree.ElementTree as ET
from itertools import combinations

import numpy as np
import pytest

from tuner import machines
from tuner.capture import ask, render
from tuner.errors import BadInput, UnknownMachine
from tuner.graphs import Graph
from tuner.names import PATH_NAMES, Pattern
from tuner.topology import Target, read

# sm, NVLinks per GPU, NVSwitches seen, adapter speed, CPU, NUMA nodes, CPUs, GPU bus ids in order of dev, adapters' too
DOCUMENTED = {
    "dgx-a100": (
        80, 12, 6, 200000, ("AuthenticAMD", 143, 49), 4, 256,
        "07 0f 47 4e 87 90 b7 bd", "0c 12 4b 54 8d 94 ba cc", "mlx5_ 0 1 2 3 6 7 8 9",
    ),
    "dgx-h100": (
        90, 18, 4, 400000, ("GenuineIntel", 6, 143), 2, 224,
        "1b 43 52 61 9d c3 d1 df", "18 40 4f 5e 9a c0 ce dc", "mlx5_ 0 3 4 5 6 9 10 11",
    ),
    "dgx-b200": (
        100, 18, 1, 400000, ("GenuineIntel", 6, 207), 2, 224,
        "1b 43 52 61 9d c3 d1 df", "18 40 4f 5e 9a c0 ce dc", "mlx5_ 4 7 8 9 10 13 14 15",
    ),
}  # fmt: skip
NAMES = machines.names()


@pytest.fixture(params=NAMES)
def machine(request):
    return machines.load(request.param)


def root_of(machine):
    return ET.fromstring(machine.topology_xml)


def test_every_machine_is_restated_here():
    assert set(NAMES) == set(DOCUMENTED)


def test_devices_are_the_documented_ones(machine):
    sm, links, switches, mbps, cpu, numa_nodes, _, gpu_ids, net_ids, net_names = DOCUMENTED[machine.name]
    topology = machine.topology
    assert topology.compute_capabilities(8) == (sm,) * 8
    assert [gpu.count_nvlinks(Target.SWITCH) for gpu in topology.gpus] == [links] * 8
    assert [len(gpu.nvlinks) for gpu in topology.gpus] == [switches] * 8
    assert topology.nvswitches == switches
    assert topology.has_nvswitch(1)
    assert {net.speed_mbps for net in topology.nets} == {mbps}
    assert {(c.vendor, c.family, c.model) for c in topology.cpus} == {cpu}
    assert len(topology.cpus) == numa_nodes
    assert (topology.cpu_arch, topology.cpu_vendor) == ("x86_64", cpu[0])
    assert [gpu.busid for gpu in topology.gpus] == [f"0000:{bus}:00.0" for bus in gpu_ids.split()]
    assert [net.busid for net in topology.nets] == [f"0000:{bus}:00.0" for bus in net_ids.split()]
    prefix, *numbers = net_names.split()
    assert [net.name for net in topology.nets] == [prefix + number for number in numbers]
    assert [net.dev for net in topology.nets] == list(range(8))
    assert len({net.guid for net in topology.nets}) == 8


def test_gpus_per_node_are_there(machine):
    assert machine.gpus_per_node == len(machine.topology.gpus)
    assert [gpu.dev for gpu in machine.topology.gpus] == list(range(machine.gpus_per_node))


def test_every_machine_names_its_sources(machine):
    assert machine.title
    assert machine.notes
    assert machine.sources
    for source in machine.sources:
        assert source.document.strip()
        assert source.section.strip()
        assert source.facts.strip()


def test_adapter_of_a_gpu_is_below_the_same_pci_switch(machine):
    """Two GPUs and two adapters a switch in the A100, one and one in the others."""
    switches = root_of(machine).findall("cpu/pci")
    counts = {(len(switch.findall(".//gpu")), len(switch.findall(".//net"))) for switch in switches}
    assert counts == ({(2, 2)} if machine.name == "dgx-a100" else {(1, 1)})
    for switch in switches:
        gpus = {int(gpu.get("dev")) for gpu in switch.iter("gpu")}
        nets = {int(net.get("dev")) for net in switch.iter("net")}
        assert gpus == nets


def test_siblings_are_ordered_by_bus_id_as_nccl_orders_them(machine):
    for element in root_of(machine).iter("pci"):
        ids = [child.get("busid") for child in element.findall("pci")]
        assert ids == sorted(ids)


def test_bus_ids_are_distinct(machine):
    ids = [element.get("busid") for element in root_of(machine).iter("pci")]
    assert len(ids) == len(set(ids))


def test_cpu_masks_are_disjoint_and_complete(machine):
    cpus = DOCUMENTED[machine.name][6]
    masks = [int(cpu.get("affinity").replace(",", ""), 16) for cpu in root_of(machine).iter("cpu")]
    assert len({mask.bit_count() for mask in masks}) == 1
    assert sum(mask.bit_count() for mask in masks) in (cpus, cpus // 2)  # an A100's other four nodes have no GPU
    assert not any(a & b for a, b in combinations(masks, 2))
    for cpu, mask in zip(root_of(machine).iter("cpu"), masks, strict=True):
        threads = cpus // 2
        assert mask >> threads == mask & ((1 << threads) - 1)  # both threads of a core
        size = mask.bit_count() // 2
        assert mask & ((1 << threads) - 1) == ((1 << size) - 1) << (size * int(cpu.get("numaid")))


def test_nccls_own_parser_can_read_it(machine):
    """xmlGetNode, xml.cc: one space between attributes, no tabs, no declaration; limits of xml.h and topo.h."""
    text = re.sub(r"<!--.*?-->", "", machine.topology_xml, flags=re.DOTALL)
    assert "\t" not in machine.topology_xml
    assert "<?" not in text
    tags = re.findall(r"<[^>]*>", text)
    assert all(re.fullmatch(r'<[a-z]+( [a-z_]+="[^"]{1,254}")*/?>|</[a-z]+>', tag) for tag in tags)
    elements = list(root_of(machine).iter())
    assert len(elements) <= 256
    assert max(len(element) for element in elements) <= 128
    assert max(len(element.attrib) for element in elements) <= 15  # NCCL adds host_hash to a cpu, keep to a gpu and net


def test_link_speeds_are_spelled_as_nccl_knows_them(machine):
    known = {"2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"}
    speed = "16.0 GT/s PCIe" if machine.name == "dgx-a100" else "32.0 GT/s PCIe"
    links = {(element.get("link_speed"), element.get("link_width")) for element in root_of(machine).iter("pci")}
    assert speed in known
    assert links == {(speed, "16")}


def test_the_topology_is_the_one_in_the_xml(machine):
    assert read(machine.topology_xml) == machine.topology


def test_an_unknown_machine_lists_the_valid_ones():
    with pytest.raises(UnknownMachine, match=r"'DGXH100'; did you mean dgx-h100\?; valid: dgx-a100, dgx-b200, "):
        machines.load("DGXH100")
    with pytest.raises(UnknownMachine, match=r"no machine '\.\./nccl'; valid: "):
        machines.load("../nccl")


# Captured graphs.


def test_every_shape_is_captured(machine):
    assert "2.28.9" in machine.releases
    for release in machine.releases:
        for gpus in range(1, 9):
            for several in (False, True):
                graphs = machine.graphs(release, gpus, several)
                assert {"ring", "tree"} <= set(graphs)
                assert graphs["ring"].channels == graphs["tree"].channels


def test_captured_graphs_are_of_this_topology_and_a_named_libnccl(machine):
    table = machine.graphs_table
    assert table["topology_sha256"] == hashlib.sha256(machine.topology_xml.encode()).hexdigest()
    assert set(table["libnccl_sha256"]) == set(machine.releases)
    assert all(re.fullmatch("[0-9a-f]{64}", sha) for sha in table["libnccl_sha256"].values())


def test_captured_numbers_are_graphs(machine):
    for release in machine.releases:
        for gpus in range(1, 9):
            for graph in machine.graphs(release, gpus, True).values():
                assert graph.channels > 0
                assert {graph.type_intra, graph.type_inter} <= set(PATH_NAMES)
                assert float(np.float32(graph.bw_intra_gbs)) == graph.bw_intra_gbs > 0


@pytest.mark.parametrize(("release", "gpus"), [("1.0.0", 8), ("2.28.9", 0), ("2.28.9", 9)])
def test_a_shape_that_was_not_captured_is_an_error(machine, release, gpus):
    with pytest.raises(BadInput, match=rf"{machine.name}.*valid: "):
        machine.graphs(release, gpus, True)


def graph(channels, bw=20.6):
    return Graph(Pattern.Ring, channels, True, float(np.float32(bw)), 24.0, 0.0, "NVL", "PIX", 0)


def test_what_is_written_is_read_back_and_equal_graphs_share_an_entry():
    found = {
        (release, gpus, several): {"ring": graph(min(gpus, 3), 0.1), "tree": graph(4)}
        for release in ("2.28.9", "2.9.1")
        for gpus in (1, 2, 3, 4)
        for several in (False, True)
    }
    found["2.28.9", 4, True] = {"ring": graph(5), "nvls": graph(8), "tree": graph(4)}
    nets = dict.fromkeys(found, 48.0) | {("2.28.9", 1, False): 0.1}
    text = render("m", "0" * 64, {"2.28.9": "a" * 64, "2.9.1": "b" * 64}, found, nets)
    table = tomllib.loads(text)
    assert machines.shapes(table) == found
    assert machines.net_gbs(table) == {**nets, ("2.28.9", 1, False): float(np.float32(0.1))}
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


SHAPES = [(1, 8), (2, 8), (3, 8), (4, 8), (1, 3), (2, 3), (7, 3), (1, 1), (2, 1), (9, 1)]


@pytest.mark.parametrize(("nodes", "gpus"), SHAPES)
def test_libnccl_finds_the_captured_graphs_on_any_number_of_nodes(machine, nodes, gpus):
    graphs, _, sha256 = ask(machine, "2.28.9", nodes, gpus)
    assert graphs == machine.graphs("2.28.9", gpus, nodes > 1)
    assert sha256 == machine.graphs_table["libnccl_sha256"]["2.28.9"]

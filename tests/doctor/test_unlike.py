"""Healthy hosts are not called wrong for being built otherwise than the nearest machine of the catalogue."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support.cases import CASES, report
from tests.support.command_line import run
from tests.support.damages import FAULTS
from tuner.answers.doctor.examine import DoctorOptions, examine, found, nearest, node_of
from tuner.answers.doctor.records import UNLIKE, WRONG, TopologyFinding
from tuner.base.errors import TunerError
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.machine import catalogue, skeleton
from tuner.machine.topology.xml import to_text

# Files of ../shared/cases in which something is wrong indeed: GPUs linked to themselves, one NVLink of twelve.
FAULTY = {"azure-ncv4-topo.xml", "topo_fail.xml", "nccl_topo_dump.xml", "vm2.xml"}


def renumbered(machine: str) -> ET.Element:
    """A host of the same make with other bus ids."""
    text = catalogue.load(machine).topology_xml
    busids = {pci.get("busid", "") for pci in ET.fromstring(text).iter("pci")}
    others = {busid: f"{int(busid[:4], 16) + 0x100:04x}{busid[4:]}" for busid in busids}
    for busid, other in others.items():
        text = text.replace(f'"{busid}"', f'"{other}"')
    return ET.fromstring(text)


def findings(root: ET.Element) -> list[TopologyFinding]:
    text = to_text(root)
    return found(node_of(text, nearest(text, None)))


def wrong(root: ET.Element) -> set[str]:
    return {finding.kind for finding in findings(root) if finding.severity == WRONG}


@pytest.mark.parametrize("machine", catalogue.names())
def test_other_bus_ids_make_nothing_wrong(machine: str) -> None:
    assert not wrong(renumbered(machine))


@pytest.mark.parametrize(("machine", "name"), [("dgx-a100", "two_adapters_swapped"), ("hgx-h200", "another_numa_node")])
def test_another_layout_is_unlike_the_nearest_machine_and_wrong_on_the_same(machine: str, name: str) -> None:
    root = renumbered(machine)
    assert FAULTS[name].damage(root)
    elsewhere = [each for each in findings(root) if each.kind in ("numa", "place", "another-layout")]
    assert elsewhere
    assert WRONG not in {each.severity for each in elsewhere}
    own = ET.fromstring(catalogue.load(machine).topology_xml)
    assert FAULTS[name].damage(own)
    assert wrong(own) & {"numa", "place"}


@pytest.mark.parametrize("same", [True, False], ids=["the machine itself", "a host of its make"])
def test_gpus_and_adapters_without_gpudirect_are_one_finding(same: bool) -> None:
    root = ET.fromstring(catalogue.load("dgx-a100").topology_xml) if same else renumbered("dgx-a100")
    for element in (*root.iter("gpu"), *root.iter("net")):
        element.set("gdr", "0")
    (one,) = (each for each in findings(root) if each.kind == "gpudirect")
    assert {each.partition(":")[0] for each in one.devices} > {"gpu"}
    assert len(one.changes) == 1
    assert one.changes[0].count("on@") == len(one.devices)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("no_link_speeds", "link-speed"),
        ("slow_gpu_link", "link-slow"),
        ("one_nvlink_down", "nvlinks"),
        ("adapter_without_gpudirect", "gpudirect"),
        ("slow_adapter", "adapter-speed"),
        ("shared_guid", "guid"),
        ("wrong_compute_capability", "compute-capability"),
    ],
)
def test_what_contradicts_physics_parts_or_the_other_devices_is_wrong_anywhere(name: str, kind: str) -> None:
    root = renumbered("dgx-h100")
    assert FAULTS[name].damage(root)
    assert kind in wrong(root)


def test_what_is_unlike_is_not_repaired(tmp_path: Path) -> None:
    root = renumbered("dgx-a100")
    assert FAULTS["gpus_without_gpudirect"].damage(root)
    file = tmp_path / "node.xml"
    file.write_text(to_text(root))
    seen = run("diagnose", str(file), "--nccl", "2.28.9").stdout
    assert "unlike a100-sxm4-" in seen
    assert "to be like it: gpudirect=on@gpu:0" in seen
    assert "repaired" not in seen


def spark(tmp_path: Path) -> str:
    """A host of one GPU by NVLink-C2C, two adapters of four lanes, and no GPUDirect RDMA."""
    nets = "".join(
        f'<pci busid="{n:04x}:01:00.0" class="0x020000" vendor="0x15b3" device="0x1021" link_speed="32.0 GT/s PCIe" '
        f'link_width="4"><nic><net name="rocep{n}s0f0" dev="{n}" latency="0" speed="200000" port="1" guid="{n + 1}" '
        'maxconn="131072" gdr="0"/></nic></pci>'
        for n in range(2)
    )
    gpu = (
        '<pci busid="000f:01:00.0" class="0x030000" vendor="0x10de" device="0x2e12" link_speed="2.5 GT/s PCIe" '
        'link_width="16"><gpu dev="0" sm="121" rank="0" gdr="0"><c2c bw="300000" count="1"/></gpu></pci>'
    )
    file = tmp_path / "small.xml"
    file.write_text(f'<system version="1"><cpu numaid="-1" affinity="" arch="arm64">{gpu}{nets}</cpu></system>')
    return str(file)


def test_a_host_by_c2c_is_sound_and_its_links_are_said(tmp_path: Path) -> None:
    seen = " ".join(run("diagnose", spark(tmp_path), "--nccl", "2.28.9").stdout.split())
    assert "wrong" not in seen
    assert "note: gpu-link. gpu:0: PCIe 1.0 x16 beside NVLink-C2C" in seen


def test_a_host_that_nccl_takes_for_two_nodes_is_said() -> None:
    """8 x L40S of which each half has adapters near it that are faster than the way to the other half."""
    root = ET.fromstring(catalogue.load("pcie-l40s-4nic").topology_xml)
    for net in root.iter("net"):
        net.set("speed", "400000")
    asked = DoctorOptions("2.28.9", 2, Request(Collective.AllReduce, DataType.float32, Op.sum), (8,))
    says = [each.says for each in examine("node.xml", to_text(root), None, asked).findings if each.kind == "split-host"]
    assert len(says) == 1
    assert "of 2 hosts. node.xml: NCCL treats this host as" in says[0]


def test_unlike_has_a_name() -> None:
    for machine in ("dgx-a100", "alps"):
        root = renumbered(machine)
        FAULTS["two_adapters_swapped"].damage(root)
        assert all((each.unlike is not None) == (each.severity == UNLIKE) for each in findings(root))


# --- what people brought ---


def test_two_pairs_of_bridged_gpus(tmp_path: Path) -> None:
    listing, out = report("R4-bridged-pairs.txt"), str(tmp_path / "r4.xml")
    given = ("--gpu", "h100-pcie-bridged", "--nic-gbps", "400", "--cpu", "GenuineIntel:6:207")
    run("machines", listing, *given, "-o", out)
    seen = run("diagnose", out, "--nodes", "2").stdout
    assert "wrong" not in seen
    assert "NCCL makes 4 nodes of 2 hosts" in " ".join(seen.split())


def test_dgx_spark() -> None:
    seen = run("diagnose", report("R5-spark.xml"), "--nodes", "2", "--nccl", "2.28.9").stdout
    assert "wrong" not in seen
    assert "gpu-link" in seen


@pytest.mark.parametrize("file", sorted(CASES.rglob("*.xml")), ids=lambda file: file.name)
def test_public_hosts_without_a_fault_are_not_called_wrong(file: Path) -> None:
    try:
        root = ET.fromstring(skeleton.read_complete(file)[0])
    except TunerError as error:
        pytest.skip(f"refused: {error}")
    assert bool(wrong(root)) == (file.name in FAULTY)


def test_a_dump_of_a_domain_is_examined_host_by_host() -> None:
    """Hosts have devices of the same numbers, so NCCL's dump of a domain is no topology of one node."""
    seen = run("diagnose", report("F10/fused-rank5.xml"), code=1).stdout
    words = " ".join(seen.split())
    assert "nvlinks, host 1 of the domain: gpu:1: 0 of 18 NVLinks" in words
    assert "That is rank 5." in words
    assert "2 hosts with 8 GPUs" in words


def test_other_adapters_than_the_machines_are_unlike_it_and_fewer_of_the_same_are_wrong() -> None:
    assert "unlike gb300-nvl72: adapters" in run("diagnose", report("F10/tray-healthy.xml")).stdout
    root = ET.fromstring(catalogue.load("dgx-h100").topology_xml)
    for pci in list(root.iter("pci")):
        for nic in [nic for nic in pci.findall("nic") if nic.find("net[@dev='0']") is not None]:
            pci.remove(nic)
    text = to_text(root)
    same = found(node_of(text, nearest(text, "dgx-h100"), named=True))
    assert {finding.kind for finding in same if finding.severity == WRONG} == {"adapters"}


@pytest.mark.parametrize(("generation", "lanes", "faulty"), [("2.5", "1", True), ("2.5", "16", False)])
def test_bridges_that_a_virtual_machine_emulates(generation: str, lanes: str, faulty: bool) -> None:
    root = renumbered("dgx-h100")
    for pci in root.iter("pci"):
        if pci.find("pci") is not None:
            pci.set("link_speed", f"{generation} GT/s PCIe")
            pci.set("link_width", lanes)
    assert ("bridge-emulated" in wrong(root)) == faulty

"""Sound topologies with a fault each: it is named, and the repair brings back the graphs that NCCL's search finds."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support.damages import FAULTS, Fault, flatten
from tuner.answers.doctor.examine import after, found, nearest, node_of
from tuner.answers.doctor.records import TopologyFinding
from tuner.base.errors import BadTopology, TunerError
from tuner.graphs import SearchRequest, searched
from tuner.machine import catalogue, skeleton
from tuner.machine.graphs import OrderedGraph
from tuner.machine.topology import read
from tuner.machine.topology.xml import to_text
from tuner.oracle.api import Oracle
from tuner.oracle.search import ordered_graphs
from tuner.scenario.oracle_configuration import OracleConfiguration

NCCL = "2.28.9"
QUICK = ("dgx-h100", "a100-4x-2nic")
MACHINES = (
    *QUICK,
    "hgx-h200",
    "dgx-a100",
    "azure-nd-h100-v5",
    "aws-p4d",
    "dgx-1v",
    "pcie-l40s-4nic",
    "hgx-h800",
    "oci-h100",
)
LIVE = ("flatten", "no_link_speeds", "another_numa_node", "one_nvlink_down", "gpus_without_gpudirect")
CASES = Path(__file__).parents[3] / "shared" / "cases"


def damaged(topology: str, name: str) -> tuple[str, Fault]:
    root = ET.fromstring(topology)
    if not FAULTS[name].damage(root):
        pytest.skip("this topology cannot have it")
    return to_text(root), FAULTS[name]


def examined(text: str, like: str | None = None) -> tuple[list[TopologyFinding], str]:
    """What is found, and the repaired text."""
    findings = found(node_of(text, nearest(text, like)))
    return findings, after(text, [change for finding in findings for change in finding.changes])


def graphs(text: str) -> Mapping[str, OrderedGraph]:
    return searched(SearchRequest(text, len(read(text).gpus), True), NCCL).graphs


def every() -> list[ParameterSet]:
    return [
        pytest.param(machine, name, marks=[] if machine in QUICK else [pytest.mark.slow], id=f"{machine}-{name}")
        for machine in MACHINES
        for name in FAULTS
    ]


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize(("machine", "name"), every())
def test_a_fault_is_named_and_repaired(machine: str, name: str) -> None:
    sound = catalogue.load(machine).topology_xml
    text, fault = damaged(sound, name)
    findings, repaired = examined(text)
    assert set(fault.kind.split("|")) & {finding.kind for finding in findings}
    assert graphs(repaired) == graphs(sound)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.reaches_graphs])
def test_the_faults_matter(name: str) -> None:
    """Each changes what is found on some machine: the repair above has something to bring back."""
    if name in ("slow_adapter_link", "narrow_gpu_link", "unknown_link_speed"):
        pytest.skip("one link of many, which NVLink and the other adapters may make up for")
    for machine in ("dgx-h100", "dgx-1v", "pcie-l40s-4nic", "a100-4x-2nic"):
        sound = catalogue.load(machine).topology_xml
        root = ET.fromstring(sound)
        try:
            if FAULTS[name].damage(root) and graphs(to_text(root)) != graphs(sound):
                return
        except BadTopology:  # a link without a way back, with which NCCL finds none
            return
    pytest.fail(f"{name} changes no graph")


@pytest.mark.live
@pytest.mark.parametrize("name", LIVE)
def test_the_repair_has_libnccls_graphs(name: str) -> None:
    sound = catalogue.load("dgx-h100").topology_xml
    _, repaired = examined(damaged(sound, name)[0])
    before, now = (
        OracleConfiguration(topology=text, nodes=2, gpus_per_node=8, release=NCCL, env={}) for text in (sound, repaired)
    )
    with Oracle(before) as oracle:
        wanted = ordered_graphs(oracle)
    with Oracle(now) as oracle:
        assert ordered_graphs(oracle) == wanted


@pytest.mark.parametrize("machine", catalogue.names())
def test_machines_of_the_catalogue_are_sound(machine: str) -> None:
    findings, repaired = examined(catalogue.load(machine).topology_xml)
    # DGX Spark shows no NUMA node, and its GPU's link says PCIe 1.0, by design.
    by_design = {"affinity", "gpu-link"} if machine == "dgx-spark" else set()
    assert {finding.kind for finding in findings} <= {"unknown-device", "processor-family"} | by_design
    assert all(finding.severity == "note" for finding in findings)
    assert repaired == catalogue.load(machine).topology_xml


def test_several_faults_at_once() -> None:
    sound = catalogue.load("dgx-h100").topology_xml
    root = ET.fromstring(sound)
    names = ("flatten", "no_link_speeds", "one_nvlink_down", "adapter_without_gpudirect", "shared_guid", "slow_adapter")
    for name in names:
        assert FAULTS[name].damage(root)
    findings, repaired = examined(to_text(root))
    assert {FAULTS[name].kind for name in names} <= {finding.kind for finding in findings}
    assert graphs(repaired) == graphs(sound)


def test_without_a_machine_flat_devices_are_paired_in_their_order() -> None:
    """Six GPUs of a DGX H100 and their adapters: no machine of the catalogue has as many."""
    root = ET.fromstring(catalogue.load("dgx-h100").topology_xml)
    for pci in [pci for pci in root.iter("pci") if pci.find("gpu") is not None][6:]:
        switch = next(one for cpu in root for one in cpu if pci in list(one.iter()))
        next(cpu for cpu in root if switch in list(cpu)).remove(switch)
    sound = to_text(root)
    assert flatten(root)
    assert nearest(to_text(root), None) is None
    findings, repaired = examined(to_text(root))
    flat = next(finding for finding in findings if finding.kind == "pci-flat")
    assert "in the order of bus ids" in flat.says
    channels = [
        {name: (graph.graph.channels, graph.graph.bw_inter_gbs) for name, graph in found_ones.items()}
        for found_ones in (graphs(sound), graphs(repaired))
    ]
    assert channels[0] == channels[1]


@pytest.mark.parametrize("file", sorted(CASES.rglob("*.xml")), ids=lambda file: file.name)
def test_real_files_are_examined(file: Path) -> None:
    try:
        text, _ = skeleton.read_complete(file)
    except TunerError as error:
        pytest.skip(f"refused: {error}")
    findings, repaired = examined(text)
    assert read(repaired).gpus
    kinds = {finding.kind for finding in findings}
    if "azure-ncv4" in file.name:  # GPUs that are linked to themselves, and no speed of any PCIe link
        assert {"nvlink-target", "link-speed"} <= kinds


def test_a_real_fault_is_found_and_repaired() -> None:
    """A public run on two A100 of which one had a single NVLink up, and the same machine when it was sound."""
    folder = CASES / "2xA100-pcie-nvlink-nccl2.27.7" / "raw"
    if not folder.exists():
        pytest.skip("shared/cases is not here")
    findings, repaired = examined((folder / "topo_fail.xml").read_text())
    assert [finding.changes for finding in findings if finding.kind == "nvlinks"] == [("link-gpus=12@gpu:0-gpu:1",)]
    others, sound = examined((folder / "topo_real.xml").read_text())
    assert "nvlinks" not in {finding.kind for finding in others}
    assert graphs(repaired) == graphs(sound)


def test_a_damaged_real_dump_is_repaired() -> None:
    file = CASES / "2xA100-pcie-nvlink-nccl2.27.7" / "raw" / "nccl_topo_dump_normal.xml"
    if not file.exists():
        pytest.skip("shared/cases is not here")
    sound = file.read_text()
    for name in ("no_link_speeds", "one_nvlink_down", "gpus_without_gpudirect", "wrong_compute_capability"):
        root = ET.fromstring(sound)
        if not FAULTS[name].damage(root):
            continue
        findings, _ = examined(to_text(root))
        assert FAULTS[name].kind in {finding.kind for finding in findings}, name

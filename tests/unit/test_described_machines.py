"""Machines in words, such as 8xrtx-4090@2xmilan: what they are, what is refused, and what libnccl makes of them."""

from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tuner.answers.changes import changed
from tuner.base.errors import BadInput, TunerError
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.graphs import searched
from tuner.machine import catalogue, described
from tuner.machine.gpus import PeerToPeer
from tuner.oracle.conformance.check import check
from tuner.scenario import Scenario, notes
from tuner.scenario.describe import describe

ALLREDUCE = Request(Collective.AllReduce, DataType.float32, Op.sum)


def ring(scenario: Scenario) -> tuple[int, float, float, str, str]:
    graph = searched(scenario.resolve().own.for_search(False), scenario.nccl).graphs["ring"].graph
    return graph.channels, graph.bw_intra_gbs, graph.bw_inter_gbs, graph.type_intra, graph.type_inter


def test_eight_rtx_4090_have_the_ring_that_a_public_log_prints() -> None:
    """NVIDIA/nccl-tests issue 307: four GPUs below each switch, 10 GB/s between the CPUs, over which pairs go twice."""
    node = describe("8xrtx-4090@2xskylake/4", nccl="2.21.5")
    assert ring(node) == (1, 5.0, 5.0, "SYS", "PIX")
    assert ring(changed(node, ["p2p=all"])) == (1, 10.0, 10.0, "SYS", "PIX")  # as cards that allow it


def test_the_words_say_where_everything_is() -> None:
    machine = catalogue.load("8 x RTX-4090 @ 2 x milan / 2 + 4x200g")
    topology = machine.topology
    assert [gpu.numaid for gpu in topology.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [(net.numaid, net.speed_mbps, net.gpu_direct) for net in topology.nets] == [
        (0, 200000, False),
        (0, 200000, False),
        (1, 200000, False),
        (1, 200000, False),
    ]
    assert topology.cpu is not None
    assert (topology.cpu.vendor, topology.cpu.family, topology.cpu.model) == ("AuthenticAMD", 175, 1)
    assert machine.topology_xml.count('class="0x060400"') == 4
    assert (machine.gpus_per_node, machine.peer_to_peer) == (8, PeerToPeer.none)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("8xrtx-4090", "the CPUs are missing; valid: GPUSxMODEL@CPUSxCPU"),
        ("8xrtx-4090@2xpentium", "no CPU 'pentium'.*milan"),
        ("8xrtx-4091@2xmilan", "no GPU model .rtx-4091.; did you mean rtx-4090"),
        ("8xrtx-4090@2xmilan+1x0g", "valid: GPUSxMODEL@"),
        ("8xrtx-4090@2xmilan+0x200g", "valid: GPUSxMODEL@"),
        ("8xrtx-4090@3xmilan", "8 GPUs on 3 CPUs: each has to have the same number"),
        ("8xrtx-4090@2xmilan/3", "8 GPUs on 2 CPUs, 3 a switch"),
        ("0xl4@1xmilan", "0 GPUs: valid are 1 to 16"),
        ("8xh100-sxm@2xsapphire-rapids", "boards that the catalogue has"),
    ],
)
def test_words_that_say_no_machine(name: str, says: str) -> None:
    with pytest.raises(TunerError, match=says):
        catalogue.load(name)


def test_a_cpu_without_a_number_is_one() -> None:
    assert catalogue.load("2xrtx-4090@milan").topology_xml == catalogue.load("2xrtx-4090@1xmilan").topology_xml


def test_a_gpu_that_no_machine_has_is_answered_with_words() -> None:
    for name, words in (("rtx-5090", "8xrtx-5090@2xmilan"), ("4x4090", "8xrtx-4090@2xmilan"), ("l4", "8xl4@2xmilan")):
        with pytest.raises(TunerError, match=f"in words: {words}"):
            catalogue.load(name)
    assert described.in_words("NVIDIA GeForce RTX 4090", 8) == "8xrtx-4090@2xmilan"
    assert described.in_words("NVIDIA H200", 8) is None


def test_a_topology_of_such_gpus_is_without_peer_to_peer(tmp_path: Path) -> None:
    file = tmp_path / "node.xml"
    file.write_text(catalogue.load("2xrtx-4090@1xgenoa").topology_xml)
    node = describe(topology=file, nccl="2.28.9")
    assert node.resolve().own.peer_to_peer is PeerToPeer.none
    assert notes.of_scenario(node) == [
        "rtx-4090: the driver denies peer-to-peer; change= p2p=all where yours allows it"
    ]
    allowed = changed(node, ["p2p=all"])
    assert allowed.resolve().own.peer_to_peer is PeerToPeer.all
    assert notes.of_scenario(allowed) == []
    file.write_text(file.read_text().replace("0x2684", "0x26b9"))  # an L40S
    assert describe(topology=file, nccl="2.28.9").resolve().own.peer_to_peer is PeerToPeer.all


def test_a_listing_is_completed_with_its_cpu(tmp_path: Path) -> None:
    file = tmp_path / "topo.txt"
    file.write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-15\nGPU1\tPHB\t X \t0-15\n")
    node = describe(topology=file, gpu="rtx-4090", nccl="2.28.9")
    with pytest.raises(BadInput, match="what its CPUs are"):
        node.resolve().own.topology_xml  # noqa: B018
    completed = changed(node, ["cpu=AuthenticAMD:175:1"]).resolve().own
    assert completed.peer_to_peer is PeerToPeer.none
    assert completed.topology.cpu_vendor == "AuthenticAMD"


@pytest.mark.live
@pytest.mark.each_choice
@pytest.mark.parametrize(
    ("name", "nodes"),
    [("8xrtx-4090@2xmilan", 1), ("2xrtx-5090@1xgenoa", 1), ("8xl4@2xice-lake/4+2x100g", 2), ("2xt4@1xskylake", 1)],
)
@pytest.mark.parametrize("nccl", HERE)
def test_libnccl_answers_the_same(name: str, nodes: int, nccl: str) -> None:
    report = check(describe(name, nodes=nodes, nccl=nccl), [ALLREDUCE])
    assert report.compared["picks"] > 0
    assert not report.mismatches

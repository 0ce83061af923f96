"""Faults as changes of graphs, and which of them explains times."""

from pathlib import Path

import numpy as np
import pytest

from tuner.answers.changes import changed
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.scenario.describe import describe
from tuner.times.acceptance import diagnosis, faults
from tuner.times.acceptance.accept import AcceptOptions, accept
from tuner.times.acceptance.curves import Curve, CurveKind, Shape
from tuner.times.acceptance.expected import Expectation
from tuner.times.acceptance.faults import Fault, Resource
from tuner.times.measured.formats import Given

SIZES = np.array([1 << power for power in range(13, 34)], np.uint64)
REQUESTS = [
    Request(collective, DataType.float16, Op.sum) for collective in (Collective.AllReduce, Collective.AllGather)
]
CASE = Path(__file__).resolve().parents[3] / "shared" / "cases" / "2xA100-pcie-nvlink-nccl2.27.7"


def expectation(machine: str, nodes: int, nccl: str) -> Expectation:
    return Expectation(describe(machine, nodes=nodes, nccl=nccl))


def named(of: Expectation, fault: Fault | None, start_us: float = 3.0) -> list[Resource]:
    """What times that a fault makes point to."""
    scenario = of.scenario
    rng = np.random.default_rng(1)
    those = []
    for request in REQUESTS:
        kind = CurveKind(Shape(scenario.nodes, scenario.gpus()), request)
        noise = np.exp(rng.normal(0, 0.01, len(SIZES)))
        times_us = of.times(kind, SIZES, fault).time_us * noise + start_us
        those.append(Curve("planted", kind, SIZES, times_us, tuple((line,) for line in range(len(SIZES)))))
    return [each.resource for each in diagnosis.diagnose(those, of, scenario.resolve().own.topology)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "nodes", "nccl", "fault"),
    [
        ("dgx-a100", 1, "2.27.3", Fault(Resource.nvlinks, "half", intra=0.5, channels=True)),
        ("dgx-h100", 1, "2.29.2", Fault(Resource.nvls, "off", without_nvls=True)),
        ("dgx-b200", 1, "2.28.9", Fault(Resource.nvlinks, "half", intra=0.5, channels=True)),
        ("dgx-h100", 1, "2.29.2", Fault(Resource.p2p, "off", intra=0.06, without_nvls=True)),
        ("dgx-b200", 4, "2.29.7", Fault(Resource.adapters, "one", inter=7 / 8, channels=True)),
        ("dgx-b200", 4, "2.29.7", Fault(Resource.gpu_direct, "off", inter=0.42, hop=1.4)),
    ],
    ids=lambda value: value.resource.value if isinstance(value, Fault) else str(value),
)
def test_the_planted_fault_is_named_first(machine: str, nodes: int, nccl: str, fault: Fault) -> None:
    assert named(expectation(machine, nodes, nccl), fault)[0] is fault.resource


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "nodes", "nccl"), [("dgx-h100", 1, "2.29.2"), ("dgx-b200", 4, "2.29.7")])
def test_healthy_times_and_a_later_start_point_to_nothing(machine: str, nodes: int, nccl: str) -> None:
    of = expectation(machine, nodes, nccl)
    assert named(of, None) == []
    assert named(of, None, start_us=30.0) == []


def test_what_leaves_the_same_bandwidth_is_named_together() -> None:
    found = named(expectation("dgx-b200", 4, "2.29.7"), Fault(Resource.pcie_link, "half", inter=0.5))
    assert Resource.pcie_link in found
    assert len(found) > 1


def test_faults_of_a_communicator() -> None:
    def resources(machine: str, nodes: int) -> set[Resource]:
        of = expectation(machine, nodes, "2.28.9")
        communicator = of.selection(Shape(nodes, of.scenario.gpus())).communicator
        return {each.resource for each in faults.of_communicator(communicator, of.scenario.resolve().own.topology)}

    between = {Resource.adapters, Resource.pcie_link, Resource.gpu_direct, Resource.network_latency, Resource.sockets}
    between |= {Resource.hca_list, Resource.bidirectional, Resource.split_data, Resource.acs}
    assert resources("dgx-a100", 1) == {Resource.nvlinks, Resource.p2p}
    assert resources("dgx-h100", 1) == {Resource.nvlinks, Resource.p2p, Resource.nvls}
    assert resources("dgx-h100", 2) == {Resource.nvlinks, Resource.p2p, Resource.nvls, *between}
    assert resources("pcie-l40s", 1) == {Resource.p2p, Resource.pcie_link}


@pytest.mark.live
@pytest.mark.parametrize(
    ("machine", "nodes", "change", "fault"),
    [
        ("dgx-h100", 2, "nics=7", Fault(Resource.adapters, "", inter=7 / 8, channels=True)),
        ("dgx-h100", 2, "nics=4", Fault(Resource.adapters, "", inter=1 / 2, channels=True)),
        ("dgx-h100", 2, "pcie=4", Fault(Resource.pcie_link, "", inter=1 / 2)),
        ("dgx-a100", 1, "nvlinks=6", Fault(Resource.nvlinks, "", intra=1 / 2, channels=True)),
        ("dgx-h100", 1, "nvlinks=9", Fault(Resource.nvlinks, "", intra=1 / 2, channels=True)),
        ("pcie-l40s", 1, "NCCL_P2P_DISABLE=1", Fault(Resource.p2p, "", intra=1 / 2)),
    ],
)
def test_libnccl_finds_the_same_bandwidths(machine: str, nodes: int, change: str, fault: Fault) -> None:
    scenario = describe(machine, nodes=nodes, nccl="2.28.9")
    node = scenario.resolve().own
    own, several = node.for_emulator(nodes > 1), nodes > 1
    scaled = faults.faulty(own, node.for_emulator(False), fault, several).graphs
    found = changed(scenario, [change]).resolve().own.for_emulator(several).graphs
    for name in ("ring", "tree"):
        ours, theirs = scaled[name], found[name]
        assert ours.channels * ours.bw_inter_gbs == pytest.approx(theirs.channels * theirs.bw_inter_gbs), name


@pytest.mark.live
@pytest.mark.skipif(not CASE.is_dir(), reason="../shared/cases is absent")
def test_a_real_machine_and_the_same_with_one_nvlink() -> None:
    """Its owner edited the topology, so that NCCL took 2 channels: what a bridge of one link would have."""
    asked = AcceptOptions(describe(topology=CASE / "raw" / "nccl_topo_dump_normal.xml", nccl="2.27.7"), Given())
    healthy, faulty = (accept([CASE / "raw" / name], asked) for name in ("nccl.log", "nccl-fault.log"))
    assert healthy.passes
    assert not faulty.passes
    assert faulty.diagnosis[0].resource in (Resource.nvlinks, Resource.p2p)

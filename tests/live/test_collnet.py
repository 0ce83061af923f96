"""CollNet against the live libnccl, exactly: a network that reduces, on several shapes and with settings."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.random_topologies import drawn
from tuner import release
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.rules import registered
from tuner.emulator.selection import Selection
from tuner.graphs import SearchRequest as Searched
from tuner.graphs import find
from tuner.machine import catalogue
from tuner.machine.graphs import read_dump
from tuner.oracle import search
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES, check
from tuner.oracle.conformance.mismatches import MatchReport
from tuner.scenario import Scenario
from tuner.scenario.describe import describe

ON = {"NCCL_COLLNET_ENABLE": "1"}
# CollNetDirect of all heads, one GPU per node, chains of 30 GB/s over 24 GB/s, three and four nodes.
SHAPES = [
    ("dgx-h100", 2, 8),
    ("dgx-h100", 3, 1),
    ("dgx-h100", 4, 2),
    ("dgx-h100", 2, 3),
    ("dgx-a100", 2, 7),
    ("dgx-a100", 4, 2),
    ("dgx-b200", 2, 2),
    ("dgx-b200", 3, 1),
]
SETTINGS = [
    {"NCCL_ALGO": "CollNetDirect"},
    {"NCCL_ALGO": "CollNetChain"},
    {"NCCL_ALGO": "NVLS"},
    {"NCCL_ALGO": "^Ring"},
    {"NCCL_ALGO": "CollNetChain,CollNetDirect", "NCCL_MAX_NCHANNELS": "5"},
    {"NCCL_NVLS_ENABLE": "0"},
    {"NCCL_COLLNET_NODE_THRESHOLD": "3"},
    {"NCCL_MIN_CTAS": "20"},
    {"NCCL_COLLNET_ENABLE": "0"},
]
TYPES = [
    (DataType.float8e4m3, Op.sum),
    (DataType.int8, Op.sum),
    (DataType.float16, Op.avg),
    (DataType.int32, Op.avg),
    (DataType.float32, Op.prod),
    (DataType.float64, Op.max),
    (DataType.bfloat16, Op.min),
]


def exact(scenario: Scenario, requests: tuple[Request, ...] = ALL_COLLECTIVES) -> MatchReport:
    selection = Selection(scenario.communicator())
    report = check(scenario, [request for request in requests if selection.usable(request)])
    assert report.mismatches == ()
    assert report.compared["picks"] >= 60
    assert report.compared["groups"] >= 100
    return report


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "nodes", "gpus"), SHAPES)
@pytest.mark.parametrize("name", HERE)
def test_a_network_that_reduces(name: str, machine: str, nodes: int, gpus: int) -> None:
    scenario = Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, collnet=True, environment=ON)
    assert scenario.communicator().collnet is not None
    assert exact(scenario).compared["picks"] >= 5 * 60


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", HERE)
def test_settings(name: str, settings: dict[str, str]) -> None:
    exact(Scenario(nccl=name, machine="dgx-h100", nodes=2, gpus_per_node=3, collnet=True, environment=ON | settings))


@pytest.mark.each_choice
@pytest.mark.parametrize("name", HERE)
def test_rings_as_a_way_out(name: str) -> None:
    """Up to 2.22.3 NVLS alone leaves gathering on whole nodes to rings, of which no tuner is told a cost."""
    exact(Scenario(name, 2, machine="dgx-h100", collnet=True, environment=ON | {"NCCL_ALGO": "NVLS"}))


@pytest.mark.each_choice
@pytest.mark.parametrize(("dtype", "op"), TYPES)
@pytest.mark.parametrize("name", HERE)
def test_types_and_operations(name: str, dtype: DataType, op: Op) -> None:
    if dtype >= release.load(name).limits.data_types:
        pytest.skip(f"NCCL {name} has no {dtype.name}")
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=2, gpus_per_node=3, collnet=True, environment=ON)
    exact(scenario, tuple(Request(collective, dtype, op) for collective in Collective))


@pytest.mark.parametrize("threshold", ["2", "1"])
@pytest.mark.parametrize("name", HERE)
def test_one_node(name: str, threshold: str) -> None:
    """No CollNet by default, though NCCL searches its graphs and may have numbers for it; but it can be had."""
    environment = {**ON, "NCCL_COLLNET_NODE_THRESHOLD": threshold}
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=3, collnet=True, environment=environment)
    assert (scenario.communicator().collnet is None) == (threshold == "2")
    exact(scenario)


@pytest.mark.parametrize("name", HERE)
def test_one_node_without_adapters(tmp_path: Path, name: str) -> None:
    """Nothing reduces there, whatever the variable says: NCCL searches no graph, and has no numbers."""
    topology = tmp_path / "alone.xml"
    topology.write_text(re.sub(r"<nic>.*?</nic>", "", catalogue.load("dgx-h100").topology_xml, flags=re.DOTALL))
    exact(Scenario(nccl=name, topology=topology, nodes=1, gpus_per_node=2, collnet=True, environment=ON))


@pytest.mark.each_choice
@pytest.mark.parametrize("adapters", [1, 2])
@pytest.mark.parametrize("name", HERE)
def test_fewer_adapters_than_gpus(tmp_path: Path, name: str, adapters: int) -> None:
    """GPUs that share adapters are not all heads, so gathering and scattering leave the network out."""
    xml = catalogue.load("dgx-h100").topology_xml
    nics = re.findall(r"<pci [^>]*>\s*<nic>.*?</nic>\s*</pci>", xml, re.DOTALL)
    assert len(nics) == 8
    for nic in nics[adapters:]:
        xml = xml.replace(nic, "")
    topology = tmp_path / "few.xml"
    topology.write_text(xml)
    scenario = Scenario(nccl=name, topology=topology, nodes=2, gpus_per_node=3, collnet=True, environment=ON)
    communicator = scenario.communicator()
    assert communicator.collnet is not None
    assert communicator.collnet.direct_heads < 3
    assert exact(scenario).compared["picks"] >= 5 * 60
    gather = Request(Collective.AllGather, DataType.float32, Op.sum)
    assert (Algorithm.CollNetDirect, 2) in Selection(communicator).excluded(gather)
    with Oracle(scenario.oracle_configuration()) as oracle:
        dump = tmp_path / "graphs.xml"
        dump.write_text(oracle.graph_xml() or "")
        assert read_dump(dump) == (search.graphs(oracle), 3)


@pytest.mark.parametrize("name", [name for name in HERE if release.load(name).rules.grammar == "one_list"])
def test_collnet_asked_for_in_vain(name: str) -> None:
    """Ring and Tree come back; NCCL warns of it."""
    exact(Scenario(nccl=name, machine="dgx-h100", nodes=2, gpus_per_node=2, environment={"NCCL_ALGO": "CollNetDirect"}))


# Over sockets (2.27.5 on such 4 nodes), over adapters that could, within a node, and where there is no NVLink.
WITHOUT_PLUGIN = [("pcie-l40s-no-p2p", 4, 4), ("dgx-h100", 2, 4), ("dgx-h100", 1, 4), ("dgx-a100", 2, 2)]


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "nodes", "gpus"), WITHOUT_PLUGIN)
@pytest.mark.parametrize("name", HERE)
def test_the_variable_alone_brings_no_collnet(name: str, machine: str, nodes: int, gpus: int) -> None:
    """No adapter reduces, here and in the simulated network: what libnccl then does is what it does without."""
    scenario = Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=ON)
    assert scenario.communicator().collnet is None
    exact(scenario)
    with Oracle(scenario.oracle_configuration()) as oracle:
        assert not oracle.facts.collnet


@pytest.mark.parametrize("name", HERE)
def test_a_topology_says_that_adapters_reduce(tmp_path: Path, name: str) -> None:
    """As dumps of runs with CollNet do, with coll and keep."""
    topology = tmp_path / "marked.xml"
    xml = catalogue.load("dgx-h100").topology_xml
    topology.write_text(re.sub("<net ", '<net keep="1" coll="1" ', xml))
    scenario = Scenario(nccl=name, topology=topology, nodes=2, gpus_per_node=4, environment=ON)
    assert scenario.communicator().collnet is not None
    exact(scenario)


def test_collnet_is_really_picked() -> None:
    """Otherwise none of the above would show how it is launched."""
    picked = set()
    for shape in SHAPES:
        machine, nodes, gpus = shape
        scenario = Scenario(
            nccl="2.28.9", machine=machine, nodes=nodes, gpus_per_node=gpus, collnet=True, environment=ON
        )
        selection = Selection(scenario.communicator())
        for request in ALL_COLLECTIVES:
            sizes = [1 << power for power in range(10, 34)]
            picked |= {(request.collective, Algorithm(number)) for number in selection.pick(request, sizes).algorithm}
    assert {algorithm for _, algorithm in picked} >= {Algorithm.CollNetDirect, Algorithm.CollNetChain, Algorithm.NVLS}
    assert (Collective.AllGather, Algorithm.CollNetDirect) in picked


@pytest.mark.parametrize("name", HERE)
def test_no_head_of_direct(tmp_path: Path, name: str) -> None:
    """libnccl divides by their number; up to 2.23 it finds heads on this topology."""
    node = drawn("v1616")
    topology = tmp_path / "node.xml"
    topology.write_text(node.xml)
    scenario = Scenario(nccl=name, topology=topology, nodes=2, gpus_per_node=node.gpus, collnet=True, environment=ON)
    if "collnet_direct" in find(Searched(node.xml, node.gpus, True, ON, network_reduces=True), name):
        exact(scenario)
        return
    with pytest.raises(BadInput, match="divides by their number"):
        scenario.communicator()
    with pytest.raises(OracleFailed, match="SIGFPE"), Oracle(scenario.oracle_configuration()):
        pass


@pytest.mark.each_choice
@pytest.mark.parametrize(
    "nodes",
    [
        ("dgx-h100:4", "dgx-h100:2"),
        ("dgx-a100:2", "dgx-h100:3"),
        ("hgx-h200:8", "hgx-h200:8", "hgx-h200:1", "hgx-h200:1"),  # half more channels with one rank on some
        ("hgx-h200:2", "hgx-h200:2", "dgx-h100:1"),  # 2.18.3's channels begin at one GPU twice
        ("dgx-b200:3", "hgx-h200:1"),  # up to 2.26.5 as many heads as ranks of an average node are enough
    ],
    ids=str,
)
@pytest.mark.parametrize("name", HERE)
def test_nodes_that_differ(name: str, nodes: tuple[str, ...]) -> None:
    """In numbers of GPUs and in heads, seen from both sides."""
    exact(describe(node=list(nodes), nccl=name, collnet=True, env=ON))
    exact(describe(node=list(reversed(nodes)), nccl=name, collnet=True, env=ON))


@pytest.mark.parametrize("name", HERE)
def test_nodes_of_different_gpus(name: str) -> None:
    a100 = Scenario(nccl=name, machine="dgx-a100", nodes=1, gpus_per_node=2)
    scenario = Scenario(
        nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=2, collnet=True, environment=ON, others=(a100,)
    )
    exact(scenario)


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "nodes", "gpus"), [("dgx-h100", 2, 8), ("dgx-h100", 1, 3), ("dgx-b200", 3, 2)])
@pytest.mark.parametrize("name", HERE)
def test_a_plugin_that_is_not_asked_for(name: str, machine: str, nodes: int, gpus: int) -> None:
    """Two releases take all adapters for one rail then, and two have numbers for CollNetDirect on one node."""
    scenario = Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, collnet=True)
    exact(scenario)
    if nodes == 2:
        one_rail = release.load(name).search.reading.collnet_is_one_rail
        without = replace(scenario, collnet=False)
        assert (scenario.resolve().connected != without.resolve().connected) == one_rail


@pytest.mark.each_choice
@pytest.mark.parametrize("name", HERE)
def test_a_communicator_that_is_split_off(name: str) -> None:
    """It has CollNet of its own on fewer nodes than the whole; on as many only up to 2.21.5."""
    exact(describe(machine="dgx-h100", gpus_per_node=2, nodes=3, ranks="0-3", nccl=name, collnet=True, env=ON))
    as_many = describe(machine="dgx-h100", gpus_per_node=2, nodes=2, ranks="0-2", nccl=name, collnet=True, env=ON)
    if release.load(name).connect.split_keeps_collnet:
        exact(as_many)
    else:
        with pytest.raises(BadInput, match="on this number of nodes: NCCL"):
            as_many.communicator()


@pytest.mark.each_choice
@pytest.mark.parametrize("buffers", [Buffers.registered, Buffers.graph, Buffers.window])
@pytest.mark.parametrize("name", HERE)
def test_buffers(name: str, buffers: Buffers) -> None:
    """With several ranks per node channels do not go by whether the network takes the buffers."""
    if registered.missing(release.load(name), buffers):
        pytest.skip(f"NCCL {name} has no such buffers")
    environment = {**ON, "NCCL_GIN_TYPE": "0"} if buffers is Buffers.window else ON
    scenario = Scenario(name, 2, machine="dgx-h100", gpus_per_node=4, collnet=True, environment=environment)
    exact(scenario, tuple(replace(request, buffers=buffers) for request in ALL_COLLECTIVES))
    alone = replace(scenario, gpus_per_node=1)
    if not release.load(name).rules.registered:  # 2.18 registers for CollNet alone, and only if it is asked to
        return
    with pytest.raises(BadInput, match="one rank per node"):
        Selection(alone.communicator()).pick(replace(ALL_COLLECTIVES[0], buffers=buffers), [1 << 20])

"""Several ranks on one GPU, which NCCL 2.30.3 and later allow: the emulator against the live library, exactly."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.available_releases import HERE, INTERFACES
from tuner import release
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Algorithm, Buffers
from tuner.graphs import cached, graph_file
from tuner.machine import catalogue
from tuner.machine.graphs import read_dump
from tuner.oracle import library, search
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES, check
from tuner.scenario import Scenario
from tuner.scenario.describe import describe
from tuner.scenario.oracle_configuration import OracleConfiguration

REFUSES = ("2.18.1", "2.28.9", "2.29.7")
SHARING = [
    name
    for name in dict.fromkeys((*HERE, *sorted(INTERFACES)))
    if release.load(name).environment.shares_gpus is not None
]
LAST = "2.30.7"  # takes the last two ranks for all
SHAPES = [  # machine, nodes, GPUs per node, ranks per GPU
    ("dgx-h100", 1, 1, 2),
    ("dgx-h100", 1, 1, 8),
    ("dgx-h100", 1, 2, 2),
    ("dgx-h100", 2, 1, 4),
    ("dgx-h100", 2, 8, 2),
    ("dgx-a100", 1, 1, 4),
    ("dgx-a100", 2, 2, 2),
    ("dgx-b200", 1, 2, 2),
    ("dgx-b200", 2, 2, 2),
    ("pcie-l40s", 1, 2, 2),
    ("pcie-l40s", 2, 1, 2),
]
PLACED = [(0, 0), (0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 1), (1, 0, 0, 1, 0)]

pytestmark = pytest.mark.skipif(not SHARING, reason="no libnccl from 2.30.3 on is here")


def of(name: str, gpu_of_rank: tuple[int, ...], nodes: int = 1) -> OracleConfiguration:
    h100 = catalogue.load("dgx-h100")
    gpus = max(gpu_of_rank) + 1
    return OracleConfiguration(
        h100.topology_xml,
        nodes,
        gpus,
        name,
        dict(h100.environment),
        gpu_of_rank=gpu_of_rank,
        dumps_topology=True,
        offers_gin=True,
    )


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "nodes", "gpus", "per_gpu"), SHAPES)
@pytest.mark.parametrize("name", SHARING)
def test_what_nccl_makes_of_ranks_that_share_gpus(name: str, machine: str, nodes: int, gpus: int, per_gpu: int) -> None:
    report = check(Scenario(name, nodes, machine=machine, gpus_per_node=gpus, ranks_per_gpu=per_gpu))
    assert report.mismatches == ()
    assert report.compared["cells"] >= 5 * 60 * 18
    assert report.compared["groups"] >= 1000


@pytest.mark.parametrize("buffers", [Buffers.registered, Buffers.window], ids=str)
@pytest.mark.parametrize(("machine", "gpus"), [("dgx-h100", 1), ("dgx-b200", 1), ("dgx-h100", 2), ("ws-2x-a6000", 2)])
@pytest.mark.parametrize("name", SHARING)
def test_on_registered_buffers_and_windows(name: str, machine: str, gpus: int, buffers: Buffers) -> None:
    scenario = Scenario(name, 1, machine=machine, gpus_per_node=gpus, ranks_per_gpu=2)
    report = check(scenario, [replace(request, buffers=buffers) for request in ALL_COLLECTIVES])
    assert report.mismatches == ()


@pytest.mark.parametrize(
    "settings", [{"NCCL_MAX_CTAS": "33"}, {"NCCL_P2P_DISABLE": "1"}, {"NCCL_ALGO": "Tree"}], ids=str
)
@pytest.mark.parametrize("name", SHARING)
def test_with_a_setting(name: str, settings: dict[str, str]) -> None:
    scenario = Scenario(name, 1, machine="dgx-h100", gpus_per_node=1, ranks_per_gpu=4, environment=settings)
    assert check(scenario).mismatches == ()


@pytest.mark.parametrize("gpu_of_rank", PLACED)
@pytest.mark.parametrize("name", SHARING)
def test_dumps_are_the_same_communicator(name: str, gpu_of_rank: tuple[int, ...], tmp_path: Path) -> None:
    """Ranks dealt out in any order, also unevenly; what NCCL dumps of it is read as it was."""
    topology, graphs = tmp_path / "node.xml", tmp_path / "graphs.xml"
    with Oracle(of(name, gpu_of_rank, nodes=2)) as oracle:
        assert (oracle.facts.n_ranks, oracle.facts.local_ranks) == (2 * len(gpu_of_rank), len(gpu_of_rank))
        topology.write_text(oracle.topology_xml() or "")
        graphs.write_text(oracle.graph_xml() or "")
        assert read_dump(graphs) == (search.graphs(oracle), len(gpu_of_rank))
    scenario = Scenario(name, 2, topology=topology)
    assert scenario.resolve().own.gpu_of_rank == gpu_of_rank
    with Oracle(scenario.oracle_configuration()) as again:
        assert (again.facts, again.graphs) == (oracle.facts, oracle.graphs)
    assert check(scenario).mismatches == ()
    dumped = replace(scenario, graphs=graphs)
    assert dumped.resolve().own.for_emulator(True).graphs == scenario.resolve().own.for_emulator(True).graphs


@pytest.mark.parametrize("name", SHARING)
def test_nvls_needs_a_gpu_for_each_rank(name: str) -> None:
    with Oracle(of(name, (0, 0, 1, 1))) as oracle:
        assert oracle.facts.nvls_support == 0
    with Oracle(of(name, (0, 1, 0, 1))) as oracle:
        assert oracle.facts.nvls_support == (name == LAST)
    with pytest.raises(OracleFailed, match="NCCL_NVLS_ENABLE"):
        Oracle(replace(of(name, (0, 0, 1, 1)), env={"NCCL_NVLS_ENABLE": "1"}))


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus", "per_gpu"),
    [
        ("dgx-h100", 1, 1, 4),
        ("dgx-h100", 2, 2, 2),
        ("dgx-b200", 1, 2, 2),
        ("pcie-l40s", 2, 2, 2),
        ("ws-2x-a6000", 2, 2, 3),
    ],
)
@pytest.mark.parametrize("name", SHARING)
def test_our_own_search_finds_the_same_channels(
    name: str, machine: str, nodes: int, gpus: int, per_gpu: int, tmp_path: Path
) -> None:
    scenario = Scenario(name, nodes, machine=machine, gpus_per_node=gpus, ranks_per_gpu=per_gpu)
    found = cached.searched(scenario.resolve().own.for_search(nodes > 1), name)
    dumped = graph_file.text(found.graphs, release.load(name).search.dump)
    with Oracle(scenario.oracle_configuration()) as oracle:
        assert {name: graph for name, graph in found.graphs.items() if graph.orders} == search.ordered_graphs(oracle)
        assert dumped == oracle.graph_xml()
    file = tmp_path / "graphs.xml"
    file.write_text(dumped)
    assert replace(scenario, graphs=file).communicator().channels == scenario.communicator().channels


@pytest.mark.parametrize("name", SHARING)
def test_dealt_out_in_turns_our_own_search_finds_nvls_where_nccl_does(name: str, tmp_path: Path) -> None:
    topology = tmp_path / "node.xml"
    with Oracle(of(name, (0, 1, 0, 1))) as oracle:
        topology.write_text(oracle.topology_xml() or "")
    scenario = Scenario(name, 1, topology=topology)
    found = cached.searched(scenario.resolve().own.for_search(several=False), name)
    with Oracle(scenario.oracle_configuration()) as oracle:
        assert {name: graph for name, graph in found.graphs.items() if graph.orders} == search.ordered_graphs(oracle)


@pytest.mark.parametrize("name", SHARING)
def test_only_some_nodes_share_gpus(name: str, tmp_path: Path) -> None:
    topology = tmp_path / "node.xml"
    with Oracle(of(name, (0, 0, 1, 1))) as oracle:
        topology.write_text(oracle.topology_xml() or "")
    assert check(describe(node=["dgx-h100:3", str(topology)], nccl=name)).mismatches == ()
    other_way = describe(node=[str(topology), "dgx-h100:3"], nccl=name)
    if name == LAST:
        with pytest.raises(BadInput, match="valid: the nodes whose ranks share GPUs last"):
            check(other_way)
    else:
        assert check(other_way).mismatches == ()


@pytest.mark.parametrize("name", SHARING)
def test_ranks_on_one_gpu_meet_in_its_memory(name: str) -> None:
    with Oracle(of(name, (0, 0, 0, 0))) as oracle:
        ring = oracle.graphs[Algorithm.Ring]
        assert ring.type_intra == "LOC"


@pytest.mark.parametrize("name", [name for name in REFUSES if library.cached(name).is_file()])
def test_earlier_releases_refuse(name: str) -> None:
    with pytest.raises(BadInput, match=f"NCCL {name} refuses several ranks on one GPU: use 2.30.3 or later"):
        Oracle(of(name, (0, 0)))


@pytest.mark.parametrize("gpu_of_rank", [(1, 1), (0, 2), (-1, 0)])
def test_every_gpu_has_a_rank(gpu_of_rank: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="each GPU needs at least one rank"):
        Oracle(replace(of(SHARING[-1], (0, 0)), gpu_of_rank=gpu_of_rank, gpus_per_node=2))

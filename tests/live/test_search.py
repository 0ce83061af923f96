"""Our own search for channels against the live libnccl: every number, every channel, and the file that it writes."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.processors import PROCESSORS, Processors, with_processors
from tests.support.random_topologies import drawn
from tests.support.two_ports import HOW, MERGING, How, with_two_ports
from tuner import release
from tuner.answers.graphs import of_scenario
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Algorithm
from tuner.graphs import SearchRequest, graph_file, searched
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import check
from tuner.oracle.search import ordered_graphs
from tuner.release import load
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

pytestmark = pytest.mark.live

ALONE, TOGETHER = 1, 2
RANDOM = 5  # topologies of each release; tests.scripts.check_graphs takes more
MACHINES = ("a100-4x-2nic", "alps", "dgx-b200", "dgx-h100", "pcie-l40s-no-p2p", "ws-2x-a6000")
SETTINGS = (
    {"NCCL_COLLNET_ENABLE": "1"},
    {"NCCL_CROSS_NIC": "0"},
    {"NCCL_CROSS_NIC": "1"},
    {"NCCL_P2P_LEVEL": "SYS"},
    {"NCCL_NET_GDR_LEVEL": "SYS"},
    {"NCCL_NET_GDR_LEVEL": "LOC"},
    {"NCCL_NET_GDR_READ": "0"},
    {"NCCL_PXN_DISABLE": "1"},
    {"NCCL_NVB_DISABLE": "1"},
    {"NCCL_NET_DISABLE_INTRA": "1"},
)


def compare(scenario: Scenario) -> None:
    request = scenario.resolve().own.for_search(scenario.nodes > 1)
    compare_with(request, scenario.oracle_configuration())


def compare_with(request: SearchRequest, configuration: OracleConfiguration) -> None:
    result = searched(request, configuration.release)
    found = {name: graph for name, graph in result.graphs.items() if graph.orders}
    with Oracle(configuration) as oracle:
        # Where NCCL takes a host for several nodes, it mixes their graphs, and the file alone has those of rank 0.
        assert result.parts > 1 or found == ordered_graphs(oracle)
        assert graph_file.text(result.graphs, release.load(configuration.release).search.dump) == oracle.graph_xml()


@pytest.mark.parametrize("nccl", HERE)
def test_latencies_go_by_a_search_for_nvls_that_finds_nothing(nccl: str) -> None:
    """As one GPU does not reach the NVSwitch; what libnccl fails on is refused."""
    scenario = Scenario(nccl, TOGETHER, machine="dgx-h100", hardware={"nvlinks": "0@gpu:2"})
    try:
        communicator = scenario.communicator()
    except BadInput:
        with pytest.raises(OracleFailed):
            Oracle(scenario.oracle_configuration()).close()
        return
    assert not communicator.graphs[Algorithm.NVLS].channels
    assert check(scenario).mismatches == ()


@pytest.mark.parametrize("nccl", HERE)
def test_a_part_of_a_host_on_which_the_search_fails_ends_the_communicator(nccl: str) -> None:
    """One GPU of the second socket does not reach the NVSwitch, and without peer-to-peer each socket is a node."""
    scenario = Scenario(
        nccl, 1, machine="dgx-h100", hardware={"nvlinks": "0@gpu:7"}, environment={"NCCL_P2P_DISABLE": "1"}
    )
    try:
        of_scenario(scenario)
    except BadInput:
        with pytest.raises(OracleFailed):
            Oracle(scenario.oracle_configuration()).close()
        return
    assert check(scenario).mismatches == ()


@pytest.mark.each_choice
@pytest.mark.parametrize(("nccl", "machine", "nodes"), list(product(HERE, MACHINES, (ALONE, TOGETHER))))
def test_every_channel_is_libnccls(nccl: str, machine: str, nodes: int) -> None:
    if nccl in catalogue.load(machine).crashes:
        pytest.skip("this release of libnccl crashes there")
    compare(Scenario(nccl, nodes, machine=machine))


@pytest.mark.parametrize("nccl", HERE)
def test_channels_of_seven_blackwell_gpus_are_libnccls(nccl: str) -> None:
    """Between nodes these take bandwidths that no whole node takes."""
    if nccl in catalogue.load("dgx-b300").crashes:
        pytest.skip("this release of libnccl crashes there")
    compare(Scenario(nccl, TOGETHER, machine="dgx-b300", gpus_per_node=7))


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("nccl", HERE)
def test_every_channel_is_libnccls_with_a_variable_set(nccl: str, settings: dict[str, str]) -> None:
    compare(Scenario(nccl, TOGETHER, machine="a100-4x-2nic", collnet=True, environment=settings))


@pytest.mark.each_choice
@pytest.mark.parametrize("number", range(RANDOM))
@pytest.mark.parametrize("nccl", HERE)
def test_every_channel_of_a_random_topology_is_libnccls(nccl: str, number: int) -> None:
    node = drawn(f"{number} {nccl}")
    request = SearchRequest(node.xml, node.gpus, node.nodes > 1, node.environment, node.across, network_reduces=True)
    compare_with(
        request,
        node.oracle_configuration(nccl),
    )


@pytest.mark.each_choice
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("nccl", HERE)
def test_merged_adapters_are_libnccls(nccl: str, how: How) -> None:
    """Every way to ask for it in turn."""
    settings = MERGING[(HERE.index(nccl) + HOW.index(how)) % len(MERGING)]
    topology = with_two_ports(catalogue.load("dgx-h100").topology_xml, how)
    request = SearchRequest(topology, 2, True, settings, network_reduces=True)
    compare_with(request, OracleConfiguration(topology, TOGETHER, 2, nccl, settings, network_reduces=True))


@pytest.mark.parametrize("setting", [{}, {"NCCL_IB_MERGE_NICS": "0"}, {"NCCL_IB_HCA": "^mlx5_18"}], ids=str)
@pytest.mark.parametrize("nccl", [nccl for nccl in HERE if load(nccl).search.ports_merged != "never"])
def test_ports_that_the_network_merges_are_libnccls(nccl: str, setting: dict[str, str]) -> None:
    compare(Scenario(nccl, TOGETHER, machine="oci-h100", gpus_per_node=4, environment=setting))


@pytest.mark.parametrize("nccl", HERE)
def test_affinity_that_a_topology_lacks_is_not_this_computers(nccl: str) -> None:
    """libnccl adds that of the NUMA node of its own computer, where there may be none, and joins ranks otherwise."""
    topology = re.sub(r' affinity="[^"]*"', "", catalogue.load("pcie-l40s").topology_xml)
    compare_with(SearchRequest(topology, 8, True, {}), OracleConfiguration(topology, TOGETHER, 8, nccl, {}))


def test_forced_groups_are_libnccls() -> None:
    topology = with_two_ports(catalogue.load("dgx-h100").topology_xml, "functions")
    settings = {"NCCL_NET_FORCE_MERGE": "mlx5_0,mlx5_3_1;mlx5_3,mlx5_0_1"}
    for nccl in HERE:
        request = SearchRequest(topology, 2, True, settings)
        compare_with(request, OracleConfiguration(topology, TOGETHER, 2, nccl, settings))


@pytest.mark.each_choice
@pytest.mark.parametrize("processors", PROCESSORS)
@pytest.mark.parametrize("nccl", HERE)
def test_rare_processors_are_libnccls(nccl: str, processors: Processors) -> None:
    topology = with_processors(catalogue.load("dgx-1v").topology_xml, processors, nccl)
    environment = {"NCCL_NET_GDR_READ": "1"}
    compare_with(
        SearchRequest(topology, 4, True, environment), OracleConfiguration(topology, TOGETHER, 4, nccl, environment)
    )


@pytest.mark.each_choice
@pytest.mark.parametrize("setting", ["=mlx5_3,mlx5_9", "^mlx5_0,mlx5_3", "mlx5_1:1"])
@pytest.mark.parametrize("nccl", HERE)
def test_selected_adapters_are_libnccls(nccl: str, setting: str) -> None:
    compare(Scenario(nccl, TOGETHER, machine="dgx-h100", gpus_per_node=2, environment={"NCCL_IB_HCA": setting}))


@pytest.mark.parametrize("nodes", [ALONE, TOGETHER])
@pytest.mark.parametrize("nccl", HERE)
def test_graphs_of_a_file_are_libnccls(nccl: str, nodes: int, tmp_path: Path) -> None:
    """Other numbers for the ring, and no tree; without ranks, which fail on several nodes."""
    scenario = Scenario(nccl, nodes, machine="dgx-h100", gpus_per_node=2)
    request = scenario.resolve().own.for_search(nodes > 1)
    form = release.load(nccl).search.dump
    written = graph_file.text(searched(request, nccl).graphs, replace(form, ranks=False))
    file = tmp_path / "graphs.xml"
    file.write_text(re.sub(r'speedintra="[0-9.]+"', 'speedintra="3.25"', written, count=1).replace('id="1"', 'id="9"'))
    compare(replace(scenario, environment={"NCCL_GRAPH_FILE": str(file)}))


@pytest.mark.skipif("2.32.3" not in HERE, reason="NCCL 2.32.3 is not here")
@pytest.mark.parametrize(
    ("capability", "has_own"), [(106, False), (107, True), (110, False), (121, False), (122, True)]
)
def test_which_gpus_have_bandwidths_of_their_own(capability: int, has_own: bool, tmp_path: Path) -> None:
    text = catalogue.load("dgx-b200").topology_xml
    (file := tmp_path / "node.xml").write_text(re.sub(r'sm="\d+"', f'sm="{capability}"', text))
    scenario = Scenario("2.32.3", 1, topology=file, gpus_per_node=2)
    with Oracle(scenario.oracle_configuration()) as oracle:
        found = oracle.graphs[Algorithm.Ring].bw_intra_gbs
    rubin = {gbs * 23.4 for gbs in (12, 8, 6, 4, 3, 2, 1.5, 1, 0.75)}  # rubinSpeedArrayIntra
    assert any(found == pytest.approx(gbs) for gbs in rubin) == has_own
    if has_own:
        with pytest.raises(BadInput, match="which are not emulated"):
            scenario.communicator()
    else:
        assert scenario.communicator().graphs[Algorithm.Ring].bw_intra_gbs == found

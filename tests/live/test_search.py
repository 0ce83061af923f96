"""Our own search for channels against the live libnccl: every number, every channel, and the file that it writes."""

from itertools import product

import pytest

from tests.support.available_releases import HERE
from tests.support.random_topologies import drawn
from tuner import release
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.configuration import OracleConfiguration
from tuner.oracle.search import ordered_graphs
from tuner.scenario import Scenario
from tuner.search import Request, dump, searched

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


def compare_with(request: Request, configuration: OracleConfiguration) -> None:
    result = searched(request, configuration.release)
    found = {name: graph for name, graph in result.graphs.items() if graph.orders}
    with Oracle(configuration) as oracle:
        # Where NCCL takes a host for several nodes, it mixes their graphs, and the file alone has those of rank 0.
        assert result.parts > 1 or found == ordered_graphs(oracle)
        assert dump.text(result.graphs, release.load(configuration.release).search.dump) == oracle.graph_xml()


@pytest.mark.parametrize(("nccl", "machine", "nodes"), list(product(HERE, MACHINES, (ALONE, TOGETHER))))
def test_every_channel_is_libnccls(nccl: str, machine: str, nodes: int) -> None:
    if nccl in catalogue.load(machine).crashes:
        pytest.skip("this release of libnccl crashes there")
    compare(Scenario(nccl, nodes, machine=machine))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("nccl", HERE)
def test_every_channel_is_libnccls_with_a_variable_set(nccl: str, settings: dict[str, str]) -> None:
    compare(Scenario(nccl, TOGETHER, machine="a100-4x-2nic", environment=settings))


@pytest.mark.parametrize("number", range(RANDOM))
@pytest.mark.parametrize("nccl", HERE)
def test_every_channel_of_a_random_topology_is_libnccls(nccl: str, number: int) -> None:
    node = drawn(f"{number} {nccl}")
    request = Request(node.xml, node.gpus, node.nodes > 1, node.environment, node.across)
    compare_with(
        request,
        OracleConfiguration(
            node.xml, node.nodes, node.gpus, nccl, node.environment, peer_to_peer_across_sockets=node.across
        ),
    )

"""Our own search for channels against the live libnccl: every number, every channel, and the file that it writes."""

from itertools import product

import pytest

from tests.support.available_releases import HERE
from tuner import release
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.search import ordered_graphs
from tuner.scenario import Scenario
from tuner.search import cached, dump

pytestmark = pytest.mark.live

ALONE, TOGETHER = 1, 2
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
    resolved = scenario.resolve()
    found = cached.searched(resolved.own.for_search(scenario.nodes > 1), scenario.nccl).graphs
    with Oracle(scenario.oracle_configuration()) as oracle:
        assert {name: graph for name, graph in found.items() if graph.orders} == ordered_graphs(oracle)
        assert dump.text(found, release.load(scenario.nccl).search.dump) == oracle.graph_xml()


@pytest.mark.parametrize(("nccl", "machine", "nodes"), list(product(HERE, MACHINES, (ALONE, TOGETHER))))
def test_every_channel_is_libnccls(nccl: str, machine: str, nodes: int) -> None:
    if nccl in catalogue.load(machine).crashes:
        pytest.skip("this release of libnccl crashes there")
    compare(Scenario(nccl, nodes, machine=machine))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("nccl", HERE)
def test_every_channel_is_libnccls_with_a_variable_set(nccl: str, settings: dict[str, str]) -> None:
    compare(Scenario(nccl, TOGETHER, machine="a100-4x-2nic", environment=settings))

"""Hosts that the live libnccl takes for several nodes: every number, pick and channel."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.support.available_releases import HERE, WITH_PLUGINS
from tests.support.gb200_tray import tray
from tests.support.plugin_tables import interface, table_of
from tests.support.split_hosts import IN_TURN, SIXTEEN_L20, UNEVEN
from tuner import plugin, release
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.emulator.request import Request
from tuner.graphs.graphs import search
from tuner.graphs.request import Hosts, SearchRequest
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES, check
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import Host, OracleConfiguration

pytestmark = pytest.mark.live

MADE_UP = {"16 L20": SIXTEEN_L20, "uneven": UNEVEN, "in turn": IN_TURN}
P2P_OFF, BOTH_OFF = {"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
OF_CATALOGUE = (("dgx-h100", 4, BOTH_OFF, 8), ("dgx-h100", 8, P2P_OFF, 4))


def compare(scenario: Scenario, nodes: int) -> None:
    assert scenario.communicator().nodes == nodes
    report = check(scenario, timeout_s=600)
    assert report.mismatches == ()
    assert all(report.compared[what] for what in ("graphs", "tables", "cells", "picks"))


@pytest.mark.each_choice
@pytest.mark.parametrize(("nccl", "host", "hosts"), list(product(HERE, MADE_UP, (1, 2))))
def test_sockets_are_nodes(nccl: str, host: str, hosts: int, tmp_path: Path) -> None:
    file = tmp_path / "host.xml"
    file.write_text(MADE_UP[host])
    compare(Scenario(nccl, hosts, topology=file), 2 * hosts)


@pytest.mark.each_choice
@pytest.mark.parametrize(("nccl", "shape"), list(product(HERE, OF_CATALOGUE)), ids=str)
def test_variables_split_hosts(nccl: str, shape: tuple[str, int, dict[str, str], int]) -> None:
    machine, gpus, environment, nodes = shape
    compare(Scenario(nccl, 2, machine=machine, gpus_per_node=gpus, environment=environment), nodes)


@pytest.mark.parametrize("nccl", [nccl for nccl in WITH_PLUGINS if interface(nccl) > 1])
def test_the_plugin_is_told_of_nccls_nodes(nccl: str, tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce ranks=8 nodes=2 -> tree/ll", "allreduce ranks=8 nodes=8 -> ring/ll")
    scenario = Scenario(nccl, 2, machine="dgx-h100", gpus_per_node=4, environment=BOTH_OFF)
    own, env = scenario.oracle_configuration(), {**BOTH_OFF, "NCCL_TUNER_TABLE": str(table)}
    with Oracle(replace(own, env=env, plugin=plugin.path(), record_plugin=False)) as oracle:
        (launched,) = oracle.launch(Request(Collective.AllReduce, DataType.float32, Op.sum), [64 << 20])
    assert (launched.algorithm, launched.protocol) == (Algorithm.Ring, Protocol.LL)
    assert scenario.communicator().nodes == 8


APART = {"NCCL_P2P_DISABLE": "1", "NCCL_MNNVL_ENABLE": "1"}
SIZES = [3 << 12, 3 << 20, 3 << 28]  # bytes
NO_DOMAINS = ("hosts_are_nodes", "only_the_whole_communicator")  # rules of releases that take hosts for nodes
DOMAINS = [(2, 2, 4, APART), (3, 2, 4, {**APART, "NCCL_SHM_DISABLE": "1"}), (4, 4, 2, APART)]


@pytest.mark.each_choice
@pytest.mark.parametrize(("nccl", "shape"), list(product(HERE, DOMAINS)), ids=str)
def test_domains_fall_apart(nccl: str, shape: tuple[int, int, int, dict[str, str]], tmp_path: Path) -> None:
    if release.load(nccl).rules.domains in NO_DOMAINS:
        pytest.skip("takes hosts for nodes anyway")
    hosts, per_domain, gpus, environment = shape
    file = tmp_path / "tray.xml"
    file.write_text(tray())
    own = Scenario(nccl, hosts, topology=file, gpus_per_node=gpus, hosts_per_domain=per_domain, environment=environment)
    try:
        own.communicator()
    except BadInput:
        with pytest.raises(OracleFailed, match="killed by SIGSEGV"):
            Oracle(own.oracle_configuration()).close()
        return
    report = check(own, sizes=SIZES)
    assert report.mismatches == ()
    assert own.communicator().nodes > hosts // per_domain


@pytest.mark.parametrize("nccl", sorted({"2.23.4", "2.26.5"} & set(HERE)))
def test_a_tree_that_leaves_by_an_adapter_of_another_host_crashes(nccl: str) -> None:
    """It is too slow to enter from: only leaving asks for a way back that is not there, in the second release."""
    fast, slow = tray(gpus=2), tray(gpus=1, speed_mbps=25000)
    node = SearchRequest(fast, 2, False, APART, in_domain=True, others=(Hosts(slow, 1),))
    asked = OracleConfiguration(fast, 1, 2, nccl, APART, domains=(2,), others=(Host(slow, 1),))
    if nccl == "2.23.4":
        with Oracle(asked) as oracle:
            assert (oracle.facts.n_nodes, search(node, nccl).parts) == (2, 2)
        return
    with pytest.raises(OracleFailed, match="killed by SIGSEGV"):
        Oracle(asked).close()
    with pytest.raises(BadInput, match="a tree leaves by NET"):
        search(node, nccl)


@pytest.mark.parametrize("nccl", HERE)
def test_one_blackwell_host_may_be_two_nodes(nccl: str) -> None:
    compare(Scenario(nccl, 1, machine="dgx-b200", environment=P2P_OFF), 2)


@pytest.mark.parametrize(("nccl", "hosts"), list(product(WITH_PLUGINS, (1, 2))))
def test_registered_buffers_where_ranks_of_a_node_are_apart(nccl: str, hosts: int, tmp_path: Path) -> None:
    file = tmp_path / "host.xml"
    file.write_text(IN_TURN)
    calls = [replace(request, buffers=Buffers.registered) for request in ALL_COLLECTIVES]
    report = check(Scenario(nccl, hosts, topology=file), calls, SIZES)
    assert report.mismatches == ()
    assert report.compared["picks"]

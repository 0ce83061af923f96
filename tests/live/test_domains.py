"""Multi-node NVLink: hosts that the live libnccl takes for one node, on simulated trays."""

from dataclasses import fields
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.gb200_tray import tray
from tuner import release
from tuner.answers import graphs, library
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm
from tuner.oracle import start
from tuner.oracle.api import Oracle
from tuner.oracle.configuration import OracleConfiguration
from tuner.oracle.search import ordered_graphs
from tuner.scenario.describe import describe

JOINS_SINCE = "2.21.5"  # earlier releases have hosts for nodes
JOINING = [name for name in HERE if release.names().index(name) >= release.names().index(JOINS_SINCE)]
EARLIER = [name for name in HERE if name not in JOINING]

pytestmark = pytest.mark.live


def of(name: str, *domains: int, **given: object) -> OracleConfiguration:
    return OracleConfiguration(tray(), sum(domains), 4, name, {}, domains=domains, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", JOINING)
def test_two_trays_of_a_domain_are_one_node(name: str) -> None:
    with Oracle(of(name, 2)) as oracle:
        facts, graphs = oracle.facts, ordered_graphs(oracle)
        log = "\n".join(oracle.log_lines())
    assert (facts.n_ranks, facts.n_nodes, facts.local_ranks, facts.mnnvl) == (8, 1, 8, 1)
    for rank in range(8):
        assert f"MNNVL 1 cliqueId 0 cliqueSize 8 cliqueRank {rank}" in log
    assert facts.nvls_support == 1
    assert graphs["ring"].graph.channels == graphs["tree"].graph.channels == 16
    assert [len(set(order)) for order in graphs["ring"].orders] == [8] * 16  # every GPU of both, and no adapter
    assert graphs["nvls"].graph.channels == 8  # one with each rank as its head


@pytest.mark.parametrize("name", JOINING)
def test_two_domains_are_two_nodes(name: str) -> None:
    with Oracle(of(name, 2, 2)) as oracle:
        facts, graphs = oracle.facts, ordered_graphs(oracle)
    assert (facts.n_ranks, facts.n_nodes, facts.local_ranks, facts.mnnvl) == (16, 2, 8, 1)
    assert facts.nvls_support == 1
    # Each adapter of both trays takes a channel.
    assert len({net for order in graphs["ring"].orders for net in order if net.startswith("net:")}) == 8


@pytest.mark.parametrize("name", JOINING)
def test_ranks_of_a_domain_would_all_make_the_same_system(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers() -> tuple[object, ...]:
        with Oracle(of(name, 2, 1)) as oracle:
            tables = [
                getattr(each, field.name).tolist()
                for each in (oracle.tables, oracle.last_rank_tables)
                for field in fields(each)
            ]
            return oracle.facts, oracle.last_rank_facts, oracle.graphs, oracle.graph_xml(), tables

    made_once = answers()
    monkeypatch.setattr(start, "_systems", lambda *_: None)
    assert answers() == made_once


@pytest.mark.slow
def test_a_whole_rack_is_one_node() -> None:
    with Oracle(of(HERE[-1], 18)) as oracle:
        facts = oracle.facts
    assert (facts.n_ranks, facts.n_nodes, facts.local_ranks, facts.mnnvl) == (72, 1, 72, 1)
    assert oracle.graphs[Algorithm.NVLS].n_channels == 32  # as many heads as NCCL has


@pytest.mark.parametrize("name", EARLIER)
def test_earlier_releases_take_every_host_for_a_node(name: str) -> None:
    with Oracle(of(name, 2)) as oracle:
        assert (oracle.facts.n_nodes, oracle.facts.local_ranks) == (2, 4)


def test_domains_have_all_hosts() -> None:
    configuration = OracleConfiguration(tray(), 3, 4, HERE[-1], {}, domains=(2, 2))
    with pytest.raises(BadInput, match=r"NVLink domains of \(2, 2\) hosts: 4 in all; valid: as many as there are, 3"):
        Oracle(configuration)


def test_as_a_user_says_it(tmp_path: Path) -> None:
    file = tmp_path / "tray.xml"
    file.write_text(tray())
    scenario = describe(topology=file, nodes=3, hosts_per_domain=2, nccl=HERE[-1])
    assert scenario.title.endswith(f"3 x {file}, 4 GPUs each, NVLink domains of 2 hosts, NCCL {HERE[-1]}")
    assert scenario.oracle_configuration().domains == (2, 1)
    whole = describe(topology=file, nodes=2, hosts_per_domain=2, nccl=HERE[-1])
    with Oracle(of(HERE[-1], 2)) as oracle:
        assert library.graphs(whole, timeout_s=120) == ordered_graphs(oracle)
        assert graphs.of_scenario(whole) == ordered_graphs(oracle)

"""Multi-node NVLink: hosts that the live libnccl takes for one node, on simulated trays."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.gb200_tray import tray
from tuner import release
from tuner.answers import graphs
from tuner.answers import library as answers_of_library
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Algorithm, Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.oracle import library, start
from tuner.oracle.api import Oracle
from tuner.oracle.search import ordered_graphs
from tuner.scenario.describe import describe
from tuner.scenario.oracle_configuration import Host, OracleConfiguration

JOINS_SINCE = "2.21.5"  # earlier releases have hosts for nodes
JOINING = [name for name in HERE if release.names().index(name) >= release.names().index(JOINS_SINCE)]
EARLIER = [name for name in HERE if name not in JOINING]

pytestmark = pytest.mark.live


def of(name: str, *domains: int, gpus: int = 4, **given: object) -> OracleConfiguration:
    """``gpus`` of each tray."""
    return OracleConfiguration(
        tray(gpus=gpus),
        sum(domains),
        gpus,
        name,
        {},
        domains=domains,
        **given,  # type: ignore[arg-type]
    )


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


def test_memory_of_a_domain_grows_with_its_devices() -> None:
    """2.30.7 begins the functions that make its systems unlike others; each of 16 ranks making one takes 3 GB."""
    name = "2.30.7" if library.cached("2.30.7").is_file() else HERE[-1]
    with Oracle(of(name, 4)) as oracle:
        status = Path(f"/proc/{oracle.pid}/status").read_text()
    assert int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) < 800_000  # type: ignore[index]


@pytest.mark.slow
def test_a_whole_rack_is_one_node() -> None:
    with Oracle(of(HERE[-1], 18)) as oracle:
        facts = oracle.facts
    assert (facts.n_ranks, facts.n_nodes, facts.local_ranks, facts.mnnvl) == (72, 1, 72, 1)
    assert oracle.graphs[Algorithm.NVLS].n_channels == 32  # as many heads as NCCL has


WAYS_OUT: list[tuple[dict[str, str], tuple[int, ...]]] = [  # variables, ranks that are not in the fabric
    ({"NCCL_MNNVL_ENABLE": "0"}, ()),
    ({"NCCL_CUMEM_ENABLE": "0"}, ()),
    ({}, (5,)),
]
SPLIT_BY = {"NCCL_MNNVL_UUID": "77", "NCCL_MNNVL_CLIQUE_ID": "-2"}  # one cluster, a clique for every rack


@pytest.mark.each_choice
@pytest.mark.parametrize(("variables", "without"), WAYS_OUT, ids=str)
@pytest.mark.parametrize("name", JOINING)
def test_what_takes_hosts_apart(name: str, variables: dict[str, str], without: tuple[int, ...]) -> None:
    call = Request(Collective.AllReduce, DataType.float32, Op.sum)
    apart = replace(of(name, 2, gpus=3, ranks_without_fabric=without), env=variables)
    with Oracle(of(name, 2, gpus=3)) as one, Oracle(apart) as two:
        assert (two.facts.n_nodes, two.facts.local_ranks, two.facts.mnnvl) == (2, 3, 0)
        assert one.launch(call, [64 << 20]) != two.launch(call, [64 << 20])


@pytest.mark.parametrize(
    ("variables", "nodes", "since"),
    [
        ({"NCCL_MNNVL_CLIQUE_ID": "3"}, 2, "2.23.4"),
        ({"NCCL_MNNVL_UUID": "77"}, 1, "2.25.1"),
        ({"NCCL_MNNVL_UUID": "0"}, 4, "2.25.1"),
        (SPLIT_BY, 2, "2.28.3"),
        ({"NCCL_MNNVL_CLIQUE_SIZE": "2"}, 2, "2.21.5"),  # no release reads it
    ],
)
def test_variables_of_clusters_and_cliques(variables: dict[str, str], nodes: int, since: str) -> None:
    for name in [name for name in JOINING if release.names().index(name) >= release.names().index(since)]:
        with Oracle(replace(of(name, 2, 2, gpus=1), env=variables)) as oracle:
            assert oracle.facts.n_nodes == nodes


@pytest.mark.parametrize("name", JOINING)
def test_a_tray_may_give_fewer_gpus(name: str) -> None:
    with Oracle(replace(of(name, 2), nodes=1, others=(Host(tray(), 3),))) as oracle:
        facts = oracle.facts
    assert (facts.n_ranks, facts.n_nodes, facts.local_ranks) == (7, 1, 7)


@pytest.mark.parametrize("name", JOINING)
def test_domains_of_different_sizes(name: str) -> None:
    with Oracle(of(name, 2, 1)) as oracle:
        first, last = oracle.facts, oracle.last_rank_facts
    assert (first.n_nodes, first.local_ranks, last.local_ranks, first.max_local_ranks) == (2, 8, 4, 8)


@pytest.mark.parametrize("name", [name for name in JOINING if release.load(name).rules.domains == "cliques_or_failure"])
def test_to_ask_for_a_domain_that_is_not_there_was_an_error(name: str) -> None:
    asked = replace(of(name, 2, ranks_without_fabric=(5,)), env={"NCCL_MNNVL_ENABLE": "1"})
    with pytest.raises(OracleFailed, match="MNNVL is not supported on this system"):
        Oracle(asked)


@pytest.mark.parametrize("name", [name for name in JOINING if release.load(name).rules.domains != "cliques_or_failure"])
def test_to_ask_for_a_domain_that_is_not_there_does_nothing(name: str) -> None:
    asked = of(name, 2, gpus=3, ranks_without_fabric=(5,))
    with Oracle(replace(asked, env={"NCCL_MNNVL_ENABLE": "1"})) as oracle:
        assert (oracle.facts.n_nodes, oracle.facts.mnnvl) == (2, 0)


@pytest.mark.parametrize("name", [name for name in JOINING if not release.load(name).search.loop.most_nvls_heads])
def test_nvls_on_more_gpus_than_nccl_has_room_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="crashes with NVLS on 36 GPUs of a node: it has room for 32"):
        Oracle(of(name, 9))
    with Oracle(replace(of(name, 9), env={"NCCL_NVLS_ENABLE": "0"})) as oracle:
        assert oracle.facts.local_ranks == 36
    monkeypatch.setattr(start, "_check_nvls", lambda *_: None)
    with pytest.raises(OracleFailed, match="killed by SIG"):
        Oracle(of(name, 9))


@pytest.mark.parametrize("name", EARLIER)
def test_earlier_releases_take_every_host_for_a_node(name: str) -> None:
    with Oracle(of(name, 2)) as oracle, Oracle(of(name, 1, 1)) as apart:
        assert (oracle.facts.n_nodes, oracle.facts.local_ranks) == (2, 4)
        assert apart.facts.nvls_support == 1
        whole = release.load(name).rules.domains == "only_the_whole_communicator"  # then one node, but in its hosts
        assert (oracle.facts.mnnvl == 1, oracle.facts.nvls_support == 0) == (whole, whole)


def test_domains_have_all_hosts() -> None:
    configuration = OracleConfiguration(tray(), 3, 4, HERE[-1], {}, domains=(2, 2))
    with pytest.raises(BadInput, match=r"NVLink domains of \(2, 2\) hosts: 4 in all; valid: as many as there are, 3"):
        Oracle(configuration)


def test_as_a_user_says_it(tmp_path: Path) -> None:
    file = tmp_path / "tray.xml"
    file.write_text(tray())
    scenario = describe(topology=file, nodes=3, hosts_per_domain=2, nccl=HERE[-1])
    assert scenario.title.endswith(
        f"3 x {file}, 4 GPUs each, NVLink domains of 2 hosts, taken for 2 nodes, NCCL {HERE[-1]}"
    )
    assert scenario.oracle_configuration().domains == (2, 1)
    whole = describe(topology=file, nodes=2, hosts_per_domain=2, nccl=HERE[-1])
    with Oracle(of(HERE[-1], 2)) as oracle:
        assert answers_of_library.graphs(whole, timeout_s=120) == ordered_graphs(oracle)
        assert graphs.of_scenario(whole) == ordered_graphs(oracle)

"""Hosts that the live libnccl takes for one node, on simulated trays of NVLink, and those it takes for several."""

import re
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.available_releases import HERE, WITH_PLUGINS
from tests.support.gb200_tray import tray
from tests.support.plugin_tables import interface, table_of
from tests.support.split_hosts import IN_TURN, SIXTEEN_L20, UNEVEN
from tuner import plugin, release
from tuner.answers import graphs
from tuner.answers import library as answers_of_library
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection, of_picks
from tuner.graphs.graphs import search
from tuner.graphs.request import Hosts, SearchRequest
from tuner.machine.topology import reader
from tuner.oracle import library, start
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES, check
from tuner.oracle.search import ordered_graphs
from tuner.scenario import Scenario
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
    intercepted = start._intercepted
    monkeypatch.setattr(start, "_intercepted", lambda prepared: replace(intercepted(prepared), systems=False))
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
    assert oracle.graphs[Algorithm.NVLS].channels == 32  # as many heads as NCCL has


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
    with pytest.raises(BadInput, match=r"NVLink domains of \(2, 2\) hosts are 4 hosts in all, but there are 3"):
        Oracle(configuration)


def test_as_a_user_says_it(tmp_path: Path) -> None:
    file = tmp_path / "tray.xml"
    file.write_text(tray())
    scenario = describe(topology=file, nodes=3, hosts_per_domain=2, nccl=HERE[-1])
    assert scenario.title.endswith(
        f"3 x {file}, 4 GPUs each, NVLink domains of 2 hosts, which NCCL treats as 2 nodes, NCCL {HERE[-1]}"
    )
    assert scenario.oracle_configuration().domains == (2, 1)
    whole = describe(topology=file, nodes=2, hosts_per_domain=2, nccl=HERE[-1])
    with Oracle(of(HERE[-1], 2)) as oracle:
        assert answers_of_library.graphs(whole, timeout_s=120) == ordered_graphs(oracle)
        assert graphs.of_scenario(whole) == ordered_graphs(oracle)


SINCE = release.names().index("2.21.5")
CHOICES_JOINING = [name for name in HERE if release.names().index(name) >= SINCE]
CROSS_SINCE = release.names().index("2.30.3")
CROSS = {"NCCL_MNNVL_UUID": "7", "NCCL_MNNVL_CLIQUE_ID": "-2", "NCCL_MNNVL_CROSS_CLIQUE": "1"}
SIZES = (16 << 10, 1 << 20, 64 << 20, 1 << 30)
CALLS = tuple(
    Request(collective, DataType.float32, Op.sum) for collective in (Collective.AllReduce, Collective.AllGather)
)
REGISTERED = (Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=Buffers.registered),)
VARIABLES = (
    {"NCCL_MNNVL_ENABLE": "0"},
    {"NCCL_MNNVL_ENABLE": "1"},
    {"NCCL_MNNVL_UUID": "7"},
    {"NCCL_MNNVL_UUID": "0"},
    {"NCCL_MNNVL_CLIQUE_ID": "5"},
    {"NCCL_MNNVL_UUID": "7", "NCCL_MNNVL_CLIQUE_ID": "-2", "NCCL_MNNVL_CROSS_CLIQUE": "1"},
    {"NCCL_MNNVL_SCATTER_NETS_ENABLE": "0"},
    {"NCCL_MNNVL_RAIL_PER_HOST": "1", "NCCL_CROSS_NIC": "0"},
    {"NCCL_CUMEM_ENABLE": "0"},
    {"NCCL_COLLNET_ENABLE": "1"},
)


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    file = tmp_path / "tray.xml"
    file.write_text(tray())
    return file


def assert_equal(calls: tuple[Request, ...] = CALLS, **described: Any) -> None:
    scenario = describe(**described)
    unit = max(call.unit_bytes(scenario.ranks) for call in calls)
    report = check(scenario, calls, [size // unit * unit for size in SIZES])
    assert not report.mismatches
    assert report.compared["tables"]


@pytest.mark.each_choice
@pytest.mark.parametrize("trays", [2, 4])
@pytest.mark.parametrize("nccl", CHOICES_JOINING)
def test_one_domain_and_two_are_libnccls(nccl: str, trays: int, file: Path) -> None:
    assert_equal(topology=file, nodes=trays, hosts_per_domain=2, nccl=nccl)


@pytest.mark.parametrize("nccl", [name for name in HERE if name not in CHOICES_JOINING])
def test_hosts_of_domains_are_nodes_to_earlier_releases(nccl: str, file: Path) -> None:
    assert_equal(topology=file, nodes=4, hosts_per_domain=2, nccl=nccl)


@pytest.mark.parametrize("nccl", CHOICES_JOINING[-1:])
def test_domains_of_different_sizes_are_libnccls(nccl: str, file: Path) -> None:
    assert_equal(topology=file, nodes=3, hosts_per_domain=2, nccl=nccl)
    assert_equal(topology=file, nodes=3, hosts_per_domain=(1, 2), nccl=nccl)


@pytest.mark.parametrize("nccl", CHOICES_JOINING[-1:])
def test_a_tray_with_fewer_gpus_is_libnccls(nccl: str, file: Path, tmp_path: Path) -> None:
    few = tmp_path / "three.xml"
    few.write_text(tray(gpus=3))
    assert_equal(node=[str(file), str(few)], hosts_per_domain=2, nccl=nccl)


@pytest.mark.parametrize("nccl", CHOICES_JOINING)
def test_a_rank_outside_of_the_fabric_makes_every_host_a_node(nccl: str, file: Path) -> None:
    assert_equal(topology=file, nodes=2, hosts_per_domain=2, ranks_without_fabric=[3], nccl=nccl)
    joined = describe(topology=file, nodes=2, hosts_per_domain=2, nccl=nccl).communicator()
    fallen = describe(topology=file, nodes=2, hosts_per_domain=2, ranks_without_fabric=[3], nccl=nccl).communicator()
    assert (joined.nodes, fallen.nodes) == (1, 2)


@pytest.mark.parametrize("variables", VARIABLES, ids=str)
@pytest.mark.parametrize("nccl", CHOICES_JOINING[-1:])
def test_variables_of_domains_are_libnccls(nccl: str, variables: dict[str, str], file: Path) -> None:
    assert_equal(topology=file, nodes=4, hosts_per_domain=2, nccl=nccl, collnet=True, env=variables)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("nccl", CHOICES_JOINING[-1:])
def test_registered_buffers_are_libnccls(nccl: str, hosts: int, file: Path) -> None:
    assert_equal(REGISTERED, topology=file, nodes=2, hosts_per_domain=hosts, nccl=nccl)


@pytest.mark.parametrize("nccl", CHOICES_JOINING[-1:])
def test_trays_of_the_catalogue_are_libnccls(nccl: str) -> None:
    assert_equal(machine="gb200-nvl72", trays=2, nodes=2, gpus_per_tray=4, nccl=nccl)


@pytest.mark.each_choice
@pytest.mark.parametrize("gpus", [4, 3])
@pytest.mark.parametrize("nccl", CHOICES_JOINING)
def test_the_dump_of_a_domain_is_answered_as_the_domain(nccl: str, gpus: int, file: Path, tmp_path: Path) -> None:
    """``gpus``: of the second of two trays."""
    other = tmp_path / "other.xml"
    other.write_text(tray(gpus=gpus))
    described = describe(node=[str(file), str(other)], hosts_per_domain=2, nccl=nccl)
    unit = CALLS[1].unit_bytes(described.ranks)
    sizes = [size // unit * unit for size in SIZES]
    with Oracle(replace(described.oracle_configuration(), dumps_topology=True)) as oracle:
        dump = tmp_path / "dump.xml"
        dump.write_text(oracle.topology_xml() or "")
        launched = {call: oracle.launch(call, sizes) for call in CALLS}
    assert sum(count for _, count in reader.hosts_of(dump)) == 2
    read = describe(topology=dump, nccl=nccl)
    assert (read.ranks, read.communicator().nodes) == (4 + gpus, 1)
    for call in CALLS:
        picks = of_picks(Selection(read.communicator()).pick(call, sizes))
        assert [(each.name, each.channels, each.threads) for each in picks] == [
            (f"{each.algorithm.name}/{each.protocol.name}", each.channels, each.threads) for each in launched[call]
        ]
    assert_equal(topology=dump, nccl=nccl)


@pytest.mark.parametrize("nccl", [nccl for nccl in CHOICES_JOINING if release.names().index(nccl) >= CROSS_SINCE])
@pytest.mark.parametrize("trays", [2, 4])
def test_registered_buffers_where_nvlink_joins_cliques(nccl: str, trays: int, file: Path) -> None:
    described: dict[str, Any] = {"topology": file, "nodes": trays, "hosts_per_domain": trays // 2}
    described |= {"nccl": nccl, "env": CROSS}
    with Oracle(describe(**described).oracle_configuration()) as oracle:
        assert any("Cross-clique P2P enabled" in line for line in oracle.log_lines())
    assert_equal(tuple(replace(call, buffers=Buffers.registered) for call in ALL_COLLECTIVES), **described)


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
SPLIT_SIZES = [3 << 12, 3 << 20, 3 << 28]  # bytes
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
    report = check(own, sizes=SPLIT_SIZES)
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
    report = check(Scenario(nccl, hosts, topology=file), calls, SPLIT_SIZES)
    assert report.mismatches == ()
    assert report.compared["picks"]

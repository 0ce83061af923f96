"""NVLink domains: what the emulator says of hosts that NVLink joins, against the live libnccl."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.available_releases import HERE
from tests.support.gb200_tray import tray
from tuner import release
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection, of_picks
from tuner.machine.topology import reader
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES, check
from tuner.scenario.describe import describe

pytestmark = pytest.mark.live

SINCE = release.names().index("2.21.5")
JOINING = [name for name in HERE if release.names().index(name) >= SINCE]
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
@pytest.mark.parametrize("nccl", JOINING)
def test_one_domain_and_two_are_libnccls(nccl: str, trays: int, file: Path) -> None:
    assert_equal(topology=file, nodes=trays, hosts_per_domain=2, nccl=nccl)


@pytest.mark.parametrize("nccl", [name for name in HERE if name not in JOINING])
def test_hosts_of_domains_are_nodes_to_earlier_releases(nccl: str, file: Path) -> None:
    assert_equal(topology=file, nodes=4, hosts_per_domain=2, nccl=nccl)


@pytest.mark.parametrize("nccl", JOINING[-1:])
def test_domains_of_different_sizes_are_libnccls(nccl: str, file: Path) -> None:
    assert_equal(topology=file, nodes=3, hosts_per_domain=2, nccl=nccl)
    assert_equal(topology=file, nodes=3, hosts_per_domain=(1, 2), nccl=nccl)


@pytest.mark.parametrize("nccl", JOINING[-1:])
def test_a_tray_with_fewer_gpus_is_libnccls(nccl: str, file: Path, tmp_path: Path) -> None:
    few = tmp_path / "three.xml"
    few.write_text(tray(gpus=3))
    assert_equal(node=[str(file), str(few)], hosts_per_domain=2, nccl=nccl)


@pytest.mark.parametrize("nccl", JOINING)
def test_a_rank_outside_of_the_fabric_makes_every_host_a_node(nccl: str, file: Path) -> None:
    assert_equal(topology=file, nodes=2, hosts_per_domain=2, ranks_without_fabric=[3], nccl=nccl)
    joined = describe(topology=file, nodes=2, hosts_per_domain=2, nccl=nccl).communicator()
    fallen = describe(topology=file, nodes=2, hosts_per_domain=2, ranks_without_fabric=[3], nccl=nccl).communicator()
    assert (joined.nodes, fallen.nodes) == (1, 2)


@pytest.mark.parametrize("variables", VARIABLES, ids=str)
@pytest.mark.parametrize("nccl", JOINING[-1:])
def test_variables_of_domains_are_libnccls(nccl: str, variables: dict[str, str], file: Path) -> None:
    assert_equal(topology=file, nodes=4, hosts_per_domain=2, nccl=nccl, collnet=True, env=variables)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("nccl", JOINING[-1:])
def test_registered_buffers_are_libnccls(nccl: str, hosts: int, file: Path) -> None:
    assert_equal(REGISTERED, topology=file, nodes=2, hosts_per_domain=hosts, nccl=nccl)


@pytest.mark.parametrize("nccl", JOINING[-1:])
def test_trays_of_the_catalogue_are_libnccls(nccl: str) -> None:
    assert_equal(machine="gb200-nvl72", trays=2, nodes=2, gpus_per_tray=4, nccl=nccl)


@pytest.mark.each_choice
@pytest.mark.parametrize("gpus", [4, 3])
@pytest.mark.parametrize("nccl", JOINING)
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


@pytest.mark.parametrize("nccl", [nccl for nccl in JOINING if release.names().index(nccl) >= CROSS_SINCE])
@pytest.mark.parametrize("trays", [2, 4])
def test_registered_buffers_where_nvlink_joins_cliques(nccl: str, trays: int, file: Path) -> None:
    described: dict[str, Any] = {"topology": file, "nodes": trays, "hosts_per_domain": trays // 2}
    described |= {"nccl": nccl, "env": CROSS}
    with Oracle(describe(**described).oracle_configuration()) as oracle:
        assert any("Cross-clique P2P enabled" in line for line in oracle.log_lines())
    assert_equal(tuple(replace(call, buffers=Buffers.registered) for call in ALL_COLLECTIVES), **described)

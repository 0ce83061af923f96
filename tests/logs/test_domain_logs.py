"""Logs of NVLink domains, as libnccl prints them here on simulated trays: hosts that NVLink joins are one node."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.command_line import run
from tests.support.gb200_tray import tray
from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.machine import topology
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check_log import LogComparison, compare
from tuner.scenario.logs import importer, reader
from tuner.scenario.logs.imported import Imported, LogAdditions
from tuner.scenario.oracle_configuration import OracleConfiguration

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "nvlink-domain.log"  # of rank 0, on simulated trays
JOINING = [name for name in HERE if release.names().index(name) >= release.names().index("2.21.5")]
SIZES = [1 << 8, 1 << 13, 1 << 17, 1 << 20, 1 << 24, 1 << 28]
GIVEN = LogAdditions(comp_caps=(100,), collective=Collective.AllReduce, net_gbs=50.0)
CELLS = {"thread thresholds": 8, "channels": 2, "choices": 6}


@cache
def printed(name: str, *domains: int) -> tuple[str, ...]:
    """Of so many trays in each domain."""
    with Oracle(OracleConfiguration(tray(), sum(domains), 4, name, {}, domains=domains)) as oracle:
        oracle.launch(Request(Collective.AllReduce, DataType.float32, Op.sum), SIZES)
        return tuple(oracle.log_lines())


def imported(text: tuple[str, ...], given: LogAdditions = GIVEN) -> Imported:
    return importer.of(reader.parse(reader.split_lines(text)), given)


def assert_equal(compared: LogComparison) -> None:
    assert compared.report.mismatches == ()
    assert compared.not_compared == ()
    assert compared.report.compared["table"] >= 5 * 18
    assert CELLS.items() <= compared.report.compared.items()


@pytest.mark.live
@pytest.mark.parametrize("name", JOINING)
def test_two_trays_are_one_node(name: str) -> None:
    read = imported(printed(name, 2))
    (node,) = read.nodes
    assert (read.node_count, node.ranks, node.local_ranks, node.hosts, node.mnnvl) == (1, tuple(range(8)), 8, 2, True)
    assert "NVLink joins hosts (multi-node NVLink, MNNVL): nodes are NVLink domains, of hosts: 2" in read.notes
    assert_equal(compare(read))


@pytest.mark.live
@pytest.mark.parametrize("name", JOINING)
def test_domains_of_different_sizes(name: str) -> None:
    read = imported(printed(name, 2, 1))
    assert [(node.ranks, node.hosts) for node in read.nodes] == [(tuple(range(8)), 2), (tuple(range(8, 12)), 1)]
    assert_equal(compare(read))


def without(text: tuple[str, ...], *expressions: str) -> tuple[str, ...]:
    return tuple(line for line in text if not re.search("|".join(expressions), line))


@pytest.mark.live
def test_any_of_the_lines_says_the_domain() -> None:
    text = printed(JOINING[-1], 2, 2)
    whole = imported(text)
    for lost in (["nNodes"], ["MNNVL busId"], ["MNNVL 1 clique"], ["MNNVL busId", "MNNVL 1 clique"]):
        read = imported(without(text, *lost))
        assert read.nodes == whole.nodes
        assert_equal(compare(read))


@pytest.mark.live
def test_ranks_that_take_turns_between_domains() -> None:
    """Whose ranks are of a node is what the fabric says, not their order."""
    text = printed(JOINING[-1], 2, 2)

    def moved(line: str) -> str:
        return re.sub(r"( rank )(\d+)( n)", lambda match: f"{match[1]}{turn(int(match[2]))}{match[3]}", line)

    def turn(rank: int) -> int:
        """0 to 7 become the even ranks, 8 to 15 the odd ones."""
        return 2 * rank if rank < 8 else 2 * rank - 15

    nodes = imported(tuple(map(moved, text))).nodes
    assert [node.ranks for node in nodes] == [tuple(range(0, 16, 2)), tuple(range(1, 16, 2))]


@pytest.mark.live
def test_a_log_of_rank_0_alone() -> None:
    text = printed(JOINING[-1], 2)
    (thread,) = {match[1] for line in text if (match := re.search(r":(\d+) \[.* rank 0 nRanks", line))}
    read = imported(tuple(line for line in text if f":{thread} [" in line or "NCCL version" in line))
    assert [(node.ranks, node.local_ranks, node.hosts) for node in read.nodes] == [((0,), 8, 2)]
    compared = compare(read)
    assert compared.report.mismatches == ()
    assert compared.report.compared["table"] == 105


@pytest.mark.live
@pytest.mark.parametrize("name", JOINING[-1:])
def test_what_is_not_of_a_domain_differs(name: str) -> None:
    """The same graphs on two trays that were nodes: the check sees that the table is not theirs."""
    read = imported(printed(name, 2))
    (node,) = read.nodes
    apart = replace(read, nodes=tuple(replace(node, local_ranks=4, comp_caps=(100,) * 4) for _ in range(2)), net_gbs=50)
    assert {mismatch.what for mismatch in compare(apart).report.mismatches} >= {"table", "choices"}


@pytest.mark.live
def test_the_dump_of_one_tray_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "tray.xml"
    file.write_text(tray())
    given = replace(GIVEN, comp_caps=(), topology=topology.read(file))
    assert_equal(compare(imported(printed(JOINING[-1], 2), given)))


@pytest.mark.live
def test_on_the_command_line(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text("\n".join(printed(JOINING[-1], 2)) + "\n")
    assert "8 ranks on 1 node," in run("log", str(log)).stdout
    assert "NVLink domains, of hosts: 2" in run("log", "--check", str(log), "--comp-cap", "10.0").stdout
    assert "MISMATCH" in run("log", "--check", str(log), "--comp-cap", "9.0", code=1).stdout


@pytest.mark.live
@pytest.mark.parametrize("name", [name for name in HERE if release.load(name).rules.domains[:4] == "only"])
def test_a_release_that_searches_a_domain_host_by_host_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="tunes a domain as one node but searches host by host"):
        compare(imported(printed(name, 2)))


def test_the_example_is_of_a_domain() -> None:
    text = tuple(EXAMPLE.read_text().splitlines())
    compared = compare(imported(text))
    assert compared.report.mismatches == ()
    assert compared.report.compared == {
        "table": 105,
        "max threads": 21,
        "thread thresholds": 8,
        "channels": 2,
        "choices": 3,
    }


def test_the_example_differs_where_hosts_were_nodes() -> None:
    read = imported(tuple(EXAMPLE.read_text().splitlines()))
    (node,) = read.nodes
    tray_alone = replace(node, local_ranks=4, comp_caps=(100,) * 4)
    report = compare(replace(read, nodes=(tray_alone, tray_alone))).report
    assert {mismatch.what for mismatch in report.mismatches} >= {"table", "choices"}

"""A communicator described by a log, one of NVLink domains too: the answers of the machine that wrote it."""

import re
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.available_releases import HERE
from tests.support.command_line import run
from tests.support.gb200_tray import tray
from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.ranges import launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue, topology
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check_log import LogComparison, compare
from tuner.scenario import Scenario
from tuner.scenario.describe import describe
from tuner.scenario.from_log import described_by
from tuner.scenario.logs import choice, importer, reader
from tuner.scenario.logs.imported import Imported, LogAdditions
from tuner.scenario.logs.lines import split_lines
from tuner.scenario.oracle_configuration import OracleConfiguration

ROOT = Path(__file__).parents[2]
CASES = ROOT.parent / "shared" / "cases"
EXAMPLE = ROOT / "docs" / "examples" / "nccl.log"
COMP_CAPS = {"dgx-a100": 80, "dgx-h100": 90, "dgx-b200": 100, "dgx-1v": 70}


@cache
def oracle_log(nccl: str, machine: str, nodes: int, gpus: int, settings: tuple[tuple[str, str], ...]) -> str:
    """What libnccl prints here while it makes the communicator."""
    scenario = Scenario(nccl=nccl, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=dict(settings))
    with Oracle(scenario.oracle_configuration()) as oracle:
        return "\n".join(oracle.log_lines()) + "\n"


def call(collective: Collective) -> Request:
    return Request(collective, DataType.float32, Op.sum)


def every_launch(scenario: Scenario) -> dict[Collective, Any]:
    """All ranges of all collectives that run, to the byte."""
    selection = Selection(scenario.communicator())
    requests = [request for each in Collective if selection.usable(request := call(each))]
    return {request.collective: launches(selection, request).records(request) for request in requests}


SHAPES: list[tuple[str, int, int, dict[str, str]]] = [
    ("dgx-h100", 2, 8, {}),
    ("dgx-h100", 1, 4, {"NCCL_ALGO": "Ring", "NCCL_MAX_NCHANNELS": "6"}),
    ("dgx-a100", 2, 4, {"NCCL_P2P_LEVEL": "LOC"}),
    ("dgx-1v", 1, 8, {}),
    ("dgx-b200", 2, 8, {}),
]


@pytest.mark.each_choice
@pytest.mark.live
@pytest.mark.parametrize(("machine", "nodes", "gpus", "settings"), SHAPES, ids=str)
@pytest.mark.parametrize("nccl", HERE)
def test_a_log_answers_as_its_machine_does(
    nccl: str, machine: str, nodes: int, gpus: int, settings: dict[str, str], tmp_path: Path
) -> None:
    if nccl not in catalogue.load(machine).releases:
        pytest.skip(f"{machine} does not run {nccl}")
    file = tmp_path / "nccl.log"
    file.write_text(oracle_log(nccl, machine, nodes, gpus, tuple(settings.items())), encoding="utf-8")
    by_log = describe(log=file, comp_cap=COMP_CAPS[machine])
    by_machine = describe(machine, nccl=nccl, nodes=nodes, gpus_per_node=gpus, env=settings)
    assert (by_log.nccl, by_log.ranks, by_log.environment) == (nccl, nodes * gpus, settings)
    assert every_launch(by_log) == every_launch(by_machine)
    assert every_launch(describe(machine, log=file)) == every_launch(by_machine)


def shared(path: str) -> Path:
    file = CASES / path
    if not file.is_file():
        pytest.skip(f"{file} is not here")
    return file


REAL: list[tuple[str, dict[str, Any], int]] = [
    ("2xA100-pcie-nvlink-nccl2.27.7/raw/nccl.log", {}, 11),
    ("2xA100-pcie-nvlink-nccl2.27.7/raw/nccl-fault.log", {}, 11),
    (
        "2x2xV100-2nodes-roce-nccl2.26.6/EXTRACT.txt",
        {"nccl": "2.26.5", "comp_cap": 70, "cpu_arch": "x86_64", "cpu_vendor": "GenuineIntel", "net_latency_us": 0.0},
        25,
    ),
]


@pytest.mark.parametrize(("path", "given", "count"), REAL, ids=[case[0] for case in REAL])
def test_what_real_runs_chose(path: str, given: dict[str, Any], count: int) -> None:
    file = shared(path)
    scenario = describe(log=file, **given)
    selection, printed = Selection(scenario.communicator()), importer.read(file, LogAdditions(release=scenario.nccl))
    assert len(printed.choices) == count
    assert str(selection.communicator.channels) == printed.coll_channels
    for made in printed.choices:
        assert made.collective is not None
        assert made.bytes is not None
        picked = selection.pick(call(made.collective), [made.bytes])
        names = Algorithm(picked.algorithm[0]).name, Protocol(picked.protocol[0]).name
        assert names == (made.algorithm, made.protocol)
        assert picked.channels[0] - 1 == made.channel_hi


def test_a_real_log_without_choices() -> None:
    file = shared("8xV100-8nodes-socket-nccl2.18.1/EXTRACT.txt")
    scenario = describe(log=file, gpu="v100-sxm2")
    assert (scenario.nccl, scenario.nodes, scenario.ranks) == ("2.18.1", 8, 8)
    assert str(scenario.communicator().channels) == importer.read(file, LogAdditions()).coll_channels


def test_the_choices_that_the_example_prints() -> None:
    selection = Selection(describe(log=EXAMPLE, comp_cap=80).communicator())
    printed = [choice.printed(line) for line in EXAMPLE.read_text("utf-8").splitlines()]
    made = [each for each in printed if each]
    assert len(made) == 6
    for each in made:
        picked = selection.pick(call(Collective.AllReduce), [each.bytes])
        assert Algorithm(picked.algorithm[0]) is choice.algorithm(each.algorithm)
        assert Protocol(picked.protocol[0]) is choice.protocol(each.protocol)
        assert picked.channels[0] - 1 == each.channel_hi


SET = ("NCCL_WORK_FIFO_BYTES=65536", "NCCL_NTHREADS=256", "NCCL_NET=IB", "NCCL_P2P_LEVEL=NVL", "NCCL_DEBUG=INFO")


@pytest.mark.parametrize("setting", ["", *SET, "NCCL_GRAPH_FILE=graphs.xml", "NCCL_SOCKET_IFNAME=eth0"])
def test_a_log_means_one_communicator_whoever_reads_it(setting: str, tmp_path: Path) -> None:
    """``log --check`` compares with the communicator that other commands take from the same file."""
    file = tmp_path / "nccl.log"
    name, _, value = setting.partition("=")
    text = EXAMPLE.read_text("utf-8")
    printed = f"{text.partition('NCCL INFO')[0]}NCCL INFO {name} set by environment to {value}\n"
    file.write_text((printed if setting else "") + text, "utf-8")
    imported = importer.read(file, LogAdditions(comp_caps=(80,)))
    assert not setting or imported.environment[name] == value
    checked = described_by(imported, file).communicator()
    asked = describe(log=file, comp_cap=80).communicator()
    assert [field.name for field in fields(asked) if getattr(asked, field.name) != getattr(checked, field.name)] == []
    if name in ("NCCL_WORK_FIFO_BYTES", "NCCL_NTHREADS"):
        assert checked.environment.text(name) == value


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("diff", "allreduce", "nics=1"), "does not show the topology that nics=1 changes"),
    (("diff", "allreduce", "NCCL_P2P_DISABLE=1"), "NCCL searches graphs with NCCL_P2P_DISABLE=1, but found"),
    (("pick", "allreduce", "--nodes", "1"), "are for several nodes, and NCCL finds others for one alone"),
    (("pick", "allreduce", "--gpus-per-node", "4"), "has graphs for 8 GPUs per node, not for 4"),
    (("pick", "allreduce", "--ranks-per-gpu", "2"), "--ranks-per-gpu only applies to a machine or topology"),
    (("pick", "allreduce", "--trays", "2"), "--trays only applies to a machine or topology"),
    (("graphs",), "does not show a topology to search graphs in"),
    (("check", "allreduce"), "does not show a topology, in which libnccl searches"),
]


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=str)
def test_what_a_log_does_not_tell_is_refused_in_one_line(words: tuple[str, ...], says: str) -> None:
    done = run(*words, "--log", str(EXAMPLE), "--comp-cap", "8.0", code=2)
    errors = [line for line in done.stderr.splitlines() if line.startswith("nccl-tuner: ")]
    assert len(errors) == 1
    assert says in errors[0]
    assert "--machine NAME" in errors[0] or "--machine or --topology" in errors[0]


@pytest.mark.parametrize(
    "words",
    [
        ("--ranks", "0-3"),
        ("--shared",),
        ("--gpus-per-process", "2"),
        ("--ranks-per-gpu", "2"),
        ("--trays", "2"),
        ("--hosts-per-domain", "2"),
        ("--nic-gbps", "400"),
    ],
    ids=" ".join,
)
def test_what_needs_a_topology_is_refused_where_the_log_alone_describes(words: tuple[str, ...]) -> None:
    log = Path(__file__).parents[2] / "docs" / "examples" / "nccl.log"
    said = run("pick", "allreduce", "--log", str(log), "--comp-cap", "8.0", *words, code=2).stderr
    assert f"{words[0]} only applies to a machine or topology: add --machine or --topology to --log" in said


DOMAIN_EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "nvlink-domain.log"  # of rank 0, on simulated trays
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
    return importer.of(reader.parse(split_lines(text)), given)


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
    text = tuple(DOMAIN_EXAMPLE.read_text().splitlines())
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
    read = imported(tuple(DOMAIN_EXAMPLE.read_text().splitlines()))
    (node,) = read.nodes
    tray_alone = replace(node, local_ranks=4, comp_caps=(100,) * 4)
    report = compare(replace(read, nodes=(tray_alone, tray_alone))).report
    assert {mismatch.what for mismatch in report.mismatches} >= {"table", "choices"}

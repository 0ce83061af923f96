"""A communicator described by a log: the answers of the machine that wrote it, and what a log does not tell."""

from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.available_releases import HERE
from tests.support.command_line import run
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.ranges import launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario
from tuner.scenario.describe import describe
from tuner.scenario.from_log import described_by
from tuner.scenario.logs import choice, importer
from tuner.scenario.logs.imported import LogAdditions

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
    (("diff", "allreduce", "NCCL_P2P_DISABLE=1"), "NCCL_P2P_DISABLE=1: NCCL searches graphs with it, and found"),
    (("pick", "allreduce", "--nodes", "1"), "found its graphs for several nodes, and finds others for one alone"),
    (("pick", "allreduce", "--gpus-per-node", "4"), "4 GPUs per node: "),
    (("pick", "allreduce", "--ranks-per-gpu", "2"), "--ranks-per-gpu: of a machine or topology"),
    (("pick", "allreduce", "--trays", "2"), "trays: of a machine or topology"),
    (("graphs",), "does not show a topology to search graphs in"),
    (("check", "allreduce"), "does not show a topology, in which libnccl searches"),
]


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=str)
def test_what_a_log_does_not_tell_is_refused_in_one_line(words: tuple[str, ...], says: str) -> None:
    done = run(*words, "--log", str(EXAMPLE), "--comp-cap", "8.0", code=2)
    errors = [line for line in done.stderr.splitlines() if line.startswith("nccl-tuner: ")]
    assert len(errors) == 1
    assert says in errors[0]
    assert "--machine NAME" in errors[0] or "--machine, --topology" in errors[0]


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
    assert f"{words[0]}: of a machine or topology; valid with --log: --machine, --topology" in said

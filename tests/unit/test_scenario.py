"""A scenario is resolved once: what it reads, and what is computed of it."""

import shlex
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tuner import graphs, release
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm
from tuner.cli import everything
from tuner.emulator.rules import time as timing
from tuner.graphs.request import SearchResult
from tuner.machine import catalogue, skeleton
from tuner.machine.graphs import OrderedGraph
from tuner.machine.topology import reader
from tuner.scenario import Scenario


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, calls: list[Any]) -> None:
    own: Callable[..., Any] = getattr(module, name)

    def counting(*arguments: Any) -> Any:
        calls.append(arguments)
        return own(*arguments)

    monkeypatch.setattr(module, name, counting)


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    file = tmp_path / "node.xml"
    file.write_text(catalogue.load("dgx-h100").topology_xml, encoding="utf-8")
    return file


def test_one_pick_parses_a_topology_once_and_computes_each_time_once(
    topology: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[Any] = []
    timed: list[Any] = []
    for module in (reader, skeleton):
        counted(monkeypatch, module, "parse", parsed)
    counted(monkeypatch, timing, "time_us", timed)
    known = catalogue.load("dgx-h100").graph_table.graphs["2.28.9", 8, True]
    found = {name: OrderedGraph(graph, ()) for name, graph in known.items()}
    whole = SearchResult(found, 50.0, part_of_rank=(0,) * 8)
    monkeypatch.setattr(graphs, "searched", lambda *_: whole)  # which reads the text by itself
    words = f"pick allreduce --topology {topology} --nodes 2 --nccl 2.28.9 --bytes 8,1K,64MiB"
    done = CliRunner().invoke(everything, shlex.split(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [where for _, where in parsed] == [str(topology)]
    times = [arguments[2].algo_proto for arguments in timed]
    assert len(times) == len(set(times)) > 0


def test_what_is_resolved_is_kept() -> None:
    scenario = Scenario("2.28.9", 2, "dgx-h100")
    assert scenario.resolve() is scenario.resolve()
    assert scenario.communicator() is scenario.communicator()
    other = replace(scenario, nodes=4)
    assert (scenario.ranks, other.ranks) == (16, 32)
    assert scenario == replace(other, nodes=2)


def test_a_machine_with_a_variable_of_the_search_is_searched_with_it(tmp_path: Path) -> None:
    plain = Scenario("2.28.9", 2, "a100-4x-2nic")
    crossing = replace(plain, environment={"NCCL_CROSS_NIC": "1"})
    assert [each.communicator().graphs[Algorithm.Ring].cross_nic for each in (plain, crossing)] == [2, 1]
    file = tmp_path / "node.xml"
    file.write_text(catalogue.load("a100-4x-2nic").topology_xml)
    same = replace(crossing, machine=None, topology=file)
    assert same.communicator().graphs == crossing.communicator().graphs
    graphs = tmp_path / "graphs.xml"
    CliRunner().invoke(everything, ["graphs", "--machine", "a100-4x-2nic", "--nodes", "2", "--dump", str(graphs)])
    with pytest.raises(BadInput, match="NCCL_CROSS_NIC: NCCL searches graphs with these variables, but the given"):
        replace(crossing, graphs=graphs).communicator()


def test_what_was_searched_before_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> SearchResult:
        raise AssertionError("searched")

    monkeypatch.setattr(graphs, "searched", ask)
    machine = catalogue.load("pcie-l40s-4nic")
    assert machine.environment
    for environment in ({}, {"NCCL_ALGO": "Ring"}, {"NCCL_COLLNET_ENABLE": "1"}, dict(machine.environment)):
        Scenario("2.28.9", 2, machine.name, environment=environment).communicator()
    with pytest.raises(AssertionError, match="searched"):
        Scenario("2.28.9", 2, machine.name, environment={"NCCL_NET_DISABLE_INTRA": "0"}).communicator()
    with pytest.raises(AssertionError, match="searched"):
        Scenario("2.28.9", 1, "dgx-2", gpus_per_node=9, environment={"NCCL_P2P_LEVEL": "SYS"}).communicator()


def test_a_description_is_read_when_it_is_resolved(tmp_path: Path) -> None:
    scenario = Scenario("2.28.9", 2, topology=tmp_path / "none.xml", machine="dgx-h100")
    assert scenario.settings == []
    with pytest.raises(BadInput, match="name one machine"):
        scenario.resolve().own.topology  # noqa: B018


@pytest.mark.parametrize("others", [(), (Scenario("", 1, machine="dgx-a100"),)])
def test_another_number_of_nodes_resolves_no_node_again(others: tuple[Scenario, ...]) -> None:
    scenario = Scenario("2.28.9", 1, machine="dgx-h100", others=others)
    resolved = scenario.resolve()
    for count in (1, 2, 5):
        other = resolved.with_nodes(count)
        assert other.scenario.nodes == count
        anew = replace(scenario, nodes=count).resolve()
        assert other.ranks == anew.ranks
        assert other.oracle_configuration() == anew.oracle_configuration()
        for mine, theirs in zip(other.views, anew.views, strict=True):
            asked = {"links", "merges_adapters"}  # searched when they are asked for
            names = [field.name for field in fields(mine) if field.name not in asked]
            assert [getattr(mine, name) for name in names] == [getattr(theirs, name) for name in names]
            assert mine.links is not None
            assert theirs.links is not None
            assert mine.links() == theirs.links()
            assert mine.merges_adapters is not None
            assert theirs.merges_adapters is not None
            assert mine.merges_adapters() == theirs.merges_adapters()
    several = [resolved.with_nodes(count).own.for_emulator(True) for count in (2, 5)]
    assert several[0] is several[1]
    assert resolved.with_nodes(2).own.topology is resolved.own.topology
    assert resolved.own.for_emulator(False) is not several[0]


def test_a_topology_can_be_asked_of_every_release(topology: Path) -> None:
    scenario = Scenario("2.28.9", 2, topology=topology)
    assert (scenario.releases, scenario.every_release) == (("2.28.9",), tuple(release.names()))
    assert replace(scenario, graphs=topology).every_release == ("2.28.9",)
    assert "2.18.1" not in replace(scenario, ranks_per_gpu=2).every_release
    assert Scenario("2.28.9", 2, "aws-p5").every_release == catalogue.load("aws-p5").releases


@pytest.mark.parametrize(
    ("described", "most"),
    [
        ({"gpus_per_process": 99}, 8),
        ({"gpus_per_process": 5, "gpus_per_node": 4}, 4),
        ({"gpus_per_process": 9, "others": (Scenario("2.28.9", 1, machine="dgx-a100", gpus_per_node=4),)}, 8),
    ],
)
def test_a_process_has_no_more_gpus_than_a_host(described: dict[str, Any], most: int) -> None:
    scenario = Scenario("2.28.9", 1, machine="dgx-h100", **described)
    asked: list[Callable[[], object]] = [scenario.communicator, scenario.oracle_configuration, lambda: scenario.title]
    for each in asked:
        with pytest.raises(BadInput, match=f"no host has more than {most} GPUs: give 1 to {most}"):
            each()
    assert replace(scenario, gpus_per_process=most).communicator().ranks_share_processes

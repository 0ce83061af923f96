"""Releases that no library was compared with: between two that agree, or by source; each answer says so."""

import json
from dataclasses import replace

import pytest

from tests.support.command_line import run
from tuner import communicator, release
from tuner.base.errors import BadInput, UnknownRelease
from tuner.emulator.communicator import Node
from tuner.machine import catalogue
from tuner.release.standing import BY_SOURCE
from tuner.scenario import Scenario

BETWEEN, AGREE = "2.26.3", "between 2.26.2 and 2.26.5, which agree"
MARKED = {BETWEEN: AGREE, **dict.fromkeys(release.names_by_source(), BY_SOURCE)}
# Every command that answers from the emulator's numbers for one release, as words.
COMMANDS = (
    "pick allreduce --bytes 1M",
    "pick allreduce:1M,allgather:2M",
    "explain allreduce --bytes 1M",
    "edges allreduce",
    "diff allreduce nodes=4",
    "order allreduce --bytes 1M",
    "table",
    "graphs",
    "export allreduce --bytes 1M --format xla",
    "plot curves allreduce --json",
)


def words(nccl: str) -> list[str]:
    return ["--machine", "dgx-h100", "--nodes", "2", "--nccl", nccl]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("nccl", MARKED)
def test_every_form_of_output_has_the_mark(nccl: str, command: str) -> None:
    own = command.split()
    for form in [own] if {"--json", "--format"} & set(own) else [own, [*own, "--json"]]:
        assert MARKED[nccl] in " ".join(run(*form, *words(nccl)).stdout.split()), form


@pytest.mark.parametrize("nccl", MARKED)
def test_python_has_the_mark(nccl: str) -> None:
    made = communicator("dgx-h100", nodes=2, nccl=nccl)
    assert MARKED[nccl] in repr(made)
    assert made.scenario.standing == MARKED[nccl]
    assert made.scenario.constants.standing == MARKED[nccl]
    assert release.load(nccl).standing is not None
    assert (
        json.loads(run("pick", "allreduce", "--bytes", "1M", "--json", *words(nccl)).stdout)["standing"] == MARKED[nccl]
    )


@pytest.mark.parametrize("nccl", ["2.32.6", "2.32.7"])
def test_the_newest_is_answered_by_source_as_far_as_that_is_enough(nccl: str) -> None:
    asked = ("pick", "allreduce", "--machine", "dgx-b200", "--nodes", "4", "--nccl", nccl, "--bytes", "1M,64M")
    assert BY_SOURCE in run(*asked).stdout
    own, parent = (
        communicator("dgx-b200", nodes=4, nccl=name).pick("allreduce", [1 << 20]) for name in (nccl, "2.32.3")
    )
    assert own.time_us.tolist() == parent.time_us.tolist()
    plugin = release.load(nccl).plugin
    assert plugin is not None
    assert plugin.api == 7
    with pytest.raises(BadInput, match="not enough for its models of symmetric kernels"):
        communicator("dgx-b200", nccl=nccl).pick("allreduce", [1 << 20], buffers="window")
    merging = next(name for name in catalogue.names() if _merges(name))
    with pytest.raises(BadInput, match="not enough for how NCCL merges adapters"):
        Scenario(nccl, 2, machine=merging).communicator()


def _merges(machine: str) -> bool:
    made = Scenario("2.32.3", 2, machine=machine)
    return any(node.merges_adapters is not None and node.merges_adapters() for node in _nodes(made))


def _nodes(scenario: Scenario) -> list[Node]:
    return [node.for_emulator(True) for node, _ in scenario.resolve().nodes]


@pytest.mark.parametrize("nccl", release.names())
def test_a_compared_release_has_none(nccl: str) -> None:
    assert release.load(nccl).standing is None
    assert Scenario(nccl, 1, machine="dgx-h100").standing is None


def test_between_answers_as_both_neighbours() -> None:
    before, own, after = (communicator("dgx-h100", nodes=2, nccl=name).tables for name in ("2.26.2", BETWEEN, "2.26.5"))
    assert (before.bandwidth_gbs == own.bandwidth_gbs).all()
    assert (own.bandwidth_gbs == after.bandwidth_gbs).all()


def test_what_differs_is_named_where_it_reaches_the_machine() -> None:
    with pytest.raises(
        BadInput, match=r"2\.27\.4, and the releases around it differ here: .*rules\.enabled.*use 2\.27\.3"
    ):
        Scenario("2.27.4", 2, machine="dgx-h100").communicator()
    one_domain = Scenario(BETWEEN, 1, machine="gb200-nvl72", trays=4)
    with pytest.raises(BadInput, match=r"limits\.work_fifo_bytes_of_blackwell_domain"):
        one_domain.communicator()
    assert Scenario(BETWEEN, 2, machine="dgx-b200").communicator().ranks == 16


def test_search_differences_count_where_other_channels_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    standing = release.load(BETWEEN).standing
    assert standing is not None
    other = replace(standing, differing=("search.inter_gbs.hopper", "cap_gbs.ll.blackwell"))
    marked = replace(release.load("2.26.2"), name=BETWEEN, standing=other)
    known = release.load
    monkeypatch.setattr(release, "load", lambda name: marked if name == BETWEEN else known(name))
    assert Scenario(BETWEEN, 2, machine="dgx-h100").communicator().ranks == 16
    marked = replace(marked, standing=replace(other, neighbours=("2.18.1", "2.32.3")))
    with pytest.raises(BadInput, match=r"search\.inter_gbs\.hopper"):
        Scenario(BETWEEN, 2, machine="dgx-h100").communicator()


@pytest.mark.parametrize("text", ["2.17.1", "2.33.1", "2.99", "3.0.0", "2.26.", "2.26.3.4"])
def test_before_the_first_and_after_the_last_nothing_is_answered(text: str) -> None:
    with pytest.raises(UnknownRelease, match="by source, not compared: 2"):
        release.load(text)


@pytest.mark.parametrize("nccl", release.names_by_source())
def test_a_release_by_source_says_where_it_was_read(nccl: str) -> None:
    assert release.load(nccl).files[0].path.endswith(f"by_source/{nccl}.toml")
    assert nccl not in release.names()
    assert release.is_known(nccl)

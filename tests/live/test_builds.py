"""libnccl as it is built for CUDA 13: it answers what the build for CUDA 12 of the same release does."""

import re
from dataclasses import replace
from itertools import product
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import pytest

from tests.support import builds
from tests.support.available_releases import BUILDS
from tests.support.planned_communicators import ALL_TYPES
from tests.support.plugin_tables import table_of
from tests.support.recorded import Recorder
from tuner import plugin
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.request import Request
from tuner.oracle import library
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES, check
from tuner.scenario import Scenario

FP8 = [Request(collective, DataType.float8e4m3, Op.sum) for collective in Collective]


@pytest.mark.each_choice
@pytest.mark.parametrize(("nodes", "requests"), [(1, ALL_COLLECTIVES), (2, [*ALL_COLLECTIVES, *FP8])], ids=[1, 2])
@pytest.mark.parametrize("machine", builds.MACHINES)
@pytest.mark.parametrize(("name", "build"), BUILDS)
def test_it_answers_as_the_build_for_cuda_12(
    name: str, build: str, machine: str, nodes: int, requests: list[Request]
) -> None:
    made = builds.compare(Scenario(name, nodes, machine=machine), (library.BUILD, build), requests)
    assert made.differences == []
    assert made.compared > 15_000


@pytest.mark.slow
@pytest.mark.parametrize(("name", "build"), BUILDS)
def test_all_types_as_the_build_for_cuda_12(name: str, build: str, recorder: Recorder) -> None:
    """Where they are recorded, for docs/builds.toml, two machines on one and two nodes."""
    file, differences = library.find(name, build), list[str]()
    row: dict[str, Any] = {"sha256": file.sha256, "cuda": cuda(file.path), "communicators": 0, "compared": 0, "same": 0}
    for machine, nodes in product(builds.MACHINES, (1, 2)) if recorder.on else [(builds.MACHINES[0], 1)]:
        made = builds.compare(Scenario(name, nodes, machine=machine), (library.BUILD, build), ALL_TYPES)
        row["communicators"] += 1
        row["compared"] += made.compared
        row["same"] += made.compared - len(made.differences)
        differences += [f"{nodes} x {machine}: {difference}" for difference in made.differences]
    recorder.write("builds", name, row)
    assert not differences, "\n".join(differences)
    assert row["compared"] > 40_000
    assert row["cuda"].startswith("13.")


def cuda(path: Path) -> str:
    """The version of CUDA that a libnccl says it was compiled with."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        match = re.search(rb"compiled with CUDA (\d+\.\d+)", content)
        return "" if match is None else match[1].decode()


@pytest.mark.parametrize(("name", "build"), BUILDS)
def test_check_asks_the_build(name: str, build: str) -> None:
    scenario = Scenario(name, 2, machine="dgx-b200", gpus_per_node=2, build=build)
    report = check(scenario)
    assert report.mismatches == ()
    assert report.compared["cells"] > 10_000
    assert build in scenario.title
    with Oracle(scenario.oracle_configuration()) as oracle:
        assert oracle.facts.library_sha256 == library.find(name, build).sha256 != library.find(name).sha256


PLUGIN_SIZES = [1 << 10, 1 << 20, 64 << 20]


def launched(
    name: str, build: str, requests: list[Request], given: Path | None, env: dict[str, str]
) -> list[tuple[Algorithm, Protocol, int, int]]:
    """On two nodes of dgx-b200, two GPUs each, with a plugin or without one."""
    own = Scenario(name, 2, machine="dgx-b200", gpus_per_node=2, environment=env, build=build).oracle_configuration()
    with Oracle(replace(own, plugin=given, without_tuner=given is None)) as oracle:
        made = [each for request in requests for each in oracle.launch(request, PLUGIN_SIZES)]
    return [(each.algorithm, each.protocol, each.channels, each.threads) for each in made]


@pytest.mark.parametrize(("name", "build"), BUILDS)
def test_the_plugin_decides_what_its_table_says_and_nothing_else(name: str, build: str, tmp_path: Path) -> None:
    requests = [
        Request(collective, dtype, Op.sum)
        for dtype in (DataType.float32, DataType.float8e4m3)
        for collective in Collective
    ]
    alone = launched(name, build, requests, None, {})
    env = {"NCCL_TUNER_TABLE": str(table_of(tmp_path, "allreduce nodes=99 -> tree/simple"))}
    assert launched(name, build, requests, plugin.path(), env) == alone
    table_of(tmp_path, "allreduce bytes=1048576 -> tree/simple")
    decided = launched(name, build, requests, plugin.path(), env)
    changed = [place for place, (was, now) in enumerate(zip(alone, decided, strict=True)) if was != now]
    calls = [(request, size) for request in requests for size in PLUGIN_SIZES]
    assert [calls[place] for place in changed] == [
        (request, 1 << 20) for request in requests if request.collective is Collective.AllReduce
    ]
    assert all(decided[place][:2] == (Algorithm.Tree, Protocol.Simple) for place in changed)


@pytest.mark.parametrize(("name", "build"), BUILDS)
def test_a_capture_is_as_cuda_13_has_it(name: str, build: str) -> None:
    """A launch into a CUDA graph differs from one outside: else the comparison above compares nothing new."""
    request, sizes = Request(Collective.AllGather, DataType.float32, Op.sum), [8 << 20, 64 << 20]
    with Oracle(Scenario(name, 1, machine="dgx-h100", build=build).oracle_configuration()) as oracle:
        assert oracle.launch(request, sizes, captured=True) != oracle.launch(request, sizes)

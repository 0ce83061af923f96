"""libnccl as it is built for CUDA 13: it answers what the build for CUDA 12 of the same release does."""

import pytest

from tests.support import builds
from tests.support.available_releases import BUILDS
from tuner.base.names import Collective, DataType, Op
from tuner.conformance.check import ALL_COLLECTIVES, check
from tuner.emulator.request import Request
from tuner.oracle import library
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

FP8 = [Request(collective, DataType.float8e4m3, Op.sum) for collective in Collective]


@pytest.mark.parametrize(("nodes", "requests"), [(1, ALL_COLLECTIVES), (2, [*ALL_COLLECTIVES, *FP8])], ids=[1, 2])
@pytest.mark.parametrize("machine", builds.MACHINES)
@pytest.mark.parametrize(("name", "build"), BUILDS)
def test_it_answers_as_the_build_for_cuda_12(
    name: str, build: str, machine: str, nodes: int, requests: list[Request]
) -> None:
    made = builds.compare(Scenario(name, nodes, machine=machine), (library.BUILD, build), requests)
    assert made.differences == []
    assert made.compared > 15_000


@pytest.mark.parametrize(("name", "build"), BUILDS)
def test_check_asks_the_build(name: str, build: str) -> None:
    scenario = Scenario(name, 2, machine="dgx-b200", gpus_per_node=2, build=build)
    report = check(scenario)
    assert report.mismatches == []
    assert report.compared["cells"] > 10_000
    assert build in scenario.title
    with Oracle(scenario.oracle_configuration()) as oracle:
        assert oracle.facts.library_sha256 == library.find(name, build).sha256 != library.find(name).sha256


@pytest.mark.parametrize(("name", "build"), BUILDS)
def test_a_capture_is_as_cuda_13_has_it(name: str, build: str) -> None:
    """A launch into a CUDA graph differs from one outside: else the comparison above compares nothing new."""
    request, sizes = Request(Collective.AllGather, DataType.float32, Op.sum), [8 << 20, 64 << 20]
    with Oracle(Scenario(name, 1, machine="dgx-h100", build=build).oracle_configuration()) as oracle:
        assert oracle.launch(request, sizes, captured=True) != oracle.launch(request, sizes)

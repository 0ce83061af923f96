"""Calls on symmetric windows of several nodes, and groups where GPUs start transfers (GIN), against libnccl."""

from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.conformance.check import check
from tuner.scenario import Scenario
from tuner.scenario.describe import describe

pytestmark = pytest.mark.live

WITH_WINDOWS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
WITH_RAILS = [name for name in WITH_WINDOWS if release.load(name).symmetric.rail]
OFFERED, NONE = {"NCCL_GIN_TYPE": "3"}, {"NCCL_GIN_TYPE": "0"}
COLLECTIVES = (Collective.AllGather, Collective.ReduceScatter, Collective.AllReduce)
SETTINGS = [
    {"NCCL_SYM_CTAS": "7"},
    {"NCCL_MIN_CTAS": "5", "NCCL_MAX_CTAS": "9"},
    {"NCCL_SYM_GIN_KERNELS_ENABLE": "0"},
    {"NCCL_SYM_RS_GIN_CHUNK_SIZE": "300000"},
    {"NCCL_NVLS_ENABLE": "0"},
]


def compare(scenario: Scenario, dtype: DataType = DataType.float32) -> None:
    """All three collectives on windows at sizes from a few bytes to gigabytes."""
    requests = [Request(collective, dtype, Op.sum, buffers=Buffers.window) for collective in COLLECTIVES]
    unit = max(request.unit_bytes(scenario.ranks) for request in requests)
    report = check(scenario, requests, [unit * max(1, 3 * 5**power // unit) for power in range(2, 14)])
    assert report.mismatches == ()
    assert report.compared["channels"] >= 3 * 10


@pytest.mark.parametrize("name", WITH_RAILS)
@pytest.mark.parametrize(("machine", "nodes", "gpus"), [("dgx-h100", 2, 8), ("dgx-b200", 3, 2), ("dgx-a100", 2, 1)])
def test_kernels_of_rails(name: str, machine: str, nodes: int, gpus: int) -> None:
    compare(Scenario(name, nodes, machine=machine, gpus_per_node=gpus, environment=OFFERED), DataType.bfloat16)


@pytest.mark.parametrize("name", WITH_RAILS)
@pytest.mark.parametrize(
    "nodes",
    [
        ["dgx-h100:4", "dgx-h100:2"],
        ["dgx-h100:3", "dgx-h100:2"],
        ["dgx-h100:1", "dgx-h100:2"],
        ["dgx-a100:5", "oci-a100:8"],  # which merges adapters
        ["dgx-h100:4", "dgx-a100:2"],
        ["dgx-a100:4", "dgx-b200:4"],
        ["dgx-a100:4", "aws-p4d:4"],  # half as fast; in 2.29.7 each rank goes by its own
    ],
    ids=" ".join,
)
def test_nodes_that_differ(name: str, nodes: list[str]) -> None:
    compare(describe(node=nodes, nccl=name, env=OFFERED))


@pytest.mark.parametrize("name", WITH_RAILS)
def test_generations_without_nvls(name: str) -> None:
    compare(describe(node=["dgx-b200:4", "dgx-h100:2"], nccl=name, env=OFFERED | {"NCCL_NVLS_ENABLE": "0"}))


def test_gpus_of_several_kinds_within_a_node_are_refused(tmp_path: Path) -> None:
    """Symmetric kernels there go by each rank's own GPU."""
    path = tmp_path / "mixed.xml"
    path.write_text(catalogue.load("dgx-a100").topology_xml.replace('sm="80"', 'sm="100"', 1))
    request = Request(Collective.AllGather, DataType.float32, Op.sum, buffers=Buffers.window)
    with pytest.raises(BadInput, match="within a node or with NVLS"):
        Selection(Scenario("2.30.7", 1, topology=path).communicator()).non_classic_paths(request, [1 << 20])


@pytest.mark.parametrize("name", WITH_RAILS[-1:])
def test_copy_engines_want_nodes_of_as_many_ranks(name: str) -> None:
    compare(describe(node=["dgx-b200:4", "dgx-b200:2"], nccl=name, env=OFFERED | {"NCCL_CTA_POLICY": "2"}))


@pytest.mark.parametrize("name", WITH_RAILS[-1:])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings)))
def test_settings(name: str, settings: dict[str, str]) -> None:
    compare(Scenario(name, 2, machine="dgx-h100", gpus_per_node=2, environment=OFFERED | settings))


@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_without_gin(name: str) -> None:
    compare(Scenario(name, 2, machine="dgx-h100", gpus_per_node=2, environment=NONE))


@pytest.mark.parametrize("name", WITH_RAILS)
def test_order_of_a_group(name: str) -> None:
    scenario = Scenario(name, 2, machine="dgx-h100", gpus_per_node=2, environment=OFFERED)
    report = check(scenario, sizes=[scenario.ranks << power for power in (10, 20)])
    assert report.mismatches == ()
    assert report.compared["groups"] > 50


def test_whether_there_is_gin_has_to_be_said() -> None:
    scenario = Scenario("2.30.7", 2, machine="dgx-h100")
    with pytest.raises(BadInput, match=r"whether the network lets GPUs start transfers \(GIN\) is not known"):
        Selection(scenario.communicator()).non_classic_paths(
            Request(Collective.AllGather, DataType.float32, Op.sum, buffers=Buffers.window), [1 << 20]
        )


FOLLOWED = [name for name in WITH_WINDOWS if release.load(name).rules.windows_between_nodes]


@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.parametrize(("machine", "setting"), [("dgx-h100", {"NCCL_CROSS_NIC": "0"}), ("oci-h100", {})])
def test_networks_that_gin_is_not_for(name: str, machine: str, setting: dict[str, str]) -> None:
    """Rings that may not cross adapters, in 2.29.2 and 2.29.3, and adapters that NCCL merges, up to 2.30.4."""
    compare(Scenario(name, 2, machine=machine, gpus_per_node=4, environment=OFFERED | setting))

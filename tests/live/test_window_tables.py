"""A tuner plugin where symmetric kernels may take a call: what it has a say in, against libnccl that loads it."""

from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.tables_on_windows import differing
from tuner import release
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.scenario import Scenario

WITH_WINDOWS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
TAKE_PLAIN_BUFFERS = [name for name in WITH_WINDOWS if release.load(name).rules.symmetric_low_latency]
WITHOUT_WINDOWS = {"NCCL_SYM_NOWIN_ENABLE": "1"}
SIZES = [1 << 10, 15504, 1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 28]
ROWS = [  # Ring/LL where NCCL takes another protocol, and the other way round; 2.31 asks with no operations as well
    "allreduce bytes=..4K -> ring/simple channels=2",
    "allreduce bytes=64M..64M pipelined=0 -> ring/ll channels=3",
    "allgather bytes=..4000 -> ring/ll",
    "allreduce bytes=256M.. -> ring/ll channels=3",
    "allgather bytes=16K.. -> ring/simple",
]


@pytest.mark.parametrize("collective", [Collective.AllReduce, Collective.AllGather])
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_windows(name: str, collective: Collective, tmp_path: Path) -> None:
    scenario = Scenario(name, 1, machine="dgx-b200", gpus_per_node=4)
    request = Request(collective, DataType.float32, Op.sum, buffers=Buffers.window)
    says, found = differing(scenario, request, SIZES, tmp_path, ROWS)
    assert found == []
    low_latency_is_the_tuners = "low_latency" in release.load(name).rules.non_classic_path
    assert bool(says["changed"]) == low_latency_is_the_tuners
    assert says["no say"] == len(SIZES) - says["its choice"] - says["its protocol"]


@pytest.mark.parametrize("collective", [Collective.AllReduce, Collective.AllGather])
@pytest.mark.parametrize("name", TAKE_PLAIN_BUFFERS)
def test_plain_buffers(name: str, collective: Collective, tmp_path: Path) -> None:
    scenario = Scenario(name, 1, machine="dgx-b200", gpus_per_node=4, environment=WITHOUT_WINDOWS)
    says, found = differing(scenario, Request(collective, DataType.float32, Op.sum), SIZES, tmp_path, ROWS)
    assert found == []
    assert says["no say"] == 0
    assert says["changed"] >= 2
    assert says["its choice"] > 0
    if collective is Collective.AllReduce:  # the table's AllGather is LL nowhere
        assert says["its protocol"] > 0

"""A tuner plugin where symmetric kernels may take a call: what it has a say in, against libnccl that loads it."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.support.available_releases import HERE
from tests.support.draws import Draws
from tests.support.random_windows import drawn
from tests.support.tables_on_windows import differing
from tuner import release
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
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


CHOICES = [
    f"{algorithm.name.lower()}/{protocol.name.lower()}"
    for algorithm in (Algorithm.Ring, Algorithm.Tree, Algorithm.NVLS)
    for protocol in Protocol
]


def rows(draw: Random) -> list[str]:
    """Rows of a table for any collective, some for one number of operations that NCCL counts together."""
    made = []
    for _ in range(draw.randint(1, 4)):
        low, high = sorted(int(2 ** draw.uniform(3, 33)) for _ in range(2))
        sizes = draw.choice(("", f"bytes={low}..{high}", f"bytes=..{high}", f"bytes={low}.."))
        collective = draw.choice(("allreduce", "allgather", "reducescatter"))
        pipelined = draw.choice(("", "", "", "pipelined=0", "pipelined=1"))
        choices, channels = " | ".join(draw.sample(CHOICES, 2)), draw.choice(("", "", "channels=2", "channels=5"))
        made.append(" ".join(f"{collective} {sizes} {pipelined} -> {choices} {channels}".split()))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_random_tables(name: str, draws: Draws, tmp_path: Path) -> None:
    random, number, bypassing = draws.random(f"tables {name}"), 0, 0
    while bypassing < draws.times:
        scenario, request, sizes = drawn(name, random)
        table = rows(random)
        if request.buffers is not Buffers.window:  # registered ones: test_buffers.py
            request = replace(request, buffers=Buffers.plain)
            scenario = replace(scenario, environment={**(scenario.environment or {}), **WITHOUT_WINDOWS})
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            says, found = differing(scenario, request, sizes[::4], folder, table)
        except (BadInput, NoAlgorithm):
            continue
        assert found == [], f"{scenario.title} {scenario.environment} {table}"
        bypassing += says["no say"] + says["its protocol"] > 0

"""NCCL's model of symmetric kernels: the times of ``table --buffers window`` against those that NCCL logs."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.support.command_line import run
from tests.support.draws import Draws
from tests.support.random_windows import SYM_KERNEL, drawn
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric
from tuner.emulator.rules.symmetric_variables import KERNEL
from tuner.oracle import library
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

LOGS_TIMES = "2.31.2"
IN_SECONDS = "AllGather_RailRing_LsaSTMC"  # sic: six decimals of its time, which NCCL keeps in seconds, say nothing
Logged = tuple[str, int]  # a time in us as text, and CTAs
_BEST = re.compile(
    r"Best tuning \{ .*?timeUs = ([\d.]+),.*?symKernelId = (\w+),.*?nChannels = (-?\d+),"
)  # with CTAs counted


def differing(
    scenario: Scenario, request: Request, sizes: Sequence[int]
) -> tuple[Counter[str], list[tuple[str, int, Logged, Logged]]]:
    """How many times were compared by kernel; and those that differ: kernel, size, emulated and logged (time, CTAs).

    Each kernel that can do the calls is made the only one. A time is compared in the six decimals that NCCL prints.
    """
    communicator = scenario.communicator()
    weighed = {size: {each.kernel: each for each in symmetric.weighed(communicator, request, size)} for size in sizes}
    compared, found = Counter[str](), list[tuple[str, int, Logged, Logged]]()
    for name in sorted({kernel for kernels in weighed.values() for kernel in kernels} - {IN_SECONDS}):
        asked = [size for size in sizes if name in weighed[size]]
        forced = replace(scenario, environment={**(scenario.environment or {}), KERNEL: name})
        alone = forced.communicator()
        expected = [
            (f"{np.float32(each.score):.6f}", each.blocks)
            for size in asked
            for each in symmetric.weighed(alone, request, size)
            if each.kernel == name
        ]
        with Oracle(forced.resolve().oracle_configuration_to_launch()) as oracle:
            begun = len(oracle.log_lines())
            oracle.launch_on_any_path(request, asked)
            lines = oracle.log_lines()[begun:]
        logged = [(match[1], int(match[3])) for line in lines if (match := _BEST.search(line)) and match[2] == name]
        assert len(logged) == len(asked) == len(expected)
        compared[name] += len(asked)
        both = zip(asked, expected, logged, strict=True)
        found += [(name, size, ours, theirs) for size, ours, theirs in both if ours != theirs]
    return compared, found


COLLECTIVES = (Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter)
NO_COPIES = {"NCCL_SYM_CE_THRESHOLD": "-1"}
SIZES = [8 << 10, 24 << 12, 1 << 20, 5 << 20, 1 << 26, 3 << 28]


@pytest.mark.live
@pytest.mark.skipif(not library.cached(LOGS_TIMES).is_file(), reason=f"NCCL {LOGS_TIMES} is not cached")
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_times_are_those_that_nccl_logs(collective: Collective) -> None:
    scenario = Scenario(LOGS_TIMES, 1, machine="dgx-b200", gpus_per_node=4, environment=NO_COPIES)
    request = Request(collective, DataType.bfloat16, Op.sum, buffers=Buffers.window)
    compared, found = differing(scenario, request, SIZES)
    assert found == []
    assert len(compared) >= 3
    assert compared.total() >= 15


@pytest.mark.live
@pytest.mark.skipif(not library.cached(LOGS_TIMES).is_file(), reason=f"NCCL {LOGS_TIMES} is not cached")
def test_times_of_random_calls_are_those_that_nccl_logs(draws: Draws) -> None:
    random, compared = draws.random(LOGS_TIMES), 0
    for _ in range(6 * draws.times):
        scenario, request, sizes = drawn(LOGS_TIMES, random)
        chosen = {SYM_KERNEL, "NCCL_ALGO", "NCCL_PROTO"}
        environment = {name: value for name, value in (scenario.environment or {}).items() if name not in chosen}
        environment |= {**NO_COPIES, "NCCL_CTA_POLICY": "0", "NCCL_WIN_ENABLE": "1"}
        described = replace(scenario, environment=environment)
        try:
            here, found = differing(described, replace(request, buffers=Buffers.window), sizes[::4])
        except (BadInput, NoAlgorithm):
            continue
        assert found == [], f"{described.title} {environment}"
        compared += here.total()
    assert compared > 0


def test_the_table_has_every_kernel_at_every_size() -> None:
    described = "--machine", "dgx-b200", "--nccl", "2.30.7", "--buffers", "window", "--bytes", "8,1K,1M,2G"
    cells = json.loads(run("table", *described, "--json").stdout)
    kernels = {(each["collective"], each["bytes"]): [one["kernel"] for one in each["kernels"]] for each in cells}
    assert [size for collective, size in kernels if collective == "AllGather"] == [1 << 10, 1 << 20, 2 << 30]
    assert [size for collective, size in kernels if collective == "AllReduce"] == [8, 1 << 10, 1 << 20, 2 << 30]
    assert {*kernels["AllGather", 1 << 20]} == {f"AllGather_{name}" for name in ("LL", "LLMC", "ST", "STMC")}
    text = run("table", *described).stdout.splitlines()
    (own,) = (line for line in text if line.startswith(" AllGather_STMC"))
    assert "14.16 x2 *" in own
    runs = next(line for line in text if line.startswith(" runs"))
    assert runs.rstrip().endswith("copy engines")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--bytes", "8"), "valid: with --buffers window"),
        (("--buffers", "window", "--time", "both"), "valid: --time nccl"),
        (("--buffers", "window", "--nccl", "2.25.1"), "has no symmetric windows; valid: 2.27.3 and later"),
    ],
)
def test_refusals_say_what_is_valid(words: tuple[str, ...], says: str) -> None:
    assert says in run("table", "--machine", "dgx-h100", *words, code=2).stderr


def test_registered_buffers_have_the_table_of_plain_ones() -> None:
    plain, registered = (
        run("table", "--machine", "dgx-h100", "--nccl", "2.28.9", "--buffers", buffers).stdout
        for buffers in ("plain", "registered")
    )
    assert plain == registered

"""Symmetric kernels against libnccl: the variables that choose them, and the times of NCCL's model that it logs."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from tests.support.available_releases import HERE
from tests.support.command_line import run
from tests.support.draws import Draws
from tests.support.random_windows import SYM_KERNEL, drawn
from tuner import release
from tuner.base.errors import BadInput, NoAlgorithm, OracleFailed
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.ranges import combinations
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric
from tuner.emulator.rules.symmetric_variables import KERNEL
from tuner.emulator.selection import Selection
from tuner.oracle import library
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import check
from tuner.scenario import Scenario

SIZES = [1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24, 1 << 28]
COLLECTIVES = (Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter)
WINDOWS = [Request(collective, DataType.float32, Op.sum, buffers=Buffers.window) for collective in COLLECTIVES]
PLAIN = [Request(collective, DataType.float32, Op.sum) for collective in COLLECTIVES]
HAVE_KERNELS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
TAKE_PLAIN_BUFFERS = [name for name in HAVE_KERNELS if release.load(name).rules.symmetric_low_latency]
ONE, NONE = "AllReduce_AGxLL_R", "allreduce_agxll_r"
SETTINGS = [
    {"NCCL_SYM_KERNEL": ONE},
    {"NCCL_SYM_KERNEL": NONE},
    {"NCCL_SYM_KERNEL": "^"},
    {"NCCL_SYM_KERNEL": "AllGather_ST,AllGather_LL;allreduce:^AllReduce_AGxLL_R"},
    {"NCCL_SYM_KERNEL": "ReduceScatter_LL", "NCCL_ALGO": "allreduce:ring"},
    {"NCCL_SYM_NOWIN_ENABLE": "1"},
    {"NCCL_SYM_NOWIN_ENABLE": "1", "NCCL_PROTO": "LL"},
    {"NCCL_SYM_NOWIN_ENABLE": "1", "NCCL_SYM_KERNEL": "AllGather_LL"},
    {"NCCL_WIN_ENABLE": "0"},
    {"NCCL_LOCAL_REGISTER": "0"},
    {"NCCL_WIN_STRIDE": "274877906944"},
]


def scenario_of(nccl: str, settings: dict[str, str], gpus_per_process: int = 1) -> Scenario:
    return Scenario(
        nccl, 1, machine="dgx-b200", gpus_per_node=4, environment=settings, gpus_per_process=gpus_per_process
    )


def kernels(nccl: str, settings: dict[str, str], request: Request) -> set[str | None]:
    paths = Selection(scenario_of(nccl, settings).communicator()).non_classic_paths(request, SIZES)
    return {path.name if path else None for path in paths}


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", HAVE_KERNELS)
def test_settings(name: str, settings: dict[str, str]) -> None:
    report = check(scenario_of(name, settings), [*WINDOWS, *PLAIN], SIZES)
    assert report.mismatches == ()
    assert report.compared["picks"] >= len(SIZES)  # of one collective, where lists leave the others nothing


COPYING_IN_BULK = {
    Collective.AllGather: ("AllGather_TmaST", [1 << 12, 24 << 10, 40 << 10, 200_000]),
    Collective.AllReduce: ("AllReduce_RSxTmaLD_AGxTmaST", [1 << 10, 48 << 10, 60_000, 65_528, 1 << 16, 96 << 10]),
    Collective.ReduceScatter: ("ReduceScatter_TmaLD", [1 << 12, 200_000, 1 << 18, 300_000]),
}


@pytest.mark.parametrize("collective", COPYING_IN_BULK, ids=lambda each: each.name)
@pytest.mark.parametrize("name", [name for name in HAVE_KERNELS if release.load(name).symmetric.copies_in_bulk])
def test_listed_kernels_that_copy_in_bulk_take_any_size(name: str, collective: Collective) -> None:
    """They have a least size for each block, which a list leaves out of account where not one block has it."""
    kernel, sizes = COPYING_IN_BULK[collective]
    request = Request(collective, DataType.bfloat16, Op.sum, buffers=Buffers.window)
    report = check(scenario_of(name, {"NCCL_SYM_KERNEL": kernel}), [request], sizes)
    assert report.mismatches == ()
    assert report.compared["picks"] == len(sizes)


@pytest.mark.parametrize("below", [0, 4, 1020, 1024])
@pytest.mark.parametrize("name", HAVE_KERNELS)
def test_kernels_of_low_latency_end_where_elements_are_too_many(name: str, below: int) -> None:
    """In whole cells of a KiB from 2.28.3 on; what is left there is another kernel, an algorithm, or nothing at all."""
    request, scenario = WINDOWS[1], scenario_of(name, {"NCCL_SYM_KERNEL": ONE})
    selection, sizes = (
        Selection(scenario.communicator()),
        [release.load(name).symmetric.low_latency_below_bytes - below],
    )
    with Oracle(scenario.oracle_configuration()) as oracle:
        try:
            (path,) = selection.non_classic_paths(request, sizes)
            classic = None if path else selection.pick(request, sizes).algo_protos()[0]
        except NoAlgorithm:
            with pytest.raises(OracleFailed, match=r"No algorithm/protocol nor symKernelId|NCCL returned"):
                oracle.launch_on_any_path(request, sizes)
            return
        (launched,) = oracle.launch_on_any_path(request, sizes)
        assert (path or classic) == (
            (launched.algorithm, launched.protocol) if isinstance(launched, OracleLaunch) else launched
        )


@pytest.mark.parametrize("name", TAKE_PLAIN_BUFFERS)
def test_processes_with_several_gpus(name: str) -> None:
    settings = {"NCCL_SYM_NOWIN_ENABLE": "1", "NCCL_PROTO": "LL"}
    report = check(scenario_of(name, settings, gpus_per_process=2), [*WINDOWS, *PLAIN], SIZES)
    assert report.mismatches == ()
    assert report.compared["picks"] >= 6 * len(SIZES)


# Of NCCL_WORK_ARGS_BYTES: where each libnccl begins to run.
LEAST_ARGUMENT_BYTES = {"2.28.3": 432, "2.28.9": 544, "2.29.7": 608, "2.30.3": 624, "2.31.2": 656, "2.32.3": 656}


def refused(scenario: Scenario, request: Request) -> bool:
    try:
        Selection(scenario.communicator()).non_classic_paths(request, [1 << 20])
    except BadInput:
        return True
    return False


@pytest.mark.parametrize("name", [name for name in LEAST_ARGUMENT_BYTES if name in HERE])
def test_too_little_room_for_arguments(name: str) -> None:
    """NCCL aborts, or from 2.31 on fails, where one byte is missing; of plain buffers from 2.29.2 on, too."""
    least = LEAST_ARGUMENT_BYTES[name]
    found = []
    for room in (least - 1, least):
        scenario = scenario_of(name, {"NCCL_WORK_ARGS_BYTES": str(room)})
        for request in (WINDOWS[1], PLAIN[1]):
            found.append(refused(scenario, request))
            with Oracle(scenario.oracle_configuration()) as oracle:
                fails = pytest.raises(OracleFailed, match=r"calcArgsSize|args size") if found[-1] else nullcontext()
                with fails:
                    oracle.launch_on_any_path(request, [1 << 20])
    assert found in ([True, True, False, False], [True, False, False, False])


def test_the_settings_choose() -> None:
    """Or the tests above would compare what is picked without them."""
    of_reduce, plain = WINDOWS[1], PLAIN[1]
    assert kernels("2.28.9", {}, of_reduce) != {f"symmetric kernel {ONE}"}
    assert kernels("2.28.9", {"NCCL_SYM_KERNEL": ONE}, of_reduce) == {f"symmetric kernel {ONE}"}
    assert kernels("2.28.9", {"NCCL_SYM_KERNEL": NONE}, of_reduce) == {None}
    assert kernels("2.28.9", {"NCCL_SYM_KERNEL": NONE}, plain) == {None}
    assert kernels("2.28.9", {"NCCL_WIN_ENABLE": "0"}, of_reduce) == {None}
    for nccl in ("2.30.7", "2.32.3"):
        assert kernels(nccl, {}, plain) == {None}
        assert None not in kernels(nccl, {"NCCL_SYM_NOWIN_ENABLE": "1", "NCCL_PROTO": "LL"}, plain)
    assert kernels("2.30.7", {"NCCL_SYM_KERNEL": ONE}, plain) == {f"symmetric kernel {ONE}"}


def test_windows_that_are_not_made_are_registered_up_to_2_28_and_plain_later() -> None:
    settings = {"NCCL_WIN_ENABLE": "0", "NCCL_ALGO": "NVLS"}
    for nccl, like in (("2.28.9", Buffers.registered), ("2.30.7", Buffers.plain)):
        channels = [
            Selection(scenario_of(nccl, settings).communicator())
            .pick(Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=buffers), 1 << 28)
            .channels[0]
            for buffers in (Buffers.window, Buffers.registered, Buffers.plain)
        ]
        assert channels[1] != channels[2]
        assert channels[0] == channels[1 if like is Buffers.registered else 2]


def test_ranges_are_refused_where_plain_buffers_may_get_a_kernel() -> None:
    with pytest.raises(BadInput, match="NCCL_SYM"):
        combinations(Selection(scenario_of("2.30.7", {"NCCL_SYM_NOWIN_ENABLE": "1"}).communicator()), PLAIN[1])


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


NO_COPIES = {"NCCL_SYM_CE_THRESHOLD": "-1"}
TIMED_SIZES = [8 << 10, 24 << 12, 1 << 20, 5 << 20, 1 << 26, 3 << 28]


@pytest.mark.live
@pytest.mark.skipif(not library.cached(LOGS_TIMES).is_file(), reason=f"NCCL {LOGS_TIMES} is not cached")
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_times_are_those_that_nccl_logs(collective: Collective) -> None:
    scenario = Scenario(LOGS_TIMES, 1, machine="dgx-b200", gpus_per_node=4, environment=NO_COPIES)
    request = Request(collective, DataType.bfloat16, Op.sum, buffers=Buffers.window)
    compared, found = differing(scenario, request, TIMED_SIZES)
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
    cells = json.loads(run("table", *described, "--json").stdout)["kernels"]
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
        (("--bytes", "8"), "only apply with --buffers window"),
        (("--buffers", "window", "--time", "both"), "no times of symmetric kernels were measured"),
        (
            ("--buffers", "window", "--nccl", "2.25.1"),
            "NCCL itself fails here: NCCL 2.25.1 has no symmetric windows; valid: 2.27.3 and later",
        ),
    ],
)
def test_refusals_say_what_is_valid(words: tuple[str, ...], says: str) -> None:
    code = 1 if "NCCL itself fails" in says else 2
    assert says in run("table", "--machine", "dgx-h100", *words, code=code).stderr


def test_registered_buffers_have_the_table_of_plain_ones() -> None:
    plain, registered = (
        run("table", "--machine", "dgx-h100", "--nccl", "2.28.9", "--buffers", buffers).stdout
        for buffers in ("plain", "registered")
    )
    assert plain == registered

"""Variables that choose symmetric kernels, windows or not, against libnccl: picks, channels, threads."""

from contextlib import nullcontext

import pytest

from tests.support.available_releases import HERE
from tuner import release
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.ranges import combinations
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
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

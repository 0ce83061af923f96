"""Picks over sizes and node counts, the ranges of calls that may bypass the algorithms, against picks one by one."""

import dataclasses
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

from tuner.answers.choices import choices
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import ALGO_PROTOS, Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.base.numerics import SizeArray
from tuner.cli import everything
from tuner.emulator.ranges import Ranges, answers, combinations, largest, launches
from tuner.emulator.request import Request
from tuner.emulator.rules import launch
from tuner.emulator.selection import CHUNK, Selection
from tuner.scenario import Scenario

SUM = Request(Collective.AllReduce, DataType.float32, Op.sum)


@pytest.mark.parametrize("nccl", ["2.21.5", "2.28.9", "2.32.3"])
def test_every_element_is_the_pick_of_its_communicator(nccl: str) -> None:
    scenario = Scenario(nccl=nccl, machine="dgx-h100", nodes=7)
    sizes = np.array([8, 4096, 1 << 20, 1 << 30, 1 << 62], np.uint64)
    found = choices(scenario, SUM, sizes, [1, 3, 40])
    for row, nodes in enumerate(found.nodes):
        selection = Selection(replace(scenario, nodes=nodes).communicator())
        for column, size in enumerate(sizes):
            try:
                pick = selection.pick(SUM, int(size))
            except NoAlgorithm:
                assert found.algorithm[row, column] == found.protocol[row, column] == -1
                assert np.isnan(found.time_us[row, column])
                continue
            for name in ("algorithm", "protocol", "channels", "threads", "time_us"):
                assert getattr(found, name)[row, column] == getattr(pick, name)[0], (nodes, size, name)
    assert (found.algorithm[:, -1] == -1).all() == (nccl != "2.32.3")


def test_the_largest_size_is_the_last_that_is_taken() -> None:
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
    selection = Selection(scenario.communicator())
    most = largest(selection, SUM)
    selection.pick(SUM, most)
    with pytest.raises(NoAlgorithm):
        selection.pick(SUM, most + 1)
    assert largest(selection, SUM, 1 << 30) == 1 << 30
    around = choices(scenario, SUM, np.array([most, most + 1], np.uint64), [2])
    assert (around.algorithm >= 0).tolist() == [[True, False]]


def test_nothing_is_taken_where_nothing_can_run() -> None:
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2, environment={"NCCL_ALGO": "PAT"})
    assert largest(Selection(scenario.communicator()), SUM) == 0
    assert (choices(scenario, SUM, np.array([8], np.uint64), [2]).algorithm == -1).all()


def test_less_than_an_element_a_rank_is_no_call() -> None:
    scenario, sizes = Scenario(nccl="2.20.5", machine="dgx-h100", nodes=1), np.array([8, 63, 64, 1024], np.uint64)
    found = choices(scenario, Request(Collective.AllGather, DataType.float32, Op.sum), sizes, [2, 4, 64])
    assert (found.algorithm >= 0).tolist() == [[False, False, True, True], [False, False, False, True], [False] * 4]


REQUEST = Request(Collective.AllGather, DataType.float32, Op.sum, buffers=Buffers.registered)
SIZES = np.geomspace(1 << 10, 1 << 32, 2 * CHUNK + 100).astype(np.uint64)
NVLS = (Algorithm.NVLS, Protocol.Simple)


def selection(channels: int, policy: str = "EFFICIENCY") -> Selection:
    """Of one node whose NVLS graph has so many channels: with more than 32, NVLS is no candidate for AllGather."""
    environment = {"NCCL_CTA_POLICY": policy}
    communicator = Scenario("2.32.3", 1, machine="dgx-h100", environment=environment).communicator()
    nvls = dataclasses.replace(communicator.graphs[Algorithm.NVLS], channels=channels)
    return Selection(dataclasses.replace(communicator, graphs={**communicator.graphs, Algorithm.NVLS: nvls}))


@pytest.mark.parametrize("channels", [16, 40])
def test_many_sizes_are_picked_as_few_are(channels: int) -> None:
    """They are gone through in chunks: what moves in one must not show in the next."""
    moved = selection(channels)
    assert (NVLS in moved.candidates(REQUEST)) == (channels <= 32)
    together = moved.pick(REQUEST, SIZES)
    assert NVLS in together.algo_protos()
    assert (together.combinations != selection(channels, "DEFAULT").pick(REQUEST, SIZES).combinations).any()
    for part in np.array_split(np.arange(len(SIZES)), 7):
        few = moved.pick(REQUEST, SIZES[part])
        for name in ("algorithm", "protocol", "channels", "threads", "time_us"):
            assert np.array_equal(getattr(few, name), getattr(together, name)[part]), name


@pytest.mark.parametrize("nccl", ["2.18.3", "2.28.9", "2.32.3"])
@pytest.mark.parametrize("environment", [{}, {"NCCL_ALGO": "^NVLS"}, {"NCCL_PROTO": "LL", "NCCL_NTHREADS": "64"}])
def test_ranked_sizes_have_the_times_and_picks_that_they_have_alone(nccl: str, environment: dict[str, str]) -> None:
    ranked, request = Selection(Scenario(nccl, 2, machine="dgx-h100", environment=environment).communicator()), SUM
    times_us, picked = ranked.ranked(request, SIZES[::500])
    assert np.array_equal(picked, ranked.classic_pick(request, SIZES[::500]).combinations)
    table_us = ranked.cost_table(request, SIZES[::500])
    columns = [table_us[:, algorithm, protocol] for algorithm, protocol in ranked.candidates(request)]
    assert np.array_equal(times_us, np.column_stack(columns))


def test_ranked_sizes_are_moved_and_refused_as_their_launches_are() -> None:
    moved = selection(40)
    assert np.array_equal(moved.ranked(REQUEST, SIZES)[1], moved.classic_pick(REQUEST, SIZES).combinations)
    assert ALGO_PROTOS.index(NVLS) in moved.ranked(REQUEST, SIZES)[1]
    full = selection_of("2.28.9", "dgx-h100", {"NCCL_WORK_ARGS_BYTES": "1", "NCCL_WORK_FIFO_BYTES": "1"})
    with pytest.raises(BadInput, match="too small for one collective"):
        full.ranked(SUM, SIZES)


SEVERAL = (Collective.AllGather, Collective.AllReduce)
SETTINGS = [
    ("2.27.7", "dgx-h100", {}, Buffers.window),
    ("2.29.2", "dgx-b200", {}, Buffers.window),
    ("2.32.3", "dgx-b200", {}, Buffers.window),
    ("2.32.3", "dgx-b200", {"NCCL_SYM_KERNEL": "allreduce:AllReduce_AGxLL_R"}, Buffers.window),
    ("2.29.7", "dgx-h100", {"NCCL_SYM_NOWIN_ENABLE": "1"}, Buffers.plain),
    ("2.30.7", "dgx-h100", {"NCCL_CTA_POLICY": "2"}, Buffers.window),
]


def selection_of(nccl: str, machine: str, environment: dict[str, str]) -> Selection:
    return Selection(Scenario(nccl, 1, machine=machine, environment=environment).communicator())


def answered(selection: Selection, request: Request, sizes: SizeArray) -> list[tuple[object, ...]]:
    """What single sizes get: what takes them, algorithm, protocol, channels and threads."""
    return [
        (path.name, -1, -1, path.blocks, path.threads)
        if path
        else (None, *(int(column[0]) for column in list(picks(selection, request, size))))
        for path, size in zip(selection.non_classic_paths(request, sizes), sizes.tolist(), strict=True)
    ]


def picks(selection: Selection, request: Request, size: int) -> tuple[np.ndarray, ...]:
    made = selection.classic_pick(request, size)
    return made.algorithm, made.protocol, made.channels, made.threads


def in_ranges(found: Ranges, sizes: SizeArray) -> list[tuple[object, ...]]:
    rows = np.searchsorted(found.from_bytes, sizes, side="right") - 1
    columns = (found.algorithm, found.protocol, found.channels, found.threads)
    return [(found.bypass[row], *(int(column[row]) for column in columns)) for row in rows.tolist()]


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize("collective", SEVERAL, ids=lambda each: each.name)
@pytest.mark.parametrize(("nccl", "machine", "environment", "buffers"), SETTINGS, ids=str)
def test_single_sizes_get_what_their_range_says(
    nccl: str, machine: str, environment: dict[str, str], buffers: Buffers, collective: Collective
) -> None:
    selection = selection_of(nccl, machine, environment)
    request = Request(collective, DataType.float32, Op.sum, buffers=buffers)
    found = answers(selection, request, high=1 << 33)
    unit = request.unit_bytes(selection.communicator.ranks)
    few = np.arange(unit, 1 << 18, 256, dtype=np.uint64)
    many = np.exp2(np.random.default_rng(5).uniform(18, 33, 300)).astype(np.uint64)
    ends = np.concatenate([found.from_bytes, found.to_bytes])
    sizes, last = np.unique(np.concatenate([few, many, ends])), int(found.to_bytes[-1])
    sizes = sizes[sizes <= last]
    assert in_ranges(found, sizes) == answered(selection, request, sizes)
    assert found.from_bytes[0] == unit
    if last < 1 << 33:  # nothing but a kernel that takes no more
        with pytest.raises(NoAlgorithm):
            selection.pick(request, last + 1)
    assert (found.from_bytes[1:] == found.to_bytes[:-1] + np.uint64(1)).all()
    alike = in_ranges(found, found.from_bytes)
    assert all(one != other for one, other in pairwise(alike))


def test_ranges_without_channels_are_those_of_kernels_and_combinations() -> None:
    selection = selection_of("2.28.9", "dgx-h100", {})
    request = Request(Collective.AllGather, DataType.float32, Op.sum, buffers=Buffers.window)
    found = answers(selection, request, whole=False)
    names = ("symmetric kernel AllGather_LLMC", "symmetric kernel AllGather_STMC", None)
    assert found.bypass == names
    assert (found.from_bytes[2], found.to_bytes[2]) == (64 << 30, 1 << 40)


def test_ranges_end_before_channels_that_cannot_be_followed() -> None:
    selection = selection_of("2.30.7", "dgx-h100", {})
    request = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=Buffers.window)
    assert answers(selection, request).to_bytes[-1] == (64 << 30) - 1
    with pytest.raises(BadInput, match="too often to look at"):
        answers(selection, request, low=64 << 30)
    words = ("edges", "allreduce", "--machine", "dgx-h100", "--nccl", "2.30.7", "--buffers", "window")
    for more in ((), ("--json",)):
        said = CliRunner().invoke(everything, [*words, *more]).stderr
        assert said == "AllReduce: from 64 GiB on the number of channels changes too often to list its ranges\n"
    assert CliRunner().invoke(everything, [*words, "--to", "32G"]).stderr == ""


def test_picks_that_take_turns_by_rounding_are_one_row() -> None:
    words = ("edges", "allreduce", "--machine", "dgx-h100", "--nodes", "4", "--nccl", "2.32.3")
    said = CliRunner().invoke(everything, words).stdout
    (row,) = (line for line in said.splitlines() if " and NVLSTree/Simple in turn" in line)
    assert row.split()[:4] == ["1036398753", "B", "1036399264", "B"]
    assert row.split()[-1] == "6"
    assert said.count("Ring/Simple") == 2
    every = CliRunner().invoke(everything, [*words, "--every"]).stdout
    assert " in turn" not in every
    assert every.count("Ring/Simple") > 2


def test_ranges_of_registered_buffers_end_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MOST", 1 << 10)  # or it takes seconds
    selection = selection_of("2.30.7", "dgx-h100", {})
    request = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=Buffers.registered, in_place=True)
    with pytest.raises(BadInput, match="too often to look at; valid: sizes to ") as refused:
        launches(selection, request)
    last = int(str(refused.value).rpartition(" ")[2])
    assert answers(selection, request).rows() == launches(selection, request, high=last).rows()
    words = ("edges", "allreduce", "--machine", "dgx-h100", "--nccl", "2.30.7", "--buffers", "registered", "--in-place")
    said = CliRunner().invoke(everything, words)
    goes_on = "AllReduce: from 65 MiB on the number of channels changes too often to list its ranges\n"
    assert (said.exit_code, said.stderr) == (0, goes_on)


def test_calls_that_stay_are_answered_as_ever() -> None:
    selection = selection_of("2.28.9", "dgx-h100", {})
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    for whole, follow in ((True, launches), (False, combinations)):
        found, own = answers(selection, request, whole=whole), follow(selection, request)
        assert found.rows() == own.rows()
        assert "bypass" not in found.columns()


def test_a_kernel_where_the_classic_path_has_nothing() -> None:
    selection = selection_of("2.32.3", "dgx-h100", {"NCCL_SYM_KERNEL": "allreduce:AllReduce_AGxLL_R"})
    request = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=Buffers.window)
    found = answers(selection, request)
    assert set(found.bypass) == {"symmetric kernel AllReduce_AGxLL_R"}
    first = found.records(request)[0]
    assert (first.algorithm, first.name) == (None, "symmetric kernel AllReduce_AGxLL_R")


def test_less_than_a_byte_for_each_rank_is_refused() -> None:
    request = Request(Collective.AllGather, DataType.int8, Op.sum, buffers=Buffers.window)
    with pytest.raises(BadInput, match="less than a byte for each rank: give 8 bytes or more"):
        selection_of("2.28.9", "dgx-h100", {}).non_classic_paths(request, [8, 4])

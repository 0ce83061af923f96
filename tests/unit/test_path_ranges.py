"""The size ranges of calls that may bypass the algorithms, against the answers to single sizes."""

from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.base.numerics import SizeArray
from tuner.cli import everything
from tuner.emulator.ranges import Ranges, answers, combinations, launches
from tuner.emulator.request import Request
from tuner.emulator.rules import launch
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

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
    return [(found.bypass_kernel[row], *(int(column[row]) for column in columns)) for row in rows.tolist()]


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
    assert found.bypass_kernel == names
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
        assert said == "AllReduce: from 64 GiB on channels change too often to be listed\n"
    assert CliRunner().invoke(everything, [*words, "--to", "32G"]).stderr == ""


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
    assert (said.exit_code, said.stderr) == (0, "AllReduce: from 65 MiB on channels change too often to be listed\n")


def test_calls_that_stay_are_answered_as_ever() -> None:
    selection = selection_of("2.28.9", "dgx-h100", {})
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    for whole, follow in ((True, launches), (False, combinations)):
        found, own = answers(selection, request, whole=whole), follow(selection, request)
        assert found.rows() == own.rows()
        assert "bypass_kernel" not in found.columns()


def test_a_kernel_where_the_classic_path_has_nothing() -> None:
    selection = selection_of("2.32.3", "dgx-h100", {"NCCL_SYM_KERNEL": "allreduce:AllReduce_AGxLL_R"})
    request = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=Buffers.window)
    found = answers(selection, request)
    assert set(found.bypass_kernel) == {"symmetric kernel AllReduce_AGxLL_R"}
    first = found.records(request)[0]
    assert (first.algorithm, first.name) == (None, "symmetric kernel AllReduce_AGxLL_R")


def test_less_than_a_byte_for_each_rank_is_refused() -> None:
    request = Request(Collective.AllGather, DataType.int8, Op.sum, buffers=Buffers.window)
    with pytest.raises(BadInput, match="less than a byte for each rank; valid: from 8 bytes"):
        selection_of("2.28.9", "dgx-h100", {}).non_classic_paths(request, [8, 4])

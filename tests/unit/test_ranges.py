"""Ranges of sizes with one answer, against the answer at every size, and against libnccl at their ends."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.available_releases import HERE
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.base.records import to_json
from tuner.cli import everything
from tuner.emulator.ranges import combinations, launches
from tuner.emulator.request import Request
from tuner.emulator.rules import launch
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

NAMES = ("algorithm", "protocol", "channels", "threads")
# A release of each way to launch and to deal, on shapes whose channels rise and fall, stay below NCCL's, and tie.
SHAPES = [
    ("2.18.1", "dgx-a100", 2, None, {}),
    ("2.21.5", "dgx-h100", 2, None, {}),
    ("2.22.3", "dgx-h200", 2, None, {}),
    ("2.22.3", "pcie-l40s-4nic", 3, None, {}),
    ("2.27.5", "dgx-b200", 3, None, {}),
    ("2.28.9", "dgx-h100", 2, 8, {}),
    ("2.28.9", "aws-p4d", 128, None, {"NCCL_NTHREADS": "128"}),
    ("2.30.7", "azure-nd-a100-v4", 7, None, {}),
    ("2.31.2", "dgx-h200", 4, None, {"NCCL_MAX_CTAS": "9"}),
    ("2.32.3", "dgx-b200", 1, None, {}),
]


def selection(nccl: str, machine: str, nodes: int, gpus: int | None = None, **environment: str) -> Selection:
    return Selection(Scenario(nccl, nodes, machine, gpus_per_node=gpus, environment=environment).communicator())


def request(collective: Collective, dtype: DataType = DataType.float32, buffers: Buffers = Buffers.plain) -> Request:
    return Request(collective, dtype, Op.sum, buffers=buffers)


@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize(("nccl", "machine", "nodes", "gpus", "environment"), SHAPES)
def test_no_size_has_another_answer(
    nccl: str, machine: str, nodes: int, gpus: int | None, environment: dict[str, str], collective: Collective
) -> None:
    asked, about = request(collective), selection(nccl, machine, nodes, gpus, **environment)
    found = launches(about, asked)
    low, high = int(found.from_bytes[0]), int(found.to_bytes[-1])
    random = np.exp(np.random.default_rng(nodes).uniform(np.log(low), np.log(high), 100_000)).astype(np.uint64)
    edges = found.from_bytes.astype(np.int64)[:, None] // low + np.arange(-10, 11)
    granules = np.arange(1, 50_000)[:, None] * 16 * (low // 4) + np.array([-low, 0, low])
    sizes = np.concatenate(
        [
            np.arange(low, 100_000 * low, low),
            random.astype(np.int64) // low * low,
            edges.ravel() * low,
            granules.ravel(),
            found.from_bytes.astype(np.int64),
            found.to_bytes.astype(np.int64),
        ]
    )
    sizes = np.sort(sizes[(sizes >= low) & (sizes <= high)])
    picks = about.pick(asked, sizes)
    at = np.searchsorted(found.from_bytes, sizes.astype(np.uint64), side="right") - 1
    for name in NAMES:
        wrong = np.flatnonzero(getattr(picks, name) != getattr(found, name)[at])
        assert not wrong.size, (name, sizes[wrong[:3]])


@pytest.mark.parametrize(("nccl", "machine", "nodes", "gpus", "environment"), SHAPES)
def test_ranges_touch_and_differ(
    nccl: str, machine: str, nodes: int, gpus: int | None, environment: dict[str, str]
) -> None:
    for follow, names in ((launches, NAMES), (combinations, NAMES[:2])):
        found = follow(selection(nccl, machine, nodes, gpus, **environment), request(Collective.AllReduce))
        assert (found.to_bytes[:-1] + 1 == found.from_bytes[1:]).all()
        answers = np.column_stack([getattr(found, name) for name in names])
        assert (answers[1:] != answers[:-1]).any(axis=1).all()
        assert (int(found.from_bytes[0]), int(found.to_bytes[-1])) == (4, 1 << 40)


@pytest.mark.live
@pytest.mark.parametrize("collective", [Collective.AllReduce, Collective.AllGather])
@pytest.mark.parametrize("nccl", HERE)
def test_the_library_launches_so_at_both_ends_of_every_range(nccl: str, collective: Collective) -> None:
    scenario = Scenario(nccl, 2, "dgx-h100", gpus_per_node=2)
    asked, about = request(collective), Selection(scenario.communicator())
    found = launches(about, asked, high=64 << 20)
    unit = int(found.from_bytes[0])
    ends = np.stack([-(-found.from_bytes.astype(np.int64) // unit), found.to_bytes.astype(np.int64) // unit])
    sizes = np.unique(ends[:, ends[0] <= ends[1]]) * unit  # ranges that hold a size of whole elements
    at = np.searchsorted(found.from_bytes, sizes.astype(np.uint64), side="right") - 1
    assert len(set(at.tolist())) > 5
    with Oracle(scenario.resolve().oracle_configuration_to_launch()) as oracle:
        real = oracle.launch(Request(collective, asked.dtype, asked.op), sizes.tolist())
    for size, launched, row in zip(sizes, real, at, strict=True):
        assert all(getattr(launched, name) == getattr(found, name)[row] for name in NAMES), (size, launched)


def test_ends_are_those_asked_for() -> None:
    about, asked = selection("2.28.9", "dgx-h100", 2), request(Collective.AllReduce)
    found = launches(about, asked, 1000, 2000)
    assert (int(found.from_bytes[0]), int(found.to_bytes[-1])) == (1000, 2000)
    assert int(launches(about, request(Collective.AllGather, DataType.float16)).from_bytes[0]) == 32
    past_an_hour = launches(about, asked, high=1 << 62)
    with pytest.raises(NoAlgorithm):
        about.pick(asked, int(past_an_hour.to_bytes[-1]) + 1)
    with pytest.raises(BadInput, match="sizes from 3000 to 2000"):
        launches(about, asked, 3000, 2000)


def test_registered_buffers_that_turn_too_often_are_refused() -> None:
    about = selection("2.28.9", "dgx-h100", 1)
    asked = request(Collective.AllGather, buffers=Buffers.registered)
    with pytest.raises(BadInput, match="valid: sizes to"):
        launches(about, asked)
    assert len(launches(about, asked, high=1 << 26)) > 1
    with pytest.raises(BadInput, match="window"):
        launches(about, request(Collective.AllReduce, buffers=Buffers.window))


def test_the_size_that_a_refusal_names_is_the_largest_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MOST", 1 << 10)
    about, asked = selection("2.22.3", "dgx-h100", 8), request(Collective.Broadcast)
    with pytest.raises(BadInput, match="valid: sizes to") as refused:
        launches(about, asked)
    largest = int(str(refused.value).rpartition(" ")[2])
    assert int(launches(about, asked, high=largest).to_bytes[-1]) == largest
    with pytest.raises(BadInput, match=f"valid: sizes to {largest}$"):
        launches(about, asked, high=largest + 1)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(everything, ["edges", *arguments, "--machine", "dgx-h100", "--nodes", "2"])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_says_what_the_ranges_are() -> None:
    records = json.loads(run("--nccl", "2.28.9", "--json"))
    assert {record["collective"] for record in records} == {collective.name for collective in Collective}
    assert list(records[0]) == ["collective", "from_bytes", "to_bytes", "algorithm", "protocol", "channels", "threads"]
    asked = request(Collective.AllReduce)
    own = launches(selection("2.28.9", "dgx-h100", 2), asked)
    assert [record for record in records if record["collective"] == "AllReduce"] == to_json(own.records(asked))
    every, by_combination = run("allreduce", "--nccl", "2.28.9", "--every"), run("allreduce", "--nccl", "2.28.9")
    assert every.count("Tree/LL128") > by_combination.count("Tree/LL128") == 1


def test_collectives_that_nothing_can_run_are_named() -> None:
    result = CliRunner().invoke(
        everything, ["edges", "--machine", "dgx-h100", "--nccl", "2.28.9", "--env", "NCCL_ALGO=NVLS", "--json"]
    )
    assert "Reduce: nothing can run it here" in result.stderr
    assert {record["algorithm"] for record in json.loads(result.stdout)} == {"NVLS"}

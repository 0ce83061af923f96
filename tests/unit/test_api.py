"""The API for Python: names in words, defaults, and the same answers as the parts it is made of."""

import pydoc
import re
from typing import Any

import numpy as np
import pytest

import tuner
from tuner import release
from tuner.answers.diff import Side, diff
from tuner.answers.explain import explain
from tuner.api import request
from tuner.base.errors import BadInput, UnknownMachine, UnknownRelease
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.ranges import launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

SIZES = np.array([8, 1 << 20, 1 << 30])
CALL = Request(Collective.ReduceScatter, DataType.bfloat16, Op.avg, buffers=Buffers.registered)
WORDS: dict[str, Any] = {"dtype": "bfloat16", "op": "AVG", "buffers": "registered"}


def test_answers_are_those_of_the_parts() -> None:
    described = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9", gpus_per_node=4, env={"NCCL_PROTO": "^LL"})
    scenario = Scenario("2.28.9", 2, "dgx-h100", gpus_per_node=4, environment={"NCCL_PROTO": "^LL"})
    behind = Selection(scenario.communicator())
    assert described.ranks == 8
    assert (described.tables.latency_us == behind.tables.latency_us).all()
    assert (described.cost_table("reduce_scatter", SIZES, **WORDS) == behind.cost_table(CALL, SIZES)).all()
    picks, own = described.pick("ReduceScatter", SIZES, **WORDS), behind.pick(CALL, SIZES)
    edges, ranges = described.edges("reduce-scatter", **WORDS, high=1 << 24), launches(behind, CALL, high=1 << 24)
    for name in ("algorithm", "protocol", "channels", "threads"):
        assert (getattr(picks, name) == getattr(own, name)).all()
        assert (getattr(edges, name) == getattr(ranges, name)).all()
    assert (edges.from_bytes == ranges.from_bytes).all()


def test_the_release_is_the_newest_unless_one_is_asked_for() -> None:
    assert tuner.communicator("dgx-h100").scenario.nccl == release.names()[-1]
    assert tuner.communicator("dgx-h100", nccl="2.18.1").scenario.nccl == "2.18.1"


@pytest.mark.parametrize("said", [2.28, "v2.28.9-1", (2, 28, 9), 22809, "2.28"])
def test_a_release_may_be_said_as_others_do(said: Any) -> None:
    assert tuner.communicator("dgx-h100", nccl=said).scenario.nccl == "2.28.9"


def test_2_30_is_no_2_3() -> None:
    said: Any = 2.30
    assert tuner.communicator("dgx-h100", nccl=said).scenario.nccl == "2.30.7"


def test_sizes_may_be_words() -> None:
    one = tuner.communicator("dgx-h100", nccl="2.28.9")
    words: Any = ["1K", "1M..4M"]
    assert one.pick("allreduce", words).bytes.tolist() == [1 << 10, 1 << 20, 1 << 21, 1 << 22]
    with pytest.raises(BadInput, match="size 'much'"):
        one.pick("allreduce", "much")


def test_notebooks_get_tables() -> None:
    one = tuner.communicator("dgx-h100", nccl="2.28.9")
    picks = one.pick("allreduce", [1 << 20, 1 << 30])._repr_html_()
    assert picks.count("<tr>") == 3
    assert '<td style="text-align: right">1,073,741,824</td>' in picks or ">1073741824<" in picks
    explained = one.explain("allreduce", 1 << 20)
    shown = explained._repr_html_()
    assert "AllReduce of 1 MiB: Ring/LL" in shown
    assert shown.count("<tr>") == 2 + len(explained.slower)
    many = one.edges("allreduce")
    assert many._repr_html_().endswith(f"<p>and {len(many) - 20:,} more rows</p>")


def test_what_is_unknown_is_said() -> None:
    with pytest.raises(UnknownMachine, match="dgx-h101"):
        tuner.communicator("dgx-h101")
    with pytest.raises(UnknownRelease, match=r"2\.17\.1"):
        tuner.communicator("dgx-h100", nccl="2.17.1")
    with pytest.raises(BadInput, match="unknown type 'halb'; valid: int8"):
        tuner.communicator("dgx-h100").pick("allreduce", 8, dtype="halb")
    with pytest.raises(AttributeError, match="communicator"):
        tuner.comunicator  # noqa: B018


def test_numbers_are_pythons_or_numpys() -> None:
    nodes: Any = np.int64(2)
    gpus: Any = np.int8(4)
    described = tuner.communicator("dgx-h100", nodes=nodes, gpus_per_node=gpus, nccl="2.28.9")
    assert described.ranks == 8
    ends: tuple[Any, Any] = np.int64(8), np.uint32(1 << 20)
    edges = described.edges("allreduce", low=ends[0], high=ends[1])
    assert (edges.from_bytes[0], edges.to_bytes[-1]) == ends


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"nodes": 2.0}, "nodes 2.0 is not a whole number"),
        ({"nodes": True}, "nodes True is not a whole number"),
        ({"nodes": 1 << 21}, "2097152 nodes: valid are 1 to 1048576"),
        ({"gpus_per_node": "4"}, "gpus_per_node '4' is not a whole number"),
        ({"env": "NCCL_ALGO=Ring"}, "env 'NCCL_ALGO=Ring': give a dictionary"),
        ({"env": {"NCCL_MAX_NCHANNELS": 8.0}}, "NCCL_MAX_NCHANNELS 8.0 is not a whole number"),
    ],
)
def test_what_is_no_number_and_no_dictionary_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        tuner.communicator("dgx-h100", **said)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ({"low": 8.5}, "low 8.5 is not a whole number"),
        ({"low": -8, "high": 8}, "sizes from -8 to 8 bytes: valid are 1 to 2**62"),
        (
            {"low": 10, "high": 5},
            "sizes from 10 to 5 bytes: valid are 1 to 2**62, and the first may not be above the last",
        ),
        ({"high": 1 << 70}, f"to {1 << 70} bytes: valid are 1 to 2**62"),
        ({"low": 1 << 60, "high": 1 << 61}, f"sizes from {1 << 60} bytes on: NCCL accepts at most 979199963693056"),
    ],
)
def test_ends_that_are_none_are_said(ends: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        tuner.communicator("dgx-h100", nccl="2.28.9").edges("allreduce", **ends)


def test_a_variable_may_be_a_number() -> None:
    few = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9", env={"NCCL_MAX_NCHANNELS": 4})
    assert few.pick("broadcast", 1 << 28).channels == 4
    assert repr(few) == "<Communicator: 2 x dgx-h100, 8 GPUs each, NCCL 2.28.9, NCCL_MAX_NCHANNELS=4>"


def test_no_sizes_have_no_picks() -> None:
    described = tuner.communicator("dgx-h100", nccl="2.28.9")
    assert len(described.pick("allreduce", []).to_pandas()) == 0
    assert described.cost_table("allreduce", []).shape == (0, 7, 3)


def test_help_shows_the_api() -> None:
    assert "communicator(machine" in pydoc.render_doc(tuner, renderer=pydoc.plaintext)  # type: ignore[attr-defined]


def test_frames_have_bandwidths_and_the_runner_up() -> None:
    found = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9").pick("allreduce", SIZES)
    frame = found.to_pandas()
    table_us = found.selection.cost_table(found.request, SIZES)
    for row in range(len(SIZES)):
        ranked = np.sort(table_us[row][table_us[row] >= 0])
        assert frame["time_us"][row] == ranked[0]
        assert frame["runner_up_time_us"][row] == ranked[1]
    assert np.allclose(frame["algbw_gbs"], SIZES / found.time_us / 1000)
    assert np.allclose(frame["busbw_gbs"], frame["algbw_gbs"] * 2 * 15 / 16)
    assert (
        repr(found)
        == "<CallPicks: AllReduce, float32 sum, 3 sizes, 8 B to 1 GiB: Tree/LL, Tree/LL128, NVLSTree/Simple>"
    )


def test_without_another_combination_there_is_no_runner_up() -> None:
    alone = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    frame = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9", env=alone).pick("allreduce", SIZES).to_pandas()
    assert frame["runner_up_algorithm"].isna().all()
    assert frame["runner_up_time_us"].isna().all()


def test_nodes_may_differ_and_words_that_are_none_are_refused() -> None:
    mixed = tuner.communicator(node=["dgx-h100:8", "dgx-a100:4x2"], nccl="2.28.9")
    assert mixed.ranks == 16
    with pytest.raises(BadInput, match="node describes all nodes"):
        tuner.communicator("dgx-h100", node=["dgx-h100"])
    wrong: dict[str, Any] = {"layer": "x"}
    with pytest.raises(BadInput, match="unknown layer: valid are machine, topology"):
        tuner.communicator("dgx-h100", **wrong)
    with pytest.raises(BadInput, match="unknown layer: valid are dtype, op, buffers"):
        mixed.pick("allreduce", 8, **wrong)


def test_explain_and_diff_are_those_of_the_analysis() -> None:
    before, after = (tuner.communicator("dgx-h100", nodes=2, nccl=nccl) for nccl in ("2.22.3", "2.25.1"))
    assert before.explain("allreduce", 1 << 20) == explain(before.scenario, request("allreduce"), 1 << 20)
    changes = before.diff(after, "broadcast")
    assert list(changes) == diff(Side(before.scenario), Side(after.scenario), request("broadcast"))
    assert changes.to_polars()["before_protocol"].to_list() == [each.before.name.split("/")[1] for each in changes]
    assert repr(changes) == f"<PickChanges: {len(changes)} of PickChange>"


def test_what_the_package_offers_is_there() -> None:
    assert all(callable(getattr(tuner, name)) for name in tuner.__all__)

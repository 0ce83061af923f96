"""Frames hold what the arrays hold, with NCCL's words; without pandas or polars one line says what is missing."""

import sys
from typing import Any

import numpy as np
import pandas
import polars
import pytest

import tuner
from tuner.answers.choices import choices
from tuner.base.errors import BadInput
from tuner.base.frames import Costs, Framed
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.request import Request
from tuner.scenario import Scenario

SIZES = np.array([8, 65536, 1 << 20, 1 << 28], np.uint64)
H100 = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")


def both(framed: Framed) -> tuple[Any, Any]:
    pandas_frame, polars_frame = framed.to_pandas(), framed.to_polars()
    assert isinstance(pandas_frame, pandas.DataFrame)
    assert isinstance(polars_frame, polars.DataFrame)
    assert list(pandas_frame.columns) == polars_frame.columns
    return pandas_frame, polars_frame


def test_picks_are_rows() -> None:
    picks = H100.pick("allreduce", SIZES)
    for frame in both(picks):
        assert list(frame["bytes"]) == SIZES.tolist()
        assert list(frame["algorithm"]) == [Algorithm(each).name for each in picks.algorithm]
        assert list(frame["protocol"]) == [Protocol(each).name for each in picks.protocol]
        for name in ("channels", "threads", "time_us"):
            assert list(frame[name]) == list(getattr(picks, name))
    assert picks.to_pandas()["time_us"].dtype == picks.to_polars()["time_us"].to_numpy().dtype == np.float32


def test_edges_are_rows() -> None:
    edges = H100.edges("allreduce")
    for frame in both(edges):
        assert len(frame) == len(edges) > 50
        assert list(frame["from_bytes"][1:]) == [last + 1 for last in frame["to_bytes"][:-1]]
        assert list(frame["protocol"]) == [Protocol(each).name for each in edges.protocol]
        assert list(frame["channels"]) == edges.channels.tolist()


def test_words_are_categories() -> None:
    picks = H100.pick("allreduce", SIZES)
    names = [algorithm.name for algorithm in Algorithm]
    assert picks.to_pandas()["algorithm"].cat.categories.tolist() == names
    assert picks.to_polars()["algorithm"].dtype == polars.Enum(names)


def test_a_cost_table_has_a_row_for_every_candidate() -> None:
    table = H100.cost_table("allreduce", SIZES)
    for frame in both(Costs(SIZES, table)):
        assert len(frame) == (table >= 0).sum() == len(SIZES) * 7
        rows = zip(frame["bytes"], frame["algorithm"], frame["protocol"], frame["time_us"], strict=True)
        for size, algorithm, protocol, time_us in rows:
            row = SIZES.tolist().index(size)
            assert table[row, Algorithm[algorithm], Protocol[protocol]] == np.float32(time_us)
    assert len(Costs(8, H100.cost_table("allreduce", 8)).to_polars()) == 7


def test_a_cost_table_of_other_sizes_is_refused() -> None:
    with pytest.raises(BadInput, match=r"shape \(4, 7, 3\); valid: \[3 sizes\]"):
        Costs(SIZES[:3], H100.cost_table("allreduce", SIZES)).to_pandas()


def test_tables_have_a_row_for_every_cell() -> None:
    tables = H100.tables
    for frame in both(tables):
        assert len(frame) == len(Collective) * len(ALGO_PROTOS)
        rows = zip(*(frame[name] for name in frame.columns), strict=True)
        for collective, algorithm, protocol, latency_us, bandwidth_gbs, threads, threshold, reason in rows:
            algo_proto = Algorithm[algorithm], Protocol[protocol]
            at = Collective[collective], *algo_proto
            assert (latency_us, bandwidth_gbs) == (tables.latency_us[at], tables.bandwidth_gbs[at])
            assert (threads, threshold) == (tables.max_threads[algo_proto], tables.thread_thresholds_bytes[algo_proto])
            assert (None if reason is None or reason != reason else reason) == tables.reasons.get(at)


def test_choices_are_rows_and_nothing_is_absent() -> None:
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
    sizes = np.array([8, 1 << 62], np.uint64)
    found = choices(scenario, Request(Collective.AllReduce, DataType.float32, Op.sum), sizes, [2, 3])
    for frame in both(found):
        assert list(frame["nodes"]) == [2, 2, 3, 3]
        assert list(frame["bytes"]) == [8, 1 << 62] * 2
        assert [name == "Tree" for name in frame["algorithm"]] == [True, False] * 2
    assert found.to_pandas()["protocol"].isna().tolist() == [False, True] * 2
    assert found.to_polars()["protocol"].is_null().to_list() == [False, True] * 2


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadInput, match=f"no {package} here; 'pip install {package}' installs it"):
        getattr(H100.pick("allreduce", 8), f"to_{package}")()

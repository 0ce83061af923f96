"""The code for GPUs, as it is, under the real libnccl and a simulated CUDA."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.available_releases import HERE
from tests.support.double.backend import Double
from tests.support.double.machine import Planted
from tests.support.double.settings import DoubleSettings, Fault, FaultKind
from tuner import release
from tuner.base.errors import BadInput, BadTable
from tuner.base.names import AlgoProto, Algorithm, Collective, DataType, Op, Protocol
from tuner.bench.backend import Options
from tuner.scenario import Scenario
from tuner.times.measured.header import from_record, scenario_of, to_record
from tuner.times.measured.samples import Combination, Point

AR, AG, RS = Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter
FIVE = (Collective.Broadcast, Collective.Reduce, AG, RS, AR)
RING_LL = Combination(Algorithm.Ring, Protocol.LL)
TREE_LL = Combination(Algorithm.Tree, Protocol.LL)
NCCL = "2.28.9"
EXACT: dict[str, Any] = {"noise": 0.0}

pytestmark = pytest.mark.live


def settings(nccl: str = NCCL, gpus: int = 2, **changed: Any) -> DoubleSettings:
    return DoubleSettings(Scenario(nccl, 1, machine="dgx-h100", gpus_per_node=gpus), **{**EXACT, **changed})


@contextmanager
def opened(folder: Path, planned: DoubleSettings, limit_s: float = 20.0) -> Iterator[Double]:
    with closing(Double(planned, Options(topology=folder / "topology.xml", limit_s=limit_s))) as double:
        yield double


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Double]:
    """Two GPUs; each test leaves them as they were."""
    with opened(tmp_path_factory.mktemp("pair"), settings()) as double:
        yield double


def said_by_the_log(nccl: str, requested: Combination | None, launched: Combination) -> Combination | None:
    since = release.names()[release.names().index(nccl) :]
    if "2.23.4" not in since:
        return launched
    return launched.plain if "2.21.5" not in since or ("2.19.3" not in since and requested is None) else None


@pytest.mark.parametrize("nccl", [name for name in HERE if name not in ("2.18.1", "2.18.3")])
def test_what_is_forced_is_launched_checked_and_takes_the_planted_time(tmp_path: Path, nccl: str) -> None:
    planned = settings(nccl)
    truth = Planted(planned).truth(2)
    with opened(tmp_path, planned) as double:
        assert double.release == nccl
        for point in (Point(collective, size) for collective in FIVE for size in (4096, 4 << 20)):
            offered = double.combinations(point)
            assert {each.algo_proto for each in offered} >= {RING_LL.algo_proto}
            for requested in (None, *offered):
                run = double.run(point, requested, 2)
                ((called, launched),) = double.launched
                assert called == point
                assert requested is None or launched.algo_proto == requested.algo_proto
                true_us = truth.time_us(point, launched)
                assert run.times_us == pytest.approx((true_us, true_us), rel=1e-5)
                assert (run.executed, run.wrong) == (said_by_the_log(nccl, requested, launched), 0)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", FIVE, ids=lambda collective: collective.name)
def test_results_are_right_in_place_and_of_any_size(pair: Double, collective: Collective, in_place: bool) -> None:
    for size in (8, 120, 4096, 3 << 20, 1 << 30):
        assert pair.run(Point(collective, size, in_place=in_place), RING_LL, 1).wrong == 0


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        (DataType.float16, Op.sum),
        (DataType.bfloat16, Op.prod),
        (DataType.int8, Op.max),
        (DataType.uint64, Op.min),
        (DataType.float64, Op.sum),
    ],
    ids=lambda each: each.name,
)
def test_types_and_operations(pair: Double, dtype: DataType, op: Op) -> None:
    for collective in (AR, RS):
        assert pair.run(Point(collective, 1 << 20, dtype, op), RING_LL, 1).wrong == 0


def test_what_is_not_measured_on_gpus(pair: Double) -> None:
    with pytest.raises(BadInput, match=r"^float8e4m3 is not measured on GPUs; valid: "):
        pair.combinations(Point(AR, 1 << 20, DataType.float8e4m3))


def test_what_cannot_run_is_refused(pair: Double) -> None:
    complaint = "^CollNetDirect/Simple cannot run AllReduce of 4096 bytes here$"
    with pytest.raises(BadInput, match=complaint):
        pair.run(Point(AR, 4096), Combination(Algorithm.CollNetDirect, Protocol.Simple), 1)


def test_sizes_that_are_no_whole_elements_and_those_that_do_not_fit(tmp_path: Path) -> None:
    with opened(tmp_path, settings()) as double:
        complaint = (
            "^100 bytes are not a whole number of float32 elements for AllGather on 2 ranks: give multiples of 8$"
        )
        assert double.combinations(Point(AR, 64 << 30)) == []
        with pytest.raises(BadInput, match=complaint):
            double.run(Point(AG, 100), None, 1)


def test_channels_are_forced(pair: Double) -> None:
    for channels in (1, 4, 2):
        run = pair.run(Point(AR, 64 << 20), Combination(Algorithm.Ring, Protocol.Simple, channels), 1)
        assert [launched.channels for _, launched in pair.launched] == [channels]
        assert run.executed == Combination(Algorithm.Ring, Protocol.Simple, channels)


def test_a_table_decides_where_nothing_is_forced(pair: Double) -> None:
    point = Point(AR, 1 << 20)

    def launched(requested: Combination | None) -> AlgoProto:
        pair.run(point, requested, 1)
        ((_, combination),) = pair.launched
        return combination.algo_proto

    own = launched(None)
    pair.use_table("nccl-tuner-table 1\nallreduce -> tree/ll\n")
    assert launched(None) == TREE_LL.algo_proto != own
    assert launched(RING_LL) == RING_LL.algo_proto
    assert launched(None) == TREE_LL.algo_proto
    with pytest.raises(BadTable, match=r"^table: 2: unknown protocol 'l' "):
        pair.use_table("nccl-tuner-table 1\nallreduce -> ring/l\n")
    pair.use_table(None)
    assert launched(None) == own


def test_calls_in_a_graph_take_as_long_and_are_launched_together(pair: Double) -> None:
    times = {}
    for graph in (False, True):
        run = pair.run(Point(AR, 8 << 20, graph=graph), RING_LL, 3)
        times[graph] = run.times_us
        ((_, count),) = ((each, number) for each, number in pair.launched.items())
        assert count == 2 * (1 + 5 + 3 * 5), "by both ranks: the one that is checked, those before the first time"
    assert times[True] == pytest.approx(times[False], rel=1e-5)


def test_the_slowest_rank_counts(tmp_path: Path) -> None:
    planned = settings(faults=(Fault(FaultKind.slow, rank=1),))
    point = Point(AR, 8 << 20)
    with opened(tmp_path, planned) as double:
        run = double.run(point, RING_LL, 2)
        ((_, launched),) = double.launched
    true_us = Planted(planned).truth(2).time_us(point, launched)
    assert run.times_us == pytest.approx((2 * true_us, 2 * true_us), rel=1e-5)


def test_what_the_host_takes_counts_outside_of_graphs(tmp_path: Path) -> None:
    planned, point = settings(host_us=40.0), Point(AR, 1024)
    true_us = Planted(planned).truth(2).time_us(point, Combination(Algorithm.Ring, Protocol.LL, 1))
    assert true_us < 20.0
    options = Options(topology=tmp_path / "topology.xml", graphs_below_bytes=0)
    with closing(Double(planned, options)) as double:
        plain, captured = (double.run(replace(point, graph=graph), RING_LL, 3) for graph in (False, True))
    assert min(plain.times_us) > 79.0, "two ranks' launches"
    assert max(captured.times_us) < 1.5 * true_us, "two launches of graphs, of 20 calls each"
    assert (plain.host_us, captured.host_us) == (pytest.approx(80.0), pytest.approx(4.0)), "on the virtual clock"


def test_the_header_says_what_is_planted(pair: Double) -> None:
    header = pair.describe()
    assert (header.backend, header.nccl, header.ranks, header.gpu) == ("double", NCCL, 2, "simulated GPU sm_90")
    record = to_record(header)
    assert record["double"] == pair.settings.record()
    assert from_record(record) == header
    assert header.topology_xml is not None
    assert "<gpu " in header.topology_xml
    assert scenario_of(header).communicator().ranks == 2

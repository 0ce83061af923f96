"""The code for GPUs, as it is, under the real libnccl and a simulated CUDA."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.available_releases import HERE
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.measure.double.backend import Double
from tuner.measure.double.planted import Planted
from tuner.measure.double.settings import DoubleSettings
from tuner.measure.gpu.options import Options
from tuner.measure.records.samples import Combination, Point
from tuner.scenario import Scenario

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


@pytest.mark.parametrize("nccl", [name for name in HERE if name not in ("2.18.1", "2.18.3")])
def test_what_is_forced_is_launched_checked_and_takes_the_planted_time(tmp_path: Path, nccl: str) -> None:
    planned = settings(nccl)
    truth = Planted(planned).truth
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
                assert (run.executed, run.wrong) == (launched, 0)

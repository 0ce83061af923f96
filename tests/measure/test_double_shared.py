"""Ranks that share a GPU of the double, in one process and in several."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.double.backend import Double
from tests.support.double.machine import Planted
from tests.support.double.settings import DoubleEnvironment, DoubleSettings
from tuner import release
from tuner.base.errors import BadInput, MeasuringFailed
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.bench.backend import Options
from tuner.scenario import Scenario
from tuner.times.measured.header import scenario_of
from tuner.times.measured.samples import Combination, Point

NCCL = next(name for name in HERE if release.load(name).environment.shares_gpus is not None)
POINT = Point(Collective.AllReduce, 8 << 20)
RING_SIMPLE = Combination(Algorithm.Ring, Protocol.Simple)
MULTIPROCESSORS = 132

pytestmark = pytest.mark.live


def settings(ranks_per_gpu: int, process_per_rank: bool = False, **environment: str) -> DoubleSettings:
    scenario = Scenario(
        NCCL, 1, machine="dgx-h100", gpus_per_node=1, ranks_per_gpu=ranks_per_gpu, environment=environment or None
    )
    return DoubleSettings(scenario, noise=0.0, process_per_rank=process_per_rank)


@pytest.mark.parametrize(("ranks_per_gpu", "process_per_rank"), [(4, False), (2, True)])
def test_ranks_that_share_a_gpu(tmp_path: Path, ranks_per_gpu: int, process_per_rank: bool) -> None:
    planned = settings(ranks_per_gpu, process_per_rank)
    with closing(Double(planned, Options(topology=tmp_path / "topology.xml"))) as double:
        assert (double.ranks, double.header.ranks_per_gpu) == (ranks_per_gpu, ranks_per_gpu)
        described = scenario_of(double.header)
        assert described.ranks == ranks_per_gpu
        truth = Planted(planned).truth(ranks_per_gpu, described.environment)
        for requested in (None, *double.combinations(POINT)):
            run = double.run(POINT, requested, 1)
            ((_, launched),) = double.launched
            assert launched.channels * ranks_per_gpu <= MULTIPROCESSORS, "all blocks run at once"
            assert (run.executed, run.wrong) == (launched, 0)
            assert run.times_us == pytest.approx((truth.time_us(POINT, launched),), rel=1e-5)


def test_more_blocks_than_the_gpu_runs_at_once_hang(tmp_path: Path) -> None:
    options = Options(topology=tmp_path / "topology.xml", limit_s=2.0)
    with (
        closing(Double(settings(4, NCCL_MAX_CTAS="64", NCCL_MIN_CTAS="64"), options)) as double,
        pytest.raises(MeasuringFailed, match=r"^a collective was not done within 2 s: a rank is missing or hangs$"),
    ):
        double.run(POINT, RING_SIMPLE, 1)


def test_releases_that_refuse_it() -> None:
    with pytest.raises(BadInput, match=r"NCCL 2\.30\.3 and later$"):
        DoubleEnvironment(DoubleSettings(Scenario("2.28.9", 1, machine="dgx-h100", gpus_per_node=1, ranks_per_gpu=2)))

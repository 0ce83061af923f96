"""The double with a process for each rank: started by itself, by another command, and by mpirun."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.double.backend import Double
from tests.support.double.machine import Planted
from tests.support.double.settings import CHECKOUT, DoubleSettings, Fault, FaultKind
from tuner.base.errors import MeasuringFailed
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.bench.backend import Options
from tuner.scenario import Scenario
from tuner.times.measured.samples import Combination, Point

NCCL = "2.28.9"
BINARIES = Path(sys.executable).parent
TREE_LL = Combination(Algorithm.Tree, Protocol.LL)
RING_SIMPLE = Combination(Algorithm.Ring, Protocol.Simple)

pytestmark = pytest.mark.live


def settings(*faults: Fault, nodes: int = 1) -> DoubleSettings:
    scenario = Scenario(NCCL, nodes, machine="dgx-h100", gpus_per_node=2 // nodes)
    return DoubleSettings(scenario, noise=0.0, faults=faults, process_per_rank=True)


def options(folder: Path) -> Options:
    return Options(topology=folder / "topology.xml", limit_s=30.0)


@pytest.mark.parametrize("nodes", [1, 2])
def test_processes_measure_what_one_would(tmp_path: Path, nodes: int) -> None:
    planned = settings(nodes=nodes)
    truth = Planted(planned).truth(2)
    with closing(Double(planned, options(tmp_path))) as double:
        assert (double.ranks, double.header.launcher) == (2, "torchrun")
        assert double.header.scenario is not None
        assert double.header.scenario.nodes == nodes
        for collective in Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter:
            for in_place in (False, True):
                point = Point(collective, 1 << 20, in_place=in_place)
                run = double.run(point, RING_SIMPLE, 1)
                ((_, launched),) = double.launched
                assert (launched.algo_proto, run.executed, run.wrong) == (RING_SIMPLE.algo_proto, launched, 0)
                assert run.times_us == pytest.approx((truth.time_us(Point(collective, 1 << 20), launched),), rel=1e-5)


def test_the_slowest_and_all_wrong_results_count_and_tables_are_for_all(tmp_path: Path) -> None:
    planned = settings(Fault(FaultKind.slow, rank=1), Fault(FaultKind.wrong, rank=1))
    point = Point(Collective.AllReduce, 1 << 20)
    with closing(Double(planned, options(tmp_path))) as double:
        for table, requested in ((None, RING_SIMPLE), ("nccl-tuner-table 1\nallreduce -> tree/ll\n", None)):
            double.use_table(table)
            run = double.run(point, requested, 1)
            ((_, launched),) = double.launched
            assert launched.algo_proto == (requested or TREE_LL).algo_proto, "else the ranks would wait for each other"
            true_us = Planted(planned).truth(2).time_us(point, launched)
            assert (run.times_us, run.wrong) == (pytest.approx((2 * true_us,), rel=1e-5), 1)


def test_a_rank_that_is_killed_ends_all(tmp_path: Path) -> None:
    with closing(Double(settings(Fault(FaultKind.killed, rank=1, after=3)), options(tmp_path))) as double:
        with pytest.raises(MeasuringFailed, match=r"^rank 1 is gone: it ended or its node did; "):
            double.run(Point(Collective.AllReduce, 1 << 20), RING_SIMPLE, 1)
        with pytest.raises(MeasuringFailed, match=r"^the communicator has ended$"):
            double.combinations(Point(Collective.AllReduce, 1 << 10))


def test_the_error_of_another_rank_is_its_own(tmp_path: Path) -> None:
    fault = Fault(FaultKind.error, rank=1, after=3, error="cudaErrorNvlinkUncorrectable")
    complaint = r"^rank 1: GPU 1: cudaErrorNvlinkUncorrectable: uncorrectable NVLink error"
    with closing(Double(settings(fault), options(tmp_path))) as double, pytest.raises(MeasuringFailed, match=complaint):
        double.run(Point(Collective.AllReduce, 1 << 20), RING_SIMPLE, 1)


def test_a_launch_is_refused_at_its_rank_alone(tmp_path: Path) -> None:
    fault = Fault(FaultKind.launch_error, rank=1, after=3, error="cudaErrorLaunchOutOfResources")
    complaint = r"^rank 1: ncclGroupEnd returned 1 .*Cuda failure 701 .*, cudaErrorLaunchOutOfResources: "
    with closing(Double(settings(fault), options(tmp_path))) as double, pytest.raises(MeasuringFailed, match=complaint):
        double.run(Point(Collective.AllReduce, 1 << 20), RING_SIMPLE, 1)


def on_the_double(folder: Path, *words: str, env: dict[str, str] | None = None) -> Any:
    command = [sys.executable, "-m", "tests.support.double", "--machine", "dgx-h100", "--gpus-per-node", "2"]
    return subprocess.run(
        [*command, "--nccl", NCCL, *words],
        cwd=folder,
        env={**(env or os.environ), "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


MEASURE = ("measure", "allreduce", "--bytes", "1M", "--rounds", "1", "--repeats", "1", "--warmup", "0")


def header(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.open().readline())
    return found


def test_any_command_finds_the_gpus(tmp_path: Path) -> None:
    command = (str(BINARIES / "nccl-tuner"), *MEASURE, "--out", "run.jsonl", "--library", "{library}")
    done = on_the_double(tmp_path, "--seed", "3", "--", *command)
    assert done.returncode == 0, done.stderr
    said = header(tmp_path / "run.jsonl")
    assert (said["backend"], said["launcher"], said["double"]["seed"]) == ("double", "none", 3)
    assert said["variables"] == {"NCCL_GRAPH_REGISTER": "0"}, "what stands for the machine is nobody's setting"


def test_a_machine_that_is_not_known(tmp_path: Path) -> None:
    done = on_the_double(tmp_path, "--machine", "dgx-h1000", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("python -m tests.support.double: no machine 'dgx-h1000'; did you mean dgx-h100?")


def test_mpirun(tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun", path=str(BINARIES))
    if mpirun is None:
        pytest.skip("no mpirun here: pip install mpich mpi4py")
    command = (str(BINARIES / "nccl-tuner"), *MEASURE, "--out", "run.jsonl", "--library", "{library}")
    done = on_the_double(tmp_path, "--process-per-rank", "--", mpirun, "-n", "2", *command)
    assert done.returncode == 0, done.stderr
    said = header(tmp_path / "run.jsonl")
    assert (said["backend"], said["launcher"], said["ranks"]) == ("double", "mpirun", 2)

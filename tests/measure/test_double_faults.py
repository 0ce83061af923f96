"""Faults that are planted in the double, and what the code for GPUs says of them."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.double import backend
from tests.support.double.backend import Double
from tests.support.double.settings import DoubleEnvironment, DoubleSettings, Fault, FaultKind
from tuner.base.errors import BadInput, BadMeasurement, MeasuringFailed
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.bench.backend import Options
from tuner.scenario import Scenario
from tuner.times.measured.header import Header
from tuner.times.measured.samples import Combination, Point

NCCL = "2.28.9"
POINT = Point(Collective.AllReduce, 64 << 10)
RING_LL, TREE_LL = Combination(Algorithm.Ring, Protocol.LL), Combination(Algorithm.Tree, Protocol.LL)
TREE_LL128 = Combination(Algorithm.Tree, Protocol.LL128)
BLOCK = 1 + 20 + 20 * 2  # collectives of a rank: the one that is checked, those of the first graph, of two repeats

pytestmark = pytest.mark.live


def settings(*faults: Fault, **changed: Any) -> DoubleSettings:
    return DoubleSettings(Scenario(NCCL, 1, machine="dgx-h100", gpus_per_node=2), noise=0.0, faults=faults, **changed)


@contextmanager
def opened(folder: Path, planned: DoubleSettings, limit_s: float = 20.0) -> Iterator[Double]:
    with closing(Double(planned, Options(topology=folder / "topology.xml", limit_s=limit_s))) as double:
        yield double


def test_a_collective_that_hangs(tmp_path: Path) -> None:
    with opened(tmp_path, settings(Fault(FaultKind.hang, rank=1, after=30)), limit_s=2.0) as double:
        with pytest.raises(
            MeasuringFailed, match=r"^a collective was not done within 2 s: a rank is missing or hangs$"
        ):
            double.run(POINT, RING_LL, 2)
        with pytest.raises(MeasuringFailed, match=r"^the communicator has ended$"):
            double.run(POINT, RING_LL, 2)


@pytest.mark.parametrize("name", ["cudaErrorIllegalAddress", "cudaErrorECCUncorrectable"])
def test_an_error_of_cuda_is_named(tmp_path: Path, name: str) -> None:
    planned = settings(Fault(FaultKind.error, rank=1, after=30, error=name))
    with opened(tmp_path, planned) as double, pytest.raises(MeasuringFailed, match=rf"^GPU [01]: {name}: "):
        double.run(POINT, RING_LL, 2)


def test_a_launch_that_cuda_refuses(tmp_path: Path) -> None:
    planned = settings(Fault(FaultKind.launch_error, after=5, error="cudaErrorLaunchOutOfResources"))
    complaint = r"^ncclGroupEnd returned 1 \(unhandled cuda error.* 701 .*, cudaErrorLaunchOutOfResources: too many"
    with opened(tmp_path, planned) as double, pytest.raises(MeasuringFailed, match=complaint):
        double.run(POINT, RING_LL, 2)


def test_results_that_are_wrong(tmp_path: Path) -> None:
    with opened(tmp_path, settings(Fault(FaultKind.wrong, rank=1, after=BLOCK))) as double:
        assert double.run(POINT, RING_LL, 2).wrong == 0
        assert double.run(POINT, RING_LL, 2).wrong == 1


def test_a_combination_that_is_silently_replaced(tmp_path: Path) -> None:
    with opened(tmp_path, settings(Fault(FaultKind.replaced, forced="tree/ll", instead="ring/ll"))) as double:
        run = double.run(POINT, TREE_LL, 2)
        ((_, launched),) = double.launched
        assert launched.algo_proto == RING_LL.algo_proto, "by the record of launches"
        assert run.executed == launched, "and NCCL's log says so"
        assert double.run(POINT, RING_LL, 2).executed == launched
        kept = double.run(POINT, TREE_LL128, 2).executed
        assert kept is not None
        assert kept.algo_proto == TREE_LL128.algo_proto, "LL128 is another protocol than LL"


def test_a_log_that_says_otherwise_than_what_was_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, settings()) as double:
        answered = double._workers.ask

        def lying(message: object, doing: str) -> Any:
            answer = answered(message, doing)
            launched = dict.fromkeys([(POINT, TREE_LL)] if answer.launched else [], 1)
            return type(answer)(answer.result, answer.error, launched)

        monkeypatch.setattr(double._workers, "ask", lying)
        complaint = r"^NCCL's log says that Ring/LL channels=\d+ ran, and it launched Tree/LL$"
        with pytest.raises(MeasuringFailed, match=complaint):
            double.run(POINT, RING_LL, 2)


def test_a_process_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    planned = settings(Fault(FaultKind.killed, rank=1, after=10))
    complaint = r"^the double's process was killed by SIGKILL \(run\)"
    with opened(tmp_path, planned) as double, pytest.raises(MeasuringFailed, match=complaint):
        double.run(POINT, RING_LL, 2)
    assert not list(temporary.iterdir()), "nothing is left behind"


def test_a_process_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "START_S", 0.0)
    complaint = r"^the double's process did not answer within 0\.01 s \(opening\), and was ended$"
    with pytest.raises(MeasuringFailed, match=complaint), opened(tmp_path, settings(), limit_s=0.01):
        pass


def test_a_double_that_has_ended(tmp_path: Path) -> None:
    with opened(tmp_path, settings()) as double:
        double.close()
        with pytest.raises(MeasuringFailed, match=r"^the double's process has ended$"):
            double.combinations(POINT)


def test_what_cannot_be_a_double() -> None:
    two = Scenario(NCCL, 2, machine="dgx-h100")
    with pytest.raises(BadInput, match=r"^one process has the GPUs of one node, not of 2; valid: process_per_rank=$"):
        DoubleEnvironment(DoubleSettings(two))
    late = settings(Fault(FaultKind.hang, rank=9))
    with pytest.raises(BadInput, match=r"^fault 'hang:rank=9': there are 2 ranks; valid: rank=0 to 1$"):
        DoubleEnvironment(late)
    others = Scenario(NCCL, 1, machine="dgx-h100", others=(Scenario(NCCL, 1, machine="dgx-a100"),))
    with pytest.raises(BadInput, match=r"^backend= double: nodes that differ are not simulated; valid: nodes that"):
        DoubleEnvironment(DoubleSettings(others))
    with pytest.raises(BadMeasurement, match=r"^the header does not say how to build the double again: KeyError"):
        backend.from_header(Header(backend="double"))

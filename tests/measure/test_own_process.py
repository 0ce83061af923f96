"""A backend in a process of its own: what it answers, begun anew, and what its death is called."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tuner.base.errors import BadInput, MeasuringFailed
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.bench.exchange import OwnProcess, serve
from tuner.bench.loop import Loop, Settings, Wanted, tasks
from tuner.bench.simulated import Simulated
from tuner.scenario import Scenario
from tuner.times.measured.samples import Combination, Point, SampleBlock

CASE = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
POINT = Point(Collective.AllReduce, 1 << 20)
RING = Combination(Algorithm.Ring, Protocol.Simple)


def test_it_answers_as_the_backend_in_it() -> None:
    own = Simulated(CASE, 7)
    with closing(OwnProcess(partial(Simulated, CASE, 7))) as there:
        assert there.ranks == own.ranks == 16
        assert there.describe() == own.describe()
        assert there.combinations(POINT) == own.combinations(POINT)
        assert there.run(POINT, RING, 5) == own.run(POINT, RING, 5)
        assert there.now_s() == own.now_s() > 0


def test_it_begins_anew_with_the_table_that_is_in_use() -> None:
    with closing(OwnProcess(partial(Simulated, CASE, 7))) as there:
        first = there.run(POINT, RING, 5)
        there.use_table("nccl-tuner-table 1\nallreduce -> ring/ll\n")
        assert there.renew()
        assert there.run(POINT, RING, 5) == first  # a process without a past
        executed = there.run(POINT, None, 1).executed
        assert executed is not None
        assert executed.plain == Combination(Algorithm.Ring, Protocol.LL)


def test_errors_and_death_are_said() -> None:
    there = OwnProcess(partial(Simulated, CASE, 7))
    with pytest.raises(BadInput, match="cannot run AllReduce"):
        there.run(POINT, Combination(Algorithm.PAT, Protocol.Simple), 1)
    assert there.run(POINT, RING, 2).times_us
    (pid,) = there._workers.pids
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(MeasuringFailed, match=r"was killed by SIGKILL \(run\)"):
        there.run(POINT, RING, 2)
    with pytest.raises(MeasuringFailed, match="has ended"):
        there.run(POINT, RING, 2)
    there.close()
    with pytest.raises(BadInput, match="nodes that differ"):
        OwnProcess(partial(Simulated, Scenario(nccl="2.28.9", machine="dgx-h100", nodes=1, others=(CASE,)), 7))


def test_a_loop_numbers_its_processes() -> None:
    blocks: list[SampleBlock] = []
    with closing(OwnProcess(partial(Simulated, CASE, 7))) as there:
        loop = Loop(there, tasks(there, [POINT], Wanted()), Settings(rounds=8, precision=1e-6), blocks.append)
        list(loop.run())
    assert [sorted({block.round for block in blocks if block.process == number}) for number in range(3)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7],
    ]


def test_what_does_not_answer_is_ended() -> None:
    complaint = r"^the process that measures did not answer within 1 s \(opening\), and was ended$"
    with pytest.raises(MeasuringFailed, match=complaint):
        OwnProcess(partial(time.sleep, 60), limit_s=1.0)  # type: ignore[arg-type]


def test_it_goes_with_the_process_that_asks() -> None:
    """Else it would keep the GPUs, where nothing could end it."""
    script = """
import sys, time
from functools import partial
from pathlib import Path
from tuner.bench.exchange import OwnProcess, serve
from tuner.bench.simulated import Simulated
from tuner.scenario import Scenario
own = OwnProcess(partial(Simulated, Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2), 7))
print(*own._workers.pids, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        pid = int(asking.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        asking.kill()
    for _ in range(300):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    raise AssertionError("it is still there")


def test_a_rank_that_serves_does_so_until_no_more_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(partial(bool, 0))
    due = iter([True, True, False])
    monkeypatch.setattr("tuner.bench.exchange._served", lambda opener, folder: next(due))
    serve(partial(bool, 0))
    assert list(due) == []

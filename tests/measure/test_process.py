"""What a process keeps of libnccl, and what leaves with a communicator; time limits on what hangs."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.base.errors import BadInput, MeasuringFailed
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.bench.exchange import OwnProcess, serve
from tuner.bench.gpu import process
from tuner.bench.gpu.cuda import Lane
from tuner.bench.gpu.process import within
from tuner.bench.loop import Loop, Settings, Wanted, tasks
from tuner.bench.simulated import Simulated
from tuner.oracle import library
from tuner.scenario import Scenario
from tuner.times.measured.nccl_tests import Log
from tuner.times.measured.samples import Combination, Point, SampleBlock

HERE, ELSEWHERE = Path("/a/libnccl.so.2"), Path("/b/libnccl.so.2")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_process", process._Process())


def test_variables_leave_with_their_owner_and_those_before_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.delenv("NCCL_TUNER_PLUGIN", raising=False)
    for _ in range(2):
        with process.variables(HERE, {"NCCL_DEBUG": "INFO", "NCCL_TUNER_PLUGIN": "force.so"}):
            assert (os.environ["NCCL_DEBUG"], os.environ["NCCL_TUNER_PLUGIN"]) == ("INFO", "force.so")
        assert os.environ["NCCL_DEBUG"] == "WARN"
        assert "NCCL_TUNER_PLUGIN" not in os.environ


def test_a_process_has_one_libnccl_and_one_communicator_that_measures() -> None:
    with (
        process.variables(HERE, {}),
        pytest.raises(BadInput, match=r"^another communicator of this process measures; valid: a process of its own"),
        process.variables(HERE, {}),
    ):
        pass
    complaint = r"^/b/libnccl\.so\.2: /a/libnccl\.so\.2 is in this process already; valid: a process of its own"
    with pytest.raises(BadInput, match=complaint), process.variables(ELSEWHERE, {}):
        pass
    with process.variables(HERE, {}):
        pass


def test_what_nccl_read_once_stays() -> None:
    with process.variables(HERE, {"NCCL_MAX_CTAS": "66", "NCCL_TOPO_DUMP_FILE": "one.xml"}):
        pass
    with process.variables(HERE, {"NCCL_MAX_CTAS": "66", "NCCL_TOPO_DUMP_FILE": "other.xml"}):
        pass
    for own, now in (({"NCCL_MAX_CTAS": "33"}, "33"), ({}, "unset")):
        complaint = f"^NCCL_MAX_CTAS {now}: NCCL has read it as 66 in this process; valid: a process of its own"
        with pytest.raises(BadInput, match=complaint), process.variables(HERE, own):
            pass
    assert "NCCL_MAX_CTAS" not in os.environ


def test_the_log_is_the_process_s_and_a_communicator_reads_its_own_part(tmp_path: Path) -> None:
    path = process.log(tmp_path / "kept.log")
    assert process.log() == process.log(tmp_path / "another.log") == path
    path.write_text("h:1:2 [0] misc NCCL WARN of the first\n")
    log = Log(path)
    assert log.last_warning() is None
    with path.open("a") as file:
        file.write("h:1:2 [0] misc NCCL WARN of the second\n")
    assert log.last_warning() == "of the second"


@pytest.mark.live
@pytest.mark.parametrize("name", ["2.19.3", "2.20.5", "2.28.9"])
def test_the_plugin_is_loaded_before_ranks_race_for_it(name: str, tmp_path: Path) -> None:
    if not library.cached(name).is_file():
        pytest.skip(f"no libnccl {name} here")
    script = f"""
import os
from pathlib import Path
from tuner.bench.gpu.nccl import Nccl
from tuner.plugin.forcing import Forcing
own = {{"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING", "NCCL_DEBUG_FILE": {str(tmp_path / "log")!r},
       "NCCL_TUNER_PLUGIN": Forcing().path.name}}
for _ in range(2):
    nccl = Nccl(Path({str(library.cached(name))!r}), own)
    nccl.load_tuner()
    nccl.close()
print(own.keys() & os.environ.keys() or "gone")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "gone\n"
    text = (tmp_path / "log").read_text() if (tmp_path / "log").is_file() else ""
    assert text.count("Opened tuner") == (name != "2.28.9"), "later releases lock, and load it at init"


def test_what_is_done_in_time() -> None:
    assert within(5.0, "an answer", lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        within(5.0, "a failure", lambda: 1 // 0)


def test_what_hangs_is_given_up() -> None:
    never = threading.Event()
    start_s = time.monotonic()
    complaint = r"^a step took longer than 0\.1 s and was given up: a rank is missing or hangs$"
    with pytest.raises(MeasuringFailed, match=complaint):
        within(0.1, "a step", never.wait)
    assert time.monotonic() - start_s < 30
    never.set()


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "hangs"])
def test_an_interrupt_waits_a_little_for_what_runs(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """Nobody is to end a communicator that is being called, nor to wait for what hangs."""
    monkeypatch.setattr(process, "_LET_END_S", 5.0 if ends else 0.1)
    begun, never, done = threading.Event(), threading.Event(), threading.Event()

    def step() -> None:
        begun.set()
        never.wait(1.0 if ends else 60)
        done.set()

    def interrupt() -> None:
        begun.wait()
        time.sleep(0.2)  # until the main thread waits for the step
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)  # which ends what the main thread waits in

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs behind
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            within(60.0, "a step", step)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.is_set() == ends
    never.set()


class Failed(Exception):
    def __init__(self, status: int) -> None:
        super().__init__({719: "cudaErrorLaunchFailure: unspecified launch failure"}[status])


def lane_of(status: int) -> Lane:
    """A lane whose events are in a state, as far as ``done`` asks."""

    class Device:
        def __init__(self, number: int) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *raised: object) -> None:
            pass

    nothing: Any = type("Nothing", (Exception,), {})
    cuda = SimpleNamespace(
        Device=Device,
        Stream=lambda non_blocking: None,
        Memory=lambda size: None,
        runtime=SimpleNamespace(CUDARuntimeError=Failed, eventQuery=lambda address: status),
        driver=SimpleNamespace(CUDADriverError=nothing),
        memory=SimpleNamespace(OutOfMemoryError=nothing),
        compiler=SimpleNamespace(CompileException=nothing),
    )
    return Lane(SimpleNamespace(cuda=cuda), 0)


def test_an_error_of_cuda_is_named_where_an_event_is_asked() -> None:
    mark = SimpleNamespace(ptr=1)
    assert (lane_of(0).done(mark), lane_of(600).done(mark)) == (True, False)
    lane = lane_of(719)
    complaint = "^GPU 0: cudaErrorLaunchFailure: unspecified launch failure$"
    with pytest.raises(MeasuringFailed, match=complaint), lane.current():
        lane.done(mark)


def test_a_missing_library_of_cuda_is_named() -> None:
    class DynamicLibNotFoundError(RuntimeError):
        """As cuda.pathfinder calls it."""

    lane = lane_of(0)
    said = 'Failure finding "libnvrtc.so":\nNo such file'
    with (
        pytest.raises(BadInput, match=r"^a library of CUDA is missing: .*libnvrtc\.so.*\[ctk\]") as caught,
        lane.current(),
    ):
        raise DynamicLibNotFoundError(said)
    assert "\n" not in str(caught.value)


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

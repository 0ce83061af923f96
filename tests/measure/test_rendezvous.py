"""Processes that measure together: what launchers say, meeting, and what the others say of one that died."""

import contextlib
import io
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Pipe
from random import SystemRandom
from types import SimpleNamespace

import pytest

from tests.support.double import computer
from tuner.base.errors import BadInput, MeasuringFailed
from tuner.bench.gpu.rendezvous import ALONE, RankAddress, Rendezvous, rank_address

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"}
SECRET = "only this run's"


def test_nobody_started_it() -> None:
    assert rank_address({"PATH": "/bin"}) == ALONE
    assert rank_address({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) == ALONE


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({**TORCHRUN, "WORLD_SIZE": "x"}, "torchrun's WORLD_SIZE is 'x', not a number"),
        ({"TORCHELASTIC_RUN_ID": "1"}, "torchrun's RANK is '', not a number"),
        ({**TORCHRUN, "MASTER_PORT": ""}, "torchrun's MASTER_PORT is '', not a number"),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_ADDR"}, "torchrun's MASTER_ADDR is not set: "),
        ({**SRUN, "SLURM_NTASKS": ""}, "srun's SLURM_NTASKS is '', not a number"),
    ],
)
def test_half_a_launcher_is_refused(env: dict[str, str], complaint: str) -> None:
    with pytest.raises(BadInput) as caught:
        rank_address(env)
    assert str(caught.value).startswith(complaint)


def test_torchrun_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.distributed.rendezvous", None)
    with pytest.raises(BadInput, match=r"^RANK and WORLD_SIZE are set, as torchrun does, but torch is missing: "):
        rank_address(TORCHRUN)


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        ({"PMI_RANK": "0"}, "mpirun"),
        ({"PMIX_RANK": "0"}, "mpirun"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "mpirun"),
        (SRUN, "srun"),
        ({**SRUN, "PMI_RANK": "5"}, "srun"),
    ],
)
def test_mpi_without_mpi4py(env: dict[str, str], launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(
        BadInput, match=rf"^the job was started by {launcher}, but mpi4py is missing: pip install mpi4py"
    ):
        rank_address(env)


class Comm:
    """MPI's world of this process alone, as where nothing speaks PMI with it; or of several."""

    def __init__(self, size: int) -> None:
        self.size = size

    def Get_size(self) -> int:
        return self.size

    def Get_rank(self) -> int:
        return 0

    def Split_type(self, kind: object) -> "Comm":
        return self

    def bcast(self, said: object, root: int) -> object:
        return said


def mpi(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    world = SimpleNamespace(COMM_WORLD=Comm(size), COMM_TYPE_SHARED=0)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=world))


def test_srun_without_pmi_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi(monkeypatch, 1)
    with pytest.raises(BadInput, match=r"^srun started 16 tasks, but MPI sees 1: .*: use srun --mpi=pmix or "):
        rank_address(SRUN)


def test_mpi_says_where_rank_0_is_and_a_secret_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi(monkeypatch, 16)
    one, other = rank_address(SRUN), rank_address(SRUN)
    assert (one.rank, one.world, one.launcher, one.host) == (0, 16, "srun", socket.gethostname())
    assert len(one.secret) == 64
    assert one.secret != other.secret
    assert one.secret not in repr(one)


def test_a_program_that_starts_all_ranks_hands_them_their_address() -> None:
    address = RankAddress(1, 2, 1, "torchrun", "127.0.0.1", 4711, SECRET)
    assert rank_address({**TORCHRUN, **address.handed()}) == address


def test_torchrun_s_store_says_where_rank_0_is() -> None:
    pytest.importorskip("torch", reason="no torch here")
    script = "from tuner.bench.gpu.rendezvous import own_address as a; h = a(); print(h.rank, h.host, h.port, h.secret)"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--no-python"]
    done = subprocess.run([*torchrun, sys.executable, "-c", script], capture_output=True, text=True, check=True)
    said = sorted(line.split() for line in done.stdout.splitlines())
    assert [each[0] for each in said] == ["0", "1", "2"]
    assert len({tuple(each[1:]) for each in said}) == 1


# Real processes

RANK = """
    import json, os, sys, time
    from tuner.base.errors import MeasuringFailed
    from tuner.bench.gpu.rendezvous import Rendezvous, own_address
    here = own_address()
    try:
        met = Rendezvous.meet(here)
        shared = met.share({"point": "x" * 100000} if here.rank == 0 else None)
        print(json.dumps(["shared", len(shared["point"])]), flush=True)
        print(json.dumps(["gathered", met.gather({"rank": here.rank})]), flush=True)
        ends = os.environ.get("ENDS")
        if ends == str(here.rank):
            sys.stdin.readline()
            os._exit(3)
        if ends and here.rank == 0:
            while True:
                met.check()
                time.sleep(0.01)
        elif ends:
            met.share()
        met.close()
    except MeasuringFailed as error:
        print(json.dumps(["failed", str(error)]), flush=True)
        sys.exit(1)
"""


def free_port() -> int:
    """Below those that connections get by themselves."""
    while True:
        port = SystemRandom().randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start(started: list[subprocess.Popen[str]], ranks: Sequence[int], world: int, **env: str) -> None:
    port = free_port()
    for rank in ranks:
        own = local(rank, world, port).handed() | env
        command = [sys.executable, "-c", textwrap.dedent(RANK)]
        started.append(
            subprocess.Popen(command, env=os.environ | own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )


def said(process: subprocess.Popen[str]) -> list[list[object]]:
    return [json.loads(line) for line in process.communicate(timeout=120)[0].splitlines()]


@pytest.mark.slow
def test_three_processes_say_and_hear_the_same(started: list[subprocess.Popen[str]]) -> None:
    start(started, [2, 1, 0], 3)
    by_rank = dict(zip([2, 1, 0], map(said, started), strict=True))
    assert by_rank[0] == [["shared", 100000], ["gathered", [{"rank": 0}, {"rank": 1}, {"rank": 2}]]]
    assert by_rank[1] == by_rank[2] == [["shared", 100000], ["gathered", []]]


def test_a_dead_rank_is_named_by_rank_0_and_ends_the_others(started: list[subprocess.Popen[str]]) -> None:
    start(started, [0, 1, 2], 3, ENDS="2")
    started[2].communicate("\n", timeout=120)
    assert said(started[0])[-1] == [
        "failed",
        "rank 2 is gone: it ended or its node did; its own last lines say why, and what was measured is kept",
    ]
    assert said(started[1])[-1][1].startswith("rank 0 is gone: ")  # type: ignore[attr-defined]


def test_rank_0_that_is_killed_ends_the_others(started: list[subprocess.Popen[str]]) -> None:
    start(started, [0, 1], 2, ENDS="9")
    assert started[1].stdout is not None
    assert json.loads(started[1].stdout.readline())[0] == "shared"
    assert json.loads(started[1].stdout.readline())[0] == "gathered"
    started[0].send_signal(signal.SIGKILL)
    assert said(started[1])[-1][1].startswith("rank 0 is gone: ")  # type: ignore[attr-defined]


def local(rank: int, world: int, port: int) -> RankAddress:
    return RankAddress(rank, world, rank, "torchrun", "127.0.0.1", port, SECRET)


def test_ranks_that_do_not_come_are_named() -> None:
    port = free_port()
    complaint = r"^2 of 4 ranks did not come to 127\.0\.0\.1 within 4 s: 1, 3; valid: all of them running this command$"
    with ThreadPoolExecutor() as pool:
        other = pool.submit(Rendezvous.meet, local(2, 4, port), 5)
        with pytest.raises(MeasuringFailed, match=complaint):
            Rendezvous.meet(local(0, 4, port), limit_s=4)
        with pytest.raises(MeasuringFailed, match=r"^rank 2: no rank 0 at 127"):
            other.result()


def test_no_rank_0() -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        port = nobody_listens.getsockname()[1]
        complaint = rf"^rank 1: no rank 0 at 127\.0\.0\.1, port {port}, within "
        with pytest.raises(MeasuringFailed, match=complaint):
            Rendezvous.meet(local(1, 2, port), limit_s=0.3)


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_others_at_the_port_are_no_ranks() -> None:
    """One that says nothing, one that speaks otherwise, and one of another run, which does not know the secret."""
    port = free_port()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(Rendezvous.meet, local(0, 2, port), 20)
        with connected(port), connected(port) as other:
            other.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(MeasuringFailed, match=r"^rank 1: no rank 0 at "):
                Rendezvous.meet(replace(local(1, 2, port), secret="of another run"), 1)
            assert not waiting.done()
            rank_1 = Rendezvous.meet(local(1, 2, port), 20)
            rank_0 = waiting.result()
        rank_1.gather("here")
        assert rank_0.gather("there") == ["there", "here"]
        rank_1.close()
        rank_0.close()


def test_a_failure_reaches_rank_0_while_it_waits_for_its_gpu() -> None:
    here, there = Pipe()
    rank_0 = Rendezvous(RankAddress(0, 2, 0, "torchrun"), _peers={1: here})
    other = Rendezvous(RankAddress(1, 2, 1, "torchrun"), _peers={0: there})
    rank_0.check()
    other.gather({"times_us": [1.0]})
    rank_0.check()
    assert rank_0.gather({}) == [{}, {"times_us": [1.0]}]
    other.gather({"error": "rank 1: it broke"})
    with pytest.raises(MeasuringFailed, match=r"^rank 1: it broke$"):
        rank_0.check()
    rank_0.close()
    with pytest.raises(MeasuringFailed, match=r"^rank 0 is gone: "):
        other.check()
    other.close()


def test_alone_there_is_nobody_to_wait_for() -> None:
    met = Rendezvous.meet(ALONE)
    assert met.share(5) == 5
    assert met.gather(6) == [6]
    met.check()
    met.close()


ARRIVAL = (("communicator", 3), "an arrival")
CONTENT = pickle.dumps(ARRIVAL, pickle.HIGHEST_PROTOCOL)
RECORD = len(CONTENT).to_bytes(8, "little") + CONTENT


class Growing(io.BytesIO):
    """A file of which only the first bytes are there when it is read first; the rest is written right after that."""

    def __init__(self, there: int) -> None:
        super().__init__(RECORD)
        self._there: int | None = there

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        there, self._there = self._there, None
        return super().read(size if there is None else min(size, there))


@pytest.mark.parametrize("there", range(len(RECORD)))
def test_an_arrival_that_is_being_written_is_read_later(there: int) -> None:
    file = Growing(there)
    found = computer._next(file)
    assert found in (None, ARRIVAL)
    if found is None:
        assert file.tell() == 0
        assert computer._next(file) == ARRIVAL
    assert computer._next(file) is None

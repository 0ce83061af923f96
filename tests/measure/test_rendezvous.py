"""Processes that measure together: what launchers say, meeting, and what the others say of one that died."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import SystemRandom

import pytest

from tuner.base.errors import BadInput, MeasuringFailed
from tuner.bench.gpu.rendezvous import ALONE, CANDIDATES, Place, Rendezvous, first_node, place

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-06]",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}


def test_nobody_started_it() -> None:
    assert place({"PATH": "/bin"}) == ALONE
    assert place({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) == ALONE


def test_torchrun_leaves_its_own_port_alone() -> None:
    found = place(TORCHRUN)
    assert (found.rank, found.world, found.local_rank, found.launcher, found.host) == (3, 8, 1, "torchrun", "node0")
    assert found.ports == tuple(range(29501, 29501 + CANDIDATES))


def test_srun_meets_on_its_first_node() -> None:
    found = place(SRUN)
    assert (found.rank, found.world, found.local_rank, found.host) == (5, 16, 1, "gpu03")
    assert set(found.ports).isdisjoint(place({**SRUN, "SLURM_STEP_ID": "1"}).ports)
    assert all(1024 < port < 65536 for port in found.ports)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu[03-07,12],login", "gpu03"),
        ("a,b", "a"),
        ("rack[1,3]n", "rack1n"),
        ("n-1-[08]", "n-1-08"),
    ],
)
def test_first_node_of_slurms_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({"RANK": "0", "WORLD_SIZE": "x"}, "torchrun's WORLD_SIZE is 'x'; valid: a number"),
        ({"TORCHELASTIC_RUN_ID": "1"}, "torchrun's RANK is ''; valid: a number"),
        ({**TORCHRUN, "MASTER_PORT": ""}, "torchrun's MASTER_PORT is ''; valid: a number"),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_ADDR"}, "torchrun's MASTER_ADDR is not set; "),
        ({k: v for k, v in SRUN.items() if k != "SLURM_STEP_NODELIST"}, "srun's SLURM_STEP_NODELIST is not set; "),
    ],
)
def test_half_a_launcher_is_refused(env: dict[str, str], complaint: str) -> None:
    with pytest.raises(BadInput) as caught:
        place(env)
    assert str(caught.value).startswith(complaint)


def test_mpi_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(BadInput, match=r"^started by MPI, and there is no mpi4py; valid: pip install mpi4py"):
        place({"OMPI_COMM_WORLD_RANK": "0"})


@pytest.mark.parametrize(
    ("env", "by_mpi"),
    [
        ({"PMI_RANK": "0"}, True),
        ({"PMIX_RANK": "0"}, True),
        ({**SRUN, "OMPI_COMM_WORLD_RANK": "5"}, True),
        ({**SRUN, "PMI_RANK": "5", "PMIX_RANK": "5"}, False),
    ],
)
def test_srun_speaks_pmi_as_well(env: dict[str, str], by_mpi: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    if by_mpi:
        with pytest.raises(BadInput, match=r"^started by MPI"):
            place(env)
    else:
        assert place(env) == place(SRUN)


# Real processes

RANK = """
    import json, os, sys, time
    from tuner.base.errors import MeasuringFailed
    from tuner.bench.gpu.rendezvous import Rendezvous, place
    here = place(os.environ)
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
    """It and the next one; below those that connections get by themselves."""
    while True:
        port = SystemRandom().randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("", port)), socket.create_server(("", port + 1)):
            return port


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start(started: list[subprocess.Popen[str]], ranks: Sequence[int], world: int, **env: str) -> None:
    port = str(free_port())
    for rank in ranks:
        own = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            **env,
        }
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


def local(rank: int, world: int, port: int) -> Place:
    return Place(rank, world, rank, "torchrun", "127.0.0.1", (port,), "t")


def test_ranks_that_do_not_come_are_named() -> None:
    port = free_port()
    complaint = r"^2 of 4 ranks did not come to 127\.0\.0\.1 within 2 s: 1, 3; valid: all of them running this command$"
    with ThreadPoolExecutor() as pool:
        other = pool.submit(Rendezvous.meet, local(2, 4, port))
        with pytest.raises(MeasuringFailed, match=complaint):
            Rendezvous.meet(local(0, 4, port), limit_s=2)
        other.result().close()


def test_no_rank_0() -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        port = nobody_listens.getsockname()[1]
        complaint = rf"^rank 1: no rank 0 at 127\.0\.0\.1, ports {port} to {port}, within "
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


def test_a_rank_that_gave_up_waiting_for_its_welcome_calls_again() -> None:
    port = free_port()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(Rendezvous.meet, local(0, 2, port), 20)
        with connected(port) as gave_up:
            gave_up.sendall(b'{"nccl-tuner": "t", "rank": 1}\n')
        other = Rendezvous.meet(local(1, 2, port), 20)
        rank_0 = waiting.result()
        other.gather("here")
        assert rank_0.gather("there") == ["there", "here"]
        other.close()
        rank_0.close()


def test_others_at_the_port_are_no_ranks(started: list[subprocess.Popen[str]]) -> None:
    port = free_port()
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", textwrap.dedent(RANK)]
    env = os.environ | shared | {"RANK": "0", "LOCAL_RANK": "0"}
    started.append(subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for word in (b"GET / HTTP/1.1\r\n\r\n", b'{"nccl-tuner": "another run", "rank": 1}\n'):
        with connected(port + 1) as other:
            other.sendall(word)
    env = os.environ | shared | {"RANK": "1", "LOCAL_RANK": "1"}
    started.append(subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert said(started[0])[-1] == ["gathered", [{"rank": 0}, {"rank": 1}]]


def test_a_failure_reaches_rank_0_while_it_waits_for_its_gpu() -> None:
    here, there = socket.socketpair()
    rank_0 = Rendezvous(Place(0, 2, 0, "torchrun"), _peers={1: here})
    other = Rendezvous(Place(1, 2, 1, "torchrun"), _peers={0: there})
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

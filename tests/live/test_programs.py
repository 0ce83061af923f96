"""Programs that call libnccl themselves, run as they are on simulated GPUs: NCCL's log says what the emulator picks."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.available_releases import BUILDS, HERE
from tests.support.command_line import COMMAND, run_process
from tests.support.programs import ROOT, sanitized_object
from tuner.api import Communicator, communicator
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Protocol
from tuner.oracle import library
from tuner.oracle.preloaded import preloaded
from tuner.oracle.process import SIM
from tuner.scenario.describe import describe

SOURCE = ROOT / "docs" / "examples" / "all_reduce.c"
BYTES = 1 << 20
LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING,COLL"}
CHOSEN = re.compile(rf"AllReduce: {BYTES} Bytes -> Algo (\w+) proto (\w+) channel{{Lo\.\.Hi}}={{0\.\.(\d+)}}")
SAY_CHOICES = [name for name in HERE if tuple(map(int, name.split("."))) >= (2, 24, 3)]  # in the log, by this line
ANY = HERE[-1]

# What nccl-tests does with MPI=1: who is on the same host follows from its name, which is also what MPI says.
WITH_MPI = """
import socket, sys
from ctypes import CDLL, byref, c_size_t, c_void_p, memmove, Structure, c_char
from mpi4py import MPI

class Id(Structure):
    _fields_ = [("bytes", c_char * 128)]

def check(result):
    assert result == 0, result

world, here, each = MPI.COMM_WORLD, CDLL(None), c_size_t(int(sys.argv[1]) // 4)
identity, comm, buffer, stream = Id(), c_void_p(), c_void_p(), c_void_p()
if world.rank == 0:
    check(here.ncclGetUniqueId(byref(identity)))
memmove(byref(identity), world.bcast(bytes(identity)), 128)
hosts = world.allgather(socket.gethostname())
assert MPI.Get_processor_name() == hosts[world.rank]
check(here.cudaSetDevice(hosts[: world.rank].count(hosts[world.rank])))
check(here.ncclCommInitRank(byref(comm), world.size, identity, world.rank))
check(here.cudaMalloc(byref(buffer), c_size_t(int(sys.argv[1]))))
check(here.cudaStreamCreate(byref(stream)))
check(here.ncclAllReduce(buffer, buffer, each, 7, 0, comm, stream))
check(here.cudaStreamSynchronize(stream))
check(here.ncclCommDestroy(comm))
print("1 of 2 GPUs: done")
"""

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, linked with a libnccl and, in the place of the CUDA runtime, with the simulated one."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("program") / "all_reduce"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *warnings, str(SOURCE), library.find(ANY).path, SIM, "-o", made], check=True)
    return made


def ran(
    words: list[str], machine: str, name: str, nodes: int = 1, gpus: int | None = None, **given: str
) -> subprocess.CompletedProcess[str]:
    described = describe(machine=machine, nccl=name, nodes=nodes, gpus_per_node=gpus)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "CUDA_"))}
    with preloaded(described.oracle_configuration()) as prepared:
        variables = prepared.variables({**own, **LOG, **given})
        return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=300, check=False)


def picked(one: Communicator) -> tuple[str, str, int]:
    pick = one.pick("allreduce", [BYTES])
    names = Algorithm(int(pick.algorithm[0])).name, Protocol(int(pick.protocol[0])).name
    return names[0].upper(), names[1].upper(), int(pick.channels[0]) - 1


def chosen(output: str) -> tuple[str, str, int]:
    found = CHOSEN.search(output)
    assert found, output
    return found[1], found[2], int(found[3])


@pytest.mark.each_choice
@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-a100"])
@pytest.mark.parametrize("name", SAY_CHOICES)
def test_a_process_with_all_gpus_picks_what_the_emulator_does(program: Path, machine: str, name: str) -> None:
    done = ran([str(program), str(BYTES)], machine, name)
    assert (done.returncode, "8 of 8 GPUs: done" in done.stdout) == (0, True), done.stderr
    assert chosen(done.stdout) == picked(communicator(machine, nccl=name))


@pytest.mark.parametrize("name", [name for name in HERE if name not in SAY_CHOICES])
def test_earlier_releases_get_through_as_well(program: Path, name: str) -> None:
    done = ran([str(program), str(BYTES)], "dgx-a100", name, gpus=2)
    assert (done.returncode, done.stdout.count("Init COMPLETE")) == (0, 2), done.stdout + done.stderr


@pytest.mark.parametrize(("name", "build"), BUILDS)
def test_builds_for_cuda_13(program: Path, name: str, build: str) -> None:
    described = describe(machine="dgx-h100", nccl=name, build=build, gpus_per_node=4)
    with preloaded(described.oracle_configuration()) as prepared:
        variables = prepared.variables({**os.environ, **LOG})
        done = subprocess.run([program, str(BYTES)], env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, "cuda13" in done.stdout) == (0, True), done.stderr
    assert chosen(done.stdout) == picked(communicator("dgx-h100", nccl=name, gpus_per_node=4))


@pytest.mark.slow
def test_a_process_for_each_gpu_of_simulated_hosts(program: Path, tmp_path: Path) -> None:
    ranks, each = 4, f'RANK=$rank "{program}" {BYTES} "{tmp_path}/id"'
    started = f'all=""; for rank in 0 1 2 3; do {each} & all="$all $!"; done; for i in $all; do wait $i || exit; done'
    done = ran(["sh", "-c", started], "dgx-h100", ANY, nodes=2, gpus=2, WORLD_SIZE=str(ranks))
    assert (done.returncode, done.stdout.count("1 of 2 GPUs: done")) == (0, ranks), done.stdout + done.stderr
    assert "node0:" in done.stdout
    assert "node1:" in done.stdout
    assert chosen(done.stdout) == picked(communicator("dgx-h100", nodes=2, gpus_per_node=2, nccl=ANY))


@pytest.mark.parametrize("uses_mpi", [False, True])
def test_ranks_that_mpirun_starts(program: Path, tmp_path: Path, uses_mpi: bool) -> None:
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("no mpirun of the wheel mpich")
    (tmp_path / "mine.py").write_text(WITH_MPI)
    alone = f'RANK=$PMI_RANK WORLD_SIZE=4 exec "{program}" {BYTES} "{tmp_path}/id"'
    words = [sys.executable, str(tmp_path / "mine.py"), str(BYTES)] if uses_mpi else ["sh", "-c", alone]
    done = ran([str(mpirun), "-np", "4", *words], "dgx-h100", ANY, nodes=2, gpus=2)
    assert (done.returncode, done.stdout.count("1 of 2 GPUs: done")) == (0, 4), done.stdout + done.stderr
    assert {f"node{number}:" in done.stdout for number in (0, 1)} == {True}
    assert chosen(done.stdout) == picked(communicator("dgx-h100", nodes=2, gpus_per_node=2, nccl=ANY))


def test_devices_that_a_process_sees(program: Path) -> None:
    done = ran([str(program), str(BYTES)], "dgx-h100", ANY, CUDA_VISIBLE_DEVICES="6,3")
    assert (done.returncode, "2 of 2 GPUs: done" in done.stdout) == (0, True), done.stderr
    buses = re.findall(r"rank (\d) nranks 2 cudaDev (\d) nvmlDev (\d) busId (\w+) .*Init COMPLETE", done.stdout)
    assert sorted(buses) == [("0", "0", "6", "d1000"), ("1", "1", "3", "61000")]


@pytest.mark.parametrize("seen", ["8", "0,x", "GPU-1", ""])
def test_devices_that_there_are_not(program: Path, seen: str) -> None:
    done = ran([str(program), str(BYTES)], "dgx-h100", ANY, CUDA_VISIBLE_DEVICES=seen)
    assert done.returncode == 127
    assert done.stderr.startswith("nccl-tuner: the simulated GPUs cannot be loaded: CUDA_VISIBLE_DEVICES: ")


def test_a_rank_on_a_host_that_there_is_not(program: Path) -> None:
    done = ran([str(program), str(BYTES)], "dgx-h100", ANY, RANK="8")
    assert (done.returncode, "valid: more --nodes" in done.stderr) == (127, True)


def test_the_command(program: Path) -> None:
    words = ("oracle", "run", "--machine", "dgx-a100", "--gpus-per-node", "2", "--nccl", ANY)
    done = run_process(*words, "--", str(program), str(BYTES))
    assert done.stdout == "2 of 2 GPUs: done\n"
    assert "no kernel runs" in done.stderr
    ended = run_process(*words, "--json", "--", "sh", "-c", "echo said; kill -9 $$", code=137)
    assert ('"exit_code": 137' in ended.stdout, "said\n" in ended.stderr) == (True, True)
    missing = run_process(*words, "--", str(program.parent / "missing"), code=2)
    assert "No such file or directory" in missing.stderr


def has_ended(pid: int) -> bool:
    """Within some seconds: who inherits a process that was killed may take its time to look at it."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z"):
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_ended_ends_its_program(number: signal.Signals, tmp_path: Path) -> None:
    """SIGHUP as well, which a terminal sends that is closed; and no folder stays."""
    words = ("oracle", "run", "--machine", "dgx-a100", "--gpus-per-node", "2", "--nccl", ANY)
    program = ("sh", "-c", f"echo $$ >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 300")
    (temporary := tmp_path / "temporary").mkdir()
    env = {**os.environ, "TMPDIR": str(temporary)}
    # As a shell starts it: who tests behind nohup ignores SIGHUP, and so would all that is started.
    heard = signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    try:
        started = subprocess.Popen([COMMAND, *words, "--", *program], stderr=subprocess.DEVNULL, env=env)
    finally:
        signal.signal(number, heard)
    with started as command:
        while not (tmp_path / "pid").exists():
            time.sleep(0.05)
            assert command.poll() is None
        command.send_signal(number)
        assert command.wait(60) == 130
    assert has_ended(int((tmp_path / "pid").read_text()))
    assert [*temporary.iterdir()] == []


def test_what_no_program_can_be_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    domain = describe(machine="dgx-h100", nccl=ANY, nodes=2, hosts_per_domain=[2])
    with pytest.raises(BadInput, match="without NVLink domains"), preloaded(domain.oracle_configuration()):
        pass
    plain = describe(machine="dgx-h100", nccl=ANY).oracle_configuration()
    with preloaded(plain) as prepared, pytest.raises(BadInput, match="NCCL_TOPO_FILE set"):
        prepared.variables({"NCCL_TOPO_FILE": "mine.xml"})


@pytest.mark.slow
@pytest.mark.heavy
def test_addresses_and_undefined_behaviour(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated, sanitizer = sanitized_object("sim", tmp_path)
    monkeypatch.setattr("tuner.oracle.preloaded.SIM", simulated)
    described = describe(machine="dgx-h100", nccl=ANY, gpus_per_node=2).oracle_configuration()
    with preloaded(described) as prepared:
        variables = prepared.variables()
        variables |= {**sanitizer, "LD_PRELOAD": f"{sanitizer['LD_PRELOAD']}:{variables['LD_PRELOAD']}"}
        done = subprocess.run([program, str(BYTES)], env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2 of 2 GPUs: done\n"), done.stderr

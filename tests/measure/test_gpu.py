"""Measuring on GPUs, as far as that goes without one and without the double (test_double.py).

What is said where something is missing, libnccl's own API, and what hangs or takes a time in CUDA and NCCL themselves.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cffi
import pytest

from tests.support.available_releases import HERE
from tuner.base.errors import BadInput, BadMeasurement, MeasuringFailed, OracleUnavailable
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.bench.backend import Options, options_of
from tuner.bench.gpu import backend as backend_module
from tuner.bench.gpu import opening
from tuner.bench.gpu.backend import GpuBackend
from tuner.bench.gpu.nccl import Nccl
from tuner.bench.gpu.opening import allows_several, devices_of, open_gpus
from tuner.bench.gpu.rendezvous import ALONE, RankAddress, Rendezvous
from tuner.cli import measure
from tuner.oracle import library
from tuner.plugin import forcing_path
from tuner.plugin.forcing import SeenByPlugin
from tuner.times.measured import samples
from tuner.times.measured.header import Header, Noted, from_record, to_record
from tuner.times.measured.nccl_tests import Log
from tuner.times.measured.samples import Combination, Point, SampleBlock
from tuner.times.results import record, results

AR, AG, RS = Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter
_ffi: Any = cffi.FFI()
RING_LL, TREE_LL = Combination(Algorithm.Ring, Protocol.LL), Combination(Algorithm.Tree, Protocol.LL)


# What is missing


class RuntimeFailed(Exception):
    pass


def fake_cupy(devices: int | None) -> Any:
    def count() -> int:
        if devices is None:
            raise RuntimeFailed("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
        return devices

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=RuntimeFailed)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


def refusal(monkeypatch: pytest.MonkeyPatch, cupy: Any, options: Options | None = None, **env: str) -> str:
    for name in opening.FORBIDDEN:
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(BadInput) as caught:
        open_gpus(options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(monkeypatch, None).endswith(
        ": pip install 'nccl-tuner[gpu]', or cupy for your CUDA; "
        "without GPUs use the backend 'simulated' with the name of a machine"
    )


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(monkeypatch, fake_cupy(None))
    assert said.startswith("no GPU was found (cudaErrorInsufficientDriver: ")
    assert refusal(monkeypatch, fake_cupy(0)) == "CUDA_VISIBLE_DEVICES leaves no GPU: name one or more in it"


def test_one_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").touch()  # is there, and not loaded
    said = refusal(monkeypatch, fake_cupy(1), Options(library=tmp_path / "libnccl.so.2"))
    assert said.startswith(
        "with one rank there is nothing to choose, because NCCL only copies: use two GPUs or more, or ranks_per_gpu= 2"
    )


def test_no_libnccl_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "libnccl.so.2"
    assert refusal(monkeypatch, fake_cupy(2), Options(library=gone)) == f"{gone} does not exist: name a libnccl.so.2"
    monkeypatch.setattr(opening, "WHEELS", ("nvidia-nccl-of-nobody",))
    said = refusal(monkeypatch, fake_cupy(2))
    assert said == "no libnccl: none of nvidia-nccl-of-nobody is installed: pip install nvidia-nccl-of-nobody"


@pytest.mark.live
def test_several_ranks_and_an_older_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    path = library.cached(HERE[0]).resolve()
    assert refusal(monkeypatch, fake_cupy(1), Options(ranks_per_gpu=2, library=path)) == (
        f"{path} refuses several ranks on one GPU: set ranks_per_gpu= 1, or use NCCL 2.30.3 or later"
    )


def test_variables_that_leave_nothing_to_force(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(monkeypatch, fake_cupy(2), NCCL_ALGO="Ring", NCCL_PROTO="LL")
    assert said == "NCCL_ALGO, NCCL_PROTO is set, but measuring itself forces what NCCL chooses: unset it"


@pytest.mark.live
@pytest.mark.parametrize("name", ["2.29.7", "2.30.3", "2.32.3"])
def test_the_library_itself_says_whether_ranks_may_share_a_gpu(name: str) -> None:
    if not library.cached(name).is_file():
        pytest.skip(f"no libnccl {name} here")
    assert allows_several(library.cached(name)) is (name != "2.29.7")


def test_devices() -> None:
    launched = RankAddress(3, 8, 3, "torchrun")
    assert devices_of(ALONE, 2, 1) == [0, 1]
    assert devices_of(ALONE, 1, 3) == [0, 0, 0]
    assert devices_of(launched, 8, 1) == [3]
    assert devices_of(launched, 2, 2) == [1]
    assert devices_of(launched, 1, 1) == [0], "a launcher that shows each process its own GPU"
    with pytest.raises(BadInput, match=r"^rank 3 is number 3 on its node, which has 2 GPUs: start no more ranks than"):
        devices_of(launched, 2, 1)


# libnccl's own API


@pytest.mark.live
@pytest.mark.parametrize("name", HERE)
def test_libnccl_has_every_function(name: str) -> None:
    """In a process of its own: a libnccl does not leave one. Without a GPU it fails, with its own words."""
    script = f"""
from pathlib import Path
from tuner.base.errors import MeasuringFailed
from tuner.bench.gpu.nccl import Nccl
nccl = Nccl(Path({str(library.find(name).path)!r}), {{"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/null"}})
print(nccl.release)
for function in dir(nccl._library):
    getattr(nccl._library, function)
print(len(dir(nccl._library)))
try:
    nccl.init_rank(2, bytes(128), 5)
except MeasuringFailed as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    version, functions, failed = done.stdout.splitlines()
    assert (version, int(functions)) == (name, 15)
    assert failed.startswith("ncclCommInitRank returned ")


def test_no_libnccl(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_text("no library")
    with pytest.raises(OracleUnavailable, match=r"libnccl\.so\.2 cannot be loaded: "):
        Nccl(tmp_path / "libnccl.so.2", {})


# What was executed


def test_what_ran_is_read_from_where_the_log_was(tmp_path: Path) -> None:
    log = Log(tmp_path / "nccl.log")
    assert log.since(AR, None) is None
    line = "h:1:2 [0] NCCL INFO {}: 64 Bytes -> Algo {} proto LL channel{{Lo..Hi}}={{0..3}}\n"
    log.path.write_text(line.format("AllReduce", "RING"))
    log.skip()
    assert log.since(AR, None) is None
    with log.path.open("a") as file:
        file.write(line.format("AllReduce", "RING") * 3 + line.format("AllGather", "NVLS"))
    assert log.since(AR, RING_LL) == Combination(Algorithm.Ring, Protocol.LL, 4)
    with log.path.open("a") as file:
        file.write(line.format("AllReduce", "RING") + line.format("AllReduce", "TREE"))
    assert log.since(AR, RING_LL) == Combination(Algorithm.Tree, Protocol.LL, 4), "one call was another's"
    with log.path.open("a") as file:
        file.write("h:1:2 [0] NCCL INFO 64 Bytes -> Algo 1 proto 0 time 4.500000\nh:1:2 [0] misc NCCL WARN it broke\n")
    assert log.since(AR, RING_LL) == RING_LL, "numbers, as 2.20 to 2.23 print them"
    assert log.last_warning() == "it broke"


# A clock, and what hangs


class FakeLane:
    """A stream whose clock every call moves; no data move."""

    def __init__(self, world: "FakeNccl", device: int) -> None:
        self.world, self.device = world, device
        self.stream = id(self)
        self.captured = 0

    def current(self) -> Any:
        return nullcontext()

    def buffer(self, name: str, size_bytes: int) -> int:
        return 1 << 20

    def fill(self, *_: Any) -> None:
        """Nothing moves."""

    def wrong(self, *_: Any) -> int:
        return 0

    def mark(self) -> list[float]:
        return []

    def record(self, mark: list[float]) -> None:
        mark.append(self.world.clock_us)

    def done(self, mark: list[float]) -> bool:
        return True

    def between_us(self, start: list[float], end: list[float]) -> float:
        return end[0] - start[0]

    def begin_capture(self) -> None:
        self.captured = self.world.calls

    def end_capture(self) -> int:
        return self.world.calls - self.captured

    def upload(self, graph: int) -> None:
        assert graph == self.world.calls - self.captured
        self.world.uploads += 1

    def launch(self, graph: int) -> None:
        assert self.world.uploads % self.world.ranks == 0 < self.world.uploads, (
            "each graph is on its GPU before the first is launched"
        )
        self.world.launches += 1
        self.world.clock_us += graph / self.world.ranks


class FakeNccl:
    """Each collective takes 10 us."""

    release, path = "2.28.9", Path(__file__)

    def __init__(self) -> None:
        self.ranks, self.clock_us, self.calls, self.launches, self.ended = 0, 0.0, 0, 0, ""
        self.uploads = 0
        self._pending = False

    def load_tuner(self) -> None:
        """Nothing races here."""

    def close(self) -> None:
        """No variable was set."""

    def unique_id(self) -> bytes:
        return bytes(range(128))

    def init_rank(self, ranks: int, unique_id: bytes, rank: int) -> list[int]:
        assert unique_id == bytes(range(128))
        self.ranks = ranks
        return [rank]

    def start_group(self) -> None:
        self._pending = False

    def prepared(self, *_: Any) -> Any:
        def call() -> None:
            self._pending = True

        return call

    def end_group(self) -> None:
        if self._pending:
            self.calls += 1
            self.clock_us += 10.0

    def check_async(self, comm: int) -> None:
        """Nothing breaks here."""

    def destroy(self, comm: int) -> None:
        self.ended = "destroyed"

    def abort(self, comm: int) -> None:
        self.ended = "aborted"


class FakeForcing:
    path = forcing_path()

    def use_table(self, text: str | None) -> None:
        """Everything is decided."""

    def seen(self) -> SeenByPlugin:
        return SeenByPlugin(1, 1, 0, AR, 64)


class FakeCuda:
    def __init__(self, world: FakeNccl) -> None:
        self.world = world

    def lane(self, device: int) -> FakeLane:
        return FakeLane(self.world, device)

    def name(self, device: int) -> str:
        return "NumPy"

    def multiprocessors(self, device: int) -> int:
        return 132

    def free_bytes(self, device: int) -> int:
        return 4 << 30

    def stood_in(self) -> dict[str, Any]:
        return {}

    def noted(self) -> Noted:
        return Noted(cuda_driver=0, cuda_runtime=0)


@contextmanager
def opened(
    folder: Path, ranks: int = 3, limit_s: float = 5.0, ranks_per_gpu: int = 1, graphs_below_bytes: int = 0
) -> Iterator[tuple[GpuBackend, FakeNccl]]:
    world = FakeNccl()
    options = Options(
        ranks_per_gpu, topology=folder / "topology.xml", limit_s=limit_s, graphs_below_bytes=graphs_below_bytes
    )
    met, cuda = Rendezvous(ALONE), FakeCuda(world)
    backend = GpuBackend(met, [0] * ranks, options, cuda=cuda, nccl=lambda variables: world, forcing=FakeForcing())
    try:
        yield backend, world
    finally:
        backend.close()


def test_small_calls_are_timed_in_graphs_without_registering_their_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_GRAPH_REGISTER", raising=False)
    with opened(tmp_path, graphs_below_bytes=2400) as (backend, world):
        backend.run(Point(AR, 1200), None, 3)
        assert world.launches == 3 * (1 + 3)
        backend.run(Point(AR, 2400), None, 3)
        assert world.launches == 3 * (1 + 3), "not below"
        header = backend.describe()
        assert (header.graphs_below_bytes, header.graph_buffers_registered) == (2400, False)
        assert header.variables is not None
        assert header.variables["NCCL_GRAPH_REGISTER"] == "0"


def test_a_time_near_the_host_s_own_is_host_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as (backend, _):
        for host_us, host_bound in ((7.5, False), (8.5, True)):
            clock = (number * 20 * host_us * 1e-6 for number in range(1000))
            monkeypatch.setattr(backend._calls, "_host_s", lambda clock=clock: next(clock))
            run = backend.run(Point(AR, 1200), RING_LL, 4)
            assert run.times_us == (10.0,) * 4
            assert run.host_us == pytest.approx(host_us)
            block = SampleBlock(Point(AR, 1200), RING_LL, run.executed, run.times_us, host_us=run.host_us)
            assert block.host_bound is host_bound
            assert results([block])[0].host_bound is host_bound
    assert not SampleBlock(Point(AR, 1200), RING_LL, None, (10.0,)).host_bound
    assert results([SampleBlock(Point(AR, 1200), RING_LL, None, (10.0,))])[0].host_bound is None


def test_what_is_host_bound_is_in_the_file_and_in_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [
        SampleBlock(Point(AR, 1200), requested, None, (10.0,), host_us=host_us)
        for requested, host_us in ((RING_LL, 9.5), (TREE_LL, 2.0))
    ]
    with samples.Writer(tmp_path / "run.jsonl", Header(backend="gpu", ranks=3)) as writer:
        for block in blocks:
            writer.add(block)
    read = samples.read(tmp_path / "run.jsonl").blocks
    assert [block.host_us for block in read] == [9.5, 2.0]
    found = results(read)
    assert [record(each, 3).host_bound for each in found] == [True, False]
    measure.print_results(found, 3)
    printed = [line.split()[2:4] for line in capsys.readouterr().out.splitlines() if line.startswith(" 1200 B")]
    assert printed == [["Ring/LL", "10.00h"], ["Tree/LL", "10.00"]]


def test_an_init_that_hangs_ends_within_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(FakeNccl, "end_group", lambda world: never.wait(60))
    monkeypatch.setattr(backend_module, "_LATER_S", 0.0)
    complaint = r"^the communicator's init took longer than 0\.2 s and was given up: a rank is missing or hangs$"
    with pytest.raises(MeasuringFailed, match=complaint), opened(tmp_path, limit_s=0.2):
        pass
    never.set()


def test_a_call_that_hangs_inside_nccl_ends_within_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "_LATER_S", 0.0)
    with opened(tmp_path, limit_s=0.2) as (backend, world):
        never = threading.Event()
        monkeypatch.setattr(FakeNccl, "end_group", lambda world: never.wait(60))
        with pytest.raises(MeasuringFailed, match=r"^a block of calls took longer than 0\.2 s and was given up"):
            backend.run(Point(AR, 1200), None, 1)
        assert world.ended == "aborted"
        never.set()


def test_ranks_that_share_a_gpu_fit_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_MAX_CTAS", "NCCL_MULTI_RANK_GPU_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    with opened(tmp_path, ranks=4, ranks_per_gpu=4) as (backend, _):
        header = backend.describe()
        assert header.variables is not None
        assert header.variables["NCCL_MAX_CTAS"] == "33", "132 multiprocessors"
        assert header.variables["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
        assert header.scenario is not None
        assert header.scenario.environment == header.variables
    monkeypatch.setenv("NCCL_MAX_CTAS", "8")
    monkeypatch.setenv("NCCL_TUNER_CACHE", "/elsewhere")
    with opened(tmp_path, ranks=2, ranks_per_gpu=2) as (backend, _):
        variables = dict(backend.describe().variables or {})
        assert variables["NCCL_MAX_CTAS"] == "8", "the user's own"
        assert "NCCL_TUNER_CACHE" not in variables
    with opened(tmp_path) as (backend, _):
        assert "NCCL_MULTI_RANK_GPU_ENABLE" not in dict(backend.describe().variables or {})


def test_the_header_says_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "topology.xml").write_text("<system/>")
    with opened(tmp_path) as (backend, _):
        described = backend.describe()
    header = to_record(described)
    assert (header["backend"], header["ranks"], header["nccl"], header["gpu"]) == ("gpu", 3, "2.28.9", "NumPy")
    assert header["topology_xml"] == "<system/>"
    assert header["case"]["topology"] == str(tmp_path / "topology.xml")
    assert (header["case"]["nodes"], header["case"]["gpus_per_node"]) == (1, 3)
    assert list(header) == [
        "backend",
        "ranks",
        "nccl",
        "library_sha256",
        "case",
        "gpu",
        "ranks_per_gpu",
        "launcher",
        "calls_per_time",
        "graphs_below_bytes",
        "graph_buffers_registered",
        "variables",
        "topology_xml",
        "noted",
    ]
    assert list(header["noted"]) == ["date", "hosts", "library", "cuda_driver", "cuda_runtime"]
    assert from_record(json.loads(json.dumps(header))) == described
    assert described.noted is not None
    assert options_of(described) == Options(1, described.noted.library, tmp_path / "topology.xml", graphs_below_bytes=0)
    with pytest.raises(BadMeasurement, match="does not say how to measure again: ranks_per_gpu 1, library None"):
        options_of(replace(described, noted=None))

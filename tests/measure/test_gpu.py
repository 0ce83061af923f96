"""Measuring on GPUs, as far as that goes without one: what is said where something is missing, libnccl's own API, and
a whole run over GPUs and a libnccl that are NumPy's arrays.
"""

import ctypes
import json
import socket
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
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.available_releases import HERE
from tests.support.compiled_kernels import NUMPY, compiled
from tuner.base.errors import BadInput, BadMeasurement, MeasuringFailed, OracleUnavailable
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.cli import measured_results
from tuner.measure.executed import Log
from tuner.measure.gpu import backend as backend_module
from tuner.measure.gpu import opening
from tuner.measure.gpu.backend import Gpu, Libraries
from tuner.measure.gpu.kernels import Check, Values
from tuner.measure.gpu.nccl import Nccl
from tuner.measure.gpu.opening import allows_several, devices_of, open_gpus
from tuner.measure.gpu.options import Options, options_of
from tuner.measure.gpu.rendezvous import ALONE, Place, Rendezvous
from tuner.measure.records import samples
from tuner.measure.records.header import Header, Noted, from_record, to_record
from tuner.measure.records.samples import Combination, Point, SampleBlock
from tuner.measure.results import record, results
from tuner.oracle import library
from tuner.plugin import forcing_path
from tuner.plugin.forcing import Seen
from tuner.plugin.table.parse import from_text

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
    assert refusal(monkeypatch, None).endswith("valid: pip install 'nccl-tuner[gpu]', or cupy for your CUDA")


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(monkeypatch, fake_cupy(None))
    assert said.startswith("no GPU: cudaErrorInsufficientDriver: ")
    assert refusal(monkeypatch, fake_cupy(0)) == "no GPU: CUDA_VISIBLE_DEVICES leaves none; valid: one or more"


def test_one_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").touch()  # is there, and not loaded
    said = refusal(monkeypatch, fake_cupy(1), Options(library=tmp_path / "libnccl.so.2"))
    assert said.startswith("one rank has nothing to choose, NCCL only copies; valid: two GPUs or more, or --ranks-per-")


def test_no_libnccl_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "libnccl.so.2"
    assert refusal(monkeypatch, fake_cupy(2), Options(library=gone)) == f"{gone} does not exist; valid: a libnccl.so.2"
    monkeypatch.setattr(opening, "WHEELS", ("nvidia-nccl-of-nobody",))
    said = refusal(monkeypatch, fake_cupy(2))
    assert said == "no libnccl: none of nvidia-nccl-of-nobody is installed; valid: pip install nvidia-nccl-of-nobody"


@pytest.mark.live
def test_several_ranks_and_an_older_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    path = library.cached(HERE[0])
    assert refusal(monkeypatch, fake_cupy(1), Options(ranks_per_gpu=2, library=path)) == (
        f"{path} refuses several ranks on one GPU; valid: --ranks-per-gpu 1, or NCCL 2.30.3 and later"
    )


def test_variables_that_leave_nothing_to_force(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(monkeypatch, fake_cupy(2), NCCL_ALGO="Ring", NCCL_PROTO="LL")
    assert said == "NCCL_ALGO, NCCL_PROTO is set, and measuring forces what NCCL takes; valid: unset"


@pytest.mark.live
@pytest.mark.parametrize("name", ["2.29.7", "2.30.3", "2.32.3"])
def test_the_library_itself_says_whether_ranks_may_share_a_gpu(name: str) -> None:
    if not library.cached(name).is_file():
        pytest.skip(f"no libnccl {name} here")
    assert allows_several(library.cached(name)) is (name != "2.29.7")


def test_devices() -> None:
    launched = Place(3, 8, 3, "torchrun")
    assert devices_of(ALONE, 2, 1) == [0, 1]
    assert devices_of(ALONE, 1, 3) == [0, 0, 0]
    assert devices_of(launched, 8, 1) == [3]
    assert devices_of(launched, 2, 2) == [1]
    assert devices_of(launched, 1, 1) == [0], "a launcher that shows each process its own GPU"
    with pytest.raises(BadInput, match=r"^rank 3 is number 3 on its node, which has 2 GPUs; valid: no more ranks than"):
        devices_of(launched, 2, 1)


# libnccl's own API


@pytest.mark.live
@pytest.mark.parametrize("name", HERE)
def test_libnccl_has_every_function(name: str) -> None:
    """In a process of its own: a libnccl does not leave one. Without a GPU it fails, with its own words."""
    script = f"""
from pathlib import Path
from tuner.base.errors import MeasuringFailed
from tuner.measure.gpu.nccl import Nccl
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


# A whole run


class FakeLane:
    """Memory of NumPy, and a clock that every call moves."""

    def __init__(self, world: "FakeNccl", device: int, folder: Path) -> None:
        self.world, self.device, self._folder = world, device, folder
        self.stream = id(self)
        self._memory: dict[str, NDArray[Any]] = {}
        self._kernels: dict[Any, Any] = {}
        self.captured = 0

    def current(self) -> Any:
        return nullcontext()

    def buffer(self, name: str, size_bytes: int) -> int:
        if name not in self._memory or self._memory[name].nbytes < size_bytes:
            self._memory[name] = np.full(size_bytes, 255, np.uint8)
        return int(self._memory[name].ctypes.data)

    def _library(self, dtype: DataType, op: Op, ranks: int) -> Any:
        if (dtype, op, ranks) not in self._kernels:
            folder = self._folder / f"{dtype.name}-{op.name}-{id(self)}"
            folder.mkdir()
            self._kernels[dtype, op, ranks] = compiled(folder, dtype, op, ranks)
        return self._kernels[dtype, op, ranks]

    def fill(self, address: int, count: int, rank: int, values: Values) -> None:
        library = self._library(values.dtype, values.op, values.ranks)
        library.fill(_ffi.cast("void *", address), count, rank, values.seed)

    def wrong(self, address: int, check: Check, values: Values) -> int:
        wrong = _ffi.new("uint64_t *")
        data, found = _ffi.cast("void *", address), _ffi.cast("uint64_t *", wrong)
        kernels = self._library(values.dtype, values.op, values.ranks)
        kernels.check(data, check.elements, check.first, values.ranks, check.per_rank, values.seed, found)
        return int(wrong[0])

    def mark(self) -> list[float]:
        return []

    def record(self, mark: list[float]) -> None:
        mark[:] = [self.world.clock_us]

    def done(self, mark: list[float]) -> bool:
        return not self.world.hangs

    def between_us(self, start: list[float], end: list[float]) -> float:
        return end[0] - start[0]

    def begin_capture(self) -> None:
        self.captured = self.world.calls

    def end_capture(self) -> int:
        return self.world.calls - self.captured

    def launch(self, graph: int) -> None:
        self.world.launches += 1
        self.world.clock_us += graph / self.world.ranks


class FakeNccl:
    """Collectives over the lanes' memory; obeys the table of the fake plugin, and logs as 2.28 does."""

    release, path = "2.28.9", Path(__file__)

    def __init__(self) -> None:
        self.ranks, self.clock_us, self.calls, self.hangs, self.corrupts = 0, 0.0, 0, False, False
        self.table: str | None = None
        self.launches = 0
        self.replaces, self.log, self.ended = False, Path("/dev/null"), ""
        self._pending: list[tuple[Any, ...]] = []

    def unique_id(self) -> bytes:
        return bytes(range(128))

    def load_tuner(self) -> None:
        """Nothing races here."""

    def close(self) -> None:
        """No variable was set."""

    def init_rank(self, ranks: int, unique_id: bytes, rank: int) -> list[int]:
        assert unique_id == bytes(range(128))
        self.ranks = ranks
        return [rank]

    def start_group(self) -> None:
        self._pending = []

    def prepared(self, *arguments: Any) -> Any:
        return lambda: self._pending.append(arguments)

    def end_group(self) -> None:
        if not self._pending:
            return
        assert [each[3] for each in self._pending] == list(range(self.ranks)), "every rank calls"
        point, _, count, _, _ = self._pending[0]
        collective, dtype, op = point.collective, point.dtype, point.op
        part = count * dtype.size_bytes
        for rank, (_, (send, receive), *_) in enumerate(self._pending):
            inside = {AG: send - receive, RS: receive - send}.get(collective, -1)
            if 0 <= inside < part * self.ranks:
                assert inside == rank * part, "in place as nccl.h says"
        spread = self.ranks if collective is RS else 1
        sent = [_array(send, count * spread, dtype).copy() for _, (send, _), *_ in self._pending]
        reduced = np.max(sent, axis=0) if op is Op.max else np.sum(sent, axis=0, dtype=sent[0].dtype)
        for rank, (_, (_, receive), *_) in enumerate(self._pending):
            result = np.concatenate(sent) if collective is AG else reduced
            if collective is RS:
                result = reduced[rank * count : (rank + 1) * count]
            out = _array(receive, len(result), dtype)
            out[:] = result
            if self.corrupts and rank == 1:
                out[-1] += 1
        self.calls += 1
        took = TREE_LL if self.replaces or _choice(self.table) == TREE_LL else RING_LL
        self.clock_us += {RING_LL: 10.0, TREE_LL: 20.0}[took]
        with self.log.open("a") as file:
            file.write(
                f"h:1:1 [0] NCCL INFO {collective.name}: {count * dtype.size_bytes} Bytes -> Algo "
                f"{took.algorithm.name.upper()} proto LL channel{{Lo..Hi}}={{0..1}}\n"
            )

    def check_async(self, comm: int) -> None:
        """Nothing breaks here."""

    def destroy(self, comm: int) -> None:
        self.ended = "destroyed"

    def abort(self, comm: int) -> None:
        self.ended = "aborted"


def _array(address: int, count: int, dtype: DataType) -> NDArray[Any]:
    raw = (ctypes.c_uint8 * (count * dtype.size_bytes)).from_address(address)
    array: NDArray[Any] = np.frombuffer(memoryview(raw), NUMPY[dtype])
    return array


def _choice(table: str | None) -> Combination:
    if table is None:
        return RING_LL
    choice = from_text(table).decisions[0].choices[0]
    return Combination(choice.algorithm, choice.protocol)


class FakeForcing:
    path = forcing_path()

    def __init__(self, world: FakeNccl) -> None:
        self._world = world

    def use_table(self, text: str | None) -> None:
        self._world.table = text

    def seen(self) -> Seen:
        costs = tuple((each.algorithm, each.protocol, 1.0) for each in (TREE_LL, RING_LL))
        decided = int(self._world.table is not None and _choice(self._world.table) in (TREE_LL, RING_LL))
        return Seen(1, decided, 1 - decided, AR, 64, costs)


class FakeCuda:
    def __init__(self, world: FakeNccl, folder: Path) -> None:
        self.world, self.folder = world, folder

    def lane(self, device: int) -> FakeLane:
        return FakeLane(self.world, device, self.folder)

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
) -> Iterator[tuple[Gpu, FakeNccl]]:
    world = FakeNccl()
    options = Options(
        ranks_per_gpu, topology=folder / "topology.xml", limit_s=limit_s, graphs_below_bytes=graphs_below_bytes
    )
    met, cuda = Rendezvous(ALONE), FakeCuda(world, folder)
    backend = Gpu(met, [0] * ranks, options, Libraries(cuda, lambda variables: world, FakeForcing(world)))
    world.log = backend._log.path
    try:
        yield backend, world
    finally:
        backend.close()


@pytest.mark.filterwarnings("ignore:overflow")  # the same buffer summed again and again
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", [AR, AG, RS])
def test_results_are_checked_and_calls_forced_one_by_one(
    tmp_path: Path, collective: Collective, in_place: bool
) -> None:
    point = Point(collective, 3 * 4 * 100, in_place=in_place)
    with opened(tmp_path) as (backend, world):
        assert backend.combinations(point) == [TREE_LL, RING_LL]
        for requested, time_us in ((TREE_LL, 20.0), (RING_LL, 10.0), (TREE_LL, 20.0), (None, 10.0)):
            run = backend.run(point, requested, 4)
            assert run.times_us == (time_us,) * 4, "the mean of calls in a row"
            assert run.executed is not None
            assert run.executed == Combination((requested or RING_LL).algorithm, Protocol.LL, 2)
            assert run.wrong == 0
        world.corrupts = True
        assert backend.run(point, RING_LL, 1).wrong == 1
    assert world.ended == "destroyed"


@pytest.mark.parametrize(
    ("dtype", "op"), [(DataType.float16, Op.sum), (DataType.int8, Op.max), (DataType.float64, Op.sum)]
)
def test_types_and_operations(tmp_path: Path, dtype: DataType, op: Op) -> None:
    with opened(tmp_path) as (backend, _):
        assert backend.run(Point(AR, 960, dtype, op), None, 1).wrong == 0


def test_a_table_decides_where_nothing_is_forced(tmp_path: Path) -> None:
    point = Point(AR, 1200)
    with opened(tmp_path) as (backend, _):
        backend.use_table("nccl-tuner-table 1\nallreduce -> tree/ll\n")
        assert backend.run(point, None, 1).times_us == (20.0,)
        assert backend.run(point, RING_LL, 1).times_us == (10.0,)
        assert backend.run(point, None, 1).times_us == (20.0,)
        backend.use_table(None)
        assert backend.run(point, None, 1).times_us == (10.0,)


def test_what_was_replaced_shows(tmp_path: Path) -> None:
    with opened(tmp_path) as (backend, world):
        world.replaces = True
        assert backend.run(Point(AR, 1200), RING_LL, 1).executed == Combination(Algorithm.Tree, Protocol.LL, 2)


def test_what_cannot_run_is_refused(tmp_path: Path) -> None:
    complaint = "^NVLS/Simple cannot run AllReduce of 1200 bytes here$"
    with opened(tmp_path) as (backend, _), pytest.raises(BadInput, match=complaint):
        backend.run(Point(AR, 1200), Combination(Algorithm.NVLS, Protocol.Simple), 1)


def test_calls_in_a_graph_are_launched_together(tmp_path: Path) -> None:
    with opened(tmp_path) as (backend, world):
        run = backend.run(Point(AR, 1200, graph=True), None, 3)
        assert run.times_us == pytest.approx((1.0, 1.0, 1.0)), "a twentieth of a launch"
        assert world.calls == 1 + 20, "the one that is checked, and those captured"
        assert world.launches == 3 * (1 + 3), "on each rank once before the first time"


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


def test_what_is_host_bound_is_in_the_file_and_in_print(tmp_path: Path) -> None:
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
    printed = {line.split()[5]: line.split()[8] for line in measured_results.lines(found, 3) if " float32 " in line}
    assert printed == {"Ring": "10.00h", "Tree": "10.00"}


def test_the_slowest_gpu_of_a_process_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as (backend, _):
        monkeypatch.setattr(backend._local[1].lane, "between_us", lambda start, end: 2 * (end[0] - start[0]))
        assert backend.run(Point(AR, 1200), None, 2).times_us == (20.0, 20.0)


def test_sizes_that_are_no_whole_elements(tmp_path: Path) -> None:
    complaint = "^100 bytes: no whole number of float32 for AllGather on 3 ranks; valid: multiples of 12$"
    with opened(tmp_path) as (backend, _), pytest.raises(BadInput, match=complaint):
        backend.run(Point(AG, 100), None, 1)


def test_what_does_not_fit_is_not_offered(tmp_path: Path) -> None:
    with opened(tmp_path) as (backend, world):
        assert backend.combinations(Point(AR, 3 << 30)) == []
        assert world.calls == 0


def test_a_collective_that_hangs_ends_within_its_time(tmp_path: Path) -> None:
    with opened(tmp_path, limit_s=0.2) as (backend, world):
        world.hangs = True
        complaint = r"^a collective was not done within 0\.2 s: a rank is missing or hangs$"
        with pytest.raises(MeasuringFailed, match=complaint):
            backend.run(Point(AR, 1200), None, 1)
        assert world.ended == "aborted"
        with pytest.raises(MeasuringFailed, match=r"^the communicator has ended$"):
            backend.run(Point(AR, 1200), None, 1)


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


# Several processes: threads here, each with a rank of its own


class Slow(FakeNccl):
    """One rank of several: its calls take a time of its own and move no data."""

    def __init__(self, time_us: float) -> None:
        super().__init__()
        self._time_us, self.fails = time_us, False

    def end_group(self) -> None:
        if self.fails and self._pending:
            raise MeasuringFailed("ncclAllReduce returned 1 (unhandled cuda error)")
        self.calls += 1
        self.clock_us += self._time_us


class BlindLane(FakeLane):
    """Each rank finds two wrong elements."""

    def fill(self, *_: Any) -> None:
        """Nothing moves."""

    def wrong(self, *_: Any) -> int:
        return 2


class BlindCuda(FakeCuda):
    def lane(self, device: int) -> FakeLane:
        return BlindLane(self.world, device, self.folder)


@contextmanager
def three_processes(folder: Path) -> Iterator[tuple[Gpu, list[Slow], list[str]]]:
    worlds, ended = [Slow(10.0 * (rank + 1)) for rank in range(3)], [""] * 3
    pairs = {rank: socket.socketpair() for rank in (1, 2)}
    met = [
        Rendezvous(Place(0, 3, 0, "torchrun"), _peers={rank: pair[0] for rank, pair in pairs.items()}),
        *(Rendezvous(Place(rank, 3, rank, "torchrun"), _peers={0: pair[1]}) for rank, pair in pairs.items()),
    ]

    def make(rank: int) -> Gpu:
        options = Options(topology=folder / "topology.xml", limit_s=60, graphs_below_bytes=0)
        world = worlds[rank]
        return Gpu(
            met[rank], [0], options, Libraries(BlindCuda(world, folder), lambda variables: world, FakeForcing(world))
        )

    def serve(rank: int) -> None:
        try:
            make(rank).serve()
            ended[rank] = "closed"
        except MeasuringFailed as error:
            ended[rank] = str(error)

    threads = [threading.Thread(target=serve, args=(rank,)) for rank in pairs]
    for thread in threads:
        thread.start()
    backend = make(0)
    try:
        yield backend, worlds, ended
    finally:
        backend.close()
        for thread in threads:
            thread.join(60)


def test_the_slowest_rank_of_all_processes_counts(tmp_path: Path) -> None:
    with three_processes(tmp_path) as (backend, worlds, ended):
        assert backend.ranks == 3
        run = backend.run(Point(AR, 1200), TREE_LL, 2)
        assert (run.times_us, run.wrong) == ((30.0, 30.0), 6)
        assert {world.table for world in worlds} == {"nccl-tuner-table 1\n# rows: 1\nallreduce -> tree/ll\n# rows: 1\n"}
        backend.run(Point(AR, 1200), None, 2)
        assert {world.table for world in worlds} == {None}
        assert len({world.calls for world in worlds}) == 1, "all of them call as often"
    assert ended[1:] == ["closed", "closed"]
    assert {world.ended for world in worlds} == {"destroyed"}


def test_a_rank_that_fails_ends_all_with_its_own_words(tmp_path: Path) -> None:
    with three_processes(tmp_path) as (backend, worlds, ended):
        worlds[2].fails = True
        with pytest.raises(MeasuringFailed, match=r"^rank 2: ncclAllReduce returned 1 \(unhandled cuda error\)$"):
            backend.run(Point(AR, 1200), None, 1)
    assert ended[1].startswith("rank 0 is gone: ")
    assert ended[2] == "rank 2: ncclAllReduce returned 1 (unhandled cuda error)"
    assert {world.ended for world in worlds} == {"aborted"}


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

"""Measuring on GPUs: one communicator of libnccl on all local GPUs, or of all processes that a launcher started.

Rank 0 runs the loop and says what is next; the others do the same until it ends. Calls are forced by the forcing plugin
(csrc/force), without a new communicator. Times are of CUDA events around a few calls in a row, the slowest rank's.
"""

import os
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from tuner import release
from tuner.base.errors import BadInput, MeasuringFailed, TunerError
from tuner.base.names import Collective, DataType, Op
from tuner.measure.backend import Run
from tuner.measure.gpu import kernels
from tuner.measure.gpu.cuda import Cuda
from tuner.measure.gpu.executed import Log
from tuner.measure.gpu.nccl import Nccl
from tuner.measure.gpu.rendezvous import ALONE, Place, Rendezvous, place
from tuner.measure.records.header import CASE, case_record
from tuner.measure.records.samples import NOTED, Combination, Point
from tuner.oracle import library
from tuner.plugin import loading
from tuner.plugin.forcing import Forcing, forced
from tuner.scenario import Scenario

NAME = "gpu"
WHEELS = (library.WHEEL, "nvidia-nccl-cu13")
FORBIDDEN = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_PLUGIN", "NCCL_TUNER_TABLE", "NCCL_TUNER_CONFIG_FILE")
SEVERAL = "NCCL_MULTI_RANK_GPU_ENABLE"
CALLS = ((1 << 20, 20), (64 << 20, 5))  # calls in a row, of which one time is the mean: below so many bytes; else one
LEFT_BYTES = 2 << 30  # of a GPU's memory, for NCCL and CUDA
_FREE_S = 5.0  # that a broken communicator is given to end


@dataclass(frozen=True, slots=True)
class Options:
    """How the GPUs are measured, as the command line says it."""

    ranks_per_gpu: int = 1
    library: Path | None = None  # this libnccl instead of the installed wheel's
    topology: Path = Path("nccl-topology.xml")  # where NCCL's view of the machine is written
    limit_s: float = 60.0  # for each block, and for meeting


@dataclass
class Rank:
    """One rank of this process."""

    number: int
    lane: Any  # tuner.measure.gpu.cuda.Lane
    comm: Any = None


def options_of(header: Mapping[str, Any]) -> Options:
    """The options that a file with this header was measured with."""
    return Options(int(header["ranks_per_gpu"]), Path(header[NOTED]["library"]), Path(header[CASE]["topology"]))


def open_gpus(options: Options | None = None) -> "Gpu | None":
    """The backend, on rank 0. On other ranks it serves until rank 0 is done, and returns None.

    BadInput says what is missing here: cupy, GPUs, a libnccl with tuner plugins, a second rank.
    """
    options = options or Options()
    here = place(os.environ)
    if set_here := [name for name in FORBIDDEN if name in os.environ]:
        raise BadInput(f"{', '.join(set_here)} is set, and measuring forces what NCCL takes; valid: unset")
    cuda = Cuda()
    path = _library(options)
    if options.ranks_per_gpu > 1 and not allows_several(path):
        raise BadInput(f"{path} refuses several ranks on one GPU; valid: --ranks-per-gpu 1, or NCCL 2.30.3 and later")
    devices = devices_of(here, cuda.count, options.ranks_per_gpu)
    if here.world * len(devices) < 2:
        raise BadInput(
            "one rank has nothing to choose, NCCL only copies; valid: two GPUs or more, or --ranks-per-gpu 2 with "
            "NCCL 2.30.3 and later"
        )
    met = Rendezvous.meet(here, options.limit_s)
    try:
        gpu = Gpu(met, cuda, path, devices, options)
    except BaseException:
        met.close()
        raise
    if here.rank == 0:
        return gpu
    gpu.serve()
    return None


def devices_of(here: Place, count: int, ranks_per_gpu: int) -> list[int]:
    """The GPU of each rank of this process: all of them where nobody started it, else one.

    BadInput for more ranks than GPUs.
    """
    if here == ALONE:
        return [device for device in range(count) for _ in range(ranks_per_gpu)]
    device = here.local_rank // ranks_per_gpu
    if count > 1 and device >= count:
        raise BadInput(
            f"rank {here.rank} is number {here.local_rank} on its node, which has {count} GPUs; valid: no more ranks "
            f"than GPUs times --ranks-per-gpu"
        )
    return [device % count]  # a launcher may show each process its own GPU alone


def allows_several(path: Path) -> bool:
    """Whether this libnccl knows the variable that lets ranks share a GPU (src/init.cc, v2.30.3-1)."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(SEVERAL.encode()) >= 0


def _library(options: Options) -> Path:
    """The one given, else that of an installed wheel, of any CUDA: the program that is tuned has it too."""
    if options.library is not None:
        if not options.library.is_file():
            raise BadInput(f"{options.library} does not exist; valid: a libnccl.so.2")
        return options.library.resolve()
    for wheel in WHEELS:
        with suppress(PackageNotFoundError):
            if (found := Path(str(distribution(wheel).locate_file(library.MEMBER)))).is_file():
                return found
    raise BadInput(f"no libnccl: none of {', '.join(WHEELS)} is installed; valid: pip install {WHEELS[0]}")


class Gpu:
    """A Backend of :mod:`tuner.measure.backend` on rank 0; what serves it on the others."""

    def __init__(
        self,
        met: Rendezvous,
        cuda: Any,
        path: Path,
        devices: Sequence[int],
        options: Options,
        nccl: Any = None,
        forcing: Any = None,
    ) -> None:
        self._met, self._cuda, self._options = met, cuda, options
        self._folder = tempfile.TemporaryDirectory(prefix="nccl-tuner-measure-")
        self._log = Log(Path(self._folder.name) / "nccl.log")
        self._forcing = forcing or Forcing()
        self._nccl = nccl or Nccl(path, self._variables())
        self.release: str = self._nccl.release
        _check_release(self.release)
        self.ranks = met.place.world * len(devices)
        first = met.place.rank * len(devices)
        self._local = [Rank(first + number, cuda.lane(device)) for number, device in enumerate(devices)]
        self._free_bytes: int = cuda.free_bytes(devices[0])
        self._table: str | None = None
        self._offered: dict[Point, list[Combination]] = {}
        self._seed = 0
        self._closed = False
        self._hosts = met.gather([socket.gethostname(), len(devices)])
        try:
            self._init()
        except BaseException:
            self._folder.cleanup()
            raise

    def _variables(self) -> dict[str, str]:
        own = {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
            "NCCL_DEBUG_FILE": str(self._log.path),
            # The object is in the process already, and is found by its name in every release.
            "NCCL_TUNER_PLUGIN": self._forcing.path.name,
            "NCCL_TOPO_DUMP_FILE": str(self._options.topology.resolve()),
        }
        return {**own, SEVERAL: "1"} if self._options.ranks_per_gpu > 1 else own

    def _init(self) -> None:
        unique = self._met.share(self._nccl.unique_id().hex() if self._met.place.rank == 0 else None)
        handles = []
        self._nccl.start_group()
        for rank in self._local:
            with rank.lane.current():
                handles.append(self._nccl.init_rank(self.ranks, bytes.fromhex(unique), rank.number))
        try:
            self._nccl.end_group()
        except MeasuringFailed as error:
            warning = self._log.last_warning()
            raise MeasuringFailed(f"{error}; NCCL's last warning: {warning}" if warning else str(error)) from None
        for rank, handle in zip(self._local, handles, strict=True):
            rank.comm = handle[0]

    # --- Backend ---

    def describe(self) -> Mapping[str, Any]:
        """Machine, libraries and settings, for the head of the samples."""
        topology = self._options.topology
        nodes: dict[str, int] = {}
        for host, count in self._hosts:
            nodes[host] = nodes.get(host, 0) + count
        return {
            "backend": NAME,
            "ranks": self.ranks,
            "nccl": self.release,
            "library_sha256": library.sha256(self._nccl.path),
            CASE: case_record(
                Scenario(self.release, len(nodes), topology=topology, gpus_per_node=next(iter(nodes.values())))
            ),
            "gpu": self._cuda.name(self._local[0].lane.device),
            "ranks_per_gpu": self._options.ranks_per_gpu,
            "launcher": self._met.place.launcher,
            "calls_per_time": [list(step) for step in CALLS],
            "variables": {
                name: value
                for name, value in sorted(os.environ.items())
                if name.startswith("NCCL_") and name not in self._variables()
            },
            "topology_xml": topology.read_text() if topology.is_file() else None,
            NOTED: {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "hosts": sorted(nodes),
                "library": str(self._nccl.path),
                **self._cuda.noted(),
            },
        }

    def combinations(self, point: Point) -> list[Combination]:
        """The cells that NCCL hands its tuner for this very call, channels NCCL's own; none where memory is short."""
        kernels.definitions(point.dtype, point.op, self.ranks)
        if not self._fits(point):
            return []
        if (key := replace(point, in_place=False, graph=False)) not in self._offered:
            self._all({"do": "run", "point": asdict(key), "table": None, "repeats": 0})
            costs = self._forcing.seen().costs_us
            self._offered[key] = [Combination(algorithm, protocol) for algorithm, protocol, _ in costs]
        return self._offered[key]

    def run(self, point: Point, requested: Combination | None, repeats: int) -> Run:
        """Runs one collective ``repeats`` times on all ranks.

        MeasuringFailed where a rank fails, BadInput for what cannot run.
        """
        table = self._table
        if requested is not None:
            table = forced(point.collective, requested.algorithm, requested.protocol, requested.channels)
        self._log.skip()
        answers = self._all({"do": "run", "point": asdict(point), "table": table, "repeats": repeats})
        seen, executed = self._forcing.seen(), self._log.since(point.collective, requested)
        if requested is not None and not seen.decided:
            raise BadInput(f"{requested} cannot run {point.collective.name} of {point.bytes} bytes here")
        times = tuple(max(each) for each in zip(*(answer["times_us"] for answer in answers), strict=True))
        return Run(times, executed, sum(answer["wrong"] for answer in answers))

    def now_s(self) -> float:
        """Seconds of a clock that only goes forwards."""
        return time.monotonic()

    def use_table(self, text: str | None) -> None:
        """Lets a decision table decide what nobody asked for; None takes it away."""
        self._forcing.use_table(text)  # a mistake in it is said here and now
        self._table = text

    def close(self) -> None:
        """Ends the communicator on all ranks."""
        if self._closed:
            return
        self._closed = True
        with suppress(TunerError):
            self._met.share({"do": "close"})
        self._end(broken=False)

    # --- all ranks ---

    def _all(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """What every process made of an order. MeasuringFailed ends the communicator."""
        if self._closed:
            raise MeasuringFailed("the communicator has ended")
        self._seed += 1
        try:
            answers: list[dict[str, Any]] = self._met.gather(self._do(self._met.share({**order, "seed": self._seed})))
            if failed := [answer["error"] for answer in answers if "error" in answer]:
                raise MeasuringFailed(failed[0])
        except BaseException:
            self._closed = True
            self._end(broken=True)
            raise
        return answers

    def serve(self) -> None:
        """On other ranks: what rank 0 says, until it says close or is gone. MeasuringFailed where a rank fails."""
        broken = True
        try:
            while (order := self._met.share())["do"] != "close":
                answer = self._answer(order)
                self._met.gather(answer)
                if "error" in answer:
                    raise MeasuringFailed(answer["error"])
            broken = False
        finally:
            self._end(broken)

    def _answer(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._do(order)
        except TunerError as error:
            return {"error": f"rank {self._met.place.rank}: {error}"}

    def _end(self, broken: bool) -> None:
        def free() -> None:
            for rank in self._local:
                with suppress(TunerError), rank.lane.current():
                    (self._nccl.abort if broken else self._nccl.destroy)(rank.comm)

        freeing = threading.Thread(target=free, daemon=True)
        freeing.start()
        freeing.join(_FREE_S)
        self._met.close()
        self._folder.cleanup()

    # --- one block ---

    def _do(self, order: dict[str, Any]) -> dict[str, Any]:
        """One call whose result is checked, one that is not timed, then the repeats."""
        point, deadline_s = _point(order["point"]), time.monotonic() + self._options.limit_s
        self._forcing.use_table(order["table"])
        wrong = self._checked(point, order["seed"], deadline_s)
        times = self._timed(point, order["repeats"], deadline_s) if order["repeats"] else []
        return {"times_us": times, "wrong": wrong}

    def _checked(self, point: Point, seed: int, deadline_s: float) -> int:
        count = self._count(point)
        for rank in self._local:
            with rank.lane.current():
                send, _ = self._addresses(rank, point)
                root_only = point.collective is Collective.Broadcast
                items = count * (self.ranks if point.collective is Collective.ReduceScatter else 1)
                if not root_only or rank.number == 0:
                    rank.lane.fill(send, items, point.dtype, point.op, rank.number, self.ranks, seed)
        self._call(point)
        self._wait([(rank, self._mark(rank)) for rank in self._local], deadline_s)
        wrong = 0
        for rank in self._local:
            place = kernels.checked(point.collective, rank.number, self.ranks, count)
            if place is not None:
                with rank.lane.current():
                    n, first, per_rank = place
                    result = self._result(rank, point)
                    wrong += rank.lane.wrong(result, n, first, per_rank, point.dtype, point.op, self.ranks, seed)
        return wrong

    def _timed(self, point: Point, repeats: int, deadline_s: float) -> list[float]:
        calls = next((calls for below, calls in CALLS if point.bytes < below), 1)
        graphs = self._captured(point, calls) if point.graph else None
        self._call(point)  # the ranks' streams begin together
        marks: list[list[tuple[Any, Any]]] = [[] for _ in self._local]
        for _ in range(repeats):
            starts = [self._mark(rank) for rank in self._local]
            if graphs is None:
                for _ in range(calls):
                    self._call(point)
            else:
                for rank, graph in zip(self._local, graphs, strict=True):
                    with rank.lane.current():
                        rank.lane.launch(graph)
            for each, rank, start in zip(marks, self._local, starts, strict=True):
                each.append((start, self._mark(rank)))
        self._wait([(rank, each[-1][1]) for rank, each in zip(self._local, marks, strict=True)], deadline_s)
        return [
            max(rank.lane.between_us(*each[repeat]) for rank, each in zip(self._local, marks, strict=True)) / calls
            for repeat in range(repeats)
        ]

    def _captured(self, point: Point, calls: int) -> list[Any]:
        for rank in self._local:
            with rank.lane.current():
                rank.lane.begin_capture()
        for _ in range(calls):
            self._call(point)
        graphs = []
        for rank in self._local:
            with rank.lane.current():
                graphs.append(rank.lane.end_capture())
        return graphs

    def _call(self, point: Point) -> None:
        """The collective, once, on all ranks of this process."""
        count = self._count(point)
        self._nccl.start_group()
        for rank in self._local:
            with rank.lane.current():
                send, receive = self._addresses(rank, point)
                self._nccl.call(
                    point.collective, send, receive, count, point.dtype, point.op, rank.comm, rank.lane.stream
                )
        self._nccl.end_group()

    def _mark(self, rank: Rank) -> Any:
        with rank.lane.current():
            return rank.lane.mark()

    def _wait(self, marks: Sequence[tuple[Rank, Any]], deadline_s: float) -> None:
        """Until all are done; MeasuringFailed where NCCL failed, another process is gone, or it takes too long."""
        for rank, mark in marks:
            pause_s = 0.0
            while True:
                with rank.lane.current():
                    if rank.lane.done(mark):
                        break
                self._nccl.check_async(rank.comm)
                self._met.check()
                if time.monotonic() > deadline_s:
                    raise MeasuringFailed(
                        f"a collective was not done within {self._options.limit_s:g} s: a rank is missing or hangs"
                    )
                time.sleep(pause_s)
                pause_s = min(pause_s + 1e-4, 1e-2)

    # --- sizes and places ---

    def _count(self, point: Point) -> int:
        """Of elements, as the collective's own function takes it: per rank for AllGather and ReduceScatter."""
        unit = point.unit_bytes(self.ranks)
        if point.bytes < unit or point.bytes % unit:
            raise BadInput(
                f"{point.bytes} bytes: no whole number of {point.dtype.name} for {point.collective.name} on "
                f"{self.ranks} ranks; valid: multiples of {unit}"
            )
        return point.bytes // unit

    def _addresses(self, rank: Rank, point: Point) -> tuple[int, int]:
        """Where a rank sends from and receives to; in place as nccl.h says it for each collective."""
        part = point.bytes // self.ranks
        send_bytes = part if point.collective is Collective.AllGather else point.bytes
        receive_bytes = part if point.collective is Collective.ReduceScatter else point.bytes
        if not point.in_place:
            return rank.lane.buffer("send", send_bytes), rank.lane.buffer("receive", receive_bytes)
        both: int = rank.lane.buffer("receive", point.bytes)
        own = both + rank.number * part
        if point.collective is Collective.AllGather:
            return own, both
        return (both, own) if point.collective is Collective.ReduceScatter else (both, both)

    def _result(self, rank: Rank, point: Point) -> int:
        return self._addresses(rank, point)[1]

    def _fits(self, point: Point) -> bool:
        """Both buffers of all ranks on the GPU, whatever is allocated of them already."""
        return 2 * point.bytes * self._options.ranks_per_gpu + LEFT_BYTES <= self._free_bytes


def _check_release(name: str) -> None:
    """BadInput where it has no tuner plugins; one that has no table is taken for one that has."""
    if name in release.names():
        loading.interface(release.load(name))


def _point(record: Mapping[str, Any]) -> Point:
    return Point(
        Collective(record["collective"]),
        record["bytes"],
        DataType(record["dtype"]),
        Op(record["op"]),
        record["in_place"],
        record["graph"],
    )

"""The simulated computer as a process uses it: its devices, memory and streams, and the collectives on them."""

import functools
import hashlib
import os
import pickle
import signal
import time
import typing
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO

from tuner._native._sim import ffi, lib

from tests.support.double import errors, machine
from tests.support.double.contents import Altered, Contents, Formula, Part, Reduced, gathered, shallow
from tests.support.double.machine import Planted
from tests.support.double.settings import Fault, FaultKind
from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.oracle.answers import PATTERNS
from tuner.times.measured.samples import Combination, Point

_REDUCING = (Collective.Reduce, Collective.ReduceScatter, Collective.AllReduce)
_SPREAD = (Collective.AllGather, Collective.ReduceScatter)


@dataclass(frozen=True, slots=True)
class DoubleCommunicator:
    """One rank's part of a communicator; ``name`` is the same at all ranks."""

    name: str
    rank: int
    ranks: int
    device: int


@dataclass(frozen=True, slots=True)
class DoubleLaunch:
    """One collective at one rank. ``count`` is what its function took, addresses are the device's."""

    communicator: DoubleCommunicator
    collective: Collective
    dtype: DataType
    op: Op
    root: int
    count: int
    send: int
    receive: int
    stream: int
    device: int
    combination: Combination

    @property
    def point(self) -> Point:
        """The call; whether in place or in a graph makes no difference to its planted time."""
        spread = self.communicator.ranks if self.collective in _SPREAD else 1
        return Point(self.collective, self.count * spread * self.dtype.size_bytes, self.dtype, self.op)


class DoubleLaunches:
    """Reads the record: a kernel runs the call that its stream got last before."""

    def __init__(self) -> None:
        self._patterns = machine.machine().patterns
        self._communicators: dict[int, DoubleCommunicator] = {}

    def new(self) -> list[DoubleLaunch]:
        """What was launched since the last look. RuntimeError for launches that no call explains."""
        seen = machine.seen()
        for each in seen.joined:
            name = bytes(ffi.buffer(each.id)).hex()
            self._communicators[_int(each.comm)] = DoubleCommunicator(name, each.rank, each.ranks, each.device)
        waiting: dict[int, list[Any]] = defaultdict(list)
        for each in seen.called:
            waiting[_int(each.stream)].append(each)
        found = []
        for number, kernel in enumerate(seen.kernels):
            calls = waiting[_int(kernel.stream)]
            here = [call for call in calls if call.kernels <= number]
            if len(here) != 1:
                raise RuntimeError(f"a kernel was launched for {len(here)} calls; valid: a launch for each call")
            (call,) = here
            calls.remove(call)
            until = calls[0].operations if calls else len(seen.operations)
            operations = [each for each in seen.operations[call.operations : until] if each.comm == call.comm]
            found.append(self._launch(call, kernel, self._combination(operations, kernel)))
        return found

    def _launch(self, call: Any, kernel: Any, combination: Combination) -> DoubleLaunch:
        collective = Collective(call.collective)
        return DoubleLaunch(
            communicator=self._communicators[_int(call.comm)],
            collective=collective,
            dtype=DataType(call.type),
            op=Op(call.op) if collective in _REDUCING else Op.sum,
            root=call.root,
            count=call.count,
            send=_int(call.send),
            receive=_int(call.receive),
            stream=_int(call.stream),
            device=kernel.device,
            combination=combination,
        )

    def _combination(self, operations: Sequence[Any], kernel: Any) -> Combination:
        """By the operations that NCCL prepares for its network, one a channel, whether they are needed or not."""
        chosen = {(self._patterns[str(each.pattern)], each.protocol) for each in operations}
        algorithms = {PATTERNS.get(pattern.removeprefix("ncclPattern")) for pattern, _ in chosen}
        protocols = {Protocol(protocol) for _, protocol in chosen}
        if len(algorithms) != 1 or len(protocols) != 1 or None in algorithms:
            raise RuntimeError(f"a kernel was launched for operations {sorted(chosen)}; valid: those of one collective")
        (algorithm,), (protocol,) = algorithms, protocols
        assert isinstance(algorithm, Algorithm)
        return Combination(algorithm, protocol, int(kernel.grid_x))


def _int(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


Key = tuple[str, int]  # a communicator's name, and the number of the collective in it
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rank whose kernel has begun: on which GPU of all, when (us of the virtual clock), what it runs and sends."""

    rank: int
    gpu: int
    at_us: float
    combination: Combination
    sent: Formula


class Meeting:
    """Arrivals of all ranks. With ``processes`` others, those of each are in a file of its own in ``folder``."""

    def __init__(self, folder: Path, process: int, processes: int) -> None:
        self._folder, self._process, self._processes = folder, process, processes
        self._here: dict[Key, dict[int, Arrival]] = {}
        self._left: dict[Key, int] = {}
        self._own: dict[str, BinaryIO] = {}  # by communicator, as the others
        self._others: dict[tuple[str, int], BinaryIO] = {}

    def arrive(self, key: Key, arrival: Arrival) -> None:
        """Once for each rank of this process."""
        self._here.setdefault(key, {})[arrival.rank] = arrival
        if self._processes > 1:
            content = pickle.dumps((key, arrival), pickle.HIGHEST_PROTOCOL)
            own = self._own.get(key[0]) or self._own.setdefault(key[0], self._file(key[0], self._process).open("wb"))
            own.write(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
            own.flush()

    def all_arrived(self, key: Key, ranks: int) -> dict[int, Arrival] | None:
        """By rank; None as long as one is missing."""
        if len(self._here.get(key, {})) < ranks and self._processes > 1:
            self._look(key[0])
        arrived = self._here.get(key, {})
        return arrived if len(arrived) == ranks else None

    def leave(self, key: Key, local_ranks: int) -> None:
        """Each rank of this process, when it has its result."""
        self._left[key] = self._left.get(key, 0) + 1
        if self._left[key] == local_ranks:
            del self._left[key], self._here[key]

    def _look(self, communicator: str) -> None:
        for process in range(self._processes):
            other, path = (communicator, process), self._file(communicator, process)
            if process != self._process and other not in self._others and path.exists():
                self._others[other] = path.open("rb")
            while other in self._others and (found := _next(self._others[other])) is not None:
                key, arrival = found
                self._here.setdefault(key, {})[arrival.rank] = arrival

    def _file(self, communicator: str, process: int) -> Path:
        return self._folder / f"arrivals-{hashlib.sha256(communicator.encode()).hexdigest()[:16]}-{process}"


def _next(file: BinaryIO) -> tuple[Key, Arrival] | None:
    """The next whole arrival; None where there is none yet."""
    start = file.tell()
    head = file.read(_LENGTH_BYTES)
    length = int.from_bytes(head, "little")
    content = file.read(length) if len(head) == _LENGTH_BYTES else b""
    if not content or len(content) < length:
        file.seek(start)  # written in part: a page may be there before the next one is
        return None
    found: tuple[Key, Arrival] = pickle.loads(content)
    return found


NOT_READY = 600  # cudaErrorNotReady


class StreamWork(typing.Protocol):
    """One thing on a stream."""

    def done_us(self, start_us: float) -> float | None:
        """Does it; when it ends if it begins at ``start_us``. None where that cannot be known yet."""


@dataclass(slots=True)
class Own:
    """What only concerns its own device: done at once."""

    do: Callable[[], None]

    def done_us(self, start_us: float) -> float:
        """It takes no time: what is timed are collectives."""
        self.do()
        return start_us


@dataclass(slots=True, eq=False)
class Mark:
    """An event, recorded."""

    at_us: float | None = None

    def done_us(self, start_us: float) -> float:
        """Its time is when everything before is done."""
        self.at_us = start_us
        return start_us


@dataclass(slots=True)
class AfterMark:
    """A wait for a mark of another stream."""

    mark: Mark

    def done_us(self, start_us: float) -> float | None:
        """When both are there; None as long as the mark has no time."""
        return None if self.mark.at_us is None else max(start_us, self.mark.at_us)


@dataclass(slots=True)
class Computing:
    """A kernel that takes this long and touches nothing that is looked at."""

    time_us: float

    def done_us(self, start_us: float) -> float:
        """When its time is over."""
        return start_us + self.time_us


@dataclass(slots=True, eq=False)
class Stream:
    """``captured`` is the work of the graph that is being made of it; None where it runs."""

    device: int
    at_us: float = 0.0
    error: int = 0  # of CUDA, which stays
    captured: list[StreamWork] | None = None
    _waiting: deque[tuple[StreamWork, float]] = field(default_factory=deque)

    def put(self, work: StreamWork, issued_us: float) -> None:
        """It begins when the work before is done, and not before the host has issued it."""
        if self.captured is not None:
            self.captured.append(work)
        else:
            self._waiting.append((work, issued_us))

    @property
    def busy(self) -> bool:
        """Whether something is still to be done."""
        return bool(self._waiting)

    def go_on(self) -> bool:
        """Does what can be done; whether that is all."""
        while self._waiting and not self.error:
            work, issued_us = self._waiting[0]
            try:
                done_us = work.done_us(max(self.at_us, issued_us))
            except PlantedError as planted:
                self.error = planted.status
                return False
            if done_us is None:
                return False
            self.at_us = done_us
            self._waiting.popleft()
        return not self._waiting


class PlantedError(Exception):
    """An error of CUDA ends the stream's work."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


MULTIPROCESSORS = 132  # of each GPU, as csrc/sim tells NCCL
MEMORY_BYTES = 80 << 30  # of each GPU, as csrc/sim tells NCCL
CONTEXT_BYTES = 1 << 30  # of it that CUDA and NCCL have


@dataclass(eq=False)
class Running:
    """One rank's kernel of a collective. ``number`` counts the communicator's collectives at this rank."""

    computer: "Computer"
    launch: DoubleLaunch
    number: int | None = None
    ended: bool = False

    def done_us(self, start_us: float) -> float | None:
        """When the slowest rank's kernel has begun and the planted time is over; None as long as one is missing."""
        computer, launch = self.computer, self.launch
        communicator = launch.communicator
        if self.number is None:
            self.number = computer.begin(launch, start_us)
        if computer.fault(FaultKind.hang, communicator.rank, self.number):
            return None
        key = communicator.name, self.number
        arrived = computer.meeting.all_arrived(key, communicator.ranks)
        if arrived is None or not _fit(arrived.values()):
            return None
        if fault := computer.fault(FaultKind.error, communicator.rank, self.number):
            raise PlantedError(errors.number(fault.error))
        time_us = computer.planted.time_us(launch.point, launch.combination, communicator.ranks, self.number)
        computer.write(launch, key, arrived)
        if computer.planted_wrong(communicator.rank, self.number):
            computer.spoil(launch)
        computer.meeting.leave(key, computer.local_ranks(communicator.name))
        if computer.settings.of_rank(FaultKind.slow, communicator.rank):
            time_us *= 2
        return max(each.at_us for each in arrived.values()) + time_us


@dataclass(eq=False)
class Again:
    """A graph's work: each launch of the graph does it anew."""

    work: list[StreamWork] = field(default_factory=list)

    def copies(self) -> list[StreamWork]:
        """What one launch puts on a stream."""
        return [Running(each.computer, each.launch) if isinstance(each, Running) else each for each in self.work]


def _fit(arrived: Collection[Arrival]) -> bool:
    """Whether the kernels come to an end: they run the same, and a GPU's blocks fit on its multiprocessors at once."""
    blocks: Counter[int] = Counter()
    for each in arrived:
        blocks[each.gpu] += each.combination.channels
    return len({each.combination for each in arrived}) == 1 and max(blocks.values()) <= MULTIPROCESSORS


class Computer:
    """There is one in a process: :func:`computer`."""

    def __init__(self) -> None:
        self.machine = machine.machine()
        settings = self.settings = self.machine.settings
        processes = settings.ranks if settings.process_per_rank else 1
        self.meeting = Meeting(self.machine.folder, self.machine.process, processes)
        self.planted = Planted(settings)
        self.contents = Contents()
        self.streams: dict[int, Stream] = {}
        self.marks: dict[int, Mark] = {}  # of events that were recorded
        self.event_device: dict[int, int] = {}
        self._events = 0
        self._objects: list[Any] = []  # whose addresses are streams
        self.host_us = 0.0
        self.free_bytes = dict.fromkeys(range(self.machine.gpus), MEMORY_BYTES - CONTEXT_BYTES)
        self._launches = DoubleLaunches()
        self._counts: Counter[tuple[str, int]] = Counter()  # collectives begun, by communicator and rank
        self._begun: Counter[int] = Counter()  # launches by rank
        self._results: dict[Key, tuple[Formula, int]] = {}
        self._ranks: dict[str, set[int]] = {}
        self.launched: Counter[tuple[Point, Combination]] = Counter()  # what ran how often; whoever asks may clear it
        for fault in settings.faults:
            here = not settings.process_per_rank or fault.rank == self.machine.process
            if here and fault.kind is FaultKind.launch_error:
                lib.sim_plant_launch_error(errors.number(fault.error), fault.after)

    # --- devices ---

    @property
    def gpu(self) -> int:
        """The current one, among those of this process' node."""
        return self.machine.gpu(lib.sim_current_device())

    def use(self, gpu: int) -> None:
        """Makes it the thread's."""
        lib.sim_select_device(self.machine.device(gpu))

    def stream(self, address: int) -> Stream:
        """KeyError where there is none there."""
        return self.streams[address]

    def new_stream(self) -> int:
        """The address of one on the current device."""
        self._objects.append(ffi.new("char[16]"))
        address = int(ffi.cast("uintptr_t", self._objects[-1]))
        self.streams[address] = Stream(self.gpu)
        return address

    def new_event(self) -> int:
        """The address of one on the current device."""
        self._events += 1
        self.event_device[self._events] = self.gpu
        return self._events

    def forget_event(self, event: int) -> None:
        """It is not asked for any more."""
        self.marks.pop(event, None)
        del self.event_device[event]

    def begin_capture(self, stream: int) -> None:
        """What is put on the stream is not done, here and for libnccl."""
        if lib.sim_capture_begin(ffi.cast("void *", stream)) != 0:
            raise MemoryError
        self.streams[stream].captured = []

    def end_capture(self, stream: int) -> tuple[Again, int]:
        """What was put on it, and the graph that libnccl knows."""
        graph = lib.sim_capture_end(ffi.cast("void *", stream))
        work = Again(self.streams[stream].captured or [])
        self.streams[stream].captured = None
        return work, int(ffi.cast("uintptr_t", graph))

    # --- work ---

    def take_launches(self) -> None:
        """Puts what libnccl has launched on its streams."""
        for launch in self._launches.new():
            rank = launch.communicator.rank
            self._ranks.setdefault(launch.communicator.name, set()).add(rank)
            stream = self.streams[launch.stream]
            if self.machine.gpu(launch.device) != stream.device:
                stream.error = errors.number("cudaErrorInvalidResourceHandle")
            if stream.captured is None:
                self.issue()
            stream.put(Running(self, launch), self.host_us)
            if stream.captured is None:
                self.launched[launch.point, launch.combination] += 1
            killed = self.settings.of_rank(FaultKind.killed, rank)
            if killed is not None and self._begun[rank] >= killed.after:
                os.kill(os.getpid(), signal.SIGKILL)
            self._begun[rank] += 1

    def issue(self) -> None:
        """The host issues one launch."""
        self.host_us += self.settings.host_us

    def put(self, stream: Stream, work: StreamWork) -> None:
        """Behind what libnccl has launched before."""
        self.take_launches()
        stream.put(work, self.host_us)

    def launch(self, graph: Again, stream: Stream) -> None:
        """All of a graph's work, issued at once."""
        self.take_launches()
        self.issue()
        for work in graph.copies():
            stream.put(work, self.host_us)
            if isinstance(work, Running):
                self.launched[work.launch.point, work.launch.combination] += 1

    def go_on(self) -> None:
        """Does what can be done on all streams: one may wait for another."""
        self.take_launches()
        before: list[float] = []
        while before != (now := [stream.at_us for stream in self.streams.values()]):
            before = now
            for stream in list(self.streams.values()):
                stream.go_on()

    # --- collectives ---

    def begin(self, launch: DoubleLaunch, start_us: float) -> int:
        """Informs the other ranks; the number of the collective."""
        communicator = launch.communicator
        counted = communicator.name, communicator.rank
        number = self._counts[counted]
        self._counts[counted] += 1
        spread = communicator.ranks if launch.collective is Collective.ReduceScatter else 1
        sent = self.contents.read(launch.send, launch.count * spread, launch.dtype.size_bytes)
        arrival = Arrival(
            communicator.rank,
            self.machine.start.machine.kind[0].gpus_per_host * self.machine.host + self.machine.gpu(launch.device),
            start_us,
            launch.combination,
            shallow(sent, launch.dtype.size_bytes),
        )
        self.meeting.arrive((communicator.name, number), arrival)
        return number

    def write(self, launch: DoubleLaunch, key: Key, arrived: dict[int, Arrival]) -> None:
        """This rank's result of a collective."""
        communicator, bytes_each = launch.communicator, launch.dtype.size_bytes
        if launch.collective is Collective.Reduce and communicator.rank != launch.root:
            return
        sent = [arrived[rank].sent for rank in range(communicator.ranks)]
        if launch.collective is Collective.Broadcast:
            result, count = sent[launch.root], launch.count
        elif launch.collective is Collective.AllGather:
            result, count = gathered(sent, launch.count), launch.count * communicator.ranks
        else:
            if key not in self._results:
                self._results.clear()  # of the last one: all ranks of a process have one after the other the same
                self._results[key] = Reduced(tuple(sent), launch.dtype, launch.op), launch.count
            result, count = self._results[key]
            if launch.collective is Collective.ReduceScatter:
                result = Part(result, communicator.rank * count)
        self.contents.write(launch.receive, count, bytes_each, result)

    def spoil(self, launch: DoubleLaunch) -> None:
        """Makes one element of a rank's result wrong."""
        count = launch.count * (launch.communicator.ranks if launch.collective is Collective.AllGather else 1)
        found = self.contents.read(launch.receive, count, launch.dtype.size_bytes)
        self.contents.write(launch.receive, count, launch.dtype.size_bytes, Altered(found, count - 1))

    def local_ranks(self, communicator: str) -> int:
        """How many of its ranks are in this process."""
        return len(self._ranks[communicator])

    def fault(self, kind: FaultKind, rank: int, number: int) -> Fault | None:
        """The one that is planted at this collective."""
        found = self.settings.of_rank(kind, rank)
        return found if found is not None and found.after == number else None

    def planted_wrong(self, rank: int, number: int) -> bool:
        """Whether results are to be wrong, from one on."""
        found = self.settings.of_rank(FaultKind.wrong, rank)
        return found is not None and number >= found.after

    # --- memory ---

    def allocate(self, size_bytes: int) -> int | None:
        """An address on the current device; None where memory is short."""
        if size_bytes > self.free_bytes[self.gpu]:
            return None
        self.free_bytes[self.gpu] -= size_bytes
        return int(ffi.cast("uintptr_t", lib.sim_allocate(size_bytes)))

    def fill(self, address: int, value: int, size_bytes: int) -> None:
        """Bytes of one value; as memory, not as a formula."""
        self.contents.forget(address, address + size_bytes)
        ffi.memmove(ffi.cast("char *", address), bytes([value]) * size_bytes, size_bytes)

    def add(self, address: int, number: int) -> None:
        """To a counter of 64 bits."""
        ffi.cast("uint64_t *", address)[0] += number

    def release(self, address: int, size_bytes: int, gpu: int) -> None:
        """Gives memory back."""
        self.free_bytes[gpu] += size_bytes
        self.contents.forget(address, address + size_bytes)
        lib.sim_release(ffi.cast("void *", address))


@functools.cache
def computer() -> Computer:
    """This process' own. KeyError outside of a double's environment.

    The clock that measuring reads the host's time from is the virtual one from here on: a busy computer is no slow
    host.
    """
    made = Computer()
    time.perf_counter = lambda: made.host_us * 1e-6
    return made

"""Makes calls on the ranks of this process: checks and times them, in CUDA graphs if requested."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, MeasuringFailed
from tuner.base.names import Collective
from tuner.bench.backend import Options
from tuner.bench.gpu import kernels
from tuner.bench.gpu.nccl import Nccl
from tuner.bench.gpu.rendezvous import Rendezvous
from tuner.times.measured.samples import Point

# Below each of these sizes: number of calls in a row, of which one time is the mean; above, single calls
CALLS = ((1 << 20, 20), (64 << 20, 5))


@dataclass()
class Rank:
    """One rank of this process."""

    number: int
    lane: Any  # tuner.bench.gpu.cuda.Lane
    comm: Any = None


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of one call in us, `[repeat]`, on the slowest rank of this process.

    ``host_us`` is the least time that the host took to start a call.

    ``whole_us`` is, for each rank of this process, the time in us from before the first call to the end of the last
    one.
    """

    times_us: tuple[float, ...]
    host_us: float
    whole_us: tuple[float, ...] = ()


class Calls:
    """Makes calls on ``local`` ranks, out of ``ranks`` ranks in all; ``options`` say which calls are in graphs, and how
    long a block may take."""

    def __init__(self, nccl: Nccl, met: Rendezvous, local: Sequence[Rank], ranks: int, options: Options) -> None:
        self._nccl, self._met, self._local, self._ranks, self._options = nccl, met, local, ranks, options
        self._host_s = time.perf_counter

    def checked(self, point: Point, seed: int, deadline_s: float) -> int:
        """Makes one call and returns the number of wrong elements in its results. MeasuringFailed after the
        deadline.
        """
        count, values = self._count(point), kernels.Values(point.dtype, point.op, self._ranks, seed)
        for rank in self._local:
            with rank.lane.current():
                send, _ = self._addresses(rank, point)
                root_only = point.collective is Collective.Broadcast
                items = count * (self._ranks if point.collective is Collective.ReduceScatter else 1)
                if not root_only or rank.number == 0:
                    rank.lane.fill(send, items, rank.number, values)
        done = [(rank, self._marks(rank, 1)[0]) for rank in self._local]
        with self._local[0].lane.current():
            self._several(self._prepared(point), 1)
            for rank, mark in done:
                rank.lane.record(mark)
        self._wait(done, deadline_s)
        wrong = 0
        for rank in self._local:
            check = kernels.checked(point.collective, rank.number, self._ranks, count)
            if check is not None:
                with rank.lane.current():
                    _, result = self._addresses(rank, point)
                    wrong += rank.lane.wrong(result, check, values)
        return wrong

    def timed(self, point: Point, repeats: int, deadline_s: float) -> Timed:
        """Times the repeats on all ranks of this process. MeasuringFailed after the deadline."""
        calls = next((calls for below, calls in CALLS if point.bytes < below), 1)
        once = self._prepared(point)
        if point.graph or point.bytes < self._options.graphs_below_bytes:
            start = self._graphs(once, calls)
        else:
            start = partial(self._several, once, calls)
        starts, ends = ([self._marks(rank, repeats) for rank in self._local] for _ in range(2))
        idle = [self._marks(rank, 1)[0] for rank in self._local]
        host_s = []
        try:
            with self._local[0].lane.current():
                for rank, mark in zip(self._local, idle, strict=True):
                    rank.lane.record(mark)
                start()  # so that the streams of the ranks begin together, and a graph is on its GPU
                for repeat in range(repeats):
                    before_s = self._host_s()
                    for rank, marks in zip(self._local, starts, strict=True):
                        rank.lane.record(marks[repeat])
                    start()
                    for rank, marks in zip(self._local, ends, strict=True):
                        rank.lane.record(marks[repeat])
                    host_s.append(self._host_s() - before_s)
            self._wait([(rank, marks[-1]) for rank, marks in zip(self._local, ends, strict=True)], deadline_s)
        finally:
            # An error would keep the graphs alive, and NCCL does not end a communicator for which graphs have work
            del start
        times_us = [
            max(
                rank.lane.between_us(first[repeat], last[repeat])
                for rank, first, last in zip(self._local, starts, ends, strict=True)
            )
            / calls
            for repeat in range(repeats)
        ]
        # Ranks wait for each other in every call, so that only the end of all calls shows which of them is late.
        whole_us = [
            rank.lane.between_us(mark, last[-1]) for rank, mark, last in zip(self._local, idle, ends, strict=True)
        ]
        return Timed(tuple(times_us), min(host_s) * 1e6 / calls, tuple(whole_us))

    def in_a_row(self, point: Point, calls: int, deadline_s: float) -> float:
        """The mean time in us of ``calls`` calls in a row, as nccl-tests measures it.

        The host's clock runs from before the first call until all calls are done; they are not in graphs.
        MeasuringFailed after the deadline.
        """
        once, ends = self._prepared(point), [(rank, self._marks(rank, 1)[0]) for rank in self._local]
        with self._local[0].lane.current():
            start_s = self._host_s()
            self._several(once, calls)
            for rank, mark in ends:
                rank.lane.record(mark)
            while not all(rank.lane.done(mark) for rank, mark in ends) and time.monotonic() < deadline_s:
                continue  # no pause, because it would be part of the time
            time_us = (self._host_s() - start_s) * 1e6 / calls
        self._wait(ends, deadline_s)
        return time_us

    def _graphs(self, once: Sequence[Callable[[], None]], calls: int) -> Callable[[], None]:
        """A function that launches a graph of ``calls`` calls on all ranks of this process."""
        for rank in self._local:
            with rank.lane.current():
                rank.lane.begin_capture()
        try:
            with self._local[0].lane.current():
                self._several(once, calls)
        except MeasuringFailed:
            for rank in self._local:  # the captured graphs have to go, for the same reason
                with suppress(MeasuringFailed), rank.lane.current():
                    rank.lane.end_capture()
            raise
        launches = []
        for rank in self._local:
            with rank.lane.current():
                graph = rank.lane.end_capture()
                rank.lane.upload(graph)
                launches.append(partial(rank.lane.launch, graph))

        def launch() -> None:
            for each in launches:
                each()

        return launch

    def _several(self, once: Sequence[Callable[[], None]], calls: int) -> None:
        """Makes ``calls`` calls in a row, each on all ranks of this process."""
        for _ in range(calls):
            self._nccl.start_group()
            for each in once:
                each()
            self._nccl.end_group()

    def _prepared(self, point: Point) -> list[Callable[[], None]]:
        """The prepared call on each rank of this process."""
        count, prepared = self._count(point), []
        for rank in self._local:
            with rank.lane.current():
                addresses = self._addresses(rank, point)
            prepared.append(self._nccl.prepared(point, addresses, count, rank.comm, rank.lane.stream))
        return prepared

    def _marks(self, rank: Rank, count: int) -> list[Any]:
        with rank.lane.current():
            return [rank.lane.mark() for _ in range(count)]

    def _wait(self, marks: Sequence[tuple[Rank, Any]], deadline_s: float) -> None:
        """Waits until all marks are reached. MeasuringFailed if NCCL failed, another process is gone, or it takes too
        long.
        """
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

    def _count(self, point: Point) -> int:
        """The number of elements in the form of the collective's function: per rank for AllGather and ReduceScatter."""
        unit = point.unit_bytes(self._ranks)
        if point.bytes < unit or point.bytes % unit:
            raise BadInput(
                f"{point.bytes} bytes are not a whole number of {point.dtype.name} elements for "
                f"{point.collective.name} on {self._ranks} ranks: give multiples of {unit}"
            )
        return point.bytes // unit

    def _addresses(self, rank: Rank, point: Point) -> tuple[int, int]:
        """The addresses from which a rank sends and to which it receives; in place, these are as nccl.h defines for
        each collective."""
        part = point.bytes // self._ranks
        send_bytes = part if point.collective is Collective.AllGather else point.bytes
        receive_bytes = part if point.collective is Collective.ReduceScatter else point.bytes
        if not point.in_place:
            return rank.lane.buffer("send", send_bytes), rank.lane.buffer("receive", receive_bytes)
        both: int = rank.lane.buffer("receive", point.bytes)
        own = both + rank.number * part
        if point.collective is Collective.AllGather:
            return own, both
        return (both, own) if point.collective is Collective.ReduceScatter else (both, both)

"""The calls of a point on the ranks of this process: checked, timed, in CUDA graphs where the point says so."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.base.errors import BadInput, MeasuringFailed
from tuner.base.names import Collective
from tuner.measure.gpu import kernels
from tuner.measure.gpu.nccl import Nccl
from tuner.measure.gpu.rendezvous import Rendezvous
from tuner.measure.records.samples import Point

CALLS = ((1 << 20, 20), (64 << 20, 5))  # calls in a row, of which one time is the mean: below so many bytes; else one


@dataclass
class Rank:
    """One rank of this process."""

    number: int
    lane: Any  # tuner.measure.gpu.cuda.Lane
    comm: Any = None


class Calls:
    """Calls on ``local`` of ``ranks`` ranks; ``limit_s`` is what an error names where one takes too long."""

    def __init__(self, nccl: Nccl, met: Rendezvous, local: Sequence[Rank], ranks: int, limit_s: float) -> None:
        self._nccl, self._met, self._local, self._ranks, self._limit_s = nccl, met, local, ranks, limit_s

    def checked(self, point: Point, seed: int, deadline_s: float) -> int:
        """How many elements of the results of one call are wrong. MeasuringFailed past the deadline."""
        count, values = self._count(point), kernels.Values(point.dtype, point.op, self._ranks, seed)
        for rank in self._local:
            with rank.lane.current():
                send, _ = self._addresses(rank, point)
                root_only = point.collective is Collective.Broadcast
                items = count * (self._ranks if point.collective is Collective.ReduceScatter else 1)
                if not root_only or rank.number == 0:
                    rank.lane.fill(send, items, rank.number, values)
        self._call(point)
        self._wait([(rank, self._mark(rank)) for rank in self._local], deadline_s)
        wrong = 0
        for rank in self._local:
            check = kernels.checked(point.collective, rank.number, self._ranks, count)
            if check is not None:
                with rank.lane.current():
                    _, result = self._addresses(rank, point)
                    wrong += rank.lane.wrong(result, check, values)
        return wrong

    def timed(self, point: Point, repeats: int, deadline_s: float) -> list[float]:
        """Times in us, [repeat], of the slowest rank here. MeasuringFailed past the deadline."""
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
                self._nccl.call(point, self._addresses(rank, point), count, rank.comm, rank.lane.stream)
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
                        f"a collective was not done within {self._limit_s:g} s: a rank is missing or hangs"
                    )
                time.sleep(pause_s)
                pause_s = min(pause_s + 1e-4, 1e-2)

    def _count(self, point: Point) -> int:
        """Of elements, as the collective's own function takes it: per rank for AllGather and ReduceScatter."""
        unit = point.unit_bytes(self._ranks)
        if point.bytes < unit or point.bytes % unit:
            raise BadInput(
                f"{point.bytes} bytes: no whole number of {point.dtype.name} for {point.collective.name} on "
                f"{self._ranks} ranks; valid: multiples of {unit}"
            )
        return point.bytes // unit

    def _addresses(self, rank: Rank, point: Point) -> tuple[int, int]:
        """Where a rank sends from and receives to; in place as nccl.h says it for each collective."""
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

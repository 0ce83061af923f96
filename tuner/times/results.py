"""Summarises measurements: for each call, one result for every request."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from statistics import median

from tuner.base.dataclass import dataclass
from tuner.base.names import Collective, DataType, Op
from tuner.base.records import json_form
from tuner.times.costmodels.operations import algorithm_gbs, bus_factor
from tuner.times.measured.samples import Combination, Point, SampleBlock, Task
from tuner.times.statistics import (
    Estimate,
    RunNoise,
    correlation,
    logs_by_process,
    of_runs_or_blocks,
    timer_steps_us,
)

LATE, LATE_MOSTLY, LATE_BLOCKS = (
    0.2,
    0.75,
    3,
)  # share of a call's duration by which a rank is late, in this share of the sample blocks and in at least this many
ONE_PROCESS_US, SEVERAL_PROCESSES_US = 50.0, 500.0  # calls that take ten times as long as starting the ranks


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a request at a point. ``executed`` is what the last block ran; ``estimate`` is None if no time counts.
    ``wrong`` counts wrong results.

    ``host_bound``: whether most blocks take no longer than the host needs to start such calls; None if not checked.
    ``samples`` and ``processes``: how many sample blocks count, and how many processes they come from.
    """

    point: Point
    requested: Combination | None
    executed: Combination | None
    estimate: Estimate | None
    blocks: int
    replaced: int
    wrong: int
    host_bound: bool | None = None
    samples: int = 0
    processes: int = 0


@dataclass()
class TaskSamples:
    """Collects the sample blocks of one task. ``blocks`` counts them, ``replaced`` those that ran another combination.

    The lists are for blocks that count: medians in us with the process of each, all times, and whether the block was
    host-bound, if that was checked. ``wrong`` counts wrong results, ``wrong_blocks`` the sample blocks that have any.
    """

    times_us: list[float] = field(default_factory=list)
    medians_us: list[float] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    host_bound: list[bool] = field(default_factory=list)
    blocks: int = 0
    replaced: int = 0
    wrong: int = 0
    wrong_blocks: int = 0
    last: SampleBlock | None = None

    def add(self, block: SampleBlock) -> None:
        """Adds one more sample block."""
        self.blocks, self.last = self.blocks + 1, block
        self.replaced += block.replaced
        self.wrong, self.wrong_blocks = self.wrong + block.wrong, self.wrong_blocks + (block.wrong > 0)
        if block.counts:
            self.times_us.extend(block.times_us)
            self.medians_us.append(block.median_us)
            self.processes.append(block.process)
            if block.host_us is not None:
                self.host_bound.append(block.host_bound)

    def result(self, task: Task, noise: RunNoise) -> Result:
        """The result so far, given the ``noise`` of the run."""
        known = self.host_bound
        return Result(
            task.point,
            task.requested,
            self.last.executed if self.last is not None else None,
            of_runs_or_blocks(self.medians_us, self.processes, self.times_us, noise) if self.medians_us else None,
            self.blocks,
            self.replaced,
            self.wrong,
            sum(known) * 2 > len(known) if known else None,
            len(self.times_us),
            len(set(self.processes)),
        )


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that ends later than the median rank. ``late`` is its delay divided by the duration of a call, as the mean
    over ``blocks`` sample blocks. In ``late_blocks`` of these, the delay is at least LATE times that duration.
    """

    rank: int
    late: float
    late_blocks: int
    blocks: int


def late_ranks(blocks: Iterable[SampleBlock], launcher: str | None) -> list[LateRank]:
    """Ranks that are late in most sample blocks, the latest first.

    Ranks wait for each other in every call, so a slow rank makes all ranks equally slow and shows only at the end of a
    sample block. Calls count only if they take long compared with the time in which the ranks are started one after the
    other.
    """
    least_us = ONE_PROCESS_US if launcher in (None, "none") else SEVERAL_PROCESSES_US
    of_long_calls = [block for block in blocks if block.counts and block.late_us and block.median_us >= least_us]
    shares: dict[int, list[float]] = {}
    for block in of_long_calls:
        for rank, late_us in block.late_us:
            shares.setdefault(rank, []).append(late_us / block.median_us)
    found = [
        LateRank(rank, sum(its) / len(of_long_calls), sum(share >= LATE for share in its), len(of_long_calls))
        for rank, its in shares.items()
    ]
    late = [one for one in found if len(of_long_calls) >= LATE_BLOCKS and one.late_blocks >= LATE_MOSTLY * one.blocks]
    return sorted(late, key=lambda one: -one.late)


def _named(combination: Combination | None) -> dict[str, object] | None:
    """The combination as a record, without channels if NCCL chose their number."""
    if combination is None:
        return None
    names = {"algorithm": combination.algorithm.name, "protocol": combination.protocol.name}
    return {**names, "channels": combination.channels or None}


@dataclass(frozen=True, slots=True)
class MeasuredResult:
    """A result as it is printed as JSON: times in us, None if no sample counts.

    ``requested`` is None for NCCL's own choice.
    """

    collective: Collective
    bytes: int
    dtype: DataType
    op: Op
    in_place: bool
    graph: bool
    requested: Combination | None = field(metadata=json_form(convert=_named))
    executed: Combination | None = field(metadata=json_form(convert=_named))
    median_us: float | None
    low_us: float | None
    high_us: float | None
    samples: int
    blocks: int
    replaced: int
    wrong: int
    algbw_gbs: float | None
    busbw_gbs: float | None
    processes: int
    host_bound: bool | None = field(default=None, metadata=json_form(optional=True))


def results(blocks: Iterable[SampleBlock]) -> list[Result]:
    """Results by point: NCCL's own choice first, then the others from fast to slow, and last the results without a
    time.
    """
    by_task: dict[Task, TaskSamples] = {}
    for block in blocks:
        if block.table is None:
            by_task.setdefault(Task(block.point, block.combination), TaskSamples()).add(block)
    noise = noises(by_task)
    return sorted((own.result(task, noise[task.point.bytes]) for task, own in by_task.items()), key=_place)


def noises(tasks: Mapping[Task, TaskSamples]) -> dict[int, RunNoise]:
    """The noise of a run, by nBytes."""
    series, times_us = [], dict[int, list[Sequence[float]]]()
    for task, known in tasks.items():
        of_process = [median(its) for its in logs_by_process(known.medians_us, known.processes).values()]
        series.append((task.requested, of_process))
        times_us.setdefault(task.point.bytes, []).append(known.times_us)
    correlated = correlation(series, errors=1.0)  # on the safe side, because one interval follows from one estimate
    return {size: RunNoise(correlated, step_us) for size, step_us in timer_steps_us(times_us).items()}


def record(result: Result, ranks: int) -> MeasuredResult:
    """The result on ``ranks`` ranks, as it is printed as JSON."""
    point, known = result.point, result.estimate
    gbs = float(algorithm_gbs(point.bytes, known.median_us)) if known else None
    return MeasuredResult(
        collective=point.collective,
        bytes=point.bytes,
        dtype=point.dtype,
        op=point.op,
        in_place=bool(point.in_place),
        graph=point.graph,
        requested=result.requested,
        executed=result.executed,
        median_us=known.median_us if known else None,
        low_us=known.low_us if known and known.is_bounded else None,
        high_us=known.high_us if known and known.is_bounded else None,
        samples=result.samples,
        blocks=result.blocks,
        replaced=result.replaced,
        wrong=result.wrong,
        algbw_gbs=gbs,
        busbw_gbs=float(gbs * bus_factor(point.collective, ranks)) if gbs is not None else None,
        host_bound=result.host_bound,
        processes=result.processes,
    )


def _place(result: Result) -> tuple[Point, bool, float]:
    return result.point, result.requested is not None, result.estimate.median_us if result.estimate else float("inf")

"""The measuring loop: it makes rounds over all tasks, in random order, until each median is known precisely enough.

Each round samples every task once, so that drift affects all combinations equally. After a few rounds the loop
continues in a fresh process, so that effects that are fixed within a process are not mistaken for the machine's.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.bench.backend import Backend
from tuner.times.measured.samples import Combination, Point, SampleBlock, Task
from tuner.times.results import TaskSamples, noises
from tuner.times.statistics import Estimate, RunNoise, Samples, estimate

SIZES = tuple(1 << power for power in range(3, 31))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Combinations to measure; empty fields mean all. ``channels``: numbers of channels to measure besides NCCL's own
    number.

    ``own_alone``: only NCCL's own choice.
    """

    algorithms: Sequence[Algorithm] = ()
    protocols: Sequence[Protocol] = ()
    channels: Sequence[int] = ()
    own_alone: bool = False

    def of(self, offered: Iterable[Combination]) -> list[Combination]:
        """The wanted ones of the ``offered`` combinations.

        Each occurs with NCCL's own and with every wanted number of channels.
        """
        chosen = [
            combination
            for combination in offered
            if (not self.algorithms or combination.algorithm in self.algorithms)
            and (not self.protocols or combination.protocol in self.protocols)
        ]
        return [replace(each, channels=channels) for each in chosen for channels in (0, *self.channels)]


@dataclass(frozen=True, slots=True)
class How:
    """The kinds of calls that are made at each size.

    They have one data type and operation, are out of place, in place or both, and are in a CUDA graph or not.
    """

    dtype: DataType = DataType.float32
    op: Op = Op.sum
    placements: tuple[bool, ...] = (False,)  # whether calls are in place
    graph: bool = False


PLAIN_CALLS = How()


def points(
    collectives: Sequence[Collective],
    sizes: Sequence[int] | None,
    ranks: int,
    how: How = PLAIN_CALLS,
) -> list[Point]:
    """The calls of these sizes (nBytes) on ``ranks`` ranks.

    Each rank needs the same whole number of elements, so a collective cannot have every size: a size that it cannot
    have is left out for this collective. BadInput for a size that none of the collectives can have. Without sizes:
    powers of two from 8 B to 1 GiB, rounded down to whole elements.
    """
    units = {collective: Point(collective, 0, how.dtype, how.op).unit_bytes(ranks) for collective in collectives}
    for size in sizes or ():
        if all(size % unit for unit in units.values()):
            multiples = one_of(f"multiples of {unit} for {each.name}" for each, unit in units.items())
            raise BadInput(
                f"{size} bytes are not a whole number of {how.dtype.name} elements for each of {ranks} ranks; "
                f"{multiples}"
            )
    return [
        Point(collective, size, how.dtype, how.op, in_place, how.graph)
        for collective, unit in units.items()
        for size in ([each for each in sizes if each % unit == 0] if sizes else _rounded(unit))
        for in_place in how.placements
    ]


def tasks(backend: Backend, points: Iterable[Point], wanted: Wanted) -> list[Task]:
    """The tasks at each point: NCCL's own choice, and the wanted combinations. BadInput if nothing that is wanted can
    run."""
    wanted_tasks: list[Task] = []
    offered: set[str] = set()
    for point in points:
        here = backend.combinations(point)
        offered.update(str(combination) for combination in here)
        chosen = [] if wanted.own_alone else wanted.of(here)
        if chosen or (here and wanted.own_alone):
            wanted_tasks += [Task(point, None), *(Task(point, combination) for combination in chosen)]
    if not wanted_tasks:
        raise BadInput(f"nothing to measure: none of the combinations requested runs here; {one_of(sorted(offered))}")
    return list(dict.fromkeys(wanted_tasks))


def _rounded(unit: int) -> list[int]:
    sizes = dict.fromkeys(size // unit * unit for size in SIZES)
    return [size for size in sizes if size > 0]


AFTER_ROUNDS = 2  # before any task is dropped
LEAST_ROUNDS = 8  # before a time counts as known: fewer sample blocks do not show how much they differ
HOPELESS = 3.0  # factor over the best time, beyond both intervals, from which a task is dropped
# A loop that checks after each round whether an interval is narrow enough may stop by luck. So an interval with more
# confidence has to be narrow, too, also at the neighbouring sizes.
SURE, SURE_SHARE = 0.99, 1.5  # confidence of that interval, and its width as a multiple of the precision
BESIDE = 2  # neighbouring sizes on either side


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a loop.

    ``precision`` is the wanted half width of a median's confidence interval, as a share of the median. ``budget_s``
    limits the run, in seconds of the backend's clock.

    ``rounds`` is the largest number of blocks per combination. A block begins with ``warmup`` runs that are thrown
    away; the ``repeats`` runs after them are kept. ``rounds_per_process``: rounds after which the loop continues in a
    fresh process; None for never.
    """

    precision: float = 0.02
    rounds: int = 30
    repeats: int = 10
    warmup: int = 5
    budget_s: float | None = None
    seed: int = 0
    rounds_per_process: int | None = 3


class State(StrEnum):
    open = "open"
    precise = "precise"
    hopeless = "hopeless"
    replaced = "replaced"
    wrong = "wrong"


class End(StrEnum):
    """The reason why a loop ended."""

    precise = "precise"
    rounds = "rounds"
    budget = "budget"
    process = "process"  # no other process is possible here


@dataclass()
class KnownTask(TaskSamples):
    """What is known about one task from all of its sample blocks."""

    state: State = State.open
    estimate: Estimate | None = None
    sure_width: float = math.inf  # half of the interval with confidence SURE, over the median
    runs: Estimate | None = None  # from all runs that count; after two rounds nothing else is known

    def judge(self, noise: RunNoise) -> None:
        """Estimates the task from its blocks so far, given the run's noise."""
        if self.medians_us:
            known = Samples.of_blocks(self.medians_us, self.processes, noise)
            self.estimate, self.sure_width = known.estimate(), known.estimate(SURE).half_width
            if self.runs is None or self.runs.samples != len(self.times_us):
                self.runs = estimate(self.times_us)


class Loop:
    """Measures ``tasks``; ``before`` are blocks of earlier runs, which count and are not repeated."""

    def __init__(
        self,
        backend: Backend,
        tasks: Sequence[Task],
        settings: Settings,
        add: Callable[[SampleBlock], None],
        before: Iterable[SampleBlock] = (),
    ) -> None:
        self._backend, self._settings, self._add = backend, settings, add
        self.known = {task: KnownTask() for task in tasks}
        self.round = self.process = self._since_renewed = 0
        self._offset_s = 0.0
        self._blocks = 0
        self._beside = _beside(tasks)
        for block in before:
            if block.round > self.round:
                self._judge()  # as the run itself did after each of its rounds, so that what is known well stays known
            self._offset_s = max(self._offset_s, block.at_s)
            self.process = max(self.process, block.process + 1)
            if block.table is None and (known := self.known.get(Task(block.point, block.combination))) is not None:
                known.add(block)
                self.round = max(self.round, block.round)
        self._start_s = backend.now_s()
        self.end: End | None = None
        self._judge()

    @property
    def open(self) -> list[Task]:
        """Tasks whose times are not known precisely enough."""
        return [task for task, known in self.known.items() if known.state is State.open]

    def share_done(self) -> float:
        """The estimated share of this run that is done.

        The estimate assumes that a confidence interval narrows with the square root of the number of samples.
        """
        left = sum(self._blocks_left(self.known[task]) for task in self.open)
        share = self._blocks / max(1, self._blocks + left)
        budget_s = self._settings.budget_s
        return max(share, min(1.0, self._spent_s() / budget_s)) if budget_s else share

    def _blocks_left(self, known: KnownTask) -> int:
        most = max(0, self._settings.rounds - known.blocks)
        if known.estimate is None or not known.estimate.is_bounded:
            return min(most, LEAST_ROUNDS)
        needed = known.blocks * (known.estimate.half_width / self._settings.precision) ** 2
        return min(most, max(1, LEAST_ROUNDS - known.blocks, math.ceil(needed - known.blocks)))

    def run(self) -> Iterator[SampleBlock]:
        """Yields each block once it is added; afterwards ``end`` says why there are no more. The caller may stop at any
        time.
        """
        while any(self.known[task].blocks < self._settings.rounds for task in self.open):
            if not self._renewed():
                self.end = End.process
                return
            for task in self._order():
                if self._settings.budget_s is not None and self._spent_s() >= self._settings.budget_s:
                    self._judge()
                    self.end = End.budget if self.open else End.precise
                    return
                yield self._block(task)
            self._judge()
            self.round += 1
            self._since_renewed += 1
        self.end = End.rounds if self.open else End.precise

    def _renewed(self) -> bool:
        """Continues in a fresh process after ``rounds_per_process`` rounds; returns False if no fresh process is
        possible.
        """
        if self._settings.rounds_per_process is None or self._since_renewed < self._settings.rounds_per_process:
            return True
        if not self._backend.renew():
            return False
        self.process, self._since_renewed = self.process + 1, 0
        return True

    def _order(self) -> list[Task]:
        """Tasks that this round still has to sample, in an order that is the same in every run with the same seed."""
        order = list(self.known)
        random.Random(f"{self._settings.seed} {self.round}").shuffle(order)
        return [
            task
            for task in order
            if (known := self.known[task]).state is State.open
            and known.blocks < self._settings.rounds
            and (known.last is None or known.last.round < self.round)
        ]

    def _spent_s(self) -> float:
        return self._backend.now_s() - self._start_s

    def _block(self, task: Task) -> SampleBlock:
        if self._settings.warmup:
            self._backend.run(task.point, task.requested, self._settings.warmup)
        run = self._backend.run(task.point, task.requested, self._settings.repeats)
        at_s = self._offset_s + self._spent_s()
        block = SampleBlock(
            task.point,
            task.requested,
            run.executed,
            run.times_us,
            self.round,
            at_s,
            run.wrong,
            host_us=run.host_us,
            process=self.process,
            late_us=run.late_us,
        )
        self._add(block)
        self.known[task].add(block)
        self._blocks += 1
        return block

    def _judge(self) -> None:
        """Finds which tasks need no further block."""
        best_us: dict[Point, float] = {}
        noise = noises(self.known)
        for task, known in self.known.items():
            known.judge(noise[task.point.bytes])
            if known.runs is not None:
                best_us[task.point] = min(best_us.get(task.point, float("inf")), known.runs.high_us)
        for task, known in self.known.items():
            if known.state is not State.precise:  # a task that is known well is not measured any more
                known.state = self._state(task, known, best_us.get(task.point, float("inf")))

    def _state(self, task: Task, known: KnownTask, best_us: float) -> State:
        if known.blocks < AFTER_ROUNDS:
            return State.open
        if known.replaced >= AFTER_ROUNDS:
            return State.replaced
        if known.wrong_blocks >= AFTER_ROUNDS:
            return State.wrong
        if known.estimate is None or known.runs is None:
            return State.open
        if known.blocks >= LEAST_ROUNDS and self._is_precise(task, known):
            return State.precise
        hopeless = task.requested is not None and known.runs.low_us > HOPELESS * best_us
        return State.hopeless if hopeless else State.open

    def _is_precise(self, task: Task, known: KnownTask) -> bool:
        beside = [self.known[each].sure_width for each in self._beside[task] if self.known[each].blocks >= LEAST_ROUNDS]
        typical = math.sqrt(sum(width**2 for width in beside) / max(1, len(beside)))
        sure = max(known.sure_width, typical) <= SURE_SHARE * self._settings.precision
        return sure and known.estimate is not None and known.estimate.half_width <= self._settings.precision


def _beside(tasks: Sequence[Task]) -> dict[Task, list[Task]]:
    """For each task, the tasks of the same request at neighbouring sizes, itself included."""
    kinds: dict[tuple[Point, Combination | None], list[Task]] = {}
    for task in tasks:
        kinds.setdefault((replace(task.point, bytes=0), task.requested), []).append(task)
    found = {}
    for same in kinds.values():
        same.sort(key=lambda task: task.point.bytes)
        for place, task in enumerate(same):
            found[task] = same[max(0, place - BESIDE) : place + BESIDE + 1]
    return found

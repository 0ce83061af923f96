"""Arms for a job that was measured: few, where most of its time is, with what exploring them is predicted to cost.

Candidates are what the emulator says can run, by calibrated times where the machine's GPUs have any, else by NCCL's own
model. Its ratios to what runs now, applied to the measured time, are what a block of an arm costs.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.names import AlgoProto, Algorithm, Op, Protocol
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.jobs.inside.joined import JoinedCalls
from tuner.plugin.table.records import Arms, Choice, Decision, Interval, Table
from tuner.scenario import Scenario
from tuner.times.measured.samples import Combination, Point
from tuner.times.timemodel.predict import of_communicator

MOST_ROWS = 8
MOST_ARMS = 3  # beside NCCL's own
MOST_FACTOR = 1.5  # that the model says an arm takes longer than what runs now
NCCL_MODEL = "NCCL's model"
LEAST_SHARE = 0.02  # of the job's time in collectives that a call has to have
BLOCK = 10
MOST_COST = 0.01  # of the time in collectives
EVERY = (10, 1000)


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call that is worth exploring. ``share`` is its part of all time in collectives; ``factors`` are by arm what
    the model says it takes, over what runs now.
    """

    point: Point
    usual: Combination
    calls: int
    share: float
    factors: tuple[tuple[Combination, float], ...]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The table to start the next run with. ``cost`` is predicted by ``model``, of the time in collectives;
    ``cost_of_job`` of the wall clock; ``days`` is how long exploring lasts at this rate.
    """

    model: str
    calls: tuple[PlannedCall, ...]
    every: int
    block: int
    cost: float
    cost_of_job: float
    days: float
    table: Table


def plan(
    joined: Iterable[JoinedCalls], scenario: Scenario, provenance: dict[str, str], most_factor: float = MOST_FACTOR
) -> JobPlan:
    """Arms of the communicators of the scenario's size, which the model says take at most ``most_factor`` times as long
    as what runs now. BadInput where the job has no such communicator, or nothing is worth a try.
    """
    found = _counted(joined, scenario.ranks)
    if not found.communicators:
        raise BadInput(f"calls of communicators of {found.there} ranks; valid: of {scenario.title}")
    if found.whole_us <= 0:
        raise BadInput("the job's calls took no time: nothing to plan by")
    selection = Selection(scenario.communicator())
    model, times = _model(selection, scenario)
    planned = sorted(_planned(found, times, most_factor), key=lambda call: -call.share)[:MOST_ROWS]
    if not planned:
        raise BadInput(f"no call with {100 * LEAST_SHARE:.0f} % of the job's time has another choice that can run")
    at_every_block = sum(call.share * _mean_cost(call) for call in planned)
    every = int(np.clip(np.ceil(at_every_block / MOST_COST), *EVERY))
    span_s = found.end_s - found.begin_s
    cost = at_every_block / every
    calls = sum(call.calls for call in planned) / found.communicators
    rows = tuple(_row(call, scenario, every) for call in planned)
    days = rows[0].arms.calls / max(calls, 1) * span_s / 86400 if rows[0].arms else 0.0
    of_job = cost * found.whole_us / 1e6 / max(span_s, 1e-9) / found.communicators
    return JobPlan(model, tuple(planned), every, BLOCK, cost, of_job, days, Table(rows, provenance=provenance))


_Times = Callable[[Point], Mapping[AlgoProto, float]]


def _model(selection: Selection, scenario: Scenario) -> tuple[str, _Times]:
    """Name of the model, and its times of all that can run, us."""

    def nccl(point: Point) -> Mapping[AlgoProto, float]:
        cells = np.asarray(selection.cost_table(Request(point.collective, point.dtype, Op.sum), point.bytes))[0]
        there = np.argwhere(cells > 0)
        return {(Algorithm(row), Protocol(column)): float(cells[row, column]) for row, column in there.tolist()}

    def measured(point: Point) -> Mapping[AlgoProto, float]:
        found = calibrated.of_candidates(Request(point.collective, point.dtype, Op.sum), [point.bytes])
        return {arm: float(found[arm].time_us[0]) for arm in nccl(point) if arm in found}

    try:
        calibrated = of_communicator(selection, scenario.machine)
    except BadInput:
        return NCCL_MODEL, nccl
    return f"the calibration {calibrated.reason}", measured


@dataclass
class _CountedCalls:
    """Time of calls on communicators of one size. ``whole_us`` is that of all; ``there`` are the sizes."""

    times_us: dict[Point, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[Point, Counter[Combination]] = field(default_factory=lambda: defaultdict(Counter))
    communicators: int = 0
    whole_us: float = 0.0
    begin_s: float = float("inf")
    end_s: float = 0.0
    there: str = "no"


def _counted(joined: Iterable[JoinedCalls], ranks: int) -> _CountedCalls:
    found, sizes = _CountedCalls(), set[int]()
    for each in joined:
        found.whole_us += float(each.transfer_us.sum())
        sizes.add(each.communicator.ranks)
        if each.communicator.ranks != ranks or not len(each.call):
            continue
        found.communicators += 1
        found.begin_s, found.end_s = min(found.begin_s, float(each.at_s[0])), max(found.end_s, float(each.at_s[-1]))
        for place, call in enumerate(each.kinds):
            if call.executed is not None and call.bytes:
                own = each.call == place
                point = Point(call.collective, call.bytes, call.dtype)
                found.times_us[point] += float(each.transfer_us[own].sum())
                found.counts[point][call.executed] += int(own.sum())
    found.there = ", ".join(map(str, sorted(sizes))) or "no"
    return found


def _planned(found: _CountedCalls, model: _Times, most_factor: float) -> Iterator[PlannedCall]:
    for point, time_us in found.times_us.items():
        ((usual, _),) = found.counts[point].most_common(1)
        worth = time_us >= LEAST_SHARE * found.whole_us
        if factors := tuple(_factors(model(point), usual, most_factor)) if worth else ():
            calls = found.counts[point].total()
            yield PlannedCall(point, usual, calls, time_us / found.whole_us, factors)


def _factors(
    times: Mapping[AlgoProto, float], usual: Combination, most_factor: float
) -> Iterator[tuple[Combination, float]]:
    own_us = times.get(usual.algo_proto) or min(times.values(), default=0.0)
    others = sorted((us, arm) for arm, us in times.items() if arm != usual.algo_proto and us <= most_factor * own_us)
    for us, arm in others[:MOST_ARMS]:
        yield Combination(*arm), us / own_us


def _mean_cost(call: PlannedCall) -> float:
    """Time that a block of an arm takes beyond the usual one's, on average over the arms and NCCL's own, as a share:
    below 0 where arms are faster.
    """
    return sum(factor - 1 for _, factor in call.factors) / (len(call.factors) + 1)


def _row(call: PlannedCall, scenario: Scenario, every: int) -> Decision:
    arms = (*(Choice(*arm.algo_proto) for arm, _ in call.factors), None)
    return Decision(
        call.point.collective,
        (),
        arms=Arms(arms, every, BLOCK),
        bytes=Interval(call.point.bytes, call.point.bytes),
        ranks=Interval(scenario.ranks, scenario.ranks),
    )

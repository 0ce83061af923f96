"""Plans arms for a job that was measured: few arms, for the calls with most of its time, with the predicted cost of
exploring.

Candidates are the choices that the emulator says can run. Their times are calibrated ones if the machine's GPUs have
any, or else those of NCCL's own model. The model predicts the factor by which an arm is slower than what runs now; the
cost of an arm's block is the measured time multiplied by this factor. The interval of the cost follows from the model's
known error. If the job explored before, the factors are those measured in its blocks.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import hypot, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import AlgoProto, Algorithm, Collective, Op, Protocol
from tuner.base.nouns import Span
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.jobs.inside.decide import FEWEST_UNITS, ExploredArm, covered_s, explored
from tuner.jobs.inside.joined import NOTHING_RAN, JobCommunicator, JoinedCalls, no_call
from tuner.jobs.inside.steps import JobSteps
from tuner.plugin.table.records import CALLS_EXPLORED, MOST_BLOCK, Arms, Decision, Table, TableChoice
from tuner.scenario import Scenario
from tuner.times.measured.samples import Combination, Point
from tuner.times.timemodel import features
from tuner.times.timemodel.intervals import COVERED_SDS
from tuner.times.timemodel.predict import of_communicator
from tuner.times.timemodel.sites import SiteCall

MOST_ROWS = 8
MOST_ARMS = 3  # beside NCCL's own
MOST_FACTOR = 1.5  # that the model says an arm takes longer than what runs now
NCCL_MODEL = "NCCL's model"
LEAST_SHARE = 0.02  # of the job's time in collectives that a call has to have
BLOCK = 10
STEPS_OF_BLOCK = 2  # at least one whole step is in a block then, wherever it begins
BLOCKS_OF_ARM = 50  # that there are at least before exploring ends
LEAST_SD = 0.01  # of the ratio that blocks say: two starts of a job are no more alike
DRAWS = 4000  # of the model's errors
MOST_COST = 0.01  # of the time in collectives
EVERY = (10, 1000)


@dataclass(frozen=True, slots=True)
class PlannedArm:
    """An arm, and ``factor``: the arm's time divided by the time of what runs now.

    The factor was measured in ``blocks`` blocks of this job; if ``blocks`` is 0, it is the model's. ``sd`` is the
    standard deviation of the logarithm of ``factor``; None if it is not known.
    """

    arm: Combination
    factor: float
    sd: float | None
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call that is worth exploring. ``share`` is the call's share of all time in collectives, ``block`` is how many
    calls a block has.
    """

    point: Point
    usual: Combination
    calls: int
    share: float
    arms: tuple[PlannedArm, ...]
    block: int


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The table for the job's next run. ``cost`` is what exploring costs as predicted by ``model``, as a share of the
    time in collectives; its 90 % interval is None if the model's error is not known. ``cost_of_job`` is the cost as a
    share of the wall clock. ``days`` is how many days exploring lasts at this rate.
    """

    model: str
    calls: tuple[PlannedCall, ...]
    every: int
    cost: float
    cost_interval: tuple[float, float] | None
    cost_of_job: float
    days: float
    table: Table


def plan(
    joined: Iterable[JoinedCalls],
    scenario: Scenario,
    provenance: dict[str, str],
    most_factor: float = MOST_FACTOR,
    steps: JobSteps | None = None,
) -> JobPlan:
    """Plans arms for the communicators of the scenario's size.

    An arm is planned if, according to the model, it takes at most ``most_factor`` times as long as what runs now. If
    the job's ``steps`` are given, blocks are long enough to contain a whole step. BadInput if the job has no such
    communicator, or nothing is worth a try; CannotBeJudged if no call has a time on every rank.
    """
    found = _counted(joined, scenario.ranks, steps)
    if not found.there:
        raise no_call(found.all)
    if not found.communicators:
        raise BadInput(
            f"the calls that have a time were made by communicators of {found.there} ranks, not of {scenario.title}"
        )
    if found.whole_us <= 0:
        raise BadInput("the calls of the job have no times, so nothing can be planned")
    if not found.counts:
        raise BadInput(NOTHING_RAN)
    selection = Selection(scenario.communicator())
    model, times = _model(selection, scenario)
    planned = sorted(_planned(found, times, most_factor), key=lambda call: -call.share)[:MOST_ROWS]
    if not planned:
        raise BadInput(
            f"no kind of call takes {100 * LEAST_SHARE:.0f} % of the job's time and has another choice that can run"
        )
    at_every_block = sum(call.share * _mean_cost(call) for call in planned)
    every = int(np.clip(np.ceil(at_every_block / MOST_COST), *EVERY))
    span_s = covered_s(found.spans)
    cost = at_every_block / every
    calls = sum(call.calls for call in planned) / found.communicators
    rows = tuple(_row(call, scenario, every) for call in planned)
    days = rows[0].arms.calls / max(calls, 1) * span_s / 86400 if rows[0].arms else 0.0
    of_job = cost * found.whole_us / 1e6 / span_s / found.communicators
    known = [arm.blocks > 0 for call in planned for arm in call.arms]
    if any(known):
        model = f"blocks in this job{'' if all(known) else f', and {model}'}"
    interval = _interval(planned, every)
    return JobPlan(model, tuple(planned), every, cost, interval, of_job, days, Table(rows, provenance=provenance))


class _ArmTime(NamedTuple):
    """Time of a call in us according to the model. ``sd`` is the standard deviation of the error of its logarithm, or
    None if not known. Between nodes, ``site_call`` says which part of the error all calls of a site have in common.
    """

    us: float
    sd: float | None = None
    site_call: SiteCall | None = None

    def sd_of_ratio(self, other: "_ArmTime") -> float | None:
        """Standard deviation of the logarithm of the error of the ratio of both times; None if it is not known."""
        if self.site_call is not None and other.site_call is not None:
            half = self.site_call.half_of_ratio(other.site_call)
            return None if half is None else half / COVERED_SDS
        return None if self.sd is None or other.sd is None else hypot(self.sd, other.sd)


_Times = Callable[[Point], Mapping[AlgoProto, _ArmTime]]


def _interval(planned: Iterable[PlannedCall], every: int) -> tuple[float, float] | None:
    """The 90 % interval of the cost, from random draws of the model's errors; an algorithm and protocol has the same
    error at all sizes. None if an error is not known."""
    random, errors = np.random.default_rng(0), dict[AlgoProto, NDArray[np.float64]]()
    costs = np.zeros(DRAWS)
    for call in planned:
        for arm in call.arms:
            if arm.sd is None:
                return None
            error = random.normal(size=DRAWS) if arm.blocks else errors.get(arm.arm.algo_proto)
            if error is None:
                error = errors[arm.arm.algo_proto] = random.normal(size=DRAWS)
            costs += call.share * (arm.factor * np.exp(arm.sd * error) - 1) / (len(call.arms) + 1) / every
    low, high = np.percentile(costs, (5, 95))
    return float(low), float(high)


def _model(selection: Selection, scenario: Scenario) -> tuple[str, _Times]:
    """Name of the model, and a function that gives its times in us of everything that can run."""

    def nccl(point: Point) -> Mapping[AlgoProto, _ArmTime]:
        cells = np.asarray(selection.cost_table(Request(point.collective, point.dtype, Op.sum), point.bytes))[0]
        there = np.argwhere(cells > 0)
        arms = ((Algorithm(row), Protocol(column)) for row, column in there.tolist())
        return {arm: _ArmTime(float(cells[arm])) for arm in arms}

    def measured(point: Point) -> Mapping[AlgoProto, _ArmTime]:
        request, sizes = Request(point.collective, point.dtype, Op.sum), np.array([point.bytes], np.uint64)
        found: dict[AlgoProto, _ArmTime] = {}
        for arm in nccl(point):
            calls = features.of_algo_proto(selection, request, sizes, arm)
            times = calibrated.times(request, calls)
            (site_call,) = calibrated.calibration.process.calls(calls) if between_nodes else (None,)
            sd = log(times.high_us[0] / times.low_us[0]) / 2 / COVERED_SDS
            found[arm] = _ArmTime(float(times.time_us[0]), sd, site_call)
        return found

    between_nodes = selection.communicator.nodes > 1
    try:
        calibrated = of_communicator(selection, scenario.machine)
    except BadInput:
        return NCCL_MODEL, nccl
    return f"the calibration {calibrated.reason}", measured


@dataclass()
class _CountedCalls:
    """Calls and times on communicators of one size. ``whole_us`` is the time of all calls; ``there`` lists the sizes of
    communicators, and ``all`` the communicators.
    """

    times_us: dict[Point, float] = field(default_factory=lambda: defaultdict(float))
    blocks: dict[Collective, int] = field(default_factory=dict)
    counts: dict[Point, Counter[Combination]] = field(default_factory=lambda: defaultdict(Counter))
    explored: dict[Point, dict[AlgoProto, list[ExploredArm]]] = field(default_factory=lambda: defaultdict(dict))
    spans: list[tuple[float, float]] = field(default_factory=list)
    communicators: int = 0
    whole_us: float = 0.0
    there: str = ""
    all: list[JobCommunicator] = field(default_factory=list)


def _counted(joined: Iterable[JoinedCalls], ranks: int, steps: JobSteps | None) -> _CountedCalls:
    found, sizes = _CountedCalls(), set[int]()
    for each in joined:
        found.whole_us += float(each.transfer_us.sum())
        found.all.append(each.communicator)
        if not len(each.call):
            continue
        sizes.add(each.communicator.ranks)
        if each.communicator.ranks != ranks:
            continue
        found.communicators += 1
        found.spans.append((float(each.at_s[0]), float(each.at_s[-1])))
        for arm in explored(each):
            if not arm.own:
                found.explored[arm.key.point].setdefault(arm.key.arm.algo_proto, []).append(arm)
        for place, call in enumerate(each.kinds):
            if call.executed is not None and call.bytes:
                own = each.call == place
                point = Point(call.collective, call.bytes, call.dtype)
                found.times_us[point] += float(each.transfer_us[own].sum())
                found.counts[point][call.executed] += int(own.sum())
        for collective in {call.collective for call in each.kinds}:
            if steps is None:
                break
            block = STEPS_OF_BLOCK * _calls_of_step(each, collective, steps.since(float(each.at_s[0])))
            found.blocks[collective] = min(max(block, found.blocks.get(collective, BLOCK)), MOST_BLOCK)
    found.there = ", ".join(map(str, sorted(sizes)))
    return found


def _calls_of_step(each: JoinedCalls, collective: Collective, steps: JobSteps) -> int:
    """How many calls of a collective, by NCCL's numbers, a step has at most in nine of ten steps; 0 if there are no
    steps during these calls.
    """
    own = np.isin(each.call, [place for place, call in enumerate(each.kinds) if call.collective is collective])
    at_s, numbers = each.at_s[own], np.maximum.accumulate(each.sequence[own])
    ends = steps.end_s[(steps.end_s >= at_s[0]) & (steps.end_s <= at_s[-1])] if len(at_s) else np.empty(0)
    if len(ends) < 2:
        return 0
    return int(np.ceil(np.percentile(np.diff(numbers[np.searchsorted(at_s, ends, side="right") - 1]), 90)))


def _planned(found: _CountedCalls, model: _Times, most_factor: float) -> Iterator[PlannedCall]:
    for point, time_us in found.times_us.items():
        if time_us < LEAST_SHARE * found.whole_us:
            continue
        ((usual, _),) = found.counts[point].most_common(1)
        explored = found.explored[point]
        measured = {name: arm for name, arms in explored.items() if (arm := _measured(arms)).blocks >= FEWEST_UNITS}
        arms = {arm.arm.algo_proto: arm for arm in _modelled(model(point), usual)} | measured
        few = sorted((arm for name, arm in arms.items() if name in (explored or arms)), key=lambda arm: arm.factor)
        if kept := tuple(arm for arm in few if arm.factor <= most_factor)[:MOST_ARMS]:
            calls, block = found.counts[point].total(), found.blocks.get(point.collective, BLOCK)
            yield PlannedCall(point, usual, calls, time_us / found.whole_us, kept, block)


def _measured(arms: Sequence[ExploredArm]) -> PlannedArm:
    """The factor of an arm, from its blocks on all communicators."""
    usual_us = sum(arm.usual_us * arm.arm_calls / arm.usual_calls for arm in arms)
    gains = np.concatenate([arm.blocks["gain"] for arm in arms])
    sd = max(LEAST_SD, float(np.std(gains)) / sqrt(len(gains)))
    return PlannedArm(arms[0].key.arm, sum(arm.arm_us for arm in arms) / usual_us, sd, len(gains))


def _modelled(times: Mapping[AlgoProto, _ArmTime], usual: Combination) -> Iterator[PlannedArm]:
    now = times.get(usual.algo_proto)
    now_us = now.us if now is not None else min((time.us for time in times.values()), default=0.0)
    for arm, time in times.items():
        if arm != usual.algo_proto:
            yield PlannedArm(Combination(*arm), time.us / now_us, None if now is None else time.sd_of_ratio(now))


def _mean_cost(call: PlannedCall) -> float:
    """How much longer a block takes than usual calls, as a share, averaged over the arms and NCCL's own choice;
    negative if arms are faster.
    """
    return sum(arm.factor - 1 for arm in call.arms) / (len(call.arms) + 1)


def _row(call: PlannedCall, scenario: Scenario, every: int) -> Decision:
    arms = (*(TableChoice(*each.arm.algo_proto) for each in call.arms), None)
    return Decision(
        call.point.collective,
        (),
        arms=Arms(arms, every, call.block, max(CALLS_EXPLORED, BLOCKS_OF_ARM * len(arms) * every * call.block)),
        bytes=Span(call.point.bytes, call.point.bytes),
        ranks=Span(scenario.ranks, scenario.ranks),
    )

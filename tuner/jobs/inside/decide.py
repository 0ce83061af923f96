"""Decides about the arms that a job explored: an arm stays if its blocks are faster than NCCL's own calls around them.

A block of an arm is compared with the calls of the same kind just before and after it, so that slow changes of the job
cancel out. The unit of the statistics is a stretch of time, over all communicators of one size: a disturbance of that
length is then in one unit. Stretches are made longer until neighbouring ones are no more similar than by accident.

The shortest time over the ranks is how long a call takes if all ranks end together. In a tree, ranks do not end
together: on two ranks of an H200, one rank's kernel always took 46 us and the other's 60 us, while the ring's kernels
took 63 us. If ranks come late by more than such a difference, the rank with the shortest time changes from call to
call. The times then cannot distinguish a faster tree from a tree whose ranks end at different times. An arm whose ranks
do not end together only stays if the job itself was faster in the arm's blocks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import chain, groupby
from math import expm1, inf

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective
from tuner.base.nouns import Span
from tuner.base.records import json_form
from tuner.jobs.inside.joined import NOTHING_RAN, JobCommunicator, JoinedCalls, no_call
from tuner.jobs.inside.steps import JobSteps
from tuner.plugin.table.records import ANY_COUNT, Decision, Table, TableChoice
from tuner.times.compare import Verdict, decided, paired, too_small
from tuner.times.measured.samples import Combination, Point
from tuner.times.statistics import correlation

MOST_UNITS = 24
FEWEST_UNITS = 6
ALIKE = 0.3  # correlation of neighbours up to which stretches count as independent
AROUND = 2  # calls before and after a block, times its own, that it is compared with
NOT_EXPLORED = 256  # calls of a communicator; its first arm is that of call 512 (FIRST_CALL, csrc/plugin/explorer.c)
LEAST_ELAPSED_S = 0.05  # of a block, for the job's own progress: wall clocks are read every 4 ms
LEAST_PART = 0.2  # of a step's calls of a size that an arm has to have, for the step to tell anything of it
LEAST_MOVED = 0.2  # part of the calls whose last rank is another one under the arm, beyond what chance moves
ENDS_TOGETHER = {Algorithm.Ring, Algorithm.NVLS, Algorithm.PAT}  # all ranks do the same
WITHOUT_ROOT = {Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter}
DAY_S = 86400.0


def _gain(found: Verdict) -> dict[str, object]:
    return {"gain": found.gain, "interval": found.interval}


def _job_gain(found: Verdict | None) -> dict[str, object]:
    return {"job_gain": found and found.gain, "job_interval": found and found.interval}


@dataclass(frozen=True, slots=True)
class JobArm:
    """An arm of one call, compared with what the job usually runs; ``found`` says how much faster the arm is.

    ``p`` is the probability of such a gain by chance, corrected for the number of arms (Holm); if ranks do not end
    together, the gain is that of the job. ``job`` says how much shorter the job's steps would be if all calls of the
    size used the arm. If the steps are not known, ``job`` says how much shorter whole blocks were by the wall clock; it
    is None if too few blocks show this. ``saved_s`` is how many seconds per day the arm saves of each rank's time in
    collectives, ``job_saved_s`` how many seconds per day it saves of the wall clock (None if steps do not show it).
    ``why_not`` is None if the arm stays; ``judged`` is False if there is too little data.
    """

    ranks: int
    nodes: int | None
    point: Point
    arm: Combination
    usual: Combination
    found: Verdict = field(metadata=json_form(convert=_gain, merged=True))
    p: float
    blocks: int
    units: int
    job: Verdict | None = field(metadata=json_form(convert=_job_gain, merged=True))
    saved_s: float
    job_saved_s: float | None
    why_not: str | None
    judged: bool


@dataclass(frozen=True, slots=True)
class JobDecision:
    """Arms of a job, the largest saving first, and the table of those that stay. ``cost`` is how much longer the calls
    took because the job explored, as a share of all time in collectives.
    """

    arms: tuple[JobArm, ...]
    cost: float
    table: Table

    @property
    def kept(self) -> tuple[JobArm, ...]:
        """The arms that stay; the table has the best of them for each call."""
        return tuple(arm for arm in self.arms if arm.why_not is None)


# A block: consecutive calls of an arm, compared with the calls around them. Gains are logarithms; the job's gain is NaN
# if it is unknown.
BLOCK = np.dtype([(name, np.float64) for name in ("at_s", "gain", "job_gain")])


@dataclass(frozen=True, slots=True, order=True)
class ArmKey:
    """Identifies an arm: how many ranks and nodes, the call, what the call usually runs, and the arm."""

    ranks: int
    nodes: int
    point: Point
    usual: Combination
    arm: Combination


@dataclass(frozen=True, slots=True)
class ExploredArm:
    """An arm on one communicator: its blocks (:data:`BLOCK`, an array [block]), and the total times in us of its calls
    and of the usual ones.

    If ``ends_apart`` is true, ranks do not end the arm's calls together. If ``own`` is true, the combination ran before
    any rank can have explored; it is then no arm, but what NCCL itself chose for some of the calls.
    """

    key: ArmKey
    blocks: NDArray[np.void]
    usual_us: float
    usual_calls: int
    arm_us: float
    arm_calls: int
    ends_apart: bool
    own: bool


def decide(joined: Iterable[JoinedCalls], provenance: dict[str, str], steps: JobSteps | None = None) -> JobDecision:
    """Decides about the arms on all communicators; ``steps`` are the job's training steps. BadInput if only one choice
    ran for each call, as the job then did not explore; CannotBeJudged if no call has a time on every rank.
    """
    spans, whole_us = list[tuple[float, float]](), 0.0
    candidates: list[JoinedCalls] = []
    communicators: list[JobCommunicator] = []
    says_what_ran = False
    for each in joined:
        communicators.append(each.communicator)
        whole_us += float(each.transfer_us.sum())
        says_what_ran |= any(call.executed is not None for call in each.kinds)
        if len(each.at_s):
            spans.append((float(each.at_s[0]), float(each.at_s[-1])))
        if any(len(places) > 1 for places in _points(each).values()):
            candidates.append(each)  # of a job with thousands of communicators all others are gone by now
    if not spans:
        raise no_call(communicators)
    steps = steps.since(min(spans)[0]) if steps is not None else None
    arms: dict[ArmKey, list[ExploredArm]] = {}
    for arm in chain.from_iterable(explored(each, steps) for each in candidates):
        arms.setdefault(arm.key, []).append(arm)
    if not arms:
        alone = "the job ran only one choice for each call with a time, so it did not explore"
        raise BadInput(alone if says_what_ran else NOTHING_RAN)
    extra_us = sum(
        each.arm_us - each.usual_us * each.arm_calls / each.usual_calls
        for each in chain.from_iterable(arms.values())
        if not each.own
    )
    judged = [_judged(each, covered_s(spans), steps is not None) for _, each in sorted(arms.items())]
    found = tuple(sorted(_corrected(judged), key=lambda arm: -arm.saved_s))
    return JobDecision(found, extra_us / max(whole_us, 1e-9), _table(found, provenance))


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """How many seconds these spans cover together, without the gaps between them: days may pass before a job is
    restarted.

    A span is a pair of its first and its last time in s.
    """
    total_s, end_s = 0.0, -inf
    for first, last in sorted(spans):
        total_s, end_s = total_s + max(0.0, last - max(first, end_s)), max(end_s, last)
    return max(total_s, 1e-9)


def _points(each: JoinedCalls) -> dict[Point, list[int]]:
    """Maps each call to the indices of its kinds; kinds of one call differ in what was executed."""
    points: dict[Point, list[int]] = {}
    for place, call in enumerate(each.kinds):
        if call.executed is not None and call.bytes > 0:
            points.setdefault(Point(call.collective, call.bytes, call.dtype), []).append(place)
    return points


def explored(each: JoinedCalls, steps: JobSteps | None = None) -> Iterator[ExploredArm]:
    """Yields each arm of a communicator that ran in blocks between calls with the usual choice."""
    counts = np.bincount(each.call, minlength=len(each.kinds))
    log_us = np.log(np.maximum(each.transfer_us, 1e-3))
    own_kinds = _own_kinds(each)
    for point, places in _points(each).items():
        usual = max(places, key=lambda place: int(counts[place]))
        mine = np.flatnonzero(np.isin(each.call, places))
        mine = mine[np.argsort(each.sequence[mine], kind="stable")]
        base = np.flatnonzero(each.call[mine] == usual)
        for arm in places:
            now, other = each.kinds[usual].executed, each.kinds[arm].executed
            if now is None or other is None or now == other:
                continue
            is_arm = each.call[mine] == arm
            if len(found := np.array([*_blocks(is_arm, base, log_us[mine], each.at_s[mine], steps)], BLOCK)):
                key = ArmKey(each.communicator.ranks, each.communicator.nodes or 0, point, now, other)
                usual_us, arm_us = each.transfer_us[mine[base]], each.transfer_us[mine[is_arm]]
                times = float(usual_us.sum()), len(usual_us), float(arm_us.sum()), len(arm_us)
                yield ExploredArm(key, found, *times, _ends_apart(each, usual, arm), arm in own_kinds)


def _own_kinds(each: JoinedCalls) -> set[int]:
    """The kinds of calls that ran before the communicator could explore; that depends on its number of calls of all
    functions."""
    functions = np.array([int(call.collective) for call in each.kinds], np.int64)[each.call]
    count = np.zeros(len(each.call), np.int64)
    for function in np.unique(functions):
        count += np.maximum.accumulate(np.where(functions == function, each.sequence + 1, 0))
    return set(np.unique(each.call[count <= NOT_EXPLORED]).tolist())


def _ends_apart(each: JoinedCalls, usual: int, arm: int) -> bool:
    """Whether the shortest time over the ranks may be shorter than a call of the arm: ranks do different work, or other
    ranks come last in the arm's calls than in the usual ones.
    """
    call = each.kinds[arm]
    if call.collective not in WITHOUT_ROOT or call.executed is None or call.executed.algorithm not in ENDS_TOGETHER:
        return True
    calls = [each.call == place for place in (usual, arm)]
    of_usual, of_arm = (
        np.bincount(each.last[which], minlength=each.communicator.ranks) / which.sum() for which in calls
    )
    both = (of_usual + of_arm) / 2
    by_chance = float(np.sqrt(2 / np.pi * both * sum(1 / which.sum() for which in calls)).sum()) / 2
    return float(np.abs(of_usual - of_arm).sum()) / 2 > LEAST_MOVED + 2 * by_chance


def _blocks(
    is_arm: NDArray[np.bool_],
    base: NDArray[np.int64],
    log_us: NDArray[np.float64],
    at_s: NDArray[np.float64],
    steps: JobSteps | None,
) -> Iterator[tuple[float, float, float]]:
    """Yields the values of each block, in the order of :data:`BLOCK`."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_arm, [False]]).astype(np.int8)))
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        count = int(stop - start)
        before, after = np.searchsorted(base, [start, stop])
        later = after + count  # what comes right after a block may still be slower for it
        around = np.concatenate([base[max(0, before - AROUND * count) : before], base[later : later + AROUND * count]])
        if len(around) < count:
            continue
        gain = float(np.median(log_us[around]) - np.median(log_us[start:stop]))
        if steps is None:
            progress = _progress(at_s, int(start), int(stop))
        else:
            progress = _of_steps(steps, is_arm, at_s, float(at_s[start]), float(at_s[stop - 1]))
        yield float(at_s[stop - 1]), gain, progress


def _progress(at_s: NDArray[np.float64], start: int, stop: int) -> float:
    """Logarithm of how much faster the job progressed in a block than before and after it; NaN if it cannot be seen."""
    count = stop - start
    if start < count + 1 or stop + count > len(at_s):
        return float("nan")
    own, before = at_s[stop - 1] - at_s[start - 1], at_s[start - 1] - at_s[start - 1 - count]
    after = at_s[stop - 1 + count] - at_s[stop - 1]
    if min(own, before, after) < LEAST_ELAPSED_S:
        return float("nan")
    return float(np.log((before + after) / 2) - np.log(own))


def _of_steps(
    steps: JobSteps, is_arm: NDArray[np.bool_], at_s: NDArray[np.float64], first_s: float, last_s: float
) -> float:
    """Gain of an arm by the time of whole steps, as a logarithm, scaled as if all calls of the steps used the arm.

    The steps of the block are compared with those before and after it. NaN if too few calls of these steps used the
    arm.
    """
    start, stop = (int(place) for place in np.searchsorted(steps.end_s, (first_s, last_s)))
    stop = min(stop, len(steps.end_s) - 1) + 1
    count = stop - start
    if count < 1 or start < count or stop + count > len(steps.end_s):
        return float("nan")
    slack_s = 1e-3 * steps.time_s[start]  # of clocks that are not read at once
    low, high = np.searchsorted(at_s, np.array([-steps.time_s[start], 0]) + steps.end_s[[start, stop - 1]] + slack_s)
    part = float(is_arm[low:high].mean()) if high > low else 0.0
    if part < LEAST_PART:
        return float("nan")
    around = np.concatenate([steps.time_s[start - count : start], steps.time_s[stop : stop + count]])
    return float(np.log(around.mean()) - np.log(steps.time_s[start:stop].mean())) / part


def _units(blocks: NDArray[np.void]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gains by kernel times and gains of the job, both arrays [unit]. A unit is a stretch of time, as short as noise
    allows. Stretches have equal numbers of blocks, so that none is empty if there are days between restarts.
    """
    ordered = blocks[np.argsort(blocks["at_s"], kind="stable")]
    gains, job = ordered["gain"], ordered["job_gain"]
    wanted = min(MOST_UNITS, len(blocks))
    while True:
        of_gain = np.array([np.median(its) for its in np.array_split(gains, wanted)])
        if wanted // 2 < FEWEST_UNITS or correlation([(0, of_gain)]) <= ALIKE:
            seen = [its[np.isfinite(its)] for its in np.array_split(job, wanted)]
            return of_gain, np.array([np.median(its) if len(its) else np.nan for its in seen])
        wanted //= 2


def _judged(arms: Sequence[ExploredArm], span_s: float, by_steps: bool) -> JobArm:
    """Judges an arm from all its communicators. If kernel times cannot decide, only the job's time does."""
    key, blocks = arms[0].key, np.concatenate([each.blocks for each in arms])
    of_gain, of_job = _units(blocks)
    found = paired(of_gain)
    job = paired(of_job) if np.isfinite(of_job).sum() >= FEWEST_UNITS else None
    enough = len(of_gain) >= FEWEST_UNITS
    ends_apart = any(each.ends_apart for each in arms) and too_small(found.gain) is None
    saved_s = sum(each.usual_us for each in arms) / 1e6 * -expm1(-found.estimate) / span_s * DAY_S
    why_not = None
    if not enough:
        why_not = (
            f"{len(blocks)} blocks in {len(of_gain)} stretches of time are too few (at least {FEWEST_UNITS} stretches "
            "are needed): explore longer, or start the job again with this table, and give decide both folders"
        )
    if any(each.own for each in arms):
        why_not, enough = (
            "ran before any rank explored, so it is NCCL's own choice for some of these calls, and no arm",
            False,
        )
    elif enough and job is not None and job.high < 0:
        why_not = f"the job itself is {-100 * job.gain:.1f} % slower in its blocks"
    elif enough and ends_apart and (job is None or job.low <= 0):
        why_not = (
            "its ranks do not end together, so kernel times do not say how long it takes; the times of the job's "
            "steps would"
        )
    return JobArm(
        key.ranks,
        key.nodes or None,
        key.point,
        key.arm,
        key.usual,
        found,
        job.p if ends_apart and job is not None else found.p,
        len(blocks),
        len(of_gain),
        job,
        saved_s,
        -expm1(-job.estimate) * DAY_S if job is not None and by_steps else None,
        why_not,
        enough,
    )


def _corrected(arms: Sequence[JobArm]) -> Iterable[JobArm]:
    """Corrects the verdicts for the fact that all arms are judged at once."""
    judged = sorted((arm for arm in arms if arm.judged), key=lambda arm: arm.p)
    together = decided((arm.why_not, arm.found.gain, arm.p) for arm in judged)
    for arm, (chance, why_not) in zip(judged, together, strict=True):
        yield replace(arm, p=chance, why_not=why_not)
    yield from (arm for arm in arms if not arm.judged)


def _table(arms: Iterable[JobArm], provenance: dict[str, str]) -> Table:
    """The table with the best arm that stays for each call; neighbouring sizes with the same choice are one row."""
    best: dict[tuple[int, int, Point], JobArm] = {}
    measured: dict[tuple[int, int, int], set[int]] = {}
    for arm in arms:
        where = arm.ranks, arm.nodes or 0, arm.point
        measured.setdefault((*where[:2], int(arm.point.collective)), set()).add(arm.point.bytes)
        if arm.why_not is None and (where not in best or best[where].found.estimate < arm.found.estimate):
            best[where] = arm
    rows: list[Decision] = []
    shape = sorted(best.items(), key=lambda item: (item[0][0], item[0][1], item[0][2].collective, item[0][2].bytes))
    for (ranks, nodes, collective), its in groupby(shape, lambda i: (i[0][0], i[0][1], i[0][2].collective)):
        sizes = sorted(measured[ranks, nodes, int(collective)])
        for choice, run in _runs({item[0][2].bytes: item[1].arm for item in its}, sizes):
            rows.append(
                Decision(
                    collective,
                    (TableChoice(*choice.algo_proto, choice.channels or None),),
                    bytes=Span(run[0], run[-1]),
                    ranks=Span(ranks, ranks),
                    nodes=Span(nodes, nodes) if nodes else ANY_COUNT,
                )
            )
    return Table(tuple(rows), provenance=provenance)


def _runs(chosen: dict[int, Combination], sizes: Sequence[int]) -> Iterator[tuple[Combination, list[int]]]:
    """Runs of consecutive sizes with the same choice; a size without a choice ends a run."""
    for choice, its in groupby(sizes, key=chosen.get):
        if choice is not None:
            yield choice, list(its)

"""Decisions from jobs that explored, on planted times: the arm that is better in the job stays, and no other one."""

import hashlib
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Protocol
from tuner.cli import job as job_commands
from tuner.jobs.inside.decide import JobDecision, decide
from tuner.jobs.inside.joined import JobCall, JobCommunicator, JoinedCalls
from tuner.jobs.inside.plan import MOST_FACTOR, JobPlan, plan
from tuner.jobs.inside.steps import JobSteps, read_steps
from tuner.plugin.table.parse import from_text, to_text
from tuner.scenario.describe import describe
from tuner.times.compare import ERROR
from tuner.times.measured.samples import Combination

USUAL = Combination(Algorithm.Ring, Protocol.Simple, 24)
ARMS = [Combination(Algorithm.Ring, Protocol.LL128, 16), Combination(Algorithm.Ring, Protocol.LL, 8)]
TREES = [Combination(Algorithm.Tree, Protocol.Simple, 8), Combination(Algorithm.NVLSTree, Protocol.Simple, 8)]
BLOCK, EVERY, STEP_S = 10, 20, 0.02
FIRST = 600  # call that can be an arm's


def job(
    seed: int, factors: tuple[float, float], calls: int = 20_000, slowed: float = 1.0, arms: list[Combination] = ARMS
) -> JoinedCalls:
    """A job of some minutes: noise of 10 % a call, a drift of some percent over seconds, and arms in turns.

    ``factors`` are the arms' times over the usual one's; in their blocks the job takes ``slowed`` times as long.
    """
    random = np.random.default_rng(seed)
    block = np.arange(calls) // BLOCK
    explores = (block % EVERY == EVERY // 2) & (block >= FIRST // BLOCK)
    call = np.where(explores, 1 + block // EVERY % 2, 0)
    drift = np.cumsum(random.normal(0, 0.004, calls))
    drift -= np.convolve(drift, np.ones(calls // 10) / (calls // 10), "same")
    factor = np.array([1.0, *factors])[call]
    transfer_us = 500 * factor * np.exp(drift + random.normal(0, 0.1, calls))
    elapsed = STEP_S * np.where(explores, slowed, 1.0) * np.exp(random.normal(0, 0.02, calls))
    kinds = tuple(
        JobCall(Collective.AllReduce, 64 << 20, DataType.bfloat16, executed, 17) for executed in (USUAL, *arms)
    )
    none = np.zeros(calls)
    return JoinedCalls(
        JobCommunicator(7, "", 16, 2, {}),
        kinds,
        call,
        np.arange(calls),
        transfer_us,
        none,
        none.astype(np.int64),
        1.7e9 + np.cumsum(elapsed),
        0,
        0,
    )


def kept(decision: JobDecision) -> list[Combination]:
    return [arm.arm for arm in decision.kept]


def test_the_arm_that_is_better_in_the_job_stays_on_most_machines() -> None:
    right = [kept(decide([job(seed, (1 / 1.1, 1.05))], {})) == ARMS[:1] for seed in range(20)]
    assert sum(right) >= 16


def test_no_arm_stays_where_none_is_better() -> None:
    false = sum(bool(kept(decide([job(seed, (1.0, 1.0))], {}))) for seed in range(40))
    assert false <= 2


def test_gains_and_the_table_are_those_that_were_planted() -> None:
    decision = decide([job(1, (0.8, 1.2))], {"from": "a test"})
    faster, slower = sorted(decision.arms, key=lambda arm: -arm.found.gain)
    assert faster.found.interval[0] < 0.25 < faster.found.interval[1]
    assert slower.found.interval[0] < 1 / 1.2 - 1 < slower.found.interval[1]
    assert (faster.arm, faster.usual, faster.why_not, slower.why_not is None) == (ARMS[0], USUAL, None, False)
    assert faster.p <= ERROR
    (row,) = from_text(to_text(decision.table)).decisions
    assert (row.choices[0].algo_proto, row.choices[0].channels) == (ARMS[0].algo_proto, 16)
    assert (row.bytes.low, row.bytes.high, row.ranks.low, row.nodes.high) == (64 << 20, 64 << 20, 16, 2)
    base_s = 20_000 * 0.95 * 500e-6 * 0.2 / (20_000 * STEP_S) * 86400  # what 20 % of the usual calls take in a day
    assert faster.saved_s == pytest.approx(base_s, rel=0.1)


def test_what_to_export_can_be_copied_and_a_gain_is_no_negative_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decision = decide([job(1, (0.8, 0.9))], {})
    out = tmp_path / "a table of a job"
    out.write_text("x\n")
    job_commands._print_decided(decision, out)
    *_, gained, _, path, pin = capsys.readouterr().out.splitlines()
    assert decision.cost < 0
    assert gained == f"exploring made the time in collectives {-100 * decision.cost:.2g} % shorter"
    assert path == f"export NCCL_TUNER_TABLE='{out}'"
    assert pin == f"export NCCL_TUNER_TABLE_SHA256={hashlib.sha256(out.read_bytes()).hexdigest()}"


def test_too_few_blocks_say_what_to_do() -> None:
    for arm in decide([job(1, (0.9, 1.1), calls=1500)], {}).arms:
        assert (arm.judged, (arm.why_not or "").partition(": ")[::2]) == (
            False,
            (
                "2 blocks in 2 stretches of time are too few (at least 6 stretches are needed)",
                "explore longer, or start the job again with this table, and give decide both folders",
            ),
        )


def test_an_arm_in_whose_blocks_the_job_is_slower_does_not_stay() -> None:
    decision = decide([job(3, (0.9, 1.1), slowed=1.2)], {})
    assert not decision.kept
    assert any("the job itself is" in (arm.why_not or "") for arm in decision.arms)


@pytest.mark.parametrize("ranks", [2, 16, 512])
@pytest.mark.parametrize("apart", ["nothing", "last", "tree", "root"])
def test_an_arm_whose_ranks_do_not_end_together_stays_by_the_job_alone(apart: str, ranks: int) -> None:
    """As Tree on an H200: the rank at one end of it is in its kernel for less time than a call takes."""
    random = np.random.default_rng(5)
    arms = TREES if apart == "tree" else ARMS
    plain = job(4, (0.8, 1.0), arms=arms)
    kinds = [replace(kind, collective=Collective.Broadcast) for kind in plain.kinds]
    alike = replace(
        plain,
        communicator=replace(plain.communicator, ranks=ranks),
        kinds=tuple(kinds) if apart == "root" else plain.kinds,
        last=np.where((plain.call == 1) & (apart == "last"), ranks - 1, random.integers(0, ranks, len(plain.call))),
    )
    assert kept(decide([alike], {})) == (arms[:1] if apart == "nothing" else [])
    if apart != "nothing":
        assert any("do not end together" in (arm.why_not or "") for arm in decide([alike], {}).arms)
        faster = replace(alike, at_s=job(4, (0.8, 1.0), slowed=0.9).at_s)
        assert kept(decide([faster], {})) == arms[:1]


@pytest.mark.parametrize("skew_us", [1, 60, 2000])
def test_a_tree_that_is_no_faster_does_not_stay_however_late_ranks_come(skew_us: float) -> None:
    """From the last rank's start to the last end it is the ring; ranks near its root end a quarter of that before."""
    random, plain, ranks = np.random.default_rng(6), job(6, (1.0, 1.0), calls=6000, arms=TREES), 64
    depth = np.floor(np.log2(np.arange(ranks) // 8 + 1))
    early = np.where(plain.call[:, None] > 0, 0.25 * (1 - depth / depth.max()), 0)
    start_us = random.exponential(skew_us, (len(plain.call), ranks))
    times_us = start_us.max(axis=1)[:, None] - start_us + plain.transfer_us[:, None] * (1 - early)
    least_us = times_us.min(axis=1)
    seen = replace(
        plain,
        communicator=replace(plain.communicator, ranks=ranks),
        transfer_us=least_us,
        waiting_us=times_us.sum(axis=1) - ranks * least_us,
        last=times_us.argmin(axis=1),
    )
    decision = decide([seen], {})
    assert any(arm.found.gain > 0.02 for arm in decision.arms)
    assert not decision.kept


def test_what_ran_before_any_rank_can_explore_is_no_arm() -> None:
    """As where buffers of every tenth call are registered, for which NCCL has another choice."""
    mixed = job(1, (0.8, 0.8))
    calls = np.where(np.arange(len(mixed.call)) % 10 == 3, 1, 0)
    of_usual = np.where(mixed.call > 0, mixed.transfer_us / 0.8, mixed.transfer_us)
    decision = decide([replace(mixed, call=calls, transfer_us=of_usual * np.where(calls == 1, 0.8, 1.0))], {})
    assert [(arm.why_not or "")[:27] for arm in decision.arms] == ["ran before any rank explore"]
    assert (decision.arms[0].found.gain > 0.2, decision.arms[0].judged, decision.cost) == (True, False, 0.0)


def test_calls_right_after_a_block_may_be_slower_for_it() -> None:
    plain = job(2, (1.0, 1.0))
    is_arm = plain.call > 0
    after = np.logical_or.reduce([np.concatenate([np.zeros(k, bool), is_arm[:-k]]) for k in range(1, BLOCK + 1)])
    slower = np.where(after & ~is_arm, 1.3, 1.0)
    decision = decide([replace(plain, transfer_us=plain.transfer_us * slower)], {})
    assert all(abs(arm.found.gain) < 0.02 for arm in decision.arms)
    assert not decision.kept


def test_starts_that_are_days_apart_are_as_good_as_one() -> None:
    starts = [job(seed, (0.8, 1.2), calls=10_000) for seed in range(2)]
    apart = [replace(each, at_s=each.at_s + day * 86400) for day, each in enumerate(starts)]
    one, two = (decide(each, {}) for each in (starts[:1], apart))
    assert kept(two) == ARMS[:1]
    assert two.arms[0].units >= 12
    assert two.kept[0].saved_s == pytest.approx(one.kept[0].saved_s, rel=0.1)


def test_an_arm_that_the_job_alone_can_speak_for_is_corrected_by_what_the_job_says() -> None:
    """A tree's kernels seem faster whatever it does, which says nothing."""
    for arm in decide([job(4, (0.8, 0.8), slowed=0.999, arms=TREES)], {}).arms:
        assert arm.found.gain > 0.2
        assert arm.p > ERROR


def test_too_few_blocks_cannot_be_judged_and_a_job_without_arms_is_refused() -> None:
    decision = decide([job(1, (0.5, 0.5), calls=1200)], {})
    assert [arm.judged for arm in decision.arms] == [False, False]
    with pytest.raises(BadInput, match="it did not explore"):
        decide([job(1, (0.5, 0.5), calls=90)], {})


# --- what exploring costs ---

MIB = 1 << 20
CALLS = 40_000  # of each size


OfShape = tuple[Collective, int, list[tuple[Combination, float]]]


def measured(shape: list[OfShape], every: int, seed: int, block_calls: int = BLOCK, calls: int = CALLS) -> JoinedCalls:
    """A job of 16 ranks that explores: by call its arms, the first of which it runs else, and what they take, us."""
    random = np.random.default_rng(seed)
    kinds: list[JobCall] = []
    call, transfer_us = [], []
    for collective, size, arms in shape:
        block = np.arange(calls) // block_calls
        explores = (block % every == every // 2) & (block >= FIRST // block_calls)
        arm = np.where(explores, block // every % len(arms), 0)  # the first is in turn, too
        call.append(len(kinds) + arm)
        transfer_us.append(np.array([us for _, us in arms])[arm] * np.exp(random.normal(0, 0.05, calls)))
        kinds += [JobCall(collective, size, DataType.float32, executed, 17) for executed, _ in arms]
    numbers, times = np.array(call).T.ravel(), np.array(transfer_us).T.ravel()  # in turn, as a step has them
    none = np.zeros(len(numbers))
    return JoinedCalls(
        JobCommunicator(7, "", 16, 2, {}),
        tuple(kinds),
        numbers,
        np.arange(len(numbers)),
        times,
        none,
        none.astype(np.int64),
        1.7e9 + np.cumsum(2 * times / 1e6),
        0,
        0,
    )


def test_what_exploring_costs_is_what_was_predicted() -> None:
    scenario = describe(machine="dgx-h100", nodes=2, nccl="2.28.9")
    nvls = Combination(Algorithm.NVLSTree, Protocol.Simple, 16)
    shape = [(Collective.AllReduce, 64 * MIB, [(nvls, 500.0)]), (Collective.AllReduce, 256 * MIB, [(nvls, 1500.0)])]
    planned = plan([measured(shape, EVERY, 0)], scenario, {}, 2.5)
    assert "the calibration" in planned.model
    assert all(1 < arm.factor <= 2.5 for call in planned.calls for arm in call.arms)
    times = {call.point.bytes: [(arm.arm, arm.factor) for arm in call.arms] for call in planned.calls}
    good = 0
    for seed in range(20):  # machines that are as the model says, but for some percent
        random = np.random.default_rng(seed)
        explored = []
        for collective, size, (now,) in shape:
            true = [(arm, now[1] * factor * np.exp(random.normal(0, 0.03))) for arm, factor in times[size]]
            explored.append((collective, size, [now, *true]))
        cost = decide([measured(explored, planned.every, seed)], {}).cost
        good += abs(cost / planned.cost - 1) < 1 / 3
    assert good >= 18


def test_the_interval_of_what_exploring_costs_holds_where_the_model_is_off() -> None:
    scenario = describe(machine="dgx-h100", nodes=2, nccl="2.28.9")
    nvls = Combination(Algorithm.NVLSTree, Protocol.Simple, 16)
    shape = [(Collective.AllReduce, 64 * MIB, [(nvls, 500.0)]), (Collective.AllReduce, 256 * MIB, [(nvls, 1500.0)])]
    planned = plan([measured(shape, EVERY, 0)], scenario, {})
    assert planned.cost_interval is not None
    low, high = planned.cost_interval
    assert low < planned.cost < high
    times = {call.point.bytes: [(arm.arm, arm.factor) for arm in call.arms] for call in planned.calls}
    inside, near = 0, 0
    for seed in range(20):  # machines of which each arm is a fifth off, at all sizes
        random, off = np.random.default_rng(seed), dict[Combination, float]()
        explored = []
        for collective, size, (now,) in shape:
            true = [
                (arm, now[1] * factor * off.setdefault(arm, float(np.exp(random.normal(0, 0.2)))))
                for arm, factor in times[size]
            ]
            explored.append((collective, size, [now, *true]))
        cost = decide([measured(explored, planned.every, seed)], {}).cost
        inside += low <= cost <= high
        near += abs(cost / planned.cost - 1) < 1 / 3
    assert inside >= 18
    assert near < 10, "one number alone says too much"


@pytest.mark.parametrize("error", [0.05, 0.1, 0.2, 0.3])
def test_a_first_stretch_says_what_exploring_costs(error: float) -> None:
    """Machines that are as far off as before, at all sizes: 19, 12, 6 and 1 of 20 within a third by the model alone."""
    scenario = describe(machine="dgx-h100", nodes=2, nccl="2.28.9")
    nvls = Combination(Algorithm.NVLSTree, Protocol.Simple, 16)
    sizes = {64 * MIB: 500.0, 256 * MIB: 1500.0}
    first = plan(
        [measured([(Collective.AllReduce, size, [(nvls, us)]) for size, us in sizes.items()], 14, 0)], scenario, {}
    )
    near = inside = tried = 0
    for seed in range(6):
        random, off = np.random.default_rng(seed), dict[Combination, float]()
        for arm in sorted({arm.arm for call in first.calls for arm in call.arms}):
            off[arm] = float(np.exp(random.normal(0, error)))
        true = {
            call.point.bytes: {arm.arm: sizes[call.point.bytes] * arm.factor * off[arm.arm] for arm in call.arms}
            for call in first.calls
        }

        def explored(planned: JobPlan, times: dict[int, dict[Combination, float]] = true) -> list[OfShape]:
            """The job's calls of both sizes, with what each plans for it: nothing where all else is too slow."""
            tried = {call.point.bytes: [arm.arm for arm in call.arms] for call in planned.calls}
            return [
                (Collective.AllReduce, size, [(nvls, us), *((arm, times[size][arm]) for arm in tried.get(size, ()))])
                for size, us in sizes.items()
            ]

        blocks = [measured(explored(first), first.every, 100 + seed, calls=12_000)]
        slowdowns = (us / sizes[size] for size, arms in true.items() for us in arms.values())
        if min(slowdowns) > MOST_FACTOR:
            with pytest.raises(BadInput, match=r"no kind of call .* has another choice"):
                plan(blocks, scenario, {})
            continue
        tried += 1
        second = plan(blocks, scenario, {})
        assert second.model == "blocks in this job"
        assert second.cost_interval is not None
        cost = decide([measured(explored(second), second.every, seed)], {}).cost
        near += abs(cost / second.cost - 1) < 1 / 3
        inside += second.cost_interval[0] <= cost <= second.cost_interval[1]
    assert tried >= 4
    assert near >= tried - 1
    assert inside >= tried - 1


def test_how_far_nccls_own_model_is_off_is_not_known() -> None:
    scenario = describe(machine="pcie-l20", nccl="2.28.9")
    ring = Combination(Algorithm.Ring, Protocol.Simple, 2)
    job = replace(
        measured([(Collective.AllReduce, 64 * MIB, [(ring, 500.0)])], EVERY, 0),
        communicator=JobCommunicator(7, "", scenario.ranks, 1, {}),
    )
    planned = plan([job], scenario, {}, 4.0)
    assert (planned.model, planned.cost_interval) == ("NCCL's model", None)


def test_planned_blocks_have_whole_steps_which_tell_what_an_arm_does() -> None:
    """Blocks of 10 calls are a tenth of a step: no step says anything of them."""
    scenario = describe(machine="dgx-h100", nodes=2, nccl="2.28.9")
    nvls = Combination(Algorithm.NVLSTree, Protocol.Simple, 16)
    shape = [(Collective.AllReduce, 64 * MIB, [(nvls, 5000.0)])]
    calls = measured(shape, EVERY, 0)
    ends = calls.at_s[99::100]
    steps = JobSteps(ends, np.diff(ends, prepend=2 * ends[0] - ends[1]), dated=True)
    planned = plan([calls], scenario, {}, steps=steps)
    assert {call.block for call in planned.calls} == {200}
    (arms,) = [row.arms for row in planned.table.decisions]
    assert arms is not None
    assert arms.calls >= 50 * 200 * planned.every * len(arms.choices)
    arm = [(planned.calls[0].arms[0].arm, 4000.0)]
    for block, tells in ((BLOCK, False), (200, True)):
        explored = measured([(*shape[0][:2], [*shape[0][2], *arm])], 10, 0, block)
        ends = explored.at_s[99::100]
        steps = JobSteps(ends, np.diff(ends, prepend=2 * ends[0] - ends[1]), dated=True)
        (judged,) = decide([explored], {}, steps).arms
        assert (judged.job is not None) == tells
    assert judged.job is not None
    assert judged.job.interval[0] < 0.25 < judged.job.interval[1]


def test_arms_beyond_the_factor_are_not_planned() -> None:
    scenario = describe(machine="dgx-h100", nodes=2, nccl="2.28.9")
    nvls = Combination(Algorithm.NVLSTree, Protocol.Simple, 16)
    job = measured([(Collective.AllReduce, 256 * MIB, [(nvls, 1500.0)])], EVERY, 0)
    few, many = (plan([job], scenario, {}, factor).calls[0].arms for factor in (1.2, 4.0))
    assert len(few) < len(many)
    assert max(arm.factor for arm in few) <= 1.2 < max(arm.factor for arm in many)


# --- steps ---

OF_STEP = 5  # calls: a block is two steps


def steps_of(calls: JoinedCalls) -> JobSteps:
    ends = calls.at_s[OF_STEP - 1 :: OF_STEP]
    return JobSteps(ends, np.diff(ends, prepend=2 * ends[0] - ends[1]), dated=True)


def test_steps_say_what_an_arm_wins_and_stop_one_that_costs() -> None:
    faster = job(5, (0.8, 1.2), slowed=0.96)
    (kept_arm,) = decide([faster], {}, steps_of(faster)).kept
    assert kept_arm.job is not None
    assert kept_arm.job.interval[0] < 1 / 0.96 - 1 < kept_arm.job.interval[1]
    assert kept_arm.job.interval[0] > 0
    assert kept_arm.job_saved_s == pytest.approx(0.04 * 86400, rel=0.3)
    slower = job(5, (0.8, 1.2), slowed=1.04)
    decision = decide([slower], {}, steps_of(slower))
    assert not decision.kept
    assert any("the job itself is" in (arm.why_not or "") for arm in decision.arms)


def test_steps_much_longer_than_blocks_say_nothing() -> None:
    calls = job(5, (0.8, 1.2))
    ends = calls.at_s[999::1000]
    (arm, _) = decide([calls], {}, JobSteps(ends, np.diff(ends, prepend=ends[0] - 20.0), dated=True)).arms
    assert (arm.job, arm.job_saved_s) == (None, None)


TIMES: NDArray[np.float64] = np.array([0.5, 0.25, 0.5, 0.5, 0.25, 0.5, 0.5, 0.75, 0.5])
BEGIN_NS = 1_700_000_000 * 10**9


def spans_ns() -> list[tuple[int, int]]:
    ends = np.cumsum(TIMES)
    return [(int(1e9 * (end - time)), int(1e9 * end)) for end, time in zip(ends, TIMES, strict=True)]


def write_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.executescript(
            "CREATE TABLE StringIds (id INTEGER, value TEXT); INSERT INTO StringIds VALUES (3, 'step');"
            "CREATE TABLE NVTX_EVENTS (globalTid INTEGER, start INTEGER, end INTEGER, text TEXT, textId INTEGER);"
            "INSERT INTO NVTX_EVENTS VALUES (9, 0, 5, 'other', NULL), (8, 0, 5, 'step', NULL), (7, 0, NULL, NULL, 3);"
            "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);"
            f"INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ({BEGIN_NS});"
        )
        database.executemany("INSERT INTO NVTX_EVENTS VALUES (7, ?, ?, NULL, 3)", spans_ns())


def text_of(form: str) -> str:
    ends = BEGIN_NS / 1e9 + np.cumsum(TIMES)
    if form == "numbers":
        return "# s\n" + "".join(f"{time}\n" for time in TIMES)
    if form == "csv":
        rows = "".join(f"{start},{end},{end - start},:step\n{start},{end},1,:other\n" for start, end in spans_ns())
        return f"Processing [x.sqlite]\n\nStart (ns),End (ns),Duration (ns),Name\n{rows}"
    both = [{"step_s": time, "time": end} for time, end in zip(TIMES, ends, strict=True)]
    return "".join(json.dumps(each if form == "dated" else {"step_s": each["step_s"]}) + "\n" for each in both)


@pytest.mark.parametrize("form", ["numbers", "csv", "lines", "dated", "sqlite"])
def test_steps_are_read_from_what_jobs_write(form: str, tmp_path: Path) -> None:
    path = tmp_path / "steps"
    if form == "sqlite":
        write_sqlite(path)
    else:
        path.write_text(text_of(form))
    steps = read_steps(path, "step")
    np.testing.assert_allclose(steps.time_s, TIMES, rtol=1e-6)
    np.testing.assert_allclose(steps.since(BEGIN_NS / 1e9).end_s, BEGIN_NS / 1e9 + np.cumsum(TIMES))
    assert steps.dated == (form in ("dated", "sqlite"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("0.5\n" * 3, "has 3 steps, but at least 8 are needed"),
        ("0.5\nlong\n", ":2 is not the time of a step"),
        ('{"step_s": 1, "time": 2}\n{"step_s": 1}\n', "others have none"),
        ("Start (ns),End (ns),Name\n1,2,:other\n", "no NVTX range called step"),
        ("SQLite format 3\0 and no more", "not an export of Nsight Systems"),
    ],
)
def test_what_is_no_file_of_steps_is_refused(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "steps"
    path.write_text(content)
    with pytest.raises(BadInput, match=says):
        read_steps(path, "step")

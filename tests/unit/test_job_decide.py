"""Decisions from jobs that explored, on planted times: the arm that is better in the job stays, and no other one."""

import numpy as np
import pytest

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Protocol
from tuner.jobs.inside.decide import ERROR, JobDecision, decide
from tuner.jobs.inside.joined import JobCall, JobCommunicator, JoinedCalls
from tuner.plugin.table.parse import from_text, to_text
from tuner.times.records.samples import Combination

USUAL = Combination(Algorithm.Ring, Protocol.Simple, 24)
ARMS = [Combination(Algorithm.Tree, Protocol.Simple, 8), Combination(Algorithm.Ring, Protocol.LL128, 16)]
BLOCK, EVERY, STEP_S = 10, 20, 0.02


def job(seed: int, factors: tuple[float, float], calls: int = 20_000, slowed: float = 1.0) -> JoinedCalls:
    """A job of some minutes: noise of 10 % a call, a drift of some percent over seconds, and arms in turns.

    ``factors`` are the arms' times over the usual one's; in their blocks the job takes ``slowed`` times as long.
    """
    random = np.random.default_rng(seed)
    block = np.arange(calls) // BLOCK
    explores = block % EVERY == EVERY // 2
    call = np.where(explores, 1 + block // EVERY % 2, 0)
    drift = np.cumsum(random.normal(0, 0.004, calls))
    drift -= np.convolve(drift, np.ones(calls // 10) / (calls // 10), "same")
    factor = np.array([1.0, *factors])[call]
    transfer_us = 500 * factor * np.exp(drift + random.normal(0, 0.1, calls))
    elapsed = STEP_S * np.where(explores, slowed, 1.0) * np.exp(random.normal(0, 0.02, calls))
    kinds = tuple(
        JobCall(Collective.AllReduce, 64 << 20, DataType.bfloat16, executed, 17) for executed in (USUAL, *ARMS)
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
    tree, ring = sorted(decision.arms, key=lambda arm: -arm.gain)
    assert tree.interval[0] < 0.25 < tree.interval[1]
    assert ring.interval[0] < 1 / 1.2 - 1 < ring.interval[1]
    assert (tree.arm, tree.usual, tree.why_not, ring.why_not is None) == (ARMS[0], USUAL, None, False)
    assert tree.p <= ERROR
    (row,) = from_text(to_text(decision.table)).decisions
    assert (row.choices[0].algo_proto, row.choices[0].channels) == (ARMS[0].algo_proto, 8)
    assert (row.bytes.low, row.bytes.high, row.ranks.low, row.nodes.high) == (64 << 20, 64 << 20, 16, 2)
    base_s = 20_000 * 0.95 * 500e-6 * 0.2 / (20_000 * STEP_S) * 86400  # what 20 % of the usual calls take in a day
    assert tree.saved_s == pytest.approx(base_s, rel=0.1)


def test_an_arm_in_whose_blocks_the_job_is_slower_does_not_stay() -> None:
    decision = decide([job(3, (0.9, 1.1), slowed=1.2)], {})
    assert not decision.kept
    assert any("the job itself is" in (arm.why_not or "") for arm in decision.arms)


def test_too_few_blocks_cannot_be_judged_and_a_job_without_arms_is_refused() -> None:
    decision = decide([job(1, (0.5, 0.5), calls=900)], {})
    assert [arm.judged for arm in decision.arms] == [False, False]
    with pytest.raises(BadInput, match="it did not explore"):
        decide([job(1, (0.5, 0.5), calls=90)], {})

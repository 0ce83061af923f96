"""Planted times behind known noise: what is kept falsely, what is found, and which intervals hold the truth.

``benchmarks/noise.py`` has two hundred machines of each kind of noise; here are a few, whose outcomes are fixed.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.support.planted_noise import (
    BETTER,
    BLOCK_S,
    GAIN,
    NOISES,
    PICK,
    POINTS,
    Noise,
    Planted,
    held,
    idle_gated,
    measured,
    pipeline,
)
from tuner.base.errors import MeasuringFailed
from tuner.base.names import Collective
from tuner.bench.decision.gate import APART_BLOCKS, GateSettings, RowVerdict, gate, of_one_table, verdict
from tuner.bench.decision.rows import DecisionRow, Proposal, regrets
from tuner.bench.loop import LEAST_ROUNDS, Loop, Settings, Wanted, tasks
from tuner.times.compare import Verdict, holm, too_small
from tuner.times.evidence import collect
from tuner.times.measured import samples
from tuner.times.measured.samples import Point, SampleBlock, lateness
from tuner.times.results import late_ranks, results
from tuner.times.statistics import LEAST_PROCESSES, Estimate, RunNoise, Samples, correlation, timer_steps_us

BY_NAME = {noise.name: noise for noise in NOISES}
SETTINGS, GATE = Settings(warmup=0), GateSettings(warmup=0)
SEEDS = range(6)
GAINS = Verdict(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AR(1) of 10 %", "10 % of a block", "3 % of a process", "5 % of a process"])
def test_nothing_is_kept_where_nothing_is_to_be_gained(name: str) -> None:
    runs = [pipeline(BY_NAME[name], seed, 0.0, SETTINGS, GATE) for seed in SEEDS]
    assert sum(run.false_kept > 0 for run in runs) == 0
    alone = [idle_gated(BY_NAME[name], seed, GATE) for seed in range(20)]
    assert sum(any(one.why_not is None for one in verdicts) for verdicts in alone) <= 1
    assert np.mean([each for verdicts in alone for each in held(verdicts)]) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quiet", "AR(1) of 3 %", "3 % of a block", "1 % of a process"])
def test_a_gain_of_5_percent_is_found_and_the_intervals_hold_the_truth(name: str) -> None:
    runs = [pipeline(BY_NAME[name], seed, GAIN, SETTINGS, GATE) for seed in SEEDS]
    assert np.mean([run.regret_before for run in runs]) == pytest.approx(0.02)
    assert np.mean([run.regret_after for run in runs]) <= 0.005
    assert all(run.processes >= LEAST_PROCESSES and run.rounds >= LEAST_ROUNDS for run in runs)
    for what in ("times", "regrets"):  # sizes of a machine share their processes: six machines tell it roughly
        assert np.mean([each for run in runs for each in run.held[what]]) >= 0.87


def estimated(medians_us: Sequence[float], processes: Sequence[int], noise: RunNoise | None = None) -> Estimate:
    return Samples.of_blocks(medians_us, processes, noise).estimate()


def test_blocks_and_not_runs_are_the_unit() -> None:
    """Runs of a block share what disturbs them: many of them say no more than one."""
    rng, held_by_runs, held_by_blocks = np.random.default_rng(1), 0, 0
    for _ in range(400):
        blocks = np.exp(rng.normal(0, 0.03, (9, 1)) + rng.normal(0, 0.003, (9, 10)))
        of_three = estimated(np.median(blocks, axis=1).tolist(), [0] * 3 + [1] * 3 + [2] * 3)
        of_one = estimated(np.median(blocks, axis=1).tolist(), [0] * 9)
        by_runs = estimated(blocks.ravel().tolist(), [0] * 90)
        held_by_blocks += (of_three.low_us <= 1 <= of_three.high_us) + (of_one.low_us <= 1 <= of_one.high_us)
        held_by_runs += by_runs.low_us <= 1 <= by_runs.high_us
    assert 0.92 < held_by_blocks / 800 < 0.98
    assert held_by_runs / 400 < 0.7


def test_processes_are_the_unit_from_three_on() -> None:
    medians_us = [10.0, 10.1, 9.9, 11.0, 11.1, 10.9, 12.0, 12.1, 11.9]
    one, three = estimated(medians_us, [0] * 9), estimated(medians_us, [0] * 3 + [1] * 3 + [2] * 3)
    assert three.median_us == pytest.approx((10 * 11 * 12) ** (1 / 3))
    assert one.median_us == pytest.approx(11.0)
    assert three.high_us - three.low_us > 2 * (one.high_us - one.low_us)
    assert not estimated([1.0, 1.0], [0, 0]).is_bounded
    two = estimated(medians_us, [0] * 5 + [1] * 4)
    assert (two.low_us, two.high_us) == (one.low_us, one.high_us)


def test_evidence_by_process_does_not_take_one_for_the_machine() -> None:
    """5 % that are fixed in a process: nine rounds of one process are sure of them, three processes are not."""
    sure = {1: 0, 3: 0}
    for seed in range(10):
        for processes in sure:
            backend = Planted(BY_NAME["5 % of a process"], (seed, 5))
            settings = replace(SETTINGS, rounds=9, rounds_per_process=9 // processes)
            comparison = measured(backend, settings).comparison
            assert {each.processes for each in comparison.evidence.values()} == {processes}
            sure[processes] += any(one.loses for one in comparison.sizes)
    assert sure[1] >= 9
    assert sure[3] <= 3


def test_a_backend_without_other_processes_ends_the_loop_and_refuses_the_gate() -> None:
    class Alone(Planted):
        def renew(self) -> bool:
            return super().renew() and self.processes < 2  # the first is the start

    backend, blocks = Alone(BY_NAME["quiet"], (1, 1)), list[SampleBlock]()
    loop = Loop(backend, tasks(backend, POINTS, Wanted()), replace(SETTINGS, precision=1e-6), blocks.append)
    list(loop.run())
    assert loop.end == "process"
    assert {block.round for block in blocks} == {0, 1, 2}
    # The next start is another process.
    again = Loop(Alone(BY_NAME["quiet"], (1, 2)), list(loop.known), SETTINGS, blocks.append, blocks[:])
    next(again.run())
    assert (blocks[-1].process, blocks[-1].round) == (1, 3)
    proposal = measured(Planted(BY_NAME["quiet"], (1, 1), GAIN), SETTINGS)
    with pytest.raises(MeasuringFailed, match="the gate asks 5 processes, and here is one"):
        gate(Alone(BY_NAME["quiet"], (1, 3), GAIN), proposal, GATE, blocks.append)


def test_the_gate_asks_each_process_with_and_without_the_table() -> None:
    proposal = measured(Planted(BY_NAME["quiet"], (1, 1), GAIN), SETTINGS)
    blocks: list[SampleBlock] = []
    gate(Planted(BY_NAME["quiet"], (1, 2), GAIN), proposal, replace(GATE, rounds=7, processes=3), blocks.append)
    of_process = [
        {(block.round, block.table is not None) for block in blocks if block.process == each} for each in range(3)
    ]
    assert [len(each) for each in of_process] == [6, 4, 4]
    assert all({side for _, side in each} == {False, True} for each in of_process)
    assert GateSettings(rounds=2).count == LEAST_PROCESSES == GateSettings(processes=1).count


def gate_blocks(proposal: Proposal, settings: GateSettings) -> tuple[list[SampleBlock], Planted]:
    backend, blocks = Planted(BY_NAME["quiet"], (1, 2), GAIN), list[SampleBlock]()
    gate(backend, proposal, settings, blocks.append)
    return blocks, backend


def test_each_side_begins_in_turn() -> None:
    """So that a process that warms up slows neither side more than the other."""
    proposal = measured(Planted(BY_NAME["quiet"], (1, 1), GAIN), SETTINGS)
    begins = set()
    for seed in range(6):
        blocks, _ = gate_blocks(proposal, replace(GATE, seed=seed))
        first: dict[int, dict[int, bool]] = {}
        for block in blocks:
            first.setdefault(block.process, {}).setdefault(block.round, block.table is not None)
        sides = [list(of_process.values()) for of_process in first.values()]
        assert all(one is not other for of_process in sides for one, other in pairwise(of_process))
        assert all(one[0] is not other[0] for one, other in pairwise(sides))
        begins.add(sides[0][0])
    assert begins == {False, True}


def test_processes_are_apart() -> None:
    proposal = measured(Planted(BY_NAME["quiet"], (1, 1), GAIN), SETTINGS)
    _, backend = gate_blocks(proposal, GATE)
    assert backend.rested_blocks == pytest.approx(4 * APART_BLOCKS)
    for apart_s in (0.0, 2.0):
        _, backend = gate_blocks(proposal, replace(GATE, apart_s=apart_s))
        assert backend.rested_blocks * BLOCK_S == pytest.approx(4 * apart_s)


@pytest.mark.parametrize("name", ["own slow drift", "a neighbour", "a slow rank"])
def test_what_outlasts_a_process_keeps_nothing(name: str) -> None:
    alone = [idle_gated(BY_NAME[name], seed, GATE) for seed in range(40)]
    assert sum(any(one.why_not is None for one in verdicts) for verdicts in alone) <= 2
    assert np.mean([each for verdicts in alone for each in held(verdicts)]) >= 0.9


def test_a_warm_up_keeps_nothing_in_three_processes() -> None:
    alone = [idle_gated(BY_NAME["warm-up of 15 %"], seed, replace(GATE, rounds=9, processes=3)) for seed in range(40)]
    assert sum(any(one.why_not is None for one in verdicts) for verdicts in alone) <= 2
    assert np.mean([each for verdicts in alone for each in held(verdicts)]) >= 0.9


def test_intervals_know_how_far_processes_are_correlated() -> None:
    rng, plain, widened = np.random.default_rng(2), 0, 0
    for _ in range(100):
        series = np.empty((12, 9))  # calls, processes
        series[:, 0] = rng.standard_normal(12)
        for at in range(1, 9):
            series[:, at] = 0.6 * series[:, at - 1] + 0.8 * rng.standard_normal(12)
        noise = RunNoise(correlation(enumerate(series), errors=1.0))
        for its in series:
            blocks = np.exp(its / 100).tolist()
            one, other = estimated(blocks, range(9)), estimated(blocks, range(9), noise=noise)
            plain, widened = plain + (one.low_us <= 1 <= one.high_us), widened + (other.low_us <= 1 <= other.high_us)
    assert plain / 1200 < 0.75
    assert 0.9 < widened / 1200 < 0.98
    independent = [correlation(enumerate(rng.standard_normal((100, 5)))) for _ in range(50)]
    assert np.median(independent) < 0.1
    walks = np.cumsum(rng.standard_normal((100, 5)), axis=1)
    assert correlation((None, each) for each in walks) > 0.6
    assert correlation([(None, [1.0, 2.0]), (PICK, [1.0, 1.0, 1.0])]) == correlation([]) == 0.0


def test_intervals_are_no_narrower_than_the_steps_of_the_timer() -> None:
    """A time that always rounds to 20.0 us is anything from 19.75 to 20.25 us."""
    of_size = {1024: [[20.0] * 6, [20.0] * 5 + [20.5]], 1 << 20: [[100.0, 100.0, 102.0], [7.0, 7.1, 7.3]]}
    assert timer_steps_us(of_size) == {1024: 0.5, 1 << 20: 2.0}
    assert timer_steps_us({8: [[1.0, 1.0, 1.0 + 1e-9], [2.0, 3.0]]}) == {8: 0.0}
    blocks = [20.0] * 9
    assert estimated(blocks, [0, 1, 2] * 3).half_width == 0
    known = estimated(blocks, [0, 1, 2] * 3, noise=RunNoise(step_us=0.5))
    assert known.low_us < 19.75 < 20.25 < known.high_us
    verdicts = [one for seed in range(3) for one in idle_gated(BY_NAME["timer of 0.5 us"], seed, GATE)]
    assert all(one.interval[1] - one.interval[0] > 0.01 for one in verdicts)


def test_the_rows_of_a_table_share_one_level() -> None:
    row = DecisionRow(Collective.AllReduce, 1024, 8192, BETTER, (1024, 8192))
    chances = (0.0001, 0.02, 0.02, 0.9)
    verdicts = of_one_table([RowVerdict(row, GAINS, 1 - chance, row.sizes, None) for chance in chances])
    assert [round(1 - one.probability, 6) for one in verdicts] == [0.0004, 0.06, 0.06, 0.9]
    assert [one.why_not is None for one in verdicts] == [True, False, False, False]
    assert "probability of improvement 0.940, below 0.975" in (verdicts[1].why_not or "")
    (alone,) = of_one_table([RowVerdict(row, GAINS, 1 - 0.02, row.sizes, None)])
    assert alone.why_not is None
    (dropped,) = of_one_table([RowVerdict(row, GAINS, 1.0, row.sizes, "slower at 1K")])
    assert dropped.why_not == "slower at 1K"


def test_a_cut_keeps_measured_sizes_beside_it_and_names_those_it_drops() -> None:
    """Eight of twelve measured sizes are tried; one of those at the low end is slower, its neighbour was not tried."""
    sizes = tuple(1024 << power for power in range(12))
    row = DecisionRow(Collective.AllReduce, sizes[0], sizes[-1], BETTER, sizes)
    tried = [Point(Collective.AllReduce, size) for size in (sizes[1], *sizes[3:9], sizes[11])]
    rng = np.random.default_rng(1)
    gains = {point: rng.normal(-0.2 if point.bytes == sizes[1] else 0.05, 0.002, 5) for point in tried}
    one = verdict(row, tried, gains, {})
    assert one.why_not is None
    assert one.row.sizes == sizes[2:]  # the third was not tried, and gained where it was measured
    assert one.row.low == sizes[2]
    assert one.cut == sizes[:2]


def test_decide_and_verify_say_the_same_regret() -> None:
    """NCCL's own choice and the same forced are two measurements of one thing: the lesser of them is no better pick."""
    backend = Planted(Noise("noisy", run=0.05), (3, 1), GAIN)
    proposal = measured(backend, replace(SETTINGS, rounds=8))
    sizes = proposal.comparison.sizes
    assert regrets(proposal.sizes, []).before == pytest.approx(np.mean([one.regret for one in sizes]), rel=1e-9)
    assert max(one.regret or 0 for one in sizes) > 0


def test_late_ranks_are_kept_and_named() -> None:
    """The sixteen latest, however many there are; a rank counts as late in most sample blocks, and in long calls."""
    whole_us = [1000.0] * 40
    whole_us[7], whole_us[9] = 1060.0, 1004.0
    late_us = lateness(whole_us)
    assert (len(late_us), late_us[:3]) == (16, ((7, 60.0), (9, 4.0), (0, 0.0)))
    assert lateness([5.0]) == ()
    blocks = [SampleBlock(POINTS[0], PICK, PICK, (100.0,), late_us=late_us) for _ in range(8)]
    (one,) = late_ranks(blocks, "none")
    assert (one.rank, one.late, one.late_blocks, one.blocks) == (7, pytest.approx(0.6), 8, 8)
    assert late_ranks(blocks[:2], "none") == []
    assert late_ranks(blocks, "torchrun") == [], "processes are not started at once, which 100 us may hide"
    on_time = [replace(block, late_us=lateness([1000.0] * 40)) for block in blocks]
    assert late_ranks(blocks[:5] + on_time[:3], "none") == []


def test_a_file_names_its_processes_and_old_files_have_one(tmp_path: Path) -> None:
    block = SampleBlock(POINTS[0], PICK, PICK, (1.0, 2.0, 4.0), process=2)
    path = tmp_path / "run.jsonl"
    with samples.Writer(path, Planted(BY_NAME["quiet"], (1,)).describe()) as writer:
        writer.add(block)
    assert samples.read(path).blocks == (block,)
    path.write_text(path.read_text().replace(',"process":2', ""))
    (old,) = samples.read(path).blocks
    assert (old.process, old.median_us) == (0, 2.0)
    assert old.time is None
    assert old.late_us == ()
    (result,) = results([block, replace(block, process=3)])
    assert (result.samples, result.processes) == (6, 2)
    assert collect([block])[POINTS[0]].processes == 1


def test_chances_are_corrected_for_all_together_and_small_gains_are_no_rows() -> None:
    assert holm([0.01, 0.04, 0.03, 0.9]) == pytest.approx([0.04, 0.09, 0.09, 0.9])
    assert holm([]) == []
    assert too_small(0.0201) is None
    assert too_small(0.02) == "gains 2.0 %, not more than 2 %"

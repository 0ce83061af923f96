"""NCCL's pick against the measured best: what is beyond the noise, and what is not."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.measurement_files import write
from tests.support.simulated_runs import NOTHING, best_found, measured
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import AlgoProto, Algorithm, Collective, Protocol
from tuner.cli.verify import command
from tuner.times.measured.header import Header
from tuner.times.measured.samples import Combination, Measurements, Point, SampleBlock
from tuner.times.picks import judge
from tuner.times.verify import EmulatedModel, JudgedFile, fewest_segments, judge_file, read_histogram, regret_interval

LL, SIMPLE = Combination(Algorithm.Ring, Protocol.LL), Combination(Algorithm.Ring, Protocol.Simple)
POINT = Point(Collective.AllReduce, 1024)


def blocks(
    times_us: dict[Combination | None, float], rounds: int, sigma: float = 0.01, point: Point = POINT
) -> tuple[SampleBlock, ...]:
    rng = np.random.default_rng(1)
    return tuple(
        SampleBlock(
            point,
            requested,
            replace(requested or LL, channels=4),
            tuple(time_us * np.exp(rng.normal(0, sigma, 5))),
            number,
        )
        for number in range(rounds)
        for requested, time_us in times_us.items()
    )


def test_a_gain_beyond_the_noise_is_significant_and_its_regret_right() -> None:
    (one,) = JudgedFile(Measurements(Header(), blocks({None: 11.0, LL: 11.0, SIMPLE: 10.0}, 6)), None).sizes
    assert (one.pick, one.best, one.loses) == (LL, SIMPLE, True)
    assert one.regret == pytest.approx(0.1, abs=0.02)
    low, high = regret_interval(one)
    assert low is not None
    assert high is not None
    assert low < 0.1 < high


def test_ties_noise_and_one_round_are_not_significant() -> None:
    for times, rounds, sigma in (
        ({None: 10.0, LL: 10.0, SIMPLE: 10.0}, 6, 0.0),
        ({None: 10.0, SIMPLE: 9.99}, 6, 0.05),
        ({None: 20.0, SIMPLE: 10.0}, 1, 0.01),
    ):
        (one,) = JudgedFile(Measurements(Header(), blocks(times, rounds, sigma)), None).sizes
        assert not one.loses


def test_few_are_significant_where_nothing_is_to_be_gained() -> None:
    sizes = [one for seed in range(5) for one in measured(seed, NOTHING).comparison.sizes]
    assert sum(one.loses for one in sizes) <= 0.05 * len(sizes)


@pytest.mark.slow
def test_the_planted_best_is_found() -> None:
    found, compared = np.sum([best_found(measured(seed)) for seed in range(10)], axis=0)
    assert compared > 500
    assert found >= 0.95 * compared


def test_what_was_replaced_does_not_count() -> None:
    fast = tuple(replace(block, times_us=(1.0,)) for block in blocks({SIMPLE: 1.0}, 6))
    replaced = tuple(replace(block, executed=LL) for block in fast)
    (one,) = JudgedFile(Measurements(Header(), blocks({None: 10.0}, 6) + replaced), None).sizes
    assert one.best == LL


def test_crossovers_are_as_few_as_the_measurements_allow() -> None:
    a, b = frozenset({LL}), frozenset({SIMPLE})
    assert [found[:2] for found in fewest_segments([a, a | b, b, b, a])] == [(0, 2), (2, 4), (4, 5)]
    run = Measurements(
        Header(),
        tuple(
            block
            for power in range(4)
            for block in blocks(
                {None: 10.0, LL: 10.0 * 2**power, SIMPLE: 28.28}, 6, point=replace(POINT, bytes=1024 << power)
            )
        ),
    )
    (crossover,) = JudgedFile(replace(run, blocks=tuple(v for v in run.blocks if v.requested)), _Always()).crossovers()
    assert (crossover.low_bytes, crossover.high_bytes) == (2048, 4096)
    assert crossover.at_bytes == pytest.approx(1024 * 2**1.5, rel=0.05)


def test_a_crossover_is_where_the_times_cross_and_not_in_the_middle() -> None:
    """22 to 20 against 20.2: Ring/Simple is the faster one from nine tenths of the way on, in logarithms."""
    ends = {1024: 20.02, 4096: 22.0}
    found = tuple(
        block
        for size, time_us in ends.items()
        for block in blocks({LL: time_us, SIMPLE: 20.2}, 6, 1e-5, replace(POINT, bytes=size))
    )
    (crossover,) = JudgedFile(Measurements(Header(), found), _Always()).crossovers()
    part = np.log(20.2 / 20.02) / np.log(22.0 / 20.02)
    assert crossover.at_bytes == pytest.approx(1024 * 4**part, rel=0.01)
    assert part < 0.1


class _Always(EmulatedModel):
    def __init__(self) -> None:
        pass

    def pick(self, point: Point) -> Combination:
        return LL

    def times_us(self, point: Point) -> dict[AlgoProto, float]:
        return {}


@pytest.mark.slow
def test_the_command_answers_in_the_form_that_tools_rely_on(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", measured(5).comparison.measurements)
    calls, plot = tmp_path / "calls.csv", tmp_path / "run.svg"
    calls.write_text("collective,bytes,count\nallreduce,1500000,10\nallgather,3M,1\n")
    pytest.importorskip("matplotlib")
    done = CliRunner().invoke(command, [str(path), "--json", "--histogram", str(calls), "--plot", str(plot)])
    answer = json.loads(done.output)
    assert {"collective", "bytes", "pick", "best", "regret", "significant"} <= set(answer["sizes"][0])
    assert answer["regret_mean"] == pytest.approx(np.mean([size["regret"] for size in answer["sizes"]]))
    (file,) = answer["files"]
    assert file["histogram"]["pick_us"] > file["histogram"]["best_us"] > 0
    assert all(-1 <= error["tau"] <= 1 and error["mape_scaled"] <= error["mape"] for error in file["model_errors"])
    assert "best" in plot.read_text()
    assert CliRunner().invoke(command, [str(path)]).exit_code == 0


def test_a_truncated_file_is_judged_by_what_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", measured(5).comparison.measurements)
    path.write_bytes(path.read_bytes()[:-20])
    assert judge_file(path).measurements.truncated
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadMeasurement):
        judge_file(path)


def test_bad_input_says_what_is_valid(tmp_path: Path) -> None:
    run = measured(5).comparison
    with pytest.raises(BadMeasurement, match="which was not measured; valid: "):
        run.total({(Collective.Broadcast, 8): 1.0})
    with pytest.raises(BadMeasurement, match="but 8 to"):
        run.total({(Collective.AllReduce, 4): 1.0})
    calls = tmp_path / "calls.csv"
    calls.write_text("allreduce,8\n")
    with pytest.raises(BadMeasurement, match=r"calls.csv:1: "):
        read_histogram(calls)
    path = write(tmp_path / "run.jsonl", run.measurements)
    assert isinstance(CliRunner().invoke(command, [str(path), "--plot", "x.txt"]).exception, BadInput)


def test_what_nccl_tests_printed_says_that_nothing_else_was_measured(tmp_path: Path) -> None:
    (tmp_path / "t.log").write_text(
        "h:1:2 [0] NCCL INFO NCCL version 2.27.7+cuda12.8\n# nThread 1 nGpus 2 minBytes 8 maxBytes 8\n"
        "# Collective test starting: all_reduce_perf\n"
        "#  size   count    type   redop    root    time   algbw   busbw #wrong    time   algbw   busbw #wrong\n"
        "h:1:2 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}\n"
        "  1048576  262144  float  sum  -1  40.10  26.15  26.15  0  39.90  26.28  26.28  0\n"
    )
    executed = CliRunner().invoke(command, [str(tmp_path / "t.log")], catch_exceptions=False)
    assert "Ring/Simple" in executed.output
    assert "only NCCL's own choices were measured" in executed.output
    assert "regret: unknown at all 2 sizes" in executed.output
    assert "0.0 %" not in executed.output
    answer = json.loads(CliRunner().invoke(command, [str(tmp_path / "t.log"), "--json"]).output)
    assert (answer["regret_mean"], answer["regret_mean_beyond_noise"]) == (None, None)
    assert {size["regret"] for size in answer["sizes"]} == {None}


def test_a_single_other_choice_that_is_no_faster_does_not_make_the_pick_the_best(tmp_path: Path) -> None:
    run = measured(5).comparison
    every = run.measurements
    others = {
        one.call: next(combination for combination in one.evidence.columns if combination not in (None, one.pick))
        for one in run.sizes
    }
    kept = tuple(block for block in every.blocks if block.requested in (None, others.get(block.point)))
    path = write(tmp_path / "run.jsonl", replace(every, blocks=kept))
    sizes = judge_file(path).sizes
    assert {len(one.others) for one in sizes} == {1}
    assert {one.is_known for one in sizes} == {True, False}
    assert all(one.is_known == one.loses for one in sizes)
    said = CliRunner().invoke(command, [str(path)], catch_exceptions=False).output
    unknown = sum(not one.is_known for one in sizes)
    assert f"unknown at {unknown} more: at most one other choice was measured, and it is not faster" in said
    first, second, *_ = said.splitlines()
    assert "regret of simulated times: mean " in first
    assert second.endswith("run.jsonl: simulated times of 2 x dgx-h100, 8 GPUs each, NCCL 2.28.9")
    answer = json.loads(CliRunner().invoke(command, [str(path), "--json"], catch_exceptions=False).output)
    assert [size["regret"] is None for size in answer["sizes"]] == [not one.is_known for one in sizes]
    assert answer["files"][0]["origin"] == "simulated times of 2 x dgx-h100, 8 GPUs each, NCCL 2.28.9"
    # Where no more than the two can run, the pick is known to be the best.
    assert all(judge(one.call, one.pick, one.evidence, None, enough=1).is_known for one in sizes)

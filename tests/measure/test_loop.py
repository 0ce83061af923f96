"""The measuring loop, against a planted truth behind noise and against backends made for one question each."""

import fcntl
import gzip
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support import command_line
from tuner import release
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.bench.backend import Run
from tuner.bench.gpu.states import States
from tuner.bench.loop import AFTER_ROUNDS, LEAST_ROUNDS, SIZES, End, Loop, Settings, State, Wanted, points, tasks
from tuner.bench.simulated import CHANNELS_POWER, Simulated, draw, from_header
from tuner.cli.measure import noting
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.plugin.dry_run import PluginRefused
from tuner.release import ALGORITHM_KEYS, PROTOCOL_KEYS
from tuner.scenario import Scenario
from tuner.times.measured import samples
from tuner.times.measured.header import Header, Noted, from_record, scenario_of, scenario_record, to_record
from tuner.times.measured.samples import Combination, Point, SampleBlock, Task, Writer
from tuner.times.results import results
from tuner.times.statistics import estimate

CASE = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
CHANGED = {"efficiency": {"ring": {"simple": 0.5}}}
SIMULATED = ("measure", "--backend", "simulated", "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")
THREE = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)
RING_LL, RING = Combination(Algorithm.Ring, Protocol.LL), Combination(Algorithm.Ring, Protocol.Simple)
TREE = Combination(Algorithm.Tree, Protocol.Simple)


def calls(*sizes: int, collectives: tuple[Collective, ...] = (Collective.AllReduce,), ranks: int = 16) -> list[Point]:
    return points(collectives, sizes or None, ranks)


def measure(backend: Any, planned: list[Task], settings: Settings, before: tuple[SampleBlock, ...] = ()) -> Loop:
    loop = Loop(backend, planned, settings, lambda block: None, before)
    for _ in loop.run():
        pass
    return loop


# The truth


@pytest.mark.parametrize("nccl", ["2.18.1", "2.21.5", "2.23.4", "2.28.9", "2.30.7", "2.32.3"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_truth_of_nccls_own_constants_is_its_model(nccl: str, nodes: int) -> None:
    """Then its pick is the best everywhere, and fewer channels gain nothing: there is nothing to be gained."""
    scenario = replace(CASE, nccl=nccl, nodes=nodes)
    with_own = Simulated(scenario, 1, {})
    truth, selection = with_own.truth, Selection(scenario.communicator())
    compared = 0
    for point in calls(collectives=THREE, ranks=scenario.ranks):
        (table_us,) = selection.cost_table(Request(point.collective, point.dtype, point.op), [point.bytes])
        costs = truth.costs(point)
        for algo_proto, cost in costs.items():
            assert cost.time_us(0) == pytest.approx(float(table_us[algo_proto]), rel=1e-12)
            assert min(cost.time_us(channels) for channels in range(1, 65)) == cost.time_us(0)
            compared += 1
        pick = selection.pick(Request(point.collective, point.dtype, point.op), [point.bytes])
        chosen = Combination(Algorithm(pick.algorithm[0]), Protocol(pick.protocol[0]))
        assert truth.time_us(point, chosen) == min(cost.time_us(0) for cost in costs.values())
        assert with_own.run(point, None, 1).executed == replace(chosen, channels=int(pick.channels[0]))
    assert compared > 200


def test_a_given_truth_is_the_model_with_its_constants() -> None:
    truth = {"efficiency": {"ring": {"simple": 0.5}}, "base_latency_us": {"tree": {"ll": 60.0}}}
    own, given = (Simulated(CASE, 1, change).truth for change in ({}, truth))
    (point,) = calls(64 << 20)
    ring, tree = (Algorithm.Ring, Protocol.Simple), (Algorithm.Tree, Protocol.LL)
    assert given.costs(point)[ring].transfer_us == pytest.approx(2 * own.costs(point)[ring].transfer_us, rel=1e-6)
    assert given.costs(point)[ring].latency_us == own.costs(point)[ring].latency_us
    later_us = 60.0 - release.load("2.28.9").base_latency_us[Algorithm.Tree][Protocol.LL]
    assert given.costs(point)[tree].latency_us == pytest.approx(own.costs(point)[tree].latency_us + later_us, rel=1e-6)
    untouched = set(own.costs(point)) - {ring, tree}
    assert all(given.costs(point)[algo_proto] == own.costs(point)[algo_proto] for algo_proto in untouched)
    assert len(untouched) == 5


def test_a_seed_draws_some_constants_within_bounds() -> None:
    nccl = release.load("2.28.9")
    drawn = [draw(nccl, np.random.default_rng(seed)) for seed in range(50)]
    assert draw(nccl, np.random.default_rng(3)) == drawn[3] != drawn[4]
    factors = [
        value / nccl.base_latency_us[ALGORITHM_KEYS[algorithm]][PROTOCOL_KEYS[protocol]]
        for change in drawn
        for algorithm, row in change.get("base_latency_us", {}).items()
        for protocol, value in row.items()
    ]
    shares = [share for change in drawn for row in change.get("efficiency", {}).values() for share in row.values()]
    assert 0.5 <= min(factors) < 0.55
    assert 1.8 < max(factors) <= 2
    assert np.median(np.log(factors)) == pytest.approx(0, abs=0.15)
    assert 0.5 <= min(shares) < max(shares) <= 1.25
    constants = sum(value > 0 for row in nccl.base_latency_us.values() for value in row.values())
    assert 0.25 < len(factors) / (50 * constants) < 0.45


@pytest.mark.parametrize("nccl", release.names())
def test_every_release_can_be_planted(nccl: str) -> None:
    scenario = Scenario(nccl=nccl, machine="dgx-a100", nodes=2, gpus_per_node=2)
    planted = Simulated(scenario, 5)
    own = Simulated(scenario, 5, {})
    differing = sum(planted.truth.costs(point) != own.truth.costs(point) for point in calls())
    assert differing > 20


def test_fewer_channels_cost_bandwidth_and_more_are_nccls_own() -> None:
    cost = Simulated(CASE, 1).truth.costs(calls(64 << 20)[0])[Algorithm.Ring, Protocol.Simple]
    assert cost.channels == 16
    assert cost.time_us(8) == cost.latency_us + cost.transfer_us * 2**CHANNELS_POWER
    assert cost.time_us(32) == cost.time_us(16) == cost.time_us(0) < cost.time_us(8) < cost.time_us(1)
    backend = Simulated(CASE, 1)
    executed = [backend.run(calls(64 << 20)[0], replace(RING, channels=requested), 1).executed for requested in (4, 32)]
    assert executed == [replace(RING, channels=4), replace(RING, channels=16)]


# Its noise


def many(seed: int, blocks: int, repeats: int, truth: dict[str, Any] | None = None) -> np.ndarray[Any, Any]:
    """Factors [block][run] of one combination on the truth, another one between the blocks."""
    backend = Simulated(CASE, seed, truth)
    (point,) = calls(1 << 20)
    steady = [each for each in (RING, TREE, RING_LL) if not is_replaced(backend, point, each)]
    rows = []
    for _ in range(blocks):
        backend.run(point, steady[1], 1)
        rows.append(backend.run(point, steady[0], repeats).times_us)
    return np.array(rows) / backend.truth.time_us(point, steady[0])


def is_replaced(backend: Simulated, point: Point, combination: Combination) -> bool:
    algo_proto = combination.algorithm, combination.protocol
    return any(each.holds(point, algo_proto) for each in backend.replaced)


@pytest.mark.parametrize("seed", range(4))
def test_the_noise_has_a_middle_tails_drift_and_order(seed: int) -> None:
    factors = many(seed, 3000, 12)
    noise = Simulated(CASE, seed).noise
    settled = factors[:, 8:]
    assert np.median(settled) == pytest.approx(1, abs=0.01)
    middle = np.percentile(np.log(settled), 84) - np.percentile(np.log(settled), 50)
    assert middle == pytest.approx(math.hypot(noise.sigma, noise.drift_sigma), rel=0.25)
    assert 0.01 <= noise.sigma <= 0.03

    spikes = (settled > 1.4).mean()
    assert 0.5 * noise.spike_chance < spikes < 1.5 * noise.spike_chance
    assert 3.5 < settled.max() < 6

    first = np.median(factors[:, 0]) / np.median(settled) - 1
    assert first == pytest.approx(noise.switch, rel=0.2)
    means = np.median(factors, axis=0)
    assert means[0] > means[1] > means[2] > means[3]

    level = np.median(np.log(settled), axis=1)
    near, far = (np.corrcoef(level[lag:], level[: len(level) - lag])[0, 1] for lag in (1, 700))
    assert near > 0.1
    assert near > far + 0.1


def test_drift_is_common_to_all_points() -> None:
    backend = Simulated(CASE, 2, {})
    here, there = calls(1 << 10), calls(1 << 26)
    both = []
    for _ in range(2000):
        pair = [backend.run(point, TREE, 40).times_us[20:] for point in (*here, *there)]
        both.append([np.median(np.log(times)) for times in pair])
    assert np.corrcoef(np.array(both).T)[0, 1] > 0.3


def test_the_same_seed_gives_the_same_times_and_a_second_start_others() -> None:
    (point,) = calls(1 << 20)

    def times(*arguments: Any, **settings: Any) -> tuple[float, ...]:
        return Simulated(CASE, *arguments, **settings).run(point, TREE, 20).times_us

    assert times(3) == times(3)
    assert len({times(3), times(4), times(3, after=10)}) == 3
    assert np.median(times(3, after=10)) == pytest.approx(np.median(times(3)), rel=0.1)


def test_the_clock_is_virtual_and_passes_with_the_runs() -> None:
    backend = Simulated(CASE, 1, {})
    before_s = backend.now_s()
    started = time.monotonic()
    times_us = backend.run(calls(1 << 30)[0], TREE, 5000).times_us
    assert sum(times_us) > 20e6
    assert backend.now_s() - before_s == pytest.approx(sum(times_us) * 1e-6, rel=0.01)
    assert time.monotonic() - started < 20


# What it runs


def replaced_somewhere() -> Iterator[tuple[Simulated, Point, Combination]]:
    """Backends with a point whose combination is not what runs there."""
    for seed in range(60):
        backend = Simulated(CASE, seed)
        for point in calls(collectives=THREE):
            for combination in backend.combinations(point):
                if is_replaced(backend, point, combination):
                    own = backend.run(point, None, 1).executed
                    if own is not None and replace(own, channels=0) != combination:
                        yield backend, point, combination


def test_what_is_silently_replaced_runs_nccls_own_and_says_so() -> None:
    found = list(replaced_somewhere())
    assert len({backend.seed for backend, _, _ in found}) > 20
    backend, point, combination = found[0]
    run, own = (backend.run(point, requested, 400) for requested in (combination, None))
    assert run.executed == own.executed
    assert np.median(run.times_us) == pytest.approx(np.median(own.times_us), rel=0.05)
    assert SampleBlock(point, combination, run.executed, run.times_us).replaced


def test_replaced_combinations_are_marked_dropped_and_never_counted() -> None:
    backend, point, combination = next(replaced_somewhere())
    planned = tasks(backend, [point], Wanted())
    blocks: list[SampleBlock] = []
    loop = Loop(backend, planned, Settings(), blocks.append)
    for _ in loop.run():
        pass
    requested = [block for block in blocks if block.requested == combination]
    assert [block.replaced for block in requested] == [True] * AFTER_ROUNDS
    assert loop.known[Task(point, combination)].state is State.replaced
    (result,) = [result for result in results(blocks) if result.requested == combination]
    assert result.estimate is None
    assert result.replaced == AFTER_ROUNDS
    assert combination not in {block.requested for block in blocks if block.counts}


def test_only_what_the_model_has_a_time_for_is_offered() -> None:
    names = {str(each) for each in Simulated(replace(CASE, nccl="2.32.3"), 1).combinations(calls(1 << 20)[0])}
    assert names == {"Tree/LL", "Tree/LL128", "Tree/Simple", "Ring/LL", "Ring/LL128", "Ring/Simple", "NVLSTree/Simple"}
    gathering = points((Collective.AllGather,), [1 << 20], 16)[0]
    gathered = {str(each) for each in Simulated(replace(CASE, nccl="2.32.3"), 1).combinations(gathering)}
    assert gathered == {"Ring/LL", "Ring/LL128", "Ring/Simple"}  # PAT is in the cost table, with half of all there is
    with pytest.raises(BadInput, match="PAT/Simple cannot run AllReduce"):
        Simulated(CASE, 1).run(calls(8)[0], Combination(Algorithm.PAT, Protocol.Simple), 1)


@pytest.mark.parametrize("nccl", ["2.22.3", "2.27.7", "2.28.9", "2.32.3"])
def test_nccls_own_choice_follows_a_table(nccl: str) -> None:
    backend = Simulated(replace(CASE, nccl=nccl), 1, {})
    backend.replaced = ()
    small, large = calls(8, 1 << 30)
    before = [backend.run(point, None, 1).executed for point in (small, large)]
    backend.use_table("nccl-tuner-table 1\nallreduce bytes=..1K -> ring/simple\nallreduce -> tree/ll channels=3\n")
    during = [backend.run(point, None, 1).executed for point in (small, large)]
    assert during == [replace(RING, channels=1), Combination(Algorithm.Tree, Protocol.LL, 3)]
    backend.use_table("nccl-tuner-table 1\nallreduce -> tree/ll\n")
    assert backend.run(large, None, 1).executed == Combination(Algorithm.Tree, Protocol.LL, 16)
    backend.use_table(None)
    assert [backend.run(point, None, 1).executed for point in (small, large)] == before != during


def test_tables_that_cannot_be_followed_are_refused() -> None:
    with pytest.raises(
        BadInput, match=r"NCCL 2\.21\.5 passes no costs to tuner plugins, by which they could decide: use 2\.22"
    ):
        Simulated(replace(CASE, nccl="2.21.5"), 1).use_table("nccl-tuner-table 1\n")
    with pytest.raises(PluginRefused, match="unknown protocol"):
        Simulated(CASE, 1).use_table("nccl-tuner-table 1\nallreduce -> ring/ll129\n")


# Its header


@pytest.mark.parametrize("truth", [None, {}])
def test_the_header_builds_the_same_backend_again(truth: dict[str, Any] | None) -> None:
    scenario = replace(CASE, gpus_per_node=4, environment={"NCCL_ALGO": "Ring,Tree"})
    backend = Simulated(scenario, 11, truth)
    header = from_record(json.loads(json.dumps(to_record(backend.describe()))))
    again = from_header(header)
    assert again.describe() == backend.describe()
    assert scenario_of(header) == scenario
    assert again.noise == backend.noise
    assert again.replaced == backend.replaced
    (point,) = calls(1 << 20)
    assert again.run(point, TREE, 5) == backend.run(point, TREE, 5)


def test_the_header_says_of_the_communicator_what_earlier_files_do() -> None:
    """A run goes on in a file only where the headers are the same."""
    keys = "nccl nodes machine topology graphs gpus_per_node environment gpu net_gbps net_latency_us others hardware"
    record = scenario_record(Scenario("2.28.9", 1, machine="dgx-h100", others=(Scenario("", 1, machine="dgx-a100"),)))
    assert set(record) == set(record["others"][0]) == {*keys.split(), "search"}


def test_the_header_never_says_the_truth() -> None:
    text = json.dumps(to_record(Simulated(CASE, 11, CHANGED).describe()))
    assert not any(word in text for word in ("efficiency", 'latency_us": {', "sigma", "replaced"))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"backend": "gpu"}, "measured with backend 'gpu'"),
        (
            to_record(Simulated(CASE, 1, CHANGED).describe()),
            "does not say how to build",
        ),
        ({**to_record(Simulated(CASE, 1).describe()), "seed": None}, "does not say how to build"),
        ({"backend": "simulated", "truth": "of the seed", "seed": 1}, "'case' is missing"),
        ({**to_record(Simulated(CASE, 1).describe()), "case": {"nodes": 2}}, "describes no communicator"),
        ({"ranks": "eight"}, "the header's 'ranks' is 'eight', not a whole number"),
        ({"calls_per_time": [[1, 2], 3]}, r"the header's 'calls_per_time' is \[\[1, 2\], 3\]: "),
        ({"noted": "today"}, "the header's 'noted' is 'today': "),
    ],
)
def test_a_header_that_builds_no_backend_is_refused(header: dict[str, Any], message: str) -> None:
    with pytest.raises(BadMeasurement, match=message):
        from_header(from_record(header))


def test_the_line_of_a_header_has_its_keys_in_their_order_and_those_of_others(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Writer(path, Simulated(CASE, 7).describe()):
        pass
    line = json.loads(path.read_text())
    assert list(line) == [samples.FORMAT, "backend", "case", "ranks", "seed", "truth"]
    path.write_text(json.dumps({**line, "of": {"another": "program"}}) + "\n")
    again = samples.read(path).header
    assert again == replace(Simulated(CASE, 7).describe(), others={"of": {"another": "program"}})
    assert to_record(again)["of"] == {"another": "program"}
    path.write_text(json.dumps({**line, "seed": "x"}) + "\n")
    with pytest.raises(BadMeasurement, match=r"run\.jsonl:1: the header's 'seed' is 'x'"):
        samples.read(path)


def test_nodes_that_differ_are_refused() -> None:
    with pytest.raises(BadInput, match="nodes that differ cannot be simulated"):
        Simulated(replace(CASE, others=(Scenario("", nodes=1, machine="dgx-a100"),)), 1)


# The plan


def test_sizes_are_those_a_collective_can_have() -> None:
    both = points((Collective.AllReduce, Collective.AllGather), None, 12)
    reduced = [point.bytes for point in both if point.collective is Collective.AllReduce]
    gathered = [point.bytes for point in both if point.collective is Collective.AllGather]
    assert reduced == list(SIZES)
    assert gathered[:2] == [48, 96]
    assert len(gathered) == 25
    assert all(size % 48 == 0 for size in gathered)
    requested = points((Collective.AllReduce, Collective.AllGather), [8, 96], 12)
    assert [(point.collective.name, point.bytes) for point in requested] == [
        ("AllReduce", 8),
        ("AllReduce", 96),
        ("AllGather", 96),
    ]
    with pytest.raises(BadInput, match=r"7 bytes are not a whole number of float32.* multiples of 48 for AllGather"):
        points((Collective.AllReduce, Collective.AllGather), [8, 7], 12)


def test_tasks_are_narrowed_by_names_and_widened_by_channels() -> None:
    backend = Simulated(CASE, 1)
    planned = tasks(backend, calls(1024), Wanted((Algorithm.Ring,), (Protocol.LL,), (4, 8)))
    assert [task.requested for task in planned] == [
        None,
        RING_LL,
        replace(RING_LL, channels=4),
        replace(RING_LL, channels=8),
    ]
    with pytest.raises(BadInput, match=r"nothing to measure.*valid: NVLSTree/Simple, Ring/LL"):
        tasks(backend, calls(1024), Wanted((Algorithm.PAT,)))


# The loop


class Scripted:
    """A backend that answers as a test says: ``runs`` maps what was requested to the times of a run and more of it."""

    def __init__(self, runs: dict[Combination | None, Callable[[int], Run]]) -> None:
        self.runs = runs
        self.requested: list[tuple[Point, Combination | None, int]] = []

    ranks = 16

    def describe(self) -> Header:
        return Header("scripted")

    def combinations(self, point: Point) -> list[Combination]:
        return [combination for combination in self.runs if combination is not None]

    def run(self, point: Point, requested: Combination | None, repeats: int) -> Run:
        self.requested.append((point, requested, repeats))
        return self.runs[requested](repeats)

    def now_s(self) -> float:
        return float(len(self.requested))

    def use_table(self, text: str | None) -> None:
        raise AssertionError

    def rest(self, seconds: float) -> None:
        raise NotImplementedError

    def renew(self) -> bool:
        return True

    def close(self) -> None:
        pass


def steady(time_us: float, executed: Combination | None = None, spread: float = 0.0, wrong: int = 0) -> Any:
    rng = np.random.default_rng(1)
    return lambda repeats: Run(tuple(time_us * np.exp(rng.normal(0, spread, repeats))), executed, wrong)


def test_every_round_samples_everything_once_in_another_order() -> None:
    runs = {None: steady(1), RING: steady(2, spread=0.2), TREE: steady(2, spread=0.2), RING_LL: steady(2, spread=0.2)}
    runs[None] = steady(2, spread=0.2)
    backend = Scripted(runs)
    planned = tasks(backend, calls(8, 16, 32), Wanted())
    blocks: list[SampleBlock] = []
    loop = Loop(backend, planned, Settings(precision=1e-6, rounds=6, repeats=5, warmup=3), blocks.append)
    assert list(loop.run()) == blocks
    assert loop.end is End.rounds
    orders = []
    for number in range(6):
        order = [Task(block.point, block.combination) for block in blocks if block.round == number]
        assert Counter(order) == Counter(planned)
        orders.append(order)
    assert len({tuple(order) for order in orders}) == 6
    assert [requested[2] for requested in backend.requested] == [3, 5] * 72
    assert all(len(block.times_us) == 5 for block in blocks)
    assert [block.at_s for block in blocks] == sorted(block.at_s for block in blocks)


def test_a_loop_ends_when_every_median_is_known() -> None:
    noisy = Scripted({None: steady(2), RING: steady(2.2, spread=0.03), TREE: steady(2.4, spread=0.06)})
    loop = measure(noisy, tasks(noisy, calls(8), Wanted()), Settings(precision=0.01, rounds=100))
    assert loop.end is End.precise
    blocks = {task.requested: known.blocks for task, known in loop.known.items()}
    assert blocks[None] == LEAST_ROUNDS < blocks[RING] < blocks[TREE] < 100
    for known in loop.known.values():
        assert known.estimate is not None
        assert known.estimate.half_width <= 0.01
    assert loop.share_done() == 1


def test_what_is_hopeless_is_dropped_after_two_rounds_but_never_nccls_own() -> None:
    slow = Scripted(
        {
            None: steady(40, spread=0.1),
            RING: steady(10, spread=0.1),
            TREE: steady(40, spread=0.1),
            RING_LL: steady(25, spread=0.1),
        }
    )
    loop = measure(slow, tasks(slow, calls(8), Wanted()), Settings(precision=1e-6, rounds=8))
    assert {task.requested: (known.state, known.blocks) for task, known in loop.known.items()} == {
        None: (State.open, 8),
        RING: (State.open, 8),
        RING_LL: (State.open, 8),
        TREE: (State.hopeless, AFTER_ROUNDS),
    }


def test_wrong_results_are_counted_and_their_times_are_not() -> None:
    backend = Scripted({None: steady(2), RING: steady(1, wrong=3), TREE: steady(5)})
    blocks: list[SampleBlock] = []
    loop = Loop(backend, tasks(backend, calls(8), Wanted()), Settings(), blocks.append)
    assert len(list(loop.run())) == 2 * LEAST_ROUNDS + AFTER_ROUNDS
    assert loop.known[Task(calls(8)[0], RING)].state is State.wrong
    own, tree, ring = results(blocks)
    assert (own.requested, tree.requested, ring.requested) == (None, TREE, RING)
    assert ring.estimate is None
    assert ring.wrong == 3 * AFTER_ROUNDS
    assert own.wrong == 0


def test_a_budget_ends_a_loop() -> None:
    backend = Scripted({None: steady(2, spread=0.5), RING: steady(1, spread=0.5)})
    loop = measure(backend, tasks(backend, calls(8), Wanted()), Settings(precision=1e-6, budget_s=11, rounds=1000))
    assert loop.end is End.budget
    assert len(backend.requested) == 12  # a block is two seconds of this clock
    assert loop.share_done() == 1


def test_a_second_start_finishes_the_round_and_repeats_nothing() -> None:
    runs = {None: steady(2, spread=0.02), RING: steady(2, spread=0.02), TREE: steady(2, spread=0.02)}
    planned = tasks(Scripted(runs), calls(8, 16, 32), Wanted())
    settings = Settings(precision=1e-6, rounds=5)
    blocks: list[SampleBlock] = []
    whole = Loop(Scripted(runs), planned, settings, blocks.append).run()
    for _ in range(22):
        next(whole)
    rest: list[SampleBlock] = []
    loop = Loop(Scripted(runs), planned, settings, rest.append, blocks[:])
    list(loop.run())
    blocks = [*blocks[:22], *rest]
    for number in range(5):
        assert Counter(Task(v.point, v.combination) for v in blocks if v.round == number) == Counter(planned)
    assert rest[0].at_s > blocks[21].at_s
    assert list(Loop(Scripted(runs), planned, settings, rest.append, blocks).run()) == []
    more = measure(Scripted(runs), tasks(Scripted(runs), calls(64), Wanted()), settings, tuple(blocks))
    assert {known.blocks for known in more.known.values()} == {5}


def test_blocks_of_a_table_are_none_of_nccls_own_choice() -> None:
    (point,) = calls(8)
    blocks = [SampleBlock(point, None, RING, (1.0,), table="a"), SampleBlock(point, None, RING, (2.0,))]
    (result,) = results(blocks)
    assert result.blocks == 1
    backend = Scripted({None: steady(2), RING: steady(2)})
    assert Loop(backend, [Task(point, None)], Settings(), blocks.append, blocks).known[Task(point, None)].blocks == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_planted_best_is_what_was_measured_fastest(seed: int) -> None:
    backend = Simulated(CASE, seed)
    planned = tasks(backend, calls(collectives=THREE), Wanted())
    blocks: list[SampleBlock] = []
    list(Loop(backend, planned, Settings(), blocks.append).run())
    truth = backend.truth
    regrets = []
    for point in dict.fromkeys(task.point for task in planned):
        real = {c: truth.time_us(point, c) for c in backend.combinations(point) if not is_replaced(backend, point, c)}
        fastest = [
            r.requested for r in results(blocks) if r.point == point and r.requested in real and r.estimate is not None
        ]
        assert fastest[0] is not None
        regrets.append(real[fastest[0]] / min(real.values()) - 1)
    assert np.mean(np.array(regrets) < 0.02) >= 0.95


# Statistics


@pytest.mark.parametrize("n", [1, 5, 6, 9, 30, 101, 1000])
def test_the_interval_of_the_median_is_the_narrowest_with_the_confidence(n: int) -> None:
    from scipy.stats import binom  # takes long to load

    times = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    found = estimate(times)
    assert found.median_us == np.median(times)
    assert found.samples == n
    if n < 6:
        assert (found.low_us, found.high_us, found.is_bounded) == (0.0, math.inf, False)
        return
    below = int(found.low_us) - 1
    assert found.high_us == n - below
    assert binom.cdf(below, n, 0.5) <= 0.025 < binom.cdf(below + 1, n, 0.5)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        found = estimate(rng.lognormal(0, 1, 25))
        hits += found.low_us <= 1 <= found.high_us
    assert 0.94 < hits / 2000 < 0.98


# The file


def test_a_second_start_goes_on_after_a_line_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    block = SampleBlock(calls(8)[0], RING, None, (1.0, 2.0))
    with Writer(path, Header("scripted")) as writer:
        writer.add(block)
        writer.add(block)
    path.write_bytes(path.read_bytes()[:-20])
    there = samples.existing(path)
    assert there is not None
    assert there.truncated
    with Writer(path, Header("scripted")) as writer:
        writer.add(replace(block, round=1))
    again = samples.read(path)
    assert [each.round for each in again.blocks] == [0, 1]
    assert not again.truncated


def test_two_runs_do_not_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with (
        Writer(path, Header()),
        pytest.raises(BadMeasurement, match="another run is writing to it"),
        Writer(path, Header()),
    ):
        pass
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("no measurements")
    with pytest.raises(BadMeasurement, match="it has no complete line"), Writer(path, Header()):
        pass
    assert path.read_text() == "no measurements"


def test_what_may_differ_in_a_header_does_not_matter(tmp_path: Path) -> None:
    there = samples.Measurements(Header(seed=1, scenario=CASE, noted=Noted(date="a")), ())
    samples.check_same(tmp_path, there, Header(seed=1, scenario=CASE, noted=Noted(date="b")))
    with pytest.raises(BadMeasurement, match=r"case\.nodes 2 there, 3 now; seed 1 there, null now"):
        samples.check_same(tmp_path, there, Header(scenario=replace(CASE, nodes=3)))


# The command


def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    return command_line.run(*map(str, arguments), code=code)


def test_measure_by_default(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    answer = json.loads(run(*SIMULATED, "--seed", "7", "--out", path, "--json").stdout)
    found = samples.read(path)
    assert answer["ended"] == "precise"
    assert answer["blocks"] == answer["new_blocks"] == len(found.blocks)
    called = {block.point for block in found.blocks}
    assert {point.collective for point in called} == set(THREE)
    assert {point.bytes for point in called if point.collective is Collective.AllReduce} == set(SIZES)
    known = {(each["collective"], each["bytes"], json.dumps(each["requested"])): each for each in answer["results"]}
    assert len(known) == len(answer["results"]) > 400
    assert from_header(found.header).describe() == replace(found.header, noted=None)
    assert found.header.noted is not None
    assert dict(found.header.noted.settings or {}) == asdict(Settings(seed=7))
    assert set(found.header.noted.versions or {}) >= {"nccl-tuner", "python"}
    truth = from_header(found.header).truth
    for each in answer["results"]:
        requested = each["requested"]
        if each["median_us"] is None or requested is None:
            continue
        assert each["low_us"] <= each["median_us"] <= each["high_us"]
        point = Point(Collective[each["collective"]], each["bytes"])
        real_us = truth.time_us(point, Combination(Algorithm[requested["algorithm"]], Protocol[requested["protocol"]]))
        assert each["median_us"] == pytest.approx(real_us, rel=0.08)
        assert each["algbw_gbs"] == pytest.approx(each["bytes"] / each["median_us"] / 1e3)

    again = json.loads(run(*SIMULATED, "--seed", "7", "--out", path, "--json").stdout)
    assert again["new_blocks"] == 0
    assert again["results"] == answer["results"]


def test_measure_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    small = (*SIMULATED, "allreduce", "--bytes", "8,1M", "--json")
    for name in ("a", "b"):
        run(*small, "--seed", "3", "--out", tmp_path / name)
    run(*small, "--seed", "4", "--out", tmp_path / "c")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


def test_measure_prints_a_row_for_each_run_within_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    asked = (*SIMULATED, "allreduce", "allgather", "--bytes", "1M", "--channels", "2", "--algorithms", "ring,tree")
    out = run(*asked, "--protocols", "simple", "--in-place", "--out", tmp_path / "run.jsonl").stdout.splitlines()
    assert max(len(line) for line in out if str(tmp_path) not in line) <= 80
    assert [line for line in out if " of float32" in line] == ["AllGather of float32", "AllReduce of float32, sum"]
    rows = [line.split() for line in out if line.startswith(" 1 MiB")]
    assert {len(row) for row in rows} == {2 + 2 + 2 * 4}
    reduced = rows[-5:]
    runs = {(name, channels) for name in ("Ring/Simple", "Tree/Simple") for channels in ("x2", "x16")}
    assert {tuple(row[2:4]) for row in reduced[1:]} == runs
    assert reduced[0][2].startswith("*")
    time_us, algbw, busbw = (float(cell) for cell in (reduced[1][-8], reduced[1][-6], reduced[1][-5]))
    assert algbw == pytest.approx(1048576 / time_us / 1e3, abs=0.01)
    assert busbw == pytest.approx(algbw * 2 * 15 / 16, abs=0.02)
    assert "sample blocks, " in out[-1]


def test_measure_without_anything_planted(tmp_path: Path) -> None:
    run(*SIMULATED, "allreduce", "--bytes", "8", "--nothing-planted", "--out", tmp_path / "a", "--json")
    header = samples.read(tmp_path / "a").header
    assert header.truth == "NCCL's own"
    assert from_header(header).truth.change == {}


def _heeds_ctrl_c() -> None:
    """What a shell runs in the background ignores it, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])  # Ctrl-C, and what scancel sends
def test_ctrl_c_keeps_what_was_measured_and_the_same_command_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "run.jsonl"
    small = (*SIMULATED, "allreduce", "--bytes", "1K,1M", "--precision", "0.0001", "--out", path)
    endless = [str(command_line.COMMAND), *map(str, small), "--rounds", "1000000", "--json"]
    with subprocess.Popen(
        endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_heeds_ctrl_c
    ) as process:
        try:
            waited_until = time.monotonic() + 120
            while not (path.exists() and path.stat().st_size > 20_000) and time.monotonic() < waited_until:
                time.sleep(0.05)
            process.send_signal(number)
            out, error = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert error == f"nccl-tuner: interrupted; {path} keeps what was measured; the same command continues\n"
    answer = json.loads(out)
    assert answer["ended"] == "interrupted"
    kept = samples.read(path)
    assert not kept.truncated
    assert len(kept.blocks) == answer["blocks"] > 10

    path.write_bytes(path.read_bytes()[:-7])
    rounds = max(block.round for block in kept.blocks) + 2
    again = json.loads(run(*small, "--rounds", str(rounds), "--json").stdout)
    found = samples.read(path)
    assert found.blocks[: len(kept.blocks) - 1] == kept.blocks[:-1]
    assert again["blocks"] == len(found.blocks)
    assert again["ended"] == "rounds"
    counts = Counter((block.point, block.requested, block.round) for block in found.blocks)
    assert set(counts.values()) == {1}
    assert max(Counter((block.point, block.requested) for block in found.blocks).values()) == rounds


def test_what_is_said_of_an_interrupted_run_is_what_its_file_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.cli import measure as verb

    add = Writer.add

    def interrupted(self: Writer, block: SampleBlock) -> None:
        add(self, block)
        if block.round == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Writer, "add", interrupted)
    with pytest.raises(SystemExit) as ended:
        verb.command.main([*SIMULATED[1:], "allreduce", "--bytes", "1M", "--out", str(tmp_path / "a"), "--json"])
    assert ended.value.code == 130
    answer = json.loads(capsys.readouterr().out)
    kept = samples.read(tmp_path / "a").blocks
    assert answer["blocks"] == answer["new_blocks"] == len(kept) == sum(row["blocks"] for row in answer["results"])
    assert kept[-1].round == 1


def test_progress_is_a_line_every_so_often_and_none_with_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.cli import measure as verb

    monkeypatch.setattr(verb, "SAY_EVERY_S", 0.0)
    arguments = [*SIMULATED[1:], "allreduce", "--bytes", "1M", "--out"]
    verb.command.main([*arguments, str(tmp_path / "a")], standalone_mode=False)
    assert "round 1: 8 of 8 combinations not yet precise enough, 1 sample blocks" in capsys.readouterr().err
    verb.command.main([*arguments, str(tmp_path / "b"), "--json"], standalone_mode=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "no/such/folder/x"), "no/such/folder/x: No such file or directory"),
        (("--out", "."), ".: not a regular file"),
        (("--out", "/dev/full"), "/dev/full: not a regular file"),
        (("--out", "text"), "text:1: not JSON"),
        (
            ("--out", "other.gz"),
            "other.gz is gzipped, so that nothing can be added to it: gunzip it first, or use another",
        ),
        (
            ("--out", "other"),
            "other was measured otherwise: seed 1 there, 0 now: measure in the same way, or use another --out",
        ),
        (("--out", "x", "allredude"), "unknown collective 'allredude'; did you mean AllReduce?; valid: Broadcast"),
        (
            ("--out", "x", "--algorithms", "ring,three"),
            "unknown algorithm 'three'; did you mean Tree?; valid: Tree, Ring",
        ),
        (("--out", "x", "--protocols", "ll64"), "unknown protocol 'll64'; did you mean LL?; valid: LL, LL128, Simple"),
        (("--out", "x", "--channels", "4,65"), "channels '65': expected numbers from 1 to 64"),
        (("--out", "x", "--backend", "gpus"), "unknown backend 'gpus'; valid: simulated, gpu"),
        (("--out", "x", "--backend", "double"), "in a checkout: python -m tests.support.double.nccl_tuner measure"),
        (("--out", "x", "--backend", "gpu", "--nothing-planted"), "only applies with --backend simulated, not gpu"),
        (("--out", "x", "--algorithms", "pat", "allreduce"), "nothing to measure: none of the combinations requested"),
        (("--out", "x", "--bytes", "7"), "7 bytes are not a whole number of float32"),
        (("--out", "x", "--machine", "dgx"), "dgx"),
        (("--out", "x", "--env", "NCCL_ALGO=NVLS", "allgather"), "nothing to measure"),
        (("--out", "x", "--precision", "0"), "--precision"),
        ((), "--out"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("a text\n")
    with Writer(tmp_path / "other", Simulated(CASE, 1).describe()):
        pass
    (tmp_path / "other.gz").write_bytes(gzip.compress((tmp_path / "other").read_bytes()))
    done = run(*SIMULATED, *arguments, code=2)
    assert done.stdout == ""
    said, *cures = done.stderr.splitlines()
    assert message in said
    assert all(cure.startswith("try: nccl-tuner measure ") for cure in cures)
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "Permission denied" in run(*SIMULATED, "--out", tmp_path / "x", code=2).stderr


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(tmp_path: Path) -> None:
    small = [*SIMULATED, "allreduce", "--bytes", "1K,1M", "--out", str(tmp_path / "x")]
    limited = [sys.executable, "-c", LIMITED, str(command_line.COMMAND), *small]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"nccl-tuner: {tmp_path / 'x'}: File too large; what was measured before is in it\n"
    found = samples.read(tmp_path / "x")
    assert found.truncated
    assert len(found.blocks) > 3
    run(*small)
    assert samples.read(tmp_path / "x").blocks[: len(found.blocks)] == found.blocks


# Runs the command where no file may have more than so many bytes.
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
os.execv(sys.argv[1], sys.argv[1:])
"""


class NVMLError(Exception):
    pass


def nvml(**changed: Any) -> Any:
    def refused(*arguments: Any) -> Any:
        raise NVMLError("Not Supported")

    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetClockInfo": lambda handle, clock: {0: 1980, 1: 2619}[clock],
        "nvmlDeviceGetTemperature": lambda handle, sensor: 41 + handle,
        "nvmlDeviceGetPowerUsage": lambda handle: 350_500,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x4 | 0x20,
    }
    numbers = {
        "NVML_CLOCK_SM": 0,
        "NVML_CLOCK_MEM": 1,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlClocksThrottleReasonNone": 0,
        "nvmlClocksThrottleReasonSwPowerCap": 0x4,
        "nvmlClocksThrottleReasonSwThermalSlowdown": 0x20,
        "nvmlClocksThrottleReasonAll": 0x24,
    }
    given = {name: refused if value is None else value for name, value in changed.items()}
    return SimpleNamespace(**{**functions, **numbers, **given, "NVMLError": NVMLError})


def test_a_line_for_each_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    states = States(tmp_path / "states.jsonl")
    loop, seen = SimpleNamespace(round=0), list[int]()
    with noting(lambda loop: nullcontext(seen.append), states)(loop) as show:  # type: ignore[arg-type]
        for blocks, round_ in enumerate((0, 0, 1), start=1):
            loop.round = round_
            show(blocks)
    assert seen == [1, 2, 3]
    lines = [json.loads(line) for line in (tmp_path / "states.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1]
    assert lines[0]["gpus"][1] == {
        "gpu": 1,
        "uuid": "GPU-1",
        "sm_mhz": 1980,
        "memory_mhz": 2619,
        "temperature_c": 42,
        "power_w": 350.5,
        "slowed_by": ["SwPowerCap", "SwThermalSlowdown"],
    }


def test_what_a_gpu_does_not_say_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetPowerUsage=None, nvmlDeviceGetUUID=None))
    States(tmp_path / "states.jsonl").note(0)
    (line,) = (tmp_path / "states.jsonl").read_text().splitlines()
    gpu = json.loads(line)["gpus"][0]
    assert (gpu["power_w"], gpu["uuid"], gpu["sm_mhz"]) == (None, None, 1980)


@pytest.mark.parametrize("missing", ["package", "driver", "lost"])
def test_without_nvml_nothing_is_noted(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"package": {}, "driver": {"nvmlInit": None}, "lost": {"nvmlDeviceGetHandleByIndex": None}}[missing]
    monkeypatch.setitem(sys.modules, "pynvml", None if missing == "package" else nvml(**changed))
    States(tmp_path / "states.jsonl").note(0)
    assert (tmp_path / "states.jsonl").is_file() is (missing == "lost")

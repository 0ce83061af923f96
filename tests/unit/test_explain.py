"""The steps of an explanation: they end where the tables and the answer are, and say what NCCL's description says."""

import itertools
import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tuner import release
from tuner.answers.explain import explain, last
from tuner.answers.symmetric import explain_window
from tuner.base import trace
from tuner.base.errors import BadInput
from tuner.base.names import AlgoProto, Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.base.numerics import ceil_div, f32, shortest
from tuner.base.records import to_json
from tuner.base.registry import NotNccl, Registry, source_of, sources_of
from tuner.base.trace import TraceStep
from tuner.cli import everything
from tuner.emulator.request import Request
from tuner.emulator.rules import bandwidth, bounds, latency, launch, registered
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.scenario import Scenario

SIZES = [64, 3_000, 1 << 20, 100_000_001, 1 << 34]
SHAPES = [("dgx-h100", 2, 8), ("dgx-a100", 1, 4), ("dgx-a100", 3, 1), ("pcie-l40s", 2, 2), ("dgx-b200", 1, 8)]


def request(collective: Collective, dtype: DataType = DataType.float32) -> Request:
    return Request(collective, dtype, Op.sum)


def selection_of(nccl: str, machine: str, nodes: int, gpus: int, **environment: str) -> Selection:
    scenario = Scenario(nccl=nccl, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=environment)
    return Selection(scenario.communicator())


def of(steps: list[TraceStep], quantity: str) -> list[TraceStep]:
    return [step for step in steps if step.quantity == quantity]


@pytest.mark.slow
@pytest.mark.parametrize("nccl", release.names())
def test_every_cell_ends_at_the_tables_and_the_answer(nccl: str) -> None:
    for machine, nodes, gpus in SHAPES:
        if nccl in catalogue.load(machine).crashes:
            continue
        selection = selection_of(nccl, machine, nodes, gpus)
        for collective in Collective:
            asked = request(collective)
            times = selection.cost_table(asked, SIZES)
            picks = selection.pick(asked, SIZES)
            for (row, size), algo_proto in itertools.product(enumerate(SIZES), selection.candidates(asked)):
                steps = selection.steps(asked, size, algo_proto)
                assert_ends(selection, asked, steps, algo_proto, times[row, algo_proto[0], algo_proto[1]])
                if algo_proto == (picks.algorithm[row], picks.protocol[row]):
                    assert last(steps, "channels") == picks.channels[row]
                    assert last(steps, "threads") == picks.threads[row]


def assert_ends(
    selection: Selection, asked: Request, steps: list[TraceStep], algo_proto: AlgoProto, time_us: np.float32
) -> None:
    at = (asked.collective, *algo_proto)
    assert last(steps, "latency") == shortest(selection.tables.latency_us[at])
    assert last(steps, "bandwidth") == shortest(selection.tables.bandwidth_gbs[at])
    assert last(steps, "time") == shortest(time_us)
    for quantity in ("latency", "bandwidth", "latency at this size", "bandwidth at this size", "time", "channels"):
        for one, following in itertools.pairwise(of(steps, quantity)):
            assert following.before == one.after, (quantity, following)
    for quantity in ("latency", "bandwidth"):
        corrected = of(steps, f"{quantity} at this size")
        assert not corrected or corrected[0].before == last(steps, quantity)


@pytest.mark.parametrize("nccl", ["2.18.1", "2.23.4", "2.28.9", "2.32.3"])
def test_the_steps_multiply_up_to_the_time(nccl: str) -> None:
    selection = selection_of(nccl, "dgx-h100", 2, 8)
    asked = request(Collective.AllReduce)
    for size, algo_proto in itertools.product(SIZES, selection.candidates(asked)):
        steps = selection.steps(asked, size, algo_proto)
        latency_us = f32(last(steps, "latency", "latency at this size"))
        bandwidth_gbs = f32(last(steps, "bandwidth", "bandwidth at this size"))
        batches = ceil_div(1, timing.per_batch(RuleCall(selection.communicator, asked, algo_proto)))
        time_us = f32(size) / (f32(1000) * bandwidth_gbs) + latency_us * f32(batches)
        assert last(steps, "time") == shortest(time_us)


def test_rules_stand_in_the_order_of_the_release() -> None:
    selection = selection_of("2.28.9", "dgx-h100", 2, 8)
    for algo_proto in selection.candidates(request(Collective.AllReduce)):
        steps = selection.steps(request(Collective.AllReduce), 4096, algo_proto)
        for quantity in ("latency", "bandwidth"):
            rules = list(getattr(selection.communicator.release.rules, quantity)[algo_proto[0]])
            assert [step.name for step in of(steps, quantity)] == rules


@pytest.mark.slow
@pytest.mark.parametrize("nccl", release.names())
def test_steps_of_many_sizes_are_those_of_each(nccl: str) -> None:
    selection = selection_of(nccl, "dgx-h100", 2, 8)
    for asked in map(request, Collective):
        for algo_proto in selection.candidates(asked):
            many = selection.steps_of_sizes(asked, SIZES, algo_proto)
            each = [selection.steps(asked, size, algo_proto) for size in SIZES]
            changing = [alike for alike in zip(*each, strict=True) if any(one.before != one.after for one in alike)]
            assert len(changing) < len(each[0])
            for steps, alike in zip(many, changing, strict=True):
                for row, step in enumerate(alike):
                    told = (steps.quantity, steps.name, steps.unit, steps.says, steps.source(nccl))
                    assert told == (step.quantity, step.name, step.unit, step.says, step.source)
                    assert (shortest(steps.before[row]), shortest(steps.after[row])) == (step.before, step.after)


def test_rules_of_a_cell_say_what_they_are_and_where_nccl_has_them() -> None:
    rules: list[Callable[..., Any]] = [*bandwidth.RULES.values(), *latency.RULES.values(), *timing.CORRECTIONS.values()]
    for rule in rules:
        assert rule.__doc__, rule.__name__
        for source in sources_of(rule):
            own = isinstance(source, NotNccl)
            assert own or re.search(r"\.cc, v2\.\d+\.\d+-1$", source.text(source.since)), rule.__name__
    graded, by_bytes = timing.CORRECTIONS["ring_plateau_graded"], launch.RULES["shrink_then_bytes"]
    assert source_of(graded, "2.32.3").text("2.32.3").endswith("src/tuning/ring.cc, v2.32.3-1")
    assert source_of(by_bytes, "2.21.5").text("2.21.5").endswith("v2.21.5-1")


def test_what_a_rule_says_needs_no_other_rule() -> None:
    """An explanation shows one release's rules, and not those that they are variants of."""
    registries: tuple[Registry[Any], ...] = (
        bandwidth.RULES,
        latency.RULES,
        timing.CORRECTIONS,
        timing.PENALTIES,
        launch.RULES,
        launch.SPLIT_RULES,
        bounds.BLOCK_RULES,
        registered.RULES,
    )
    for rule in itertools.chain.from_iterable(registry.values() for registry in registries):
        assert not re.match(r"As |The same", rule.__doc__ or ""), rule.__name__


def test_nobody_watches_unasked() -> None:
    selection = selection_of("2.28.9", "dgx-h100", 2, 8)
    selection.pick(request(Collective.AllReduce), SIZES)
    with trace.tracing("2.28.9") as seen:
        pass
    selection.pick(request(Collective.AllReduce), SIZES)
    assert seen == []


@pytest.mark.parametrize("collective", [Collective.AllReduce, Collective.AllGather])
@pytest.mark.parametrize("size", [8, 1 << 20, 1 << 28])
def test_the_range_holds_and_ends_where_it_says(collective: Collective, size: int) -> None:
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
    found = explain(scenario, request(collective), size)
    low, high = found.holds.from_bytes, found.holds.to_bytes
    assert low <= size <= high
    selection = Selection(scenario.communicator())
    inside = np.unique(np.geomspace(low, high, 500).astype(np.int64).clip(low, high))
    outside = [edge for edge in (low - 1, high + 1) if 1 <= edge <= 1 << 40]
    assert outside
    for sizes, same in ((inside, True), (outside, False)):
        picks = selection.pick(request(collective), sizes)
        algorithm, protocol = found.pick.algorithm, found.pick.protocol
        assert (((picks.algorithm == algorithm) & (picks.protocol == protocol)) == same).all()


def test_everything_else_lost_or_is_not_available() -> None:
    found = explain(Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2), request(Collective.AllReduce), 1 << 20)
    assert len(found.others) == len(Algorithm) * len(Protocol) - 1
    assert found.slower
    for other in found.slower:
        assert other.slower_us == other.time_us - found.pick.time_us >= 0
        assert other.slower_percent == pytest.approx(100 * (other.time_us / found.pick.time_us - 1))


def test_ring_as_what_is_left_is_explained() -> None:
    found = explain(
        Scenario(nccl="2.18.1", machine="dgx-h100", nodes=1, environment={"NCCL_ALGO": "Tree"}),
        request(Collective.AllGather),
        1 << 20,
    )
    assert found.pick.algorithm is Algorithm.Ring
    assert found.unavailable
    assert all(other.algorithm is not Algorithm.Ring for other in found.unavailable)


def test_what_is_masked_says_so() -> None:
    scenario = Scenario(
        nccl="2.28.9", machine="dgx-h100", nodes=1, environment={"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    )
    found = explain(scenario, request(Collective.AllReduce), 4096)
    reasons = {(other.algorithm.name, other.protocol.name): other.reason for other in found.unavailable}
    assert len(reasons) == len(found.others)
    assert reasons["Tree", "Simple"] == "NCCL_ALGO=Ring leaves it out"
    assert reasons["Ring", "LL"] == "NCCL_PROTO=Simple leaves it out"


@pytest.mark.parametrize("nccl", release.names())
@pytest.mark.parametrize(
    ("machine", "gpus", "environment", "reason"),
    [
        ("dgx-a100", 8, {}, "Hopper or later; NCCL found 0 channels for it"),
        ("dgx-h100", 1, {}, "two or more GPUs of a node"),
        ("dgx-h100", 8, {"NCCL_NVLS_ENABLE": "0"}, "NCCL_NVLS_ENABLE=0 leaves NVLS out"),
    ],
)
def test_why_there_is_no_nvls_is_said(
    nccl: str, machine: str, gpus: int, environment: dict[str, str], reason: str
) -> None:
    excluded = selection_of(nccl, machine, 2, gpus, **environment).excluded(request(Collective.AllReduce))
    assert reason in excluded[Algorithm.NVLSTree, Protocol.Simple]


def test_what_cannot_be_explained_is_refused() -> None:
    asked = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=Buffers.window)
    with pytest.raises(BadInput, match="use plain or registered buffers"):
        explain(Scenario(nccl="2.28.9", machine="dgx-h100", nodes=1), asked, 4096)
    selection = selection_of("2.28.9", "dgx-h100", 1, 8)
    with pytest.raises(BadInput, match="NVLSTree needs several nodes"):
        selection.steps(request(Collective.AllReduce), 4096, (Algorithm.NVLSTree, Protocol.Simple))


def test_a_pick_that_the_policy_moved_is_refused() -> None:
    scenario = Scenario(nccl="2.30.7", machine="dgx-b200", nodes=1, environment={"NCCL_CTA_POLICY": "1"})
    asked = Request(Collective.AllGather, DataType.float32, Op.sum, buffers=Buffers.registered)
    with pytest.raises(BadInput, match="NCCL_CTA_POLICY moves this pick to NVLS"):
        explain(scenario, asked, 1 << 20)


# What a published description of NCCL 2.25.1's model says of bandwidths and latencies, as worked examples.
WORKED = "2.25.1"


def worked(machine: str, nodes: int, collective: Collective, algorithm: str, protocol: str) -> list[TraceStep]:
    selection = Selection(Scenario(nccl=WORKED, machine=machine, nodes=nodes).communicator())
    return selection.steps(request(collective), 1 << 20, (Algorithm[algorithm], Protocol[protocol]))


def by_rule(steps: list[TraceStep], rule: str) -> TraceStep:
    (found,) = (step for step in steps if step.name == rule and step.quantity in ("latency", "bandwidth"))
    return found


@pytest.mark.parametrize(("nodes", "field"), [(1, "bw_intra_gbs"), (4, "bw_inter_gbs")])
def test_the_bus_is_channels_times_the_graph(nodes: int, field: str) -> None:
    graph = Scenario(nccl=WORKED, machine="dgx-h100", nodes=nodes).communicator().graphs[Algorithm.Ring]
    bus = by_rule(worked("dgx-h100", nodes, Collective.AllReduce, "Ring", "Simple"), "all_channels")
    assert bus.before == getattr(graph, field)
    assert bus.after == graph.channels * getattr(graph, field)


def test_ll_halves_the_useful_bytes_unless_it_is_capped() -> None:
    halved = by_rule(worked("pcie-l40s", 1, Collective.AllReduce, "Ring", "LL"), "ring_ll_cap")
    assert halved.after == halved.before / 2
    capped = by_rule(worked("dgx-h100", 1, Collective.AllReduce, "Ring", "LL"), "ring_ll_cap")
    assert capped.after < capped.before / 2


def test_a_branching_tree_waits_for_15_percent() -> None:
    plain = by_rule(worked("dgx-h100", 2, Collective.AllReduce, "Tree", "Simple"), "plain_tree")
    assert plain.after == pytest.approx(plain.before * 0.85, rel=1e-6)
    balanced = by_rule(worked("dgx-a100", 2, Collective.AllReduce, "Tree", "Simple"), "plain_tree")
    assert balanced.after == balanced.before


def test_collnet_runs_simple_only() -> None:
    scenario = Scenario(
        nccl=WORKED, machine="dgx-h100", nodes=2, collnet=True, environment={"NCCL_COLLNET_ENABLE": "1"}
    )
    selection = Selection(scenario.communicator())
    excluded = selection.excluded(request(Collective.AllReduce))
    for algorithm in (Algorithm.CollNetDirect, Algorithm.CollNetChain):
        assert (algorithm, Protocol.Simple) in selection.candidates(request(Collective.AllReduce))
        for protocol in (Protocol.LL, Protocol.LL128):
            assert excluded[algorithm, protocol].endswith(": Only Simple goes through the network's reductions")


def test_nvls_spends_a_sixth_on_swapping() -> None:
    steps = of(worked("dgx-h100", 1, Collective.AllReduce, "NVLS", "Simple"), "bandwidth")
    assert steps[-1].name == "five_sixths_of_allreduce"
    assert steps[-1].after == pytest.approx(steps[-1].before * 5 / 6, rel=1e-6)


def test_a_ring_converts_bus_to_algorithm_bandwidth() -> None:
    steps = worked("dgx-h100", 2, Collective.AllReduce, "Ring", "Simple")
    converted = of(steps, "bandwidth")[-1]
    assert converted.name == "ranks_over_steps"
    assert converted.after == pytest.approx(converted.before * 16 / (2 * 15), rel=1e-6)


@pytest.mark.parametrize(("nodes", "inside_us", "between_us"), [(1, 14 * 0.6, 0), (2, 28 * 1.0, 2 * 2.7)])
def test_a_latency_is_base_and_steps_inside_and_between(nodes: int, inside_us: float, between_us: float) -> None:
    """2 (W - 1) steps, of which 2 (nodes - 1) go between nodes; there a step inside costs the CPU at least 1 us."""
    steps = of(worked("dgx-h100", nodes, Collective.AllReduce, "Ring", "LL"), "latency")
    assert [step.name for step in steps] == ["base", "ring_steps"]
    assert steps[0].after == 6.6
    assert steps[1].after == pytest.approx(6.6 + inside_us + between_us, rel=1e-6)


def run(arguments: list[str]) -> str:
    done = CliRunner().invoke(everything, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_prints_what_it_computes() -> None:
    arguments = shlex.split("explain allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 1M")
    found = json.loads(run([*arguments, "--json"]))
    assert found.pop("nccl_tuner_json") == 1
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
    assert found == json.loads(json.dumps(to_json(explain(scenario, request(Collective.AllReduce), 1 << 20))))
    assert set(found["steps"][0]) == {"quantity", "name", "before", "after", "unit", "says", "source"}


def test_symmetric_kernels_stand_beside_the_classic_pick() -> None:
    asked = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=Buffers.window)
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=1)
    explanation = explain_window(scenario, asked, 1 << 20)
    assert explanation.taken_by == "symmetric kernel AllReduce_RSxLDMC_AGxSTMC"
    assert [one.kernel for one in explanation.kernels][:2] == ["AllReduce_RSxLDMC_AGxSTMC", "AllReduce_RSxLD_AGxST"]
    assert explanation.classic == explain(scenario, replace(asked, buffers=Buffers.plain), 1 << 20).pick
    # model() of src/sym_kernels.cc, v2.28.9-1: 65 GBps of each block, 320 GBps at most, 7.8 us before any byte
    second, gbs = explanation.kernels[1], (1 << 30) / 1e6
    smooth = 320 * gbs - 65 * gbs * math.log1p((math.exp(320 / 65) - 1) * math.exp(-second.blocks))
    moved_us = math.log1p(math.exp(2 * (1 << 20) * 7 // 8 / smooth - 1))
    assert second.time_us == pytest.approx(7.8 + moved_us, rel=1e-6)
    assert second.score_us == pytest.approx(second.time_us * (1 + 0.025 * second.blocks), rel=1e-6)


def test_calls_that_no_symmetric_kernel_can_do_stay() -> None:
    asked = Request(Collective.AllReduce, DataType.int32, Op.sum, buffers=Buffers.window)
    explanation = explain_window(Scenario(nccl="2.28.9", machine="dgx-h100", nodes=1), asked, 1 << 20)
    assert (explanation.taken_by, explanation.kernels) == (None, ())
    assert explanation.classic is not None
    assert explanation.blocks == explanation.classic.channels
    with pytest.raises(BadInput, match="several nodes"):
        explain_window(Scenario(nccl="2.30.7", machine="aws-p5-rdma", nodes=2), asked, 1 << 20)

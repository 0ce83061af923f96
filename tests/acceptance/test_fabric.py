"""Causes between nodes: planted in healthy public runs by what each does to times, and public runs of a known one."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.support.command_line import run
from tests.support.judged_runs import RUNS, judged
from tuner.times.acceptance import fabric, shapes
from tuner.times.acceptance.evidence import NOTHING_LOGGED, LogFacts
from tuner.times.acceptance.fabric import FabricCause, FabricFacts
from tuner.times.acceptance.judge import JudgedCurve
from tuner.times.acceptance.public_runs import Joined, Network, PublicCurve

LARGE = 1 << 30
Change = Callable[[PublicCurve], PublicCurve]


@cache
def healthy() -> list[PublicCurve]:
    """Runs that chose by themselves, from small calls to large ones, and pass with no size that is slow."""
    return [
        each
        for each in RUNS
        if 1 < each.nodes < 64
        and each.is_healthy
        and not each.forced
        and each.bytes[0] < 1 << 16
        and each.bytes[-1] >= 2 * LARGE
        and (found := judged(each)) is not None
        and found.passes
        and found.judged
        and shapes.loss_of(found) is None
    ]


def slowed(curve: PublicCurve, factors: np.ndarray) -> PublicCurve:
    return replace(curve, time_us=tuple((np.array(curve.time_us) * factors).tolist()))


def left(share: float, start_us: float = 0.0) -> Change:
    """A part of the bandwidth is left: what the data take at the largest size's rate takes longer."""

    def change(curve: PublicCurve) -> PublicCurve:
        data_us = np.array(curve.bytes) * curve.time_us[-1] / curve.bytes[-1]
        times = np.array(curve.time_us) + (1 / share - 1) * data_us + start_us
        return replace(curve, time_us=tuple(times.tolist()))

    return change


def growing(curve: PublicCurve) -> PublicCurve:
    """A fifth longer with each power of two from 64 MiB on."""
    return slowed(curve, 1.2 ** np.maximum(np.log2(np.array(curve.bytes) / (64 << 20)), 0))


def waiting(curve: PublicCurve) -> list[int]:
    """The sizes that may wait for a timeout."""
    return [at for at, size in enumerate(curve.bytes) if 4 << 20 <= size <= LARGE]


def by_chance(curve: PublicCurve) -> PublicCurve:
    """One size waits for a timeout, and another one further on that is no neighbour."""
    draw = random.Random(curve.table + curve.run + curve.collective)
    at = waiting(curve)
    first = draw.randrange(len(at) - 4)
    factors = np.ones(len(curve.bytes))
    factors[[at[first], at[draw.randrange(first + 3, len(at))]]] = 60.0
    return slowed(curve, factors)


def in_the_middle(curve: PublicCurve) -> PublicCurve:
    sizes = np.array(curve.bytes)
    return slowed(curve, np.where((sizes >= 4 << 20) & (sizes < 256 << 20), 60.0, 1.0))


def at_all_sizes(curve: PublicCurve) -> PublicCurve:
    return slowed(curve, np.full(len(curve.bytes), 12.0))


PLANTED: list[tuple[FabricCause, Change]] = [
    (FabricCause.rail, left(0.5)),
    (FabricCause.rail, left(0.25)),
    (FabricCause.port, left(1 / 8)),
    (FabricCause.oversubscription, left(1 / 3)),
    (FabricCause.node, left(0.6)),
    (FabricCause.gpudirect, left(0.4, start_us=20.0)),
    (FabricCause.nvls, left(0.5)),
    (FabricCause.mtu, left(0.65)),
    (FabricCause.cap, left(0.6)),
    (FabricCause.algorithm, left(0.3)),
    (FabricCause.algorithm, in_the_middle),
    (FabricCause.pauses, growing),
    (FabricCause.cap, growing),
    (FabricCause.loss, growing),
    (FabricCause.loss, by_chance),
    (FabricCause.load, by_chance),
    (FabricCause.load, at_all_sizes),
]
# What no such change may be taken for.
UNLIKE = {
    left: (FabricCause.pauses, FabricCause.loss, FabricCause.latency),
    growing: (FabricCause.rail, FabricCause.mtu, FabricCause.oversubscription, FabricCause.algorithm),
    by_chance: (FabricCause.rail, FabricCause.node, FabricCause.cap, FabricCause.pauses, FabricCause.mtu),
    in_the_middle: (FabricCause.rail, FabricCause.loss, FabricCause.cap, FabricCause.gpudirect),
    at_all_sizes: (FabricCause.rail, FabricCause.loss, FabricCause.pauses, FabricCause.mtu),
}


def facts(curve: PublicCurve, log: LogFacts = NOTHING_LOGGED, *, as_picked: bool = False) -> FabricFacts:
    reduces = curve.machine.joined is Joined.nvls
    return FabricFacts(curve.machine.network, curve.adapters or 8, reduces, as_picked, log)


def causes(
    changed: PublicCurve, log: LogFacts = NOTHING_LOGGED, beside: tuple[JudgedCurve, ...] = ()
) -> set[FabricCause] | None:
    """The causes that are named; None where the run does not fail, as limits are wide where few runs are near."""
    found = judged(changed)
    assert found is not None
    if found.passes:
        return None
    loss = shapes.loss_of(found)
    assert loss is not None
    return set(fabric.causes(found, loss, (found, *beside), facts(changed, log)))


def small_known(curve: PublicCurve) -> bool:
    """Whether anything says what small calls take, which tells a loss at all sizes from one of bandwidth."""
    found = judged(curve)
    assert found is not None
    small = np.array(curve.bytes) < 1 << 20
    return bool((~np.isnan(found.expected.time_us[small])).all())


def can_show(change: Change, curve: PublicCurve) -> bool:
    """Whether a curve has the sizes that a change is told from others by: two far apart, or small ones."""
    if change is by_chance:
        return len(waiting(curve)) > 4
    return change is not at_all_sizes or small_known(curve)


def can_have(cause: FabricCause, curve: PublicCurve) -> bool:
    match cause:
        case FabricCause.nvls:
            return curve.machine.joined is Joined.nvls and curve.collective == "AllReduce"
        case FabricCause.mtu | FabricCause.pauses:
            return curve.machine.network is Network.rdma
        case _:
            return True


def test_there_are_many_healthy_runs_to_plant_in() -> None:
    assert len(healthy()) >= 20
    assert len({each.site for each in healthy()}) >= 6


@pytest.mark.parametrize(("cause", "change"), PLANTED, ids=lambda value: getattr(value, "value", ""))
def test_a_planted_cause_is_among_those_named_and_its_shape_excludes_others(cause: FabricCause, change: Change) -> None:
    planted = [each for each in healthy() if can_have(cause, each) and can_show(change, each)]
    assert len(planted) >= 5
    unlike = UNLIKE.get(change, UNLIKE[left])
    failing = set()
    for each in planted:
        if (found := causes(change(each))) is None:
            continue
        failing.add(each.site)
        assert cause in found, (each, found)
        assert not found & set(unlike), (each, found)
    # Sites are counted and not curves, of which one over a network of its own, that wide limits judge, has most.
    assert len(failing) >= 0.9 * len({each.site for each in planted}), failing


REFUTED = [
    (FabricCause.rail, left(0.5), LogFacts(networks=("IB",), adapters=8)),
    (FabricCause.gpudirect, left(0.4), LogFacts(networks=("IB",), gpudirect=True)),
    (FabricCause.nvls, left(0.5), LogFacts(nvls=True)),
]


@pytest.mark.parametrize(("cause", "change", "log"), REFUTED, ids=lambda value: getattr(value, "value", ""))
def test_a_cause_that_the_log_refutes_is_not_named(cause: FabricCause, change: Change, log: LogFacts) -> None:
    planted = [each for each in healthy() if can_have(cause, each) and each.adapters in (None, 8)]
    assert planted
    for each in planted:
        if (found := causes(change(each))) is not None:
            assert cause in found
            assert cause not in (causes(change(each), log) or ())


def test_what_other_runs_of_the_same_files_show_excludes_causes() -> None:
    """Where AllGather is healthy, links and clocks are, so that AllReduce alone is slow by NVLS or a forced choice."""
    pairs = [
        (reduce, gather)
        for reduce in RUNS
        for gather in RUNS
        if (gather.table, gather.run, gather.nodes, gather.gpus_per_node)
        == (reduce.table, reduce.run, reduce.nodes, reduce.gpus_per_node)
        and (reduce.collective, gather.collective) == ("AllReduce", "AllGather")
        and reduce.is_healthy
        and 1 < reduce.nodes < 64
        and not reduce.forced + gather.forced
    ]
    others = [
        (each, gathered)
        for each, other in pairs
        if (gathered := judged(other)) is not None and gathered.passes and gathered.judged
    ]
    assert others
    for each, other in others:
        if (found := causes(left(0.5)(each), beside=(other,))) is None:
            continue
        assert found <= {FabricCause.nvls, FabricCause.algorithm}, (each, found)
        assert (FabricCause.nvls in found) == (each.machine.joined is Joined.nvls)


def named(table: str, machine: str, *words: str) -> set[str]:
    said = run("accept", table, "--machine", machine, *words, "--json", code=1).stdout
    codes = [each["code"] for each in json.loads(said)["findings"]]
    assert ("accept.one_of" in codes) or ("accept.one_cause" in codes)
    return {code.removeprefix("accept.may_be_") for code in codes if code.startswith("accept.may_be_")}


@pytest.mark.parametrize(
    ("table", "machine", "cause"),
    [
        ("b200-8x-4n__2.30.7__flapping-slow", "dgx-b200", "rail"),  # half of the adapters
        ("b200-8x-2n__2.29.3__aicr", "dgx-b200", "gpudirect"),  # which its notes look for
        ("h200-8x-4n__2.22.3__azure-stress", "hgx-h200", "node"),  # a stress test on all nodes
    ],
)
def test_public_runs_of_a_known_cause_name_it(table: str, machine: str, cause: str) -> None:
    found = named(table, machine)
    assert cause in found
    assert not found & {"loss", "pauses", "latency"}


def test_each_cause_says_what_shows_it() -> None:
    from tuner.base.findings import Finding, Severity, explained

    for each in FabricCause:
        said = explained(Finding(f"accept.may_be_{each.value}", Severity.NOTE, {"calls": ["AllReduce on 2 nodes"]}))
        assert said.says
        assert said.do

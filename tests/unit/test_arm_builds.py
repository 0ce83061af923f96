"""ARM hosts: what the libnccl for aarch64 answered, as tests/live/test_aarch64.py recorded it, against the emulator."""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from tests.support import both_builds
from tests.support.recorded import read
from tuner import release
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import Float, f32
from tuner.emulator.model import latency_us
from tuner.emulator.rules import latency
from tuner.emulator.rules.call import ModelPoint
from tuner.scenario import Scenario
from tuner.scenario.resolved import ResolvedScenario


def fused(point: ModelPoint) -> Float:
    """The latency of a cell, us, as ncclTopoTuneModel of aarch64 has it (2.23 to 2.30)."""
    if point.algorithm is not Algorithm.Ring:
        return latency_us(point)
    base = latency.base(f32(0), point)
    if point.collective not in (Collective.Reduce, Collective.Broadcast):
        between = point.rules.ring_network_steps(point)
        inside = max(point.hw_latency_us("intra"), latency._net_overhead_us(point))
        network = f32(between) * latency._between_us(point)
        return base + multiply_add(f32(point.steps - between), inside, network)
    if point.graph.same_channels:
        return latency_us(point)
    row = Algorithm.Tree if point.protocol is Protocol.Simple else None
    return multiply_add(f32(point.steps), point.hw_latency_us("here", row), base)


def multiply_add(one: Float, other: Float, added: Float) -> Float:
    """``one * other + added``, rounded to the nearest float once; to an even last bit where two are as near."""
    exact = Fraction(float(one)) * Fraction(float(other)) + Fraction(float(added))
    about = f32(float(exact))
    near = (about, np.nextafter(about, f32(np.inf)), np.nextafter(about, f32(-np.inf)))
    return min(near, key=lambda each: (abs(Fraction(float(each)) - exact), int(each.view(np.uint32)) & 1))


NUMBERED = (Algorithm.Tree, Algorithm.Ring, Algorithm.NVLSTree)  # whose latency NCCL keeps where they do not run, too


@pytest.fixture(scope="module")
def cells() -> list[tuple[ModelPoint, Float]]:
    """Cells of machines with ARM processors, and their latencies in the build for aarch64, us."""
    return list(recorded())


def recorded() -> Iterator[tuple[ModelPoint, Float]]:
    for machine, nodes, latencies_us in both_builds.recorded():
        communicator = ResolvedScenario(Scenario(both_builds.RECORDED, nodes, machine=machine)).views[0]
        for collective in Collective:
            for algorithm in communicator.rules.exists[collective]:
                for protocol in Protocol:
                    theirs = latencies_us[collective, algorithm, protocol]
                    if algorithm in NUMBERED and theirs:
                        yield ModelPoint(communicator, collective, algorithm, protocol), theirs


def test_the_build_for_aarch64_differs_by_fused_steps_of_rings_alone(cells: list[tuple[ModelPoint, Float]]) -> None:
    wrong = [(point, theirs) for point, theirs in cells if fused(point) != theirs]
    assert not wrong
    assert len(cells) >= 250


def test_the_emulator_is_off_by_the_last_bit_of_some_rings(cells: list[tuple[ModelPoint, Float]]) -> None:
    differ = [(point, theirs) for point, theirs in cells if latency_us(point) != theirs]
    assert Counter(point.algorithm for point, _ in differ).keys() == {Algorithm.Ring}
    assert 0 < len(differ) < len(cells) // 10
    bits = [abs(int(latency_us(point).view(np.int32)) - int(theirs.view(np.int32))) for point, theirs in differ]
    assert set(bits) == {1}


def test_one_rounding_instead_of_two() -> None:
    one = f32(1) + f32(2) ** f32(-12)
    assert one * one - f32(1) - f32(2) ** f32(-11) == 0
    assert multiply_add(one, one, -(f32(1) + f32(2) ** f32(-11))) == f32(2) ** f32(-24)


def test_no_constant_no_variable_and_no_pick_differs() -> None:
    found = read("arm")
    assert set(found) < set(release.names())
    assert len(found) == 21
    for name, row in found.items():
        assert not any(row[key] for key in both_builds.WRONG), name
        assert row["constants"] > 100, name
        assert row["variables"] > 80, name
        assert row["fused"], name
    tuned = [row for row in found.values() if row["communicators"]]
    assert len(tuned) == 19
    assert all(row["latencies_different"] < row["latencies"] // 20 for row in tuned)
    assert sum(row["picks"] for row in tuned) > 250_000

"""What is taken of links and given back: without loss, a route is refused by the link that was short before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import release
from tuner.base.numerics import f32
from tuner.graphs import SearchRequest
from tuner.graphs.graphs import prepared
from tuner.graphs.load import Load, given_by, in_thousandths, taken_by
from tuner.graphs.system import DeviceKind
from tuner.machine import catalogue
from tuner.release.environment import Environment

BELOW = 999_999  # thousandths of a GB/s


@given(st.integers(0, BELOW), st.integers(1, BELOW))
def test_thousandths_are_given_back_without_loss(have_thousandths: int, taken_thousandths: int) -> None:
    have, amount = float(f32(have_thousandths) / f32(1000)), float(f32(taken_thousandths) / f32(1000))
    assert in_thousandths(have)
    assert in_thousandths(amount)
    left = taken_by(amount)[have]
    assert (left is None) == (have_thousandths < taken_thousandths)
    if left is not None:
        assert in_thousandths(left)
        assert given_by(amount)[left] == have


@given(st.integers(0, 200_000), st.integers(1, 1000))
def test_overhead_and_the_way_back_are_given_back_without_loss(have_thousandths: int, tenths: int) -> None:
    """Six fifths of a bandwidth in float32, and an eighth of one, need not be the float32 nearest to thousandths."""
    have = float(f32(have_thousandths) / f32(1000))
    for amount in (float(f32(tenths / 10) * f32(6) / f32(5)), tenths / 10 / 8):
        left = taken_by(amount)[have]
        if in_thousandths(amount) and left is not None:
            assert given_by(amount)[left] == have


def test_what_is_no_thousandth_may_be_lost() -> None:
    left = taken_by(0.0625)[2.0]
    assert left is not None
    assert not in_thousandths(0.0625)
    assert given_by(0.0625)[left] != 2.0
    assert not in_thousandths(5000.0)  # float32 has few digits left for thousandths there


@pytest.mark.parametrize("gbs", [20.0, 10.0625])
def test_a_refused_route_leaves_links_as_taking_and_giving_back_does(gbs: float) -> None:
    """Where something is lost, each refusal changes the links before the short one, as in NCCL."""
    node, nccl = catalogue.load("dgx-h100"), release.load("2.28.9")
    request = SearchRequest(node.topology_xml, 8, True, dict(node.environment), node.peer_to_peer_across_sockets)
    system = prepared(request, nccl, Environment(request.environment, non_numeric_is_default=False))
    load, gpu = Load(system, False, False), system.gpus[0]
    path = max(gpu.paths[DeviceKind.NET], key=lambda path: len(path.links))
    load.left[load.number(path.links[-1])] = 1.0
    load.begin()
    route = load.route(gpu, path, gbs, 0)
    *before, _ = route.steps
    assert len(before) > 2
    kept = list(load.left)
    for _ in range(3):
        expected = list(load.left)
        for link, taken, given_back in before:
            rest = taken[expected[link]]
            assert rest is not None
            expected[link] = given_back[rest]
        assert not load.take(route)
        assert load.left == expected
    assert (load.left == kept) == load.exact == (gbs == 20.0)

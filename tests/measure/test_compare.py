"""The one comparison of measured times: noise, crossings, many comparisons."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.times.compare import ERROR, LEAST_GAIN, Verdict, compare, crossing, decided, paired, straight, unsure
from tuner.times.statistics import Samples

sizes = st.integers(1, 1 << 40)
leads = st.floats(1e-6, 1e3)


def test_a_gain_is_the_ratio_of_times_and_a_verdict_turns_with_its_sides() -> None:
    slow, fast = Samples(math.log(12.0), 0.01, 5.0), Samples(math.log(10.0), 0.02, 9.0)
    gained, lost = compare(slow, fast), compare(fast, slow)
    assert gained.gain == pytest.approx(0.2)
    assert (gained.low, gained.high) == (-lost.high, -lost.low)
    assert gained.p + lost.p == pytest.approx(1)
    known = compare(slow, Samples(math.log(10.0), 0.02, math.inf)), compare(slow, Samples(fast.log_us, 0.02, 5.0))
    assert known[0] == known[1], "the lesser freedom counts"


@pytest.mark.parametrize("comparisons", [1, 3, 20])
@pytest.mark.parametrize("freedom", [2.0, 7.0, math.inf])
def test_beyond_the_noise_is_where_the_interval_is_above_0(comparisons: int, freedom: float) -> None:
    found = []
    for estimate in np.linspace(-0.1, 1.5, 400):
        one = compare(Samples(estimate, 0.03, freedom), Samples(0.0, 0.04, freedom), comparisons)
        assert one.is_beyond(comparisons) == (one.low > 0)
        found.append(one.is_beyond(comparisons))
    assert {False, True} == set(found)


@pytest.mark.parametrize("comparisons", [0.5, 1, 4])
def test_the_least_chance_that_counts_still_counts(comparisons: float) -> None:
    least = ERROR / max(1, comparisons)
    assert Verdict(0.1, p=least).is_beyond(comparisons)
    assert not Verdict(0.1, p=math.nextafter(least, 1)).is_beyond(comparisons)


def test_intervals_of_pairs_hold_the_truth_and_those_for_many_hold_it_more_often() -> None:
    rng = np.random.default_rng(4)
    held = {1: 0, 10: 0}
    for gains in rng.normal(0.1, 0.03, (2000, 5)):
        one = paired(gains)
        held[1] += one.low <= 0.1 <= one.high
        both = compare(Samples(one.estimate, gains.std(ddof=1) / math.sqrt(5), 4.0), Samples(0.0, 0.0, math.inf), 10)
        held[10] += both.low <= 0.1 <= both.high
    assert held[1] / 2000 == pytest.approx(1 - 2 * ERROR, abs=0.015)
    assert held[10] / 2000 == pytest.approx(1 - 2 * ERROR / 10, abs=0.005)


def test_too_few_units_say_nothing() -> None:
    for gains in ([0.5, 0.5], [0.5, np.nan, 0.5, np.nan], []):
        one = paired(np.array(gains))
        assert (one.is_bounded, one.p, one.is_beyond()) == (False, 1.0, False)
    assert paired(np.array([0.5, 0.5, np.nan, 0.5])) == Verdict(0.5, 0.5, 0.5, 0.0)
    assert paired(np.array([0.5, 0.5, 0.5]), rounding=0.01).low < 0.5, "steps of a timer are noise"


def test_rows_of_a_table_are_decided_together() -> None:
    sure, close = ERROR / 100, ERROR * 0.9
    assert [why for _, why in decided([(None, 0.1, close)])] == [None]
    reasons = [
        why for _, why in decided([(None, 0.1, sure), (None, 0.1, close), (None, LEAST_GAIN, sure), ("x", 1, sure)])
    ]
    assert reasons[0] is None
    assert reasons[1] is None, "as the last of Holm's steps"
    assert reasons[2:] == ["gains 2.0 %, not more than 2 %", "x"]
    assert [why is None for _, why in decided([(None, 0.1, close)] * 2)] == [False, False]
    assert unsure(ERROR) is None
    assert unsure(ERROR * 1.01) is not None


@given(sizes, sizes, leads, leads)
def test_a_crossing_is_where_straight_lines_meet(one: int, other: int, before: float, after: float) -> None:
    low, high = sorted((one, other))
    if high - low < 2:
        return
    lead = straight((low, before), (high, -after))
    last = crossing(lead, low, high)
    assert last is not None
    assert low <= last < high
    assert lead(last) > 0 >= lead(last + 1)
    exact = low * (high / low) ** (before / (before + after))
    assert abs(last - exact) <= 1 + 1e-6 * exact


@given(st.data())
def test_a_crossing_is_the_last_size_ahead_to_the_byte(data: st.DataObject) -> None:
    low, high = data.draw(st.tuples(st.integers(0, 2**40), st.integers(1, 1000)).map(lambda pair: (pair[0], sum(pair))))
    last = data.draw(st.integers(low, high - 1))
    assert crossing(lambda size: last + 0.5 - size, low, high) == last


def test_lines_that_do_not_cross_have_no_crossing() -> None:
    for before, after in ((1.0, 2.0), (-1.0, -2.0), (-1.0, 1.0), (0.0, -1.0), (math.nan, -1.0)):
        assert crossing(straight((1024, before), (4096, after)), 1024, 4096) is None

"""Orders of additions against an execution of the steps, bit for bit, on float32 numbers whose sums round."""

import numpy as np
import pytest

from tests.support import drawn_works, ordered_calls
from tuner.emulator.connect import summarize
from tuner.emulator.steps.orders import orders

# The releases whose works have another form, or whose channels get other parts.
RELEASES = ("2.18.3", "2.19.3", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.28.9", "2.32.3")


@pytest.mark.parametrize("seed", range(40))
def test_the_claimed_order_gives_the_bits_of_the_steps(seed: int) -> None:
    random = np.random.default_rng(seed)
    drawn = drawn_works.reducing(random)
    ordered_calls.compare(random, drawn.work, drawn.connected)


@pytest.mark.parametrize("seed", range(40, 46))
def test_averages_are_sums_of_scaled_numbers_in_the_same_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    drawn = drawn_works.reducing(random)
    found = orders(drawn.work, summarize(drawn.connected))
    inputs = [drawn_works.numbers(random, found.count) for _ in drawn.connected.ranks]
    scale = np.float32(1 / len(inputs))
    expected = ordered_calls.claimed(found, [each * scale for each in inputs])
    for result in ordered_calls.executed(drawn.work, drawn.connected, inputs, scale):
        assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("nccl", RELEASES)
def test_calls_on_machines_are_added_as_claimed(nccl: str, seed: int) -> None:
    random = np.random.default_rng([seed, *map(int, nccl.split("."))])
    scenario, (call,) = ordered_calls.drawn_calls(random, nccl, 1)
    assert call.work.algorithm in ordered_calls.ALGORITHMS
    ordered_calls.compare(random, call.work, scenario.resolve().connected)

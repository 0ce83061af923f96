"""Orders of additions against an execution of the steps, bit for bit, on float32 numbers whose sums round."""

import numpy as np
import pytest

from tests.support import drawn_works, ordered_calls

# The releases whose works have another form, or whose channels get other parts.
RELEASES = ("2.18.3", "2.19.3", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.28.9", "2.32.3")


@pytest.mark.parametrize("seed", range(40))
def test_the_claimed_order_gives_the_bits_of_the_steps(seed: int) -> None:
    random = np.random.default_rng(seed)
    drawn = drawn_works.reducing(random)
    ordered_calls.compare(random, drawn.work, drawn.connected)


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("nccl", RELEASES)
def test_calls_on_machines_are_added_as_claimed(nccl: str, seed: int) -> None:
    random = np.random.default_rng([seed, *map(int, nccl.split("."))])
    scenario, (call,) = ordered_calls.drawn_calls(random, nccl, 1)
    assert call.work.algorithm in ordered_calls.ADDING
    ordered_calls.compare(random, call.work, scenario.resolve().connected)

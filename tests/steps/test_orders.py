"""Orders of additions against an execution of the steps, bit for bit, on float32 numbers whose sums round."""

import numpy as np
import pytest

from tests.support import device_steps, drawn_works
from tuner.base.names import Collective
from tuner.connect import summarize
from tuner.steps.orders import Orders, orders
from tuner.steps.terms import Term


def added(term: Term, inputs: list[np.ndarray], where: slice) -> np.ndarray:
    """The numbers of a range, added as the term says, each sum rounded to float32."""
    if isinstance(term, int):
        return inputs[term][where]
    total = added(term[0], inputs, where)
    for each in term[1:]:
        total = total + added(each, inputs, where)
    return total


def claimed(found: Orders, inputs: list[np.ndarray]) -> np.ndarray:
    result = np.empty(found.count, np.float32)
    for start, end, which in zip(found.starts, found.ends(), found.which, strict=True):
        result[start:end] = added(found.terms[which], inputs, slice(start, end))
    return result


def executed(drawn: drawn_works.Drawn, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What each rank has of the whole result."""
    outputs, _ = device_steps.execute(drawn.work, [rank.channels for rank in drawn.connected.ranks], inputs)
    if drawn.work.collective is Collective.ReduceScatter:
        return [np.concatenate(outputs)]
    return [outputs[drawn.work.root]] if drawn.work.collective is Collective.Reduce else outputs


@pytest.mark.parametrize("seed", range(40))
def test_the_claimed_order_gives_the_bits_of_the_steps(seed: int) -> None:
    random = np.random.default_rng(seed)
    drawn = drawn_works.reducing(random)
    across = summarize(drawn.connected)
    ranks = len(drawn.connected.ranks)
    found = orders(drawn.work, across)
    assert found.starts[0] == 0
    assert np.all(np.diff(found.starts) > 0)
    assert found.starts[-1] < found.count
    inputs = [drawn_works.numbers(random, found.count) for _ in range(ranks)]
    expected = claimed(found, inputs)
    for result in executed(drawn, inputs):
        assert result.tobytes() == expected.tobytes()

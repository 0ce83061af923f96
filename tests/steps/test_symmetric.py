"""Orders of additions of symmetric kernels against their additions, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support import symmetric_steps
from tests.support.drawn_works import numbers
from tests.support.ordered_calls import added
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.steps import orders
from tuner.emulator.steps.orders import Orders

Kernel = Callable[[list[Any]], list[Any]]
KERNELS: dict[str, Kernel] = {
    "AllReduce_AGxLL_R": symmetric_steps.all_reduce_low_latency,
    "AllReduce_AGxLLMC_R": symmetric_steps.all_reduce_low_latency,
    "ReduceScatter_LL": symmetric_steps.reduce_scatter_low_latency,
    "ReduceScatter_LD": lambda inputs: symmetric_steps.reduce_scatter_by_loads(inputs, 2),
    "ReduceScatter_TmaLD": lambda inputs: symmetric_steps.reduce_scatter_by_loads(inputs, 2),
}


def claimed(found: Orders, inputs: list[Any]) -> Any:
    """Sums kept in the type that is claimed, rounded to the numbers' own at the end."""
    kept = [each.astype(found.sums_in.name) for each in inputs]
    result = np.empty(found.count, inputs[0].dtype)
    for start, end, which in zip(found.starts, found.ends(), found.which, strict=True):
        result[start:end] = added(found.terms[which], kept, slice(start, end)).astype(result.dtype)
    return result


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
@pytest.mark.parametrize("ranks", [2, 3, 7, 8, 9, 17])
def test_symmetric_kernels_add_as_claimed(kernel: str, dtype: DataType, ranks: int) -> None:
    random = np.random.default_rng([ranks, dtype])
    collective = Collective[kernel.partition("_")[0]]
    request = Request(collective, dtype, Op.sum)
    assert orders.symmetric_not_claimed(kernel, request) is None
    elements = 300 * ranks
    found = orders.symmetric_orders(kernel, request, ranks, elements)
    inputs = [(numbers(random, elements) / 64).astype(dtype.name) for _ in range(ranks)]
    results = KERNELS[kernel](inputs)
    expected = claimed(found, inputs)
    whole = [np.concatenate(results)] if collective is Collective.ReduceScatter else results
    assert all(result.tobytes() == expected.tobytes() for result in whole)


def test_what_is_not_claimed_says_why() -> None:
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    assert "the switch adds" in str(orders.symmetric_not_claimed("AllReduce_RSxLDMC_AGxSTMC", request))
    assert "whose warp adds it" in str(orders.symmetric_not_claimed("AllReduce_RSxLD_AGxST", request))
    assert orders.symmetric_not_claimed(None, request) == orders.NOT_DERIVED
    average = Request(Collective.AllReduce, DataType.float32, Op.avg)
    assert orders.symmetric_not_claimed("AllReduce_AGxLL_R", average) == "sums are derived, not avg"

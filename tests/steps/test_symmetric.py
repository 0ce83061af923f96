"""Orders of additions of symmetric kernels against their additions, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.drawn_works import numbers
from tests.support.ordered_calls import added
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.steps import orders
from tuner.emulator.steps.orders import Orders

Numbers = NDArray[Any]


def all_reduce_low_latency(inputs: list[Numbers]) -> list[Numbers]:
    """AllReduce_AGxLL_R: every rank has everyone's numbers in slots, by rank, and adds them itself."""
    return [_receive_and_reduce(inputs) for _ in inputs]


def reduce_scatter_low_latency(inputs: list[Numbers]) -> list[Numbers]:
    """ReduceScatter_LL: each rank sends each other one its part, into the slot of the sender."""
    parts = [np.split(each, len(inputs)) for each in inputs]
    return [_receive_and_reduce([part[rank] for part in parts]) for rank in range(len(inputs))]


def reduce_scatter_by_loads(inputs: list[Numbers], unroll_peers: int) -> list[Numbers]:
    """ReduceScatter_LD: each rank loads its part from everyone, itself first (reduceDeep)."""
    ranks, results = len(inputs), []
    for rank in range(ranks):
        loaded = [np.split(each, ranks)[rank] for each in inputs]
        total = _accumulated(loaded[rank])
        r = (rank + 1) % ranks
        total = total + _accumulated(loaded[r])
        r = (r + 1) % ranks
        done = 2
        while done + unroll_peers <= ranks:
            total, r, done = _some(total, loaded, r, unroll_peers), (r + unroll_peers) % ranks, done + unroll_peers
        total = _some(total, loaded, r, ranks - done)
        results.append(total.astype(inputs[0].dtype))
    return results


def _some(total: Numbers, loaded: list[Numbers], r: int, count: int) -> Numbers:
    for _ in range(count):
        total = total + _accumulated(loaded[r])
        r = 0 if r + 1 == len(loaded) else r + 1
    return total


def _receive_and_reduce(slots: list[Numbers], unroll: int = 8) -> Numbers:
    """recvReduce: eight slots at a time, then the rest."""
    total: Numbers | None = None
    at = 0
    while at + unroll <= len(slots):
        first = _accumulated(slots[at])
        total = first if total is None else total + first
        for each in slots[at + 1 : at + unroll]:
            total = total + _accumulated(each)
        at += unroll
    for each in slots[at:]:
        total = _accumulated(each) if total is None else total + _accumulated(each)
    assert total is not None
    return total.astype(slots[0].dtype)


def _accumulated(numbers: Numbers) -> Numbers:
    return numbers.astype(np.float32) if numbers.dtype == np.float16 else numbers


Kernel = Callable[[list[Any]], list[Any]]
KERNELS: dict[str, Kernel] = {
    "AllReduce_AGxLL_R": all_reduce_low_latency,
    "AllReduce_AGxLLMC_R": all_reduce_low_latency,
    "ReduceScatter_LL": reduce_scatter_low_latency,
    "ReduceScatter_LD": lambda inputs: reduce_scatter_by_loads(inputs, 2),
    "ReduceScatter_TmaLD": lambda inputs: reduce_scatter_by_loads(inputs, 2),
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

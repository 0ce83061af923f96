"""Orders of additions against an execution of the steps, bit for bit, on float32 numbers whose sums round."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support import drawn_works, ordered_calls
from tests.support.drawn_works import numbers
from tests.support.ordered_calls import added
from tuner.answers.alone import Alone, calls_alone
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.connect import summarize
from tuner.emulator.request import Request
from tuner.emulator.steps import orders as step_orders
from tuner.emulator.steps.orders import (
    Orders,
    Term,
    add,
    add_all,
    at_offsets,
    in_rows,
    of_ring,
    of_tree,
    orders,
    ranks_of,
    text,
)
from tuner.scenario import Scenario

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


SUM = Request(Collective.AllReduce, DataType.float32, Op.sum)


@pytest.mark.parametrize(("nccl", "sizes"), [("2.28.9", (40_000, 8, 65_536)), ("2.21.5", (4096, 70_000))])
@pytest.mark.parametrize("algorithm", ["Ring", "Tree"])
def test_calls_of_a_group_are_added_as_claimed(nccl: str, sizes: tuple[int, ...], algorithm: str) -> None:
    random = np.random.default_rng(sum(sizes))
    scenario = Scenario(nccl, 1, machine="dgx-1v", environment={"NCCL_ALGO": algorithm})
    for call, size in zip(calls_alone(scenario, SUM, sizes, together=True), sizes, strict=True):
        assert isinstance(call, Alone)
        assert (call.bytes, call.work.count) == (size, size // 4)
        ordered_calls.compare(random, call.work, scenario.resolve().connected)


def test_a_group_shares_channels_otherwise_than_a_call_alone() -> None:
    scenario = Scenario("2.28.9", 1, machine="dgx-1v", environment={"NCCL_ALGO": "Ring"})
    size = 64 << 10
    (alone,) = calls_alone(scenario, SUM, [size])
    first, _ = calls_alone(scenario, SUM, [size, 16 * size], together=True)
    assert isinstance(alone, Alone)
    assert isinstance(first, Alone)
    assert alone.work.count == first.work.count
    assert orders(alone.work, alone.across).terms != orders(first.work, first.across).terms


def test_windows_are_no_group() -> None:
    scenario = Scenario("2.28.9", 1, machine="dgx-h100")
    with pytest.raises(BadInput, match="group= is only emulated for calls on the classic path"):
        calls_alone(scenario, replace(SUM, buffers=Buffers.window), [8, 8], 0, True)


def drawn_orders(random: np.random.Generator, count: int) -> Orders:
    """Ranges of few orders, so that they are often the same."""
    terms: tuple[Term, ...] = ((0, 1, 2), (1, 2, 0))
    starts = np.unique(np.append(0, random.integers(0, count, random.integers(0, 4))))
    return Orders(count, starts, np.arange(len(starts)) % 2, terms, DataType.float32)


def one_by_one(call: Orders) -> list[Term]:
    return [call.terms[which] for which in call.at(np.arange(call.count))]


@pytest.mark.parametrize("seed", range(80))
def test_differences_at_offsets_and_in_columns(seed: int) -> None:
    random = np.random.default_rng(seed)
    row = int(random.integers(1, 6))
    calls = [drawn_orders(random, row * int(random.integers(1, 5))) for _ in range(int(random.integers(1, 4)))]
    terms = [one_by_one(call) for call in calls]
    found = at_offsets(calls)
    assert (found is None) == all(mine == own for other in terms for own, mine in zip(terms[0], other, strict=False))
    parts = row if all(call.count % row == 0 for call in calls) else 1
    in_parts = at_offsets(calls, parts)
    split = [[other[len(other) // parts * part :][: len(other) // parts] for part in range(parts)] for other in terms]
    pairs = [
        pair
        for other in split
        for own, mine in zip(split[0], other, strict=True)
        for pair in zip(own, mine, strict=False)
    ]
    assert (in_parts is None) == all(own == mine for own, mine in pairs)
    columns = [{each[at] for each in terms for at in range(column, len(each), row)} for column in range(row)]
    by_rows = in_rows(calls, row)
    assert (by_rows is None) == all(len(column) == 1 for column in columns)
    for difference in filter(None, (found, by_rows, in_parts)):
        for call, offset, term in zip(difference.calls, difference.offsets, difference.terms, strict=True):
            assert terms[call][offset] == term
        assert difference.terms[0] != difference.terms[1]
    if by_rows is not None:
        assert (by_rows.offsets[0] - by_rows.offsets[1]) % row == 0


def test_a_ring_differs_between_sizes_and_one_tree_does_not() -> None:
    random = np.random.default_rng(3)
    drawn = [drawn_works.reducing(random) for _ in range(40)]
    for each in drawn:
        found = orders(each.work, summarize(each.connected))
        assert (in_rows([found], 1) is None) == (len(found.starts) == 1)


RANKS = 6
SUMS = st.recursive(st.integers(0, RANKS - 1), lambda inner: st.tuples(inner, inner), max_leaves=8)


def term(sums: object) -> Term:
    return add(*map(term, sums)) if isinstance(sums, tuple) else int(str(sums))


def value(sums: object, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Sums as they are written, added in float32."""
    if isinstance(sums, tuple):
        total: np.ndarray = value(sums[0], inputs) + value(sums[1], inputs)
        return total
    return inputs[int(str(sums))]


@given(SUMS, SUMS)
def test_two_sums_are_one_term_where_their_bits_are_the_same(one: object, other: object) -> None:
    random = np.random.default_rng(0)
    inputs = [numbers(random, 2000) for _ in range(RANKS)]
    assert (term(one) == term(other)) == (value(one, inputs).tobytes() == value(other, inputs).tobytes())


def test_terms_are_written_from_left_to_right() -> None:
    assert text(of_ring((0, 2, 1, 3), 0)) == "1 + 2 + 3 + 0"
    assert text(add_all((0, 3, add(2, 1)))) == "0 + 3 + (1 + 2)"
    assert ranks_of(add_all((0, 3, add(2, 1)))) == (0, 3, 1, 2)


def test_a_ring_is_added_from_left_to_right() -> None:
    for ring in ((5,), (2, 0), (0, 3, 1, 2)):
        for last in range(len(ring)):
            assert of_ring(ring, last) == add_all((*ring[last + 1 :], *ring[: last + 1]))


def test_a_chain_is_added_from_its_end_and_two_children_one_after_the_other() -> None:
    assert of_tree([[1], [2], []], 0) == (1, 2, 0)
    assert of_tree([[1, 2], [3], [4], [], []], 0) == (1, 3, 0, (2, 4))


def test_the_order_of_two_ranks_is_always_the_same() -> None:
    assert of_ring((0, 1), 0) == of_ring((0, 1), 1) == of_tree([[1], []], 0) == of_tree([[], [0]], 1)


@pytest.mark.parametrize("ranks", [1, 2, 7, 40])
def test_a_tree_is_the_sum_of_what_its_ranks_add(ranks: int) -> None:
    """By ranks that are numbered at random, so that sums of as many ranks stand by their first."""
    random = Random(ranks)
    numbers = random.sample(range(ranks), ranks)
    children: list[list[int]] = [[] for _ in range(ranks)]
    for place, rank in enumerate(numbers[1:], start=1):
        children[numbers[random.randrange(max(place - 5, 0), place)]].append(rank)

    def added(rank: int) -> Term:
        return add_all((rank, *(added(child) for child in children[rank])))

    assert of_tree(children, numbers[0]) == added(numbers[0])


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
    assert step_orders.symmetric_not_claimed(kernel, request) is None
    elements = 300 * ranks
    found = step_orders.symmetric_orders(kernel, request, ranks, elements)
    inputs = [(numbers(random, elements) / 64).astype(dtype.name) for _ in range(ranks)]
    results = KERNELS[kernel](inputs)
    expected = claimed(found, inputs)
    whole = [np.concatenate(results)] if collective is Collective.ReduceScatter else results
    assert all(result.tobytes() == expected.tobytes() for result in whole)


def test_what_is_not_claimed_says_why() -> None:
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    assert "the switch adds" in str(step_orders.symmetric_not_claimed("AllReduce_RSxLDMC_AGxSTMC", request))
    assert "whose warp adds it" in str(step_orders.symmetric_not_claimed("AllReduce_RSxLD_AGxST", request))
    assert step_orders.symmetric_not_claimed(None, request) == step_orders.NOT_DERIVED
    average = Request(Collective.AllReduce, DataType.float32, Op.avg)
    assert step_orders.symmetric_not_claimed("AllReduce_AGxLL_R", average) == "sums are derived, not avg"

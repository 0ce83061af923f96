"""Terms: equal exactly where additions of floating-point numbers have the same bits, but for chance."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.drawn_works import numbers
from tuner.emulator.steps.orders import Term, add, add_all, of_ring, of_tree, ranks_of, text

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

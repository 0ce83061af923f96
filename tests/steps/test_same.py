"""Elements that are added in the same order, found by comparing all of them one by one."""

import numpy as np
import pytest

from tests.support import drawn_works
from tuner.base.names import DataType
from tuner.emulator.connect import summarize
from tuner.emulator.steps.orders import Orders, Term, at_offsets, in_rows, orders


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

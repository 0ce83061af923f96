"""Whether elements of two calls, or of different places of one, are added in the same order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.base.numerics import IntArray
from tuner.emulator.steps.addition_order import Term
from tuner.emulator.steps.orders import Orders


@dataclass(frozen=True, slots=True)
class Difference:
    """The first element that is added in two ways: its offset in each of two calls, and both orders."""

    calls: tuple[int, int]  # places among the calls that were compared
    offsets: tuple[int, int]  # elements
    terms: tuple[Term, Term]


def at_offsets(calls: Sequence[Orders], parts: int = 1) -> Difference | None:
    """Where elements at the same offset differ; those are looked at that all calls compared have.

    ``parts``: of as many parts of the buffer, each rank's result of a ReduceScatter, offsets are from their starts.
    """
    first = calls[0]
    for place, other in enumerate(calls[1:], 1):
        for part in range(parts):
            begins = part * first.count // parts, part * other.count // parts
            starts = np.union1d(first.starts - begins[0], other.starts - begins[1])
            inside = starts[(starts > 0) & (starts < min(first.count, other.count) // parts)]
            for offset, own, term in _pairs(first, other, np.append(0, inside), begins):
                if own != term:
                    return Difference((0, place), (begins[0] + offset, begins[1] + offset), (own, term))
    return None


def _pairs(
    first: Orders, other: Orders, offsets: IntArray, begins: tuple[int, int]
) -> Iterator[tuple[int, Term, Term]]:
    """Each pair of terms that occurs at one of the offsets once, with the first offset that has it."""
    pairs = np.stack([first.at(begins[0] + offsets), other.at(begins[1] + offsets)])
    found, places = np.unique(pairs, axis=1, return_index=True)
    for (own, term), place in sorted(zip(found.T, places, strict=True), key=lambda each: int(each[1])):
        yield int(offsets[place]), first.terms[own], other.terms[term]


def in_rows(calls: Sequence[Orders], row: int) -> Difference | None:
    """Where elements of one column differ, whatever row they are in; ``row`` is its number of elements.

    Each call has whole rows, one after the other.
    """
    starts = np.unique(np.concatenate([each.starts % row for each in calls]))
    columns = np.unique(np.append(starts, 0))
    known: dict[int, tuple[int, int, Term]] = {}
    for place, call in enumerate(calls):
        for column, offset, term in _in_columns(call, row, columns):
            own = known.setdefault(column, (place, offset, term))
            if own[2] != term:
                return Difference((own[0], place), (own[1], offset), (own[2], term))
    return None


def _in_columns(call: Orders, row: int, columns: IntArray) -> Iterable[tuple[int, int, Term]]:
    """Each term that occurs in a column, once, with the first offset there; columns are where orders may change."""
    rows = np.arange(call.count // row, dtype=np.int64)
    for column in columns:
        offsets = rows * row + column
        which = call.at(offsets)
        numbers, places = np.unique(which, return_index=True)
        for number, place in zip(numbers, places, strict=True):
            yield int(column), int(offsets[place]), call.terms[number]

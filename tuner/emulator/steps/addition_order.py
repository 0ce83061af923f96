"""The order in which the numbers of one element are added, as a value that is equal where the bits are.

A term is a rank, which stands for its own number, or what is added from left to right: ``(0, 1, 2)`` is (x0 + x1) + x2,
and ``(0, 1, (2, 3))`` is (x0 + x1) + (x2 + x3). Floating-point addition is commutative but not associative, so that
a + b and b + a are one term here, while (a + b) + c and a + (b + c) are two.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias, Union

MOST_RANKS = 16  # whose order is shown in full
Term: TypeAlias = Union[int, tuple["Term", ...]]  # noqa: UP007  a name that is in its own definition


def add(left: Term, right: Term) -> Term:
    """The term of ``left + right``, the same for ``right + left``."""
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right), max(left, right)
    if isinstance(left, int) or (not isinstance(right, int) and _place(left) > _place(right)):
        left, right = right, left
    return (*left, right) if isinstance(left, tuple) else (left, right)


def add_all(terms: Iterable[Term]) -> Term:
    """The term of adding from left to right. Errors: TypeError for no terms."""
    (total, *others) = terms
    for each in others:
        total = add(total, each)
    return total


def ranks_of(term: Term) -> tuple[int, ...]:
    """The ranks whose numbers are added, from left to right."""
    found: list[int] = []
    waiting = [term]
    while waiting:
        each = waiting.pop()
        if isinstance(each, int):
            found.append(each)
        else:
            waiting.extend(reversed(each))
    return tuple(found)


def text(term: Term) -> str:
    """The term for people: ``0 + 1 + (2 + 3)``; without brackets it is added from left to right."""
    if isinstance(term, int):
        return str(term)
    return " + ".join(str(each) if isinstance(each, int) else f"({text(each)})" for each in term)


def short(words: str) -> str:
    """The text of an order, of many ranks only the first and the last of them."""
    each = words.split(" + ")
    return words if len(each) <= MOST_RANKS else " + ".join([*each[:8], "...", *each[-3:]])


def of_ring(ring: Sequence[int], last: int) -> Term:
    """Added along a ring that ends at the rank at place ``last``."""
    first, *others = (*ring[last + 1 :], *ring[: last + 1])
    if not others:
        return first
    return min(first, others[0]), max(first, others[0]), *others[1:]  # what add_all gives, in one go


def of_tree(children: Sequence[Sequence[int]], root: int) -> Term:
    """Added up a tree, ``children`` by rank: each rank adds to its own number what its children sent, in their order.

    Source: recvReduceSend of src/device/prims_simple.h, prims_ll.h and prims_ll128.h, v2.28.9-1.
    """
    order, waiting = [], [root]
    while waiting:  # parents before their children
        order.append(waiting.pop())
        waiting.extend(children[order[-1]])
    sums: dict[int, _Sum] = {}
    for rank in reversed(order):
        total = _Sum(rank, 1, rank)
        for child in children[rank]:
            total = total.plus(sums.pop(child))
        sums[rank] = total
    return sums[root].term


class _Sum(NamedTuple):
    """A term, of how many ranks it is, and the first of them."""

    term: Term
    ranks: int
    first: int

    def plus(self, other: "_Sum") -> "_Sum":
        """What :func:`add` makes of both, whose ranks are others, without looking for them again."""
        left, right = self, other
        if isinstance(left.term, int) and isinstance(right.term, int):
            first, last = min(left.term, right.term), max(left.term, right.term)
            return _Sum((first, last), 2, first)
        behind = not isinstance(right.term, int) and (-left.ranks, left.first) > (-right.ranks, right.first)
        if isinstance(left.term, int) or behind:
            left, right = right, left
        assert isinstance(left.term, tuple)
        return _Sum((*left.term, right.term), left.ranks + right.ranks, left.first)


def _place(term: Term) -> tuple[int, tuple[int, ...]]:
    """The one of two sums that stands first: the one of more ranks, else the one whose first rank is less."""
    ranks = ranks_of(term)
    return -len(ranks), ranks

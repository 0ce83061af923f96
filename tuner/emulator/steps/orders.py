"""The order in which the ranks' numbers are added for each element: ranges of elements, and the order in each range.

A term is a rank, which stands for that rank's number, or a tuple of terms that are added from left to right: ``(0, 1,
2)`` is (x0 + x1) + x2, and ``(0, 1, (2, 3))`` is (x0 + x1) + (x2 + x3). Floating-point addition is commutative but not
associative, so a + b and b + a are one term here, while (a + b) + c and a + (b + c) are two: equal terms mean equal
bits.

Offsets count elements of the whole buffer that is reduced, which has all ranks' parts in turn for ReduceScatter.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, Union

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Collective, DataType, Op
from tuner.base.numerics import IntArray
from tuner.emulator.connect import Across
from tuner.emulator.launches import ChannelShare, Work
from tuner.emulator.request import FP8, Request
from tuner.emulator.steps import pat
from tuner.emulator.steps.loops import loops

MOST_RANKS = 16  # orders of at most this number of ranks are shown in full
Term: TypeAlias = Union[int, tuple["Term", ...]]  # noqa: UP007  a name that is in its own definition


def add(left: Term, right: Term) -> Term:
    """The term of ``left + right``, the same for ``right + left``."""
    return _Sum.of(left).plus(_Sum.of(right)).term


def add_all(terms: Iterable[Term]) -> Term:
    """The term of adding from left to right. TypeError if there are no terms."""
    (total, *others) = map(_Sum.of, terms)
    for each in others:
        total = total.plus(each)
    return total.term


def ranks_of(term: Term) -> tuple[int, ...]:
    """The ranks whose numbers a term adds, from left to right."""
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
    """The text of an order; with many ranks, only the first and the last of them."""
    each = words.split(" + ")
    return words if len(each) <= MOST_RANKS else " + ".join([*each[:8], "...", *each[-3:]])


def of_ring(ring: Sequence[int], last: int) -> Term:
    """The term of adding along a ring that ends at the rank at place ``last``."""
    first, *others = (*ring[last + 1 :], *ring[: last + 1])
    if not others:
        return first
    return min(first, others[0]), max(first, others[0]), *others[1:]  # the same result as add_all, in one go


def of_tree(children: Sequence[Sequence[int]], root: int) -> Term:
    """The term of adding up a tree; ``children`` is indexed by rank.

    Each rank adds what its children send, in their order, to its own number.

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
    """A term, its number of ranks, and the first of them."""

    term: Term
    ranks: int
    first: int

    @classmethod
    def of(cls, term: Term) -> "_Sum":
        ranks = ranks_of(term)
        return cls(term, len(ranks), ranks[0])

    def plus(self, other: "_Sum") -> "_Sum":
        """Sum of two terms with different ranks.

        The term with more ranks comes first; of equally many, that with the lower first rank.
        """
        left, right = self, other
        if isinstance(left.term, int) and isinstance(right.term, int):
            first, last = min(left.term, right.term), max(left.term, right.term)
            return _Sum((first, last), 2, first)
        behind = not isinstance(right.term, int) and (-left.ranks, left.first) > (-right.ranks, right.first)
        if isinstance(left.term, int) or behind:
            left, right = right, left
        assert isinstance(left.term, tuple)
        return _Sum((*left.term, right.term), left.ranks + right.ranks, left.first)


LAST_READ = "2.32.3"  # the last release whose device code was read
REDUCING = (Collective.AllReduce, Collective.ReduceScatter, Collective.Reduce)
BY_SWITCH = "the switch adds (NVLink SHARP); NVIDIA does not say in which order"
BY_NETWORK = "the network adds (SHARP); NVIDIA does not say in which order"
NOT_CLAIMED = {
    Algorithm.NVLS: BY_SWITCH,
    Algorithm.NVLSTree: BY_SWITCH,
    Algorithm.CollNetDirect: BY_NETWORK,
    Algorithm.CollNetChain: BY_NETWORK,
}
INTEGERS = (
    *(DataType.int8, DataType.uint8, DataType.int32),
    *(DataType.uint32, DataType.int64, DataType.uint64),
)


@dataclass(frozen=True, slots=True)
class Orders:
    """Ranges of elements, and the term by which each range is added.

    Range i begins at element number ``starts[i]`` and ends before the next one; the last ends at ``count``.

    The elements of range i are added as ``terms[which[i]]`` says; neighbouring ranges have different terms. Arrays are
    [range].
    """

    count: int
    starts: IntArray
    which: IntArray
    terms: tuple[Term, ...]
    sums_in: DataType  # the type to which sums are rounded after each addition; at the end they get the call's type

    def at(self, offsets: IntArray) -> IntArray:
        """The number of the term, an index into ``terms``, of each element of ``offsets``, [element]."""
        found: IntArray = self.which[np.searchsorted(self.starts, offsets, side="right") - 1]
        return found

    def ends(self) -> IntArray:
        """The number of the first element behind each range, [range]."""
        return np.append(self.starts[1:], self.count)


def any_order(dtype: DataType, op: Op) -> str | None:
    """Reason that the bits of the result do not depend on the order; None if they do."""
    if dtype in INTEGERS:
        return "integers: every order gives the same bits"
    if op in (Op.min, Op.max):
        return f"{op.name}: every order gives the same number (NaN and the sign of zero left aside)"
    return None


def orders(work: Work, across: Across) -> Orders:
    """The orders of one call by itself. ValueError if no order is claimed; :func:`not_claimed` says why."""
    _check_claimed(work, across)
    ranks = sum(map(len, across.ranks_of_nodes))
    numbers: dict[Term, int] = {}
    firsts, counts, which = [], [], []
    of_share: dict[tuple[object, ...], list[tuple[int, int, Term]]] = {}
    for share in work.shares:
        shape = _shape(work, share, across)
        if shape not in of_share:
            of_share[shape] = list(_terms(work, share, across, ranks))
        of_channel = list(loops(work, share, ranks))
        for part, moved, term in of_share[shape]:
            number = numbers.setdefault(term, len(numbers))
            for each in of_channel:
                first, elements = each.chunks(part)
                firsts.append(first + moved * work.count)
                counts.append(elements)
                which.append(np.full(each.times, number, np.int64))
    whole = work.count * (ranks if work.collective is Collective.ReduceScatter else 1)
    ranges = np.concatenate(firsts), np.concatenate(counts), np.concatenate(which)
    return _merged(whole, work.dtype, tuple(numbers), ranges)


def terms_of_every_size(work: Work, across: Across) -> tuple[Term, ...] | None:
    """The order that every element has at any size, on the channels of the work; None if it depends on the size.

    For ReduceScatter, one order for each rank's part. ValueError if no order is claimed, as in :func:`orders`.
    """
    _check_claimed(work, across)
    ranks = sum(map(len, across.ranks_of_nodes))
    found: dict[int, set[Term]] = {}
    for share in {_shape(work, share, across): share for share in work.shares}.values():
        for _, moved, term in _terms(work, share, across, ranks):
            found.setdefault(moved, set()).add(term)
    if any(len(terms) > 1 for terms in found.values()):
        return None
    return tuple(term for _, terms in sorted(found.items()) for term in terms)


def not_claimed(work: Work, across: Across) -> str | None:
    """Reason that no order of a call is claimed; None if an order is claimed."""
    if work.algorithm is Algorithm.PAT and not across.pat_peers:
        return f"PAT of several ranks per node: {BY_SWITCH}"
    return NOT_CLAIMED.get(work.algorithm)


def _check_claimed(work: Work, across: Across) -> None:
    if not_claimed(work, across) is not None or work.collective not in REDUCING:
        raise ValueError(f"no order of {work.collective.name} by {work.algorithm.name}")


def _shape(work: Work, share: ChannelShare, across: Across) -> tuple[object, ...]:
    """A key for a channel's orders of addition; channels with the same ring or tree have the same key."""
    if work.algorithm is Algorithm.Tree:
        tree = across.trees[share.channel]
        return tree.parents, tree.children
    if work.algorithm is Algorithm.PAT:
        return (pat.aggregation(work, share, sum(map(len, across.ranks_of_nodes))),)
    return across.rings[share.channel].ranks


def pat_term(work: Work, share: ChannelShare, ranks: int, owner: int) -> Term:
    """Order in which the numbers of a rank's part are added on one channel.

    Each rank begins with its own number and adds what it receives: near distances first, from the farthest on; then far
    ones, from the nearest on, and at a far distance the neighbour's part last.
    """
    apart = pat.aggregation(work, share, ranks).apart
    children: list[list[int]] = [[] for _ in range(ranks)]
    for distance in range(ranks):
        lowest = distance & -distance or 1 << (ranks - 1).bit_length()
        bits = [1 << bit for bit in range(lowest.bit_length() - 1)]
        if distance % apart:
            bits.reverse()
        else:
            near = [bit for bit in bits if 1 < bit < apart]
            bits = [*reversed(near), *(bit for bit in bits if bit >= apart), *(bit for bit in bits if bit == 1)]
        children[(owner - distance) % ranks] = [
            (owner - distance - bit) % ranks for bit in bits if distance + bit < ranks
        ]
    return of_tree(children, owner)


def _terms(work: Work, share: ChannelShare, across: Across, ranks: int) -> Iterator[tuple[int, int, Term]]:
    """Kinds of chunks: each with its part in a loop, the rank that owns this part of the buffer, and how it is added.

    Source: runRing and runTreeSplit, src/device/all_reduce.h; runRing, reduce_scatter.h and reduce.h, v2.28.9-1; for
    PAT see :mod:`tuner.emulator.steps.pat`.
    """
    if work.algorithm is Algorithm.Tree:
        tree = across.trees[share.channel]
        yield 0, 0, of_tree(tree.children, tree.parents.index(None))
        return
    if work.algorithm is Algorithm.PAT:
        yield from ((0, owner, pat_term(work, share, ranks, owner)) for owner in range(ranks))
        return
    ring = across.rings[share.channel].ranks
    if work.collective is Collective.Reduce:
        yield 0, 0, of_ring(ring, ring.index(work.root))
    for place in range(ranks):
        if work.collective is Collective.AllReduce:  # rank 0 is at place 0, and the chunk of a place ends there
            yield place, 0, of_ring(ring, place)
        elif work.collective is Collective.ReduceScatter:
            yield 0, ring[place], of_ring(ring, place)


def _merged(whole: int, dtype: DataType, terms: Sequence[Term], ranges: tuple[IntArray, IntArray, IntArray]) -> Orders:
    """The ranges sorted, and neighbours with the same term merged."""
    first, _, which = (each[ranges[1] > 0] for each in ranges)
    by_first = np.argsort(first, kind="stable")
    first, which = first[by_first], which[by_first]
    begins = np.append(True, which[1:] != which[:-1])
    used, numbers = np.unique(which[begins], return_inverse=True)
    return Orders(whole, first[begins], numbers.astype(np.int64), tuple(terms[number] for number in used), dtype)


@dataclass(frozen=True, slots=True)
class OrderDifference:
    """The first element that two calls add in different orders: its offset in each call, and both orders."""

    calls: tuple[int, int]  # places among the calls that were compared
    offsets: tuple[int, int]  # elements
    terms: tuple[Term, Term]


def at_offsets(calls: Sequence[Orders], parts: int = 1) -> OrderDifference | None:
    """A difference between elements at the same offset, among the offsets that both of two compared calls have.

    ``parts``: the number of equal parts of the buffer, if each part is one rank's result of a ReduceScatter. Offsets
    are then counted from the start of the part.
    """
    first = calls[0]
    for place, other in enumerate(calls[1:], 1):
        for part in range(parts):
            begins = part * first.count // parts, part * other.count // parts
            starts = np.union1d(first.starts - begins[0], other.starts - begins[1])
            inside = starts[(starts > 0) & (starts < min(first.count, other.count) // parts)]
            for offset, own, term in _pairs(first, other, np.append(0, inside), begins):
                if own != term:
                    return OrderDifference((0, place), (begins[0] + offset, begins[1] + offset), (own, term))
    return None


def _pairs(
    first: Orders, other: Orders, offsets: IntArray, begins: tuple[int, int]
) -> Iterator[tuple[int, Term, Term]]:
    """Each pair of terms that occurs at one of the offsets, once, with the first offset at which it does."""
    pairs = np.stack([first.at(begins[0] + offsets), other.at(begins[1] + offsets)])
    found, places = np.unique(pairs, axis=1, return_index=True)
    for (own, term), place in sorted(zip(found.T, places, strict=True), key=lambda each: int(each[1])):
        yield int(offsets[place]), first.terms[own], other.terms[term]


def in_rows(calls: Sequence[Orders], row: int) -> OrderDifference | None:
    """A difference between elements of the same column, whichever rows they are in; a row has ``row`` elements.

    Each call has whole rows, one after the other.
    """
    starts = np.unique(np.concatenate([each.starts % row for each in calls]))
    columns = np.unique(np.append(starts, 0))
    known: dict[int, tuple[int, int, Term]] = {}
    for place, call in enumerate(calls):
        for column, offset, term in _in_columns(call, row, columns):
            own = known.setdefault(column, (place, offset, term))
            if own[2] != term:
                return OrderDifference((own[0], place), (own[1], offset), (own[2], term))
    return None


def _in_columns(call: Orders, row: int, columns: IntArray) -> Iterable[tuple[int, int, Term]]:
    """Each term that occurs in a column, once, with its first offset there; at ``columns`` orders may change."""
    rows = np.arange(call.count // row, dtype=np.int64)
    for column in columns:
        offsets = rows * row + column
        which = call.at(offsets)
        numbers, places = np.unique(which, return_index=True)
        for number, place in zip(numbers, places, strict=True):
            yield int(column), int(offsets[place]), call.terms[number]


IN_RANK_ORDER = ("AllReduce_AGxLL_R", "AllReduce_AGxLLMC_R", "ReduceScatter_LL")  # all ranks add in the same order
FROM_OWN_RANK = ("ReduceScatter_LD", "ReduceScatter_TmaLD")  # each rank adds its result beginning with its own number
BY_WARPS = "an element begins at the rank whose warp adds it, which is not derived here"
NOT_DERIVED = "its order is not derived here"
SYMMETRIC_NOT_CLAIMED = {
    "AllReduce_RSxLD_AGxST": BY_WARPS,
    "AllReduce_RSxLDMC_AGxSTMC": BY_SWITCH,
    "ReduceScatter_LDMC": BY_SWITCH,
}
KEPT_IN_FLOAT32 = (DataType.float16, DataType.bfloat16, *FP8)  # ncclSymkAccumType


def symmetric_not_claimed(kernel: str | None, request: Request) -> str | None:
    """Reason that no order of a call on a symmetric kernel is claimed; None if an order is claimed."""
    if kernel not in (*IN_RANK_ORDER, *FROM_OWN_RANK):
        return SYMMETRIC_NOT_CLAIMED.get(kernel or "", NOT_DERIVED)
    return None if request.op is Op.sum else f"sums are derived, not {request.op.name}"


def symmetric_orders(kernel: str, request: Request, ranks: int, elements: int) -> Orders:
    """The orders of a call on a kernel with a claimed order; ``elements``: of the whole buffer."""
    rank_order = tuple(range(ranks))
    parts = ranks if request.collective is Collective.ReduceScatter else 1
    terms: list[Term] = [add_all(rank_order)] * parts
    if kernel in FROM_OWN_RANK:
        terms = [add_all((*rank_order[own:], *rank_order[:own])) for own in rank_order]
    starts, which, numbers = [0], [0], {terms[0]: 0}
    for part, term in enumerate(terms[1:], 1):
        if term != terms[part - 1]:
            starts.append(part * elements // parts)
            which.append(numbers.setdefault(term, len(numbers)))
    sums_in = DataType.float32 if request.dtype in KEPT_IN_FLOAT32 else request.dtype
    return Orders(elements, np.array(starts, np.int64), np.array(which, np.int64), tuple(numbers), sums_in)

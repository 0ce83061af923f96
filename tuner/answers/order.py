"""The order in which a call adds the numbers of each element; :mod:`tuner.answers.same_bits` compares calls."""

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from tuner.answers.alone import PAT_READ_FROM, Alone, calls_alone, pat_not_read
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.names import DataType
from tuner.base.records import json_form
from tuner.emulator import ranges
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.selection import Selection
from tuner.emulator.steps import orders as of_works
from tuner.emulator.steps.orders import (
    LAST_READ,
    REDUCING,
    Orders,
    Term,
    any_order,
    orders,
    symmetric_not_claimed,
    symmetric_orders,
    terms_of_every_size,
    text,
)
from tuner.release.reader import parts_of
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.answers.same_bits import SameBits


@dataclass(frozen=True, slots=True)
class ElementClass:
    """Elements that are added in the same order. ``ranges`` are pairs: the first element, and the element after the
    last.

    ``term`` is a rank, or a list of terms that are added from left to right.
    """

    term: Term
    elements: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def order(self) -> str:
        """The order as a sum such as ``1 + 2 + 3 + 0``; without brackets it is added from left to right."""
        return text(self.term)


@dataclass(frozen=True, slots=True)
class CallOrder:
    """One call of ``bytes`` (NCCL's nBytes). If the order cannot change the bits of the result, ``any_order`` says why.

    If the order is not known there are no classes, and ``not_claimed`` says why.
    """

    bytes: int
    nccl: str
    ranks: int
    elements: int  # of the buffer that is reduced
    pick: str
    channels: int
    classes: tuple[ElementClass, ...]
    any_order: str | None = None
    not_claimed: str | None = None
    device_code_read: bool = True  # else it is taken to add as that of the last release whose device code was read
    sums_in: DataType | None = None  # what sums are rounded to after each addition; to the call's type at the end
    found: Orders | None = field(default=None, metadata=json_form(omitted=True))


@dataclass(frozen=True, slots=True)
class OrderAnswer:
    """The orders of some calls and, if that was asked, whether the calls give the same bits."""

    calls: tuple[CallOrder, ...]
    same_bits: "SameBits | None" = field(default=None, metadata=json_form(optional=True))


def of_calls(
    scenario: Scenario, request: Request, sizes: Sequence[int], root: int = 0, together: bool = False
) -> tuple[CallOrder, ...]:
    """The order of additions for each size (nBytes). ``together``: the calls form one group.

    BadInput if the collective adds nothing, the root is not a rank, or nodes pick differently. NoAlgorithm if nothing
    can run.
    """
    check_adds(request)
    indifferent = any_order(request.dtype, request.op)
    calls = calls_alone(scenario, request, sizes, root, together)
    return tuple(_of_call(scenario, request, size, call, indifferent) for size, call in zip(sizes, calls, strict=True))


def device_code_read(nccl: str) -> bool:
    """Whether the order of a release is known from its device code; later releases are assumed to add in the same
    order.
    """
    return parts_of(nccl.partition("@")[0]) <= parts_of(LAST_READ)


def check_adds(request: Request) -> None:
    """Raises BadInput for collectives that only move numbers."""
    if request.collective not in REDUCING:
        adding = one_of([each.name for each in REDUCING])
        raise BadInput(f"{request.collective.name} adds no numbers, so its bits are always the same; {adding}")


def not_claimed(call: Alone | NonClassicPath, request: Request) -> str | None:
    """Why no order is claimed for a call; None if one is claimed."""
    if isinstance(call, NonClassicPath):
        return symmetric_not_claimed(call.kernel, request)
    if pat_not_read(call):
        return f"the steps of PAT are only known from NCCL {PAT_READ_FROM} on"
    return of_works.not_claimed(call.work, call.across)


def _of_call(
    scenario: Scenario, request: Request, size: int, call: Alone | NonClassicPath, indifferent: str | None
) -> CallOrder:
    whole = size // request.dtype.size_bytes
    pick = (call.pick, len(call.work.shares)) if isinstance(call, Alone) else (call.name, call.blocks)
    head = size, scenario.nccl, scenario.ranks, whole, *pick
    why = not_claimed(call, request)
    if why is not None:
        return CallOrder(*head, (), indifferent, why)
    if isinstance(call, Alone):
        found = orders(call.work, call.across)
    else:
        found = symmetric_orders(call.kernel or "", request, scenario.ranks, whole)
    read = device_code_read(scenario.nccl)
    return CallOrder(*head, _classes(found), indifferent, None, read, found.sums_in, found)


def _classes(found: Orders) -> tuple[ElementClass, ...]:
    """The classes of elements, in the order of their first elements."""
    by_term = np.argsort(found.which, kind="stable")
    numbers, begins = np.unique(found.which[by_term], return_index=True)
    starts, ends = found.starts[by_term], found.ends()[by_term]
    classes = [
        ElementClass(
            found.terms[number], int((end - first).sum()), tuple(zip(first.tolist(), end.tolist(), strict=True))
        )
        for number, first, end in zip(numbers, np.split(starts, begins[1:]), np.split(ends, begins[1:]), strict=True)
    ]
    return tuple(sorted(classes, key=lambda each: each.ranges[0]))


SAME, BY_SIZE, NOT_CLAIMED = "the same", "by size", "not claimed"


@dataclass(frozen=True, slots=True)
class OrderRange:
    """A range of sizes (nBytes), and the order in which calls of these sizes add.

    If every element is added in the same order at every size, ``order`` is "the same", and ``terms`` has the order; for
    ReduceScatter it has one order for each rank's result. It is empty if the order does not change the bits; ``why``
    then says why. If sums are not rounded to the call's type after each addition, ``sums_in`` is the type to which they
    are rounded. If the order is not the same everywhere in the range, ``order`` is "by size"; if it is not known, "not
    claimed".
    """

    from_bytes: int
    to_bytes: int
    picks: tuple[str, ...]
    order: str
    terms: tuple[Term, ...]
    why: str | None = field(default=None, metadata=json_form(optional=True))
    sums_in: DataType | None = field(default=None, metadata=json_form(optional=True))

    @property
    def bits(self) -> tuple[object, ...]:
        """Everything in this record that determines the bits of a result; neighbouring ranges in which it is equal are
        merged.
        """
        return self.order, self.terms, self.why, self.sums_in


def order_ranges(scenario: Scenario, request: Request, ends: tuple[int | None, int], root: int = 0) -> list[OrderRange]:
    """The ranges, without gaps, from the first size to the last; neighbours with the same order are one range.

    For calls that may bypass the algorithms, the number of channels changes too often to follow from some size on; the
    last range ends before that size. BadInput for a collective that adds nothing and for what is not emulated.
    NoAlgorithm if nothing can run.
    """
    check_adds(request)
    merged = []
    for _, alike in groupby(_ranges(scenario, request, ends, root), lambda each: each.bits):
        ranges = list(alike)
        picks = tuple(dict.fromkeys(pick for each in ranges for pick in each.picks))
        first, last = ranges[0], ranges[-1]
        merged.append(replace(first, to_bytes=last.to_bytes, picks=picks))
    return merged


def _ranges(scenario: Scenario, request: Request, ends: tuple[int | None, int], root: int) -> Iterator[OrderRange]:
    """Yields ranges within sizes that are launched in the same way, on the same channels."""
    found = ranges.answers(Selection(scenario.communicator()), request, *ends).records(request)
    unit = request.unit_bytes(scenario.ranks)
    firsts = [(-(-each.from_bytes // unit) * unit, each) for each in found]
    sizes = [(size, each) for size, each in firsts if size <= each.to_bytes]  # of those that a call can have
    if not sizes:
        low, high = found[0].from_bytes, found[-1].to_bytes
        raise BadInput(f"{request.title} has no size from {low} to {high} bytes: sizes are multiples of {unit}")
    indifferent = any_order(request.dtype, request.op)
    calls = calls_alone(scenario, request, [size for size, _ in sizes], root)
    for (size, each), call in zip(sizes, calls, strict=True):
        of_range = size, each.to_bytes, (each.name,)
        why = not_claimed(call, request)
        if indifferent is not None:
            yield OrderRange(*of_range, SAME, (), indifferent)
        elif why is not None:
            yield OrderRange(*of_range, NOT_CLAIMED, (), why)
        elif isinstance(call, Alone):
            terms = terms_of_every_size(call.work, call.across)
            yield OrderRange(*of_range, BY_SIZE if terms is None else SAME, terms or ())
        else:
            summed = symmetric_orders(call.kernel or "", request, scenario.ranks, size // request.dtype.size_bytes)
            sums_in = None if summed.sums_in is request.dtype else summed.sums_in
            yield OrderRange(*of_range, SAME, summed.terms, None, sums_in)

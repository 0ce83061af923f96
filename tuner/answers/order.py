"""In which order a call adds the numbers of each element, as records; :mod:`tuner.answers.same_bits` compares calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tuner import release
from tuner.answers.alone import PAT_READ_FROM, Alone, calls_alone, pat_not_read
from tuner.base.errors import BadInput, one_of
from tuner.base.names import DataType
from tuner.base.records import json_form
from tuner.emulator.call_kind import NonClassicPath
from tuner.emulator.request import Request
from tuner.emulator.steps import orders as of_works
from tuner.emulator.steps.addition_order import Term, text
from tuner.emulator.steps.orders import (
    LAST_READ,
    REDUCING,
    Orders,
    any_order,
    orders,
    symmetric_not_claimed,
    symmetric_orders,
)
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.answers.same_bits import SameBits


@dataclass(frozen=True, slots=True)
class ElementClass:
    """Elements that are added in one order. ``ranges`` are of first elements and of those behind the last.

    ``term``: a rank, or a list whose items are added from left to right.
    """

    term: Term
    elements: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def order(self) -> str:
        """``1 + 2 + 3 + 0``; without brackets it is added from left to right."""
        return text(self.term)


@dataclass(frozen=True, slots=True)
class CallOrder:
    """One call of ``bytes`` (NCCL's nBytes). ``any_order`` says why its bits do not depend on the order, if so.

    Without a claim there are no classes, and ``not_claimed`` says why.
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
    """The orders of some calls, and whether they give the same bits where that was asked."""

    calls: tuple[CallOrder, ...]
    same_bits: "SameBits | None" = field(default=None, metadata=json_form(optional=True))


def of_calls(
    scenario: Scenario, request: Request, sizes: Sequence[int], root: int = 0, together: bool = False
) -> tuple[CallOrder, ...]:
    """One a size (nBytes); ``together``: of one group.

    Errors: BadInput for what adds nothing; those of :func:`calls_alone`.
    """
    check_adds(request)
    indifferent = any_order(request.dtype, request.op)
    calls = calls_alone(scenario, request, sizes, root, together)
    return tuple(_of_call(scenario, request, size, call, indifferent) for size, call in zip(sizes, calls, strict=True))


def device_code_read(nccl: str) -> bool:
    """Whether the device code of a release was read; that of later ones is taken to add in the same order."""
    return release.names().index(nccl) <= release.names().index(LAST_READ)


def check_adds(request: Request) -> None:
    """BadInput for collectives that move numbers alone."""
    if request.collective not in REDUCING:
        adding = one_of([each.name for each in REDUCING])
        raise BadInput(f"{request.collective.name} adds nothing, so that its bits are always the same; {adding}")


def not_claimed(call: Alone | NonClassicPath, request: Request) -> str | None:
    """Why no order of a call is claimed; None where one is."""
    if isinstance(call, NonClassicPath):
        return symmetric_not_claimed(call.kernel, request)
    if pat_not_read(call):
        return f"PAT's steps were read from NCCL {PAT_READ_FROM} on"
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
    """In the order of their first elements."""
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

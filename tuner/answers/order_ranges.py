"""The ranges of sizes in which the order of additions does not depend on the size."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

from tuner.answers.alone import Alone, calls_alone
from tuner.answers.order import check_adds, not_claimed
from tuner.base.errors import BadInput
from tuner.base.names import DataType
from tuner.base.records import json_form
from tuner.emulator import ranges
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.emulator.steps.addition_order import Term
from tuner.emulator.steps.orders import any_order, symmetric_orders, terms_of_every_size
from tuner.scenario import Scenario

SAME, BY_SIZE, NOT_CLAIMED = "the same", "by size", "not claimed"


@dataclass(frozen=True, slots=True)
class OrderRange:
    """From one size to another (nBytes): ``order`` is "the same" where every element has one order at every size.

    Then ``terms`` has it: one, or for ReduceScatter that of each rank's result; ``sums_in`` is what sums are rounded to
    after each addition, where that is not the call's type. Else "by size" or "not claimed".
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
        """What decides the bits."""
        return self.order, self.terms, self.why, self.sums_in


def order_ranges(scenario: Scenario, request: Request, ends: tuple[int | None, int], root: int = 0) -> list[OrderRange]:
    """The ranges that follow each other from the first size to the last; neighbours of one order are one range.

    They end before sizes at which channels of calls that may bypass the algorithms change too often to be followed.
    Errors: BadInput for what adds nothing; those of :func:`tuner.emulator.ranges.answers` and of
    :func:`calls_alone`.
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
    """Ranges of one launch, whose channels are the same."""
    found = ranges.answers(Selection(scenario.communicator()), request, *ends).records(request)
    unit = request.unit_bytes(scenario.ranks)
    firsts = [(-(-each.from_bytes // unit) * unit, each) for each in found]
    sizes = [(size, each) for size, each in firsts if size <= each.to_bytes]  # of those that a call can have
    if not sizes:
        low, high = found[0].from_bytes, found[-1].to_bytes
        raise BadInput(f"{request.title}: no size from {low} to {high} bytes; valid: multiples of {unit}")
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

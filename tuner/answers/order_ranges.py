"""The ranges of sizes in which the order of additions does not depend on the size."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from tuner.answers.alone import Alone, calls_alone
from tuner.answers.order import check_adds, not_claimed
from tuner.base.names import Algorithm, Protocol
from tuner.base.records import json_form
from tuner.emulator.ranges import launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.steps.orders import any_order, terms_of_every_size
from tuner.steps.terms import Term

SAME, BY_SIZE, NOT_CLAIMED = "the same", "by size", "not claimed"


@dataclass(frozen=True, slots=True)
class OrderRange:
    """From one size to another (nBytes): ``order`` is "the same" where every element has one order at every size.

    Then ``terms`` has it: one, or for ReduceScatter that of each rank's result. Else "by size" or "not claimed".
    """

    from_bytes: int
    to_bytes: int
    picks: tuple[str, ...]
    order: str
    terms: tuple[Term, ...]
    why: str | None = field(default=None, metadata=json_form(optional=True))


def order_ranges(scenario: Scenario, request: Request, ends: tuple[int | None, int], root: int = 0) -> list[OrderRange]:
    """The ranges that follow each other from the first size to the last; neighbours of one order are one range.

    Errors: BadInput for what adds nothing; those of :func:`tuner.emulator.ranges.launches` and of :func:`calls_alone`.
    """
    check_adds(request)
    merged = []
    for _, alike in groupby(_ranges(scenario, request, ends, root), lambda each: (each.order, each.terms, each.why)):
        ranges = list(alike)
        picks = tuple(dict.fromkeys(pick for each in ranges for pick in each.picks))
        first, last = ranges[0], ranges[-1]
        merged.append(OrderRange(first.from_bytes, last.to_bytes, picks, first.order, first.terms, first.why))
    return merged


def _ranges(scenario: Scenario, request: Request, ends: tuple[int | None, int], root: int) -> Iterator[OrderRange]:
    """Ranges of one launch, whose channels are the same."""
    found = launches(Selection(scenario.communicator()), request, *ends)
    unit = request.unit_bytes(scenario.ranks)
    firsts = {row: -(-int(size) // unit) * unit for row, size in enumerate(found.from_bytes)}
    sizes = {row: size for row, size in firsts.items() if size <= found.to_bytes[row]}  # of those that a call can have
    indifferent = any_order(request.dtype, request.op)
    for row, call in zip(sizes, calls_alone(scenario, request, list(sizes.values()), root), strict=True):
        pick = f"{Algorithm(found.algorithm[row]).name}/{Protocol(found.protocol[row]).name}"
        of_range = sizes[row], int(found.to_bytes[row]), (pick,)
        why = not_claimed(call, request)
        if indifferent is not None:
            yield OrderRange(*of_range, SAME, (), indifferent)
        elif why is not None or not isinstance(call, Alone):
            yield OrderRange(*of_range, NOT_CLAIMED, (), why)
        else:
            terms = terms_of_every_size(call.work, call.across)
            yield OrderRange(*of_range, BY_SIZE if terms is None else SAME, terms or ())

"""Tells whether calls that differ in size, in a row's place, in the release or in their nodes give the same bits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tuner.answers.order import CallOrder, of_calls
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError
from tuner.base.names import Algorithm, Collective, DataType
from tuner.base.numerics import shortest
from tuner.base.spelling import option
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.emulator.steps import orders
from tuner.emulator.steps.orders import short, text
from tuner.scenario import Scenario

YES, NO, NOT_CLAIMED = "yes", "no", "not claimed"
FEWER_CHANNELS = "NCCL_MAX_NCHANNELS"
BESIDES: tuple[Mapping[str, str], ...] = (  # what may be set with an algorithm
    {},
    {"NCCL_PROTO": "Simple"},
    {FEWER_CHANNELS: "1"},
    {"NCCL_PROTO": "Simple", FEWER_CHANNELS: "1"},
)


@dataclass(frozen=True, slots=True)
class SameBitsQuery:
    """A question about a call of ``sizes`` in bytes. With ``row_bytes``, rows are compared wherever they are; else
    elements at equal offsets.
    """

    request: Request
    sizes: tuple[int, ...]
    row_bytes: int | None = None
    root: int = 0
    together: bool = False  # whether the calls are those of one group

    def of_calls(self, scenario: Scenario) -> tuple[CallOrder, ...]:
        """The orders of the question's calls on one communicator."""
        return of_calls(scenario, self.request, self.sizes, self.root, self.together)

    @property
    def row(self) -> int | None:
        """How many elements a row has; None if elements are compared at equal offsets, not in rows."""
        return None if self.row_bytes is None else self.row_bytes // self.request.dtype.size_bytes


@dataclass(frozen=True, slots=True)
class Setting:
    """Variables of NCCL with which the answer becomes yes. ``time_us`` and ``time_us_without`` are NCCL's predictions
    for the last size, with these variables and without.

    ``time_us`` is None if NCCL's model cannot predict what the variables cost, because the model takes the number of
    channels from the graphs.
    """

    variables: Mapping[str, str]
    picks: tuple[str, ...]
    time_us: float | None
    time_us_without: float | None
    others_fail: tuple[str, ...]  # collectives that NCCL cannot run with it


@dataclass(frozen=True, slots=True)
class SameBits:
    """Whether calls give the same bits: ``answer`` is yes, no or not claimed; ``settings`` are settings with which the
    answer would become yes.
    """

    answer: str
    because: str
    settings: tuple[Setting, ...] = ()


def ask(question: SameBitsQuery, scenarios: Sequence[Scenario], settings: bool = True) -> SameBits:
    """Compares the calls of all sizes on each scenario. ``settings``: whether to look for variables that make the
    answer yes.

    BadInput if rows do not divide a size, if the collective adds nothing, and for what is not emulated.
    """
    if question.row is not None and any(size % (question.row_bytes or 1) for size in question.sizes):
        raise BadInput(f"{option('row_bytes')} {question.row_bytes}: each size has to be a multiple of it")
    calls = [call for one in scenarios for call in question.of_calls(one)]
    answer = of_orders(question, calls)
    if answer.answer == YES or not settings or len({call.ranks for call in calls}) > 1:
        return answer
    return replace(answer, settings=tuple(_helping(question, scenarios)))


def of_orders(question: SameBitsQuery, calls: Sequence[CallOrder]) -> SameBits:
    """Compares calls whose orders are known."""
    ranks = list(dict.fromkeys(call.ranks for call in calls))
    if len(ranks) > 1:
        return SameBits(NO, f"{ranks[0]} numbers are added in one and {ranks[1]} in the other")
    if calls[0].any_order is not None:
        return SameBits(YES, calls[0].any_order)
    for call in calls:
        if call.found is None:
            return SameBits(NOT_CLAIMED, f"{_named(call)}, {call.pick}: {call.not_claimed}")
    if (roundings := _roundings(calls, question.request.dtype)) is not None:
        return SameBits(NO, roundings)
    found = [call.found for call in calls if call.found is not None]
    if question.row is None:
        scatters = question.request.collective is Collective.ReduceScatter
        difference = orders.at_offsets(found, ranks[0] if scatters else 1)
    else:
        difference = orders.in_rows(found, question.row)
    if difference is None:
        distinct = {call.classes[0].order for call in calls if len(call.classes) == 1}
        if len(distinct) == 1 and all(len(call.classes) == 1 for call in calls):
            return SameBits(YES, f"every element is added as {short(distinct.pop())}")
        return SameBits(YES, "each element is added in the same order in all of them")
    one, other = (calls[place] for place in difference.calls)
    ways = [short(text(term)) for term in difference.terms]
    where = difference.offsets
    if one is other:
        return SameBits(NO, f"in {_named(one)} element {where[0]} is {ways[0]}, element {where[1]} is {ways[1]}")
    return SameBits(
        NO, f"element {where[0]} of {_named(one)} is {ways[0]}, element {where[1]} of {_named(other)} is {ways[1]}"
    )


def _roundings(calls: Sequence[CallOrder], dtype: DataType) -> str | None:
    """Sentence that names two ways in which sums are rounded; None if all calls round in the same way.

    A single addition in float32 that is then rounded gives the same as an addition in a type of up to 11 significant
    bits.
    """
    types = list(dict.fromkeys(call.sums_in for call in calls if call.sums_in is not None))
    if len(types) < 2 or (calls[0].ranks == 2 and dtype in (DataType.float16, DataType.bfloat16)):
        return None
    return f"sums are rounded to {types[0].name} after each addition in one and to {types[1].name} in the other"


def _named(call: CallOrder) -> str:
    return f"{call.bytes} bytes in NCCL {call.nccl}"


def _helping(question: SameBitsQuery, scenarios: Sequence[Scenario]) -> Iterator[Setting]:
    """Yields settings that make the answer yes; no setting contains all variables of another."""
    for algorithm in (Algorithm.Tree, Algorithm.Ring):
        helping: list[Mapping[str, str]] = []
        for besides in BESIDES:
            if any(known.items() <= besides.items() for known in helping):
                continue
            spellings = _spellings(question.request.collective, algorithm)
            found = [_setting(question, scenarios, {"NCCL_ALGO": spelling, **besides}) for spelling in spellings]
            known = [setting for setting in found if setting is not None]
            if known:
                helping.append(besides)
                yield min(known, key=lambda setting: len(setting.others_fail))


def _spellings(collective: Collective, algorithm: Algorithm) -> tuple[str, ...]:
    """Values of NCCL_ALGO that force an algorithm: for one collective (from 2.24 on), for one collective while naming
    the others as well (from 2.31 on), and for all collectives.
    """
    own = f"{collective.name}:{algorithm.name}".lower()
    return own, f"ring,tree;{own}", algorithm.name


def _setting(question: SameBitsQuery, scenarios: Sequence[Scenario], variables: Mapping[str, str]) -> Setting | None:
    """The setting with these variables; None if the answer is still not yes."""
    after = [replace(one, environment={**(one.environment or {}), **variables}) for one in scenarios]
    try:
        if ask(question, after, settings=False).answer != YES:
            return None
    except TunerError:  # nothing to run, or not emulated with these
        return None
    request, last = question.request, question.sizes[-1]
    before, selection = Selection(scenarios[0].communicator()), Selection(after[0].communicator())
    picks = tuple(dict.fromkeys(call.pick for call in question.of_calls(after[0])))
    costs_seen = FEWER_CHANNELS not in variables
    others = [replace(request, collective=collective) for collective in Collective]
    return Setting(
        variables,
        picks,
        _time_us(selection, request, last) if costs_seen else None,
        _time_us(before, request, last),
        tuple(each.collective.name for each in others if before.usable(each) and not selection.usable(each)),
    )


def _time_us(selection: Selection, request: Request, size: int) -> float | None:
    """NCCL's prediction; None for calls that bypass the algorithms."""
    if selection.non_classic_paths(request, [size]) != [None]:
        return None
    return shortest(selection.pick(request, [size]).time_us[0])

"""Compares the emulator with what a trace or counters say was executed: algorithm, protocol, channels and threads."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.base.errors import CannotBeJudged, NoAlgorithm
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.base.nouns import Choice
from tuner.base.records import json_form
from tuner.base.sizes import plural
from tuner.emulator import ranges
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.jobs.traces.calls import CallList, ExecutedCall, TracedCall, WantedCalls, number
from tuner.scenario import Scenario

_OTHER = "not Tree"  # what the name of a kernel says beside Tree


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """Calls of one kind and size that were executed in the same way, and the emulator's answer.

    ``bytes`` is NCCL's nBytes. If the file only knows a range of sizes, ``to_bytes`` is the largest size. The call then
    agrees if the emulator picks for any size of the range what was executed, and ``emulated`` may have several answers.
    ``emulated`` is empty if no algorithm can run. ``differs`` names what differs: algorithm, protocol, channels or
    threads.
    """

    collective: Collective
    dtype: DataType
    op: Op
    bytes: int
    to_bytes: int | None
    calls: float
    executed: ExecutedCall
    emulated: tuple[Choice, ...]
    differs: tuple[str, ...]

    @property
    def executed_in_words(self) -> str:
        """Algorithm, protocol, channels and threads as text, as far as the file says them."""
        ran = self.executed
        algorithm = ran.algorithm.name if ran.algorithm is not None else None
        if algorithm is None and ran.is_tree is not None:
            algorithm = Algorithm.Tree.name if ran.is_tree else _OTHER
        names = "/".join(name for name in (algorithm, ran.protocol.name if ran.protocol is not None else None) if name)
        channels = plural(ran.channels, "channel") if ran.channels else ""
        threads = f"{ran.threads} threads" if ran.threads else ""
        return ", ".join(filter(None, (names, channels, threads)))

    @property
    def emulated_in_words(self) -> str:
        """The emulator's answers as text; empty if no algorithm can run."""
        return " or ".join(
            f"{one.name} on {plural(one.channels, 'channel')} of {one.threads} threads" for one in self.emulated
        )


@dataclass(frozen=True, slots=True)
class NotCompared:
    """Calls that could not be compared, although their file says or should say what was executed, with the reason."""

    reason: str
    calls: float


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """Result for all calls whose files say what was executed: how many agree, which differ, and which were not
    compared.

    ``says`` has, for the algorithm, the protocol, the channels and the threads each, the number of compared calls for
    which the files say it.
    """

    communicator: str
    files: tuple[str, ...]
    compared_calls: float
    agreeing_calls: float
    says: dict[str, float]
    calls: tuple[CheckedCall, ...]
    not_compared: tuple[NotCompared, ...]
    notes: tuple[str, ...]
    differing: tuple[CheckedCall, ...] = field(metadata=json_form("mismatches"))


def check(lists: Sequence[CallList], scenario: Scenario, wanted: WantedCalls) -> CheckedRun:
    """Compares every call of the described communicator whose execution is known. CannotBeJudged if none is."""
    wanted.check_names([call for each in lists for call in each.executed])
    selection = Selection(scenario.communicator())
    counted: Counter[tuple[Request, int, int | None, ExecutedCall]] = Counter()
    without: dict[str, float] = defaultdict(float)
    for each in lists:
        if not each.executed:
            without[f"{each.kind}: does not say what ran"] += sum(call.calls for call in each.calls)
        for call in each.executed:
            reason = wanted.left_out(call) or (call.ran.not_alone if call.ran else None)
            if reason is not None:
                without[reason] += call.calls
                continue
            assert call.ran is not None
            assert call.bytes is not None
            counted[wanted.request(call), call.bytes, _to_bytes(call), call.ran] += call.calls  # type: ignore[assignment]
    if not counted:
        reasons = "; ".join(f"{number(calls)} calls: {why}" for why, calls in without.items())
        raise CannotBeJudged(f"nothing to compare: {reasons or 'the files have no calls'}")
    checked = sorted(
        (_checked(selection, request, sizes, ran, float(calls)) for (request, *sizes, ran), calls in counted.items()),
        key=lambda one: (one.collective, one.dtype, one.op, one.bytes),
    )
    differing = tuple(one for one in checked if one.differs)
    total = sum(one.calls for one in checked)
    return CheckedRun(
        communicator=scenario.heading,
        files=tuple(each.file for each in lists),
        compared_calls=total,
        agreeing_calls=total - sum(one.calls for one in differing),
        says=_says(checked),
        calls=tuple(checked),
        not_compared=tuple(NotCompared(*each) for each in without.items()),
        notes=tuple(note for each in lists for note in each.notes),
        differing=differing,
    )


def _to_bytes(call: TracedCall) -> int | None:
    return (
        call.to_bytes if call.to_bytes is not None and call.bytes is not None and call.to_bytes > call.bytes else None
    )


def _checked(
    selection: Selection, request: Request, sizes: Sequence[int | None], ran: ExecutedCall, calls: float
) -> CheckedCall:
    low, high = sizes
    assert low is not None
    emulated = tuple(_emulated(selection, request, low, high))
    # In a range, the answer that the run differs from least.
    differs = min((tuple(_differs(ran, one)) for one in emulated), key=len, default=("algorithm",))
    return CheckedCall(request.collective, request.dtype, request.op, low, high, calls, ran, emulated, differs)


def _emulated(selection: Selection, request: Request, low: int, high: int | None) -> Iterator[Choice]:
    try:
        if high is not None:
            found = ranges.combinations(selection, request, low, high)
            algorithms, protocols, channels, threads = found.algorithm, found.protocol, found.channels, found.threads
        else:
            picks = selection.pick(request, [low])
            algorithms, protocols, channels, threads = picks.algorithm, picks.protocol, picks.channels, picks.threads
    except NoAlgorithm:
        return
    columns = (each.tolist() for each in (algorithms, protocols, channels, threads))
    yield from dict.fromkeys(Choice(Algorithm(a), Protocol(p), c, t) for a, p, c, t in zip(*columns, strict=True))


def _differs(ran: ExecutedCall, one: Choice) -> Iterator[str]:
    other_family = ran.is_tree is not None and ran.is_tree != (one.algorithm is Algorithm.Tree)
    if (ran.algorithm is not None and ran.algorithm is not one.algorithm) or other_family:
        yield "algorithm"
    if ran.protocol is not None and ran.protocol is not one.protocol:
        yield "protocol"
    if ran.channels is not None and ran.channels != one.channels:
        yield "channels"
    if ran.threads is not None and ran.threads != one.threads:
        yield "threads"


def _says(checked: Sequence[CheckedCall]) -> dict[str, float]:
    says: dict[str, float] = {}
    for what in ("algorithm", "protocol", "channels", "threads"):
        says[what] = sum(one.calls for one in checked if getattr(one.executed, what) is not None)
    families = sum(one.calls for one in checked if one.executed.algorithm is None and one.executed.is_tree is not None)
    return {**says, "whether it is Tree": families}

"""Counts the calls on the described communicator: one entry for each kind and size, and a list of what is left out."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from tuner.answers.exchanges import Way, taken
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.names import SYMMETRIC, Buffers, PeerCall, Sides, peer_call
from tuner.base.spelling import option
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric
from tuner.jobs.traces.calls import CallList, TracedCall, WantedCalls, number
from tuner.scenario import Scenario
from tuner.scenario.notes import UNALIGNED, is_unaligned
from tuner.scenario.p2p import p2p_context
from tuner.scenario.resolved import ResolvedScenario

COPIED = (PeerCall.AllToAll, PeerCall.Gather, PeerCall.Scatter)
ExchangeCounts = Mapping[tuple[PeerCall, int], float]


@dataclass(frozen=True, slots=True)
class ExchangesOf:
    """All sends, receives or exchanges of one kind and size; ``bytes`` is the size of a message, or the total of a rank
    or the root.

    ``total_bytes`` is the sum over all calls. ``channels`` is the number of blocks of rank 0's kernel for one call,
    with rank 0 as the root, and ``kernels`` the number of its kernels. The peer of a send or receive is not known;
    ``channels`` and ``kernels`` are then the maximum over all peers. ``ways`` says how messages reach the nearest rank
    and a rank on another node.
    """

    call: PeerCall
    bytes: int
    calls: float
    total_bytes: float
    kernels: int
    channels: int
    ways: tuple[Way, ...]


def count_exchanges(calls: Iterable[TracedCall], wanted: WantedCalls) -> ExchangeCounts:
    """Counts the exchanges by kind and bytes: those on wanted communicators for which the file says a size."""
    counted: dict[tuple[PeerCall, int], float] = defaultdict(float)
    for call in calls:
        function = peer_call(call.name)
        if function is not None and call.bytes and call.unusable is None and wanted.elsewhere(call) is None:
            counted[function, call.bytes] += call.calls
    return dict(counted)


def launched(scenario: Scenario, counts: ExchangeCounts, buffers: Buffers) -> tuple[ExchangesOf, ...]:
    """What NCCL launches for one exchange of each kind and size on the scenario's communicator; empty if the
    communicator's links are not known.

    Calls on windows that copy engines execute have no kernel. BadInput if something is not emulated.
    """
    if not counts:
        return ()
    try:
        where = p2p_context(ResolvedScenario(scenario))
    except BadInput:
        return ()
    sides = SYMMETRIC.symmetric if buffers is Buffers.window else Sides.none
    made = []
    for (function, size), calls in sorted(counts.items()):
        if function in COPIED and symmetric.sends_are_copied(where.communicator, function, sides):
            made.append(ExchangesOf(function, size, calls, size * calls, 0, 0, ()))
            continue
        one = taken(where, function, size)
        made.append(ExchangesOf(function, size, calls, size * calls, one.kernels, one.channels, one.ways))
    return tuple(made)


@dataclass(frozen=True, slots=True)
class Entry:
    """All calls of one kind and size; ``kernels_us`` are measured durations, for some of them."""

    request: Request
    bytes: int
    calls: float
    kernels_us: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Calls without a price, by their name in the file, and the time of their kernels as far as it is known."""

    name: str
    reason: str
    calls: float
    kernels_us: float

    def __str__(self) -> str:
        return f"{number(self.calls)} x {self.name}: {self.reason}"


@dataclass(slots=True)
class Counted:
    """Counted calls: those to price, those that cannot be priced, and notes on both.

    ``all_to_all`` are the AllToAlls, which cannot be priced, but have measured times: it has the number of calls for
    each number of bytes that a rank sends in total. ``exchanges`` are sends, receives and AllToAlls by their bytes.
    """

    entries: list[Entry]
    left_out: list[LeftOut]
    all_to_all: Mapping[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    exchanges: ExchangeCounts = field(default_factory=dict)


def count(lists: Sequence[CallList], wanted: WantedCalls, exchanges_alone: bool = False) -> Counted:
    """Counts calls of the same kind and size.

    BadInput for an unknown communicator, and if no call can be priced (with ``exchanges_alone``, sends and receives are
    enough).
    """
    calls = [call for each in lists for call in each.calls]
    wanted.check_names(calls)
    counted: dict[tuple[Request, int], tuple[float, list[float]]] = {}
    without: dict[tuple[str, str], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    all_to_all: dict[int, float] = defaultdict(float)
    used: list[TracedCall] = []
    for call in calls:
        reason = wanted.left_out(call)
        if reason is not None:
            before, kernels = without[call.name, reason]
            without[call.name, reason] = before + call.calls, kernels + sum(call.kernels_us)
            if call.is_all_to_all and call.bytes and call.unusable is None and wanted.elsewhere(call) is None:
                all_to_all[call.bytes] += call.calls
            continue
        assert call.collective is not None
        assert call.bytes is not None
        used.append(call)
        key = wanted.request(call), call.bytes
        times, durations = counted.setdefault(key, (0.0, []))
        durations += call.kernels_us
        counted[key] = times + call.calls, durations
    left_out = [LeftOut(*key, *sums) for key, sums in without.items()]
    exchanges = count_exchanges(calls, wanted)
    if not counted and not (exchanges and exchanges_alone):
        sizes = {call.ranks for call in calls if call.ranks and not replace(wanted, ranks=call.ranks).left_out(call)}
        hint = [f"{option('ranks')}: {one_of(sorted(sizes))}"] if sizes else []
        raise BadInput(
            f"there are no calls to price: {'; '.join([*map(str, left_out), *hint]) or 'the files have none'}"
        )
    entries = [Entry(*key, times, tuple(durations)) for key, (times, durations) in counted.items()]
    entries.sort(key=lambda entry: (entry.request.collective, entry.request.dtype, entry.request.op, entry.bytes))
    notes = [*(note for each in lists for note in each.notes), *_notes(used, wanted)]
    return Counted(entries, left_out, all_to_all, notes, exchanges)


def _notes(used: Sequence[TracedCall], wanted: WantedCalls) -> Iterator[str]:
    if wanted.ranks != wanted.priced_ranks:
        yield (
            f"calls of communicators of {wanted.ranks} ranks are priced on {wanted.priced_ranks} ranks, with the "
            "same number of bytes"
        )
    names: dict[str, float] = defaultdict(float)
    for call in used:
        names[call.communicator or "without a name"] += call.calls
    if len(names) > 1:
        each = ", ".join(f"{name}: {number(calls)}" for name, calls in names.items())
        yield f"calls of {len(names)} communicators are counted together ({each}); {option('communicator')} takes one"
    split = [call for call in used if is_unaligned(wanted.request(call), call.bytes or 0, wanted.ranks)]
    if split:
        yield f"{number(sum(call.calls for call in split))} calls have {UNALIGNED}"
    reducing = [call for call in used if not wanted.request(call).moves_only]
    for what, value in (("dtype", wanted.dtype.name), ("op", wanted.op.name)):
        if silent := sum(call.calls for call in reducing if getattr(call, what) is None):
            yield f"{number(silent)} calls that reduce do not say their {what}; {value} is assumed"

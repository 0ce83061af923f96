"""Calls of a job made of sends and receives: how often, how many bytes, and what NCCL launches for one of them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tuner.answers.exchanges import Way, taken
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, PeerCall, peer_call
from tuner.base.windows import SYMMETRIC, Sides
from tuner.emulator.rules import symmetric
from tuner.jobs.traces.calls import Call
from tuner.jobs.traces.wanted import Wanted
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context
from tuner.scenario.resolved import ResolvedScenario

COPIED = (PeerCall.AllToAll, PeerCall.Gather, PeerCall.Scatter)
ExchangeCounts = Mapping[tuple[PeerCall, int], float]


@dataclass(frozen=True, slots=True)
class ExchangesOf:
    """All calls of one kind and size; ``bytes`` of a message, or what a rank, or the root, has in all.

    ``total_bytes`` are those of all calls. ``channels`` are the blocks of rank 0's kernel for one call, whose root it
    is, and ``kernels`` how many it takes; of a send or receive, whose peer is not asked for, the most that one takes.
    ``ways`` are those of its messages, to the nearest rank and to one of another node.
    """

    call: PeerCall
    bytes: int
    calls: float
    total_bytes: float
    kernels: int
    channels: int
    ways: tuple[Way, ...]


def count(calls: Iterable[Call], wanted: Wanted) -> ExchangeCounts:
    """How many there are by kind and size, of the communicators that count and where the file says a size."""
    counted: dict[tuple[PeerCall, int], float] = defaultdict(float)
    for call in calls:
        function = peer_call(call.name)
        if function is not None and call.bytes and call.unusable is None and wanted.elsewhere(call) is None:
            counted[function, call.bytes] += call.calls
    return dict(counted)


def launched(scenario: Scenario, counts: ExchangeCounts, buffers: Buffers) -> tuple[ExchangesOf, ...]:
    """What one of each takes on the scenario's communicator; none where its links are not known.

    Calls on windows that copy engines do have no kernel. BadInput where that is not emulated.
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

"""``diff`` and ``whatif`` of sends and receives, and of the calls that NCCL makes of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.answers.exchanges import ExchangeSides, Taken, WaysAtSize, WaysChange
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, PeerCall
from tuner.cli.output import human_bytes, print_json, print_table, say
from tuner.emulator.request import Request
from tuner.scenario import Scenario

NO_MODEL = "NCCL has no time model of sends and receives: how long either takes is not known"


@dataclass(frozen=True, slots=True)
class ExchangeComparison:
    """Both sides in words, the sizes that were asked for, and where messages go another way."""

    before: str
    after: str
    sizes: tuple[WaysAtSize, ...]
    changes: tuple[WaysChange, ...]


def alone(words: Iterable[object]) -> list[PeerCall]:
    """The calls made of sends and receives among these; BadInput where others stand beside them."""
    named = list(words)
    found = [word for word in named if isinstance(word, PeerCall)]
    if found and len(found) < len(named):
        raise BadInput(f"{found[0].name} beside collectives; valid: either alone")
    return list(dict.fromkeys(found))


def check_plain(calls: Sequence[PeerCall], like: Request) -> None:
    """BadInput for buffers of other calls than collectives, whose ways are compared on plain ones."""
    if like.buffers is not Buffers.plain or like.in_place:
        raise BadInput(f"--buffers, --in-place: of collectives; valid for {calls[0].name}: plain (see: pick)")


def compared(
    before: Scenario, after: Scenario, calls: Sequence[PeerCall], sizes: Sequence[int], ends: tuple[int, int]
) -> ExchangeComparison:
    """The calls at ``sizes``, and the changes between both ``ends``, in bytes."""
    sides = ExchangeSides(before, after)
    at = tuple(sides.at(call, size) for call in calls for size in sizes)
    changes = tuple(change for call in calls for change in sides.changes(call, *ends))
    return ExchangeComparison(before.heading, after.heading, at, changes)


def show(found: Sequence[ExchangeComparison], as_json: bool) -> None:
    """Every comparison."""
    if as_json:
        print_json(found[0] if len(found) == 1 else found)
        return
    for one in found:
        say(f"before: {one.before}\nafter:  {one.after}\n")
        if one.sizes:
            rows = [(each.call.name, human_bytes(each.bytes), *_both(each)) for each in one.sizes]
            print_table("by size", ("call", "size", "before", "after"), rows)
        ranges = [
            (each.call.name, human_bytes(each.from_bytes), human_bytes(each.to_bytes), *_both(each))
            for each in one.changes
        ]
        if ranges:
            print_table("where messages go another way", ("call", "from", "to", "before", "after"), ranges)
        else:
            say("every message goes the same way at every size")
        say(NO_MODEL)


def _both(each: WaysAtSize | WaysChange) -> tuple[str, str]:
    return _says(each.before), _says(each.after)


def _says(taken: Taken) -> str:
    """Protocol, channels and chunk of messages within the node, then over the network; blocks of the kernel."""
    ways = {network: [way for way in taken.ways if way.network == network] for network in (False, True)}
    said = [
        f"{where} " + " or ".join(f"{way.protocol.name} x{way.channels} {human_bytes(way.chunk_bytes)}" for way in of)
        for where, of in (("node", ways[False]), ("net", ways[True]))
        if of
    ]
    kernels = f", {taken.kernels} kernels" if taken.kernels > 1 else ""
    return f"{'; '.join(said) or 'nothing'}; {taken.channels} block{'s' * (taken.channels != 1)}{kernels}"

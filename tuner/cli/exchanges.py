"""Prints sends and receives, and calls that NCCL makes of them, for ``pick`` and ``diff``."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tuner.answers import exchanges, mixed
from tuner.answers.exchanges import (
    CallFootprint,
    ExchangeAnswer,
    ExchangeQuery,
    ExchangeSides,
    TransferAnswer,
    Way,
    WaysAtSize,
    WaysChange,
    ways,
)
from tuner.answers.mixed import CallInKernel, MixedAnswer
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, DataType, PeerCall
from tuner.base.view import plain
from tuner.cli import times
from tuner.cli.output import human_bytes, plural, print_table, say, shown_as_json
from tuner.emulator.p2p.plan import POINT_TO_POINT
from tuner.emulator.request import Request
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context
from tuner.scenario.resolved import ResolvedScenario

if TYPE_CHECKING:
    from tuner.answers.calibrated import TimesWanted


NO_MODEL = "NCCL makes this call from sends and receives: it picks no algorithm and predicts no time"
COPIED = "copy engines move the data: no kernel runs, and NCCL predicts no time"


def show(scenario: Scenario, call: ExchangeQuery, wanted: "TimesWanted | None") -> None:
    """Prints what is launched at each size, with the time if one was measured."""
    timed = wanted is not None and not wanted.beside_nccl
    answers = exchanges.answers(scenario, call, wanted.calibration if wanted else None, must_time=timed)
    if shown_as_json(answers, "calls"):
        return
    used = next((each.calibration for each in answers if each.calibration is not None), None)
    measured = used is not None
    time_columns = ("calibrated us", f"{times.INTERVAL} us", "busbw GB/s") if measured else ()
    columns = ("size", "kernels", "channels", "threads", "same GPU", "same node", "other nodes", *time_columns)
    name = answers[0].collective
    print_table(
        f"{name} on {scenario.title}{_of_rank(call)}", columns, [_row(each, call.rank, measured) for each in answers]
    )
    launches = [each.launch for each in answers if each.launch is not None]
    copied = any(each.copy_engines for each in launches)
    say(COPIED if copied else NO_MODEL)
    if launches and not copied:
        launch = launches[0]
        say(f"p2p channels: {launch.p2p_channels}, per peer: {launch.p2p_channels_per_peer}")
    if used is not None:
        say(times.whose(used))
    for why in dict.fromkeys(each.no_time for each in answers if each.no_time is not None):
        say(f"no time: {why}")


def _of_rank(call: ExchangeQuery) -> str:
    if call.function is PeerCall.AllToAll:
        return f", rank {call.rank}" if call.rank else ""
    what = "peer" if call.function in POINT_TO_POINT else "root"
    return f", rank {call.rank}, {what} {call.root}"


def _row(answer: ExchangeAnswer, rank: int, measured: bool) -> tuple[object, ...]:
    launch, time = answer.launch, answer.calibrated
    timed: tuple[object, ...] = 3 * ("-",) if measured else ()
    if time is not None:
        timed = times.central(time), times.interval(time), f"{answer.busbw_gbs:.3f}"
    if launch is not None and launch.copy_engines:
        return human_bytes(answer.bytes), "copy engines", 0, 0, *3 * ("-",), *timed
    if launch is None or not launch.kernels:
        return human_bytes(answer.bytes), 0 if launch else "-", *5 * ("-",), *timed
    first = launch.kernels[0]
    transfers = [each for kernel in launch.kernels for each in kernel.transfers]
    own = [each for each in transfers if each.peer == rank]
    near = [each for each in transfers if not each.network and each.peer != rank]
    far = [each for each in transfers if each.network]
    said = (in_words(ways(each)) for each in (own, near, far))
    return human_bytes(answer.bytes), len(launch.kernels), first.channels, first.threads, *said, *timed


def in_words(found: Iterable[Way]) -> str:
    """Text for each way: protocol, channels per peer, and chunk size."""
    said = (f"{way.protocol.name}, {way.channels} ch, {human_bytes(way.chunk_bytes)}" for way in found)
    return "; ".join(said) or "-"


def show_uneven(scenario: Scenario, parts: Sequence[int], dtype: DataType, rank: int) -> None:
    """Prints each message of an AllToAll whose parts are unequal."""
    where = p2p_context(ResolvedScenario(scenario), rank)
    calls = exchanges.uneven(parts, where.communicator.ranks, dtype, rank)
    answer = mixed.mixed_from_emulator(scenario, where, (), calls)
    if shown_as_json(answer):
        return
    print_mixed(f"{PeerCall.AllToAll.name} with unequal parts on {scenario.title}, rank {rank}", answer)


KERNELS = ("kernel", "function", "channels", "threads", "collectives", "sends", "receives")
COLLECTIVES = ("kernel", "collective", "bytes", "type", "pick", "channels", "from..to")
TRANSFERS = ("kernel", "round", "", "peer", "bytes", "protocol", "channels", "part", "chunk", "by")


def print_mixed(title: str, answer: MixedAnswer) -> None:
    """Prints kernels, then their collectives, sends and receives."""
    kernels = list(enumerate(answer.kernels))
    sent = [sum(each.sends for each in kernel.transfers) for _, kernel in kernels]
    rows = [
        (number, kernel.function, kernel.channels, kernel.threads, len(kernel.calls), own, len(kernel.transfers) - own)
        for (number, kernel), own in zip(kernels, sent, strict=True)
    ]
    print_table(title, KERNELS, rows)
    if any(kernel.calls for _, kernel in kernels):
        print_table("Collectives", COLLECTIVES, [_call(number, each) for number, of in kernels for each in of.calls])
    transfers = [_transfer(number, each) for number, kernel in kernels for each in kernel.transfers]
    print_table("Sends and receives", TRANSFERS, transfers)
    say(f"p2p channels: {answer.p2p_channels}, per peer: {answer.p2p_channels_per_peer}")
    say(answer.no_time)


def _call(kernel: int, call: CallInKernel) -> tuple[object, ...]:
    name, dtype = ("-" if each is None else each.name for each in (call.collective, call.dtype))
    size = "-" if call.bytes is None else human_bytes(call.bytes)
    chosen = [each.name for each in (call.algorithm, call.protocol) if each is not None]
    pick = "/".join(chosen) or "-"
    channels = f"{call.channels[0]}..{call.channels[-1]}" if call.channels else "-"
    return kernel, name, size, dtype, pick, len(call.channels), channels


def _transfer(kernel: int, transfer: TransferAnswer) -> tuple[object, ...]:
    return (
        kernel,
        plain(transfer.round),
        "to" if transfer.sends else "from",
        transfer.peer,
        human_bytes(transfer.bytes),
        transfer.protocol.name,
        " ".join(map(str, transfer.channels)),
        human_bytes(transfer.part_bytes),
        human_bytes(transfer.chunk_bytes),
        "network" if transfer.network else "node",
    )


NO_TIMES = "NCCL has no time model of sends and receives, so it is not known which side is faster"


@dataclass(frozen=True, slots=True)
class ExchangeComparison:
    """A comparison: names of both sides, the answers at the requested sizes, and the ranges of sizes in which messages
    take another path.
    """

    before: str
    after: str
    sizes: tuple[WaysAtSize, ...]
    changes: tuple[WaysChange, ...]


def alone(words: Iterable[object]) -> list[PeerCall]:
    """The calls among these words that NCCL makes of sends and receives; BadInput if there are other words, too."""
    named = list(words)
    found = [word for word in named if isinstance(word, PeerCall)]
    if found and len(found) < len(named):
        raise BadInput(f"{found[0].name} cannot be compared together with collectives: use a command for each")
    return list(dict.fromkeys(found))


def check_plain(calls: Sequence[PeerCall], like: Request) -> None:
    """Raises BadInput for buffers that are not plain, as paths of messages are only compared for plain ones."""
    if like.buffers is not Buffers.plain or like.in_place:
        raise BadInput(
            f"--buffers and --in-place only apply to collectives here: remove them for {calls[0].name} ('pick' takes "
            "them)"
        )


def compared(
    before: Scenario, after: Scenario, calls: Sequence[PeerCall], sizes: Sequence[int], ends: tuple[int, int]
) -> ExchangeComparison:
    """Both sides of each call at ``sizes``, and the changes between the two ``ends``, all in bytes."""
    sides = ExchangeSides(before, after)
    at = tuple(sides.at(call, size) for call in calls for size in sizes)
    changes = tuple(change for call in calls for change in sides.changes(call, *ends))
    return ExchangeComparison(before.heading, after.heading, at, changes)


SAME_WAY = "every message is sent in the same way at every size"


def show_changes(found: Sequence[ExchangeComparison]) -> None:
    """Prints every comparison."""
    if shown_as_json(found, "comparisons"):
        return
    for one in found:
        ranges = plural(len(one.changes), "range")
        say(f"messages are sent differently in {ranges} of sizes" if one.changes else SAME_WAY)
        say(f"before: {one.before}\nafter:  {one.after}\n")
        if one.sizes:
            by_size = [(each.call.name, human_bytes(each.bytes), *_both(each)) for each in one.sizes]
            print_table("by size", ("call", "size", "before", "after"), by_size)
        rows = [
            (each.call.name, human_bytes(each.from_bytes), human_bytes(each.to_bytes), *_both(each))
            for each in one.changes
        ]
        if rows:
            print_table("sizes at which messages are sent differently", ("call", "from", "to", "before", "after"), rows)
        say(NO_TIMES)


def _both(each: WaysAtSize | WaysChange) -> tuple[str, str]:
    return _says(each.before), _says(each.after)


def _says(taken: CallFootprint) -> str:
    """Text with protocol, channels and chunk size of messages inside the node, then over the network, and the kernel's
    blocks."""
    ways = {network: [way for way in taken.ways if way.network == network] for network in (False, True)}
    said = [
        f"{where} " + " or ".join(f"{way.protocol.name} x{way.channels} {human_bytes(way.chunk_bytes)}" for way in of)
        for where, of in (("node", ways[False]), ("net", ways[True]))
        if of
    ]
    kernels = f", {taken.kernels} kernels" if taken.kernels > 1 else ""
    return f"{'; '.join(said) or 'nothing'}; {taken.channels} block{'s' * (taken.channels != 1)}{kernels}"

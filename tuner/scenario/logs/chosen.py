"""The choices that one communicator's rank 0 printed, separated from those of other communicators."""

from collections.abc import Sequence
from dataclasses import replace

from tuner.base.names import Collective, DataType, Op
from tuner.scenario.logs import choice, lines
from tuner.scenario.logs.groups import CommunicatorLines
from tuner.scenario.logs.imported import LoggedChoice
from tuner.scenario.logs.reader import Call, ChoiceLine


def choices(
    printed: Sequence[ChoiceLine],
    group: CommunicatorLines | None,
    groups: Sequence[CommunicatorLines],
    collective: Collective | None,
) -> tuple[tuple[LoggedChoice, ...], int]:
    """Each different choice of ``group`` with how often it was printed, and how many lines may be another's.

    ``collective`` is that of lines that do not name theirs.
    """
    own, others = _roots(group, groups)
    tally: dict[tuple[choice.Printed, tuple[Call, ...]], int] = {}
    ambiguous = 0
    for line in printed:
        if not of_group(line.thread, group):
            continue
        comms = {call.comm for call in line.calls} & {own, *others}
        if others and comms != {own}:
            ambiguous += len(comms) != 1
            continue
        key = line.printed, tuple(call for call in line.calls if own is None or call.comm == own)
        tally[key] = tally.get(key, 0) + 1
    counts: dict[LoggedChoice, int] = {}
    for (text, calls), count in tally.items():
        made = _choice(text, calls, group.ranks if group else None, collective)
        counts[made] = counts.get(made, 0) + count
    return tuple(replace(made, count=count) for made, count in counts.items()), ambiguous


def of_group(thread: lines.Thread, group: CommunicatorLines | None) -> bool:
    """Whether a thread may be that of the group's rank 0, which prints choices; any may where rank 0 is not seen."""
    root = group.root if group else None
    return root is None or thread is lines.UNKNOWN or thread.process == root.thread.process


def _roots(group: CommunicatorLines | None, groups: Sequence[CommunicatorLines]) -> tuple[str | None, set[str | None]]:
    """Rank 0 of the group, and those of others in the same process."""
    root = group.root if group else None
    others = {
        other.root.comm
        for other in groups
        if other is not group and other.root is not None and of_group(other.root.thread, group)
    }
    return root.comm if root else None, others


def _choice(
    printed: choice.Printed, calls: Sequence[Call], ranks: int | None, otherwise: Collective | None
) -> LoggedChoice:
    call = calls[0] if len(calls) == 1 else None
    name = printed.collective or (call.collective if call else None)
    collective = choice.collective(name) if name else otherwise
    if call is not None and choice.collective(call.collective) is not collective:
        call = None  # of a call whose own line was lost
    nbytes: int | None = printed.bytes
    if printed.planned and collective in (Collective.AllGather, Collective.ReduceScatter):
        nbytes = None if ranks is None else printed.bytes * ranks
    algorithm, protocol = choice.algorithm(printed.algorithm), choice.protocol(printed.protocol)
    return LoggedChoice(
        collective=collective,
        bytes=nbytes,
        algorithm=printed.algorithm if algorithm is None else algorithm.name,
        protocol=printed.protocol if protocol is None else protocol.name,
        channel_lo=printed.channel_lo,
        channel_hi=printed.channel_hi,
        time_us=printed.time_us,
        dtype=DataType(call.dtype) if call and call.dtype in list(DataType) else None,
        op=Op(call.op) if call and call.op in list(Op) else None,
        operations=len(calls) or None,
    )

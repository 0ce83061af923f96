"""Groups the choices of one communicator, in the order of its log: those of single calls, and those of calls launched
in one group.

If the log has the calls (NCCL_DEBUG_SUBSYS=COLL), these show which choices were made together. Otherwise the channels
show it: a choice whose first channel is not 0 shares a kernel with the choice before it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tuner.base.dataclass import dataclass
from tuner.base.names import Collective, DataType, Op
from tuner.scenario.logs import choice
from tuner.scenario.logs.choice import PrintedChoice
from tuner.scenario.logs.imported import LoggedChoice
from tuner.scenario.logs.reader import LoggedCall

MOST_BEFORE = 8  # most choices on channel 0 alone that may belong to the group that follows


class ChoiceOfBatch(NamedTuple):
    """A printed choice with its calls. Choices that were printed after the same calls have the same number ``batch``;
    it is 0 if the log has no calls."""

    printed: PrintedChoice
    calls: tuple[LoggedCall, ...]
    batch: int


@dataclass(frozen=True, slots=True)
class GroupedCall:
    """A call of a group, as its line prints it. ``collective`` is None for other calls, and a field is None if its
    value is unknown."""

    collective: Collective | None
    bytes: int | None
    dtype: DataType | None
    op: Op | None


@dataclass(frozen=True, slots=True)
class LoggedGroup:
    """The choices of a single call or of a group, in the order in which they are printed; the log has them ``count``
    times.

    ``calls`` are the group's calls; empty if the log does not show calls. Without calls, it is uncertain whether the
    choices before index ``first`` belong to the group.
    """

    choices: tuple[LoggedChoice, ...]
    calls: tuple[GroupedCall, ...] = ()
    first: int = 0
    count: int = 1


Batch = tuple[tuple[PrintedChoice, ...], tuple[LoggedCall, ...], int]  # the last number is LoggedGroup.first


def groups_of(
    lines: Iterable[ChoiceOfBatch],
    made: Callable[[PrintedChoice, tuple[LoggedCall, ...]], LoggedChoice],
    ranks: int | None,
) -> tuple[LoggedGroup, ...]:
    """Each different group in one thread's lines, with the number of times that it occurs. ``made`` is called to make
    the record of one choice. ``ranks`` is the number of ranks, which is needed to convert the calls' counts of elements
    to bytes."""
    tally: dict[Batch, int] = {}
    for batch in _with_those_before(_batches(lines)):
        tally[batch] = tally.get(batch, 0) + 1
    found: dict[LoggedGroup, int] = {}
    for (printed, calls, first), count in tally.items():
        grouped = tuple(_call(each, ranks) for each in calls) if len(calls) > 1 else ()
        group = LoggedGroup(tuple(made(each, calls) for each in printed), grouped, first)
        found[group] = found.get(group, 0) + count
    return tuple(LoggedGroup(each.choices, each.calls, each.first, count) for each, count in found.items())


def _batches(lines: Iterable[ChoiceOfBatch]) -> Iterator[list[ChoiceOfBatch]]:
    """Splits the lines into batches of choices that were certainly made together."""
    batch = list[ChoiceOfBatch]()
    for line in lines:
        if batch and not _goes_on(batch[-1], line):
            yield batch
            batch = []
        batch.append(line)
    if batch:
        yield batch


def _goes_on(last: ChoiceOfBatch, line: ChoiceOfBatch) -> bool:
    """Whether a line belongs to the same group as the line before it."""
    if last.batch or line.batch:
        return last.batch == line.batch
    low, high = line.printed.channel_lo, last.printed.channel_hi
    return bool(low) and high is not None and low in (high, high + 1)


def _with_those_before(batches: Iterable[list[ChoiceOfBatch]]) -> Iterator[Batch]:
    """If the calls are not shown, adds to each group the choices directly before it that only use channel 0. Other
    batches stay as they are."""
    small = list[ChoiceOfBatch]()
    for batch in batches:
        first = batch[0]
        alone = len(batch) == 1 and not first.batch
        if alone and first.printed.channel_hi == 0 and first.printed.channel_lo == 0:
            small.append(first)
            if len(small) > MOST_BEFORE:
                yield (small.pop(0).printed,), (), 0
            continue
        if len(batch) > 1 and not first.batch and first.printed.channel_lo == 0:
            yield tuple(each.printed for each in (*small, *batch)), (), len(small)
            small = []
            continue
        for each in small:
            yield (each.printed,), (), 0
        small = []
        yield tuple(each.printed for each in batch), first.calls, 0
    for each in small:
        yield (each.printed,), (), 0


def _call(call: LoggedCall, ranks: int | None) -> GroupedCall:
    collective = choice.collective(call.collective)
    dtype = DataType(call.dtype) if call.dtype in list(DataType) else None
    parts = ranks if collective in (Collective.AllGather, Collective.ReduceScatter) else 1
    nbytes = None if dtype is None or parts is None else call.count * dtype.size_bytes * parts
    return GroupedCall(collective, nbytes, dtype, Op(call.op) if call.op in list(Op) else None)

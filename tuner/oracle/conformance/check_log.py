"""Compares the emulator with a log: the emulator's text for a line has to be equal to the printed one."""

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, DataType, Op, Protocol
from tuner.base.records import json_form
from tuner.base.sizes import plural, ranks_on_nodes
from tuner.base.spelling import option
from tuner.emulator import model
from tuner.emulator.group import GroupChoice, GroupedPick, Operation, plan
from tuner.emulator.model import Tables
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.conformance.mismatches import Comparing, MatchReport
from tuner.scenario.from_log import described_by
from tuner.scenario.logs import choice
from tuner.scenario.logs.choice_groups import GroupedCall, LoggedGroup
from tuner.scenario.logs.imported import Imported, LoggedChoice

MOST_PIPELINED = 32  # up to 2.23, one line may stand for this many calls of a group

# What a report counts, in the order in which it is printed.
KINDS = ("table", "max threads", "thread thresholds", "channels", "choices")

# The positions of the eight numbers in NCCL's line "threadThresholds" (ncclTopoTuneModel, src/graph/tuning.cc,
# v2.28.9-1).
_THRESHOLDS = [(algorithm, protocol) for algorithm in (Algorithm.Tree, Algorithm.Ring) for protocol in Protocol] + [
    (Algorithm.CollNetDirect, Protocol.Simple),
    (Algorithm.CollNetChain, Protocol.Simple),
]


@dataclass(frozen=True, slots=True)
class LogComparison:
    """Result of a comparison with a log. ``missing`` lists what the log does not print. ``not_compared`` lists what the
    log prints but the comparison leaves out, each with the reason.

    ``notes`` are the assumptions.
    """

    report: MatchReport = field(metadata=json_form(merged=True))
    missing: tuple[str, ...]
    not_compared: tuple[str, ...]
    notes: tuple[str, ...]


def compare(imported: Imported, dtype: DataType = DataType.float32, op: Op = Op.sum) -> LogComparison:
    """Compares every number and choice that was printed; ``dtype`` and ``op`` are used for calls whose data type or
    operation the log does not show.

    BadInput if something that is needed to emulate the communicator is missing; it names what neither the log nor the
    user said.
    """
    communicator = described_by(imported).communicator()
    selection = Selection(communicator)
    comparing = Comparing()
    title = (
        f"{ranks_on_nodes(communicator.ranks, communicator.nodes)}, NCCL {communicator.release.name}"
        f", communicator {imported.communicator}"
    )
    _compare_table(comparing, imported, selection)
    _compare_thresholds(comparing, imported, selection.tables)
    if imported.coll_channels is not None:
        comparing.compare("channels", "coll channels", str(communicator.channels), imported.coll_channels)
    if imported.nvls_channels is not None:
        comparing.compare("channels", "nvls channels", str(communicator.nvls_channels), imported.nvls_channels)
    not_compared = _compare_choices(comparing, imported.choice_groups, selection, dtype, op)
    silent = sum(made.count for made in imported.choices if made.dtype is None or made.op is None)
    notes = [f"{silent} choices do not show their call: taken as {dtype.name} {op.name}"] if silent else []
    report = comparing.report(title)
    off = [each for each in report.mismatches if each.what == "table" and str(each.libnccl).endswith("/0.0")]
    if off and not {"NCCL_ALGO", "NCCL_PROTO"} & set(imported.environment):
        names = ", ".join(dict.fromkeys(each.where.split()[1] for each in off))
        notes.append(
            f"the log's table has {names} off, as NCCL_ALGO or NCCL_PROTO does: say with which it ran ({option('env')})"
        )
    return LogComparison(report, imported.missing, (*not_compared, *imported.symmetric), (*imported.notes, *notes))


def _compare_table(comparing: Comparing, imported: Imported, selection: Selection) -> None:
    latency_us, bandwidth_gbs, _ = model.printed(selection.communicator, selection.tables)
    for index, block in enumerate(imported.table):
        columns = [(name, protocol) for name in block.names(index) for protocol in Protocol]
        for (name, protocol), text in zip(columns, block.threads, strict=False):
            algorithm = choice.algorithm(name)
            ours = "absent" if algorithm is None else str(selection.tables.max_threads[algorithm, protocol])
            comparing.compare("max threads", f"{name}/{protocol.name}", ours, text)
        for collective, cells in block.rows.items():
            for (name, protocol), (latency, bandwidth) in zip(columns, cells, strict=False):
                algorithm = choice.algorithm(name)
                at = collective, algorithm, protocol
                ours = "absent" if algorithm is None else f"{latency_us[at]:.1f}/{bandwidth_gbs[at]:.1f}"
                comparing.compare("table", f"{collective.name} {name}/{protocol.name}", ours, f"{latency}/{bandwidth}")


def _compare_thresholds(comparing: Comparing, imported: Imported, tables: Tables) -> None:
    for (algorithm, protocol), text in zip(_THRESHOLDS, imported.thresholds or (), strict=False):
        ours = str(tables.thread_thresholds_bytes[algorithm, protocol])
        comparing.compare("thread thresholds", f"{algorithm.name}/{protocol.name}", ours, text)


def _compare_choices(
    comparing: Comparing, groups: Sequence[LoggedGroup], selection: Selection, dtype: DataType, op: Op
) -> list[str]:
    not_compared: dict[str, int] = {}
    for group in groups:
        try:
            compared = _of_group(group, selection, dtype, op)
        except _NotComparableError as error:
            reason = str(error)
            not_compared[reason] = not_compared.get(reason, 0) + group.count * len(group.choices)
            continue
        for where, ours, theirs in compared:
            comparing.compare("choices", where, ours, theirs)
    return [f"{count} choices: {reason}" for reason, count in not_compared.items()]


class _NotComparableError(Exception):
    """The reason why choices cannot be compared."""


Compared = list[tuple[str, str, str]]  # the place, the emulator's choice, the printed choice


def _of_group(group: LoggedGroup, selection: Selection, dtype: DataType, op: Op) -> Compared:
    """A group's choices, each with the emulator's. If the log does not show the calls, it can be read in several ways;
    a way that agrees is used, if there is one."""
    if group.calls:
        return _of_calls(group.choices, group.calls, selection)
    if len(group.choices) == 1:
        return [_alone(group.choices[0], selection, dtype, op)]
    readings = list[Compared]()
    for first in range(group.first, -1, -1):
        before, together = group.choices[:first], group.choices[first:]
        calls = [GroupedCall(each.collective, each.bytes, dtype, op) for each in together]
        found = [_alone(each, selection, dtype, op) for each in before]
        readings.append(found + _of_calls(together, calls, selection))
    return next((each for each in readings if all(ours == theirs for _, ours, theirs in each)), readings[0])


def _alone(made: LoggedChoice, selection: Selection, dtype: DataType, op: Op) -> tuple[str, str, str]:
    if made.collective is None:
        raise _NotComparableError(
            f"the log does not say of which collective; {option('collective')} does, or NCCL_DEBUG_SUBSYS=COLL"
        )
    if made.bytes is None:
        raise _NotComparableError("the number of ranks is not known, so their size is not")
    if made.channel_lo not in (None, 0):
        raise _NotComparableError("launched together with others, whose lines are missing")
    request = Request(made.collective, made.dtype or dtype, op if made.op is None else made.op)
    where, printed = f"{made.collective.name} {request.dtype.name} {request.op.name} {made.bytes} B", _printed(made)
    ours = _emulated(selection, request, made)
    if made.time_us is not None and made.operations is None:
        # up to 2.23 a group prints one line with its total, and only the time shows its number of calls
        several = (
            _emulated(selection, replace(request, pipelined=calls), made) for calls in range(2, MOST_PIPELINED + 1)
        )
        ours = printed if ours != printed and printed in several else ours
    return where, ours, printed


def _of_calls(choices: Sequence[LoggedChoice], calls: Sequence[GroupedCall], selection: Selection) -> Compared:
    """The choices of a group, each with what the emulator plans for its calls: one per call, or in releases up to 2.23
    one per choice."""
    operations = list[Operation]()
    for each in calls:
        if each.collective is None:
            raise _NotComparableError("launched in one group with sends and receives")
        if each.bytes is None or each.dtype is None:
            raise _NotComparableError("launched in one group with a call whose size is not known")
        request = Request(each.collective, each.dtype, Op.sum if each.op is None else each.op)
        operations.append(Operation(request, each.bytes))
    try:
        planned = plan(selection, operations)
    except (BadInput, NoAlgorithm) as error:
        raise _NotComparableError(f"launched together in one group: {error}") from None
    if choices[0].planned:
        places = [place for kernel in planned.kernels for place in kernel.places if kernel.path is None]
        ours = [(each.operation.request.collective, _of_pick(each)) for each in (planned.picks[at] for at in places)]
    else:
        ours = [(each.request.collective, _of_choice(each)) for each in planned.choices]
    if len(ours) != len(choices):
        raise _NotComparableError("launched together in one group, of which lines are missing")
    compared = Compared()
    for number, ((collective, text), made) in enumerate(zip(ours, choices, strict=True)):
        where = f"group of {plural(len(calls), 'call')}, choice {number}"
        theirs = f"{made.bytes} B {_printed(made)}"
        if made.collective is not None:  # lines up to 2.22 do not name the collective
            text, theirs = f"{collective.name} {text}", f"{made.collective.name} {theirs}"
        compared.append((where, text, theirs))
    return compared


def _of_pick(pick: GroupedPick) -> str:
    """A call of a group in the words of its line in the log."""
    assert pick.algorithm is not None and pick.protocol is not None  # noqa: PT018 - a kernel without a path has both
    channels = f"channels {pick.channels[0]}..{pick.channels[-1]}"
    return f"{pick.operation.bytes} B {pick.algorithm.name}/{pick.protocol.name} {channels}"


def _of_choice(made: GroupChoice) -> str:
    """A choice for several calls in the words of its line in the log."""
    return f"{made.bytes} B {made.algorithm.name}/{made.protocol.name} time {made.time_us:f}"


def _printed(made: LoggedChoice) -> str:
    text = f"{made.algorithm}/{made.protocol}"
    if made.channel_hi is not None:
        text += f" channels {made.channel_lo}..{made.channel_hi}"
    return text if made.time_us is None else f"{text} time {made.time_us}"


def _emulated(selection: Selection, request: Request, made: LoggedChoice) -> str:
    """The emulator's pick in the form of :func:`_printed`, with only the facts that the log shows."""
    try:
        picks = selection.pick(request, np.array([made.bytes], np.uint64))
    except NoAlgorithm as error:
        return f"none: {error}"
    text = f"{Algorithm(picks.algorithm[0]).name}/{Protocol(picks.protocol[0]).name}"
    if made.channel_hi is not None:
        text += f" channels 0..{picks.channels[0] - 1}"
    return text if made.time_us is None else f"{text} time {picks.time_us[0]:f}"

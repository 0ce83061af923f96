"""Reads NCCL's logs: the calls of one rank of each communicator, or else the choices that rank 0 printed."""

from collections.abc import Iterator
from dataclasses import replace

from tuner.base.errors import BadInput
from tuner.base.names import DataType, Op, peer_call
from tuner.jobs.traces.calls import CallList, ExecutedCall, TracedCall, exchanged_bytes, nbytes
from tuner.scenario.logs import choice, importer, reader
from tuner.scenario.logs.imported import CommunicatorLines, LoggedChoice, groups
from tuner.scenario.logs.lines import Lines
from tuner.scenario.logs.reader import NcclLog, RankLog
from tuner.scenario.notes import harmful

_Member = tuple[tuple[str, int], str]  # process, address of the communicator in it


def from_log(file: str, lines: Lines, ranks: int) -> CallList:
    """The calls in a log that was written with NCCL_DEBUG_SUBSYS=COLL; or else the choices in a log that was written
    with TUNING. BadInput if the log has neither.

    ``ranks`` is used for choices if no line says the number of ranks.
    """
    log = reader.parse(lines)
    communicators = groups(log.ranks)
    notes = [f"the log is of NCCL {name}" for name in log.versions]
    notes += ["the last line is cut and not counted"] if lines.cut else []
    nodes = next((rank.nodes for rank in log.ranks if rank.nodes), None)
    notes += dict.fromkeys(line for values in log.environment.values() for line in harmful(values, nodes))
    if log.calls:
        calls = tuple(_calls(file, log, communicators))
        if log.symmetric:
            notes.append(
                f"{len(log.symmetric)} times a symmetric kernel ran, which has no predicted time: "
                "those calls are priced as if it had not"
            )
        sizes = "count x type, times the ranks for AllGather and ReduceScatter"
        choices = tuple(_choices(log, communicators, ranks))
        return CallList(file, "NCCL log", sizes, calls, tuple(notes), tuple(log.versions), choices)
    calls = (*_choices(log, communicators, ranks), *_symmetric(log))
    if not calls:
        raise BadInput(f"{file}: this log has no calls: set NCCL_DEBUG_SUBSYS=INIT,COLL (or INIT,TUNING)")
    notes.append(
        "the log has no COLL lines, so rank 0's choices are counted; up to 2.23 there is one choice for a group of "
        "calls"
    )
    sizes = "nBytes as NCCL prints it beside its choices"
    return CallList(file, "NCCL log (choices)", sizes, calls, tuple(notes), tuple(log.versions))


def _calls(file: str, log: NcclLog, communicators: list[CommunicatorLines]) -> Iterator[TracedCall]:
    there = {(thread.process, call.comm): call.ranks for thread, call in log.calls}
    names = dict(_one_of_each(communicators, there))
    in_groups = {_member(rank) for group in communicators for rank in group.logs}
    for ranks in set(there.values()):
        unattributed = [member for member, size in there.items() if size == ranks and member not in in_groups]
        if len(unattributed) > 1:
            raise BadInput(
                f"{file}: these are {len(unattributed)} communicators of {ranks} ranks, or ranks of one, and no INIT "
                "lines say which: set NCCL_DEBUG_SUBSYS=INIT,COLL, or give the log of one rank"
            )
        names.update({member: member[1] for member in unattributed})
    for (thread, call), times in log.calls.items():
        name = names.get((thread.process, call.comm))
        if name is not None:
            yield replace(_call(call, name), calls=float(times))


def _one_of_each(communicators: list[CommunicatorLines], there: dict[_Member, int]) -> Iterator[tuple[_Member, str]]:
    """For each communicator, the lowest rank that made calls, with the communicator's name."""
    for group in communicators:
        members = [log for log in group.logs if _member(log) in there]
        if members:
            yield _member(min(members, key=lambda log: log.rank or 0)), group.name


def _member(log: RankLog) -> _Member:
    return log.thread.process, log.comm or ""


def _call(call: reader.LoggedCall, communicator: str) -> TracedCall:
    collective = choice.collective(call.collective)
    dtype = DataType(call.dtype) if call.dtype in list(DataType) else None
    size = None if collective is None or dtype is None else nbytes(collective, call.count, dtype, call.ranks)
    function = peer_call(call.collective)
    if function is not None and dtype is not None:
        size = exchanged_bytes(function, call.count * dtype.size_bytes, call.ranks)
    return TracedCall(
        call.collective,
        collective,
        size,
        dtype,
        Op(call.op) if call.op in list(Op) else None,
        call.ranks,
        communicator=communicator,
        unusable=None if dtype is not None else f"type {call.dtype} is none of NCCL's",
    )


def _choices(log: NcclLog, communicators: list[CommunicatorLines], otherwise: int) -> Iterator[TracedCall]:
    ambiguous: dict[tuple[str, int] | None, int] = {}  # by process, whose communicators share these lines
    every: list[CommunicatorLines | None] = [*communicators] or [None]
    for group in every:
        made, lines_of_several = importer.choices_of(log.choices, group, communicators, None, otherwise)
        ranks, name = (group.ranks, group.name) if group else (None, None)
        for each in made:
            yield TracedCall(
                "a collective" if each.collective is None else each.collective.name,
                each.collective,
                each.bytes,
                each.dtype,
                each.op,
                ranks=ranks,
                communicator=name,
                calls=each.count,
                unusable=None
                if each.collective is not None
                else "the log does not name the collective (COLL lines would)",
                ran=_executed(each),
            )
        ambiguous[group.root.thread.process if group and group.root else None] = lines_of_several
    for count in filter(None, ambiguous.values()):
        yield TracedCall(
            "a collective",
            None,
            None,
            calls=count,
            unusable="the log does not say which communicator it belongs to (COLL lines would)",
        )


def _executed(made: LoggedChoice) -> ExecutedCall:
    """What a line of a log says was executed; with channels only if the line describes a launch of one call."""
    grouped = (made.operations or 1) > 1 or made.channel_lo not in (None, 0)
    channels = None if made.channel_hi is None or made.channel_lo is None else made.channel_hi - made.channel_lo + 1
    return ExecutedCall(
        choice.algorithm(made.algorithm),
        choice.protocol(made.protocol),
        None if grouped else channels,
        not_alone="launched together with others in one group" if grouped else None,
    )


def _symmetric(log: NcclLog) -> Iterator[TracedCall]:
    for _, text in log.symmetric:
        name = text.partition(" ")[0]
        yield TracedCall(
            name, choice.collective(name), None, unusable="symmetric kernels, which have no predicted time"
        )

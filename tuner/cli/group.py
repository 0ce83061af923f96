"""Reads several calls in one group for ``pick``, and prints what NCCL does with them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import click

from tuner.answers import mixed
from tuner.answers.mixed import GroupAnswer
from tuner.base.bounds import ReaderBounds, check_json
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.files import read_bytes
from tuner.base.names import Collective, DataType, Op, PeerCall
from tuner.base.view import plain
from tuner.cli import options
from tuner.cli.command import excludes
from tuner.cli.options import ROOTED, ROOTED_WORDS
from tuner.cli.output import human_bytes, plural, print_table, say, show, shown_as_json
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

_CALL_WORD = expression(
    r"(?P<call>[^:*@]+)(@(?P<peer>[+-]?\d+))?:(?P<bytes>[^:*]+)(:(?P<type>[^:*]+))?(:(?P<op>[^:*]+))?"
    r"(\*(?P<times>[1-9]\d{0,5}))?"
)
CALL_FORM = "CALL[@PEER]:BYTES[:TYPE[:OP]][*TIMES], as in allreduce:25M*4 or send@3:1M"
CALL_KEYS = ("call", "peer", "bytes", "type", "op", "times")
MOST_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class GivenCall:
    """One call as the user wrote it; ``relative``: the peer is counted from the rank that calls."""

    function: Collective | PeerCall
    bytes: int
    dtype: DataType | None
    op: Op | None
    peer: int | None
    relative: bool

    def operation(self, like: Request, root: int = 0) -> Operation:
        """The operation; a missing type or reduction is that of ``like``."""
        assert isinstance(self.function, Collective)
        dtype, op = like.dtype if self.dtype is None else self.dtype, like.op if self.op is None else self.op
        return Operation(replace(like, collective=self.function, dtype=dtype, op=op), self.bytes, root)

    def peer_of(self, rank: int, ranks: int) -> int:
        """The peer, or the root (by default rank 0), for the calling ``rank``."""
        if self.peer is None:
            return 0
        return (rank + self.peer) % ranks if self.relative else self.peer


class AnyCalls(click.ParamType):  # type: ignore[type-arg]
    """A click type: comma-separated calls ``CALL[@PEER]:BYTES[:TYPE[:OP]][*TIMES]``, or ``@FILE``, a JSON list of
    objects."""

    name = "calls"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, list):
            return value
        text = str(value)
        rows = _of_file(Path(text[1:])) if text.startswith("@") else _of_words(text)
        calls: list[GivenCall] = []
        for where, row in rows:
            calls += [_call(where, row)] * _times(where, row)
            if len(calls) > MOST_CALLS:
                raise BadInput(f"{where}: a group has at most {MOST_CALLS} calls here")
        if not calls:
            raise BadInput(f"{text}: name at least one call")
        return calls


def _of_words(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for word in text.split(","):
        match = _CALL_WORD.fullmatch(word.strip())
        if match is None:
            raise BadInput(f"call {word!r} is not of the form {CALL_FORM}")
        yield repr(word), match.groupdict()


CALLS_FILE = ReaderBounds("calls of a group, as JSON", values=500_000)


def _of_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        content = read_bytes(path, BadInput)
        check_json(content, str(path), BadInput, CALLS_FILE)
        rows = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path}: expected a list of objects with the keys {', '.join(CALL_KEYS)}")
    for number, row in enumerate(rows, start=1):
        if unknown := sorted(set(row) - set(CALL_KEYS)):
            raise BadInput(f"{path}: object {number}: unknown key {unknown[0]!r}; valid: {', '.join(CALL_KEYS)}")
        yield f"{path}: object {number}", row


def _times(where: str, row: Mapping[str, Any]) -> int:
    given = row.get("times")
    if given is None:
        return 1
    text = str(given)
    if not text.isdecimal() or len(text) > 6 or isinstance(given, bool) or int(text) < 1:
        raise BadInput(f"{where}: times {given!r}: expected a whole number from 1 to {MOST_CALLS}")
    return int(text)


def _call(where: str, row: Mapping[str, Any]) -> GivenCall:
    if row.get("call") is None or row.get("bytes") is None:
        raise BadInput(f"{where}: the call or its bytes are missing; write {CALL_FORM}")
    function = options.AnyCall(Collective, "collective").convert(row["call"], None, None)
    dtype = None if row.get("type") is None else options.Named(DataType, "type").convert(row["type"], None, None)
    op = None if row.get("op") is None else options.Named(Op, "operation").convert(row["op"], None, None)
    peer = row.get("peer")
    text = "" if peer is None else str(peer)
    if text and not re.fullmatch(r"[+-]?\d{1,9}", text):
        raise BadInput(
            f"{where}: peer {peer!r}: expected a rank, or +1 or -1 for the rank after or before the calling one"
        )
    if function in (PeerCall.Send, PeerCall.Recv) and not text:
        raise BadInput(f"{where}: {function.name} needs a peer, as in send@3:1M or recv@-1:1M")
    if text and isinstance(function, Collective) and function not in ROOTED:
        raise BadInput(
            f"{where}: {function.name} takes no peer; only send and recv do, and {ROOTED_WORDS}, whose root it is"
        )
    relative = text[:1] in ("+", "-")
    return GivenCall(function, options.size_bytes(str(row["bytes"])), dtype, op, int(text) if text else None, relative)


def of_libnccl(calls: Sequence[GivenCall], like: Request) -> list[Operation]:
    """The calls as libnccl gets them, completed by the options. BadInput for other calls than collectives, and for a
    root or peer.
    """
    for call in calls:
        if isinstance(call.function, PeerCall):
            options.Named(Collective, "collective").convert(call.function.name, None, None)  # which says why
        if call.peer is not None:
            name = call.function.name
            raise BadInput(
                f"{name} with root {call.peer}: libnccl is only asked with root 0; write {name.lower()} without a root"
            )
    return [call.operation(like) for call in calls]


EXCHANGES = excludes("groups with sends, receives or roots, as NCCL asks no tuner plugin about these", "tuner")


def show_group(
    calls: list[GivenCall], described: Scenario, asked: options.CommunicatorQuestion, rank: int, in_full: bool
) -> None:
    """Prints what NCCL does with the calls, or libnccl's answer. BadInput for what a group cannot contain."""
    like = asked.call
    if asked.libnccl is not None:
        from tuner.answers import library

        made = library.of_group(described, of_libnccl(calls, like), asked.libnccl)
        title = f"A group of {plural(len(calls), 'call')} on {described.title}: the real libnccl"
        show(made, lambda answer: print_group(title, answer))
        return
    exchanged = any(isinstance(call.function, PeerCall) for call in calls)
    if exchanged and in_full:
        raise BadInput("--launch only applies to collectives: remove it, or the sends and receives")
    if exchanged or (not in_full and any(call.peer is not None for call in calls)):
        EXCHANGES.check(click.get_current_context())
        _show_mixed(described, calls, like, rank)
        return
    if rank != 0 and not in_full:
        raise BadInput(
            "--rank chooses whose sends and receives are shown; a group of collectives takes --rank 0 only, or --launch"
        )
    options.note_call(described, like, grouped=True)
    operations = [each.operation(like, each.peer_of(rank, described.ranks)) for each in calls]
    answer = mixed.from_emulator(described, operations)
    if in_full:
        from tuner.answers.launches import Launches  # with the search, which nothing else here needs

        answer = replace(answer, launch=Launches(described, rank).of(operations))
    if shown_as_json(answer):
        return
    title = f"A group of {plural(len(calls), 'call')} on {described.title}" + (f", rank {rank}" if rank else "")
    print_group(title, answer)
    if answer.launch is not None:
        from tuner.cli.launches import print_launch

        print_launch(title[0].lower() + title[1:], answer.launch)


def _show_mixed(scenario: Scenario, calls: Sequence[GivenCall], like: Request, rank: int) -> None:
    """Prints a group with sends and receives of a rank; missing types and reductions are those of ``like``."""
    from tuner.answers import exchanges
    from tuner.cli.exchanges import print_mixed
    from tuner.scenario.p2p import p2p_context
    from tuner.scenario.resolved import ResolvedScenario

    where = p2p_context(ResolvedScenario(scenario), rank)
    Selection(where.communicator).check_buffers(like.buffers, like.windows)
    operations, exchanged = [], []
    for call in calls:
        dtype = like.dtype if call.dtype is None else call.dtype
        if isinstance(call.function, PeerCall):
            peer = call.peer_of(rank, where.communicator.ranks)
            asked = exchanges.ExchangeQuery(call.function, (), dtype, rank, peer, like.buffers, like.windows)
            made = exchanges.calls_of(asked, call.bytes, where)
            exchanges.check_not_copied(where, asked, made)
            exchanged += made
        else:
            operations.append(call.operation(like, call.peer_of(rank, where.communicator.ranks)))
    answer = mixed.mixed_from_emulator(scenario, where, operations, exchanged, like.buffers)
    if shown_as_json(answer):
        return
    print_mixed(f"A group of {plural(len(calls), 'call')} on {scenario.title}, rank {rank}", answer)


BYPASSED = "Calls that run on a symmetric kernel share its blocks; the table of choices does not list them."
COLUMNS = ("kernel", "call", "collective", "bytes", "type", "pick", "channels", "from..to", "block", "chosen with")


def print_group(title: str, answer: GroupAnswer) -> None:
    """Prints the kernels with their calls, in NCCL's order, then the choices."""
    rows = [
        (
            number,
            plain(each.call),
            _named(each.collective),
            _size(each.bytes),
            _named(each.dtype),
            kernel.bypass or f"{_named(each.algorithm)}/{_named(each.protocol)}",
            kernel.channels if kernel.bypass else len(each.channels),
            _range(each.channels),
            kernel.threads,
            plain(each.choice),
        )
        for number, kernel in enumerate(answer.kernels)
        for each in kernel.calls
    ]
    print_table(title, COLUMNS, rows)
    choices = [
        (number, _named(each.collective), _size(each.bytes), each.pipelined, plain(each.time_us))
        for number, each in enumerate(answer.choices)
    ]
    if choices:
        print_table("Chosen together", ("choice", "collective", "bytes", "numPipeOps", "NCCL us"), choices)
    if any(kernel.bypass for kernel in answer.kernels):
        say(BYPASSED)


def _named(value: Enum | None) -> str:
    return "-" if value is None else value.name


def _size(nbytes: int | None) -> str:
    return "-" if nbytes is None else human_bytes(nbytes)


def _range(channels: Sequence[int]) -> str:
    """Text for channels: ``3..7``, or every number if they are not consecutive; a dash for the channels of a whole
    kernel."""
    if not channels:
        return "-"
    low, high = channels[0], channels[-1]
    return f"{low}..{high}" if len(channels) == high - low + 1 else " ".join(map(str, channels))

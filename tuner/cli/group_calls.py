"""The calls of ``group``: collectives, and sends and receives with their peers, from words or from a file."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.files import read_bytes
from tuner.base.names import Collective, DataType, Op, PeerCall
from tuner.cli import options

_WORD = re.compile(
    r"(?P<call>[^:*@]+)(@(?P<peer>[+-]?\d+))?:(?P<bytes>[^:*]+)(:(?P<type>[^:*]+))?(:(?P<op>[^:*]+))?"
    r"(\*(?P<times>[1-9]\d{0,5}))?"
)
FORM = "CALL[@PEER]:BYTES[:TYPE[:OP]][*TIMES], as in allreduce:25M*4 or send@3:1M"
KEYS = ("call", "peer", "bytes", "type", "op", "times")
MOST_CALLS = 10_000
ROOTED = (Collective.Broadcast, Collective.Reduce)
ROOTED_WORDS = "broadcast, reduce, gather and scatter"


@dataclass(frozen=True, slots=True)
class GivenCall:
    """One call as it is written; ``relative``: the peer counts from the rank that calls."""

    function: Collective | PeerCall
    bytes: int
    dtype: DataType | None
    op: Op | None
    peer: int | None
    relative: bool

    def peer_of(self, rank: int, ranks: int) -> int:
        """The peer, or the root; the root is rank 0 where none is given."""
        if self.peer is None:
            return 0
        return (rank + self.peer) % ranks if self.relative else self.peer


class AnyCalls(click.ParamType):  # type: ignore[type-arg]
    """``CALL[@PEER]:BYTES[:TYPE[:OP]][*TIMES]``, comma-separated, or ``@FILE``, a JSON list of objects."""

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
                raise BadInput(f"{where}: more than {MOST_CALLS} calls in a group; valid: up to {MOST_CALLS}")
        if not calls:
            raise BadInput(f"{text}: no call; valid: one or more")
        return calls


def _of_words(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for word in text.split(","):
        match = _WORD.fullmatch(word.strip())
        if match is None:
            raise BadInput(f"call {word!r}; valid: {FORM}")
        yield repr(word), match.groupdict()


def _of_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        rows = json.loads(read_bytes(path, BadInput))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path}: valid: a list of objects with the keys {', '.join(KEYS)}")
    for number, row in enumerate(rows, start=1):
        if unknown := sorted(set(row) - set(KEYS)):
            raise BadInput(f"{path}: object {number}: unknown key {unknown[0]!r}; valid: {', '.join(KEYS)}")
        yield f"{path}: object {number}", row


def _times(where: str, row: Mapping[str, Any]) -> int:
    given = row.get("times")
    if given is None:
        return 1
    text = str(given)
    if not text.isdecimal() or len(text) > 6 or isinstance(given, bool) or int(text) < 1:
        raise BadInput(f"{where}: times {given!r}; valid: a whole number, 1 to {MOST_CALLS}")
    return int(text)


def _call(where: str, row: Mapping[str, Any]) -> GivenCall:
    if row.get("call") is None or row.get("bytes") is None:
        raise BadInput(f"{where}: without a call or bytes; valid: {FORM}")
    function = options.AnyCall(Collective, "collective").convert(row["call"], None, None)
    dtype = None if row.get("type") is None else options.Named(DataType, "type").convert(row["type"], None, None)
    op = None if row.get("op") is None else options.Named(Op, "operation").convert(row["op"], None, None)
    peer = row.get("peer")
    text = "" if peer is None else str(peer)
    if text and not re.fullmatch(r"[+-]?\d{1,9}", text):
        raise BadInput(f"{where}: peer {peer!r}; valid: a rank, or +1, -1 from the rank that calls")
    if function in (PeerCall.Send, PeerCall.Recv) and not text:
        raise BadInput(f"{where}: {function.name} without a peer; valid: send@3:1M, recv@-1:1M")
    if text and isinstance(function, Collective) and function not in ROOTED:
        raise BadInput(f"{where}: {function.name} with a peer; valid: of send, recv, and as the root of {ROOTED_WORDS}")
    relative = text[:1] in ("+", "-")
    return GivenCall(function, options.size_bytes(str(row["bytes"])), dtype, op, int(text) if text else None, relative)

"""Decision tables: rows to text and back, and the rule by which a row is found (docs/decision-table.md).

The plugin has its own reader and lookup in C (``csrc/plugin``). This one is written separately and the straightforward
way, and the tests hold the two against each other.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from tuner.errors import BadTable, one_of
from tuner.names import Algorithm, Collective, Protocol

HEADER = "nccl-tuner-table 1"
MAX_CHANNELS = 64
LARGEST = 2**64 - 1

_UNITS = {"": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30, "t": 40, "tib": 40}
_SIZE = re.compile(rb"([0-9]+)([A-Za-z]*)")
_COUNT = re.compile(rb"([0-9]+)()")
_Name = TypeVar("_Name", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from ``low`` to ``high``, both included; without a ``high`` there is no end."""

    low: int = 0
    high: int | None = None

    def __contains__(self, number: int) -> bool:
        return self.low <= number and (self.high is None or number <= self.high)


ANY_BYTES = Interval(0)
ANY_COUNT = Interval(1)


@dataclass(frozen=True, slots=True)
class Row:
    """Which calls it is for, and what NCCL shall take there; without ``channels`` their number stays NCCL's."""

    collective: Collective
    algorithm: Algorithm
    protocol: Protocol
    channels: int | None = None
    bytes: Interval = ANY_BYTES
    ranks: Interval = ANY_COUNT
    nodes: Interval = ANY_COUNT


def find(rows: Iterable[Row], collective: Collective, size_bytes: int, *, ranks: int, nodes: int) -> Row | None:
    """The first row that matches."""
    for row in rows:
        if row.collective is collective and size_bytes in row.bytes and ranks in row.ranks and nodes in row.nodes:
            return row
    return None


def to_text(rows: Iterable[Row], comments: Iterable[str] = ()) -> str:
    """The table as a file's content; ``comments`` say above the rows where they come from."""
    lines = [HEADER, *(f"# {line}".rstrip() for comment in comments for line in comment.splitlines() or [""])]
    return "\n".join([*lines, *(_row_text(row) for row in rows), ""])


def write(path: Path, rows: Iterable[Row], comments: Iterable[str] = ()) -> None:
    path.write_text(to_text(rows, comments), encoding="utf-8", newline="\n")


def read(path: Path) -> tuple[Row, ...]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadTable(f"{path}: {error.strerror}") from error
    return from_text(content, str(path))


def from_text(content: bytes | str, name: str = "table") -> tuple[Row, ...]:
    """All rows; the first mistake is an error that begins with ``name`` and the line."""
    # Bytes throughout: Python's text knows line ends, blanks and digits that the format does not.
    lines = (content.encode() if isinstance(content, str) else content).split(b"\n")
    rows: list[Row] = []
    has_header = False
    for number, line in enumerate(lines, start=1):
        try:
            if b"\0" in line:
                raise _Mistake("a zero byte: this is not a text file")
            words = [word for word in re.split(rb"[ \t]+", line.removesuffix(b"\r").split(b"#")[0]) if word]
            if words and not has_header:
                _check_header(words)
                has_header = True
            elif words:
                rows.append(_row(words))
        except _Mistake as mistake:
            raise BadTable(f"{name}:{number}: {mistake}") from None
    if not has_header:
        raise BadTable(f"{name}:1: empty: the first line has to be '{HEADER}'")
    return tuple(rows)


class _Mistake(Exception):
    """What is wrong with a line, before it is known which one."""


def _check_header(words: list[bytes]) -> None:
    name, version = HEADER.encode().split()
    if words[0] != name:
        raise _Mistake(f"the first line has to be '{HEADER}', not '{_shown(b' '.join(words))}'")
    if words[1:] != [version]:
        raise _Mistake(f"version '{_shown(b' '.join(words[1:]))}' of the table format is unknown (valid: 1)")


def _row(words: list[bytes]) -> Row:
    collective = _by_name(Collective, words[0], "collective")
    if b"->" not in words:
        raise _Mistake("no '->' with an algorithm/protocol after it")
    arrow = words.index(b"->")
    conditions = _pairs(words[1:arrow], ("bytes", "ranks", "nodes"), "before")
    if arrow + 1 == len(words) or b"/" not in words[arrow + 1]:
        raise _Mistake("no algorithm/protocol, such as ring/ll128, after '->'")
    algorithm, _, protocol = words[arrow + 1].partition(b"/")
    settings = _pairs(words[arrow + 2 :], ("channels",), "after")
    return Row(
        collective,
        _by_name(Algorithm, algorithm, "algorithm"),
        _by_name(Protocol, protocol, "protocol"),
        channels=_channels(settings["channels"]) if "channels" in settings else None,
        bytes=_interval(conditions["bytes"], _SIZE, 0) if "bytes" in conditions else ANY_BYTES,
        ranks=_interval(conditions["ranks"], _COUNT, 1) if "ranks" in conditions else ANY_COUNT,
        nodes=_interval(conditions["nodes"], _COUNT, 1) if "nodes" in conditions else ANY_COUNT,
    )


def _pairs(words: list[bytes], valid: tuple[str, ...], side: str) -> dict[str, bytes]:
    pairs: dict[str, bytes] = {}
    for word in words:
        key_bytes, equals, value = word.partition(b"=")
        key = _shown(key_bytes)
        if not equals or key not in valid:
            raise _Mistake(f"'{_shown(word)}' is not a key=value that may stand {side} '->' ({one_of(valid)})")
        if key in pairs:
            raise _Mistake(f"'{key}' twice")
        pairs[key] = value
    return pairs


def _by_name(names: type[_Name], word: bytes, what: str) -> _Name:
    for name in names:
        if name.name.lower().encode() == word.lower():
            return name
    raise _Mistake(f"unknown {what} '{_shown(word)}' ({one_of(name.name for name in names)})")


def _interval(text: bytes, pattern: re.Pattern[bytes], least: int) -> Interval:
    low_text, dots, high_text = text.partition(b"..")
    if not (low_text or high_text):
        raise _Mistake(f"'{_shown(text)}' is neither a number nor an interval, A..B, A.. or ..B")
    low = _number(low_text, pattern) if low_text else least
    high = _number(high_text, pattern) if high_text else (None if dots else low)
    if low < least or (high is not None and high < least):
        raise _Mistake(f"'{_shown(text)}': at least {least}")
    if high is not None and low > high:
        raise _Mistake(f"'{_shown(text)}': the first number is above the second")
    return Interval(low, None if high == LARGEST else high)


def _number(text: bytes, pattern: re.Pattern[bytes]) -> int:
    match = pattern.fullmatch(text)
    unit = match[2].decode().lower() if match else ""
    if not match or unit not in _UNITS:
        units = " with K, M, G or T (KiB ..., powers of 1024) or without" if pattern is _SIZE else ""
        raise _Mistake(f"'{_shown(text)}' is not a number{units}")
    # More digits than the largest number has cannot fit (and Python refuses to convert thousands of them).
    digits = match[1].lstrip(b"0") or b"0"
    if len(digits) > len(str(LARGEST)) or int(digits) << _UNITS[unit] > LARGEST:
        raise _Mistake(f"'{_shown(text)}' is past the largest number, {LARGEST}")
    return int(digits) << _UNITS[unit]


def _channels(text: bytes) -> int:
    match = _COUNT.fullmatch(text)
    if not match or len(match[1].lstrip(b"0")) > 2 or not 1 <= int(match[1].lstrip(b"0") or b"0") <= MAX_CHANNELS:
        raise _Mistake(f"channels={_shown(text)} is not a number from 1 to {MAX_CHANNELS}")
    return int(match[1].lstrip(b"0"))


def _shown(word: bytes) -> str:
    text = "".join(chr(byte) if 0x20 <= byte <= 0x7E else "?" for byte in word)
    return text if len(text) <= 44 else text[:44] + "..."


def _row_text(row: Row) -> str:
    words = [row.collective.name.lower()]
    if row.bytes != ANY_BYTES:
        words.append(f"bytes={_interval_text(row.bytes, _size_text)}")
    if row.ranks != ANY_COUNT:
        words.append(f"ranks={_interval_text(row.ranks, str)}")
    if row.nodes != ANY_COUNT:
        words.append(f"nodes={_interval_text(row.nodes, str)}")
    words += ["->", f"{row.algorithm.name.lower()}/{row.protocol.name.lower()}"]
    if row.channels is not None:
        words.append(f"channels={row.channels}")
    return " ".join(words)


def _interval_text(interval: Interval, text: Callable[[int], str]) -> str:
    if interval.high == interval.low:
        return text(interval.low)
    return f"{text(interval.low)}..{'' if interval.high is None else text(interval.high)}"


def _size_text(size_bytes: int) -> str:
    """The largest unit that says it exactly."""
    for unit, shift in (("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return str(size_bytes)

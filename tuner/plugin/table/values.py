"""Reads the parts of a row of a decision table: names, numbers, intervals."""

import hashlib
import math
import re
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np

from tuner.base.errors import one_of
from tuner.base.expressions import expression
from tuner.base.nouns import Span
from tuner.base.sizes import plural
from tuner.plugin.table.records import CHUNK_BYTES, LARGEST, LARGEST_COUNT, MAX_CHANNELS, MOST_BLOCK, MOST_EVERY

UNITS = {"": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30, "t": 40, "tib": 40}
_DECIMAL = expression(rb"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MOST_LETTERS = 63  # longest decimal number that the plugin reads
_Name = TypeVar("_Name", bound=IntEnum)


class Mistake(Exception):
    """A mistake in a line; the caller knows the line's number."""


class _Kind(NamedTuple):
    """A kind of whole number: its form, its largest value, and its name in errors."""

    pattern: re.Pattern[bytes]
    most: int
    called: str


_SIZE = _Kind(
    expression(rb"([0-9]+)([A-Za-z]*)"),
    LARGEST,
    "a number of bytes such as 65536, 64K or 64KiB (K, M, G, T: powers of 1024)",
)
_COUNT = _Kind(expression(rb"([0-9]+)()"), LARGEST_COUNT, "a number")


def by_name(names: type[_Name], word: bytes, what: str) -> _Name:
    """The member of ``names`` with the name ``word``, in upper or lower case; Mistake for an unknown name."""
    if word.lower() in (known := _names(names)):
        found: _Name = known[word.lower()]
        return found
    raise Mistake(f"unknown {what} '{shown(word)}' ({one_of(name.name for name in names)})")


@cache
def _names(names: type[_Name]) -> dict[bytes, _Name]:
    return {name.name.lower().encode(): name for name in names}


def interval(text: bytes, kind: _Kind, least: int) -> Span:
    """A number or an interval ``A..B``, ``A..``, ``..B``; Mistake for anything else."""
    low_text, dots, high_text = text.partition(b"..")
    if not (low_text or high_text):
        raise Mistake(f"'{shown(text)}' is not {kind.called} or an interval of it, A..B, A.. or ..B")
    low = _number(low_text, kind) if low_text else least
    high = _number(high_text, kind) if high_text else (kind.most if dots else low)
    if low < least or high < least:
        raise Mistake(f"'{shown(text)}': at least {least}")
    if low > high:
        raise Mistake(f"'{shown(text)}': the first number is above the second")
    return Span(low, None if high == kind.most else high)


def _number(text: bytes, kind: _Kind) -> int:
    match = kind.pattern.fullmatch(text)
    unit = match[2].decode().lower() if match else ""
    if not match or unit not in UNITS:
        raise Mistake(f"'{shown(text)}' is not {kind.called}")
    # More digits than the largest number has cannot fit, and Python refuses to convert thousands of digits.
    digits = match[1].lstrip(b"0") or b"0"
    if len(digits) > len(str(LARGEST)) or int(digits) << UNITS[unit] > kind.most:
        raise Mistake(f"'{shown(text)}' is past the largest number, {kind.most}")
    return int(digits) << UNITS[unit]


def whole(digits: bytes) -> int | None:
    """The number that decimal digits stand for; None if it does not fit into 64 bits."""
    digits = digits.lstrip(b"0") or b"0"
    number = int(digits) if len(digits) <= len(str(LARGEST)) else LARGEST + 1
    return number if number <= LARGEST else None


class _Setting(NamedTuple):
    """A whole number that a row sets, with its allowed range."""

    key: str
    kind: _Kind
    least: int
    most: int
    range_text: str

    def read(self, text: bytes) -> int:
        """Reads a number; Mistake if it is not in the range."""
        try:
            number = _number(text, self.kind)
        except Mistake:
            number = -1
        if not self.least <= number <= self.most:
            raise Mistake(f"{self.key}={shown(text)} is not a number {self.range_text}")
        return number


_CHANNELS = _Setting("channels", _COUNT, 1, MAX_CHANNELS, f"from 1 to {MAX_CHANNELS}")
_CHUNK = _Setting("chunk", _SIZE, *CHUNK_BYTES, "of bytes from 4K to 1G")
_BATCH = _Setting("batch", _COUNT, 1, LARGEST_COUNT, f"from 1 to {LARGEST_COUNT}")


_EVERY = _Setting("every", _COUNT, 2, MOST_EVERY, f"from 2 to {MOST_EVERY}")
_BLOCK = _Setting("block", _COUNT, 1, MOST_BLOCK, f"from 1 to {MOST_BLOCK}")
_CALLS = _Setting("calls", _COUNT, 1, LARGEST_COUNT, f"from 1 to {LARGEST_COUNT}")
SCHEDULE = {"every": _EVERY.read, "block": _BLOCK.read, "calls": _CALLS.read}


def channels(text: bytes) -> int:
    """Reads a number of channels."""
    return _CHANNELS.read(text)


def chunk(text: bytes) -> int:
    """Reads a chunk size in bytes."""
    return _CHUNK.read(text)


def batch(text: bytes) -> int:
    """Reads a number of operations in a batch."""
    return _BATCH.read(text)


def yes_or_no(text: bytes) -> bool:
    """Reads yes or no; Mistake for anything else."""
    if text not in (b"yes", b"no"):
        raise Mistake(f"registered={shown(text)} is neither yes nor no")
    return text == b"yes"


def sizes(text: bytes) -> Span:
    """Reads an interval of sizes in bytes, which may begin at 0."""
    return interval(text, _SIZE, 0)


def counts(text: bytes) -> Span:
    """Reads an interval of counts, all at least 1."""
    return interval(text, _COUNT, 1)


def counts_from_0(text: bytes) -> Span:
    """Reads an interval of counts, which may begin at 0."""
    return interval(text, _COUNT, 0)


def decimal(text: bytes, key: str) -> float:
    """Reads a finite decimal number of at least 0; Mistake for anything else."""
    number = float(text) if len(text) <= _MOST_LETTERS and _DECIMAL.fullmatch(text) else math.inf
    if not math.isfinite(number):
        raise Mistake(f"{key} '{shown(text)}' is not a finite decimal number of at least 0, such as 12.25 or 1e-3")
    return number


def latency(text: bytes) -> float:
    """Reads a latency in us that fits into a float32."""
    return _in_float32(decimal(text, "latency-us"), text, "latency-us")


def bandwidth(text: bytes) -> float:
    """Reads a bandwidth in GB/s, above 0, that fits into a float32; Mistake for anything else."""
    number = _in_float32(decimal(text, "bandwidth-gbs"), text, "bandwidth-gbs")
    if np.float32(number) == 0:
        raise Mistake(f"bandwidth-gbs '{shown(text)}' is not above 0")
    return number


def _in_float32(number: float, text: bytes, key: str) -> float:
    if number > float(np.finfo(np.float32).max):
        raise Mistake(f"{key} '{shown(text)}' is past the largest float")
    return number


def shown(word: bytes) -> str:
    """A word of a file, safe to print."""
    text = "".join(chr(byte) if 0x20 <= byte <= 0x7E else "?" for byte in word)
    return text if len(text) <= 44 else text[:44] + "..."


ROWS = "rows"
GPUS = "gpus"
VALID = "valid"
_ROWS = expression(rb"#[ \t]*rows:[ \t]+([0-9]+)(?:[ \t]+sha256[ \t]+([^ \t]+))?[ \t]*")
_LIKE_ROWS = expression(rb"#[ \t]*rows:(?:[ \t].*)?", re.IGNORECASE | re.DOTALL)
_VALID = expression(rb"#[ \t]*valid:(?:[ \t]+(.*?))?[ \t]*", re.DOTALL)
_DAYS = expression(rb"(\d{4}-\d\d-\d\d)?\.\.(\d{4}-\d\d-\d\d)?")
_GPUS = expression(rb"#[ \t]*gpus:[ \t]+([^ \t].*?)[ \t]*", re.DOTALL)


class Comments:
    """Comments of a file; if several name ``gpus``, the first counts.

    ``valid_s`` are the first and the last second, since 1970, of the days on which the table is valid; None stands for
    no limit.
    """

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0
        self._hashed = False
        self.valid_s: tuple[int | None, int | None] = (None, None)
        self.gpus = ""
        self.gpus_line = 0
        self._rows = 0
        self._rows_line = 0

    def take(self, number: int, line: bytes) -> None:
        """Reads a line, without its line end, and keeps what its comment says. Mistake for a zero byte, and if two
        comments announce different numbers of rows."""
        if b"\0" in line:
            raise Mistake("a zero byte: this is not a text file")
        if not self.gpus and (gpus := _GPUS.fullmatch(line)):
            self.gpus, self.gpus_line = "".join(map(_printable, gpus[1])), number
        if valid := _VALID.fullmatch(line):
            self.valid_s = _valid(valid[1] or b"")
        begins_at, self._at = self._at, self._content.find(b"\n", self._at) + 1
        if not _LIKE_ROWS.fullmatch(line):
            return
        match = _ROWS.fullmatch(line)
        rows = whole(match[1]) if match else None
        if match is None or rows is None:
            raise Mistake(f"'{shown(line)}' is not '# rows: N' or '# rows: N sha256 HASH'")
        if self._rows_line and rows != self._rows:
            raise Mistake(f"{_announced(rows)} here, and {self._rows} in line {self._rows_line}")
        before = hashlib.sha256(memoryview(self._content)[:begins_at]) if match[2] is not None else None
        if before is not None and match[2].lower() != before.hexdigest().encode():
            raise Mistake("what comes before has another sha256: the file was changed by hand, or in part")
        self._rows, self._rows_line, self._hashed = rows, number, match[2] is not None

    def missing(self, rows: int) -> tuple[int, str] | None:
        """What is wrong at the end of a table, after the number of the line that shows it; None if all is well.

        Either a line announces another number of rows than there are, or a line follows the end of the table.
        """
        if self._hashed and self._rows_line < self._content.count(b"\n"):
            return self._rows_line + 1, "something follows the line with the hash, which ends a table"
        if not self._rows_line or self._rows == rows:
            return None
        reason = f"{_announced(self._rows)}, and there are {rows}: the file is cut, or is being written"
        return self._rows_line, reason


MOST_BYTES = 16 << 20  # largest file, csrc/plugin/file.c
LARGE = f"larger than {MOST_BYTES} bytes"
CUT = "the last line does not end: the file is cut, or is being written"


def _announced(rows: int) -> str:
    return f"{plural(rows, 'row')} {'is' if rows == 1 else 'are'} announced"


def announce(rows: int) -> str:
    """The comment at the head of a table that announces its number of rows."""
    return f"# {ROWS}: {rows}"


def close(text: str, rows: int) -> str:
    """A table's text with the last line added, which shows that the file is complete."""
    return f"{text}{announce(rows)} sha256 {hashlib.sha256(text.encode()).hexdigest()}\n"


def _valid(days: bytes) -> tuple[int | None, int | None]:
    match = _DAYS.fullmatch(days)
    try:
        first, last = [_begin_s(day.decode()) if day else None for day in match.groups()] if match else (None, None)
    except ValueError:
        first = last = None
    if last is not None:
        last += int(timedelta(days=1).total_seconds()) - 1
    if (first is None and last is None) or (first is not None and last is not None and first > last):
        raise Mistake(f"'# valid: {shown(days)}' is not DAY..DAY, DAY.. or ..DAY, such as 2026-11-01..2027-01-31")
    return first, last


def _begin_s(day: str) -> int:
    """Seconds since 1970 at which a day begins in UTC. ValueError if it is no date, or before 1970."""
    begin = int(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    if begin < 0:
        raise ValueError(day)
    return begin


def lines_of(content: bytes) -> list[bytes]:
    """Lines without their line ends; the last one is empty if the file ends with a line end."""
    return [line.removesuffix(b"\r") for line in content.split(b"\n")]


def _printable(byte: int) -> str:
    return chr(byte) if 0x20 <= byte <= 0x7E else "?"

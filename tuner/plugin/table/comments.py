"""What the plugin asks of a file in every format: its size, its last line, the rows that a comment announces.

The last line may also have the sha256 of all before it. Other comments say the GPUs that the file is for, and the days
on which it is valid.
"""

import hashlib
import re
from datetime import UTC, datetime, timedelta

from tuner.plugin.table import values
from tuner.plugin.table.values import Mistake

ROWS = "rows"
GPUS = "gpus"
VALID = "valid"
_ROWS = re.compile(rb"#[ \t]*rows:[ \t]+([0-9]+)(?:[ \t]+sha256[ \t]+([^ \t]+))?[ \t]*")
_LIKE_ROWS = re.compile(rb"#[ \t]*rows:(?:[ \t].*)?", re.IGNORECASE | re.DOTALL)
_VALID = re.compile(rb"#[ \t]*valid:(?:[ \t]+(.*?))?[ \t]*", re.DOTALL)
_DAYS = re.compile(rb"(\d{4}-\d\d-\d\d)?\.\.(\d{4}-\d\d-\d\d)?")
_GPUS = re.compile(rb"#[ \t]*gpus:[ \t]+([^ \t].*?)[ \t]*", re.DOTALL)


class Comments:
    """What the comments of a file say; of several for ``gpus`` the first counts. Lines are without their ends.

    ``valid_s`` are the first and last second since 1970 of the days on which the table is valid; None for no end.
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
        """Errors: Mistake for a zero byte, and where two comments announce different numbers of rows."""
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
        rows = values.whole(match[1]) if match else None
        if match is None or rows is None:
            raise Mistake(f"'{values.shown(line)}' is not '# rows: N' or '# rows: N sha256 HASH'")
        if self._rows_line and rows != self._rows:
            raise Mistake(f"{rows} rows are announced here, and {self._rows} in line {self._rows_line}")
        before = hashlib.sha256(memoryview(self._content)[:begins_at]) if match[2] is not None else None
        if before is not None and match[2].lower() != before.hexdigest().encode():
            raise Mistake("what comes before has another sha256: the file was changed by hand, or in part")
        self._rows, self._rows_line, self._hashed = rows, number, match[2] is not None

    def missing(self, rows: int) -> tuple[int, str] | None:
        """The line that announces another number of rows, or comes after the end, and what is wrong with it."""
        if self._hashed and self._rows_line < self._content.count(b"\n"):
            return self._rows_line + 1, "something follows the line with the hash, which ends a table"
        if not self._rows_line or self._rows == rows:
            return None
        reason = f"{self._rows} rows are announced, and there are {rows}: the file is cut, or is being written"
        return self._rows_line, reason


MOST_BYTES = 16 << 20  # of a file, csrc/plugin/file.c
LARGE = f"larger than {MOST_BYTES} bytes"
CUT = "the last line does not end: the file is cut, or is being written"


def announce(rows: int) -> str:
    """The comment at the head of a table."""
    return f"# {ROWS}: {rows}"


def close(text: str, rows: int) -> str:
    """A table's text with its last line, which shows that all of it is there."""
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
        raise Mistake(
            f"'# valid: {values.shown(days)}' is not DAY..DAY, DAY.. or ..DAY, such as 2026-11-01..2027-01-31"
        )
    return first, last


def _begin_s(day: str) -> int:
    """Seconds since 1970 at which a day begins in UTC. Errors: ValueError."""
    begin = int(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    if begin < 0:
        raise ValueError(day)
    return begin


def lines_of(content: bytes) -> list[bytes]:
    """Lines without their ends; the last is empty where the file ends with one."""
    return [line.removesuffix(b"\r") for line in content.split(b"\n")]


def _printable(byte: int) -> str:
    return chr(byte) if 0x20 <= byte <= 0x7E else "?"

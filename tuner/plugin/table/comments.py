"""What the plugin asks of a file in every format: its size, its last line, the rows that a comment announces.

Comments also say the GPUs that it is for.
"""

import re

from tuner.plugin.table import values
from tuner.plugin.table.values import Mistake

ROWS = "rows"
GPUS = "gpus"
_ROWS = re.compile(rb"#[ \t]*rows:[ \t]+([0-9]+)[ \t]*")
_GPUS = re.compile(rb"#[ \t]*gpus:[ \t]+([^ \t].*?)[ \t]*", re.DOTALL)


class Comments:
    """What the comments of a file say; of several for ``gpus`` the first counts. Lines are without their ends."""

    def __init__(self) -> None:
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
        match = _ROWS.fullmatch(line)
        rows = values.whole(match[1]) if match else None
        if rows is None:
            return
        if self._rows_line and rows != self._rows:
            raise Mistake(f"{rows} rows are announced here, and {self._rows} in line {self._rows_line}")
        self._rows, self._rows_line = rows, number

    def missing(self, rows: int) -> tuple[int, str] | None:
        """The line that announces another number of rows, and what is wrong with it."""
        if not self._rows_line or self._rows == rows:
            return None
        reason = f"{self._rows} rows are announced, and there are {rows}: the file is cut, or is being written"
        return self._rows_line, reason


MOST_BYTES = 16 << 20  # of a file, csrc/plugin/file.c
LARGE = f"larger than {MOST_BYTES} bytes"
CUT = "the last line does not end: the file is cut, or is being written"


def lines_of(content: bytes) -> list[bytes]:
    """Lines without their ends; the last is empty where the file ends with one."""
    return [line.removesuffix(b"\r") for line in content.split(b"\n")]


def _printable(byte: int) -> str:
    return chr(byte) if 0x20 <= byte <= 0x7E else "?"

"""Bounds on the files that a reader accepts. Each reader declares its bounds in its own module. If a file exceeds a
bound, the error names the bound; docs/bounds.md lists all of them.

A file from elsewhere may be small but unpack to gigabytes, or be a text in which every byte becomes an object.
NCCL_TUNER_BOUNDS multiplies every bound: ``NCCL_TUNER_BOUNDS=4`` allows four times as much, and may take four times the
memory and time.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.base.dataclass import dataclass
from tuner.base.errors import TunerError
from tuner.base.sizes import human_bytes

if TYPE_CHECKING:
    import sqlite3

VARIABLE = "NCCL_TUNER_BOUNDS"
MOST_FACTOR = 1000.0
DECLARED = list["ReaderBounds"]()  # the bounds of every reader that was imported


@dataclass(frozen=True, slots=True)
class ReaderBounds:
    """Bounds of one reader: ``unpacked_bytes`` of a compressed file, ``lines`` of text, ``values`` of a JSON document,
    ``seconds`` of a query of a database, ``file_bytes`` of a file that is read as a whole whatever its content (None:
    any size).
    """

    what: str
    unpacked_bytes: int = 128 << 20
    lines: int = 4_000_000
    values: int = 3_000_000
    file_bytes: int | None = None
    seconds: float = 20.0

    def __post_init__(self) -> None:
        DECLARED.append(self)


def factor() -> float:
    """The factor by which NCCL_TUNER_BOUNDS multiplies the bounds; 1 if it is not a number from 1 to
    ``MOST_FACTOR``.
    """
    with suppress(ValueError):
        if 1 <= (given := float(os.environ.get(VARIABLE, "1"))) <= MOST_FACTOR:
            return given
    return 1.0


def over(what: str, most: float, unit: str = "") -> str:
    """The message about an exceeded bound: what is too large, how large it may be, and how to raise the bound."""
    shown = f"{human_bytes(int(most))}" if unit == "bytes" else f"{most:,.0f} {unit}".rstrip()
    return f"too large: {what}; valid: up to {shown}, or {VARIABLE}=N for N times as much"


def check_text(content: bytes, where: str, wrong: type[TunerError], bounds: ReaderBounds) -> None:
    """Checks the number of lines of a text. Raises an error of the class ``wrong`` if there are more lines than
    ``bounds`` allow.
    """
    lines = content.count(b"\n")
    if lines > (most := bounds.lines * factor()):
        raise wrong(f"{where}: {over(f'its lines ({lines:,})', most, 'lines')}")


LEAST_LINE_BYTES = 16  # on average: a log that exceeds a bound on lines may be long, but its lines are not this short


def of_log(lines: Iterable[bytes], where: str, wrong: type[TunerError], bounds: ReaderBounds) -> Iterator[bytes]:
    """Yields the lines of a log that is read in pieces. The log may have any length, unless its lines are almost empty.
    Raises an error of the class ``wrong`` if a log of almost empty lines has more lines than ``bounds`` allow.
    """
    read_bytes, most = 0, int(bounds.lines * factor())
    for number, line in enumerate(lines):
        read_bytes += len(line)
        if number >= most and read_bytes < LEAST_LINE_BYTES * number:
            raise wrong(f"{where}: {over('its lines, which are next to empty', most, 'lines')}")
        yield line


_SIGNS = (b",", b"[", b"{")


def check_json(content: bytes | str, where: str, wrong: type[TunerError], bounds: ReaderBounds) -> None:
    """Checks the number of values of a JSON document before it is parsed. Raises an error of the class ``wrong`` if
    there are more values than ``bounds`` allow.

    Brackets and commas in texts count, too, so a document with somewhat fewer values may be refused.
    """
    values = sum(content.encode().count(sign) if isinstance(content, str) else content.count(sign) for sign in _SIGNS)
    if values > (most := bounds.values * factor()):
        raise wrong(f"{where}: {over(f'its values (about {values:,})', most, 'values')}")


_STEPS = 100_000  # steps of SQLite's virtual machine between two checks of the clock
_CELL_BYTES = 16 << 20
_HEAP_BYTES = 400 << 20
_RECURSIVE = 33  # SQLITE_RECURSIVE


@contextmanager
def database(
    path: Path, content: bytes | None, wrong: type[TunerError], bounds: ReaderBounds
) -> "Iterator[sqlite3.Connection]":
    """Opens a SQLite database for reading only, and within bounds. ``content``: the bytes of the database if its file
    had to be unpacked, else None.

    Only tables are read: views and generated columns, which would compute something, are refused. Raises an error of
    the class ``wrong`` if the database has these, or if its queries take longer than the bound. Raises sqlite3.Error if
    the file is not a database.
    """
    import sqlite3  # few readers need it

    end = time.monotonic() + bounds.seconds * factor()
    late = False

    def looked() -> int:
        nonlocal late
        late = time.monotonic() > end
        return int(late)

    def allowed(action: int, _first: str | None, _second: str | None, _database: str | None, view: str | None) -> int:
        return sqlite3.SQLITE_DENY if view is not None or action == _RECURSIVE else sqlite3.SQLITE_OK

    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(":memory:" if content is not None else uri, uri=content is None)) as opened:
        if content is not None:
            opened.deserialize(content)
        opened.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _CELL_BYTES)
        opened.execute("PRAGMA trusted_schema = OFF")
        opened.execute(f"PRAGMA hard_heap_limit = {int(_HEAP_BYTES * factor()) + len(content or b'')}")
        opened.set_progress_handler(looked, _STEPS)
        _refuse_generated(opened, str(path), wrong)
        opened.set_authorizer(allowed)
        try:
            yield opened
        except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
            if late:
                raise wrong(f"{path}: {over('the time of its queries', bounds.seconds * factor(), 's')}") from None
            if "not authorized" in str(error) or "prohibited" in str(error):
                raise wrong(f"{path}: a view in it where an export has a table") from None
            raise


def _refuse_generated(opened: "sqlite3.Connection", where: str, wrong: type[TunerError]) -> None:
    for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        quoted = str(name).replace('"', '""')
        if any(column[-1] in (2, 3) for column in opened.execute(f'PRAGMA table_xinfo("{quoted}")')):
            raise wrong(f"{where}: a generated column in table {name!r}, which no export has")


def row(bounds: ReaderBounds) -> str:
    """A reader's row in the table of docs/bounds.md."""
    file = "any" if bounds.file_bytes is None else human_bytes(bounds.file_bytes)
    unpacked, counts = (
        human_bytes(bounds.unpacked_bytes),
        f"{bounds.lines:,} | {bounds.values:,} | {bounds.seconds:g} s",
    )
    return f"| {bounds.what} | {file} | {unpacked} | {counts} |"

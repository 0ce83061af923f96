"""Reads logs of any size in bounded memory: lines that say nothing new are dropped while the log is read.

Lines that differ only in digits, or in letters of hexadecimal numbers, have the same shape, and most lines of a large
log have a shape that was seen before. Lines of a shape that says nothing are dropped. If a shape repeats, such as calls
of a collective, its first lines and each thread's last line are kept. Of any other shape, all lines are kept, unless
the log repeats itself.
"""

import errno
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

from tuner.base.bounds import factor, over
from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.files import GZIPPED, UTF_16, read_bytes
from tuner.scenario.logs import endings
from tuner.scenario.logs.lines import KEPT, LOG, OF_RESULTS, STRIPPED, UNKNOWN, Lines, PrintedLine, as_line

BLOCK_BYTES = 1 << 18
MOST_LINE_BYTES = 1 << 16  # what a line has beyond this is left out
MOST_SHAPES = 50_000  # most shapes whose kind is remembered
MOST_ALIKE = 200  # most lines that are kept of a shape that repeats
MOST_LATEST = 100_000  # most threads and shapes whose last line is remembered
MOST_LINES = 200_000  # most lines that are kept in all, and most grave lines that are kept in addition
_NOTHING, _EACH = -1, -2  # stand for all lines of a shape, instead of the number of lines so far
_VARYING = b"0123456789abcdef"
_STAMP = b"0123456789-:.TZ[]+, "  # characters of a time before a line
_TEXT = bytes(each for each in range(256) if each in b"\t\n\r\x1b" or each >= 32)
_MOST_BINARY = 0.02  # share of a block's bytes; with more, the file is not text
_STEMS = tuple(stem.encode() for stem in endings.STEMS)
_OF_TESTS = expression(f"{KEPT.pattern}|{OF_RESULTS.pattern}".encode())
# In a log whose lines nearly all have different shapes, a line without any of these marks is assumed to say nothing.
_MARKS = (
    b"CCL", b"rror", b"CUDA", b"Xid", b"ignal", b"SIG", b"illed", b"OOM", b"CANCELLED", b"raceback", b"ault", b"bort",
    b"fail", b"vict", b"exit", b"erminat", b"ssertion", b"# ", b" sum ", b" none ", b"_perf",
)  # fmt: skip
_GRAVE = (b" WARN ", b"- Init ", b"COMPLETE", *_STEMS)


class Sort(Enum):
    """Which lines of a shape are kept: all, only the first and last ones, or none."""

    EACH = "each"
    REPEATS = "repeats"
    NOTHING = "nothing"


def read_thinned(
    path: Path, sort_of: Callable[[PrintedLine], Sort], progress: Callable[[int], None] = lambda read_bytes: None
) -> Lines:
    """Reads the lines of a file that say something. ``sort_of`` gets one line of each shape and decides which lines of
    this shape are kept.

    ``progress`` is called with the number of bytes read since the last call. BadInput if the file cannot be read.
    """
    kept = _Kept(sort_of)
    try:
        with _opened(path) as file:
            _read(file, kept, progress)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    lines = Lines(kept.in_order)
    lines.total, lines.left_out = kept.number, kept.full
    return lines


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        start = file.read(2)
    if start == GZIPPED:
        return cast("BinaryIO", gzip.open(path, "rb"))
    return BytesIO(read_bytes(path, BadInput)) if start in UTF_16 else path.open("rb")


def _read(file: BinaryIO, kept: "_Kept", progress: Callable[[int], None]) -> None:
    rest, skips = b"", False  # the line in which a block ends, and whether the rest of that line is left out
    unpacked, most = 0, LOG.unpacked_bytes * factor() if isinstance(file, gzip.GzipFile) else None
    while block := file.read(BLOCK_BYTES):
        progress(len(block))
        unpacked += len(block)
        if most is not None and unpacked > most:
            raise OSError(errno.EFBIG, over("what it unpacks to", most, "bytes"))
        if _is_binary(block) and b"NCCL " not in block:
            kept.number += block.count(b"\n")
            rest = b""
            continue
        if b"\n" not in block and b"\r" in block:
            block = block.replace(b"\r", b"\n")
        lines = block.split(b"\n")
        if not skips:
            lines[0] = rest + lines[0]
        elif len(lines) > 1:
            lines[0] = b""
        rest = lines.pop()
        shapes = block.translate(None, _VARYING).split(b"\n")[: len(lines)]
        kept.add(lines, [lines[0].translate(None, _VARYING), *shapes[1:]] if lines else [])
        skips = len(rest) > MOST_LINE_BYTES or (skips and not lines)
        if skips:
            kept.add([rest[:MOST_LINE_BYTES]], [rest[:MOST_LINE_BYTES].translate(None, _VARYING)])
            kept.number -= 1  # the end of the line is still to come
            rest = b""
    if rest:
        kept.add_last(rest)


def _is_binary(block: bytes) -> bool:
    sample = block[:: max(1, len(block) // 4096)]
    return len(sample.translate(None, _TEXT)) > _MOST_BINARY * len(sample)


def _has_any(line: bytes, marks: Sequence[bytes]) -> bool:
    for mark in marks:  # noqa: SIM110 - any() takes twice as long, and this is called for every line of a log
        if mark in line:
            return True
    return False


def _begin(line: bytes) -> int:
    """The index in a line at which host, process and thread begin, after the prefixes of launchers and collectors."""
    return line.rfind(b" ", 0, line.rfind(b" [", 0, max(0, line.find(b"] NCCL")))) + 1


class _Kept:
    """The lines that are kept, with their numbers."""

    def __init__(self, sort_of: Callable[[PrintedLine], Sort]) -> None:
        self._sort_of = sort_of
        self._lines = list[tuple[int, bytes]]()
        self._count = dict[bytes, int]()  # by shape: the number of lines so far, or that none or all are kept
        self._latest = dict[tuple[bytes, bytes], tuple[int, bytes]]()  # by thread and shape that repeats
        self._begun = set[int]()  # hashes of the lines that begin a communicator
        self._repeats = dict[bytes, bool]()  # by thread
        self._follows = False  # the last line says that the next one is an error
        self.number = 0
        self.full = False  # lines that say something had to be left out

    def in_order(self) -> Iterator[tuple[int, bytes]]:
        """The lines in the order of their numbers, with their line ends."""
        there = {number for number, _ in self._lines}
        latest = ((number, line + b"\n") for number, line in self._latest.values() if number not in there)
        return iter(sorted([*self._lines, *latest]))

    @property
    def knows_many(self) -> bool:
        """Whether the limit of remembered shapes is reached."""
        return len(self._count) >= MOST_SHAPES

    def add(self, lines: Sequence[bytes], shapes: Sequence[bytes]) -> None:
        """Adds lines without their line ends. Once the limit of shapes is reached, a line of a new shape is kept only
        if it has one of the marks.

        Each shape is looked up once for all its lines, as there can be millions.
        """
        if not lines:
            return
        first = self.number + 1
        settled, repeats = set[bytes](), set[bytes]()
        for shape in set(shapes):
            seen = self._count.get(shape)
            if seen == _NOTHING:
                settled.add(shape)
            elif seen is not None and seen >= MOST_ALIKE:
                settled.add(shape)
                repeats.add(shape)
        if repeats:
            self._keep_latest(lines, shapes, repeats, first)
        at = 0 if self._follows else -1  # the line after one that says that the next one is an error
        for index in [index for index, shape in enumerate(shapes) if shape not in settled] if at else range(len(lines)):
            if at >= 0 and index > at and self._count.get(shapes[at]) == _NOTHING:
                self._keep(first + at, lines[at])
            self._add(first + index, shapes[index], lines[index])
            at = index + 1 if self._follows else -1
        if 0 <= at < len(lines) and self._count.get(shapes[at]) == _NOTHING:
            self._keep(first + at, lines[at])
        self.number += len(lines)

    def _add(self, number: int, shape: bytes, line: bytes) -> None:
        """Adds one line whose shape is new, or not decided yet."""
        seen = self._count.get(shape)
        if seen is None:
            if not self.knows_many or _has_any(line, _MARKS):
                self._new(number, shape, line)
        elif seen == _NOTHING:
            if self._follows:
                self._keep(number, line)
        elif seen == _EACH:
            if not self._keep(number, line):
                self._count[shape] = _NOTHING  # there will be no room for lines like it
        elif seen < MOST_ALIKE:
            self._count[shape] = seen + 1 if self._keep(number, line) else MOST_ALIKE
        else:
            self._keep_latest([line], [shape], {shape}, number)

    def _keep_latest(self, lines: Sequence[bytes], shapes: Sequence[bytes], repeats: set[bytes], first: int) -> None:
        """Remembers the last line of each thread for each shape that repeats."""
        at_begin = all(
            _begin(line) == 0 for line in (lines[0], lines[-1])
        )  # nothing precedes the host, as far as it shows
        threads = (
            [line[: line.find(b"] NCCL") + 1] for line in lines]
            if at_begin
            else [line[_begin(line) : line.find(b"] NCCL") + 1] for line in lines]
        )
        for (thread, shape), index in dict(
            zip(zip(threads, shapes, strict=True), range(len(lines)), strict=True)
        ).items():
            if shape not in repeats:
                continue
            if (key := (thread, shape)) in self._latest or len(self._latest) < MOST_LATEST:
                self._latest[key] = first + index, lines[index]

    def add_last(self, line: bytes) -> None:
        """Adds the last line, which has no line end. :class:`Lines` decides whether it is incomplete and left out."""
        self.number += 1
        self._lines.append((self.number, line[:MOST_LINE_BYTES]))

    def _new(self, number: int, shape: bytes, line: bytes) -> None:
        says = b"CCL" in line or _has_any(line, _STEMS) or line[:1] in b"# "
        if not says and not _OF_TESTS.search(line) and not STRIPPED.search(line):
            sort, keeps = Sort.NOTHING, self._follows
        else:
            printed = as_line(line.decode("utf-8", "replace"))
            sort = self._sort_of(printed)
            keeps = sort is not Sort.NOTHING or printed.thread is not UNKNOWN or self._follows
        if keeps:
            self._keep(number, line)
        if len(self._count) < MOST_SHAPES:
            self._count[shape] = {Sort.NOTHING: _NOTHING, Sort.EACH: _EACH}.get(sort, 1)

    def _keep(self, number: int, line: bytes) -> bool:
        """Keeps a line unless it is repeated. Returns False if there is no room for lines like it."""
        self._follows = line.rstrip().endswith(b"Last error:")
        if (at := line.find(b"] NCCL")) >= 0 and self._is_repeated(line[:at].lstrip(_STAMP), line):
            return True
        if len(self._lines) >= MOST_LINES and (len(self._lines) >= 2 * MOST_LINES or not _has_any(line, _GRAVE)):
            self.full = True
            return False
        self._lines.append((number, line + b"\n"))
        return True

    def _is_repeated(self, thread: bytes, line: bytes) -> bool:
        """Whether a line belongs to a second copy of the log. A copy begins if a thread begins a communicator with the
        same name and address again; its lines are not kept until the thread begins another communicator.
        """
        if b"Init START" in line:
            text = hash(line[line.find(b"] NCCL") :] + thread)
            self._repeats[thread] = text in self._begun
            self._begun.add(text)
        return self._repeats.get(thread, False)

"""Reads the lines of a log: NCCL's, with or without the prefix of a launcher or log collector, and those that report an
ending.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from tuner.base.bounds import ReaderBounds, of_log
from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.files import is_plain_file, read_bytes
from tuner.scenario.logs import endings

# host:pid:tid [device] NCCL INFO text. Some builds put the function before "NCCL", and launchers anything before the
# host. Searches begin at the start of a word; if they began at each letter, a long word would take time that grows with
# the square of its length.
_PREFIX = expression(r"(?<![^\s:\[\]()])([^\s:\[\]()]+):(\d+):(\d+) \[-?\d+\]")
_MARK = "NCCL INFO "
_WARNS = "NCCL WARN "
# The same if a person or a collector of logs removed NCCL's name or the whole prefix; up to 2.3 NCCL did not print its
# name. A warning then needs its place in NCCL's source, or a text that only NCCL prints, because other programs write
# WARN, too.
_BARE = expression(
    r"(?P<head>(?:\S+:\d+:\d+ )?(?:\[-?\d+\] )?)(?:INFO (?=\S)"
    r"|(?P<place>[\w./-]+\.(?:cc|c|h|cu):\d+) WARN |(?P<warns>WARN )(?=NET/|Call to \w|Cuda failure))"
)
STRIPPED = expression(
    rb"comm 0x[0-9a-f]+ rank \d+ n[rR]anks (\d)|NET/(?:IB|Socket|Plugin) ?: (U|N)|(?m:^.{0,24}Channel \d+/\d+ :)( )"
    rb"|- Init (START|COMPLETE)|NVLS multicast (s)upport|Bootstrap ?: (Using) |Using (?:internal )?(network|Network) "
    rb"|\d{1,9} coll (channels), |Trees (\[)0\]|\] via (P2P|SHM|NET)/|NET : Using interface (\S)"
    rb"|NET/IB: \[\d+\] \w+:(\d)/|Using NCCL (Low-latency) algorithm"
)
MOST_STRIPPED_BYTES = 1 << 20  # most bytes of a file that are searched for these lines
TYPES = "float|half|double|bfloat16|u?int(?:8|32|64)|fp8_e[45]m[23]|f8e[45]m[23]"  # as nccl-tests prints them
# Lines without a prefix, after whatever a launcher adds: nccl-tests' list of devices and its table, what NCCL writes to
# stdout, and PyTorch's message about a collective that did not end.
KEPT = expression(
    rf"#\s+Rank\s+\d|#\s+size\s+count|#\s+out-of-place\s|^\s+\d+\s+\d+\s+(?:{TYPES}) "
    r"|[NR]CCL version (?:: )?\d|(?:Watchdog c|C)aught collective"
    r"|last enqueued (?:NCCL )?work|Last error:\s*$|NCCL DIAG \[|^NET/IB\w* ?: ?Got completion from peer"
    r"|(?:^|\s)(?:host|rank)\s{2,}: \S|^(?:host|rank) : \S|Root Cause \(first"
)
COMPLETION = expression(r"NET/IB\w* ?: ?Got completion from peer.*")
# Lines of nccl-tests: its comments, the name of its program, and its rows.
OF_RESULTS = expression(
    r"# ?(?:nThread|nccl-tests|Using devices|Collective|Avg bus|Out of bounds)|#\s+(?:Rank|size|out-of-place|\(B\))\s"
    rf"|\w_perf\b|\d\s+(?:{TYPES})\s+\w+\s+-?\d"
)
LAST_ERROR = expression(r"Last error:\s*$")
_NO_NUMBER = expression(r"\d{4000}")  # Python reads at most 4300 digits; NCCL prints some tens
_PLACE = expression(r"\b\w+/\w+\.(?:cc|h):\d+")
# Keys of a line in a JSON record; the last ones are those of Google Cloud, Azure and Splunk.
_TEXTS = ("log", "message", "MESSAGE", "msg", "line", "textPayload", "LogEntry", "LogMessage", "_raw")
_FIELD = expression(r' +"\w+": (".*"),?\s*')  # a field of a record that is printed over several lines
ANSI = expression(r"\x1b\[[0-9;?]*[A-Za-z]")


class Thread(NamedTuple):
    """The thread that wrote a line."""

    host: str
    pid: int
    tid: int

    @property
    def process(self) -> tuple[str, int]:
        """The host and the process."""
        return self.host, self.pid


UNKNOWN = Thread("", 0, 0)


def of_rank(rank: int) -> Thread:
    """The thread that stands for a rank whose lines have no prefix."""
    return Thread("", 0, -1 - rank)


def is_stripped(content: bytes) -> bool:
    """Whether lines without NCCL's prefix come from NCCL, judging by their text. Lines of at least two kinds are
    required, because lines of a single kind may be quoted by another program."""
    return len({match.lastindex for match in STRIPPED.finditer(content[:MOST_STRIPPED_BYTES])}) > 1


class PrintedLine(NamedTuple):
    """A line of a log, and the thread that wrote it."""

    thread: Thread  # UNKNOWN if the line has no prefix
    text: str
    warns: bool = False
    number: int = 0  # number of the line in its file, from 1


class Lines(Iterable[PrintedLine]):
    """The lines of NCCL in a log, in order. Each iteration reads the log again, because it may be larger than memory.

    Lines without NCCL's prefix are kept, with an UNKNOWN thread, only if no line has a prefix. If some line has a
    prefix, the lines without one are output of other programs, or pieces of lines that several processes wrote into
    each other. Output of another program before the prefix, without a line break, is removed from the host's name.
    ``cut`` says whether the last line is incomplete; such a line is left out unless it warns, reports an ending, or has
    the last word of a complete line.

    ``raw`` yields all lines with their numbers. If several files are read as one, ``files`` has the first line number
    and the name of each. ``left_out`` says whether there were too many relevant lines to keep.
    """

    def __init__(self, raw: Callable[[], Iterable[tuple[int, bytes]]]) -> None:
        self.raw, self.cut = raw, False
        self.files: tuple[tuple[int, str], ...] = ()
        self.total: int | None = None  # number of lines of the files, if some were left out
        self.left_out = False
        hosts: dict[tuple[int, int], set[str]] = defaultdict(set)
        self.blank, last = True, b"\n"
        for _, last in raw():
            self.blank = self.blank and not last.strip()
            if b"NCCL " in last and last.endswith(b"\n"):
                thread = as_line(_text(last)).thread
                hosts[thread.pid, thread.tid].add(thread.host)
        self.cut = not last.endswith(b"\n")
        self._whole = {
            Thread(name, *ids): Thread(min((other for other in names if name.endswith(other)), key=len), *ids)
            for ids, names in hosts.items()
            for name in names
        }

    def __iter__(self) -> Iterator[PrintedLine]:
        prefixed = bool(self._whole.keys() - {UNKNOWN})
        error_follows = False
        for number, raw in self.raw():
            line = as_line(_text(raw))
            if not raw.endswith(b"\n") and not (line.warns or _is_whole(line)):
                continue
            if line.thread is not UNKNOWN:
                yield PrintedLine(self._whole.get(line.thread, line.thread), line.text, line.warns, number)
            elif not prefixed or line.warns or error_follows or KEPT.search(line.text) or endings.is_of(line.text):
                yield line._replace(number=number)
                error_follows = LAST_ERROR.search(line.text) is not None


def _is_whole(line: PrintedLine) -> bool:
    """Whether a line without a line break is complete, as the last line of a file may be."""
    return line.text.endswith("COMPLETE") or (line.thread is UNKNOWN and endings.is_of(line.text))


def joined(parts: Sequence[tuple[str, Lines]]) -> Lines:
    """Joins the lines of several named files into one log, one file after the other."""
    firsts, first = list[int](), 1
    for _, lines in parts:
        firsts.append(first)
        first += lines.total or 0

    def raw() -> Iterator[tuple[int, bytes]]:
        for start, (_, lines) in zip(firsts, parts, strict=True):
            for number, line in lines.raw():
                yield start + number - 1, line

    found = Lines(raw)
    found.files = tuple((start, name) for start, (name, _) in zip(firsts, parts, strict=True))
    found.total, found.left_out = first - 1, any(lines.left_out for _, lines in parts)
    return found


def read_lines(path: Path) -> Lines:
    """Reads the lines of NCCL in a file. BadInput if the file cannot be read or is empty."""
    lines = Lines(partial(_lines_of_file, path)) if is_plain_file(path) else nccl_lines(read_bytes(path, BadInput))
    if lines.blank:
        raise BadInput(f"{path} is empty: give what NCCL prints with NCCL_DEBUG=INFO")
    return lines


LOG = ReaderBounds("NCCL's log", lines=3_000_000)


def _lines_of_file(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            yield from enumerate(of_log(file, str(path), BadInput, LOG), start=1)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def nccl_lines(data: bytes) -> Lines:
    """The lines of NCCL in a file's content."""
    return Lines(lambda: enumerate(BytesIO(data), start=1))


def split_lines(lines: Iterable[str]) -> Lines:
    """The lines of NCCL among lines of text."""
    return nccl_lines("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass"))


def _text(line: bytes) -> str:
    return line.removesuffix(b"\n").decode("utf-8", "replace")


def as_line(line: str) -> PrintedLine:
    """Reads one line; the text before NCCL's part is removed."""
    if len(line) > 4000 and _NO_NUMBER.search(line):
        return PrintedLine(UNKNOWN, "")
    line = (ANSI.sub("", line) if "\x1b" in line else line).strip("\r\0")
    if line.startswith(("{", " ")):
        line = in_record(line)
    if (
        _MARK not in line
        and _WARNS not in line
        and ("INFO " in line or "WARN " in line)
        and (bare := _BARE.match(line))
    ):
        text = line[bare.end() :]
        if bare["place"] and text.startswith(("Cuda failure", "Call to ")):
            text = f"{text.rstrip()} ({bare['place']})"
        return PrintedLine(_thread(bare["head"]), text, bare["place"] is not None or bare["warns"] is not None)
    head, mark, text = line.rpartition(_MARK)
    warns = not mark and _WARNS in line
    if warns:
        head, mark, text = line.rpartition(_WARNS)
        if text.startswith(("Cuda failure", "Call to ")) and (place := _PLACE.search(head)):
            text = f"{text.rstrip()} ({place[0]})"  # says what the line was for
    return PrintedLine(_thread(head), text, warns) if mark else PrintedLine(UNKNOWN, line)


def in_record(line: str) -> str:
    """The text of a line inside a JSON record or one of its fields, as Docker, CloudWatch and journald store lines.

    The record may be nested in another record. Any other line stays as it is.
    """
    with suppress(ValueError, RecursionError):
        field = _FIELD.fullmatch(line)
        if field is None and not line.startswith("{"):
            return line
        record = {_TEXTS[0]: json.loads(field[1])} if field else json.loads(line)
        records = [record, *record.values()] if isinstance(record, dict) else []  # "12" is JSON, too, but not a record
        text = next((each[key] for each in records if isinstance(each, dict) for key in _TEXTS if key in each), None)
        if isinstance(text, str):
            return text.rstrip("\r\n")
    return line


@lru_cache(4096)
def _thread(head: str) -> Thread:
    # the last match of each: a line that broke into another one starts anew, and a launcher's time may look like a
    # prefix
    prefixes = _PREFIX.findall(head)
    if not prefixes:
        return UNKNOWN
    host, pid, tid = prefixes[-1]
    return Thread(host, int(pid), int(tid))

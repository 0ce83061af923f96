"""A log file as NCCL's lines: whatever stood before NCCL's own prefix is cut off, each line knows its thread."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.base.errors import BadInput
from tuner.base.files import read_bytes

# host:pid:tid [device] NCCL INFO text; some builds put the function before "NCCL", launchers anything before the host.
_PREFIX = re.compile(r"([^\s:\[\]()]+):(\d+):(\d+) \[-?\d+\]")
_MARK = "NCCL INFO "
_WARNS = "NCCL WARN "
# Of lines without a prefix, behind whatever a launcher tags: nccl-tests' list of devices, what NCCL writes to stdout.
_KEPT = re.compile(r"#\s+Rank\s+\d|[NR]CCL version (?:: )?\d")
_NO_NUMBER = re.compile(r"\d{4000}")  # Python reads no more than 4300 digits, NCCL prints some tens
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Thread:
    """Who wrote a line."""

    host: str
    pid: int
    tid: int

    @property
    def process(self) -> tuple[str, int]:
        """Host and process."""
        return self.host, self.pid


UNKNOWN = Thread("", 0, 0)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log, and the thread that wrote it."""

    thread: Thread  # UNKNOWN where the line has no prefix
    text: str
    warns: bool = False


def read(path: Path) -> tuple[list[Line], bool]:
    """NCCL's lines of a file in their order, and whether the last is left out because it is cut: it has no end.

    BadInput where the file cannot be read or is empty.
    """
    data = read_bytes(path, BadInput)
    if not data.strip():
        raise BadInput(f"{path}: empty; valid: what NCCL prints with NCCL_DEBUG=INFO")
    return of(data)


def of(data: bytes) -> tuple[list[Line], bool]:
    """The same of a file's content."""
    whole, end, rest = data.rpartition(b"\n")
    return split(whole.decode("utf-8", "replace").split("\n")), bool(rest or not end)


def split(lines: Iterable[str]) -> list[Line]:
    """The same for lines of text.

    Lines without NCCL's prefix stay, of an UNKNOWN thread, only where no line has one: otherwise they are other
    programs' output, or pieces of lines that several processes wrote into each other.
    """
    own = [_line(line) for line in lines]
    if any(line.thread is not UNKNOWN for line in own):
        own = [line for line in own if line.thread is not UNKNOWN or line.warns or _KEPT.search(line.text)]
    return _with_whole_hosts(own)


def _line(line: str) -> Line:
    if len(line) > 4000 and _NO_NUMBER.search(line):
        return Line(UNKNOWN, "")
    line = (_ANSI.sub("", line) if "\x1b" in line else line).strip("\r\0")
    head, mark, text = line.rpartition(_MARK)
    warns = not mark and _WARNS in line
    if warns:
        head, mark, text = line.rpartition(_WARNS)
    if not mark:
        return Line(UNKNOWN, line)
    # the last of each: a line that broke into another starts anew, and a launcher's time may look like a prefix
    prefixes = _PREFIX.findall(head)
    if not prefixes:
        return Line(UNKNOWN, text, warns)
    host, pid, tid = prefixes[-1]
    return Line(Thread(host, int(pid), int(tid)), text, warns)


def _with_whole_hosts(lines: list[Line]) -> list[Line]:
    """Output that another program wrote before the prefix without a line break is cut off the host's name."""
    hosts: dict[tuple[int, int], set[str]] = defaultdict(set)
    for line in lines:
        hosts[line.thread.pid, line.thread.tid].add(line.thread.host)
    whole = {}
    for (pid, tid), names in hosts.items():
        for name in names:
            shortest = min((other for other in names if name.endswith(other)), key=len)
            whole[name, pid, tid] = Thread(shortest, pid, tid)
    return [
        line
        if line.thread is UNKNOWN
        else replace(line, thread=whole[line.thread.host, line.thread.pid, line.thread.tid])
        for line in lines
    ]

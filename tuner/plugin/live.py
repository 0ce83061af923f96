"""Reads counts of running jobs from files that the plugin maps into memory, in the folder that NCCL_TUNER_LIVE names.

Layout of a file: ``struct live_head`` of csrc/plugin/live.h, the line numbers of the rows, and the counts of
csrc/plugin/counters.h.
"""

import os
import socket
import stat
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.base import printable
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.records import json_form

_MAGIC, _REFUSED = b"ncclt01\0", 2
_HEAD = struct.Struct("<8s8Qq3Q64s128s72s1024s512s")
_COSTED_ALONE, _UNTUNED, _TOTALS = 1, 2, 3
_OF_A_SIZE = 4  # calls, bytes, smallest and largest size
MOST_MISSING = 8  # most ranks that a row names as missing


@dataclass(frozen=True, slots=True)
class LiveCounts:
    """Counts of one rank of one communicator, or of one process whose table is not used (``refused`` says why).

    ``decided``, ``could_not_run`` and ``costs`` are numbers of calls by row of the table; a row is named by its line in
    the table's file, and rows without calls are absent. ``lines`` has the line of every row. ``rank`` is the rank that
    the launcher set; None if it set none. ``runs`` says whether the process exists; None if it is on another host.
    """

    host: str
    pid: int
    rank: int | None
    communicator: int | None
    ranks: int
    nodes: int
    started_s: int
    nccl: str | None
    build: str
    table: str
    sha256: str
    refused: str | None
    runs: bool | None
    calls: int
    decided: dict[int, int]
    could_not_run: dict[int, int]
    costs: dict[int, int]
    lines: frozenset[int] = field(default=frozenset(), metadata=json_form(omitted=True))

    @property
    def name(self) -> str:
        """What sentences call the rank, with its host; if the rank is not known, the process and its host."""
        return f"rank {self.rank} on {self.host}" if self.rank is not None else f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A row's counts, summed over all ranks that have its table.

    ``on`` is the number of ranks on which the row decided a call or gave a time. ``missing`` names the first of the
    ranks on which it did neither, if it did on others.
    """

    line: int
    calls: int
    could_not_run: int
    on: int
    missing: tuple[str, ...]  # the first ranks on which the row did nothing, if it did on others


@dataclass(frozen=True, slots=True)
class LiveTable:
    """Counts of all ranks whose table has the same content. ``never`` are the lines of rows that matched no call on any
    rank."""

    table: str
    sha256: str
    ranks: int
    calls: int
    decided: int
    rows: tuple[LiveRow, ...]
    never: tuple[int, ...]


def read(folders: Iterable[Path], damaged: list[str] | None = None) -> list[LiveCounts]:
    """Reads the counts in the files of folders, ordered by host, rank and process; other files are left out.

    Files that begin like files of counts but cannot be read are added to ``damaged``, each with the reason. Raises
    BadInput for a folder that cannot be read.
    """
    left_out = list[str]() if damaged is None else damaged
    here = socket.gethostname().partition(".")[0]
    found = []
    for folder in folders:
        try:
            paths = sorted(folder.iterdir())
        except OSError as error:
            raise BadInput(f"{folder}: {error.strerror}") from error
        found += [counts for path in paths if (counts := _read(path, here, left_out))]
    return sorted(found, key=lambda each: (each.host, -1 if each.rank is None else each.rank, each.pid))


def tables(counts: Sequence[LiveCounts]) -> list[LiveTable]:
    """Sums the counts of all ranks, per content of the table."""
    by_content = defaultdict[tuple[str, str], list[LiveCounts]](list)
    for each in counts:
        if each.refused is None:
            by_content[each.table, each.sha256].append(each)
    return [_table(table, sha256, same) for (table, sha256), same in by_content.items()]


def disagreements(counts: Sequence[LiveCounts]) -> list[str]:
    """One sentence for each communicator whose ranks have different tables, or on which some ranks do not use their
    table."""
    contents = defaultdict[tuple[int | None, int, int], dict[str, list[str]]](lambda: defaultdict(list))
    for each in counts:
        content = "no table" if each.refused is not None else f"sha256 {each.sha256[:12]}"
        contents[each.communicator, each.ranks, each.nodes][content].append(each.name)
    return [
        f"communicator {'of' if number is None else f'{number:#x},'} {ranks} ranks on {nodes} nodes: "
        + "; ".join(f"{content} on {names[0]}{_more(names)}" for content, names in sorted(by.items()))
        for (number, ranks, nodes), by in contents.items()
        if len(by) > 1
    ]


def metrics(counts: Sequence[LiveCounts]) -> str:
    """The counts in Prometheus' text format, for the textfile collector of its node exporter."""
    lines = dict[str, list[str]]()
    for each in counts:
        who = {"host": each.host, "pid": each.pid, "rank": "" if each.rank is None else each.rank}
        who |= {"communicator": "" if each.communicator is None else f"{each.communicator:#x}", "table": each.table}
        _sample(lines, "nccl_tuner_build_info", 1, {**who, "build": each.build, "nccl": each.nccl or ""})
        _sample(lines, "nccl_tuner_table_refused", int(each.refused is not None), who)
        if each.refused is not None:
            continue
        _sample(lines, "nccl_tuner_calls_total", each.calls, {**who, "sha256": each.sha256})
        for name, by_line in (
            ("nccl_tuner_row_decided_total", each.decided),
            ("nccl_tuner_row_could_not_run_total", each.could_not_run),
            ("nccl_tuner_row_costed_total", each.costs),
        ):
            for line, calls in by_line.items():
                _sample(lines, name, calls, {**who, "line": line})
    return "".join(
        f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}\n" + "".join(samples)
        for name, samples in lines.items()
    )


def _sample(lines: dict[str, list[str]], name: str, value: int, labels: dict[str, object]) -> None:
    said = ",".join(f'{label}="{printable.label(str(text))}"' for label, text in labels.items())
    lines.setdefault(name, []).append(f"{name}{{{said}}} {value}\n")


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _table(table: str, sha256: str, counts: Sequence[LiveCounts]) -> LiveTable:
    names = [each.name for each in counts]
    by_line, stopped = defaultdict[int, dict[int, int]](dict), Counter[int]()
    for rank, each in enumerate(counts):
        for of_rank in (each.decided, each.costs):
            for line, calls in of_rank.items():
                by_line[line][rank] = by_line[line].get(rank, 0) + calls
        stopped.update(each.could_not_run)
    rows = []
    for line in sorted(by_line.keys() | stopped.keys()):
        own = by_line.get(line, {})
        missing = (name for rank, name in enumerate(names) if rank not in own) if own else iter(())
        rows.append(LiveRow(line, sum(own.values()), stopped[line], len(own), tuple(islice(missing, MOST_MISSING))))
    decided = sum(sum(each.decided.values()) for each in counts)
    calls, every = sum(each.calls for each in counts), frozenset[int]().union(*{each.lines for each in counts})
    never = tuple(sorted(every - {row.line for row in rows}))
    return LiveTable(table, sha256, len(counts), calls, decided, tuple(rows), never)


MOST_COUNTS_BYTES = 64 << 20  # file of a table with the most rows that are allowed


def _content(path: Path) -> bytes | None:
    """The bytes of a regular file that not everybody may write to; None for anything else, without waiting.

    In a folder that everybody may write to, opening a FIFO could block forever, and a link could point to an endless
    device.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_mode & stat.S_IWOTH or found.st_size > MOST_COUNTS_BYTES:
                return None
            return file.read(MOST_COUNTS_BYTES + 1)
    except OSError:
        return None


def _read(path: Path, here: str, damaged: list[str]) -> LiveCounts | None:
    """The counts in a file. None for any other file, for a communicator that has just begun or ended, and for a damaged
    file, which is added to ``damaged``.
    """
    if (content := _content(path)) is None:
        return None
    try:
        return _counts(content, here)
    except (ValueError, IndexError, struct.error, OverflowError, MemoryError) as error:
        damaged.append(f"{path}: {error}")
        return None


def _counts(content: bytes, here: str) -> LiveCounts | None:
    """The counts in a file's content; None if it is no such file, or its communicator has just begun or ended.
    ValueError and other errors for damaged content."""
    if len(content) < _HEAD.size or content[:8] != _MAGIC:
        return None
    (_, size, state, communicator, ranks, nodes, pid, started_s, nccl, rank, choices, costs, counts_from, *texts) = (
        _HEAD.unpack_from(content)
    )
    host, build, sha256, table, reason = (text.partition(b"\0")[0].decode(errors="replace") for text in texts)
    if state == 0:
        return None
    if size != len(content):
        raise ValueError(f"says {size} bytes, and has {len(content)}")
    if state != _REFUSED and not _HEAD.size + 4 * (choices + costs) <= counts_from <= size:
        raise ValueError("says that its counts begin elsewhere")
    decided, stopped, costed, calls = dict[int, int](), dict[int, int](), dict[int, int](), 0
    every = frozenset[int]()
    if state != _REFUSED:
        lines = np.frombuffer(content, "<u4", choices + costs, _HEAD.size)
        counts = np.frombuffer(content, "<u8", -1, counts_from)
        of_choices, rest = np.split(counts[_TOTALS:], [2 * choices])
        every = _every(lines.tobytes())
        decided = _by_line(lines[:choices], of_choices[:choices])
        stopped = _by_line(lines[:choices], of_choices[choices:])
        costed = _by_line(lines[choices:], rest[:costs])
        undecided = int(rest[costs:].reshape(-1, _OF_A_SIZE)[:, 0].sum())
        calls = sum(decided.values()) + undecided + int(counts[_COSTED_ALONE]) + int(counts[_UNTUNED])
    return LiveCounts(
        host,
        pid,
        None if rank < 0 else rank,
        communicator or None,
        ranks,
        nodes,
        started_s,
        f"{nccl // 10000}.{nccl // 100 % 100}.{nccl % 100}" if nccl else None,
        build,
        table,
        sha256,
        reason if state == _REFUSED else None,
        os.path.exists(f"/proc/{pid}") if host == here else None,
        calls,
        decided,
        stopped,
        costed,
        every,
    )


@cache
def _every(lines: bytes) -> frozenset[int]:
    """The line numbers of a table's rows, shared by all ranks that have the table. Line 0 stands for no row."""
    return frozenset(np.frombuffer(lines, "<u4").tolist()) - {0}


def _by_line(lines: NDArray[np.uint32], counts: NDArray[np.uint64]) -> dict[int, int]:
    """Number of calls by line, for lines that have any; line 0, which stands for no row, is left out."""
    sums = dict[int, int]()
    there = np.flatnonzero(counts)
    for line, calls in zip(lines[there].tolist(), counts[there].tolist(), strict=True):
        if line:
            sums[line] = sums.get(line, 0) + calls
    return sums


def iterate_names(names: Sequence[str], most: int) -> Iterator[str]:
    """Yields the first names, at most ``most``; if there are others, also a text with their number."""
    yield from names[:most]
    if len(names) > most:
        yield f"{len(names) - most} more"

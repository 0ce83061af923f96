"""Reads the files that the plugin writes into the folder NCCL_TUNER_JOB: what a process saw of its collectives in an
hour.

Layout: ``struct job_head``, ``job_communicator``, ``job_kind`` and ``job_record`` of csrc/plugin/jobfile.h.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.files import read_bytes
from tuner.jobs.traces import inspector

MAGIC = b"ncclj01\0"
_HEAD = np.dtype(
    [
        ("magic", "S8"),
        *((name, "<u4") for name in ("communicators", "kinds", "records", "thinned")),
        *((name, "<u8") for name in ("started_ns", "ended_ns", "pid", "number", "lost")),
        ("rank", "<i8"),
        *((name, "<u4") for name in ("nccl", "seconds")),
        ("host", "S64"),
        ("build", "S128"),
    ]
)
_COMMUNICATOR = np.dtype(
    [
        ("id", "<u8"),
        ("ranks", "<u4"),
        ("nodes", "<u4"),
        ("rank", "<i4"),
        ("version", "<u4"),
        *((name, "<u8") for name in ("started", "finished", "lost")),
        ("name", "S48"),
    ]
)
_KIND = np.dtype(
    [
        ("communicator", "<u4"),
        ("channels", "u1"),
        ("warps", "u1"),
        ("unused", "V2"),
        ("count", "<u8"),
        ("calls", "<u8"),
        *((name, "<f8") for name in ("sum_us", "least_us", "most_us")),
        *((name, "S16") for name in ("function", "type", "algorithm", "protocol")),
    ]
)
_RECORD = np.dtype([("sequence", "<u4"), ("kind", "<u4"), ("time_us", "<f4"), ("at_ms", "<u4")])
_INSPECTED = b"coll_perf"  # in each of the Inspector's files
INSPECTOR = "NCCL Inspector"  # the build that its files are given
MOST_RANKS = 1 << 20  # of a communicator
MOST_THINNED = 32
MOST_US = 1e9  # of a call: a quarter of an hour, beyond NCCL's own watchdogs
HOST_CLOCK = 3  # the version of NCCL's interface that has no times of kernels: those of the host's clock stand


class Untimed(IntEnum):
    """Why a call that ran has no time (``enum untimed`` in csrc/plugin/jobfile.h)."""

    graphs = 1
    self_sends = 2
    group = 3
    overlap = 4

    @property
    def why(self) -> str:
        """Why such calls have no time, as a phrase that follows the word "calls"."""
        return {
            Untimed.graphs: "in CUDA graphs, or later on their communicator, as NCCL's counters on the host and in the "
            "kernel no longer agree",
            Untimed.self_sends: "on a communicator on which a rank sends to itself, as NCCL's counters on the host and "
            "in the kernel then differ",
            Untimed.group: "in a group, as its calls share one kernel",
            Untimed.overlap: "whose kernel, by its times, ran at the same time as another one of the communicator, "
            "which is impossible",
        }[self]


@dataclass(frozen=True, slots=True)
class JobFile:
    """One file without its records, which :meth:`records` reads, as a job's records may not fit into memory.

    Times are in ns, sizes in bytes.

    ``communicators`` is a structured array [row]. ``kinds`` is a structured array [kind] of the kinds of calls that
    name a function; ``places`` are the numbers by which records refer to these kinds, indexed [kind]. ``rank`` is what
    the launcher set, or None; ``nccl`` is the release, or None. Only one in 2**``thinned`` calls has a record; ``lost``
    is the number of calls that the plugin had no room for. If a call has no time, its record's ``time_us`` is the
    negative value of :class:`Untimed`. ``read`` are the records if they are in memory already; if it is None,
    :meth:`records` reads them from the file.
    """

    path: Path
    host: str
    pid: int
    rank: int | None
    nccl: str | None
    build: str
    started_ns: int
    ended_ns: int
    thinned: int
    lost: int
    communicators: NDArray[np.void]
    kinds: NDArray[np.void]
    places: NDArray[np.int64]
    read: NDArray[np.void] | None = None

    def records(self) -> NDArray[np.void]:
        """The file's current records, a structured array [record]. A running job replaces the file by one with more
        records; communicators and kinds have the same numbers in both files. BadInput if the file is gone, cut off, or
        has an impossible number.
        """
        if self.read is not None:
            return self.read
        with _opened(self.path) as file:
            head = _head(self.path, file)
            file.seek(int(head["communicators"]) * _COMMUNICATOR.itemsize + int(head["kinds"]) * _KIND.itemsize, 1)
            records = _rows(self.path, file, head, "records", _RECORD)
        if (records["kind"] >= head["kinds"]).any():
            raise BadInput(f"{self.path}: {_PAST_THE_END}")
        return records


_PAST_THE_END = "an index in it is larger than the table that it refers to"


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None


def _head(path: Path, file: IO[bytes]) -> Any:
    content = file.read(_HEAD.itemsize)
    if not content:
        raise BadInput(f"{path} is empty")
    if content[:8] != MAGIC or len(content) < _HEAD.itemsize:
        raise BadInput(f"{path} is not a file that the plugin writes into the folder of NCCL_TUNER_JOB")
    return np.frombuffer(content, _HEAD)[0]


def _rows(path: Path, file: IO[bytes], head: Any, name: str, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    count = int(head[name])
    length = count * dtype.itemsize
    content = file.read(length) if length <= os.fstat(file.fileno()).st_size else b""
    if len(content) < length:
        raise BadInput(f"{path} is cut off: it should have {count} {name}")
    return np.frombuffer(content, dtype)


def read_file(path: Path) -> JobFile:
    """Reads a file's head and kinds. BadInput for another kind of file, and for one that is cut off."""
    with _opened(path) as file:
        head = _head(path, file)
        communicators, kinds = (
            _rows(path, file, head, name, dtype) for name, dtype in (("communicators", _COMMUNICATOR), ("kinds", _KIND))
        )
        if int(head["records"]) * _RECORD.itemsize > os.fstat(file.fileno()).st_size - file.tell():
            raise BadInput(f"{path} is cut off: it should have {head['records']} records")
    places = np.flatnonzero(kinds["function"] != b"")
    kinds = kinds[places]
    if (kinds["communicator"] >= len(communicators)).any():
        raise BadInput(f"{path}: {_PAST_THE_END}")
    if (communicators["ranks"] > MOST_RANKS).any() or int(head["thinned"]) > MOST_THINNED:
        raise BadInput(f"{path}: files are read with up to {MOST_RANKS} ranks, and thinned up to {MOST_THINNED} times")
    release = int(head["nccl"])
    return JobFile(
        path,
        head["host"].decode(errors="replace"),
        int(head["pid"]),
        int(head["rank"]) if head["rank"] >= 0 else None,
        f"{release // 10000}.{release // 100 % 100}.{release % 100}" if release else None,
        head["build"].decode(errors="replace"),
        int(head["started_ns"]),
        int(head["ended_ns"]),
        int(head["thinned"]),
        int(head["lost"]),
        communicators,
        kinds,
        places,
    )


def files_of(folder: Path) -> list[Path]:
    """The ``.job`` files in a folder, in the order of their names; if there are none, all files, as the Inspector's may
    have any name.

    BadInput for a folder that does not exist.
    """
    try:
        files = sorted(each for each in folder.iterdir() if each.is_file())  # a FIFO would block for ever
        return [each for each in files if each.suffix == ".job"] or [each for each in files if each.name[0] != "."]
    except NotADirectoryError:
        raise BadInput(f"{folder} is a file: give the folder that it is in") from None
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}") from None


def is_of_job(path: Path) -> bool:
    """Whether a file was written by the plugin or the Inspector, and can be read."""
    try:
        begin = _begin(path)
    except BadInput:
        return False
    return begin.startswith(MAGIC) or _INSPECTED in begin


def read_any(path: Path) -> JobFile:
    """Reads a file of the plugin, or NCCL Inspector's JSON into the same form. BadInput for any other file."""
    begin = _begin(path)
    return read_file(path) if begin.startswith(MAGIC) or _INSPECTED not in begin else _inspected(path)


def _begin(path: Path) -> bytes:
    with _opened(path) as file:
        begin = file.read(len(MAGIC))
        return begin if begin == MAGIC else begin + file.read(1 << 16)


def _inspected(path: Path) -> JobFile:
    """Reads a file of the Inspector, which has no data types and, before NCCL 2.31, no algorithms."""
    content = read_bytes(path, BadInput).decode(errors="replace")
    communicators: dict[tuple[int, int], tuple[Any, ...]] = {}
    kinds: dict[tuple[Any, ...], list[float]] = {}
    records: list[tuple[int, int, float, float]] = []
    host, pid = "", 0
    place: dict[tuple[Any, ...], int] = {}
    for record in inspector.records_of(str(path), content, []):
        head, body, meta = (record.get(key) or {} for key in ("header", "coll_perf", "metadata"))
        try:
            number, rank = int(str(head["id"]), 16), int(head["rank"])
            one = number, rank
            name = str(head.get("comm_name", "")).encode()[:47]
            counts = number, int(head["n_ranks"]), int(head.get("nnodes") or 0), rank
            communicators.setdefault(one, (*counts, 5, 0, 0, 0, name))
            host, pid = str(meta.get("hostname") or host), int(meta.get("pid") or pid)
            if not body:
                continue
            ran = inspector.executed_of(body)
            algorithm = ran.algorithm.name if ran and ran.algorithm is not None else "?"
            protocol = ran.protocol.name if ran and ran.protocol is not None else "?"
            kind = (
                list(communicators).index(one), ran.channels or 0 if ran else 0, int(body["coll_msg_size_bytes"]),
                str(body["coll"]), algorithm, protocol,
            )  # fmt: skip
            time_us = float(body["coll_exec_time_us"])
            kinds.setdefault(kind, []).append(time_us)
            place.setdefault(kind, len(place))
            records.append((int(body["coll_sn"]), place[kind], time_us, float(meta.get("dump_timestamp_us") or 0)))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{path} has a record that is not what the Inspector writes: {error!r}") from None
    begin_us = min((each[3] for each in records), default=0.0)
    made_kinds = np.zeros(len(kinds), _KIND)
    for row, (kind, times) in zip(made_kinds, kinds.items(), strict=True):
        row["communicator"], row["channels"], row["count"] = kind[:3]
        row["function"], row["algorithm"], row["protocol"] = (word.encode()[:15] for word in kind[3:])
        row["type"], row["calls"], row["sum_us"] = b"ncclInt8", len(times), sum(times)
    rows = [(sequence, kind, time_us, (at_us - begin_us) / 1e3) for sequence, kind, time_us, at_us in records]
    return JobFile(
        path, host, pid, None, None, INSPECTOR, int(begin_us * 1e3), int(begin_us * 1e3), 0, 0,
        np.array(list(communicators.values()), _COMMUNICATOR), made_kinds, np.arange(len(kinds)),
        np.array(rows, _RECORD),
    )  # fmt: skip

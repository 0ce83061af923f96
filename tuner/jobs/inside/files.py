"""Files that the plugin writes where NCCL_TUNER_JOB names a folder: what a process saw of its collectives in an hour.

Layout: ``struct job_head``, ``job_communicator``, ``job_kind`` and ``job_record`` of csrc/plugin/jobfile.h.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.base.errors import BadInput

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
HOST_CLOCK = 3  # the version of NCCL's interface that has no times of kernels: those of the host's clock stand


@dataclass(frozen=True, slots=True)
class JobFile:
    """One file. ``communicators``, ``kinds`` and ``records`` are structured arrays as the file has them.

    ``rank`` is the launcher's, None where it said none; ``nccl`` the release, None where it is not known. ``thinned``:
    of the calls every 2**thinned-th has a record; ``lost``: calls that the plugin had no room for.
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
    records: NDArray[np.void]


def read_file(path: Path) -> JobFile:
    """BadInput names a file that is none of these, or cut; records are mapped, not read."""
    try:
        content = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or 'empty'}") from None
    if bytes(content[:8]) != MAGIC or len(content) < _HEAD.itemsize:
        raise BadInput(f"{path}: not a file that the plugin writes where NCCL_TUNER_JOB names a folder")
    head = content[: _HEAD.itemsize].view(_HEAD)[0]
    at, parts = _HEAD.itemsize, []
    for name, dtype in (("communicators", _COMMUNICATOR), ("kinds", _KIND), ("records", _RECORD)):
        end = at + int(head[name]) * dtype.itemsize
        if end > len(content):
            raise BadInput(f"{path}: cut: {head[name]} {name} are announced")
        parts.append(content[at:end].view(dtype))
        at = end
    communicators, kinds, records = parts
    named = kinds["function"] != b""
    if (kinds["communicator"][named] >= len(communicators)).any() or (records["kind"] >= len(kinds)).any():
        raise BadInput(f"{path}: a number in it is past the end of what it names")
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
        records,
    )


def files_of(folder: Path) -> Iterator[Path]:
    """The files of a job in the order of their names. BadInput where there is none."""
    found = sorted(folder.glob("*.job"))
    if not found:
        raise BadInput(f"{folder}: no file of a job (*.job); valid: the folder that NCCL_TUNER_JOB named")
    yield from found

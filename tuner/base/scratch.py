"""Temporary folders whose names say which process made them, so that folders of killed processes can be removed.

A process can be killed at any moment, so the folder's name is recorded before anything is put into it. The next run
that makes such a folder removes the folders of processes that are gone, and the shared memory of their children.
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from tuner.base.expressions import expression

_SHARED = Path("/dev/shm")
# The form of NCCL's names for shared memory: ncclShmOpen, src/misc/shmutils.cc, v2.28.9-1
_NCCLS = expression(r"nccl-\w{6}")
# A file that is made before a process loads a libnccl whose shared memory other processes see, too.
IN_THE_OPEN = "shared-memory-in-the-open"


class ScratchFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder of this process; ``kind`` says what it is for. Making one first removes the folders of
    processes that are gone."""

    def __init__(self, kind: str) -> None:
        clear_left()
        super().__init__(prefix=f"nccl-tuner-{kind}-{_here()}-{os.getpid()}-{_started(os.getpid())}-")


@cache
def _here() -> str:
    """An id of this boot of the host and this PID namespace, within which process ids are unique."""
    with suppress(OSError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        return f"{boot}_{os.readlink('/proc/self/ns/pid').strip('pid:[]')}"
    return "unknown"


def _started(pid: int) -> int | None:
    """The start time of a process in the kernel's ticks, which distinguishes it from a later process with the same id;
    None if the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return None if fields[0] in ("Z", "X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def left() -> Iterator[Path]:
    """Yields the folders that processes of this user left behind."""
    owned = re.compile(rf"nccl-tuner-[a-z]+-{re.escape(_here())}-(\d+)-(\d+)-\w{{8}}")
    if _here() == "unknown":
        return
    for folder in Path(tempfile.gettempdir()).glob("nccl-tuner-*"):
        name = owned.fullmatch(folder.name)
        if name is None or _started(int(name[1])) == int(name[2]):
            continue
        with suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                yield folder


def clear_left() -> None:
    """Removes the folders of processes that are gone, and the shared memory that their children left."""
    for folder in left():
        with suppress(OSError):
            clear_shared_memory((folder / IN_THE_OPEN).lstat().st_mtime)
        shutil.rmtree(folder, ignore_errors=True)


def clear_shared_memory(since_s: float) -> None:
    """Removes this user's shared memory of NCCL that was made since ``since_s`` and that no process has open or
    mapped.
    """
    names = set[Path]()
    with suppress(OSError):
        for each in _SHARED.iterdir():
            if _NCCLS.fullmatch(each.name):
                found = each.lstat()
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_ctime >= since_s:
                    names.add(each)
    if names and (used := _in_use()) is not None:
        for each in names - used:
            each.unlink(missing_ok=True)


def _in_use() -> set[Path] | None:
    """The files of shared memory that processes use; None if some process of this user cannot be inspected."""
    used = set[Path]()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            # A zombie process has no files
            if process.stat().st_uid != os.geteuid() or _started(int(process.name)) is None:
                continue
            used |= {Path(found) for found in re.findall(r"/dev/shm/nccl-\w{6}\b", (process / "maps").read_text())}
            for each in (process / "fd").iterdir():
                with suppress(FileNotFoundError):  # the file was closed meanwhile
                    used.add(Path(os.readlink(each)))
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:
            if process.name != "1":  # process 1 of a container is that container's first process
                return None
        except OSError:
            return None
    return used

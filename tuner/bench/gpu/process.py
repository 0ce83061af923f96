"""Manages what is fixed in a process after it has loaded libnccl: the library, its log, and the variables that it reads
only once.

NCCL opens NCCL_DEBUG_FILE and reads most variables once per process, also for all later communicators. So a process has
one libnccl, one log, and the same variables in all its communicators, only one of which measures at a time.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from itertools import chain, count
from pathlib import Path
from threading import Lock
from typing import TypeVar

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, MeasuringFailed
from tuner.base.scratch import ScratchFolder

# src/init.cc, src/misc/tuner.cc and src/graph/topo.cc read these again for every communicator.
_READ_EACH_TIME = frozenset({"NCCL_TUNER_PLUGIN", "NCCL_TOPO_DUMP_FILE"})
_ELSEWHERE = "valid: a process of its own for each"


@dataclass()
class _Process:
    folder: ScratchFolder | None = None
    log: Path | None = None
    library: Path | None = None
    read_once: dict[str, str] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)  # held while a communicator of this process measures


_process = _Process()


def log(wanted: Path | None = None) -> Path:
    """The file of NCCL's log, which is the same for the life of the process.

    The first call determines it: ``wanted``, or, if that is None, a file that is deleted when the process ends.
    """
    if _process.log is None:
        if wanted is None:
            _process.folder = ScratchFolder("measure")
            wanted = Path(_process.folder.name) / "nccl.log"
        _process.log = _not_there(wanted.resolve())
    return _process.log


def _not_there(path: Path) -> Path:
    """A path without a file, with a number before the ending if needed: NCCL would overwrite an existing log."""
    numbered = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in count(2))
    return next(each for each in chain([path], numbered) if not each.exists())


@contextmanager
def variables(library: Path, own: Mapping[str, str]) -> Iterator[None]:
    """Sets the variables ``own`` for a communicator of this libnccl, and restores the former ones at the end.

    BadInput if another libnccl is in the process, another communicator is measuring, or NCCL has already read other
    values.
    """
    if not _process.lock.acquire(blocking=False):
        raise BadInput(f"another communicator of this process measures; {_ELSEWHERE}, or close it first")
    try:
        _check(library, {name: value for name, value in own.items() if name not in _READ_EACH_TIME})
        with environment(own):
            yield
    finally:
        _process.lock.release()


@contextmanager
def environment(own: Mapping[str, str]) -> Iterator[None]:
    """Sets variables inside the block, and restores the former ones after it."""
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _check(library: Path, read_once: dict[str, str]) -> None:
    if _process.library is None:
        _process.library, _process.read_once = library, read_once
    if _process.library != library:
        raise BadInput(f"{library}: {_process.library} is in this process already; {_ELSEWHERE}")
    for name in sorted(read_once.keys() | _process.read_once.keys()):
        then, now = _process.read_once.get(name, "unset"), read_once.get(name, "unset")
        if then != now:
            raise BadInput(f"{name} {now}: NCCL has read it as {then} in this process; {_ELSEWHERE}")


T = TypeVar("T")
_LET_END_S = 5.0  # time for a running call to end after an interrupt


def within(limit_s: float, what: str, do: Callable[[], T]) -> T:
    """Runs ``do`` in a separate thread and returns its result, or raises its error.

    MeasuringFailed if ``do`` takes longer than ``limit_s``. The thread is not stopped then: it goes on until ``do`` or
    the process ends.
    """
    given: list[T] = []
    raised: list[BaseException] = []
    ended = threading.Event()  # an interrupted Thread.join treats a running thread as ended

    def run() -> None:
        try:
            given.append(do())
        except BaseException as error:
            raised.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True, name=what).start()
    try:
        ended.wait(limit_s)
    except BaseException:
        ended.wait(_LET_END_S)  # so that nobody ends a communicator while it is being called
        raise
    if raised:
        raise raised[0]
    if not given:
        raise MeasuringFailed(f"{what} took longer than {limit_s:g} s and was given up: a rank is missing or hangs")
    return given[0]

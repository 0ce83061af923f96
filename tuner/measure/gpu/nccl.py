"""libnccl as the process that measures calls it: communicators, groups and the five collectives."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cffi

from tuner.base.errors import MeasuringFailed, OracleUnavailable
from tuner.base.names import Collective
from tuner.measure.records.samples import Point
from tuner.release import of_code

# src/nccl.h.in: the same in every release from 2.18.1 on; enums are passed as ints
_DECLARATIONS = """
typedef struct { char internal[128]; } ncclUniqueId;
int ncclGetVersion(int *version);
int ncclGetUniqueId(ncclUniqueId *id);
int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank);
int ncclCommDestroy(void *comm);
int ncclCommAbort(void *comm);
int ncclCommGetAsyncError(void *comm, int *error);
const char *ncclGetErrorString(int result);
const char *ncclGetLastError(void *comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, void *comm, void *stream);
int ncclReduce(const void *send, void *receive, size_t count, int type, int op, int root, void *comm, void *stream);
int ncclAllGather(const void *send, void *receive, size_t count, int type, void *comm, void *stream);
int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int op, void *comm, void *stream);
int ncclAllReduce(const void *send, void *receive, size_t count, int type, int op, void *comm, void *stream);
"""
ROOT = 0
_IN_PROGRESS = 7  # ncclInProgress


class Nccl:
    """A loaded libnccl. ``variables`` are set before: NCCL reads most of them once, when it is first called."""

    def __init__(self, path: Path, variables: Mapping[str, str]) -> None:
        os.environ.update(variables)
        self.path = path
        self.ffi: Any = cffi.FFI()
        self.ffi.cdef(_DECLARATIONS)
        try:
            self._library: Any = self.ffi.dlopen(str(path))
        except OSError as error:
            raise OracleUnavailable(f"{path} cannot be loaded: {error}") from None

    @property
    def release(self) -> str:
        """The release of the library, such as 2.28.9."""
        version = self.ffi.new("int *")
        self._check(self._library.ncclGetVersion(version), "ncclGetVersion")
        return of_code(int(version[0]))

    def unique_id(self) -> bytes:
        """What all ranks need to meet."""
        made = self.ffi.new("ncclUniqueId *")
        self._check(self._library.ncclGetUniqueId(made), "ncclGetUniqueId")
        return bytes(self.ffi.buffer(made))

    def start_group(self) -> None:
        """Begins a group of calls."""
        self._check(self._library.ncclGroupStart(), "ncclGroupStart")

    def end_group(self) -> None:
        """Launches the calls of the group."""
        self._check(self._library.ncclGroupEnd(), "ncclGroupEnd")

    def init_rank(self, ranks: int, unique_id: bytes, rank: int) -> Any:
        """Where the communicator will be (``handle[0]``) once its group has ended; the device is the current one."""
        handle = self.ffi.new("void **")
        copied = self.ffi.new("ncclUniqueId *")
        self.ffi.buffer(copied)[:] = unique_id
        self._check(self._library.ncclCommInitRank(handle, ranks, copied[0], rank), "ncclCommInitRank")
        return handle

    def call(self, point: Point, buffers: tuple[int, int], count: int, comm: Any, stream: int) -> None:
        """One call from the first of ``buffers`` to the second, addresses on the device, as the stream is.

        ``count`` is what the collective's own function takes.
        """
        collective = point.collective
        reduces = collective in (Collective.Reduce, Collective.ReduceScatter, Collective.AllReduce)
        rooted = collective in (Collective.Broadcast, Collective.Reduce)
        name = f"nccl{collective.name}"
        arguments = [int(point.dtype), *([int(point.op)] if reduces else []), *([ROOT] if rooted else [])]
        send, receive, stream = (self.ffi.cast("void *", address) for address in (*buffers, stream))
        self._check(getattr(self._library, name)(send, receive, count, *arguments, comm, stream), name)

    def check_async(self, comm: Any) -> None:
        """MeasuringFailed where the communicator broke since."""
        error = self.ffi.new("int *")
        self._check(self._library.ncclCommGetAsyncError(comm, error), "ncclCommGetAsyncError")
        if error[0] != _IN_PROGRESS:
            self._check(error[0], "a collective")

    def destroy(self, comm: Any) -> None:
        """Ends a communicator once its calls are done."""
        self._library.ncclCommDestroy(comm)

    def abort(self, comm: Any) -> None:
        """Ends a communicator at once."""
        self._library.ncclCommAbort(comm)

    def _check(self, result: int, what: str) -> None:
        if result != 0:
            reason = self._text(self._library.ncclGetErrorString(result))
            last = self._text(self._library.ncclGetLastError(self.ffi.NULL)).strip().splitlines()
            raise MeasuringFailed(f"{what} returned {result} ({reason})" + (f": {last[-1].strip()}" if last else ""))

    def _text(self, pointer: Any) -> str:
        return "" if pointer == self.ffi.NULL else str(self.ffi.string(pointer).decode(errors="replace"))

"""Calls libnccl in the process that measures: communicators, groups and the five collectives."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import cffi
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tuner.base.errors import MeasuringFailed, OracleUnavailable
from tuner.base.expressions import expression
from tuner.base.names import Collective
from tuner.bench.gpu import process
from tuner.release import of_code
from tuner.times.measured.samples import Point

# src/nccl.h.in, which is the same in every release from 2.18.1 on; enums are passed as ints
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
_CUDA_FAILURE = expression(r"Cuda failure (\d+)")
_LOADS_TUNER = "ncclLoadTunerPlugin"  # src/misc/tuner.cc, v2.19.3-1 and v2.20.5-1; later releases use another name


class Nccl:
    """A loaded libnccl.

    The environment has ``variables`` until this object is closed, because NCCL reads most of them when it is first
    called.

    ``cuda_error`` returns CUDA's name of an error, given its number. BadInput if the process already has another
    libnccl, or if its NCCL has already read other values of the variables.
    """

    def __init__(
        self, path: Path, variables: Mapping[str, str], cuda_error: Callable[[int], str] | None = None
    ) -> None:
        self.path, self._cuda_error = path, cuda_error
        self.ffi: Any = cffi.FFI()
        self.ffi.cdef(_DECLARATIONS)
        self._variables = ExitStack()
        self._variables.enter_context(process.variables(path.resolve(), variables))
        try:
            self._library: Any = self.ffi.dlopen(str(path))
        except OSError as error:
            self.close()
            raise OracleUnavailable(f"{path} cannot be loaded: {error}") from None

    def close(self) -> None:
        """Restores the variables. The library itself stays in the process."""
        self._variables.close()

    def load_tuner(self) -> None:
        """Loads the tuner plugin in advance, in releases in which the ranks of one process would race to load it.

        In other releases, this does nothing.

        In 2.19 and 2.20 a rank that arrives while another rank is loading the plugin gets no plugin
        (ncclLoadTunerPlugin, src/misc/tuner.cc, v2.19.3-1); later releases use a lock, and have no such function.
        """
        if (offset := _offset(self.path, _LOADS_TUNER)) is None:
            return
        exported = _offset(self.path, "ncclGetVersion")
        assert exported is not None
        base = int(self.ffi.cast("uintptr_t", self.ffi.addressof(self._library, "ncclGetVersion"))) - exported
        load = self.ffi.cast("int (*)(void **)", base + offset)
        self._check(load(self.ffi.new("void **")), _LOADS_TUNER)

    @property
    def release(self) -> str:
        """The release of the library, such as 2.28.9."""
        version = self.ffi.new("int *")
        self._check(self._library.ncclGetVersion(version), "ncclGetVersion")
        return of_code(int(version[0]))

    def unique_id(self) -> bytes:
        """Makes the id with which all ranks of a communicator find each other."""
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
        """Starts the init of a rank on the current device, within a group of calls.

        Returns a handle; after the end of the group, its first element is the communicator.
        """
        handle = self.ffi.new("void **")
        copied = self.ffi.new("ncclUniqueId *")
        self.ffi.buffer(copied)[:] = unique_id
        self._check(self._library.ncclCommInitRank(handle, ranks, copied[0], rank), "ncclCommInitRank")
        return handle

    def prepared(
        self, point: Point, buffers: tuple[int, int], count: int, comm: Any, stream: int
    ) -> Callable[[], None]:
        """A function that makes one call: it sends from the first of ``buffers`` and receives into the second.

        ``buffers`` and ``stream`` are addresses. ``count`` is the count that NCCL's function of the collective takes.
        All arguments are looked up and converted in advance, so that the function itself takes little time.
        """
        collective = point.collective
        reduces = collective in (Collective.Reduce, Collective.ReduceScatter, Collective.AllReduce)
        rooted = collective in (Collective.Broadcast, Collective.Reduce)
        name = f"nccl{collective.name}"
        numbers = [int(point.dtype), *([int(point.op)] if reduces else []), *([ROOT] if rooted else [])]
        send, receive, stream = (self.ffi.cast("void *", address) for address in (*buffers, stream))
        function, arguments = getattr(self._library, name), (send, receive, count, *numbers, comm, stream)

        def call() -> None:
            if (result := function(*arguments)) != 0:
                self._check(result, name)

        return call

    def check_async(self, comm: Any) -> None:
        """Raises MeasuringFailed if the communicator has failed in the meantime."""
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
            raise MeasuringFailed(
                f"{what} returned {result} ({reason})" + (f": {self._named(last[-1])}" if last else "")
            )

    def _named(self, line: str) -> str:
        """NCCL's line, completed with CUDA's name of an error if NCCL only prints its number (CUCHECK,
        src/include/cudawrap.h)."""
        failed = _CUDA_FAILURE.search(line)
        named = f", {self._cuda_error(int(failed[1]))}" if failed and self._cuda_error else ""
        return line.strip() + named

    def _text(self, pointer: Any) -> str:
        return "" if pointer == self.ffi.NULL else str(self.ffi.string(pointer).decode(errors="replace"))


def _offset(path: Path, name: str) -> int | None:
    """Address of a function in a libnccl, even if it is internal; None if there is no such function, or no symbols."""
    with path.open("rb") as file:
        with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            if content.find(name.encode()) < 0:
                return None
        symbols = ELFFile(file).get_section_by_name(".symtab")
        if not isinstance(symbols, SymbolTableSection):
            return None
        named = (name, f"_Z{len(name)}{name}")
        return next((int(one["st_value"]) for one in symbols.iter_symbols() if one.name.startswith(named)), None)

"""Ask the plugin as NCCL does, without NCCL: the same shared object, the same calls, any cost table."""

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cffi
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.names import Collective
from tuner.plugin import PluginUnavailable, path

VARIABLE = "NCCL_TUNER_TABLE"
IGNORED_US = -1.0
WARN = 2
INFO = 3

# NCCL's logger takes more arguments after the format (...), which cffi cannot make a callback for. The plugin always
# passes "%s" and one text, and on Linux such a call finds its six arguments where this one expects them.
_DECLARATIONS = """
typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format,
                       const char *text);
struct plugin {
    const char *name;
    int (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, logger, void *domains,
                double *constants);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int pipelined, float *costs, int algorithms,
                         int protocols, int registered, int *channels);
    int (*finalize)(void *context);
};
extern struct plugin ncclTunerPlugin_v5;
"""
_ffi: Any = cffi.FFI()
_ffi.cdef(_DECLARATIONS)
_CONSTANTS = 144  # doubles in ncclTunerConstants_v5_t

# The table's name travels in the environment, which belongs to the whole process.
_environment = threading.Lock()


@dataclass(frozen=True, slots=True)
class LogLine:
    level: int  # WARN or INFO
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The cost table after the plugin, and its number of channels: 0 leaves it to NCCL."""

    cost_us: NDArray[np.float32]
    channels: int


class DryRun:
    """The plugin of one communicator; close it, or use it in a ``with``."""

    def __init__(self, table: Path | str | None, *, ranks: int, nodes: int, library: Path | None = None) -> None:
        self.log: list[LogLine] = []
        library = library or path()
        try:
            self._library: Any = _ffi.dlopen(str(library))
        except OSError as error:
            raise PluginUnavailable(f"{library} cannot be loaded: {error}") from error
        self._plugin: Any = self._library.ncclTunerPlugin_v5
        self._logger = _ffi.callback("logger", self._say)
        self.constants = np.zeros(_CONSTANTS)
        self._context: Any = None
        context = _ffi.new("void **")
        with _environment:
            before = os.environ.get(VARIABLE)
            _set_variable(None if table is None else str(table))
            try:
                result = self._plugin.init(
                    context, 0, ranks, nodes, self._logger, _ffi.NULL, self._floats(self.constants, "double *")
                )
            finally:
                _set_variable(before)
        _check(result, "init")
        self._context = context[0]

    def ask(
        self,
        collective: Collective | int,
        size_bytes: int,
        cost_us: ArrayLike,
        *,
        channels: int = 0,
        pipelined: int = 1,
        registered: bool = False,
    ) -> Answer:
        """One ``getCollInfo`` over a copy of ``cost_us`` (algorithms x protocols); NCCL calls with ``channels`` 0."""
        cells = np.array(cost_us, dtype=np.float32, order="C")
        algorithms, protocols = cells.shape
        count = _ffi.new("int *", channels)
        result = self._plugin.get_coll_info(
            self._context, int(collective), size_bytes, pipelined, self._floats(cells, "float *"),
            algorithms, protocols, int(registered), count,
        )  # fmt: skip
        _check(result, "getCollInfo")
        return Answer(cells, int(count[0]))

    def close(self) -> None:
        if self._context is not None:
            context, self._context = self._context, None
            _check(self._plugin.finalize(context), "finalize")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _floats(self, array: NDArray[Any], pointer: str) -> Any:
        return _ffi.cast(pointer, array.ctypes.data)

    def _say(self, level: int, flags: int, file: Any, line: int, form: Any, text: Any) -> None:
        self.log.append(LogLine(level, _ffi.string(text).decode(errors="replace")))


def _set_variable(value: str | None) -> None:
    if value is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = value


def _check(result: int, call: str) -> None:
    # The plugin never answers anything but success; that it does not is a defect, not something a user did.
    if result != 0:
        raise RuntimeError(f"the plugin's {call} returned {result}")

"""Ask the plugin as NCCL does, without NCCL: the same shared object, the same calls, any cost table."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import cffi
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.plugin import PluginUnavailable, path

TABLE = "NCCL_TUNER_TABLE"
VARIABLES = (
    TABLE,
    "NCCL_TUNER_CONFIG_FILE",
    "NCCL_TUNER_STRICT",
    "NCCL_TUNER_CONSTANTS",
    "NCCL_TUNER_UNCHECKED",
    "NCCL_ALGO",
    "NCCL_PROTO",
)
IGNORED_US = -1.0
WARN = 2
INFO = 3
OLDEST, NEWEST = 1, 6  # versions of the interface

# NCCL's logger takes more arguments after the format (...), which cffi cannot make a callback for. The plugin always
# passes "%s" and one text, and on Linux such a call finds its six arguments where this one expects them.
_DECLARATIONS = """
typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format,
                       const char *text);
struct plugin_v1 {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, logger);
    int (*get_coll_info)(int collective, size_t bytes, int collnet, int nvls, int pipelined, int *algorithm,
                         int *protocol, int *channels);
    int (*end)(void);
};
struct plugin_v2 {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, logger, void **context);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int collnet, int nvls, int pipelined,
                         int *algorithm, int *protocol, int *channels);
    int (*end)(void *context);
};
struct plugin_v3 {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, logger, void **context);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int pipelined, float *costs, int algorithms,
                         int protocols, int *channels);
    int (*end)(void *context);
};
struct plugin_v4 {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, logger, void **context);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int pipelined, float *costs, int algorithms,
                         int protocols, int registered, int *channels);
    int (*end)(void *context);
};
struct plugin_v6 {
    const char *name;
    int (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, logger, void *domains,
                double *constants);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int pipelined, float *costs, int algorithms,
                         int protocols, int registered, int *channels);
    int (*end)(void *context);
    int (*get_chunk_size)(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                          size_t *chunk_bytes);
};
"""
_ffi: Any = cffi.FFI()
_ffi.cdef(
    _DECLARATIONS
    + "".join(
        f"extern struct plugin_v{6 if version == 5 else version} ncclTunerPlugin_v{version};\n"
        for version in range(OLDEST, NEWEST + 1)
    )
)
_CONSTANTS = 144  # doubles in ncclTunerConstants_v5_t

# What the plugin reads travels in the environment, which belongs to the whole process.
_environment = threading.Lock()


class PluginRefused(Exception):
    """The plugin failed the communicator, as it does for a bad table with NCCL_TUNER_STRICT=1."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that the plugin gave to NCCL's log."""

    level: int  # WARN or INFO
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The cost table in us, [algorithm][protocol], after the plugin, and its channels: 0 leaves them to NCCL."""

    cost_us: NDArray[np.float32]
    channels: int


@dataclass(frozen=True, slots=True)
class Named:
    """What the plugin names to a NCCL without cost tables; None leaves the choice to NCCL, 0 channels their number."""

    choice: tuple[Algorithm, Protocol] | None
    channels: int


class DryRun:
    """The plugin of one communicator; close it, or use it in a ``with``.

    ``version`` is the interface, 1 to 6: what a release looks up. Below 3 there are no cost tables: see :meth:`name`.
    ``env`` are the variables the plugin reads beside the table's; the caller's own never reach it.
    """

    def __init__(
        self,
        table: Path | str | None,
        *,
        ranks: int,
        nodes: int,
        version: int = NEWEST,
        env: Mapping[str, str] | None = None,
        library: Path | None = None,
    ) -> None:
        self.log: list[LogLine] = []
        self.version = version
        library = library or path()
        try:
            self._library: Any = _ffi.dlopen(str(library))
        except OSError as error:
            raise PluginUnavailable(f"{library} cannot be loaded: {error}") from error
        self._plugin: Any = getattr(self._library, f"ncclTunerPlugin_v{version}")
        self._logger = _ffi.callback("logger", self._say)
        self.constants = np.zeros(_CONSTANTS)
        self._open = False
        self._context: tuple[Any, ...] = ()
        with _variables({**(env or {}), **({} if table is None else {TABLE: str(table)})}):
            result = self._init(ranks, nodes)
        self._open = True
        if result != 0:
            self.close()  # as NCCL does with a communicator that it could not create
            raise PluginRefused(f"the plugin's init returned {result}: {self.log[-1].text if self.log else ''}")

    def _init(self, ranks: int, nodes: int) -> int:
        if self.version == 1:
            return int(self._plugin.init(ranks, nodes, self._logger))
        context = _ffi.new("void **")
        if self.version < 5:
            result = self._plugin.init(ranks, nodes, self._logger, context)
        else:
            result = self._plugin.init(
                context, 0, ranks, nodes, self._logger, _ffi.NULL, _pointer(self.constants, "double *")
            )
        self._context = (context[0],)
        return int(result)

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
        buffers = () if self.version == 3 else (int(registered),)
        result = self._plugin.get_coll_info(
            *self._context,
            int(collective),
            size_bytes,
            pipelined,
            _pointer(cells, "float *"),
            algorithms,
            protocols,
            *buffers,
            count,
        )
        _check(result, "getCollInfo")
        return Answer(cells, int(count[0]))

    def name(
        self,
        collective: Collective | int,
        size_bytes: int,
        *,
        collnet: bool = False,
        nvls: bool = False,
        pipelined: int = 1,
    ) -> Named:
        """One ``getCollInfo`` of versions 1 and 2, which hand over no cost table."""
        algorithm, protocol, count = _ffi.new("int *", -1), _ffi.new("int *", -1), _ffi.new("int *", 0)
        result = self._plugin.get_coll_info(
            *self._context, int(collective), size_bytes, int(collnet), int(nvls), pipelined, algorithm, protocol, count
        )
        _check(result, "getCollInfo")
        left = algorithm[0] == -1 and protocol[0] == -1
        return Named(None if left else (Algorithm(algorithm[0]), Protocol(protocol[0])), int(count[0]))

    def chunk_bytes(
        self, collective: Collective | int, algorithm: Algorithm, protocol: Protocol, chunk_bytes: int
    ) -> int:
        """One ``getChunkSize`` of version 6, after :meth:`ask`; ``chunk_bytes`` is what NCCL would take."""
        size = _ffi.new("size_t *", chunk_bytes)
        result = self._plugin.get_chunk_size(*self._context, int(collective), 0, int(algorithm), int(protocol), 1, size)
        _check(result, "getChunkSize")
        return int(size[0])

    def close(self) -> None:
        """Ends the communicator; the plugin then logs what it decided."""
        if self._open:
            self._open = False
            _check(self._plugin.end(*self._context), "finalize")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _say(self, level: int, flags: int, file: Any, line: int, form: Any, text: Any) -> None:
        self.log.append(LogLine(level, _ffi.string(text).decode(errors="replace")))


def _pointer(array: NDArray[Any], pointer: str) -> Any:
    return _ffi.cast(pointer, array.ctypes.data)


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    with _environment:
        before = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
        os.environ.update(values)
        try:
            yield
        finally:
            for name in values:
                os.environ.pop(name, None)
            os.environ.update(before)


def _check(result: int, call: str) -> None:
    # Only init ever answers anything but success; that another call does is a defect, not something a user did.
    if result != 0:
        raise RuntimeError(f"the plugin's {call} returned {result}")

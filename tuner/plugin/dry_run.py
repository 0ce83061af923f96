"""Asks the plugin as NCCL does, but without NCCL: with the same shared object, the same calls, and any cost table."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.dataclass import dataclass
from tuner.base.extras import bindings
from tuner.base.names import AlgoProto, Algorithm, Collective, Protocol
from tuner.base.records import json_form

TABLE = "NCCL_TUNER_TABLE"
NEXT = "NCCL_TUNER_NEXT"
VARIABLES = (
    TABLE,
    "NCCL_TUNER_CONFIG_FILE",
    "NCCL_TUNER_TABLE_SHA256",
    "NCCL_TUNER_STRICT",
    "NCCL_TUNER_CONSTANTS",
    "NCCL_TUNER_UNCHECKED",
    NEXT,
    "NCCL_TUNER_STATS",
    "NCCL_ALGO",
    "NCCL_PROTO",
)
IGNORED_US = -1.0
WARN = 2
INFO = 3
OLDEST, NEWEST = 1, 7  # versions of the interface
_CONSTANTS, _CONSTANTS_V7 = 144, 159  # numbers of doubles in ncclTunerConstants_v5_t and v7_t

# The plugin reads its settings from the environment, which belongs to the whole process.
_environment = threading.Lock()
# NCCL's logger is a function without a context; the thread that calls the plugin knows whose lines they are.
_listening = threading.local()


def _level_name(level: int) -> str:
    return "WARN" if level == WARN else "INFO"


PREFIX = "TUNER/nccl-tuner: "  # beginning of the plugin's lines in the log


class PluginRefused(Exception):
    """The plugin returned an error, which makes the communicator fail, such as for a bad table with
    NCCL_TUNER_STRICT=1; ``why`` is its reason."""

    def __init__(self, result: int, line: str) -> None:
        super().__init__(f"the plugin's init returned {result}: {line}")
        self.why = line.rpartition(PREFIX)[2]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that the plugin gave to NCCL's log."""

    level: int = field(metadata=json_form(convert=_level_name))  # WARN or INFO
    text: str


@dataclass(frozen=True, slots=True)
class CommunicatorSize:
    """Size of a communicator as NCCL reports it to the plugin; ``nvlink_domains`` is None before interface version
    5."""

    ranks: int
    nodes: int
    nvlink_domains: int | None = None


@dataclass(frozen=True, slots=True)
class TunerCall:
    """One operation as NCCL describes it to a tuner: ``bytes`` is its nBytes, ``pipelined`` its numPipeOps.

    NCCL passes ``registered`` from interface version 4 on, and ``collnet`` and ``nvls`` (whether the communicator
    supports them) in versions 1 and 2.
    """

    collective: Collective | int
    bytes: int
    pipelined: int = 1
    registered: bool = False
    collnet: bool = False
    nvls: bool = False


@dataclass(frozen=True, slots=True)
class TunedCosts:
    """The cost table in us after the plugin changed it, indexed [algorithm][protocol], and the channels that the plugin
    asks for (0: NCCL chooses)."""

    cost_us: NDArray[np.float32]
    channels: int


_SAYS_ALL = {"NCCL_DEBUG": "INFO"}  # otherwise the plugin does not format lines that NCCL would drop


@dataclass(frozen=True, slots=True)
class DecidingRows:
    """The lines of a table's rows that decide a call, as the plugin itself found them.

    ``decision`` is the line of the row whose choice NCCL runs. If there is no such row, ``unavailable`` is the line of
    the first row that matches the call although NCCL can run none of its choices. ``costs`` has, by algorithm and
    protocol, the line of the row that gives the time. ``undecided``: the table changes nothing, so that another tuner
    would be asked.
    """

    decision: int | None = None
    unavailable: int | None = None
    costs: Mapping[AlgoProto, int] = field(default_factory=dict)
    undecided: bool = False


class DryRun:
    """The plugin of one communicator; close it, or use it in a ``with`` statement.

    As in a job, a file is read once: all objects that are open at the same time see the same content.

    ``version`` is the version, 1 to 7, of the tuner interface by which NCCL would call the plugin. Versions 1 and 2
    have no cost tables: see :meth:`name`. ``env`` are the variables that the plugin reads, except for NCCL_TUNER_TABLE;
    it never sees the caller's environment. The plugin asks no other tuner unless ``env`` names one in NCCL_TUNER_NEXT.
    """

    _module: ClassVar[str] = "_plugin"  # name in csrc/bindings.py

    def __init__(
        self,
        table: Path | str | None,
        *,
        ranks: int,
        nodes: int,
        version: int = NEWEST,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._start(table, CommunicatorSize(ranks, nodes), version, env)

    @classmethod
    def of(
        cls,
        table: Path | str | None,
        size: CommunicatorSize,
        *,
        version: int = NEWEST,
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """Opens the plugin for a communicator, with the NVLink domains that NCCL reports."""
        run = cls.__new__(cls)
        run._start(table, size, version, env)
        return run

    def _start(
        self, table: Path | str | None, size: CommunicatorSize, version: int, env: Mapping[str, str] | None
    ) -> None:
        self.log: list[LogLine] = []
        self.version = version
        self.constants = np.zeros(_CONSTANTS if version < 7 else _CONSTANTS_V7)
        native = _native(self._module)
        self._ffi, self._lib = native.ffi, native.lib
        context = self._ffi.new("void **")
        constants = self._ffi.from_buffer("double[]", self.constants)
        variables = {
            NEXT: "none",
            **_SAYS_ALL,
            **(env or {}),
            **({} if table is None else {TABLE: str(table).replace("%", "%%")}),
        }
        with _variables(variables), self._listen(self.log):
            _tables.open(self._lib)
            described = self._ffi.new("struct call_communicator *", (size.ranks, size.nodes, size.nvlink_domains or 0))
            result = self._lib.call_init(version, described, self._lib.python_logger(), constants, context)
        self._context = context[0]
        self._open = True
        if version == 1:
            _version_1.open(self.log)
        if result != 0:
            self.close()  # NCCL does the same with a communicator that it could not create
            raise PluginRefused(result, self.log[-1].text if self.log else "")

    def ask(self, call: TunerCall, cost_us: ArrayLike, channels: int = 0) -> TunedCosts:
        """Calls ``getCollInfo`` once with a copy of ``cost_us``, indexed [algorithm][protocol]; NCCL passes 0 as
        ``channels``.
        """
        table = np.array(cost_us, dtype=np.float32, order="C")
        count = self._ffi.new("int *", channels)
        with self._listen(self.log):
            result = self._lib.call_with_costs(self.version, self._context, self._call(call), self._cells(table), count)
        _check(result, "getCollInfo")
        return TunedCosts(table, int(count[0]))

    def name(self, call: TunerCall) -> tuple[AlgoProto | None, int]:
        """Calls ``getCollInfo`` once, as interface versions 1 and 2 have it: without a cost table. Returns the plugin's
        choice (None: NCCL picks) and its channels (0: NCCL chooses them)."""
        algorithm, protocol, count = (self._ffi.new("int *", value) for value in (-1, -1, 0))
        with self._listen(self.log):
            result = self._lib.call_by_name(self.version, self._context, self._call(call), algorithm, protocol, count)
        _check(result, "getCollInfo")
        unnamed = algorithm[0] == -1 and protocol[0] == -1
        return None if unnamed else (Algorithm(algorithm[0]), Protocol(protocol[0])), int(count[0])

    def rows(self, call: TunerCall, cost_us: ArrayLike) -> DecidingRows:
        """Finds the rows that decide a call; the plugin's counts do not change.

        ``cost_us`` is not used in interface versions 1 and 2.
        """
        table = np.array(cost_us, dtype=np.float32, order="C")
        explanation = self._ffi.new("struct explanation *")
        self._lib.call_explain(self.version, self._context, self._call(call), self._cells(table), explanation)
        lines = ((divmod(cell, len(Protocol)), line) for cell, line in enumerate(explanation.costs) if line)
        return DecidingRows(
            explanation.decision or None,
            explanation.unavailable or None,
            {(Algorithm(algorithm), Protocol(protocol)): line for (algorithm, protocol), line in lines},
            bool(explanation.undecided),
        )

    def chunk_bytes(
        self, collective: Collective | int, algorithm: Algorithm, protocol: Protocol, chunk_bytes: int
    ) -> int:
        """The chunk size in bytes that the plugin returns from ``getChunkSize`` (interface versions 6 and 7).

        Must be called after :meth:`ask`. ``chunk_bytes`` is the size that NCCL would use without the plugin.
        """
        size = self._ffi.new("size_t *", chunk_bytes)
        call = self._ffi.new("struct chunk_call *", (0, int(collective), int(algorithm), int(protocol), 1))
        with self._listen(self.log):
            result = self._lib.call_chunk_size(self.version, self._context, call, size)
        _check(result, "getChunkSize")
        return int(size[0])

    def close(self) -> None:
        """Ends the plugin's part of the communicator; the plugin then logs what it decided."""
        if self._open:
            self._open = False
            with _variables(_SAYS_ALL), self._listen(_version_1.close() if self.version == 1 else self.log):
                result = self._lib.call_finalize(self.version, self._context)
            _tables.close()
            _check(result, "finalize")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @contextmanager
    def _listen(self, log: list[LogLine]) -> Iterator[None]:
        """Collects in ``log`` what the plugin logs in this thread during the block."""
        _listening.log = log
        try:
            yield
        finally:
            _listening.log = None

    def _call(self, call: TunerCall) -> Any:
        return self._ffi.new(
            "struct call *",
            {
                "bytes": call.bytes,
                "collective": int(call.collective),
                "pipelined": call.pipelined,
                "registered": call.registered,
                "collnet": call.collnet,
                "nvls": call.nvls,
            },
        )

    def _cells(self, table: NDArray[np.float32]) -> Any:
        algorithms, protocols = table.shape
        pointer = self._ffi.cast("float *", table.ctypes.data)
        return self._ffi.new("struct cost_cells *", {"us": pointer, "algorithms": algorithms, "protocols": protocols})[
            0
        ]


class _SharedTuner:
    """The tuner that communicators of interface version 1 share; its last log lines go to the first one's logger."""

    def __init__(self) -> None:
        self.communicators = 0
        self.log: list[LogLine] = []

    def open(self, log: list[LogLine]) -> None:
        if self.communicators == 0:
            self.log = log
        self.communicators += 1

    def close(self) -> list[LogLine]:
        self.communicators -= 1
        return self.log


_version_1 = _SharedTuner()


class _SharedTables:
    """Makes the plugin read files again. The plugin reads each file once per process, but during a dry run a table may
    change."""

    def __init__(self) -> None:
        self._open = 0
        self._counting = threading.Lock()

    def open(self, lib: Any) -> None:
        """Must be called before a communicator is created, while other threads cannot change the environment.

        If no other communicator is open, the plugin then reads its files again.
        """
        with self._counting:
            if self._open == 0:
                lib.call_forget_tables()
            self._open += 1

    def close(self) -> None:
        """Must be called after a communicator has been closed."""
        with self._counting:
            self._open -= 1


_tables = _SharedTables()


@cache
def _native(module: str) -> Any:
    native = bindings(module)
    native.ffi.def_extern(name="log_line")(lambda level, text: _log_line(level, native.ffi.string(text)))
    return native


def _log_line(level: int, text: bytes) -> None:
    if text.startswith(b"TUNER/nccl-tuner: build "):
        return  # this line is about the object that is installed here, and not about the table
    if (log := getattr(_listening, "log", None)) is not None:
        log.append(LogLine(level, text.decode(errors="replace")))


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
    # Only init can fail; if another call does, that is a defect of the plugin and not of the user.
    if result != 0:
        raise RuntimeError(f"the plugin's {call} returned {result}")

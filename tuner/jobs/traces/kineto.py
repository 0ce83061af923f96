"""Reads traces of PyTorch's profiler (Kineto, Chrome's JSON): each call of a process group, and its kernel's duration.

A call is an event ``record_param_comms``; its arguments are written by torch/csrc/distributed/c10d/ParamCommsUtils.hpp
and saveNcclMeta (torch/csrc/profiler/util.cpp). libkineto's output_json.cpp repeats them at the kernel, which has the
same "External id" as the call. Traces of graph replays only have kernels.
"""

import json
import re
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from gzip import GzipFile
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tuner.base.expressions import expression
from tuner.base.files import GZIPPED, MOST_BYTES
from tuner.base.names import Collective, PeerCall, peer_call
from tuner.jobs.traces import kernels
from tuner.jobs.traces import kernels as launched
from tuner.jobs.traces.calls import CallList, ExecutedCall, TracedCall, duration, group_name, number, whole_number

RECORD = "record_param_comms"
_NO_CALLS = ("wait", "init")  # recorded in the same way: a wait for a call, a process group that is made
_OF_CALL = (
    "Collective name",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Global rank start",
    "Global rank stride",
)
_KERNEL = expression(r"nccl\w*?Kernel_([A-Za-z]+)")


_PIECE = 1 << 20
_COMMA = expression(r"[ \t\n\r]*,[ \t\n\r]*")
_BLANKS = expression(r"[ \t\n\r]*")


def is_trace(value: Any) -> bool:
    """Whether a JSON value is a trace: an object with ``traceEvents``, or only the list of events."""
    if isinstance(value, dict):
        return isinstance(value.get("traceEvents"), list)
    return isinstance(value, list) and any(isinstance(event, dict) and "ph" in event for event in value)


def from_trace(file: str, value: Any) -> CallList:
    """The calls of one rank's trace."""
    events = _Events()
    for event in value["traceEvents"] if isinstance(value, dict) else value:
        events.take(event)
    return events.call_list(file, value)


def from_file(path: Path) -> CallList | None:
    """Reads the calls of a file that is an object with ``traceEvents``, event by event; None for any other file.

    OSError if the file cannot be opened.
    """
    events, others, found = _Events(), dict[str, Any](), False
    with path.open("rb") as raw:
        packed = raw.peek(2).startswith(GZIPPED)
        text = TextIOWrapper(GzipFile(fileobj=raw) if packed else raw, "utf-8-sig")
        try:
            for key, value in _Json(text).members("traceEvents"):
                if key == "traceEvents":
                    found = True
                    events.take(value)
                else:
                    others[key] = value
        except (ValueError, RecursionError, EOFError, OSError, zlib.error):
            return None
    return events.call_list(str(path), others) if found else None


class _Json:
    """A JSON text, read in pieces. ValueError if it is broken, or longer than ``MOST_BYTES``."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._text, self._at, self._ended, self._left = file, "", 0, False, MOST_BYTES
        self._decoder = json.JSONDecoder()

    def members(self, streamed: str) -> Iterator[tuple[str, Any]]:
        """Yields key and value of each member of the object. For a list under the key ``streamed``, it yields the key
        with each value of the list.
        """
        self._take("{")
        more = self._next() != "}"
        while more:
            key = self._value()
            self._take(":")
            if key == streamed and self._next() == "[":
                self._take("[")
                more = self._next() != "]"
                while more:
                    yield key, self._value()
                    if self._after_comma():
                        continue
                    more = self._next() == ","
                    self._take(",]")
                if self._text[self._at - 1] == "[":
                    self._take("]")
            else:
                yield key, self._value()
            more = self._next() == ","
            self._take(",}")
        if self._next():
            raise ValueError

    def _after_comma(self) -> bool:
        """Skips a comma and the blanks after it, if they are in the current piece; returns whether it did."""
        comma = _COMMA.match(self._text, self._at)
        if comma is None or comma.end() == len(self._text):
            return False
        self._at = comma.end()
        return True

    def _next(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            if blanks := _BLANKS.match(self._text, self._at):
                self._at = blanks.end()
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._more()

    def _take(self, signs: str) -> None:
        found = self._next()
        if not found or found not in signs:
            raise ValueError
        self._at += 1

    def _value(self) -> Any:
        """The next value, after blanks."""
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if self._ended:
                    raise
            else:
                if end < len(self._text) or self._ended:  # a number may go on in the next piece
                    self._at = end
                    return value
            self._more()

    def _more(self) -> None:
        piece = self._file.read(max(_PIECE, len(self._text) - self._at))  # a long value is then tried seldom
        self._left -= len(piece)
        if self._left < 0:
            raise ValueError
        self._text, self._at, self._ended = self._text[self._at :] + piece, 0, not piece


class _Kernel(NamedTuple):
    """A launched kernel; the first dimensions of its grid and block are None if the trace does not have them."""

    name: str
    blocks: int | None
    threads: int | None


class _Events:
    """Collects calls from events one by one. Equal calls become one call that was made several times."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, ...], TracedCall] = {}  # what is the same of many is kept once
        self._kernels: dict[_Kernel, _Kernel] = {}
        # In columns, which take less than a tuple each: "External id" and what is said; of launches us and kernel, too.
        self._recorded: tuple[list[int | None], list[TracedCall]] = [], []
        self._launched: tuple[list[int | None], array[float], list[TracedCall | None], list[_Kernel]]
        self._launched = [], array("d"), [], []

    def take(self, event: Any) -> None:
        """Keeps what an event says about a call or a kernel of NCCL; ignores other events."""
        if not isinstance(event, dict):
            return
        is_call = event.get("name") == RECORD
        is_kernel = event.get("cat") == "kernel" and _KERNEL.search(str(event.get("name"))) is not None
        arguments = _arguments(event) if is_call or is_kernel else {}
        if is_kernel:
            kernel = _Kernel(str(event["name"]), *(_first(arguments.get(key)) for key in ("grid", "block")))
            said = self._call(arguments) if "Collective name" in arguments else None
            numbers, durations_us, calls, kernels = self._launched
            numbers.append(_id(arguments))
            durations_us.append(duration(event.get("dur")))
            calls.append(said)
            kernels.append(self._kernels.setdefault(kernel, kernel))
        if is_call and arguments.get("Collective name") not in _NO_CALLS:
            self._recorded[0].append(_id(arguments))
            self._recorded[1].append(self._call(arguments))

    def _call(self, arguments: Mapping[str, Any]) -> TracedCall:
        key = tuple(str(arguments.get(name)) for name in _OF_CALL)
        known = self._calls.get(key)
        if known is None:
            known = self._calls[key] = _call(arguments)
        return known

    def call_list(self, file: str, value: Any) -> CallList:
        """The list of all calls; ``value`` has what the trace says besides its events."""
        merged: dict[tuple[TracedCall, ExecutedCall | None], tuple[int, list[float]]] = {}
        for call, kernel, times, durations_us in self._made():
            key = call, _executed(call, kernel)
            before = merged.get(key, (0, []))
            merged[key] = before[0] + times, before[1] + durations_us
        calls = [
            replace(call, ran=ran, calls=float(times), kernels_us=tuple(durations_us))
            for (call, ran), (times, durations_us) in merged.items()
        ]
        sizes = "elements x type, of all ranks together for AllGather and ReduceScatter"
        return CallList(file, "Kineto trace", sizes, tuple(calls), tuple(_notes(value, calls)), _releases(value))

    def _made(self) -> Iterator[tuple[TracedCall, _Kernel | None, int, list[float]]]:
        """Each call with its kernel (None if it has several), how often it was made with this kernel, and the known
        durations.
        """
        times_of = Counter(at for at in self._recorded[0] if at is not None)
        launches: dict[int | None, tuple[float, _Kernel | None]] = {}  # None: of several kernels
        times: Counter[tuple[int, int]] = Counter()  # by the identities of call and kernel, of which there is one each
        durations_us: dict[tuple[int, int], list[float]] = defaultdict(list)
        calls: dict[tuple[int, int], tuple[TracedCall, _Kernel | None]] = {}

        def add(call: TracedCall, kernel: _Kernel | None, us: float | None) -> None:
            times[key := (id(call), id(kernel))] += 1
            calls[key] = call, kernel
            if us is not None:
                durations_us[key].append(us)

        for at, us, said, kernel in zip(*self._launched, strict=True):
            if at in times_of:
                before = launches.get(at)
                launches[at] = (us, kernel) if before is None else (before[0] + us, None)
            elif said is not None:
                add(said, kernel, us)
            else:
                add(self._without_call(kernel), None, us)
        for at, call in zip(*self._recorded, strict=True):
            seen_us, only = launches.get(at, (None, None))
            alone = at is not None and times_of[at] == 1 and call.name not in kernels.COALESCED
            add(call, only if alone else None, seen_us)
        return ((*calls[key], times[key], durations_us[key]) for key in calls)

    def _without_call(self, kernel: _Kernel) -> TracedCall:
        match = _KERNEL.search(kernel.name)
        name = match[1] if match else kernel.name
        return self._calls.setdefault((name,), TracedCall(name, None, None, unusable="kernels without their call"))


def _first(sizes: Any) -> int | None:
    first = sizes[0] if isinstance(sizes, list) and sizes else None
    return first if isinstance(first, int) and first > 0 else None


def _executed(call: TracedCall, kernel: _Kernel | None) -> ExecutedCall | None:
    """What the launch of a call's only kernel shows; None if the trace lacks its grid or block."""
    if kernel is None or kernel.blocks is None or kernel.threads is None:
        return None
    return launched.executed(kernel.name, call.collective, kernel.blocks, kernel.threads)


def _releases(value: Any) -> tuple[str, ...]:
    distributed = value.get("distributedInfo") if isinstance(value, dict) else None
    nccl = distributed.get("nccl_version") if isinstance(distributed, dict) else None
    return (str(nccl),) if nccl else ()


def _notes(value: Any, calls: list[TracedCall]) -> list[str]:
    notes = [f"the trace is of NCCL {nccl}" for nccl in _releases(value)]
    if coalesced := sum(call.calls for call in calls if call.name in kernels.COALESCED):
        each = f"{number(coalesced)} coalesced calls"
        notes.append(f"{each} count as one call with all their bytes, as NCCL makes one choice for a group")
    return notes


def _call(arguments: Mapping[str, Any]) -> TracedCall:
    if "Collective name" not in arguments:  # as older PyTorch leaves them
        return TracedCall(RECORD, None, None, unusable="the trace does not say which collective")
    name = str(arguments["Collective name"])
    collective = kernels.collective(name)
    dtype = kernels.dtype(str(arguments.get("dtype")))
    size, unusable = None, None
    if collective is not None:
        elements = whole_number(
            arguments.get("Out msg nelems" if collective is Collective.AllGather else "In msg nelems")
        )
        if dtype is None:
            unusable = f"type {arguments.get('dtype')} is none of NCCL's"
        elif elements is None:
            unusable = "their size is not recorded"
        else:
            size = elements * dtype.size_bytes
    elif (function := peer_call(name)) is not None and dtype is not None:
        elements = whole_number(arguments.get("Out msg nelems" if function is PeerCall.Gather else "In msg nelems"))
        size = None if elements is None else elements * dtype.size_bytes
    group, description = (str(arguments.get(f"Process Group {key}") or "") for key in ("Name", "Description"))
    return TracedCall(
        name,
        collective,
        size,
        dtype,
        ranks=whole_number(arguments.get("Group size")),
        members=_members(arguments),
        communicator=group_name(group, description),
        unusable=unusable,
    )


def _members(arguments: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ranks of a call's process group; long lists are given by their first rank and the distance between ranks.
    None if they are not known.

    Source: torch/csrc/distributed/c10d/ParamCommsUtils.hpp and torch/csrc/profiler/util.cpp, PyTorch 2.6.
    """
    size = whole_number(arguments.get("Group size"))
    listed = tuple(int(digits) for digits in re.findall(r"\d+", str(arguments.get("Process Group Ranks") or "")))
    if size and len(set(listed)) == size:
        return tuple(sorted(listed))
    start, stride = (whole_number(arguments.get(f"Global rank {key}")) for key in ("start", "stride"))
    if not size or start is None or not stride:
        return None
    return tuple(range(start, start + size * stride, stride))


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _id(arguments: Mapping[str, Any]) -> int | None:
    return whole_number(arguments.get("External id", arguments.get("external id")))

"""Reads dumps of PyTorch's Flight Recorder, a pickle or JSON: the last collectives that a rank started.

Keys: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp. A dump is a pickle that only has
dictionaries, lists, tuples, texts and numbers (pickle_str, TraceUtils.h); anything else in it is refused before it is
made.
"""

import io
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.files import read_bytes
from tuner.base.names import Collective, DataType, PeerCall, peer_call
from tuner.jobs.traces import kernels
from tuner.jobs.traces.calls import (
    NAMELESS,
    CallList,
    TracedCall,
    duration,
    exchanged_bytes,
    group_name,
    number,
    spread_bytes,
    tallied,
)

KIND = "PyTorch Flight Recorder dump"
_PICKLE = expression(rb"\x80[\x02-\x05]")
_PREFIX = "nccl:"
_BACKEND = expression(r"^(?:nccl|gloo|ucc|mpi|xccl):")  # before a collective's name
_GROUP = "nccl:coalesced"  # of calls that are entries themselves
_COMPLETED = "completed"
MOST_RANKS = 8  # of a process group that are named


def _plain(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wraps the loader of a tuple: UnpicklingError if the tuple has anything but texts and numbers."""

    def checked(unpickler: Any) -> None:
        load(unpickler)
        if not all(isinstance(each, str | int | float | None) for each in unpickler.stack[-1]):
            raise pickle.UnpicklingError("it has a tuple with other values than texts and numbers, which no dump has")

    return checked


_TUPLES = (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
_SETS = (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET)
_DISPATCH: dict[int, Callable[[Any], None]] = {
    code: _plain(load) if bytes([code]) in _TUPLES else load
    for code, load in pickle._Unpickler.dispatch.items()
    if bytes([code]) not in _SETS
}


class _PlainUnpickler(pickle._Unpickler):
    """Unpickles dictionaries, lists, tuples, texts and numbers; refuses anything that has to be imported.

    Based on Python's own unpickler: the one in C allocates as much memory as a number in the file says, up to tens of
    gigabytes. Tuples may only hold texts and numbers, as in dumps: with nested tuples a few hundred bytes can expand to
    more than can be hashed or printed.
    """

    dispatch = _DISPATCH

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks to import {module_name}.{global_name}, which no dump does")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside of it, which no dump does")


def is_pickle(content: bytes) -> bool:
    """Whether the content begins like a pickle."""
    return _PICKLE.match(content) is not None


def is_dump(value: Any) -> bool:
    """Whether a value has the form of a recorder's dump."""
    return isinstance(value, dict) and isinstance(value.get("entries"), list) and "pg_config" in value


class BrokenDump(BadInput):
    """A pickle that is not a complete dump, such as from a process that was killed while it wrote."""


def from_pickle(file: str, content: bytes) -> CallList:
    """Reads a dump. BadInput if the pickle is no dump, or needs an import; nothing in it is executed."""
    return from_value(file, _unpickled(file, content))


def _unpickled(file: str, content: bytes) -> Mapping[str, Any]:
    try:
        value = _PlainUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # whatever a broken or a hostile pickle leads to
        raise BrokenDump(f"{file}: a pickle that is no Flight Recorder dump: {error}") from None
    if not is_dump(value):
        raise BrokenDump(f"{file}: a pickle that is no Flight Recorder dump: no 'entries' and 'pg_config' in it")
    dump: Mapping[str, Any] = value
    return dump


def rank_of(path: Path) -> int | None:
    """The rank that wrote a dump, from the number at the end of the file's name (TORCH_NCCL_DEBUG_INFO_TEMP_FILE); None
    without one."""
    number = re.search(r"(\d{1,9})$", path.name)
    return int(number[1]) if number else None


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A collective in a rank's dump: its number in the process group, what was called, and how far it got.

    ``elements`` are the numbers of elements of input and output. ``state`` is the recorder's: scheduled, started or
    completed; None if it is not recorded.
    """

    number: int
    name: str
    dtypes: tuple[str, ...]
    elements: tuple[int, int]
    state: str | None

    @property
    def waits(self) -> bool:
        """Whether the call had not completed."""
        return self.state not in (_COMPLETED, None)


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group in a dump: its name, its description, and its ranks (``members``)."""

    name: str
    description: str
    members: tuple[int, ...]

    @property
    def title(self) -> str:
        """The description, or else the name, with the first ranks."""
        said = self.description if self.description != NAMELESS else self.name
        return f"{said} {list(self.members[:MOST_RANKS])}"


@dataclass(frozen=True, slots=True)
class RankDump:
    """One rank's dump: its collectives by process group, and whether the recorder had dropped earlier ones.

    ``exchange_waits`` says whether a send or receive had not completed.
    """

    rank: int
    dropped: bool
    exchange_waits: bool
    calls: Mapping[ProcessGroup, Mapping[int, RecordedCall]]


def read_dump(path: Path, rank: int) -> RankDump:
    """Reads the collectives of a rank's dump, without sends, receives, and entries that stand for a group of calls.

    BadInput for a file that is not what the recorder writes.
    """
    value = _unpickled(str(path), read_bytes(path, BadInput))
    calls: dict[ProcessGroup, dict[int, RecordedCall]] = {}
    exchange_waits = False
    try:
        for entry in value["entries"]:
            ranks = _members(value, entry)
            if entry.get("is_p2p"):
                exchange_waits |= entry.get("state") not in (_COMPLETED, None)
            if entry.get("is_p2p") or _text(entry["profiling_name"]) == _GROUP or not ranks:
                continue
            name, described = map(_text, entry["process_group"][:2])  # each name counts for itself
            call = _recorded(entry)
            calls.setdefault(ProcessGroup(name, described, ranks), {})[call.number] = call
        return RankDump(rank, _drops(value), exchange_waits, calls)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise BadInput(f"{path}: not what the Flight Recorder writes: {error!r}") from None


def _recorded(entry: Mapping[str, Any]) -> RecordedCall:
    sent, received = (
        sum(prod(map(int, sizes)) for sizes in entry.get(key) or ()) for key in ("input_sizes", "output_sizes")
    )
    types = tuple(_text(each) for each in entry.get("input_dtypes") or ())
    name = _BACKEND.sub("", _text(entry["profiling_name"]))
    state = _COMPLETED if entry.get("retired") is True else entry.get("state")  # gloo's stay "scheduled"
    return RecordedCall(int(entry["collective_seq_id"]), name, types, (sent, received), state)


def _drops(value: Mapping[str, Any]) -> bool:
    """Whether the recorder had dropped calls: the first entry does not have number 0, or there is none although a
    group's status counts calls."""
    if value["entries"]:
        return min(int(entry.get("record_id") or 0) for entry in value["entries"]) > 0
    status = value.get("pg_status") or {}
    return any(int(each.get("last_enqueued_collective", -1)) > 0 for each in status.values())


def from_value(file: str, value: Mapping[str, Any]) -> CallList:
    """The calls of one rank's dump. BadInput names an invalid entry."""
    counted: Counter[TracedCall] = Counter()
    durations_us: dict[TracedCall, list[float]] = {}
    unfinished = 0
    for place, entry in enumerate(value["entries"]):
        try:
            if _text(entry["profiling_name"]) == _GROUP:
                continue
            members = _members(value, entry)
            call = replace(_call(entry, len(members) or None), members=members or None)
            unfinished += entry.get("state") not in (_COMPLETED, None)
            duration_ms = duration(entry.get("duration_ms"))
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise BadInput(f"{file}: entries[{place}] is not what the Flight Recorder writes: {error!r}") from None
        counted[call] += 1
        if duration_ms > 0:
            durations_us.setdefault(call, []).append(1000.0 * duration_ms)
    if not counted:
        raise BadInput(f"{file}: this Flight Recorder dump has no entries: set TORCH_NCCL_TRACE_BUFFER_SIZE above 0")
    calls = tallied(counted, durations_us)
    sizes = "elements x type, of all ranks together for AllGather and ReduceScatter"
    release = value.get("comm_lib_version") or value.get("nccl_version")
    releases = (release,) if isinstance(release, str) else ()
    return CallList(file, KIND, sizes, calls, tuple(_notes(value, counted, unfinished)), releases)


def _notes(value: Mapping[str, Any], counted: Mapping[TracedCall, int], unfinished: int) -> Iterator[str]:
    total = sum(counted.values())
    first = min(entry.get("record_id") or 0 for entry in value["entries"])
    if isinstance(first, int) and first:
        yield (
            f"the recorder only keeps the last calls: this dump has {number(total)} of "
            f"{number(first + len(value['entries']))}"
        )
    if unfinished:
        yield f"{number(unfinished)} calls had not completed when it was dumped"


def _text(value: Any) -> str:
    """A text or a number as a text. TypeError for anything else, which may be too large to be printed."""
    if not isinstance(value, str | int | None):
        raise TypeError(f"{type(value).__name__} in the place of a text")
    return str(value)


def _members(value: Mapping[str, Any], entry: Mapping[str, Any]) -> tuple[int, ...]:
    """The ranks of an entry's process group, from ``pg_config``, which has them as a text: ``[0, 1]``."""
    group = entry.get("process_group")
    name = _text(group[0] if isinstance(group, list | tuple) and group else entry.get("pg_id"))
    config = value.get("pg_config")
    if isinstance(config, dict) and name not in config and len(config) == 1:
        (name,) = config  # the only group of a job over gloo has no name there
    ranks = config[name].get("ranks") if isinstance(config, dict) and isinstance(config.get(name), dict) else None
    listed = re.findall(r"\d+", ranks) if isinstance(ranks, str) else ranks if isinstance(ranks, list | tuple) else ()
    return tuple(sorted(map(int, listed)))


def _call(entry: Mapping[str, Any], ranks: int | None) -> TracedCall:
    name = _text(entry["profiling_name"]).removeprefix(_PREFIX)
    collective = None if entry.get("is_p2p") else kernels.collective(name)
    name = name.partition(" ")[0]  # a send says from whom to whom
    group = entry.get("process_group")
    named, described, *_ = *map(_text, group[:2] if isinstance(group, list | tuple) else ()), "", ""
    call = TracedCall(
        name,
        collective,
        None,
        ranks=ranks,
        communicator=group_name(named, described),
    )
    function = peer_call(name)
    if collective is None and function is None:
        return call
    types = entry.get("input_dtypes") or entry.get("output_dtypes") or ()
    dtype = kernels.dtype(_text(types[0])) if types else None
    if dtype is None:
        return replace(
            call, unusable=f"type {types[0]} is none of NCCL's" if types else "their data type is not recorded"
        )
    elements = [sum(map(_elements, entry.get(key) or ())) for key in ("input_sizes", "output_sizes")]
    if function is not None:
        return replace(call, dtype=dtype, bytes=_exchanged(function, elements, dtype, ranks))
    return replace(call, dtype=dtype, bytes=_nbytes(elements, collective, dtype, ranks))


MOST_DIMENSIONS, MOST_ELEMENTS = 64, 1 << 62  # of a tensor: PyTorch's own


def _elements(sizes: Sequence[Any]) -> int:
    """The number of elements of a tensor. ValueError for more than PyTorch allows: such products can take forever."""
    if len(sizes) > MOST_DIMENSIONS or any(abs(int(size)) > MOST_ELEMENTS for size in sizes):
        raise ValueError(f"sizes of a tensor; valid: up to {MOST_DIMENSIONS} dimensions of up to 2**62")
    if abs(count := prod(map(int, sizes))) > MOST_ELEMENTS:
        raise ValueError("elements of a tensor; valid: up to 2**62")
    return count


def _exchanged(function: PeerCall, elements: Sequence[int], dtype: DataType, ranks: int | None) -> int | None:
    """The bytes of a message, or the total of a rank or the root; counts are read from the tensor (input or output)
    that every rank has."""
    sent, received = (count * dtype.size_bytes for count in elements)
    match function:
        case PeerCall.Gather:
            return exchanged_bytes(function, sent, ranks)
        case PeerCall.Scatter:
            return exchanged_bytes(function, received, ranks)
        case PeerCall.Recv:
            return received or sent
    return sent


def _nbytes(elements: Sequence[int], collective: Collective | None, dtype: DataType, ranks: int | None) -> int:
    """NCCL's nBytes, from the elements of input and output of the entry."""
    sent, received = elements
    if collective is Collective.AllGather:
        return (spread_bytes(collective, sent, ranks) if ranks and sent else received) * dtype.size_bytes
    if collective is Collective.ReduceScatter:
        return (spread_bytes(collective, received, ranks) if ranks and received else sent) * dtype.size_bytes
    return sent * dtype.size_bytes

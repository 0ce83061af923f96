"""Reads Nsight Systems' export to SQLite: NCCL's NVTX ranges with their payloads, and the kernels that they launched.

Tables: NVTX_EVENTS with binaryData, NVTX_PAYLOAD_SCHEMAS and NVTX_PAYLOAD_SCHEMA_ENTRIES, StringIds, and for CUDA's
events CUPTI_ACTIVITY_KIND_RUNTIME and CUPTI_ACTIVITY_KIND_KERNEL (nsys export --type sqlite; Nsight Systems User Guide,
"SQLite Schema Reference"). Names of the payloads' entries: src/include/nvtx_payload_schemas.h, v2.30.7-1, and
src/collectives.cc, v2.21.5-1. "Message size [bytes]" is the size of one rank for AllGather and ReduceScatter. NCCL 2.26
and later also say the communicator; the payload of ncclCommInitRank has its number of ranks.
"""

import sqlite3
import struct
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.base import bounds
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Op, peer_call
from tuner.jobs.traces import kernels
from tuner.jobs.traces.calls import CallList, TracedCall, exchanged_bytes, number, spread_bytes, tallied
from tuner.scenario.logs import choice

KIND = "Nsight Systems export (SQLite)"
DATABASE = bounds.ReaderBounds(KIND)
REPORT = b"NVIDIA Tegra Profiler Report"  # how a report begins that was not exported
MAGIC = b"SQLite format 3\x00"
_COMMUNICATOR, _RANKS, _SIZE, _OPERATION, _RANK = (
    *("NCCL communicator ID", "No. of ranks", "Message size [bytes]", "Reduction operation", "Rank"),
)
# NVTX_PAYLOAD_ENTRY_TYPE_* of nvToolsExtPayload.h: integers of C, those of so many bits, and size_t.
_TYPES = {5: "i", 6: "I", 7: "q", 8: "Q", 9: "q", 10: "Q", 15: "i", 16: "I", 17: "q", 18: "Q", 22: "Q"}
_ENUM = "i"  # of NCCL's operations, which are another schema
_HEADER = struct.Struct("<IIIIQQ")  # domain, -, schema, -, size of the payload, size of all or where it begins
_NCCL = "nccl"
_Schema = Mapping[str, tuple[int, str]]  # where a value is, and its form, by the entry's name


def from_file(path: Path, content: bytes | None) -> CallList:
    """The calls in an export that the lowest rank of each communicator made.

    ``content`` are the unpacked bytes of a compressed file; None if ``path`` can be opened as it is.

    BadInput if the file is no export, or has no payloads of NCCL.
    """
    try:
        with bounds.database(path, content, BadInput, DATABASE) as database:
            database.text_factory = _text
            return _call_list(str(path), database)
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:  # of cells with values of other kinds, too
        raise BadInput(f"{path}: not an export of Nsight Systems: {error}") from None


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class _Event:
    """An NVTX range of NCCL: its thread, its start and end in ns, its name, and the values of its payload."""

    thread: int
    start: int
    end: int
    name: str
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Launch:
    name: str
    channels: int
    threads: int
    time_us: float


def _call_list(file: str, database: sqlite3.Connection) -> CallList:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "NVTX_EVENTS" not in tables:
        raise BadInput(f"{file} has no NVTX_EVENTS: record with nsys profile --trace=cuda,nvtx, then nsys export")
    if "NVTX_PAYLOAD_SCHEMAS" not in tables or "NVTX_PAYLOAD_SCHEMA_ENTRIES" not in tables:
        raise BadInput(f"{file} has no NVTX payloads, which hold the sizes: export it with a newer nsys")
    events, nested = _events(database)
    made = [event for event in events if _SIZE in event.values]
    if not made:
        raise BadInput(
            f"{file} has no NVTX payload of a collective of NCCL: record with nsys profile --trace=cuda,nvtx"
        )
    made_of = [event for event in events if _RANKS in event.values]
    ranks: dict[int | None, int | None] = {}
    for event in made_of:
        ranks[event.values.get(_COMMUNICATOR)] = event.values[_RANKS]
    if len(sizes_of_all := {event.values[_RANKS] for event in made_of}) > 1:
        ranks.pop(None, None)  # nobody knows of which communicator a call was
    elif any(_COMMUNICATOR not in event.values for event in made):
        ranks[None] = next(iter(sizes_of_all), 0) or None
    chosen = _one_of_each(made, made_of)
    launches = _launches(database, tables)
    counted: Counter[TracedCall] = Counter()
    durations_us: dict[TracedCall, list[float]] = defaultdict(list)
    for event in made:
        communicator = event.values.get(_COMMUNICATOR)
        if chosen.get(communicator) != event.thread:
            continue
        its = [launch for _, launch in _within(launches.get(event.thread, ()), event)]
        alone = [launch for launch in its if kernels.is_of_nccl(launch.name)]
        call = _call(event, ranks.get(communicator))
        one = alone[0] if len(alone) == 1 else None
        if one is not None:
            ran = kernels.executed(one.name, call.collective, one.channels, one.threads)
            if (event.thread, event.start) in nested:
                ran = replace(ran, not_alone=GROUPED)
            call = replace(call, ran=ran)
            durations_us[call].append(one.time_us)
        counted[call] += 1
    calls = tallied(counted, durations_us)
    sizes = "Message size [bytes], times the ranks for AllGather and ReduceScatter"
    return CallList(file, KIND, sizes, calls, tuple(_notes(made, chosen, ranks, calls)))


_NO_RANK = 1 << 30
GROUPED = "inside a group, which may launch several together"


def _one_of_each(made: Sequence[_Event], made_of: Sequence[_Event]) -> dict[int | None, int]:
    """The thread of the lowest rank, keyed by communicator; if no rank is known, the first thread."""
    rank_of = {(each.thread, each.values.get(_COMMUNICATOR)): each.values.get(_RANK, 0) for each in made_of}
    threads: dict[int | None, dict[int, None]] = defaultdict(dict)
    for event in made:
        threads[event.values.get(_COMMUNICATOR)][event.thread] = None
    return {
        communicator: min(its, key=lambda thread: rank_of.get((thread, communicator), _NO_RANK))
        for communicator, its in threads.items()
    }


def _notes(
    made: Sequence[_Event],
    chosen: Mapping[int | None, int],
    ranks: Mapping[int | None, int | None],
    calls: Sequence[TracedCall],
) -> Iterator[str]:
    threads = {(event.values.get(_COMMUNICATOR), event.thread) for event in made}
    if len(threads) > len(chosen):
        yield (
            f"the file has ranges of {number(len(threads))} ranks; only those of one rank of each communicator are "
            "counted"
        )
    if None in chosen:
        yield "NCCL before 2.26 does not say which communicator a range is of: all are taken as one"
    elif not ranks:
        yield "no ncclCommInitRank was recorded: the ranks of communicators are not known"
    if not any(call.kernels_us for call in calls):
        yield "the file has NCCL's ranges but none of its kernels; nsys profile --trace=cuda,nvtx records both"


def _events(database: sqlite3.Connection) -> tuple[list[_Event], set[tuple[int, int]]]:
    """All ranges of NCCL with a payload, and the (thread, start) of those inside groups."""
    schemas = _schemas(database)
    rows = database.execute(
        "SELECT e.globalTid, e.start, e.[end], COALESCE(e.text, s.value), e.binaryData FROM NVTX_EVENTS AS e "
        "LEFT JOIN StringIds AS s ON s.id = e.textId "
        "WHERE e.text LIKE 'nccl%' OR s.value LIKE 'nccl%' ORDER BY e.start"
    )
    events, open_groups = [], Counter[int]()
    nested: set[tuple[int, int]] = set()
    for thread, start, end, name, content in rows:
        if name == "ncclGroupStart":
            open_groups[thread] += 1
        elif name == "ncclGroupEnd":
            open_groups[thread] = max(0, open_groups[thread] - 1)
        if not content:
            continue
        values = _values(content, schemas)
        if values:
            events.append(_Event(thread, start, end if end is not None else start, name, values))
            if open_groups[thread]:
                nested.add((thread, start))
    return events, nested


def _schemas(database: sqlite3.Connection) -> dict[tuple[int, int], _Schema]:
    """Payload schemas, keyed by (domain, number)."""
    schemas: dict[tuple[int, int], dict[str, tuple[int, str]]] = defaultdict(dict)
    rows = database.execute(
        "SELECT domainId, schemaId, type, name, [offset] FROM NVTX_PAYLOAD_SCHEMA_ENTRIES ORDER BY schemaId, idx"
    )
    for domain, schema, kind, name, offset in rows:
        if name is not None:
            schemas[domain, schema][name] = (offset or 0, _TYPES.get(kind, _ENUM))
    return dict(schemas)


def _values(content: bytes | str, schemas: Mapping[tuple[int, int], _Schema]) -> dict[str, int]:
    """Values of a payload in the form of Nsight Systems: a header, then NCCL's bytes. Empty for another form."""
    if isinstance(content, str):  # an export with hexadecimal texts
        try:
            content = bytes.fromhex(content)
        except ValueError:
            return {}
    if len(content) < _HEADER.size:
        return {}
    domain, _, schema, *_ = _HEADER.unpack_from(content)
    values = {}
    for name, (offset, form) in schemas.get((domain, schema), {}).items():
        at = _HEADER.size + offset
        if at + struct.calcsize(f"<{form}") <= len(content):
            (values[name],) = struct.unpack_from(f"<{form}", content, at)
    return values


def _launches(database: sqlite3.Connection, tables: set[str]) -> dict[int, list[tuple[int, _Launch]]]:
    """Launched kernels with their launch time in ns, keyed by the launching thread."""
    if not {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds"} <= tables:
        return {}
    rows = database.execute(
        "SELECT r.globalTid, r.start, n.value, k.gridX, k.blockX, k.[end] - k.start "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL AS k JOIN StringIds AS n ON n.id = k.shortName "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r ON r.correlationId = k.correlationId "
        "AND (r.globalTid >> 24) = (k.globalPid >> 24) WHERE n.value LIKE 'nccl%' ORDER BY r.start"
    )
    launches: dict[int, list[tuple[int, _Launch]]] = defaultdict(list)
    for thread, start, name, grid, block, duration_ns in rows:
        launches[thread].append((start, _Launch(name, grid, block, duration_ns / 1000.0)))
    return launches


def _within(launches: Sequence[tuple[int, _Launch]], event: _Event) -> Sequence[tuple[int, _Launch]]:
    starts = bisect_left(launches, event.start, key=_start)
    return launches[starts : bisect_left(launches, event.end, key=_start)]


def _start(launch: tuple[int, _Launch]) -> int:
    return launch[0]


def _call(event: _Event, ranks: int | None) -> TracedCall:
    name = event.name.removeprefix(_NCCL)
    collective, size = choice.collective(name), event.values[_SIZE]
    operation = event.values.get(_OPERATION)
    communicator = event.values.get(_COMMUNICATOR)
    known: dict[str, Any] = {
        "op": Op(operation) if operation in list(Op) else None,
        "ranks": ranks,
        "communicator": None if communicator is None else f"{communicator:#x}",
    }
    if collective is None:
        function = peer_call(name)
        return TracedCall(name, None, None if function is None else exchanged_bytes(function, size, ranks), **known)
    if ranks is None and spread_bytes(collective, 1, 2) > 1:
        return TracedCall(name, collective, None, unusable="the number of ranks is not recorded", **known)
    return TracedCall(name, collective, spread_bytes(collective, size, ranks or 1), **known)

"""Reads NCCL Inspector's JSON: a file with one record after the other, for each collective that a process finished.

Keys: inspector_json.cc of plugins/profiler/inspector, v2.30.7-1 (ext-profiler/inspector/inspector.cc, v2.28.9-1);
``coll_algo`` and ``coll_proto`` are newer. A size is the call's count times the size of its data type
(inspectorComputeCollBw). For AllGather and ReduceScatter, this is the size of one rank.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tuner.base.errors import BadInput
from tuner.jobs.traces.calls import (
    CallList,
    ExecutedCall,
    Member,
    TracedCall,
    duration,
    number,
    of_lowest_ranks,
    spread_bytes,
    whole_number,
)
from tuner.scenario.logs import choice

_COLLECTIVE, _POINT_TO_POINT, _STATISTICS = "coll_perf", "p2p_perf", "dump_stats"
KIND = "NCCL Inspector (JSON)"
SIZES = "coll_msg_size_bytes, times the ranks for AllGather and ReduceScatter"


def is_record(value: Any) -> bool:
    """Whether an object is a record of the Inspector."""
    return isinstance(value, dict) and any(isinstance(value.get(key), dict) for key in _KEYS)


_KEYS = (_COLLECTIVE, _POINT_TO_POINT, _STATISTICS)


def begins_with_record(content: str) -> bool:
    """Whether a text begins with a complete record of the Inspector."""
    try:
        value, _ = json.JSONDecoder().raw_decode(content.lstrip())
    except (ValueError, RecursionError):
        return False
    return is_record(value)


def from_text(file: str, content: str) -> CallList:
    """The calls of one process's file. BadInput names the line that is not JSON."""
    cut: list[bool] = []
    return _call_list(file, records_of(file, content, cut), cut)


def from_records(file: str, records: Iterable[Any]) -> CallList:
    """Reads the calls in a list of records."""
    return _call_list(file, (each for each in records if is_record(each)), [])


def _call_list(file: str, records: Iterable[Mapping[str, Any]], cut: list[bool]) -> CallList:
    durations_us: dict[tuple[Member, TracedCall], list[float]] = defaultdict(list)
    dropped = 0
    for record in records:
        head = given if isinstance(given := record.get("header"), dict) else {}
        member = _name(head), whole_number(head.get("rank")) or 0
        if isinstance(body := record.get(_COLLECTIVE), dict):
            try:
                call, took_us = _collective(head, body), duration(body.get("coll_exec_time_us"))
            except (KeyError, TypeError, ValueError) as error:
                raise BadInput(f"{file} has a record that is not what the Inspector writes: {error!r}") from None
            durations_us[member, call].append(took_us)
        elif isinstance(body := record.get(_POINT_TO_POINT), dict):
            ranks, size = whole_number(head.get("n_ranks")), whole_number(body.get("p2p_msg_size_bytes"))
            named = TracedCall(str(body.get("p2p")), None, size, ranks=ranks, communicator=member[0])
            durations_us[member, named].append(duration(body.get("p2p_exec_time_us")))
        elif isinstance(body := record.get(_STATISTICS), dict):
            dropped = max(dropped, _dropped(body))
    if not durations_us:
        raise BadInput(f"{file} has no record of a collective: give JSON of NCCL's Inspector with coll_perf")
    counted, notes = of_lowest_ranks((member for member, _ in durations_us), "the file has records")
    calls = tuple(
        replace(call, calls=float(len(times)), kernels_us=tuple(time_us for time_us in times if time_us > 0))
        for (member, call), times in durations_us.items()
        if member in counted
    )
    return CallList(file, KIND, SIZES, calls, (*notes, *_notes(calls, dropped, bool(cut))))


def _notes(calls: tuple[TracedCall, ...], dropped: int, cut: bool) -> Iterator[str]:
    if any(call.collective is not None for call in calls):
        yield "the Inspector leaves out calls below NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192 if it is not set)"
    if dropped:
        yield f"the Inspector dropped {number(dropped)} collectives, which are in no record"
    if cut:
        yield "the last record is cut and not counted"


def _dropped(body: Any) -> int:
    """The largest number of dropped records in a statistic, at any depth."""
    if isinstance(body, dict):
        own = max((whole_number(value) or 0 for key, value in body.items() if key == "dropped_total"), default=0)
        return max(own, *(_dropped(value) for key, value in body.items() if "p2p" not in key), 0)
    return 0


def _collective(head: Mapping[str, Any], body: Mapping[str, Any]) -> TracedCall:
    name = str(body["coll"])
    ranks, size = whole_number(head.get("n_ranks")), whole_number(body["coll_msg_size_bytes"])
    collective = choice.collective(name)
    spread = collective is not None and spread_bytes(collective, 2, 2) != 2
    unusable = "their size is not recorded" if size is None else None
    if spread and ranks is None:
        unusable = "the record does not say the number of ranks"
    return TracedCall(
        name,
        collective,
        None if size is None or unusable else spread_bytes(collective, size, ranks or 1),
        ranks=ranks,
        nodes=whole_number(head.get("nnodes")) or None,
        communicator=_name(head),
        unusable=unusable,
        ran=executed_of(body),
    )


def executed_of(body: Mapping[str, Any]) -> ExecutedCall | None:
    """What a record says about the execution; None if it says nothing."""
    algorithm, protocol = (str(body.get(key) or "") for key in ("coll_algo", "coll_proto"))
    if not algorithm and "_" in str(body.get("algo_proto") or ""):
        algorithm, _, protocol = str(body["algo_proto"]).rpartition("_")
    traced = body.get("event_trace_sn")
    events = traced.get("kernel_events") if isinstance(traced, dict) else None
    channels = whole_number(body.get("coll_n_channels")) or (len(events) if isinstance(events, list) else 0)
    ran = ExecutedCall(choice.algorithm(algorithm), choice.protocol(protocol), channels or None)
    return ran if ran.says_anything else None


def _name(head: Mapping[str, Any]) -> str:
    """The user's name of a communicator with its hash, or only the hash."""
    name, number_ = str(head.get("comm_name") or ""), str(head.get("id") or "unknown")
    return number_ if name in ("", "unknown") else f"{name} ({number_})"


def records_of(file: str, content: str, cut: list[bool]) -> Iterator[Mapping[str, Any]]:
    """Yields the objects of a file, each of which may be on one line or on several. If the last object is cut off, it
    is left out.

    BadInput names the line that is not JSON.
    """
    decoder, at, end = json.JSONDecoder(), 0, len(content)
    while True:
        while at < end and content[at] in " \t\r\n,":
            at += 1
        if at == end:
            return
        try:
            value, at = decoder.raw_decode(content, at)
        except (ValueError, RecursionError) as error:
            if "\n" not in content[at:].strip():
                cut.append(True)
                return
            line = content.count("\n", 0, at) + 1
            raise BadInput(f"{file}:{line}: its JSON is cut off or damaged: {error}") from None
        if is_record(value):
            yield value

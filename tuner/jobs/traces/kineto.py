"""Traces of PyTorch's profiler (Kineto, Chrome's JSON): each call of a process group, and its kernel's duration.

A call is the event ``record_param_comms``, whose arguments torch/csrc/distributed/c10d/ParamCommsUtils.hpp and
saveNcclMeta (torch/csrc/profiler/util.cpp) write; libkineto's output_json.cpp repeats them at the kernel, which has the
call's "External id". Traces of graph replays have kernels alone.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.base.names import Collective, PeerCall
from tuner.jobs.traces import kernels as launched
from tuner.jobs.traces import torch_names
from tuner.jobs.traces.calls import Call, CallList, Executed, duration, peer_call

RECORD = "record_param_comms"
_NO_CALLS = ("wait", "init")  # recorded in the same way: a wait for a call, a process group that is made
_KERNEL = re.compile(r"nccl\w*?Kernel_([A-Za-z]+)")


def is_trace(value: Any) -> bool:
    """An object with ``traceEvents``, or the bare list of them."""
    if isinstance(value, dict):
        return isinstance(value.get("traceEvents"), list)
    return isinstance(value, list) and any(isinstance(event, dict) and "ph" in event for event in value)


def from_trace(file: str, value: Any) -> CallList:
    """The calls of a trace, which is of one rank."""
    events = value["traceEvents"] if isinstance(value, dict) else value
    events = [event for event in events if isinstance(event, dict)]
    kernels = [
        (match[1], event)
        for event in events
        if event.get("cat") == "kernel" and (match := _KERNEL.search(str(event.get("name"))))
    ]
    records = [_arguments(event) for event in events if event.get("name") == RECORD]
    records = [record for record in records if record.get("Collective name") not in _NO_CALLS]
    known = {_id(record) for record in records} - {None}
    several = {number for number, times in Counter(map(_id, records)).items() if times > 1}
    durations: dict[int | None, list[float]] = defaultdict(list)
    launches: dict[int | None, list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
    calls = []
    for name, event in kernels:
        arguments, duration_us = _arguments(event), _duration_us(event)
        if _id(arguments) in known:
            durations[_id(arguments)].append(duration_us)
            launches[_id(arguments)].append((str(event["name"]), arguments))
        elif "Collective name" in arguments:
            call = _call(arguments, (duration_us,))
            calls.append(replace(call, ran=_executed(call, str(event["name"]), arguments)))
        else:
            calls.append(Call(name, None, None, kernels_us=(duration_us,), unusable="kernels without their call"))
    for record in records:
        seen = durations.get(_id(record))
        call = _call(record, (sum(seen),) if seen else ())
        of_call = launches.get(_id(record), [])
        alone = len(of_call) == 1 and _id(record) not in several and call.name not in torch_names.COALESCED
        calls.append(replace(call, ran=_executed(call, *of_call[0])) if alone else call)
    return CallList(
        file,
        "Kineto trace",
        "elements x type, of all ranks together for AllGather and ReduceScatter",
        tuple(calls),
        tuple(_notes(value, calls)),
        _releases(value),
    )


def _executed(call: Call, kernel: str, arguments: Mapping[str, Any]) -> Executed | None:
    """What the launch of the only kernel of a call says; libkineto has grid and block at it."""
    grid, block = (arguments.get(key) for key in ("grid", "block"))
    sizes = [each[0] if isinstance(each, list) and each else None for each in (grid, block)]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    return launched.executed(kernel, call.collective, *map(int, filter(None, sizes)))


def _releases(value: Any) -> tuple[str, ...]:
    distributed = value.get("distributedInfo") if isinstance(value, dict) else None
    nccl = distributed.get("nccl_version") if isinstance(distributed, dict) else None
    return (str(nccl),) if nccl else ()


def _notes(value: Any, calls: list[Call]) -> list[str]:
    notes = [f"the trace is of NCCL {nccl}" for nccl in _releases(value)]
    if coalesced := sum(call.name in torch_names.COALESCED for call in calls):
        notes.append(f"{coalesced} coalesced calls count as one call of all their bytes, as NCCL chooses for a group")
    return notes


def _call(arguments: Mapping[str, Any], kernels_us: tuple[float, ...]) -> Call:
    if "Collective name" not in arguments:  # as older PyTorch leaves them
        return Call(RECORD, None, None, kernels_us=kernels_us, unusable="the trace does not say which collective")
    name = str(arguments["Collective name"])
    collective = torch_names.collective(name)
    dtype = torch_names.dtype(str(arguments.get("dtype")))
    size, unusable = None, None
    if collective is not None:
        elements = _whole(arguments.get("Out msg nelems" if collective is Collective.AllGather else "In msg nelems"))
        if dtype is None:
            unusable = f"type {arguments.get('dtype')} is none of NCCL's"
        elif elements is None:
            unusable = "their size is not recorded"
        else:
            size = elements * dtype.size_bytes
    elif (function := peer_call(name)) is not None and dtype is not None:
        elements = _whole(arguments.get("Out msg nelems" if function is PeerCall.Gather else "In msg nelems"))
        size = None if elements is None else elements * dtype.size_bytes
    group, description = (str(arguments.get(f"Process Group {key}") or "") for key in ("Name", "Description"))
    named = f"{group} ({description})" if description not in ("", "undefined", group) else group
    return Call(
        name,
        collective,
        size,
        dtype,
        ranks=_whole(arguments.get("Group size")),
        members=_members(arguments),
        communicator=named or None,
        kernels_us=kernels_us,
        unusable=unusable,
    )


def _members(arguments: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ranks of the process group, which long lists leave out after some, as where they begin and how far apart.

    Source: torch/csrc/distributed/c10d/ParamCommsUtils.hpp and torch/csrc/profiler/util.cpp, PyTorch 2.6.
    """
    size = _whole(arguments.get("Group size"))
    listed = tuple(int(number) for number in re.findall(r"\d+", str(arguments.get("Process Group Ranks") or "")))
    if size and len(set(listed)) == size:
        return tuple(sorted(listed))
    start, stride = (_whole(arguments.get(f"Global rank {key}")) for key in ("start", "stride"))
    if not size or start is None or not stride:
        return None
    return tuple(range(start, start + size * stride, stride))


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _id(arguments: Mapping[str, Any]) -> int | None:
    return _whole(arguments.get("External id", arguments.get("external id")))


def _duration_us(event: Mapping[str, Any]) -> float:
    return duration(event.get("dur"))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None

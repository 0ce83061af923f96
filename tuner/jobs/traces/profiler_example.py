"""Reads the trace that NCCL's example of a profiler plugin writes, one event per line: the time of each collective, and
what was executed.

Events: print_event.cc of plugins/profiler/example, v2.30.7-1 (ext-profiler/example, v2.23.4-1 to v2.28.9-1). Up to
v2.28, some values lack quotes, so that the file is not JSON; lines of collectives always are JSON. A count is the count
argument of the call; for AllGather and ReduceScatter, that is the count of one rank. ``nMaxChannels``, which exists up
to v2.26, is not the number of channels that are launched.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.names import DataType, PeerCall, peer_call
from tuner.jobs.traces.calls import CallList, ExecutedCall, Member, TracedCall, nbytes, of_lowest_ranks
from tuner.scenario.logs import choice

KIND = "trace of NCCL's example profiler plugin"
_EVENT = expression(r'"cat": ?"(GROUP|GROUP_API|COLL|P2P)", ?"ph": ?"(b|e)"')
_KEY = '"CommHash"'
_NCCL_TYPE = "nccl"  # before the types' names
GROUPED = "launched together with others in one group"


def is_trace(content: str) -> bool:
    """Whether a text is such a trace: a list whose events have the plugin's categories."""
    return content.lstrip().startswith("[") and _KEY in content and _EVENT.search(content) is not None


def from_text(file: str, content: str, ranks: int) -> CallList:
    """The calls of a trace; ``ranks`` is used for all communicators, as the file does not say it. BadInput names a
    wrong line."""
    counted: Counter[tuple[Member, TracedCall]] = Counter()
    of_group: list[tuple[Member, TracedCall]] | None = None  # its collectives so far
    depth = 0
    for number, line in enumerate(content.splitlines(), start=1):
        match = _EVENT.search(line)
        if match is None:
            continue
        category, phase = match.groups()
        if category in ("GROUP", "GROUP_API"):
            depth += 1 if phase == "b" else -1
            if depth == 1 and phase == "b":
                of_group = []
            elif depth <= 0 and of_group is not None:
                counted.update(_launched(of_group))
                of_group, depth = None, 0
        elif phase == "b":
            made = _call(f"{file}:{number}", line, category, ranks)
            if of_group is None:
                counted[made] += 1
            else:
                of_group.append(made)
    counted.update(_launched(of_group or []))
    if not counted:
        raise BadInput(f"{file} has no collective: give a trace of the example profiler plugin with COLL events")
    lowest, notes = of_lowest_ranks((member for member, _ in counted), "the trace has events")
    calls = tuple(replace(call, calls=float(times)) for (member, call), times in counted.items() if member in lowest)
    assumed = f"the trace does not say how many ranks its communicators have; {ranks} are assumed"
    sizes = "Count x Datatype, times the ranks for AllGather and ReduceScatter"
    return CallList(file, KIND, sizes, calls, (assumed, *notes))


def _launched(of_group: list[tuple[Member, TracedCall]]) -> list[tuple[Member, TracedCall]]:
    """The collectives of a group; several of one rank of a communicator are launched together."""
    several = Counter(member for member, _ in of_group)
    return [
        (member, replace(call, ran=replace(call.ran, not_alone=GROUPED)) if several[member] > 1 and call.ran else call)
        for member, call in of_group
    ]


def _call(where: str, line: str, category: str, ranks: int) -> tuple[Member, TracedCall]:
    try:
        event = json.loads(line.rstrip().rstrip(","))
        arguments, name = event["args"], str(event["name"])
        communicator = str(arguments["CommHash"])
        member = communicator, int(arguments.get("Rank", 0))
        count, dtype = int(arguments["Count"]), _dtype(arguments["Datatype"])
        if category == "P2P":
            message = peer_call(name) in (PeerCall.Send, PeerCall.Recv) and dtype is not None
            sent = count * dtype.size_bytes if message and dtype is not None else None
            return member, TracedCall(name, None, sent, dtype, communicator=communicator)
        collective = choice.collective(name)
        size = None if collective is None or dtype is None else nbytes(collective, count, dtype, ranks)
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise BadInput(f"{where} is not an event of the example profiler plugin: {error!r}") from None
    return member, TracedCall(
        name,
        collective,
        size,
        dtype,
        communicator=communicator,
        unusable=None if dtype is not None else f"type {arguments['Datatype']} is none of NCCL's",
        ran=_executed(arguments),
    )


def _executed(arguments: Mapping[str, Any]) -> ExecutedCall:
    channels = arguments.get("nChannels")
    return ExecutedCall(
        choice.algorithm(str(arguments.get("Algorithm", ""))),
        choice.protocol(str(arguments.get("Protocol", ""))),
        channels if isinstance(channels, int) and channels > 0 else None,
    )


def _dtype(value: Any) -> DataType | None:
    """The data type from ``ncclFloat32``, or from the number that v2.23 writes; None for anything else."""
    if isinstance(value, int):
        return DataType(value) if value in list(DataType) else None
    name = str(value).removeprefix(_NCCL_TYPE).lower()
    return next((each for each in DataType if each.name.lower() == name), None)

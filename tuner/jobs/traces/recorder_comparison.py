"""Compares the Flight Recorder dumps of a job's ranks: which rank called something else, or did not call.

Collectives of a process group have numbers, which are the same on all ranks. What most ranks called under a number is
assumed to be right, and the other ranks are named. If two calls are equally frequent, the ranks of both are named.
Numbers that not all dumps have are not compared: a recorder only keeps the last calls, so that dumps begin with
different numbers.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tuner.base.errors import BadInput
from tuner.base.findings import Finding, Severity
from tuner.base.names import Collective, PeerCall, peer_call
from tuner.jobs.traces import kernels
from tuner.jobs.traces.flight_recorder import BrokenDump, ProcessGroup, RankDump, RecordedCall, rank_of, read_dump

Calls = Mapping[int, RecordedCall]  # by rank, of one number
_ORDER = {"scheduled": 0, "started": 1, "completed": 2}
# Whose sizes have to be the same on all ranks: those of the input, or of the output.
_BY_INPUT = (Collective.AllReduce, Collective.Broadcast, Collective.Reduce, Collective.ReduceScatter, PeerCall.Gather)
_BY_OUTPUT = (Collective.AllGather, PeerCall.Scatter)


def findings_of(files: Sequence[Path]) -> list[Finding]:
    """The findings on the dumps of a job's ranks, the gravest first; there is at least one.

    BadInput for two dumps of one rank, for a file that is no dump, and if no dump is complete.
    """
    dumps = _dumps(files)
    calls = _by_group(dumps)
    members = {rank for group in calls for rank in group.members}
    dumped = sorted(each.rank for each in dumps)
    found = [finding for group, numbers in calls.items() for finding in _disagreement(group, numbers)]
    found += _behind(calls, dumps)
    found += [finding for group, numbers in calls.items() for finding in _not_started(group, numbers)]
    gaps = [finding for group, numbers in calls.items() for finding in _gaps(group, numbers)]
    if not any(each.severity is Severity.FAULT for each in found):
        waits = any(each.exchange_waits for each in dumps) or any(
            call.waits for numbers in calls.values() for ranks in numbers.values() for call in ranks.values()
        )
        untold = any(each.code == "recorder.untold" for each in found)
        if not calls and not waits:
            found.append(Finding("recorder.no_calls", Severity.UNKNOWN, {}))
        else:
            found += gaps or ([_nobody(waits)] if not untold else [])
    else:
        found += gaps
    found.append(Finding("recorder.dumps", Severity.NOTE, {"ranks": len(dumped)}))
    if absent := sorted(members - set(dumped)):
        found.append(Finding("recorder.absent", Severity.NOTE, {"ranks": absent}))
    return found


def _nobody(waits: bool) -> Finding:
    """The finding if no rank differs: either a call still waits, or every recorded call completed."""
    if waits:
        return Finding("recorder.nobody_behind", Severity.UNKNOWN, {})
    return Finding("recorder.alike", Severity.NOTE, {})


def _dumps(files: Sequence[Path]) -> list[RankDump]:
    found: dict[int, tuple[Path, RankDump]] = {}
    broken = list[BadInput]()
    for path in files:
        rank = rank_of(path)
        if rank is None:
            continue
        try:
            dump = read_dump(path, rank)
        except BrokenDump as error:
            broken.append(error)
            continue
        if rank in found:
            raise BadInput(f"{found[rank][0]} and {path} are both dumps of rank {rank}: give the dumps of one job")
        found[rank] = path, dump
    if broken and not found:
        raise broken[0]
    return [dump for _, dump in found.values()]


def _by_group(dumps: Sequence[RankDump]) -> dict[ProcessGroup, dict[int, dict[int, RecordedCall]]]:
    """Calls keyed by process group, number and rank; groups are sorted by name, numbers are ascending."""
    calls: dict[ProcessGroup, dict[int, dict[int, RecordedCall]]] = {}
    for dump in dumps:
        for group, of_rank in dump.calls.items():
            for number, call in of_rank.items():
                calls.setdefault(group, {}).setdefault(number, {})[dump.rank] = call
    ordered = sorted(calls, key=lambda group: (group.name, group.members))
    return {group: dict(sorted(calls[group].items())) for group in ordered}


def _disagreement(group: ProcessGroup, numbers: Mapping[int, Calls]) -> Iterator[Finding]:
    """Finds the first number under which ranks of a group called different things; later differences may only be
    consequences."""
    for number, calls in numbers.items():
        for code, said in (("collective", _name), ("type", _types), ("size", _elements)):
            if len(set(map(said, calls.values()))) > 1 and not (code == "size" and _adds_up(calls, group)):
                yield _odd(f"recorder.other_{code}", group, number, calls, said)
                return
        if (uneven := _splits(calls, group)) is not None:
            sent, received = uneven
            facts = {"group": group.title, "number": number, "name": _name(next(iter(calls.values())))}
            yield Finding("recorder.uneven_split", Severity.FAULT, {**facts, "sent": sent, "received": received})
            return


def _odd(code: str, group: ProcessGroup, number: int, calls: Calls, said: Callable[[RecordedCall], object]) -> Finding:
    """Finds ranks whose value of ``said`` differs from that of most ranks; names both groups if they are equally
    large."""
    counts = Counter(map(said, calls.values()))
    (most, count), *others = counts.most_common()
    camps = {value: sorted(rank for rank, call in calls.items() if said(call) == value) for value in counts}
    odd = sorted(rank for value in camps if value != most for rank in camps[value])
    texts = [f"{_ranks(ranks)}: {_text(value)}" for value, ranks in sorted(camps.items(), key=lambda each: each[1])]
    return Finding(
        code,
        Severity.FAULT,
        {
            "group": group.title,
            "number": number,
            "name": _name(next(call for call in calls.values() if said(call) == most)),
            "ranks": odd,
            "camps": texts,
            "tie": others[0][1] == count,
            "clear": others[0][1] < count,
        },
    )


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _text(value: object) -> str:
    return (
        ", ".join(map(str, value))
        if isinstance(value, tuple)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _name(call: RecordedCall) -> str:
    return call.name


def _types(call: RecordedCall) -> tuple[str, ...]:
    return call.dtypes


def _kind(call: RecordedCall) -> Collective | PeerCall | None:
    return kernels.collective(call.name) or peer_call(call.name.partition(" ")[0])


def _elements(call: RecordedCall) -> int:
    """The number of elements that must be equal on all ranks; 0 for calls in which ranks may differ."""
    kind = _kind(call)
    return call.elements[0] if kind in _BY_INPUT else call.elements[1] if kind in _BY_OUTPUT else 0


def _adds_up(calls: Calls, group: ProcessGroup) -> bool:
    """Whether the parts of an AllGather or ReduceScatter add up to the whole; PyTorch allows unequal parts."""
    if set(calls) != set(group.members):
        return False
    kind = _kind(next(iter(calls.values())))
    whole, part = (1, 0) if kind is Collective.AllGather else (0, 1)
    wholes = {call.elements[whole] for call in calls.values()}
    return (
        kind in (Collective.AllGather, Collective.ReduceScatter)
        and len(wholes) == 1
        and wholes == {sum(call.elements[part] for call in calls.values())}
    )


def _splits(calls: Calls, group: ProcessGroup) -> tuple[int, int] | None:
    """How many elements all ranks of an all-to-all send and receive, if the two totals differ; else None."""
    if set(calls) != set(group.members) or _kind(next(iter(calls.values()))) is not PeerCall.AllToAll:
        return None
    sent, received = (sum(call.elements[side] for call in calls.values()) for side in (0, 1))
    return (sent, received) if sent != received else None


def _behind(calls: Mapping[ProcessGroup, Mapping[int, Calls]], dumps: Sequence[RankDump]) -> Iterator[Finding]:
    """Finds ranks whose last collective in a group is earlier than that of others, if some rank still waits in the
    group.

    Each of these ranks is named for the group in which it is furthest behind. A rank may also be behind if its recorder
    dropped calls and its dump has no call of the group.
    """
    dumped, dropping = {each.rank for each in dumps}, {each.rank for each in dumps if each.dropped}
    behind: dict[int, tuple[int | None, Finding]] = {}
    untold = set[int]()
    for group, numbers in calls.items():
        if not any(call.waits for ranks in numbers.values() for call in ranks.values()):
            continue
        last = {rank: number for number, ranks in numbers.items() for rank in ranks}
        most = max(last.values())
        farthest = sorted(rank for rank, number in last.items() if number == most)
        for rank in sorted(set(group.members) & dumped - set(farthest)):
            at = last.get(rank)
            if at is None and rank in dropping:
                untold.add(rank)
            elif rank not in behind or (at is None and behind[rank][0] is not None):
                name = numbers[most][farthest[0]].name
                facts = {"rank": rank, "group": group.title, "at": at, "none": at is None, "others": farthest}
                made = Finding("recorder.behind", Severity.FAULT, {**facts, "number": most, "name": name})
                behind[rank] = at, made
    if behind:
        yield Finding("recorder.did_not_call", Severity.FAULT, {"ranks": sorted(behind)})
        yield from (finding for _, (_, finding) in sorted(behind.items()))
    if left := sorted(untold - behind.keys()):
        yield Finding("recorder.untold", Severity.NOTE if behind else Severity.UNKNOWN, {"ranks": left})


def _not_started(group: ProcessGroup, numbers: Mapping[int, Calls]) -> Iterator[Finding]:
    """Finds ranks whose last call is only scheduled, while other ranks have started it: something before it on their
    GPU did not end.
    """
    number, calls = list(numbers.items())[-1]
    states = {rank: _ORDER.get(call.state or "") for rank, call in calls.items()}
    waiting = sorted(rank for rank, state in states.items() if state == _ORDER["scheduled"])
    started = sorted(rank for rank, state in states.items() if state is not None and state > _ORDER["scheduled"])
    if waiting and started and len(set(map(_name, calls.values()))) == 1:
        facts = {"group": group.title, "number": number, "name": _name(calls[waiting[0]])}
        yield Finding("recorder.not_started", Severity.FAULT, {**facts, "ranks": waiting, "others": started})


def _gaps(group: ProcessGroup, numbers: Mapping[int, Calls]) -> Iterator[Finding]:
    """Finds calls that other ranks recorded and that are missing between a rank's own recorded calls."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, calls in numbers.items():
        for rank in calls:
            first.setdefault(rank, number)
            last[rank] = number
    for number, calls in numbers.items():
        lacking = sorted(rank for rank in first if rank not in calls and first[rank] < number < last[rank])
        if lacking:
            name = _name(next(iter(calls.values())))
            facts = {"group": group.title, "number": number, "name": name, "ranks": lacking}
            yield Finding("recorder.gap", Severity.UNKNOWN, {**facts, "others": sorted(calls)})

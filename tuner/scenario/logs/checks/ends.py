"""The check of where a log ends: in an orderly way, after the start or before it; and what its ranks were doing at that
time."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tuner.base.expressions import expression
from tuner.base.findings import Finding, Severity
from tuner.scenario.logs.endings import ORDERLY, WAITING, failures
from tuner.scenario.logs.imported import CommunicatorLines, ShownByLog, groups
from tuner.scenario.logs.reader import LastCall, NcclLog, RankLog

ORDERLY_ENDS = {
    "nccl_tests_end": "the closing lines of nccl-tests",
    "slurm_completed": "Slurm's accounting says that it completed",
}
MOST_WAITS = 3  # if an engine reports more often that it waits, a long compilation is not the reason
_NO_P2P = expression(r"GeForce RTX (4|5)0\d\d")


def end(shown: ShownByLog) -> Iterator[Finding]:
    """Finds ranks whose last calls differ. Unless the log shows a failure or timeout, also finds where it ends."""
    log = shown.reading.log
    differing = list(_differing_calls(log))
    yield from differing
    if failures(log.endings) or log.timed_out:
        return
    orderly = _orderly(log)
    if orderly is not None:
        yield Finding("diagnose.ends_orderly", Severity.NOTE, {"how": orderly})
        return
    waits = [each for each in log.endings if each.role == WAITING]
    if len(waits) >= MOST_WAITS or (waits and not log.ranks):
        facts = {"line": waits[0].line, "place": log.place(waits[0].line), "times": len(waits)}
        yield Finding(f"ending.{waits[0].kind}", Severity.UNKNOWN, facts)
        return
    if log.result_rows == 0 and _is_over_pcie(log):
        yield Finding("diagnose.hang_in_first_call", Severity.UNKNOWN, {})
        return
    if log.result_rows is not None:
        yield Finding("diagnose.ends_in_results", Severity.UNKNOWN, {"rows": log.result_rows})
        return
    unfinished = [found for group in groups(log.ranks) if (found := _unfinished(group, log)) is not None]
    yield from unfinished
    if unfinished or differing:
        return
    if log.last_calls:
        number = max(call.number for call in log.last_calls.values())
        yield Finding("diagnose.ends_after_calls", Severity.NOTE, {"number": number})
    elif any(rank.complete for rank in log.ranks):
        ranks = {rank.rank for rank in shown.reading.logs if rank.rank is not None}
        size = shown.reading.group.ranks if shown.reading.group else None
        facts = {"shown": sorted(ranks) if size and len(ranks) < size else None, "of": size}
        yield Finding("diagnose.ends_after_init", Severity.NOTE, facts)
    elif shows := _without_init(log):
        lacks = {"shows": shows, "subsystems": _subsystems(log)}
        yield Finding("diagnose.without_init", Severity.UNKNOWN, lacks)
    elif log.transports or log.rings or log.trees or any(rank.channels is not None for rank in log.ranks):
        yield Finding("diagnose.ends_before_complete", Severity.UNKNOWN, {})
    elif (not log.ranks and (log.networks or log.adapters or log.versions)) or _says_little(log):
        yield Finding("diagnose.ends_before_init", Severity.UNKNOWN, {})


def _without_init(log: NcclLog) -> list[str]:
    """For a log without lines of NCCL_DEBUG_SUBSYS=INIT, what it shows of the time after a communicator's start; empty
    for other logs."""
    if any(rank.comm is not None or rank.channels is not None for rank in log.ranks) or log.networks or log.rings:
        return []
    graphs = any(rank.graphs or rank.system for rank in log.ranks)
    shown = {"connections": bool(log.transports), "choices": bool(log.choices), "graphs": graphs}
    return [name for name, is_there in shown.items() if is_there]


def _subsystems(log: NcclLog) -> str | None:
    """The value of NCCL_DEBUG_SUBSYS; None if the log does not say it."""
    values = (values.get("NCCL_DEBUG_SUBSYS") for values in log.environment.values())
    return next((value for value in values if value is not None), None)


def _says_little(log: NcclLog) -> bool:
    """Whether the log has lines of NCCL, but none about a communicator, a ring or a warning."""
    return bool(log.last_line) and not (log.warnings or log.ranks or log.rings)


def _orderly(log: NcclLog) -> str | None:
    """A phrase about the log's orderly end; None if the log does not end in an orderly way."""
    for each in log.endings:
        if each.role == ORDERLY:
            return ORDERLY_ENDS[each.kind]
    made = {(rank.thread.process, rank.comm) for rank in log.ranks if rank.complete and rank.comm is not None}
    if made and made <= log.destroyed:
        return "its communicators are destroyed"
    return None


def _is_over_pcie(log: NcclLog) -> bool:
    """Whether GPUs of a host use peer-to-peer access and the log shows no NVLink."""
    linked = any(rank.nvswitch or any(rank.linked.values()) for rank in log.ranks)
    linked = linked or any(graph.type_intra.startswith("NV") for rank in log.ranks for graph in rank.graphs)
    return not linked and any(way.startswith("P2P") for way in log.transports)


def p2p_on_geforce(shown: ShownByLog) -> Iterator[Finding]:
    """Finds peer-to-peer access on GPUs whose driver does not support it: GeForce after the RTX 30 series."""
    names = [name for name in shown.reading.log.devices.values() if _NO_P2P.search(name)]
    if names and any(way.startswith("P2P") for way in shown.reading.log.transports):
        yield Finding("diagnose.p2p_on_geforce", Severity.UNLIKE, {"gpu": names[0]})


def _unfinished(group: CommunicatorLines, log: NcclLog) -> Finding | None:
    """Finds ranks for which the log does not show that the creation of their communicator ended, or even that it
    began."""
    began = [each for each in group.logs if each.started]
    if not began:
        return None
    open_ranks = [each for each in began if not each.complete]
    if open_ranks:
        facts = {
            "complete": len(began) - len(open_ranks),
            "counted": group.ranks or len(began),
            "ranks": _numbers(open_ranks),
            "place": log.place(log.last_line),
            "line": log.last_line,
        }
        return Finding("diagnose.ends_in_init", Severity.UNKNOWN, facts)
    by_host: dict[str, list[RankLog]] = defaultdict(list)
    for each in group.logs:
        by_host[each.thread.host].append(each)
    processes = {each.thread.process for each in group.logs}
    lacking = any(
        len(ranks) < (each.local_ranks or 0) for ranks in by_host.values() for each in ranks if not each.mnnvl
    )
    alone = len(processes) == 1 and len(_processes(log)) == 1  # the log of one rank
    if lacking and not alone:
        return Finding("diagnose.ends_without_ranks", Severity.UNKNOWN, {"ranks": _numbers(began), "of": group.ranks})
    return None


def _processes(log: NcclLog) -> set[tuple[str, int]]:
    return {*(each.thread.process for each in log.ranks), *log.networks, *log.environment}


def _numbers(ranks: Sequence[RankLog]) -> list[int]:
    return sorted({each.rank for each in ranks if each.rank is not None})


def _differing_calls(log: NcclLog) -> Iterator[Finding]:
    """Finds ranks of one communicator whose last calls differ."""
    for group in groups(log.ranks):
        at = dict[int, LastCall]()
        for rank in group.logs:
            calls = [call for (thread, comm), call in log.last_calls.items() if _is_of(thread.process, comm, rank)]
            if rank.rank is not None and calls:
                at[rank.rank] = max(calls, key=lambda each: each.number)
        first_call = max((call.number for call in at.values()), default=1) == 0
        without = {rank.rank for rank in group.logs if rank.complete and rank.rank is not None} - at.keys()
        if first_call and without and not _orderly(log):
            collective = next(iter(at.values())).collective
            yield Finding(
                "diagnose.ranks_without_call",
                Severity.UNKNOWN,
                {"ranks": sorted(without), "ahead": sorted(at), "collective": collective},
            )
        if len(at) < 2:
            continue
        last = max(call.number for call in at.values())
        behind = {rank: call for rank, call in at.items() if call.number < last}
        ahead = {rank: call for rank, call in at.items() if call.number == last}
        if behind and not _orderly(log):
            facts = {
                "behind": sorted(behind),
                "behind_number": max(call.number for call in behind.values()),
                "ahead": sorted(ahead),
                "number": last,
                "collective": next(iter(ahead.values())).collective,
            }
            yield Finding("diagnose.ranks_at_different_calls", Severity.UNKNOWN, facts)
        kinds = defaultdict[tuple[str, int, int], list[int]](list)
        for number, call in ahead.items():
            kinds[call.collective, call.elements, call.dtype].append(number)
        if len(kinds) > 1 and not any(name in ("Send", "Recv", "AlltoAll", "AllToAll") for name, *_ in kinds):
            first = min(call.line for call in ahead.values())
            facts = {
                "number": last,
                "calls": [
                    f"{name} of {count:,} elements on {_listed(ranks)}" for (name, count, _), ranks in kinds.items()
                ],
                "place": log.place(first),
                "line": first,
            }
            yield Finding("diagnose.calls_differ", Severity.FAULT, facts)


def _is_of(process: tuple[str, int], comm: str, rank: RankLog) -> bool:
    return process == rank.thread.process and comm == rank.comm


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:4]))
    return f"rank{'s' * (len(ranks) > 1)} {shown}{' ...' * (len(ranks) > 4)}"

"""The check of how a job failed: the first cause, and what followed from it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tuner.base.findings import Finding, Severity
from tuner.scenario.logs.endings import (
    AFTERMATH,
    CAUSE,
    ECHO,
    HARDWARE,
    HEAD,
    MOST_BELOW,
    SIGNALS,
    EndingLine,
    failures,
    in_traceback,
    xids,
)
from tuner.scenario.logs.imported import ShownByLog
from tuner.scenario.logs.reader import NcclLog

RESULTS = {  # ncclResult_t by the text of ncclGetErrorString, src/init.cc
    "unhandled cuda": "ncclUnhandledCudaError",
    "unhandled system": "ncclSystemError",
    "internal error": "ncclInternalError",
    "invalid argument": "ncclInvalidArgument",
    "invalid usage": "ncclInvalidUsage",
    "remote process": "ncclRemoteError",
}
FOLLOWS = {ECHO, HEAD, AFTERMATH}
# Lines in which a launcher reports that a process ended, in addition to the process's own lines; it ends the other
# processes by SIGTERM.
OF_LAUNCHERS = {*SIGNALS.values(), "exit_code"} - {"terminated", "interrupted"}
BEGINNINGS = {HARDWARE, CAUSE}
OF_TIMEOUTS = {"collective_timeout", "watchdog_failure"}
BY_WATCHDOG = {"aborted", "cpp_exception"}  # how PyTorch ends a process whose collective timed out


def ending(shown: ShownByLog) -> Iterator[Finding]:
    """Finds the first failure, and the processes that failed as a consequence; nothing if no line reports a failure."""
    log = shown.reading.log
    found = _by_watchdog(failures(log.endings))
    if not found and not log.last_line and (piece := in_traceback(log.endings)) is not None:
        found = [piece]
    if not found or (found[0].kind in OF_TIMEOUTS and log.timed_out):  # a timeout has a check of its own
        return
    first, *others = found
    facts = _facts(_of_whom(first, others), log)
    of_others = (rank_of(each, log) for each in others)
    ranks = {rank for rank in of_others if rank is not None and rank != facts["rank"]}
    timed_out = {each.pid for each in found if each.kind in OF_TIMEOUTS and each.pid is not None}
    by_watchdog = first.kind in BY_WATCHDOG or (first.kind == "ray_worker_died" and first.pid in timed_out)
    follow = first.role in FOLLOWS or (bool(log.timed_out) and by_watchdog)
    began = first.role in BEGINNINGS or first.kind == "killed"
    facts |= {"followers": sorted(ranks), "follows": follow, "began": began or None}
    yield Finding(f"ending.{first.kind}", Severity.FAULT, facts)
    yield Finding("diagnose.ending_line", Severity.NOTE, {"place": log.place(first.line), "text": first.text})
    if ranks:
        yield Finding("diagnose.ranks_followed", Severity.NOTE, {"ranks": sorted(ranks)})
    kinds = {each.kind: each for each in reversed(others) if each.kind != first.kind}
    for each in sorted(kinds.values(), key=lambda each: each.line):
        yield Finding("diagnose.also_ended", Severity.NOTE, {"place": log.place(each.line), "text": each.text})


def _by_watchdog(found: list[EndingLine]) -> list[EndingLine]:
    """The failures, with a timeout before the exception or signal by which PyTorch's watchdog ended the same
    process."""
    if not found or found[0].kind not in BY_WATCHDOG:
        return found
    first = found[0]
    of_timeout = [
        each
        for each in found
        if each.kind in OF_TIMEOUTS
        and each.line <= first.line + MOST_BELOW
        and (each.source == first.source or each.line == first.line + 1)  # text of the exception, from what()
    ]
    if not of_timeout:
        return found
    why = next((each for each in of_timeout if each.kind == "collective_timeout"), of_timeout[0])
    return [why, *(each for each in found if each is not why)]


def _of_whom(first: EndingLine, others: Sequence[EndingLine]) -> EndingLine:
    """The ending with its process. If its line names none, the rest of its message on the next line may, or else
    launchers report that only one process ended."""
    if first.rank is not None or first.pid is not None or first.gpu is not None:
        return first
    named = [each for each in others if each.pid is not None and first.host in (None, each.host)]
    message = [each for each in named if each.kind == first.kind and each.line == first.line + 1]
    launched = {each.pid: each for each in named if each.kind in OF_LAUNCHERS}
    whose = message or list(launched.values())
    return replace(first, rank=whose[0].rank, host=whose[0].host, pid=whose[0].pid) if len(whose) == 1 else first


def _facts(ending: EndingLine, log: NcclLog) -> dict[str, object]:
    detail = (ending.detail or "").lower()
    meaning = xids().get(ending.number or 0) if ending.kind == "xid" else None
    rank = rank_of(ending, log)
    host = ending.host or next((each.thread.host for each in log.ranks if rank is not None and each.rank == rank), None)
    parts = [f"rank {rank}"] if rank is not None else []
    parts += [f"GPU {ending.gpu}"] if ending.gpu is not None else []
    parts += [f"process {ending.pid}"] if ending.pid is not None and rank is None else []
    return {
        "who": " on ".join([", ".join(parts) or "a process", *([f"host {host}"] if host else [])]),
        "place": log.place(ending.line),
        "line": ending.line,
        "rank": rank,
        "host": host,
        "pid": ending.pid,
        "gpu": ending.gpu,
        "number": ending.number,
        "detail": ending.detail,
        "result": next((name for part, name in RESULTS.items() if part in detail), None),
        "remote": ("remote process" in detail) or None,
        "meaning": meaning and meaning.says,
    }


def rank_of(ending: EndingLine, log: NcclLog) -> int | None:
    """The rank of a failure: from its line, or else from its process or GPU, if these belong to only one rank."""
    if ending.rank is not None:
        return ending.rank
    found = set[int | None]()
    if ending.pid is not None:
        found = {
            each.rank for each in log.ranks if each.thread.pid == ending.pid and _on_host(each.thread.host, ending)
        }
    if not found - {None} and ending.gpu is not None:
        bus_id = _bus_id(ending.gpu)
        found = {
            each.rank
            for each in log.ranks
            if (each.bus_id == bus_id if bus_id is not None else str(each.device) == ending.gpu)
            and _on_host(each.thread.host, ending)
        }
    found -= {None}
    return found.pop() if len(found) == 1 else None


def _on_host(host: str, ending: EndingLine) -> bool:
    """Whether ``host`` may be the host of the line; an address in the line may belong to any host."""
    return ending.host is None or host == ending.host or ending.host[:1].isdigit()


def _bus_id(gpu: str) -> int | None:
    """The number into which NCCL packs a PCI address; None if the text is an index and not an address."""
    if ":" not in gpu:
        return None
    address, _, function = gpu.partition(".")
    digits = address.replace(":", "") + (function or "0")
    return int(digits, 16) if all(each in "0123456789abcdefABCDEF" for each in digits) else None

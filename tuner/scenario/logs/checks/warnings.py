"""The check of NCCL's own warnings; ``tables/warnings.toml`` says what they mean."""

import re
from collections.abc import Iterator

from tuner.base.findings import Finding, Severity
from tuner.scenario.logs.endings import failures
from tuner.scenario.logs.imported import ShownByLog
from tuner.scenario.logs.known_warnings import meaning_of
from tuner.scenario.logs.lines import PrintedLine

MOST_WARNINGS = 6
RESULTS = (  # ncclResult_t, src/nccl.h.in
    "ncclSuccess",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclRemoteError",
)


def warnings(shown: ShownByLog) -> Iterator[Finding]:
    """Finds every warning that no other finding explains; equal warnings make one finding."""
    log = shown.reading.log
    fell_back = shown.channels is not None and any(rank.fallback_patterns for rank in shown.reading.logs)
    alike: dict[str, list[PrintedLine]] = {}
    for text, line in log.warnings.items():
        if any(part in text for part in ("ibverbs", "No device found")) and log.network_faults:
            continue
        if fell_back and "Could not find a path for pattern" in text:
            continue
        alike.setdefault(re.sub(r"0x[0-9a-f]+|\d+", "#", text), []).append(line)
    for text in [text for text in alike if any(_is_cut(text, other) for other in alike)]:
        del alike[text]
    if log.returned is not None and not alike:
        where, number = log.returned
        follows = bool(log.timed_out or failures(log.endings))  # a communicator's calls fail after it was aborted
        severity = Severity.NOTE if follows else Severity.FAULT
        yield Finding("diagnose.nccl_returned", severity, {"result": RESULTS[number], "where": where})
    ranks = {each.thread.process: each.rank for each in log.ranks}
    for line, *others in list(alike.values())[:MOST_WARNINGS]:
        known = meaning_of(line.text)
        complete = any(rank.complete for rank in log.ranks)
        severity = Severity.NOTE if known is not None and known.is_harmless(complete) else Severity.FAULT
        facts = {
            "text": line.text.strip(),
            "line": line.number,
            "place": log.place(line.number),
            "rank": ranks.get(line.thread.process),
            "host": line.thread.host or None,
            "alike": len(others) or None,
            "after_another": (known is not None and known.follows) or None,
            "slower": (known is not None and known.slower) or None,
            "meaning": known and known.says,
            "remedy": (known and known.do) or None,
        }
        yield Finding("diagnose.warned", severity, facts)
    if (left := len(alike) - MOST_WARNINGS) > 0:
        yield Finding("diagnose.more_warnings", Severity.NOTE, {"count": left})


def _is_cut(text: str, other: str) -> bool:
    """Whether a warning is the beginning of another one, as the last line of an excerpt may be."""
    return len(text) < len(other) and other.startswith(text.rstrip())

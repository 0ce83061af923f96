"""The check of NCCL's own warnings, with what they mean (``tables/warnings.toml``)."""

import re
from collections.abc import Iterator
from functools import cache

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.findings import Finding, Severity
from tuner.scenario.logs.checks.shown import ShownByLog
from tuner.scenario.logs.reader import PrintedLine

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


@dataclass(frozen=True, slots=True)
class KnownWarning:
    """A warning that says little to who does not know NCCL: ``pattern`` is found in it, ``says`` is what it means."""

    pattern: str
    says: str
    source: str
    harmless: bool = False


@cache
def _known_warnings() -> tuple[KnownWarning, ...]:
    return tuple(KnownWarning(**row) for row in tables.toml(tables.folder() / "warnings.toml")["warning"])


def warnings(shown: ShownByLog) -> Iterator[Finding]:
    """Every warning but those that another answer explains, alike ones once."""
    log = shown.reading.log
    fell_back = any(rank.fallback_patterns for rank in shown.reading.logs)
    alike: dict[str, list[PrintedLine]] = {}
    for text, line in log.warnings.items():
        if any(part in text for part in ("ibverbs", "No device found")) and log.network_faults:
            continue
        if fell_back and "Could not find a path for pattern" in text:
            continue
        alike.setdefault(re.sub(r"0x[0-9a-f]+|\d+", "#", text), []).append(line)
    if log.returned is not None and not alike:
        where, number = log.returned
        yield Finding("diagnose.nccl_returned", Severity.FAULT, {"result": RESULTS[number], "where": where})
    ranks = {each.thread.process: each.rank for each in log.ranks}
    for line, *others in list(alike.values())[:MOST_WARNINGS]:
        known = next((each for each in _known_warnings() if re.search(each.pattern, line.text)), None)
        severity = Severity.NOTE if known is not None and known.harmless else Severity.FAULT
        facts = {
            "text": line.text.strip(),
            "line": line.number,
            "place": log.place(line.number),
            "rank": ranks.get(line.thread.process),
            "host": line.thread.host or None,
            "alike": len(others) or None,
            "meaning": known and known.says,
        }
        yield Finding("diagnose.warned", severity, facts)
    if (left := len(alike) - MOST_WARNINGS) > 0:
        yield Finding("diagnose.more_warnings", Severity.NOTE, {"count": left})

"""The check of NCCL's own diagnostics. With NCCL_RUN_DIAGNOSTICS or NCCL_RUN_RAS_DIAGNOSTICS, NCCL prints them at
init."""

import re
from collections import defaultdict
from collections.abc import Iterator

from tuner.base.expressions import expression
from tuner.base.findings import Finding, Severity
from tuner.scenario.logs.imported import ShownByLog
from tuner.scenario.logs.reader import DiagnosticLine

# What a result means, by its text; NCCL tags all but good results INFO. Read from libnccl.so.2 2.32.3.
_FAULTS = expression(
    r"\bmismatch\b|differ across ranks|uncorrected volatile errors on|inactive link|inconsistent link speeds|"
    r"check: failed on|>30% off median|only \d+/\d+ GPU-to-GPU|peer-memory import failed|\bXid \d|\bSXid \d"
)
_UNUSUAL = expression(
    r"corrected volatile errors at or above|ATSCtl disabled|groups differ|mixed results|incomplete, gathered"
)
_NOT_RUN = expression(
    r"unavailable|unable to|not usable|cannot |timed out|missing|skipped|failed|inaccessible|returned \d"
)
_PAIR = expression(r"srcRank=(\d+) .*?dstRank=(\d+)")
_RANKS = expression(r"\brank\(s\) ([\d,\- ]*\d)|\brank (\d+)\b")
_REMEDY = expression(r"; ((?:check|inspect|verify|compare|rerun|see)\b.*)$")
MOST_PAIRS = 4


def diagnostics(shown: ShownByLog) -> Iterator[Finding]:
    """Findings about the checks that NCCL ran itself: faults with their ranks and remedy, then what NCCL could not
    check."""
    by_check: dict[str, list[DiagnosticLine]] = defaultdict(list)
    for each in shown.reading.log.diagnostics:
        by_check[each.check].append(each)
    well, not_run = list[str](), list[str]()
    for check, lines in by_check.items():
        faults = [each for each in lines if not each.is_good and _FAULTS.search(each.text)]
        unusual = [each for each in lines if not each.is_good and _UNUSUAL.search(each.text)]
        if faults or unusual:
            severity = Severity.FAULT if faults else Severity.UNLIKE
            yield Finding("diagnostics.found", severity, _facts(check, faults or unusual))
        elif any(each.is_good for each in lines):
            well.append(check)
        elif any(_NOT_RUN.search(each.text) for each in lines):
            not_run.append(check)
        else:
            well.append(check)
    if well:
        yield Finding("diagnostics.well", Severity.NOTE, {"checks": well})
    if not_run:
        yield Finding("diagnostics.not_run", Severity.NOTE, {"checks": not_run})


def _facts(check: str, lines: list[DiagnosticLine]) -> dict[str, object]:
    pairs = [f"{pair[1]} to {pair[2]}" for each in lines if (pair := _PAIR.search(each.text))]
    ranks = {
        int(number)
        for each in lines
        for several, one in _RANKS.findall(each.text)
        for number in re.findall(r"\d+", several or one)
    }
    remedy = next((found[1] for each in lines if (found := _REMEDY.search(each.text))), None)
    return {
        "check": check,
        "text": lines[0].text.partition("; ")[0][:300],
        "line": lines[0].line,
        "ranks": sorted(ranks) or None,
        "pairs": pairs[:MOST_PAIRS] or None,
        "more_pairs": len(pairs) - MOST_PAIRS if len(pairs) > MOST_PAIRS else None,
        "remedy": remedy,
    }

"""The check of how a job ended: the first cause, and what followed from it."""

from collections.abc import Iterator

from tuner.base.findings import Finding, Severity
from tuner.scenario.logs.checks.shown import ShownByLog
from tuner.scenario.logs.endings import EndingLine

CAUSE, ECHO = "cause", "echo"  # roles


def first_cause(shown: ShownByLog) -> Iterator[Finding]:
    """The first failure that did not follow from another, as far as its line says so."""
    yield from _failures(shown, CAUSE)


def first_echo(shown: ShownByLog) -> Iterator[Finding]:
    """The first failure, where every one followed from something else: a warning, or what the log does not show."""
    if not any(each.role == CAUSE for each in shown.reading.log.endings):
        yield from _failures(shown, ECHO)


def _failures(shown: ShownByLog, role: str) -> Iterator[Finding]:
    failures = [each for each in shown.reading.log.endings if each.role in (CAUSE, ECHO)]
    first = next((each for each in failures if each.role == role), None)
    if first is None:
        return
    followers = sorted({each.rank for each in failures if each.rank is not None} - {first.rank})
    facts = {
        "who": _who(first),
        "line": first.line,
        "rank": first.rank,
        "host": first.host,
        "pid": first.pid,
        "gpu": first.gpu,
        "number": first.number,
        "text": first.text,
        "followers": followers,
    }
    yield Finding(f"ending.{first.kind}", Severity.FAULT, facts)


def _who(ending: EndingLine) -> str:
    parts = [f"rank {ending.rank}"] if ending.rank is not None else []
    parts += [f"GPU {ending.gpu}"] if ending.gpu is not None else []
    parts += [f"host {ending.host}"] if ending.host is not None else []
    return ", ".join(parts) or "a process"

"""Lines of an engine's own log about AllReduce: which implementations are on, and which are off although they are
usually on or were asked for.

``tables/engines/log_lines.toml`` has a row for each line that an engine prints; to recognise another line, add a row.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.findings import Severity
from tuner.engines import releases

TABLE = "log_lines.toml"
MOST_LINE_BYTES = 1 << 16  # what a line has beyond this is left out
FACTS = ("detail", "ranks", "capability")


@dataclass(frozen=True, slots=True)
class MissingLine:
    """A line that says that ``implementations`` are off: ``code`` says why, ``facts`` are the line's details.

    ``severity`` is the severity of the finding if the machine is not known. If the machine is known, the engine's own
    rules decide on the severity, unless it is a fault already. ``unasked`` is a switch that the engine set by itself,
    if any.
    """

    code: str
    severity: Severity
    implementations: tuple[str, ...]
    line: int
    facts: Mapping[str, str]
    unasked: str | None = None


@dataclass(slots=True)
class EngineLog:
    """What a log says about the engine that wrote it; fields are None or empty if the log does not say them.

    ``enabled`` are names of implementations in the order in which the engine asks them; ``enabled_line`` is the line
    that says so. ``switches`` are the values of the engine's variables and arguments by name; an argument that has no
    value is "True".
    """

    engine: str
    release: str | None = None
    nccl: str | None = None
    ranks: int | None = None
    dtype: str | None = None
    hidden_size: int | None = None
    enabled: tuple[str, ...] | None = None
    enabled_line: int = 0
    switches: dict[str, str] = field(default_factory=dict)
    missing: list[MissingLine] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the table of log lines. A row with ``of`` is about a fact; a row with ``code``, ``implementations`` and
    ``severity`` is about something missing."""

    kind: str
    engine: str
    mark: bytes
    pattern: re.Pattern[str]
    of: str = ""
    code: str = ""
    implementations: tuple[str, ...] = ()
    severity: str = Severity.NOTE.value
    unasked: str | None = None


@cache
def _rows() -> tuple[_Row, ...]:
    table = tables.toml(tables.folder() / releases.FOLDER / TABLE)
    return tuple(
        _Row(
            kind,
            row["engine"],
            row["mark"].encode(),
            re.compile(row["pattern"]),
            row.get("of", ""),
            row.get("code", ""),
            tuple(row.get("implementations", ())),
            row.get("severity", Severity.NOTE.value),
            row.get("unasked"),
        )
        for kind in ("enabled", "fact", "missing")
        for row in table[kind]
    )


@cache
def names(engine: str) -> Mapping[str, str]:
    """The tables' names of an engine's implementations, by the names in the engine's log; empty if the log prints
    none."""
    found: Mapping[str, str] = tables.toml(tables.folder() / releases.FOLDER / TABLE)["names"].get(engine, {})
    return found


def says_any(content: bytes) -> bool:
    """Whether a log has any of an engine's lines about AllReduce; only lines that contain the mark of a row are
    read."""
    marked = [row for row in _rows() if row.mark in content]
    return _may_say(marked) and any(
        next(_found(marked, line[:MOST_LINE_BYTES]), None) is not None for line in _near(marked, content)
    )


def _may_say(marked: Sequence[_Row]) -> bool:
    return any(row.kind != "fact" or row.of in ("ranks", "release") for row in marked)


def _near(marked: Sequence[_Row], content: bytes) -> Iterator[bytes]:
    """The lines that have a mark."""
    for row in marked:
        at = content.find(row.mark)
        while at >= 0:
            end = content.find(b"\n", at)
            yield content[content.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(content)]
            at = content.find(row.mark, end) if end >= 0 else -1


def read(content: bytes) -> EngineLog | None:
    """What a log says about its engine; None if it has no line of an engine about AllReduce.

    If the engine starts several times in a log, the last start counts. If several ranks print the same line, it counts
    once.
    """
    marked = [row for row in _rows() if row.mark in content]
    if not _may_say(marked):
        return None
    logs: dict[str, EngineLog] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        for row, match in _found(marked, line[:MOST_LINE_BYTES]):
            log = logs.setdefault(row.engine, EngineLog(row.engine))
            _take(log, row, match, number)
    return max(logs.values(), key=_says, default=None)


def _says(log: EngineLog) -> int:
    return len(log.missing) + (log.enabled is not None) + len(log.switches) + (log.release is not None)


def _found(rows: list[_Row], line: bytes) -> Iterator[tuple[_Row, re.Match[str]]]:
    near = [row for row in rows if row.mark in line]
    text = line.decode("utf-8", "replace") if near else ""
    for row in near:
        if match := row.pattern.search(text):
            yield row, match


def _take(log: EngineLog, row: _Row, match: re.Match[str], number: int) -> None:
    if row.kind == "enabled":
        said = [name.strip(" '\"") for name in match["names"].split(",")]
        known = names(log.engine)
        log.enabled, log.enabled_line = tuple(known[name] for name in said if name in known), number
    elif row.kind == "missing":
        if all(each.code != row.code or each.implementations != row.implementations for each in log.missing):
            facts = {name: value for name, value in match.groupdict().items() if name in FACTS and value is not None}
            severity = Severity(row.severity)
            log.missing.append(MissingLine(row.code, severity, row.implementations, number, facts, row.unasked))
    elif row.of in ("ranks", "hidden_size"):
        setattr(log, row.of, int(match["value"]))
    elif row.of in ("release", "dtype", "nccl"):
        setattr(log, row.of, match["value"])
    else:
        log.switches[row.of] = match["value"]

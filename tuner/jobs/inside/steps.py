"""Reads when the steps of a training job ended, from NVTX ranges or a log of step times.

Formats: Nsight Systems' export to SQLite and its table of ranges (``nsys stats -r nvtx_pushpop_trace -f csv``), JSON
lines with ``step_s`` and, if it is known, ``time`` (of the end, as seconds since 1970 or ISO 8601), and plain text with
the seconds of a step on each line.
"""

import csv
import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base import bounds
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.files import read_bytes
from tuner.jobs.traces.nsight import MAGIC

FEWEST = 8  # steps that say anything
DATABASE = bounds.ReaderBounds("Nsight Systems export, for the steps of a job")
_NS = 1e9
_VALID = "valid: nsys' SQLite export or its CSV of NVTX ranges, JSON lines with step_s, or a number of seconds a line"


@dataclass(frozen=True, slots=True)
class JobSteps:
    """Steps in the order in which they ended; arrays [step], numbers in s. If ``dated`` is true, the steps' ends are
    times of the wall clock; else they count from 0."""

    end_s: NDArray[np.float64]
    time_s: NDArray[np.float64]
    dated: bool

    def since(self, begin_s: float) -> "JobSteps":
        """A copy with wall-clock times. If the file has no wall-clock times, the first step begins at ``begin_s``, the
        time of the job's first call.
        """
        return self if self.dated else JobSteps(self.end_s + begin_s, self.time_s, True)


def read_steps(path: Path, name: str) -> JobSteps:
    """Reads the steps of a file; ``name`` is the name of the NVTX ranges. BadInput for another kind of file, and if
    there are too few steps."""
    content = read_bytes(path, BadInput)
    if content.startswith(MAGIC):
        spans, dated = _ranges(path, name)
    else:
        spans, dated = _lines(path, content.decode(errors="replace").splitlines(), name)
    ends, times = np.array(spans, np.float64).reshape(-1, 2).T
    good = np.isfinite(ends) & np.isfinite(times) & (times > 0)
    if good.sum() < FEWEST:
        raise BadInput(f"{path} has {int(good.sum())} steps, but at least {FEWEST} are needed; {_VALID}")
    order = np.argsort(ends[good], kind="stable")
    return JobSteps(ends[good][order], times[good][order], dated)


def _ranges(path: Path, name: str) -> tuple[Sequence[tuple[float, float]], bool]:
    """Ends and durations in s of the ranges of one thread, that with the most ranges, and whether ends are by the wall
    clock."""
    try:
        with bounds.database(path, None, BadInput, DATABASE) as database:
            tables = {table for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            begun = 0
            if dated := "TARGET_INFO_SESSION_START_TIME" in tables:
                ((begun,),) = database.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME LIMIT 1")
            rows = database.execute(
                "SELECT e.globalTid, e.start, e.[end] FROM NVTX_EVENTS AS e LEFT JOIN StringIds AS s "
                "ON s.id = e.textId WHERE COALESCE(e.text, s.value) = ? AND e.[end] IS NOT NULL ORDER BY e.start",
                (name,),
            ).fetchall()
    except (sqlite3.Error, ValueError) as error:
        raise BadInput(f"{path}: not an export of Nsight Systems with NVTX ranges: {error}") from None
    threads: dict[int, list[tuple[float, float]]] = {}
    for thread, start, end in rows:
        threads.setdefault(thread, []).append(((begun + end) / _NS, (end - start) / _NS))
    if not threads:
        raise BadInput(f"{path} has no NVTX range called {name}")
    return max(threads.values(), key=len), dated


def _lines(path: Path, lines: Sequence[str], name: str) -> tuple[Sequence[tuple[float, float]], bool]:
    for number, line in enumerate(lines):
        if "Start (ns)" in line and "Name" in line:
            return _csv(path, lines[number:], name), False
    times: list[float] = []
    ends: list[float] = []
    for number, line in enumerate(lines, 1):
        if not (text := line.strip()) or text.startswith("#"):
            continue
        try:
            read = json.loads(text)
            times.append(float(read["step_s"] if isinstance(read, dict) else read))
            if isinstance(read, dict) and "time" in read:
                ends.append(_clock(read["time"]))
        except (TypeError, ValueError, KeyError):
            raise BadInput(f"{path}:{number} is not the time of a step; {_VALID}") from None
    if ends and len(ends) != len(times):
        raise BadInput(f"{path}: some of its steps have a time, others have none")
    return list(zip(ends or np.cumsum(times).tolist(), times, strict=True)), bool(ends)


def _csv(path: Path, lines: Sequence[str], name: str) -> Sequence[tuple[float, float]]:
    try:
        rows = [row for row in csv.DictReader(lines) if (row["Name"] or "").lstrip(":") == name]
        spans = [(float(row["End (ns)"]) / _NS, float(row["Start (ns)"]) / _NS) for row in rows]
    except (KeyError, TypeError, ValueError):
        raise BadInput(f"{path} is not a table of NVTX ranges; {_VALID}") from None
    if not spans:
        raise BadInput(f"{path} has no NVTX range called {name}")
    first = min(start for _, start in spans)
    return [(end - first, end - start) for end, start in spans]


def _clock(value: Any) -> float:
    return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else float(value)

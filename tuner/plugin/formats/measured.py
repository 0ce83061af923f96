"""Makes decision tables from measured times in the input format of NVIDIA's optimize_config.py: a CSV with a header.

Source of the columns: plugins/tuner/example/scripts/{optimize_config.py,sample_performance_data.csv}, v2.30.7-1.
"""

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from statistics import median
from typing import TypeVar

from tuner.base.bounds import ReaderBounds
from tuner.base.errors import BadMeasurement, one_of
from tuner.base.files import read_bytes
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.plugin.formats import shared
from tuner.plugin.table.records import ANY_COUNT, ANY_PIPELINED, LARGEST_COUNT, MAX_CHANNELS, Decision, TableChoice

COLUMNS = (
    "collective",
    "size_bytes",
    "algorithm",
    "protocol",
    "channels",
    "nodes",
    "ranks",
    "pipeOps",
    "regBuff",
    "latency_us",
)
MOST_BYTES = 2**62
_Name = TypeVar("_Name", bound=IntEnum)


# Times in us by the conditions on calls apart from the size, which are a row without choices; then by size and choice
Samples = dict[Decision, dict[int, dict[TableChoice, list[float]]]]


FILE = ReaderBounds("times for a decision table, as CSV", lines=1_000_000)


def read(path: Path) -> Samples:
    """Reads times in us, by conditions, size and choice. BadMeasurement, with file and line, if something cannot be
    read."""
    try:
        text = read_bytes(path, BadMeasurement, bounds=FILE).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadMeasurement(f"{path} is not a text file") from error
    rows = csv.DictReader(io.StringIO(text))
    try:
        return _samples(path, rows)
    except csv.Error as error:
        raise BadMeasurement(f"{path}:{rows.line_num + 1}: {error}") from None


def _samples(path: Path, rows: "csv.DictReader[str]") -> Samples:
    if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
        raise BadMeasurement(f"{path}:1: column {missing[0]} is missing: the file needs {','.join(COLUMNS)}")
    samples: Samples = {}
    for row in rows:
        try:
            where, size, choice, latency_us = _sample({name: (row[name] or "").strip() for name in COLUMNS})
        except ValueError as error:
            raise BadMeasurement(f"{path}:{rows.line_num}: {error}") from None
        samples.setdefault(where, {}).setdefault(size, {}).setdefault(choice, []).append(latency_us)
    if not samples:
        raise BadMeasurement(f"{path} has no measurement")
    return samples


def decisions(samples: Samples) -> tuple[list[Decision], list[str]]:
    """Rows with the choice that is fastest at each size (by the median), and notes about doubtful choices.

    A row ends halfway to the next measured size.
    """
    rows: list[Decision] = []
    notes: list[str] = []
    for where in sorted(samples, key=_specific_first):
        rows += _rows(where, samples[where], notes)
    return rows, notes


def _specific_first(where: Decision) -> tuple[object, ...]:
    """A sort key. Rows that match any value come last, because the first row that matches wins."""
    counts = ((one.high is None, one.low) for one in (where.nodes, where.ranks, where.pipelined))
    return where.collective, *counts, where.registered is None, bool(where.registered)


def _rows(where: Decision, by_size: dict[int, dict[TableChoice, list[float]]], notes: list[str]) -> Iterator[Decision]:
    winners: list[tuple[int, TableChoice]] = []  # first size of each interval, and its choice
    before = None
    for size in sorted(by_size):
        winner = _best(f"{where.collective.name} of {size} bytes", by_size[size], winners, notes)
        if not winners or winner != winners[-1][1]:
            winners.append((0 if before is None else (before + size) // 2 + 1, winner))
        before = size
    ends = [start - 1 for start, _ in winners[1:]]
    for at, (start, winner) in enumerate(winners):
        yield replace(where, choices=(winner,), bytes=Span(start, ends[at] if at < len(ends) else None))


def _best(
    call: str, times_us: dict[TableChoice, list[float]], winners: list[tuple[int, TableChoice]], notes: list[str]
) -> TableChoice:
    """The choice with the lowest median. If several are equal, it is the one that won at the previous size, or else the
    one measured first."""
    medians = {choice: median(values) for choice, values in times_us.items()}
    least = min(medians.values())
    best = [choice for choice, value in medians.items() if value == least]
    winner = winners[-1][1] if winners and winners[-1][1] in best else best[0]
    if len(best) > 1:
        notes.append(f"{call}: {len(best)} choices are equally fast")
    if len(times_us[winner]) == 1:
        notes.append(f"{call}: a single sample of the fastest")
    if len(medians) == 1:
        notes.append(f"{call}: nothing to compare with")
    return winner


def _sample(row: dict[str, str]) -> tuple[Decision, int, TableChoice, float]:
    """Reads a measured row. ValueError says what is wrong."""
    choice = TableChoice(
        _named(Algorithm, row["algorithm"], "algorithm"),
        _named(Protocol, row["protocol"], "protocol"),
        _number(row, "channels", 1, MAX_CHANNELS),
    )
    registered = {None: None, 0: False, 1: True}
    where = Decision(
        _named(Collective, row["collective"], "collective"),
        (),
        nodes=shared.exactly(_number(row, "nodes", 1, LARGEST_COUNT), ANY_COUNT),
        ranks=shared.exactly(_number(row, "ranks", 1, LARGEST_COUNT), ANY_COUNT),
        pipelined=shared.exactly(_number(row, "pipeOps", 0, LARGEST_COUNT), ANY_PIPELINED),
        registered=registered[_number(row, "regBuff", 0, 1)],
    )
    size = _number(row, "size_bytes", 1, MOST_BYTES)
    if size is None:
        raise ValueError(f"size_bytes '-1'; valid: 1 to {MOST_BYTES}")
    try:
        latency_us = float(row["latency_us"])
    except ValueError:
        latency_us = math.nan
    if not 0 < latency_us < math.inf:
        raise ValueError(f"latency_us '{row['latency_us']}' is not a time above 0")
    return where, size, choice, latency_us


def _number(row: dict[str, str], name: str, least: int, most: int) -> int | None:
    """Reads a number from ``least`` to ``most``; None for -1, which means any (for channels: NCCL's own number)."""
    text = row[name]
    if text == "-1":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and least <= int(text) <= most):
        raise ValueError(f"{name} '{text}'; valid: -1, {least} to {most}")
    return int(text)


def _named(names: type[_Name], text: str, what: str) -> _Name:
    """The member that NVIDIA's file calls ``text``, in any case; underscores do not count."""
    for name in names:
        if name.name.lower() == text.lower().replace("_", ""):
            return name
    raise ValueError(f"unknown {what} '{text}'; {one_of(name.name for name in names)}")

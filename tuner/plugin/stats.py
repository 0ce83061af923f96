"""What the plugin counted (``NCCL_TUNER_STATS``), summed over ranks and communicators, and whether these agree."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.base.errors import BadInput

FORMAT = 1
NONE = "none"  # instead of a hash: the table could not be used, or had no say


@dataclass(frozen=True, slots=True)
class RowCount:
    """Calls that a row decided, and those of which it was the first to match and NCCL could run nothing."""

    line: int
    decided: int
    could_not_run: int


@dataclass(frozen=True, slots=True)
class CostCount:
    """Calls to which a row of costs gave a time."""

    line: int
    calls: int


@dataclass(frozen=True, slots=True)
class Undecided:
    """Calls that no row decided, of sizes from a power of two up to the next; ``reason`` as the plugin says it."""

    collective: str
    reason: str
    least_bytes: int
    most_bytes: int
    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TableStats:
    """All communicators with one content of a table; ``never_matched`` are lines, first and last."""

    table: str
    sha256: str | None
    communicators: int
    calls: int
    decided: int
    could_not_run: int
    costed: int
    rows: list[RowCount]
    costs: list[CostCount]
    never_matched: list[tuple[int, int]]
    undecided: list[Undecided]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Ranks of one communicator, or of one size where NCCL does not say which, with different tables."""

    communicator: str
    tables: dict[str, list[str]]  # hash, or "none": hosts
    paths: dict[str, list[str]]  # the same: where the table was looked for


@dataclass(frozen=True, slots=True)
class Stats:
    """The sums of some files, a table each, and the communicators whose ranks had different ones."""

    tables: list[TableStats]
    disagreements: list[Disagreement]


def read(files: Iterable[Path]) -> Stats:
    """BadInput for a line that is none of the plugin's, with its place."""
    records = [record for file in files for record in _records(file)]
    if not records:
        raise BadInput("no statistics in these files: the plugin writes them when a communicator ends")
    return Stats(_tables(records), list(_disagreements(records)))


def _records(file: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = file.read_text(errors="surrogateescape").splitlines()
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise BadInput(f"{file}:{number}: not a line of the plugin's statistics: {error}") from error
        if not isinstance(record, dict) or record.get("nccl_tuner_stats") != FORMAT:
            raise BadInput(f"{file}:{number}: not a line of the plugin's statistics, version {FORMAT}")
        yield record


def _tables(records: list[dict[str, Any]]) -> list[TableStats]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:  # what could not be used has no content: a table each path
        groups.setdefault(record["sha256"] or f"none of {record['table']}", []).append(record)
    return [_sum(group) for group in groups.values()]


def _sum(records: list[dict[str, Any]]) -> TableStats:
    total = {key: sum(record.get(key, 0) for record in records) for key in TOTALS}
    counted = [record for record in records if "rows" in record]
    rows: dict[int, list[int]] = {}
    costs: dict[int, int] = {}
    left: dict[tuple[str, str, int], list[int]] = {}
    for record in counted:
        for row in record["rows"]:
            count = rows.setdefault(row["line"], [0, 0])
            count[0] += row["decided"]
            count[1] += row["could_not_run"]
        for cost in record["costs"]:
            costs[cost["line"]] = costs.get(cost["line"], 0) + cost["calls"]
        for one in record["undecided"]:
            at = one["collective"], one["reason"], one["least_bytes"].bit_length()
            sizes = left.setdefault(at, [one["least_bytes"], one["most_bytes"], 0, 0])
            sizes[:2] = min(sizes[0], one["least_bytes"]), max(sizes[1], one["most_bytes"])
            sizes[2] += one["calls"]
            sizes[3] += one["bytes"]
    return TableStats(
        table=records[0]["table"],
        sha256=records[0]["sha256"],
        communicators=len(records),
        **total,
        rows=[RowCount(line, *count) for line, count in sorted(rows.items())],
        costs=[CostCount(line, calls) for line, calls in sorted(costs.items())],
        never_matched=_unmatched([record["never_matched"] for record in counted]),
        undecided=[Undecided(collective, reason, *sizes) for (collective, reason, _), sizes in sorted(left.items())],
    )


TOTALS = ("calls", "decided", "could_not_run", "costed")


def _unmatched(each: list[list[list[int]]]) -> list[tuple[int, int]]:
    """The lines in all of them, as ranges."""
    if not each:
        return []
    lines = [{line for first, last in ranges for line in range(first, last + 1)} for ranges in each]
    found: list[tuple[int, int]] = []
    for line in sorted(set.intersection(*lines)):
        if found and found[-1][1] == line - 1:
            found[-1] = found[-1][0], line
        else:
            found.append((line, line))
    return found


def _disagreements(records: list[dict[str, Any]]) -> Iterator[Disagreement]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        shape = f"{record['ranks']} ranks on {record['nodes']} nodes"
        groups.setdefault(f"commId {record['commId']}, {shape}" if record["commId"] else shape, []).append(record)
    for who, those in groups.items():
        hosts, table_paths = _by_content(those, "host"), _by_content(those, "table")
        if len(hosts) > 1:
            yield Disagreement(who, hosts, table_paths)


def _by_content(records: list[dict[str, Any]], key: str) -> dict[str, list[str]]:
    """What the records of each content of a table say there, each once."""
    found: dict[str, list[str]] = {}
    for record in records:
        said = found.setdefault(record["sha256"] or NONE, [])
        if str(record[key]) not in said:
            said.append(str(record[key]))
    return found

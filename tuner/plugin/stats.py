"""Sums the plugin's counts (``NCCL_TUNER_STATS``) over ranks and communicators, and checks that ranks had the same
table."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

from tuner.base.bounds import ReaderBounds
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.files import read_bytes
from tuner.base.records import json_form
from tuner.base.sizes import ranks_on_nodes

FORMAT = 1
_Count = TypeVar("_Count")


@dataclass(frozen=True, slots=True)
class RowCount:
    """Counts of one row: the calls that it decided, and those that it matched but could not decide.

    ``could_not_run`` counts calls for which the row was the first match, but NCCL could run none of its choices.
    """

    line: int
    decided: int
    could_not_run: int


@dataclass(frozen=True, slots=True)
class CostCount:
    """The number of calls for which a row of costs gave a time."""

    line: int
    calls: int


@dataclass(frozen=True, slots=True)
class Undecided:
    """Calls that no row decided, with sizes from one power of two up to the next; ``reason`` is the plugin's."""

    collective: str
    reason: str
    least_bytes: int
    most_bytes: int
    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a usable table. ``never_matched`` are ranges of lines that matched no call, each as (first, last)."""

    calls: int
    decided: int
    could_not_run: int
    costed: int
    rows: tuple[RowCount, ...]
    costs: tuple[CostCount, ...]
    never_matched: tuple[tuple[int, int], ...]
    undecided: tuple[Undecided, ...]


@dataclass(frozen=True, slots=True)
class CommunicatorStats:
    """One rank's line in a file: the rank, the hash of its table, and the counts, which are None if the table was
    unusable.

    ``communicator`` is NCCL's commId; None if NCCL does not tell it to plugins.
    """

    host: str
    communicator: str | None
    ranks: int
    nodes: int
    table: str
    sha256: str | None
    counts: Counts | None


FILE = ReaderBounds("counts that the plugin wrote (NCCL_TUNER_STATS)", lines=1_000_000)


def lines(file: Path) -> Iterator[CommunicatorStats]:
    """Yields the lines of a file. BadInput, with the place, for a line that the plugin cannot have written."""
    texts = read_bytes(file, BadInput, bounds=FILE).decode(errors="surrogateescape").splitlines()
    for number, text in enumerate(texts, 1):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{file}:{number}: not a line of the plugin's statistics: {error}") from error
        if not isinstance(record, dict) or record.get("nccl_tuner_stats") != FORMAT:
            raise BadInput(f"{file}:{number}: not a line of the plugin's statistics, version {FORMAT}")
        try:
            yield _communicator(record)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{file}:{number}: not a line of the plugin's statistics: {error}") from error


def _of_record(kind: Any, record: Mapping[str, Any]) -> Any:
    """Makes a dataclass of whole numbers and texts. TypeError if a value does not have its field's type."""
    made = kind(**record)
    for each in fields(kind):
        value = getattr(made, each.name)
        if each.type is int:
            _whole(value)
        elif not isinstance(value, str):
            raise TypeError(f"{each.name} {value!r}")
    return made


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise TypeError(f"{value!r}; valid: a whole number")
    return value


def _communicator(record: Mapping[str, Any]) -> CommunicatorStats:
    return CommunicatorStats(
        str(record["host"]),
        None if record["commId"] is None else str(record["commId"]),
        _whole(record["ranks"]),
        _whole(record["nodes"]),
        str(record["table"]),
        None if record["sha256"] is None else str(record["sha256"]),
        _counts(record) if "rows" in record else None,
    )


def _counts(record: Mapping[str, Any]) -> Counts:
    return Counts(
        _whole(record["calls"]),
        _whole(record["decided"]),
        _whole(record["could_not_run"]),
        _whole(record["costed"]),
        tuple(_of_record(RowCount, row) for row in record["rows"]),
        tuple(_of_record(CostCount, cost) for cost in record["costs"]),
        tuple((_whole(first), _whole(last)) for first, last in record["never_matched"]),
        tuple(_of_record(Undecided, one) for one in record["undecided"]),
    )


NONE = "none"  # instead of a hash, if the table could not be used or had no influence


@dataclass(frozen=True, slots=True)
class TableStats:
    """Sums of the counts of all communicators whose tables have the same content."""

    table: str
    sha256: str | None
    communicators: int
    counts: Counts = field(metadata=json_form(merged=True))


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Ranks of one communicator that have different tables.

    If NCCL does not tell the plugin which communicator it is, all communicators of the same size count as one.
    """

    communicator: str
    tables: dict[str, list[str]]  # hosts by hash, or by "none"
    paths: dict[str, list[str]]  # paths of the table by hash, or by "none"


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts summed over some files, one entry per table, and the communicators whose ranks had different tables."""

    tables: list[TableStats]
    disagreements: list[Disagreement]


def read(files: Iterable[Path]) -> Stats:
    """Reads and sums the files. Raises BadInput if they have no lines, or if the plugin cannot have written one of
    their lines; the message then names file and line.
    """
    ranks = [rank for file in files for rank in lines(file)]
    if not ranks:
        raise BadInput("no statistics in these files: the plugin writes them when a communicator ends")
    return Stats(_tables(ranks), list(_disagreements(ranks)))


def _tables(ranks: Sequence[CommunicatorStats]) -> list[TableStats]:
    groups: dict[str, list[CommunicatorStats]] = defaultdict(list)
    for one in ranks:  # a table that could not be used has no content, so each path counts as one
        groups[one.sha256 or f"none of {one.table}"].append(one)
    return [_sum(group) for group in groups.values()]


def _sum(ranks: Sequence[CommunicatorStats]) -> TableStats:
    counted = [one.counts for one in ranks if one.counts is not None]
    summed = Counts(
        calls=sum(one.calls for one in counted),
        decided=sum(one.decided for one in counted),
        could_not_run=sum(one.could_not_run for one in counted),
        costed=sum(one.costed for one in counted),
        rows=_rows(row for counts in counted for row in counts.rows),
        costs=_costs(cost for counts in counted for cost in counts.costs),
        never_matched=_unmatched(counted),
        undecided=_undecided(one for counts in counted for one in counts.undecided),
    )
    return TableStats(ranks[0].table, ranks[0].sha256, len(ranks), summed)


def _rows(rows: Iterable[RowCount]) -> tuple[RowCount, ...]:
    """Sums the counts of rows per line, in ascending order of lines."""
    groups = _grouped(rows, lambda row: row.line)
    return tuple(
        RowCount(line, sum(row.decided for row in same), sum(row.could_not_run for row in same))
        for line, same in groups
    )


def _costs(costs: Iterable[CostCount]) -> tuple[CostCount, ...]:
    """Sums the calls of cost rows per line, in ascending order of lines."""
    return tuple(
        CostCount(line, sum(cost.calls for cost in same)) for line, same in _grouped(costs, lambda one: one.line)
    )


def _undecided(undecided: Iterable[Undecided]) -> tuple[Undecided, ...]:
    """Sums undecided calls per collective, reason and power of two, in ascending order."""
    groups = _grouped(undecided, lambda one: (one.collective, one.reason, one.least_bytes.bit_length()))
    return tuple(
        Undecided(
            collective,
            reason,
            min(one.least_bytes for one in same),
            max(one.most_bytes for one in same),
            sum(one.calls for one in same),
            sum(one.bytes for one in same),
        )
        for (collective, reason, _), same in groups
    )


def _grouped(counts: Iterable[_Count], key: Callable[[_Count], Any]) -> list[tuple[Any, list[_Count]]]:
    """The counts by key, in ascending order of the keys."""
    groups: dict[Any, list[_Count]] = defaultdict(list)
    for one in counts:
        groups[key(one)].append(one)
    return sorted(groups.items(), key=lambda group: group[0])


def _in_both(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intersect two ascending lists of ranges."""
    common, own, other = [], 0, 0
    while own < len(ours) and other < len(theirs):
        first, last = max(ours[own][0], theirs[other][0]), min(ours[own][1], theirs[other][1])
        if first <= last:
            common.append((first, last))
        if ours[own][1] < theirs[other][1]:
            own += 1
        else:
            other += 1
    return common


def _unmatched(counted: Sequence[Counts]) -> tuple[tuple[int, int], ...]:
    """The lines that matched no call in any of the communicators, as ranges."""
    if not counted:
        return ()
    ranges: list[tuple[int, int]] = []
    for first, last in reduce(_in_both, (sorted(counts.never_matched) for counts in counted)):
        if ranges and ranges[-1][1] == first - 1:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return tuple(ranges)


def _disagreements(ranks: Sequence[CommunicatorStats]) -> Iterator[Disagreement]:
    groups: dict[str, list[CommunicatorStats]] = defaultdict(list)
    for one in ranks:
        shape = ranks_on_nodes(one.ranks, one.nodes)
        groups[f"commId {one.communicator}, {shape}" if one.communicator else shape].append(one)
    for who, those in groups.items():
        hosts = _by_content((one.sha256, one.host) for one in those)
        if len(hosts) > 1:
            yield Disagreement(who, hosts, _by_content((one.sha256, one.table) for one in those))


def _by_content(said: Iterable[tuple[str | None, str]]) -> dict[str, list[str]]:
    """Groups texts by the hash of a table's content; each text occurs once in its group."""
    texts_of: dict[str, list[str]] = {}
    for sha256, text in said:
        texts = texts_of.setdefault(sha256 or NONE, [])
        if text not in texts:
            texts.append(text)
    return texts_of

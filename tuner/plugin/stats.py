"""What the plugin counted (``NCCL_TUNER_STATS``), summed over ranks and communicators, and whether these agree."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from tuner.base.errors import BadInput
from tuner.base.words import ranks_on_nodes
from tuner.plugin.stats_file import CommunicatorStats, CostCount, Counts, RowCount, Undecided, lines

NONE = "none"  # instead of a hash: the table could not be used, or had no say


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
    ranks = [rank for file in files for rank in lines(file)]
    if not ranks:
        raise BadInput("no statistics in these files: the plugin writes them when a communicator ends")
    return Stats(_tables(ranks), list(_disagreements(ranks)))


def _tables(ranks: Sequence[CommunicatorStats]) -> list[TableStats]:
    groups: dict[str, list[CommunicatorStats]] = defaultdict(list)
    for one in ranks:  # what could not be used has no content: a table each path
        groups[one.sha256 or f"none of {one.table}"].append(one)
    return [_sum(group) for group in groups.values()]


def _sum(ranks: Sequence[CommunicatorStats]) -> TableStats:
    counted = [one.counts for one in ranks if one.counts is not None]
    return TableStats(
        table=ranks[0].table,
        sha256=ranks[0].sha256,
        communicators=len(ranks),
        calls=sum(one.calls for one in counted),
        decided=sum(one.decided for one in counted),
        could_not_run=sum(one.could_not_run for one in counted),
        costed=sum(one.costed for one in counted),
        rows=_rows(counted),
        costs=_costs(counted),
        never_matched=_unmatched(counted),
        undecided=_undecided(counted),
    )


def _rows(counted: Sequence[Counts]) -> list[RowCount]:
    """By line, ascending."""
    by_line: dict[int, RowCount] = {}
    for row in (row for counts in counted for row in counts.rows):
        so_far = by_line.get(row.line, RowCount(row.line, 0, 0))
        by_line[row.line] = RowCount(row.line, so_far.decided + row.decided, so_far.could_not_run + row.could_not_run)
    return [by_line[line] for line in sorted(by_line)]


def _costs(counted: Sequence[Counts]) -> list[CostCount]:
    """By line, ascending."""
    calls: dict[int, int] = defaultdict(int)
    for cost in (cost for counts in counted for cost in counts.costs):
        calls[cost.line] += cost.calls
    return [CostCount(line, calls[line]) for line in sorted(calls)]


def _undecided(counted: Sequence[Counts]) -> list[Undecided]:
    """By collective, reason and power of two, ascending."""
    groups: dict[tuple[str, str, int], list[Undecided]] = defaultdict(list)
    for one in (one for counts in counted for one in counts.undecided):
        groups[one.collective, one.reason, one.least_bytes.bit_length()].append(one)
    return [
        Undecided(
            collective,
            reason,
            min(one.least_bytes for one in group),
            max(one.most_bytes for one in group),
            sum(one.calls for one in group),
            sum(one.bytes for one in group),
        )
        for (collective, reason, _), group in sorted(groups.items(), key=lambda item: item[0])
    ]


def _in_both(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of two ascending lists of ranges."""
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


def _unmatched(counted: Sequence[Counts]) -> list[tuple[int, int]]:
    """The lines in all of them, as ranges."""
    if not counted:
        return []
    ranges: list[tuple[int, int]] = []
    for first, last in reduce(_in_both, (sorted(counts.never_matched) for counts in counted)):
        if ranges and ranges[-1][1] == first - 1:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return ranges


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
    """What is said with each content of a table, by its hash, each once."""
    texts_of: dict[str, list[str]] = {}
    for sha256, text in said:
        texts = texts_of.setdefault(sha256 or NONE, [])
        if text not in texts:
            texts.append(text)
    return texts_of

"""Finds problems that the rows of a table show without other information, and describes them with the lines of the
rows."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import groupby, pairwise
from statistics import median

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import UnknownRelease
from tuner.base.sizes import human_bytes
from tuner.times.measured import records
from tuner.times.measured.samples import Measurements, SampleBlock

SHORTEST_US = 1.0  # no kernel that waits for another GPU takes less
_AGREE = 1.25  # repeated rows are within this factor of each other, as public replicates mostly are
_FALLS = 0.9  # a larger size that takes less than this share of a smaller one's time is suspicious
_KEEPS = 0.7  # the bandwidth of a curve's last size has to be at least this share of the best
_SLOW = 1.5  # a run is slow if it takes this factor longer than other runs of the same points
_LARGE_BYTES = 2**20
_SHOWN = 6


class Kind(StrEnum):
    """Kinds of problems."""

    unknown_release = "unknown release"
    stand_in = "the nearest release stands for another"
    mixed_releases = "mixed releases"
    mixed_machines = "mixed machines"
    too_short = "times too short"
    above_links = "above the links"
    too_many_gpus = "more GPUs than the machine has"
    unknown_placement = "in place or not unknown"
    repeated_rows = "repeated rows disagree"
    not_monotone = "not monotone"
    slow_run = "slow run"
    falling_bandwidth = "falling bandwidth"
    drifting = "times drift"
    scaled = "all times off alike"


# Rows with these problems have no usable times; other problems are reported, and the rows stay.
REFUSED = frozenset(
    {
        Kind.unknown_release,
        Kind.mixed_releases,
        Kind.mixed_machines,
        Kind.too_short,
        Kind.above_links,
        Kind.too_many_gpus,
        Kind.scaled,
    }
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with rows: its kind, the lines of the rows, and a text for the reader."""

    kind: Kind
    lines: tuple[int, ...]
    text: str

    @property
    def refused(self) -> bool:
        """Whether the rows' times are unusable."""
        return self.kind in REFUSED

    @property
    def where(self) -> str:
        """The lines of the rows for a message, at most the first few: ``lines 3, 7, 9 and 12 more``."""
        return _lines(self.lines)


def problems(table: Measurements) -> tuple[Problem, ...]:
    """Problems that the rows show by themselves, worst first: labels, units, placement, repeated rows, curves."""
    listed = [
        *_release(table),
        *_mixed(table),
        *_too_short(table),
        *_placement(table),
        *_repeated(table),
        *_curves(table),
        *_slow_runs(table),
    ]
    return tuple(listed)


def curves(table: Measurements) -> Iterator[tuple[SampleBlock, ...]]:
    """Groups of rows that differ only in size, sorted by size; rows of equal size stay in the file's order."""
    by_curve: dict[object, list[SampleBlock]] = defaultdict(list)
    for row in table.blocks:
        by_curve[row.of_bytes(0)].append(row)
    return (tuple(sorted(rows, key=lambda row: row.point.bytes)) for rows in by_curve.values())


def named(row: SampleBlock) -> str:
    """Name of a row in a message: ``allreduce float16 1 MiB on 2 x 8 GPUs``."""
    call = row.point
    return f"{call.name} {call.dtype.name} {human_bytes(call.bytes)} on {row.nodes} x {row.gpus_per_node} GPUs"


def nearest_release(name: str) -> tuple[str, str]:
    """The known release that stands in for ``name``, and a note if it is a different one.

    An unknown patch release is replaced by the nearest of its minor release. UnknownRelease if its minor release is
    unknown.
    """
    known = release.names()
    minor, _, patch = name.rpartition(".")
    near = [each for each in known if each.rpartition(".")[0] == minor]
    if name in known or not near or not patch.isdigit():
        return release.load(name).name, ""
    nearest = min(near, key=lambda each: abs(int(each.rpartition(".")[2]) - int(patch)))
    return nearest, f"NCCL {name} is not in the catalogue: the nearest, {nearest}, stands for it"


def _release(table: Measurements) -> Iterator[Problem]:
    if not (name := table.header.nccl):
        return
    try:
        _, stand_in = nearest_release(name)
    except UnknownRelease:
        known = f"NCCL {name} is no release that is known here; valid: {', '.join(release.names())}"
        yield Problem(Kind.unknown_release, _all(table.blocks), known)
        return
    if stand_in:
        yield Problem(Kind.stand_in, _all(table.blocks), stand_in)


def _mixed(table: Measurements) -> Iterator[Problem]:
    """Yields problems of files that mix runs of several releases or machines, as the runs' notes tell."""
    of = {Kind.mixed_releases: records.release_of_note, Kind.mixed_machines: records.gpu_of_note}
    for kind, value_of in of.items():
        by_run = {key: value_of(f"{key} ; {run.what}") for key, run in table.header.runs.items()}
        values = sorted({value for value in by_run.values() if value})
        if len(values) > 1:
            first = {by_run[row.run]: row.line for row in reversed(table.blocks) if by_run.get(row.run)}
            each = ", ".join(f"{value} from line {first[value]}" for value in values if value in first)
            yield Problem(kind, tuple(sorted(first.values())), f"{each}; valid: a file for each")


def _too_short(table: Measurements) -> Iterator[Problem]:
    rows = [row for row in table.blocks if row.median_us < SHORTEST_US]
    if rows:
        least = min(rows, key=lambda row: row.median_us)
        yield Problem(
            Kind.too_short,
            _all(rows),
            f"{len(rows)} of {len(table.blocks)} rows take less than {SHORTEST_US:g} us, which no collective does "
            f"({named(least)}, line {least.line}: {least.median_us:g} us); milliseconds for microseconds?",
        )


def _placement(table: Measurements) -> Iterator[Problem]:
    rows = [row for row in table.blocks if row.point.in_place is None]
    if rows:
        yield Problem(
            Kind.unknown_placement, _all(rows), f"{len(rows)} rows do not say whether they are in place or out of place"
        )


def _repeated(table: Measurements) -> Iterator[Problem]:
    apart = []
    for curve in curves(table):
        for rows in _by_size(curve):
            times = [row.median_us for row in rows]
            if max(times) > _AGREE * min(times):
                apart.append((max(times) / min(times), rows))
    if apart:
        worst, rows = max(apart, key=lambda each: each[0])
        text = f"{len(apart)} points were measured more than once with times apart by up to a factor of {worst:.3g}"
        yield Problem(
            Kind.repeated_rows,
            tuple(sorted(row.line for _, rows in apart for row in rows)),
            f"{text} ({named(rows[0])}: {_lines(_all(rows))}); several machines, runs or placements in one?",
        )


def _curves(table: Measurements) -> Iterator[Problem]:
    steps, ends = [], []
    for curve in curves(table):
        typical = [(rows[0], median(row.median_us for row in rows)) for rows in _by_size(curve)]
        for (_, before), (row, after) in pairwise(typical):
            if after < _FALLS * before:
                steps.append((after / before, row))
        large = [(row.point.bytes / time, row) for row, time in typical if row.point.bytes >= _LARGE_BYTES]
        if len(large) > 1 and large[-1][0] < _KEEPS * max(rate for rate, _ in large):
            ends.append((large[-1][0] / max(rate for rate, _ in large), large[-1][1]))
    if steps:
        part, row = min(steps, key=lambda step: step[0])
        yield Problem(
            Kind.not_monotone,
            tuple(sorted(row.line for _, row in steps)),
            f"{len(steps)} sizes take under {_FALLS:.0%} of the time of the next smaller one "
            f"({named(row)}: {part:.0%}, line {row.line})",
        )
    if ends:
        part, row = min(ends, key=lambda end: end[0])
        yield Problem(
            Kind.falling_bandwidth,
            tuple(sorted(row.line for _, row in ends)),
            f"{len(ends)} curves end below {_KEEPS:.0%} of their best bandwidth "
            f"({named(row)}: {part:.0%}, line {row.line}); a clock that is throttled, or a shared network?",
        )


def _slow_runs(table: Measurements) -> Iterator[Problem]:
    """Yields slow runs: compares each run with the median of all runs of the same points, for large sizes only."""
    by_point: dict[object, list[SampleBlock]] = defaultdict(list)
    for row in table.blocks:
        if row.point.bytes >= _LARGE_BYTES and row.run:
            settings = tuple(sorted(table.environment_of(row).items()))
            key = (replace(row, times_us=(), run=""), settings, table.devices_of(row), table.network_of(row))
            by_point[key].append(row)
    ratios: dict[str, list[tuple[float, SampleBlock]]] = defaultdict(list)
    for rows in by_point.values():
        if len({row.run for row in rows}) > 2:
            typical = median(row.median_us for row in rows)
            for row in rows:
                ratios[row.run].append((row.median_us / typical, row))
    slow = {run: each for run, each in ratios.items() if median(ratio for ratio, _ in each) > _SLOW}
    if slow:
        worst = max(slow, key=lambda run: median(ratio for ratio, _ in slow[run]))
        factor = median(ratio for ratio, _ in slow[worst])
        yield Problem(
            Kind.slow_run,
            tuple(sorted(row.line for each in slow.values() for _, row in each)),
            f"{len(slow)} of {len(ratios)} runs take over {_SLOW:g} times what the others do "
            f"({worst}: {factor:.3g} times); a faulty node?",
        )


def _by_size(curve: Sequence[SampleBlock]) -> list[list[SampleBlock]]:
    """The rows of each size of a curve, which is sorted by size."""
    return [list(rows) for _, rows in groupby(curve, key=lambda row: row.point.bytes)]


def _all(rows: Iterable[SampleBlock]) -> tuple[int, ...]:
    return tuple(row.line for row in rows)


def _lines(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:_SHOWN]))
    more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return f"line{'s' if len(lines) > 1 else ''} {shown}{more}"

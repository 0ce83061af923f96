"""Times that change while a run goes on: clocks that are throttled, or a network that others use."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from tuner.base.errors import BadMeasurement
from tuner.base.files import read_bytes
from tuner.times.measured import Kind, MeasuredRow, MeasuredTable, Problem
from tuner.times.measured.checks import named
from tuner.times.readers import any_file, nccl_tests
from tuner.times.records import samples

_LONG = 6  # times of a point that show where they go
_SLOWER = 1.1  # the last third against the first, the median over points
_MOST = 2 / 3  # of the points go the same way


def problems(path: Path, table: MeasuredTable) -> Iterator[Problem]:
    """Said where most points that were measured over and over take longer at the end, or shorter, by over 10 %.

    Single times are those of calls in nccl-tests' JSON, of samples in our own runs, or of rows that repeat a point.
    """
    series = [(line, name, times) for line, name, times in _series(path, table) if len(times) >= _LONG]
    if not series:
        return
    ratios = [(_last_to_first(times), line, name) for line, name, times in series]
    middle = median(ratio for ratio, _, _ in ratios)
    slower = [each for each in ratios if each[0] > 1]
    if middle > _SLOWER and len(slower) >= _MOST * len(ratios):
        ratio, line, name = max(ratios)
        text = (
            f"the last calls of {len(slower)} of {len(ratios)} points take longer than the first, by a factor of "
            f"{middle:.3g} in the middle ({name}, line {line}: {ratio:.3g}); a clock that is throttled, or a network "
            "that others use?"
        )
        yield Problem(Kind.drifting, tuple(sorted(line for _, line, _ in slower)), text)


def _last_to_first(times: Sequence[float]) -> float:
    third = len(times) // 3
    return median(times[-third:]) / median(times[:third])


def _series(path: Path, table: MeasuredTable) -> Iterator[tuple[int, str, Sequence[float]]]:
    """Line, name and times of each point, in their order."""
    content = read_bytes(path, BadMeasurement)
    if nccl_tests.is_json(record := nccl_tests.load_json(content)):
        for each in nccl_tests.json_rows(path, record):
            yield each.index + 1, f"{each.bytes} bytes", each.times_us
    elif samples.FORMAT.encode() in content.split(b"\n", 1)[0]:
        runs: dict[object, list[float]] = defaultdict(list)
        lines: dict[object, int] = {}
        for line, block in enumerate(any_file.read_any(path).blocks, 2):
            key = block.point, block.requested
            lines.setdefault(key, line)
            runs[key] += block.times_us if block.counts else ()
        yield from ((lines[key], str(key), times) for key, times in runs.items())
    else:
        repeated: dict[object, list[float]] = defaultdict(list)
        first: dict[object, MeasuredRow] = {}
        for row in table.rows:
            point = replace(row, line=0, time_us=0.0)
            first.setdefault(point, row)
            repeated[point].append(row.time_us)
        yield from ((first[point].line, named(first[point]), times) for point, times in repeated.items())

"""Files of results: read, checked against what is said of them and against the links of the machine."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.base.errors import BadMeasurement
from tuner.base.files import read_bytes
from tuner.scenario import Scenario
from tuner.times import measured
from tuner.times.acceptance import drift
from tuner.times.calibration import plausible
from tuner.times.measured import Kind, MeasuredTable, Problem, parquet
from tuner.times.readers import measured_table
from tuner.times.readers.measured_table import WRONG, Given
from tuner.times.readers.nccl_tests_text import is_text

# With these a row is judged all the same, and fails.
_JUDGED = (Kind.above_links, Kind.too_short)


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file's rows that can be judged, and what is wrong with them and the others.

    ``names_release``: whether it says itself of which release it is. ``wrong_results``: how many calls had wrong
    values. ``executed``: what NCCL's log says ran, by line.
    """

    path: Path
    table: MeasuredTable
    problems: tuple[Problem, ...]
    names_release: bool
    wrong_results: int
    executed: dict[int, str]

    @property
    def is_refused(self) -> bool:
        """Whether rows are missing because something is wrong with them, or the results are wrong."""
        return bool(self.wrong_results) or any(problem.refused for problem in self.problems)


def read(path: Path, given: Given, scenario: Scenario) -> ResultFile:
    """The rows of a file, or of a shipped table by its name, on the machine of ``scenario``.

    BadMeasurement where it cannot be read, or says otherwise than ``given``.
    """
    file = measured.file_of(path)
    table = measured_table.read(file, given)
    executed: dict[int, str] = {}
    if is_text(read_bytes(file, BadMeasurement).decode(errors="replace")):
        executed = {
            row.line: f"{row.algorithm.name}/{row.protocol.name}"
            for row in table.rows
            if row.algorithm is not None and row.protocol is not None
        }
        rows = (replace(row, algorithm=None, protocol=None, channels=None) for row in table.rows)
        table = replace(table, rows=tuple(rows))
    own = scenario.resolve().own
    judged = plausible.judge(table, own.topology, own.trays)
    for each in judged.problems:
        if each.kind is Kind.too_many_gpus:
            raise BadMeasurement(
                f"{path}:{each.lines[0]}: {each.text}; valid: `machine` of the machine that was measured"
            )
    problems = (*judged.problems, *_other_machine(table, scenario), *drift.problems(file, table))
    out = {line for each in problems if each.refused and each.kind not in _JUDGED for line in each.lines}
    if any(each.kind in (Kind.mixed_machines, Kind.mixed_releases) for each in problems):
        out = {row.line for row in table.rows}
    return ResultFile(
        path,
        replace(table, rows=tuple(row for row in table.rows if row.line not in out)),
        problems,
        names_release=_names_release(file, table, given),
        wrong_results=table.header.left_out.get(WRONG, 0),
        executed=executed,
    )


def _names_release(path: Path, table: MeasuredTable, given: Given) -> bool:
    if not given.nccl or read_bytes(path, BadMeasurement).startswith(parquet.MAGIC):
        return bool(table.header.nccl)
    return bool(measured_table.read(path, replace(given, nccl="")).header.nccl)


def _other_machine(table: MeasuredTable, scenario: Scenario) -> Iterator[Problem]:
    """Where the file names GPUs that the machine does not have."""
    kinds, own = [kind for kind in table.header.gpu.split(", ") if kind], scenario.gpu_names
    if not own or all(any(name in kind.upper() for name in own) for kind in kinds):
        return
    text = f"the file says {', '.join(kinds)}, and {scenario.name} has {', '.join(own)}; valid: `machine` of these GPUs"
    yield Problem(Kind.mixed_machines, tuple(row.line for row in table.rows), text)

"""Several files of measured times of one machine as one table, each checked before it is taken."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner import release
from tuner.base.errors import BadMeasurement
from tuner.machine import catalogue
from tuner.machine.topology import Topology
from tuner.times.calibration import plausible
from tuner.times.measured import Launch, MeasuredHeader, MeasuredRow, MeasuredRun, MeasuredTable, Problem
from tuner.times.readers import measured_table
from tuner.times.readers.measured_table import Given

_SAME = ("nccl", "gpu", "launch", "cuda_graph", "network")


def table_of(
    files: Sequence[Path], facts: MeasuredHeader, given: Given, topology: Topology | None
) -> tuple[MeasuredTable, tuple[tuple[Path, Problem], ...]]:
    """The rows of all files below one head, and what looks wrong in each file without being refused.

    What ``facts`` leave empty is taken from the files. BadMeasurement for what cannot be read, is refused
    (``plausible``), or is another release, GPU or way of launching in one file than in the next; BadInput where a
    package is missing that reads a file. UnknownRelease for a release that is not known here.
    """
    tables = []
    problems: list[tuple[Path, Problem]] = []
    for path in files:
        table = measured_table.read(path, given)
        trays = catalogue.load(facts.machine).trays if facts.machine else None
        judged = plausible.refuse(table, topology, str(path), trays)
        problems += [(path, problem) for problem in judged.problems]
        tables.append(table)
    head = _head(files, tables, facts)
    if head.nccl:
        release.load(head.nccl)
    rows: list[MeasuredRow] = []
    runs: dict[str, MeasuredRun] = {}
    for table in tables:
        names = {run: _unused(run, runs) for run in table.header.runs}
        runs |= {names[run]: table.header.runs[run] for run in names}
        rows += [replace(row, run=names.get(row.run, "")) for row in table.rows]
    return MeasuredTable(facts.title, replace(head, runs=runs), tuple(rows)), tuple(problems)


def _head(files: Sequence[Path], tables: Sequence[MeasuredTable], facts: MeasuredHeader) -> MeasuredHeader:
    """What is given, and from the files what is not; they have to agree."""
    heads = [table.header for table in tables]
    for name in _SAME:
        values = {getattr(head, name): path for path, head in zip(files, heads, strict=True) if getattr(head, name)}
        values.pop(Launch.unknown, None)
        if len(values) > 1:
            each = ", ".join(f"{value} in {path}" for value, path in values.items())
            raise BadMeasurement(f"several values of {name} ({each}); valid: a table for each")
        if values and getattr(facts, name) in ("", Launch.unknown, False):
            facts = replace(facts, **{name: next(iter(values))})
    first = heads[0]
    left_out: Counter[str] = Counter()
    for head in heads:
        left_out.update(head.left_out)
    return replace(
        facts,
        nccl_note=facts.nccl_note or first.nccl_note,
        machine_note=facts.machine_note or first.machine_note,
        how_measured=facts.how_measured or first.how_measured,
        environment={**first.environment, **facts.environment} if len(heads) == 1 else facts.environment,
        traps=facts.traps or first.traps,
        left_out=dict(left_out),
    )


def _unused(name: str, used: dict[str, MeasuredRun]) -> str:
    number = 2
    unused = name
    while unused in used:
        unused, number = f"{name}-{number}", number + 1
    return unused

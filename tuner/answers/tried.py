"""Tries a decision table in the real libnccl: what libnccl launches without the table and with it, row by row."""

import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from operator import attrgetter
from pathlib import Path

from tuner import plugin
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.plugin import asked, live
from tuner.plugin.formats import convert
from tuner.plugin.table.records import ANY_PIPELINED, Conditions, Table
from tuner.scenario import Scenario

LEAST_BYTES, MOST_BYTES = 1 << 4, 8 << 30  # that are launched
ELEMENT_BYTES = 16


class RowEffect(StrEnum):
    """What a row of a table does in libnccl; the values are the texts in the JSON."""

    decides = "decides"
    same = "decides, as NCCL does without it"
    times = "gives times"
    cannot_run = "cannot run here"
    hidden = "no call reaches it"
    nccl = "leaves it to NCCL"
    elsewhere = "for other communicators"
    not_tried = "not tried"  # registered buffers, pipelined operations, no size that can be launched


NO_EFFECT = frozenset({RowEffect.cannot_run, RowEffect.hidden})


@dataclass(frozen=True, slots=True)
class TriedRow:
    """A row at one size: what was launched without the table and with it; ``bytes`` and both launches are None if no
    size of the row was launched.
    """

    line: int
    collective: Collective
    bytes: int | None
    before: OracleLaunch | None
    after: OracleLaunch | None
    effect: RowEffect


def run(table: Path, scenario: Scenario, timeout_s: float) -> list[TriedRow]:
    """Tries every row of a table on a communicator: what the library launches, and what the plugin counts.

    BadTable if the table has a mistake, OracleFailed if libnccl fails with it, BadInput if the release has no tuner
    plugins or is not the table's.
    """
    if (ignored := asked.of_other_releases(table, scenario.nccl)) is not None:
        raise BadInput(ignored)
    rows = convert.read(table).table
    plan = _plan(rows, scenario)
    sizes = _by_collective(plan)
    configuration = scenario.oracle_configuration()
    with Oracle(replace(configuration, without_tuner=True, plugin=None), timeout_s=timeout_s) as oracle:
        before = _launch(oracle, sizes)
    with tempfile.TemporaryDirectory() as folder:
        env = {"NCCL_TUNER_TABLE": os.path.abspath(table).replace("%", "%%"), "NCCL_TUNER_LIVE": folder}
        env = {**configuration.env, **env, **asked.strict(table)}
        with Oracle(replace(configuration, env=env, plugin=plugin.path()), timeout_s=timeout_s) as oracle:
            after = _launch(oracle, sizes)
            counts = live.read([Path(folder)])
    lines, stopped, timed = (
        {line for each in counts for line, calls in by_line(each).items() if calls}
        for by_line in (attrgetter("decided"), attrgetter("could_not_run"), attrgetter("costs"))
    )
    return [_tried(row, size, why, before, after, (lines, stopped, timed)) for row, size, why in plan]


def _launch(oracle: Oracle, sizes: dict[Collective, list[int]]) -> dict[object, OracleLaunch]:
    return {
        (collective, size): launched
        for collective, of_it in sizes.items()
        for size, launched in zip(
            of_it, oracle.launch(Request(collective, DataType.float32, Op.sum), of_it), strict=True
        )
    }


def _plan(table: Table, scenario: Scenario) -> list[tuple[Conditions, int | None, RowEffect | None]]:
    """Each row with a size at which it is the first row to match, or with the reason why there is no such size."""
    planned = []
    for rows in (table.decisions, table.costs):
        for row in rows:
            size, why = _size(row, rows, scenario)
            planned.append((row, size, why))
    return sorted(planned, key=lambda each: each[0].line)


def _size(row: Conditions, rows: Sequence[Conditions], scenario: Scenario) -> tuple[int | None, RowEffect | None]:
    ranks, nodes = scenario.ranks, scenario.nodes
    candidates = _candidates(row, ranks)
    here = [size for size in candidates if row.match(row.collective, size, ranks=ranks, nodes=nodes)]
    if not row.match(row.collective, row.bytes.low or ranks * row.bytes_per_rank.low, ranks=ranks, nodes=nodes):
        return None, RowEffect.elsewhere
    if getattr(row, "registered", None) or getattr(row, "pipelined", ANY_PIPELINED).low > 1 or not here:
        return None, RowEffect.not_tried
    for size in here:
        if _first(rows, row, size, ranks, nodes):
            return size, None
    return None, RowEffect.hidden


def _first(rows: Sequence[Conditions], row: Conditions, size: int, ranks: int, nodes: int) -> bool:
    def cell(each: Conditions) -> object:
        return getattr(each, "algorithm", None), getattr(each, "protocol", None)

    alike = (each for each in rows if cell(each) == cell(row))
    return next(each for each in alike if each.match(row.collective, size, ranks=ranks, nodes=nodes)) is row


def _candidates(row: Conditions, ranks: int) -> list[int]:
    """Sizes of the row that can be launched: its middle, its ends, and powers of two in between."""
    low = max(row.bytes.low, ranks * row.bytes_per_rank.low, LEAST_BYTES)
    ends = [end for end in (row.bytes.high, row.bytes_per_rank.high and ranks * row.bytes_per_rank.high) if end]
    high = min(MOST_BYTES, *ends) if ends else MOST_BYTES
    step = ELEMENT_BYTES * ranks
    found = [int((low * high) ** 0.5), low, high, *(1 << power for power in range(4, 34) if low <= 1 << power <= high)]
    fitted = [size - size % step for size in found] + [-(-low // step) * step]
    return list(dict.fromkeys(size for size in fitted if low <= size <= high and size > 0))


def _by_collective(plan: Sequence[tuple[Conditions, int | None, RowEffect | None]]) -> dict[Collective, list[int]]:
    sizes = defaultdict[Collective, set[int]](set)
    for row, size, _ in plan:
        if size is not None:
            sizes[row.collective].add(size)
    return {collective: sorted(of_it) for collective, of_it in sizes.items()}


def _tried(
    row: Conditions,
    size: int | None,
    why: RowEffect | None,
    before: dict[object, OracleLaunch],
    after: dict[object, OracleLaunch],
    counted: tuple[set[int], set[int], set[int]],
) -> TriedRow:
    if size is None:
        return TriedRow(row.line, row.collective, None, None, None, why or RowEffect.hidden)
    one, other = before[row.collective, size], after[row.collective, size]
    lines, stopped, timed = counted
    same = (one.algorithm, one.protocol, one.channels) == (other.algorithm, other.protocol, other.channels)
    if row.line in lines:
        effect = RowEffect.same if same else RowEffect.decides
    elif row.line in timed:
        effect = RowEffect.times
    elif row.line in stopped:
        effect = RowEffect.cannot_run
    else:
        effect = RowEffect.nccl if getattr(row, "choices", None) == () else RowEffect.hidden
    return TriedRow(row.line, row.collective, size, one, other, effect)

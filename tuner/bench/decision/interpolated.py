"""Rows for communicators between those that a table of :func:`tuner.bench.decide.decide` was decided for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.base.records import json_form
from tuner.base.sizes import ranks_on_nodes
from tuner.bench.decision.proposed import proposed
from tuner.bench.decision.rows import DecisionRow, Regrets, regrets
from tuner.plugin.compile import Shape, between
from tuner.plugin.table.parse import read, write
from tuner.plugin.table.records import Decision
from tuner.times.records.samples import Combination

Known = Mapping[Shape, Sequence[Decision]]


@dataclass(frozen=True, slots=True)
class HeldOutMeasured:
    """What rows interpolated over the neighbours do at a measured number of nodes that they are not learnt from.

    ``own`` is the mean regret with the rows that were decided there.
    """

    nodes: int
    regrets: Regrets = field(metadata=json_form(merged=True))
    own: float = field(metadata=json_form("regret_own"))

    def __str__(self) -> str:
        before_and_after = (
            f"{100 * self.regrets.before:.2f} % by NCCL's picks, {100 * self.regrets.after:.2f} % interpolated"
        )
        return f"{self.nodes} nodes: regret {before_and_after}, {100 * self.own:.2f} % decided there"


@dataclass(frozen=True, slots=True)
class Interpolated:
    """``rows`` that were added, and what each number of nodes but the outermost says of such rows."""

    rows: tuple[Decision, ...] = field(metadata=json_form("interpolated_rows", convert=len))
    held_out: tuple[HeldOutMeasured, ...] = field(metadata=json_form(optional=True))


def interpolate(table: Path, files: Mapping[Shape, Path]) -> Interpolated:
    """Adds rows to the table for the numbers of nodes between those of ``files``, where two neighbours choose the same.

    They are not measured, and the table says so. With three numbers of nodes or more, each one between the others is
    held out: its measurements judge rows that are interpolated without it. Errors: BadInput for fewer than two numbers
    of nodes, or nodes that differ in their ranks; BadTable for a file that is no table; BadMeasurement as for decide.
    """
    decided = read(table)
    known: dict[Shape, list[Decision]] = {shape: [] for shape in sorted(files, key=lambda one: one.nodes)}
    for row in decided.decisions:
        known[Shape(row.ranks.low, row.nodes.low)].append(row)
    rows = tuple(between(known, unequal=False))
    held_out = tuple(_held_out(known, shape, files[shape]) for shape in list(known)[1:-1])
    learnt = ", ".join(ranks_on_nodes(shape.ranks, shape.nodes) for shape in known)
    says = (
        f"{len(rows)} rows for the numbers of nodes between, from {learnt}: not measured; where two neighbours choose "
        "the same, the logarithm of its edges is linear in the logarithm of the ranks"
    )
    provenance = {**decided.provenance, "interpolated": says}
    provenance |= {f"held-out-{number}": str(each) for number, each in enumerate(held_out, start=1)}
    write(table, replace(decided, decisions=(*decided.decisions, *rows), provenance=provenance))
    return Interpolated(rows, held_out)


def _held_out(known: Known, shape: Shape, file: Path) -> HeldOutMeasured:
    others = {other: rows for other, rows in known.items() if other != shape}
    there = [_row(row) for row in between(others, unequal=False) if row.nodes.low == shape.nodes]
    sizes = proposed(file).sizes
    return HeldOutMeasured(shape.nodes, regrets(sizes, there), regrets(sizes, [*map(_row, known[shape])]).after)


def _row(row: Decision) -> DecisionRow:
    choice = Combination(*row.choices[0].algo_proto, row.choices[0].channels or 0)
    return DecisionRow(row.collective, row.bytes.low, row.bytes.high, choice, ())

"""Rows for communicators between those that a table of :func:`tuner.measure.decide.decide` was decided for."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tuner.plugin.between import Shape, between
from tuner.plugin.table.parse import read
from tuner.plugin.table.records import Decision
from tuner.plugin.table.text import write


def interpolate(table: Path, shapes: Iterable[Shape]) -> tuple[Decision, ...]:
    """Adds rows to the file for the numbers of nodes between ``shapes``, where two neighbours choose the same.

    They are not measured, and the table says so. Errors: BadInput for fewer than two numbers of nodes, or nodes that
    differ in their ranks; BadTable for a file that is no table.
    """
    decided = read(table)
    known: dict[Shape, list[Decision]] = {shape: [] for shape in shapes}
    for row in decided.decisions:
        known[Shape(row.ranks.low, row.nodes.low)].append(row)
    found = tuple(between(known, unequal=False))
    learnt = ", ".join(
        f"{shape.ranks} ranks on {shape.nodes} nodes" for shape in sorted(known, key=lambda one: one.nodes)
    )
    says = (
        f"{len(found)} rows for the numbers of nodes between, from {learnt}: not measured; where two neighbours choose "
        "the same, the logarithm of its edges is linear in the logarithm of the ranks"
    )
    provenance = {**decided.provenance, "interpolated": says}
    write(table, replace(decided, decisions=(*decided.decisions, *found), provenance=provenance))
    return found

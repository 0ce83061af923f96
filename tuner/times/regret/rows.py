"""Rows of a decision table that measurements support: where the pick loses beyond the noise to what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tuner.base.names import Collective
from tuner.base.records import json_form
from tuner.plugin.table.parse import decision_text
from tuner.plugin.table.records import Choice, Decision, Interval
from tuner.times.records.samples import Combination
from tuner.times.regret.judged import JudgedPick, Verdict


@dataclass(frozen=True, slots=True)
class RecommendedRow:
    """A row for measured sizes from ``low_bytes`` to ``high_bytes`` in which one combination is faster at each.

    ``gain_low`` and ``gain_high`` are the least and the largest of the pick's times over the choice's, minus 1,
    ``surely`` where the 95 % interval of the least begins. Types are no condition of a row: ``dtypes`` were measured.
    """

    row: str
    collective: Collective
    nodes: int
    gpus_per_node: int
    low_bytes: int
    high_bytes: int
    choice: Combination = field(metadata=json_form(convert=str))
    gain_low: float
    gain_high: float
    surely: float
    dtypes: tuple[str, ...]


def recommended(judged: Sequence[JudgedPick]) -> list[RecommendedRow]:
    """One row for neighbouring measured sizes with the same faster combination, if it is so in every type, in place or
    not, and setting that was measured at that size.
    """
    sizes: list[list[JudgedPick]] = []
    for _, several in groupby(sorted(judged, key=_by_size), key=_by_size):
        sizes.append([one for one in several if one.verdict is not Verdict.unknown])
    rows: list[RecommendedRow] = []
    for _, of_communicator in groupby(filter(None, sizes), key=lambda its: _by_size(its[0])[:3]):
        for choice, run in groupby(of_communicator, key=_faster):
            if choice is not None:
                rows.append(_row(choice, [one for its in run for one in its]))
    return rows


def _by_size(one: JudgedPick) -> tuple[int, int, int, int]:
    return int(one.collective), one.nodes, one.gpus_per_node, one.bytes


def _faster(several: Sequence[JudgedPick]) -> Combination | None:
    """What is faster than the pick in all of them."""
    choices = {one.faster.combination if one.faster else None for one in several}
    return choices.pop() if len(choices) == 1 else None


def _row(choice: Combination, judged: Sequence[JudgedPick]) -> RecommendedRow:
    first, last = judged[0], judged[-1]
    regrets = [one.regret for one in judged if one.regret is not None]
    decision = Decision(
        first.collective,
        bytes=Interval(first.bytes, last.bytes),
        ranks=Interval(first.nodes * first.gpus_per_node, first.nodes * first.gpus_per_node),
        nodes=Interval(first.nodes, first.nodes),
        choices=(Choice(choice.algorithm, choice.protocol, choice.channels or None),),
    )
    return RecommendedRow(
        decision_text(decision),
        first.collective,
        first.nodes,
        first.gpus_per_node,
        first.bytes,
        last.bytes,
        choice,
        min(regrets),
        max(regrets),
        min(one.low for one in judged if one.low is not None),
        tuple(dict.fromkeys(one.dtype.name for one in judged)),
    )

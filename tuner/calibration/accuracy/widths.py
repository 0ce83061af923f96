"""How wide intervals are: the factors by what is carried over, from how far predictions of held-out rows were off."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tuner.calibration.accuracy.splits import Split
from tuner.timemodel.features import Array
from tuner.timemodel.intervals import BEYOND, COVERED, CarriedOver, Factors

_NEVER_TRIED = 1.5  # what was never held out, against the widest that was


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """How far predictions of one split are off: absolute logarithms as numbers, [row], in units of the fit's scatter.

    Without a unit where nothing like them was measured (``BEYOND``).
    """

    kind: CarriedOver
    split: Split
    machine: str
    off: Array


def learn(scores: Iterable[Scores]) -> Factors:
    """The conformal quantiles, the (n + 1) x 0.9 smallest of n scores, by what is carried over; splits count alike."""
    by_kind: dict[CarriedOver, list[Scores]] = defaultdict(list)
    for each in scores:
        by_kind[each.kind].append(each)
    known = {kind: _quantile(its_scores) for kind, its_scores in by_kind.items()}
    never = {
        beyond: max(value for kind, value in known.items() if (kind in BEYOND) == beyond) * _NEVER_TRIED
        for beyond in (False, True)
    }
    return {kind: known.get(kind, never[kind in BEYOND]) for kind in CarriedOver}


def _quantile(scores: list[Scores]) -> float:
    off = np.concatenate([each.off for each in scores])
    weights = np.concatenate([np.full(len(each.off), 1 / len(each.off)) for each in scores])
    order = np.argsort(off)
    reached = np.cumsum(weights[order]) / weights.sum() * len(off) / (len(off) + 1)
    place = min(int(np.searchsorted(reached, COVERED)), len(off) - 1)
    return float(off[order[place]])

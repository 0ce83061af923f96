"""How wide intervals are: the factors by what is carried over, from how far predictions of held-out rows were off."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tuner.times.calibration.accuracy.splits import Split
from tuner.times.timemodel.features import Array
from tuner.times.timemodel.intervals import BEYOND, COVERED, ON_ONE_NODE, CarriedOver, Factors

_NEVER_TRIED = 1.5  # what was never held out, against the widest that was


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """How far predictions of one split are off: absolute logarithms as numbers without a unit, [row].

    ``scatter``: of the fit near each row; ``unit``: what the factor of the kind multiplies there.
    """

    kind: CarriedOver
    split: Split
    machine: str
    off: Array
    scatter: Array
    unit: Array


def learn(scores: Iterable[Scores]) -> Factors:
    """The conformal quantiles by what is carried over, the (n + 1) x 0.9 smallest of n; splits count alike.

    Of sizes, how far predictions are off; of the others, how much more than that, as independent errors add.
    """
    known = _tried(scores)
    never = {
        beyond: max(value for kind, value in known.items() if _alike(kind, beyond)) * _NEVER_TRIED
        for beyond in (False, True)
    }
    return {kind: known.get(kind, never[kind in BEYOND]) for kind in ON_ONE_NODE}


def learn_scaled(scores: Iterable[Scores]) -> Factors:
    """The same where all factors are in units of the scatter."""
    known = _tried(scores)
    never = max(known.values()) * _NEVER_TRIED
    return {kind: known.get(kind, never) for kind in ON_ONE_NODE}


def _tried(scores: Iterable[Scores]) -> Factors:
    by_kind: dict[CarriedOver, list[Scores]] = defaultdict(list)
    for each in scores:
        by_kind[each.kind].append(each)
    sizes = _quantile([each.off / each.scatter for each in by_kind.pop(CarriedOver.sizes)])
    others = {kind: _quantile([_more(each, sizes) for each in its]) for kind, its in by_kind.items()}
    return {**others, CarriedOver.sizes: sizes}


def _alike(kind: CarriedOver, beyond: bool) -> bool:
    """Whether the factors of kinds are in one unit."""
    return (kind in BEYOND) == beyond


def _more(scores: Scores, sizes: float) -> Array:
    more: Array = np.sqrt(np.maximum(scores.off**2 - (sizes * scores.scatter) ** 2, 0.0)) / scores.unit
    return more


def _quantile(off: list[Array]) -> float:
    together = np.concatenate(off)
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in off])
    order = np.argsort(together)
    reached = np.cumsum(weights[order]) / weights.sum() * len(together) / (len(together) + 1)
    place = min(int(np.searchsorted(reached, COVERED)), len(together) - 1)
    return float(together[order[place]])

"""Half-widths of the intervals, from how far predictions of held-out rows were off."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.timemodel.features import Array, Ints
from tuner.timemodel.intervals import COVERED, REGIMES, CarriedOver, HalfWidths, Regime

FEW = 20  # scores of a regime that say too little by themselves
_WIDEST = 2.0  # what was never tried, against the widest that was


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Absolute logarithms of predicted over measured times, [row], of one split, with each row's regime."""

    kind: CarriedOver
    machine: str
    off: Array
    regimes: Ints


def learn(scores: Iterable[Scores]) -> HalfWidths:
    """The conformal quantiles: the (n + 1) x 0.9 smallest of n scores, by what is carried over and regime."""
    by_kind: dict[CarriedOver, list[Scores]] = defaultdict(list)
    for each in scores:
        by_kind[each.kind].append(each)
    known = {kind: _of_regimes(its_scores) for kind, its_scores in by_kind.items()}
    widest = {regime: max(widths[regime] for widths in known.values()) for regime in Regime}
    never = {regime: width * _WIDEST for regime, width in widest.items()}
    return {kind: known.get(kind, never) for kind in CarriedOver}


def _of_regimes(scores: Sequence[Scores]) -> Mapping[Regime, float]:
    off, regimes = (np.concatenate([getattr(each, name) for each in scores]) for name in ("off", "regimes"))
    everything = _quantile(off)
    return {
        regime: _quantile(off[regimes == at]) if np.count_nonzero(regimes == at) >= FEW else everything
        for at, regime in enumerate(REGIMES)
    }


def _quantile(off: Array) -> float:
    place = min(int(np.ceil((len(off) + 1) * COVERED)), len(off))
    return float(np.sort(off)[place - 1])

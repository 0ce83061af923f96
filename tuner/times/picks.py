"""NCCL's pick of a call against everything else that was measured of it: one judge, however the noise is known."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.times.evidence import LEVEL, Gain
from tuner.times.measured.samples import Combination

Call = TypeVar("Call")
Column = TypeVar("Column")


class PickEvidence(Protocol[Column]):
    """Times of one call by column, NCCL's own choice first; a level is the logarithm of a typical time in us."""

    @property
    def columns(self) -> Sequence[Column]:
        """Everything that was measured."""

    @property
    def executed(self) -> Combination | None:
        """Combination that NCCL's own choice came to; None where that is not known."""

    def requested(self, column: Column) -> Combination | None:
        """Combination that was requested, or that this came to; None for NCCL's own choice."""

    def level(self, column: Column) -> float:
        """Logarithm of the typical time in us."""

    def gain(self, column: Column, over: Column, comparisons: float = 1) -> Gain:
        """Gain of ``column`` over ``over``, with an interval of 95 % for all of so many ``comparisons`` together."""

    def comparisons(self, best: Column, others: int) -> float:
        """Number of comparisons that the interval of the best of so many ``others`` is widened for."""


OfCall = TypeVar("OfCall", bound=PickEvidence[Any])


class PickVerdict(StrEnum):
    """Verdicts of measurements on a pick."""

    best = "best"
    tie = "tie"
    loses = "loses"
    unknown = "unknown"


@dataclass(frozen=True, slots=True)
class JudgedPick(Generic[Call, Column, OfCall]):
    """NCCL's pick of one ``call`` against the measured best, times in us.

    ``pick`` is what NCCL ran by itself where that is known, else ``emulated_pick``; both are without channels. ``same``
    are the columns that executed it, NCCL's own choice first; ``pick_us`` is the time of the first, None without any.
    ``best`` is the fastest of that one and the ``others``. ``regret`` is the pick's time over the best's, minus 1, None
    where that says nothing of the pick. ``low`` and ``high`` are the 95 % interval of the pick's time over that of the
    fastest other column, minus 1, None where the noise is not known; ``why`` says what is missing. ``ranks`` is what
    the ``file`` says of them.
    """

    call: Call
    pick: Combination
    emulated_pick: Combination | None
    same: tuple[Column, ...]
    others: tuple[Column, ...]
    best: Combination
    pick_us: float | None
    best_us: float
    regret: float | None
    low: float | None
    high: float | None
    verdict: PickVerdict
    why: str
    evidence: OfCall
    ranks: int | None = None
    file: Path | None = None

    @property
    def loses(self) -> bool:
        """Whether something else is faster beyond the noise."""
        return self.verdict is PickVerdict.loses

    @property
    def is_known(self) -> bool:
        """Whether the regret says something of the pick: that it loses, or how it stands to enough others."""
        return self.regret is not None

    @property
    def faster(self) -> Column | None:
        """The fastest other column, where the pick loses."""
        return min(self.others, key=self.evidence.level) if self.loses else None


def judge(
    call: Call, pick: Combination, evidence: OfCall, emulated: Combination | None, enough: int = 1
) -> JudgedPick[Call, Any, OfCall]:
    """Judges the ``pick``, given with its channels: it loses only beyond the noise, against all others together.

    That fewer than ``enough`` others are no faster says nothing of it.
    """
    same = columns_of(pick, evidence)
    others = tuple(column for column in evidence.columns if column not in same)
    best, other = (min(its, key=evidence.level, default=None) for its in ((*same[:1], *others), others))
    lost = evidence.gain(other, same[0], evidence.comparisons(best, len(others))) if same and others else None
    verdict, why, is_known = PickVerdict.unknown, "", lost is not None and len(others) >= enough
    if not same:
        why = f"{pick.plain} was not measured"
    elif lost is None:
        why = "nothing else was measured"
    elif best not in same and lost.p * len(others) <= LEVEL:
        verdict, is_known = PickVerdict.loses, True
    elif not is_known:
        why = "a single other choice was measured, which is no faster"
    elif np.isinf(lost.low):
        why = "the noise is not known"
    else:
        verdict = PickVerdict.best if lost.high < 0 else PickVerdict.tie
    bounds = (lost.low, lost.high) if lost is not None and np.isfinite(lost.low) else (None, None)
    return JudgedPick(
        call=call,
        pick=pick.plain,
        emulated_pick=None if emulated is None else emulated.plain,
        same=same,
        others=others,
        best=pick.plain if best in same else evidence.requested(best) or pick.plain,
        pick_us=float(np.exp(evidence.level(same[0]))) if same else None,
        best_us=float(np.exp(evidence.level(best))),
        regret=max(0.0, float(np.expm1(lost.estimate))) if lost is not None and is_known else None,
        low=None if bounds[0] is None else float(np.expm1(bounds[0])),
        high=None if bounds[1] is None else float(np.expm1(bounds[1])),
        verdict=verdict,
        why=why,
        evidence=evidence,
    )


def columns_of(pick: Combination, evidence: PickEvidence[Column]) -> tuple[Column, ...]:
    """Columns that executed the pick: NCCL's own choice first, then what was requested and is the same."""
    requested = [(column, evidence.requested(column)) for column in evidence.columns]
    return tuple(column for column, what in requested if what is None or is_same(what, pick))


def is_same(requested: Combination, pick: Combination) -> bool:
    """Whether asking for ``requested`` changes nothing about ``pick``, which says what channels it has."""
    return requested.algo_proto == pick.algo_proto and requested.channels in (0, pick.channels)

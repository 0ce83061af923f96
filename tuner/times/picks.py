"""Compares NCCL's pick for a call with everything else that was measured for the call."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.times.compare import Verdict
from tuner.times.measured.samples import Combination

Call = TypeVar("Call")
Column = TypeVar("Column")


class PickEvidence(Protocol[Column]):
    """The interface to the times of one call by column. Each column is one request; NCCL's own choice is the first. A
    level is the logarithm of a typical time in us.
    """

    @property
    def columns(self) -> Sequence[Column]:
        """Everything that was measured."""

    @property
    def executed(self) -> Combination | None:
        """Combination that NCCL executed by its own choice; None if that is not known."""

    def requested(self, column: Column) -> Combination | None:
        """Combination that the column requested, or executed because of the request; None for NCCL's own choice."""

    def level(self, column: Column) -> float:
        """Logarithm of the typical time in us."""

    def gain(self, column: Column, over: Column, comparisons: float = 1) -> Verdict:
        """The gain of ``column`` over ``over``, with an interval that covers 95 % for all ``comparisons`` together."""


OfCall = TypeVar("OfCall", bound=PickEvidence[Any])


class PickVerdict(StrEnum):
    """Verdicts of measurements on a pick."""

    best = "best"
    tie = "tie"
    loses = "loses"
    unknown = "unknown"


@dataclass(frozen=True, slots=True)
class JudgedPick(Generic[Call, Column, OfCall]):
    """Compares NCCL's pick of one ``call`` with the measured best, times in us.

    ``pick`` is what NCCL ran by itself if that is known, else ``emulated_pick``; both are without channels. ``same``
    are the columns that executed the pick, NCCL's own choice first. ``best`` is the combination of the fastest column
    among the first of ``same`` and all ``others``. ``lost`` is the gain of the fastest other column over the pick, None
    if one of the two was not measured. ``is_known`` says whether the pick can be judged: it loses, or was compared with
    enough others. ``why`` says what is missing. ``ranks`` is the number of ranks in the ``file``.
    """

    call: Call
    pick: Combination
    emulated_pick: Combination | None
    same: tuple[Column, ...]
    others: tuple[Column, ...]
    best: Combination
    best_us: float
    lost: Verdict | None
    is_known: bool
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
    def pick_us(self) -> float | None:
        """Time of the pick, us; None if it was not measured."""
        return float(np.exp(self.evidence.level(self.same[0]))) if self.same else None

    @property
    def regret(self) -> float | None:
        """Time of the pick over time of the best, minus 1, at least 0; None if the pick cannot be judged."""
        return max(0.0, self.lost.gain) if self.lost is not None and self.is_known else None

    @property
    def low(self) -> float | None:
        """Low end of the 95 % interval of the pick's time over the fastest other time, minus 1; None if not known."""
        return self.lost.interval[0] if self.lost is not None and self.lost.is_bounded else None

    @property
    def high(self) -> float | None:
        """High end of the 95 % interval of the pick's time over the fastest other time, minus 1; None if not known."""
        return self.lost.interval[1] if self.lost is not None and self.lost.is_bounded else None

    @property
    def faster(self) -> Column | None:
        """The fastest other column if the pick loses, else None."""
        return min(self.others, key=self.evidence.level) if self.loses else None


def judge(
    call: Call, pick: Combination, evidence: OfCall, emulated: Combination | None, enough: int = 1
) -> JudgedPick[Call, Any, OfCall]:
    """Judges the ``pick``, given with its channels: it loses only if another column is faster beyond the noise.

    If fewer than ``enough`` others were measured and none is faster, the pick is not judged. The interval is corrected
    for half as many comparisons as there are columns that may be the best. Half as many are enough, because the error
    has one direction: a column may measure best by luck, so its time may be too short but never too long.
    """
    same = columns_of(pick, evidence)
    others = tuple(column for column in evidence.columns if column not in same)
    best, other = (min(its, key=evidence.level, default=None) for its in ((*same[:1], *others), others))
    lost = evidence.gain(other, same[0], len(alike(evidence, best)) / 2) if same and others else None
    verdict, why, is_known = PickVerdict.unknown, "", lost is not None and len(others) >= enough
    if not same:
        why = f"{pick.plain} was not measured"
    elif lost is None:
        why = "nothing else was measured"
    elif best not in same and lost.is_beyond(len(others)):
        verdict, is_known = PickVerdict.loses, True
    elif not is_known:
        why = "a single other choice was measured, which is no faster"
    elif not lost.is_bounded:
        why = "the noise is not known"
    else:
        verdict = PickVerdict.best if lost.high < 0 else PickVerdict.tie
    return JudgedPick(
        call=call,
        pick=pick.plain,
        emulated_pick=None if emulated is None else emulated.plain,
        same=same,
        others=others,
        best=pick.plain if best in same else evidence.requested(best) or pick.plain,
        best_us=float(np.exp(evidence.level(best))),
        lost=lost,
        is_known=is_known,
        verdict=verdict,
        why=why,
        evidence=evidence,
    )


def alike(evidence: PickEvidence[Column], best: Column) -> list[Column]:
    """Columns that are not slower than ``best`` beyond the noise, including ``best`` itself."""
    others = len(evidence.columns) - 1
    return [
        column for column in evidence.columns if column == best or not evidence.gain(best, column).is_beyond(others)
    ]


def columns_of(pick: Combination, evidence: PickEvidence[Column]) -> tuple[Column, ...]:
    """Columns that executed the pick: NCCL's own choice first, then requests for the same combination."""
    requested = [(column, evidence.requested(column)) for column in evidence.columns]
    return tuple(column for column, what in requested if what is None or is_same(what, pick))


def is_same(requested: Combination, pick: Combination) -> bool:
    """Whether requesting ``requested`` changes nothing about ``pick``, channels included."""
    return requested.algo_proto == pick.algo_proto and requested.channels in (0, pick.channels)

"""One measured call, judged: NCCL's pick against everything else that was measured of it."""

from dataclasses import field, replace

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.records import json_form
from tuner.times.comparison.model import Model
from tuner.times.evidence import LEVEL, Evidence
from tuner.times.records.samples import Combination, Point

_NOT_SAID = "no log of NCCL's own choice, and the file does not say where it was measured; valid: with `machine` NAME"
FEWEST_OTHERS = 2  # beside a pick, for the best of them to be called so


@dataclass(frozen=True, slots=True)
class Judged:
    """One size: ``regret`` is the pick's time over the best's, minus 1; ``significant`` is one beyond the noise.

    ``pick`` is what NCCL ran by itself where that was measured, else the emulator's; ``model_pick`` the emulator's.
    ``interval`` is the regret's, of 95 %. ``others`` counts what was measured beside the pick.
    """

    point: Point
    pick: Combination
    best: Combination
    pick_us: float
    best_us: float
    regret: float
    interval: tuple[float, float]
    significant: bool
    rounds: int
    alike: frozenset[Combination]
    model_pick: Combination | None
    others: int
    possible: int | None = None  # others that can run, by the model

    @property
    def is_known(self) -> bool:
        """Whether the regret says something of the pick: that it loses, or how it stands to several others.

        That a single other one is no faster does not make it the best, unless no more can run.
        """
        enough = FEWEST_OTHERS if self.possible is None else max(1, min(FEWEST_OTHERS, self.possible))
        return self.others >= enough or self.significant


def _call(point: Point) -> dict[str, object]:
    return {"collective": point.collective, "bytes": point.bytes}


@dataclass(frozen=True, slots=True)
class Skipped:
    """A call without a regret, and why it has none."""

    point: Point = field(metadata=json_form(convert=_call, merged=True))
    reason: str


def judge(point: Point, evidence: Evidence, model: Model | None) -> Judged | Skipped:
    """The pick against everything else that was measured at this point."""
    modelled = model.pick(point) if model is not None else None
    pick = evidence.executed or modelled
    if pick is None:
        return Skipped(point, f"what NCCL picks is not known: {_NOT_SAID}")
    name, same = pick.plain, columns_of(pick, evidence)
    if not same:
        return Skipped(point, f"the pick was not measured: {name}")
    column, others = same[0], [other for other in evidence.columns if other not in same]
    at = {other: evidence.levels[evidence.columns.index(other)] for other in (column, *others)}
    best = min(at, key=at.__getitem__)
    contenders = evidence.alike(best)
    # The best of many may be so by luck, and is then too fast, never too slow.
    gain = evidence.gain(best, column, len(contenders) / 2)
    alike = frozenset(name if other is None or other in same else other for other in contenders)
    return Judged(
        point,
        name,
        name if best == column else best or name,
        float(np.exp(at[column])),
        float(np.exp(at[best])),
        regret=float(np.expm1(at[column] - at[best])),
        interval=(0.0, 0.0) if best == column else (float(np.expm1(gain.low)), float(np.expm1(gain.high))),
        significant=best != column and gain.p * len(others) <= LEVEL,
        rounds=evidence.rounds,
        alike=alike,
        model_pick=None if modelled is None else modelled.plain,
        others=len(others),
        possible=None if model is None else len(model.times_us(point).keys() - {pick.algo_proto}),
    )


def columns_of(pick: Combination, evidence: Evidence) -> list[Combination | None]:
    """Those that executed the pick: NCCL's own choice first, then what was requested and is the same."""
    return [column for column in evidence.columns if column is None or is_same(column, pick)]


def is_same(requested: Combination, pick: Combination) -> bool:
    """Whether asking for ``requested`` changes nothing about ``pick``, which says what channels it has."""
    return requested.algo_proto == pick.algo_proto and requested.channels in (0, pick.channels)


def kind_of(point: Point) -> Point:
    """The call without its size: a point of 0 bytes."""
    return replace(point, bytes=0)


def middle(low: int, high: int) -> int:
    """Geometric."""
    return int((low * high) ** 0.5)

"""NCCL's pick against the best arm that was measured, by size, with the noise."""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from tuner.base.names import Collective, DataType
from tuner.base.records import json_form
from tuner.times.comparison.judged import is_same
from tuner.times.records.samples import Combination
from tuner.times.regret.executed import Executed, executed
from tuner.times.regret.noise import Noise
from tuner.times.regret.records import Arm, MeasuredCall


class Verdict(StrEnum):
    """What the measurements say of a pick."""

    best = "best"
    tie = "tie"
    loses = "loses"
    unknown = "unknown"


@dataclass(frozen=True, slots=True)
class JudgedPick:
    """NCCL's pick at one size. ``pick`` is the emulator's, ``pick_us`` the measured time of NCCL's own choice or, where
    that was not measured, of the same forced; ``best`` the fastest of all arms.

    ``regret`` is the pick's time over the best's, minus 1; ``low`` and ``high`` the 95 % interval of the pick's time
    over that of the fastest other arm, minus 1. None where they are not known: ``why`` says what is missing.
    ``noise_percent`` is by how much one time may be off, and ``noise_source`` how that is known.
    """

    collective: Collective
    dtype: DataType
    nodes: int
    gpus_per_node: int
    bytes: int
    in_place: bool
    setting: str
    pick: Combination = field(metadata=json_form(convert=str))
    pick_us: float | None
    best: Combination | None = field(metadata=json_form(convert=lambda best: best and str(best)))
    best_us: float | None
    regret: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    why: str
    noise_percent: float | None
    noise_source: str
    executed: Executed | None
    arms: tuple[Arm, ...]
    measured: MeasuredCall = field(metadata=json_form(omitted=True))
    faster: Arm | None = field(metadata=json_form(omitted=True))  # the fastest other arm, where the pick loses


def judge(measured: MeasuredCall, noise: Noise | None) -> JudgedPick:
    """One call. A pick loses only beyond the noise, against all other arms together."""
    ran = executed(measured, noise)
    took = ran.combination if ran is not None and ran.is_clear else measured.pick
    same = [arm for arm in measured.forced if is_same(arm.combination, took)]
    own = measured.default or (same[0] if same else None)
    others = [arm for arm in measured.forced if arm not in same]
    other = min(others, key=lambda arm: arm.log_us, default=None)
    call, best = measured.call, min(measured.arms, key=lambda arm: arm.log_us)
    against = _against(own, other, noise, len(others))
    verdict, why = _verdict(measured, own, against)
    return JudgedPick(
        collective=call.collective,
        dtype=call.dtype,
        nodes=call.nodes,
        gpus_per_node=call.gpus_per_node,
        bytes=call.bytes,
        in_place=call.in_place,
        setting=call.setting,
        pick=measured.pick.plain,
        pick_us=None if own is None else own.time_us,
        best=best.combination if other is not None else None,
        best_us=best.time_us if other is not None else None,
        regret=None if against is None else max(0.0, float(np.expm1(against.log_ratio))),
        low=None if against is None else against.low,
        high=None if against is None else against.high,
        verdict=verdict,
        why=why,
        noise_percent=None if noise is None else noise.percent,
        noise_source=noise.source.value if noise else "",
        executed=ran,
        arms=measured.arms,
        measured=measured,
        faster=other if verdict is Verdict.loses else None,
    )


@dataclass(frozen=True, slots=True)
class _Against:
    """The pick against the fastest other arm; ``low`` and ``high`` None where the noise is not known."""

    log_ratio: float
    low: float | None
    high: float | None


def _against(own: Arm | None, other: Arm | None, noise: Noise | None, comparisons: int) -> _Against | None:
    if own is None or other is None:
        return None
    ratio = own.log_us - other.log_us
    if noise is None:
        return _Against(ratio, None, None)
    half = noise.between(own, other, comparisons)
    return _Against(ratio, float(np.expm1(ratio - half)), float(np.expm1(ratio + half)))


def _verdict(measured: MeasuredCall, own: Arm | None, against: _Against | None) -> tuple[Verdict, str]:
    if own is None:
        return Verdict.unknown, f"{measured.pick.plain} was not measured"
    if against is None:
        return Verdict.unknown, "nothing else was measured"
    if against.low is None or against.high is None:
        return Verdict.unknown, "the noise is not known"
    if against.low > 0:
        return Verdict.loses, ""
    return (Verdict.best if against.high < 0 else Verdict.tie), ""

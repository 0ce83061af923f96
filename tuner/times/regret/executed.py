"""Which forced arm NCCL's own choice was, by its time: a check of the emulated pick that needs no log."""

from dataclasses import dataclass, field

from tuner.base.records import json_form
from tuner.times.comparison.judged import is_same
from tuner.times.records.samples import Combination
from tuner.times.regret.noise import Noise
from tuner.times.regret.records import MeasuredCall


@dataclass(frozen=True, slots=True)
class Executed:
    """What NCCL's own choice was: as NCCL's log says, or the forced arm whose time is nearest, ``label``.

    ``difference`` is the time of NCCL's choice over the arm's, minus 1. ``is_clear``: logged, or the other arms are
    farther off beyond the noise. ``agrees``: it is the emulated pick.
    """

    label: str
    combination: Combination = field(metadata=json_form(convert=str))
    logged: bool
    difference: float
    is_clear: bool
    agrees: bool


def executed(measured: MeasuredCall, noise: Noise | None) -> Executed | None:
    """None where NCCL's own choice was not measured, or has no log and fewer than two combinations were forced, or the
    emulated pick is none of them: there is nothing to tell apart then.
    """
    default, pick = measured.default, measured.pick
    if default is None:
        return None
    if default.logged is not None:
        agrees = default.logged.algo_proto == pick.algo_proto
        return Executed(default.label, default.logged, True, 0.0, is_clear=True, agrees=agrees)
    arms = measured.forced
    if not any(is_same(arm.combination, pick) for arm in arms) or len({arm.combination for arm in arms}) < 2:
        return None
    nearest = min(arms, key=lambda arm: abs(default.log_us - arm.log_us))
    lead = min(abs(default.log_us - arm.log_us) for arm in arms if arm.combination != nearest.combination)
    lead -= abs(default.log_us - nearest.log_us)
    return Executed(
        nearest.label,
        nearest.combination,
        False,
        default.time_us / nearest.time_us - 1,
        is_clear=noise is not None and lead > noise.between(default, nearest),
        agrees=is_same(nearest.combination, pick),
    )

"""Compares NCCL's pick with the best measured arm, by size, given the noise."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.records import json_form, to_json
from tuner.times.compare import ERROR, Verdict, compare
from tuner.times.measured.samples import Combination
from tuner.times.picks import JudgedPick, is_same, judge
from tuner.times.regret.arms import Arm, ArmCall, MeasuredArms, MeasuredCall
from tuner.times.statistics import Samples, student

_FEWEST = 3  # least degrees of freedom of repeats, and least number of third differences, for an estimate
_THIRD = 20.0  # variance of a third difference over that of a time: 1 + 9 + 9 + 1
_TO_DEVIATION = 1.4826  # from a median of absolute values to the deviation of a normal distribution
_EFFICIENCY = 0.37  # degrees of freedom per difference of a median of absolute values
# Least distance of sizes in a curve, as a logarithm; closer sizes do not form a curve over doubled sizes
_SMOOTH = 0.35


class NoiseSource(StrEnum):
    """Source of an estimate of the noise."""

    repeats = "repeats"
    sizes = "neighbouring sizes"
    stated = "stated"


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of one time: the standard ``error`` of its logarithm, with degrees of ``freedom``."""

    error: float
    freedom: float
    source: NoiseSource

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the logarithm of one time."""
        return student(self.freedom, 1 - ERROR) * self.error

    @property
    def percent(self) -> float:
        """Percentage by which a time may be off."""
        return 100 * float(np.expm1(self.half_width))


def compared(before: Arm, after: Arm, noise: Noise | None, comparisons: float = 1) -> Verdict:
    """Compares two arms: the factor by which ``after`` is faster than ``before``. Repeats are the units."""
    return compare(_samples(before, noise), _samples(after, noise), comparisons)


def _samples(arm: Arm, noise: Noise | None) -> Samples:
    units = len(arm.times_us)
    return Samples(arm.log_us, noise.error / units**0.5, noise.freedom, units) if noise else Samples(arm.log_us)


Group = tuple[object, ...]


def group_of(call: ArmCall) -> Group:
    """A key for the calls that share one estimate of noise: those of the same collective on the same communicator."""
    return call.collective, call.nodes, call.gpus_per_node


def of_arms(measured: MeasuredArms) -> dict[Group, Noise]:
    """The noise of each group (:func:`group_of`), without groups whose noise is unknown."""
    arms: dict[Group, list[tuple[ArmCall, Arm]]] = defaultdict(list)
    for one in measured.calls:
        arms[group_of(one.call)] += [(one.call, arm) for arm in one.arms]
    noise_of = {}
    for group, its in arms.items():
        repeats, stated = _of_repeats([arm for _, arm in its]), _stated(measured.noise_percent, its[0][0].nodes)
        known = [noise for noise in (repeats, stated) if noise is not None]
        if known:
            noise_of[group] = max(known, key=lambda noise: noise.half_width)
        elif (noise := _of_sizes(its)) is not None:
            noise_of[group] = noise
    return noise_of


def _of_repeats(arms: Sequence[Arm]) -> Noise | None:
    """Noise from the pooled variance of all repeated arms."""
    repeated = [np.log(arm.times_us) for arm in arms if len(arm.times_us) > 1]
    freedom = sum(len(log_us) - 1 for log_us in repeated)
    if freedom < _FEWEST:
        return None
    variance = sum(float(np.square(log_us - log_us.mean()).sum()) for log_us in repeated) / freedom
    return Noise(float(np.sqrt(variance)), freedom, NoiseSource.repeats)


def _of_sizes(arms: Sequence[tuple[ArmCall, Arm]]) -> Noise | None:
    differences = np.concatenate([np.empty(0), *map(_third_differences, _curves(arms))])
    if len(differences) < _FEWEST:
        return None
    error = _TO_DEVIATION * float(np.median(np.abs(differences))) / np.sqrt(_THIRD)
    return Noise(float(error), _EFFICIENCY * len(differences), NoiseSource.sizes)


def _curves(arms: Sequence[tuple[ArmCall, Arm]]) -> Iterator[list[tuple[float, float]]]:
    """Logarithms of size and time, one curve per arm and range of sizes in which NCCL runs the same combination."""

    def by(one: tuple[ArmCall, Arm]) -> tuple[str, str]:
        return str(one[0].curve), one[1].label

    for _, of_arm in groupby(sorted(arms, key=lambda one: (by(one), one[0].bytes)), key=by):
        for _, same in groupby(of_arm, key=lambda one: one[1].combination):
            yield [(float(np.log(call.bytes)), arm.log_us) for call, arm in same]


def _third_differences(curve: Sequence[tuple[float, float]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Third differences of the logarithms of times, over stretches whose sizes grow by the same factor."""
    log_bytes, log_us = np.array(curve).T
    steps = np.diff(log_bytes)
    even = np.abs(np.diff(steps)) < 1e-6
    which = even[:-1] & even[1:] & (steps[:-2] > _SMOOTH) if len(curve) > 3 else np.zeros(0, np.bool_)
    differences: np.ndarray[tuple[int], np.dtype[np.float64]] = np.diff(log_us, 3)[which]
    return differences


def _stated(percent: Mapping[str, float], nodes: int) -> Noise | None:
    known = [(int(least), value) for least, value in percent.items() if int(least) <= nodes]
    if not known:
        return None
    return Noise(float(np.log1p(max(known)[1] / 100)) / student(np.inf, 1 - ERROR), np.inf, NoiseSource.stated)


@dataclass(frozen=True, slots=True)
class Executed:
    """The combination that NCCL chose, as its log says, or else that of the forced arm whose time is nearest.

    ``label`` names the arm.

    ``difference`` is the time of NCCL's choice over the arm's time, minus 1. ``is_clear``: whether the combination was
    logged, or the times of all other combinations differ more, beyond the noise. ``agrees``: whether the combination is
    the emulated pick.
    """

    label: str
    combination: Combination = field(metadata=json_form(convert=str))
    logged: bool
    difference: float
    is_clear: bool
    agrees: bool


@dataclass(eq=False)
class RunEvidence:
    """The arms of a call, with runs as units, and the noise of one run (None if it is not known)."""

    measured: MeasuredCall
    noise: Noise | None

    @property
    def columns(self) -> tuple[Arm, ...]:
        """All arms, the default first."""
        return self.measured.arms

    @property
    def executed(self) -> Combination | None:
        """Combination that NCCL executed by its own choice; None if that is not clear."""
        return self.identified.combination if self.identified is not None and self.identified.is_clear else None

    def requested(self, arm: Arm) -> Combination | None:
        """Combination that an arm executed; None for NCCL's own choice."""
        return None if arm.is_default else arm.combination

    def level(self, arm: Arm) -> float:
        """Logarithm of the typical time in us."""
        return arm.log_us

    def gain(self, arm: Arm, over: Arm, comparisons: float = 1) -> Verdict:
        """Gain of an arm over another."""
        return compared(over, arm, self.noise, comparisons)

    @cached_property
    def identified(self) -> Executed | None:
        """The combination that NCCL chose by itself. None if NCCL's own choice was not measured. Without a log, the
        result is also None if fewer than two combinations were forced or none of them is the emulated pick, because
        times then cannot distinguish combinations.
        """
        default, arms, pick = self.measured.default, self.measured.forced, self.measured.pick
        if default is None:
            return None
        if default.logged is not None:
            agrees = default.logged.algo_proto == pick.algo_proto
            return Executed(default.label, default.logged, True, 0.0, is_clear=True, agrees=agrees)
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
            is_clear=lead > compared(default, nearest, self.noise).half_width,
            agrees=is_same(nearest.combination, pick),
        )


RunsPick = JudgedPick[ArmCall, Arm, RunEvidence]


def judged(measured: MeasuredCall, noise: Noise | None) -> RunsPick:
    """Judges NCCL's pick of one call, as identified or else as emulated, against all other arms."""
    evidence = RunEvidence(measured, noise)
    return judge(measured.call, evidence.executed or measured.pick, evidence, measured.pick)


def best_arm(one: RunsPick) -> Arm:
    """The fastest of all arms, including those of the pick."""
    return min(one.evidence.columns, key=one.evidence.level)


def sizes_record(sizes: Sequence[RunsPick]) -> list[dict[str, object]]:
    """The picks as JSON: ``pick`` is the emulated one, ``noise_percent`` is by how much one time may be off."""
    return [_size_record(one, best_arm(one) if one.others else None, one.evidence.noise) for one in sizes]


def _size_record(one: RunsPick, best: Arm | None, noise: Noise | None) -> dict[str, object]:
    return {
        **to_json(one.call),
        "pick": str(one.emulated_pick),
        "pick_us": one.pick_us,
        "best": best and str(best.combination),
        "best_us": best and best.time_us,
        **{name: getattr(one, name) for name in ("regret", "low", "high", "verdict", "why")},
        "noise_percent": noise and noise.percent,
        "noise_source": noise.source if noise else "",
        "executed": one.evidence.identified,
        "arms": one.evidence.columns,
    }


@dataclass(frozen=True, slots=True)
class SplitGain:
    """A gain by splitting: ``parts`` calls of ``part_bytes`` take ``parts_us`` together, less than the single ``call``.

    ``gain`` is the time of the single call over ``parts_us``, minus 1; ``low`` is the lower end of its 95 % interval.
    ``pick`` and ``part_pick`` are NCCL's picks at both sizes, as emulated.
    """

    call: ArmCall = field(metadata=json_form(merged=True))
    part_bytes: int
    parts: int
    time_us: float
    parts_us: float
    gain: float
    low: float
    pick: Combination = field(metadata=json_form(convert=str))
    part_pick: Combination = field(metadata=json_form(convert=str))


def split_gains(calls: Sequence[MeasuredCall], noises: Mapping[Group, Noise]) -> list[SplitGain]:
    """Gains by splitting a call into several smaller calls, all run by NCCL's own choice.

    Neighbouring measured sizes are compared if the larger is a multiple of the smaller.
    """
    curves: dict[tuple[object, ...], list[tuple[MeasuredCall, Arm]]] = defaultdict(list)
    for one in calls:
        if one.default is not None and group_of(one.call) in noises:
            curves[one.call.curve].append((one, one.default))
    return [each for curve in curves.values() for each in _of_curve(curve, noises[group_of(curve[0][0].call)])]


def _of_curve(curve: Sequence[tuple[MeasuredCall, Arm]], noise: Noise) -> Iterator[SplitGain]:
    pairs = list(pairwise(curve))
    for (small, part), (large, whole) in pairs:
        call: ArmCall = large.call
        parts, rest = divmod(call.bytes, small.call.bytes)
        in_parts = replace(_samples(part, noise), log_us=part.log_us + float(np.log(parts)))
        found = compare(_samples(whole, noise), in_parts, len(pairs))
        if rest or not found.is_beyond(len(pairs)):
            continue
        yield SplitGain(
            call,
            small.call.bytes,
            parts,
            whole.time_us,
            parts * part.time_us,
            found.gain,
            found.interval[0],
            large.pick.plain,
            small.pick.plain,
        )

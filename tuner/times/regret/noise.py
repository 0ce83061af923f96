"""How far two times of the same call may be apart by chance, from what was measured itself or what its source says.

The scatter of repeats and what the source of a table says, the larger of both. Where neither is known, how rough curves
over sizes are: third differences of the logarithms, in which smooth bends all but cancel.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import numpy as np

from tuner.times.regret.records import Arm, Call, MeasuredArms

LEVEL = 0.05
_FEWEST = 3  # degrees of freedom of repeats, and third differences, for an estimate
_THIRD = 20.0  # variance of a third difference over that of a time: 1 + 9 + 9 + 1
_TO_DEVIATION = 1.4826  # from a median of absolute values, of a normal distribution
_EFFICIENCY = 0.37  # of a median of absolute values: degrees of freedom, of each difference
_SMOOTH = 0.35  # least distance of sizes in a curve, logarithm: what lies closer is no curve over doubled sizes


class NoiseSource(StrEnum):
    """What an estimate is from."""

    repeats = "repeats"
    sizes = "neighbouring sizes"
    stated = "stated"


@dataclass(frozen=True, slots=True)
class Noise:
    """``half_width``: of the 95 % interval of the logarithm of one time."""

    half_width: float
    source: NoiseSource

    @property
    def percent(self) -> float:
        """By how much a time may be off, in per cent."""
        return 100 * float(np.expm1(self.half_width))

    def between(self, one: Arm, other: Arm, comparisons: int = 1) -> float:
        """By how much the logarithms of two times may differ by chance, at 5 % for all ``comparisons`` together."""
        wider = _quantile(1 - LEVEL / 2 / max(comparisons, 1)) / _quantile(1 - LEVEL / 2)
        return self.half_width * wider * float(np.sqrt(1 / len(one.times_us) + 1 / len(other.times_us)))


Group = tuple[object, ...]


def group_of(call: Call) -> Group:
    """Calls of one noise: of one collective on one communicator."""
    return call.collective, call.nodes, call.gpus_per_node


def of_arms(measured: MeasuredArms) -> dict[Group, Noise]:
    """By :func:`group_of`; without those of which nothing is known."""
    arms: dict[Group, list[tuple[Call, Arm]]] = defaultdict(list)
    for one in measured.calls:
        arms[group_of(one.call)] += [(one.call, arm) for arm in one.arms]
    noise_of = {}
    for group, its in arms.items():
        nodes = its[0][0].nodes
        known = [
            Noise(half, source)
            for source, half in (
                (NoiseSource.repeats, _of_repeats([arm for _, arm in its])),
                (NoiseSource.stated, _stated(measured.noise_percent, nodes)),
            )
            if half is not None
        ]
        if known:
            noise_of[group] = max(known, key=lambda noise: noise.half_width)
        elif (half := _of_sizes(its)) is not None:
            noise_of[group] = Noise(half, NoiseSource.sizes)
    return noise_of


def _of_repeats(arms: Sequence[Arm]) -> float | None:
    """Student's, of the pooled variance of all arms that were repeated."""
    from scipy.special import stdtrit  # slow to load

    repeated = [np.log(arm.times_us) for arm in arms if len(arm.times_us) > 1]
    freedom = sum(len(log_us) - 1 for log_us in repeated)
    if freedom < _FEWEST:
        return None
    variance = sum(float(np.square(log_us - log_us.mean()).sum()) for log_us in repeated) / freedom
    return float(stdtrit(freedom, 1 - LEVEL / 2) * np.sqrt(variance))


def _of_sizes(arms: Sequence[tuple[Call, Arm]]) -> float | None:
    from scipy.special import stdtrit  # slow to load

    differences = np.concatenate([np.empty(0), *map(_third_differences, _curves(arms))])
    if len(differences) < _FEWEST:
        return None
    deviation = _TO_DEVIATION * float(np.median(np.abs(differences))) / np.sqrt(_THIRD)
    return float(stdtrit(_EFFICIENCY * len(differences), 1 - LEVEL / 2) * deviation)


def _curves(arms: Sequence[tuple[Call, Arm]]) -> Iterator[list[tuple[float, float]]]:
    """Logarithms of size and time, of one arm as long as NCCL runs the same for it."""

    def by(one: tuple[Call, Arm]) -> tuple[str, str]:
        return str(one[0].curve), one[1].label

    for _, of_arm in groupby(sorted(arms, key=lambda one: (by(one), one[0].bytes)), key=by):
        for _, same in groupby(of_arm, key=lambda one: one[1].combination):
            yield [(float(np.log(call.bytes)), arm.log_us) for call, arm in same]


def _third_differences(curve: Sequence[tuple[float, float]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Of stretches whose sizes grow by the same factor."""
    log_bytes, log_us = np.array(curve).T
    steps = np.diff(log_bytes)
    even = np.abs(np.diff(steps)) < 1e-6
    which = even[:-1] & even[1:] & (steps[:-2] > _SMOOTH) if len(curve) > 3 else np.zeros(0, np.bool_)
    differences: np.ndarray[tuple[int], np.dtype[np.float64]] = np.diff(log_us, 3)[which]
    return differences


def _stated(percent: Mapping[str, float], nodes: int) -> float | None:
    known = [(int(least), value) for least, value in percent.items() if int(least) <= nodes]
    return float(np.log1p(max(known)[1] / 100)) if known else None


def _quantile(probability: float) -> float:
    from scipy.special import ndtri  # slow to load

    return float(ndtri(probability))

"""Measured curves against expected times: which sizes pass, which are too slow or too fast, which the host delays."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import groupby

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import CannotBeJudged
from tuner.base.sizes import human_bytes
from tuner.base.spelling import option
from tuner.emulator.request import Request
from tuner.times.acceptance.curves import ConfiguredShape, Curve, CurveKind
from tuner.times.acceptance.expected import OTHER_LINKS, Expectation, Expected, Whose
from tuner.times.calibration import plausible
from tuner.times.costmodels.operations import bus_factor, bus_gbs
from tuner.times.measured import Kind, Problem
from tuner.times.timemodel.features import Array

# The band: 90 % intervals of single times, joined with how far healthy machines of one kind differ, natural logarithm,
# and widened, so that 95 % of healthy machines pass with all sizes of a curve. benchmarks/accept.py prints how many do.
BETWEEN_MACHINES = 0.04
WIDENED = 1.2
IN_A_ROW = 3  # slow sizes that fail; two where one of them is the largest
HOST_BYTES = 2**20  # smaller calls take mostly what the host takes to start them
MOST_START_US = 60.0  # what no way of launching adds
FIRST_BYTES = 2**22  # where no size is below HOST_BYTES, those up to here show the start as well,
MOST_FIRST_US = 25.0  # but may be slow by more than it
LEAST_START_US = 1.0
WIDEST = 1.3  # a band whose end is further than this factor from what is expected judges nothing inside of it,
MOST = 2 / 3  # of a curve's sizes that have to be judged
FAR_OUT = 1.5  # and a time fails by it only this many half bands out


class Verdict(StrEnum):
    """Verdict on a size."""

    passed = "pass"
    faster = "faster than expected"
    host_bound = "host-bound"
    isolated = "slow alone"
    slow = "too slow"
    fast = "too fast"
    not_judged = "cannot be judged"

    @property
    def fails(self) -> bool:
        """Whether it fails the run."""
        return self in (Verdict.slow, Verdict.fast)


@dataclass(frozen=True, slots=True, eq=False)
class JudgedCurve:
    """A curve with its expected times and a verdict a size. ``low_us`` to ``high_us`` is the band, [size].

    ``start_us``: how much later than expected its calls start.
    """

    curve: Curve
    expected: Expected
    low_us: Array
    high_us: Array
    verdicts: tuple[Verdict, ...]
    start_us: float | None

    @property
    def judged(self) -> bool:
        """Whether its sizes say anything: the largest, and most of those from 1 MiB on, where there are such.

        Smaller ones are the host's.
        """
        large = self.curve.bytes >= HOST_BYTES
        counted = large if large.any() else np.ones(len(large), np.bool_)
        known = np.array([verdict is not Verdict.not_judged for verdict in self.verdicts])[counted]
        return bool(known[-1]) and float(known.mean()) >= MOST

    @property
    def busbw_gbs(self) -> Array:
        """Bus bandwidth in GB/s as measured, [size]."""
        return self._gbs(self.curve.time_us)

    @property
    def floor_gbs(self) -> Array:
        """The least bus bandwidth in GB/s that passes, [size]."""
        return self._gbs(self.high_us)

    @property
    def passes(self) -> bool:
        """Whether no size fails."""
        return not any(verdict.fails for verdict in self.verdicts)

    def left_open(self, which: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> "JudgedCurve":
        """Verdicts that leave the sizes of a mask open, [size]; what the links cannot do fails all the same."""
        verdicts = (
            Verdict.not_judged if open_ and verdict is not Verdict.fast else verdict
            for verdict, open_ in zip(self.verdicts, which.tolist(), strict=True)
        )
        return replace(self, verdicts=tuple(verdicts))

    def _gbs(self, time_us: Array) -> Array:
        kind = self.curve.kind
        return np.asarray(bus_gbs(kind.request.collective, self.curve.bytes, time_us, kind.shape.ranks))


def start_us(curve: Curve, expected: Expected) -> float | None:
    """Delay with which calls of a curve start, us, not below 0; None where no size shows it.

    It is the median over sizes below 1 MiB, where there are none over those up to 4 MiB. The start belongs to the way
    of launching and not to the fabric, so that it is no more than such ways differ by.
    """
    extra = curve.time_us - expected.time_us
    for below, most_us in ((HOST_BYTES, MOST_START_US), (FIRST_BYTES + 1, MOST_FIRST_US)):
        if (small := curve.bytes < below).any():
            typical = float(np.median(extra[small]))
            return min(max(typical, 0.0), most_us)
    return None


def band(expected: Expected) -> Array:
    """Half the band that passes, [size]: numbers, natural logarithms of times over the expected ones."""
    half: Array = WIDENED * np.hypot(expected.log_half, BETWEEN_MACHINES)
    return half


def judge(curve: Curve, expected: Expected, least_us: Array) -> JudgedCurve:
    """The verdicts of a curve. ``least_us`` is what the links alone take, [size].

    Sizes above the band are too slow where three are in a row, or the two largest are: one or two alone are noise, and
    so is one in the band between others.
    """
    start = start_us(curve, expected)
    allowed = start if start is not None and start > LEAST_START_US else 0.0
    half = band(expected)
    wide = half > np.log(WIDEST)
    width = np.exp(half)
    high_us = expected.time_us * np.where(wide, np.exp(FAR_OUT * half), width)
    excess = np.log(curve.time_us / (high_us + allowed))
    slow = _in_a_row((_smoothed(excess) > 0).tolist())
    verdicts = []
    for at, time_us in enumerate(curve.time_us.tolist()):
        verdict = Verdict.passed
        if time_us < least_us[at]:
            verdict = Verdict.fast
        elif wide[at] and (excess[at] <= 0 or curve.bytes[at] < HOST_BYTES):
            verdict = Verdict.not_judged
        elif time_us * width[at] < expected.time_us[at]:
            verdict = Verdict.faster
        elif excess[at] > 0:
            verdict = Verdict.slow if slow[at] else Verdict.isolated
        elif time_us > high_us[at] and curve.bytes[at] <= FIRST_BYTES:
            verdict = Verdict.host_bound
        verdicts.append(verdict)
    return JudgedCurve(curve, expected, expected.time_us / width, high_us + allowed, tuple(verdicts), start)


def _smoothed(values: Array) -> Array:
    """The median of each value and its two neighbours; those at the ends as they are."""
    smoothed = values.copy()
    if len(values) > 2:
        smoothed[1:-1] = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    return smoothed


def _in_a_row(above: Sequence[bool]) -> list[bool]:
    """Mask of the sizes above the band that have enough others beside them."""
    kept: list[bool] = []
    for is_above, group in groupby(above):
        length = len(list(group))
        at_the_end = length > 1 and len(kept) + length == len(above)
        kept += [is_above and (length >= IN_A_ROW or at_the_end or length == len(above))] * length
    return kept


def problems(judged: Sequence[JudgedCurve]) -> Iterator[tuple[JudgedCurve, Problem]]:
    """Each curve whose times are all off by one factor, with what it may be."""
    for each in judged:
        curve, request = each.curve, each.curve.kind.request
        factor = plausible.common_factor(curve.time_us / each.expected.time_us, curve.bytes.astype(float))
        if factor is not None:
            bus = float(bus_factor(request.collective, curve.kind.shape.ranks))
            text = (
                f"{request.title}: all sizes from {human_bytes(int(curve.bytes[0]))} to "
                f"{human_bytes(int(curve.bytes[-1]))} take {factor:.3g} times what is expected, the smallest as the "
                f"largest, which no fault does; {plausible.likely(factor, bus)}"
            )
            yield each, Problem(Kind.scaled, tuple(line for lines in curve.lines for line in lines), text)


@dataclass(frozen=True, slots=True)
class Floor:
    """The floor of a size: expected time and bus bandwidth, and the longest time and least bandwidth that pass.

    Up to 4 MiB the time allows for the way of launching. ``measured``: whether the calibration has measured times of
    the pick's algorithm and protocol for this collective.
    """

    collective: str
    dtype: str
    nodes: int
    gpus_per_node: int
    bytes: int
    pick: str
    expected_us: float
    most_us: float
    expected_busbw_gbs: float
    floor_gbs: float
    time: Whose
    measured: bool


def floors(expectation: Expectation, requests: Sequence[Request], sizes: Sequence[int]) -> Iterator[Floor]:
    """The floors of calls of ``sizes``, NCCL's nBytes, on the communicator of the expectation's scenario.

    CannotBeJudged where times were measured with other NVLinks alone.
    """
    scenario = expectation.scenario
    shape = ConfiguredShape(scenario.nodes, scenario.gpus())
    if expectation.has_other_links(shape):
        why = next(each for each in expectation.reasons if each.startswith(OTHER_LINKS))
        raise CannotBeJudged(f"{why}; valid: {option('calibration')} of a healthy machine of this kind")
    nbytes = np.array(sizes, np.uint64)
    for request in requests:
        expected = expectation.times(CurveKind(shape, request), nbytes)
        start_us = np.where(nbytes <= FIRST_BYTES, MOST_FIRST_US, 0.0)
        most_us = expected.time_us * np.exp(band(expected)) + start_us
        both = [bus_gbs(request.collective, nbytes, times, shape.ranks) for times in (expected.time_us, most_us)]
        for at, name in enumerate(expected.pick_names()):
            yield Floor(
                collective=request.collective.name,
                dtype=request.dtype.name,
                nodes=shape.nodes,
                gpus_per_node=shape.gpus_per_node,
                bytes=int(nbytes[at]),
                pick=name,
                expected_us=float(expected.time_us[at]),
                most_us=float(most_us[at]),
                expected_busbw_gbs=float(both[0][at]),
                floor_gbs=float(both[1][at]),
                time=expected.whose,
                measured=bool(expected.measured[at]),
            )

"""Compares curves with expected times, and says which sizes pass, which are too slow or too fast, and which the host
delays."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from statistics import median

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import CannotBeJudged
from tuner.base.findings import words
from tuner.base.numerics import SizeArray
from tuner.base.sizes import human_bytes
from tuner.base.spelling import option
from tuner.emulator.request import Request
from tuner.times.acceptance.curves import Curve, CurveKind, Exchange
from tuner.times.acceptance.expected import Expectation, Expected, Mask, Whose
from tuner.times.calibration import plausible
from tuner.times.costmodels.operations import bus_factor, bus_gbs
from tuner.times.measured import Kind, Problem
from tuner.times.placement import ConfiguredShape
from tuner.times.timemodel.features import Array

IN_A_ROW, WINDOW = 3, 4  # a run fails if this many of this many successive sizes are slow
HOST_BYTES = 2**20  # the time of a smaller call is mostly the time in which the host starts it
MOST_START_US = 60.0  # the most that ways of launching add below HOST_BYTES
FIRST_BYTES = 2**24  # up to this size calls may be late as well,
MOST_FIRST_US = 25.0  # but by no more than this
LEAST_START_US = 1.0
BANDWIDTH_BYTES = 2**28  # from this size on the links determine a call's time
# If a size was measured several times, one of the times may exceed a single one by this factor, up to this multiple of
# the expected time.
REPEATED, MOST_REPEATED = 4.0, 25.0
MOST = 1 / 2  # share of a curve's sizes that have to be judged
LATENCY_BYTES = 2**16  # below this size, a run fails only if more than half of the sizes are slow
# Multiples of the time that the links alone need, which no healthy public run comes near, whatever NCCL picks: in a
# node, runs take at most 15 times as long from 4 MiB on; AllToAll and SendRecv between nodes take at most 33 times as
# long.
BEYOND_LINKS, BEYOND_BYTES = 50.0, 2**22


class SizeVerdict(StrEnum):
    """The verdict on one size."""

    passed = "pass"
    faster = "faster than expected"
    host_bound = "host-bound"
    isolated = "slow alone"
    slow = "too slow"
    fast = "too fast"
    not_judged = "cannot be judged"

    @property
    def fails(self) -> bool:
        """Whether a size with this verdict fails the run."""
        return self in (SizeVerdict.slow, SizeVerdict.fast)


@dataclass(frozen=True, slots=True, eq=False)
class JudgedCurve:
    """A curve with its expected times and one verdict per size. Times from ``low_us`` to ``high_us`` (arrays [size])
    pass.

    ``start_us``: how much later than expected its calls start. ``links_us``: what the links alone take, us, [size].
    """

    curve: Curve
    expected: Expected
    low_us: Array
    high_us: Array
    verdicts: tuple[SizeVerdict, ...]
    start_us: float | None
    links_us: Array

    @property
    def known(self) -> Mask:
        """Which deciding sizes are judged, as a mask. An isolated slow size does not count as judged, because a slower
        row could otherwise make the verdict better.
        """
        known = np.array([each not in (SizeVerdict.not_judged, SizeVerdict.isolated) for each in self.verdicts])
        return np.asarray(known[decisive(self.curve.bytes)])

    @property
    def judged(self) -> bool:
        """Whether at least half of the deciding sizes are judged."""
        return float(self.known.mean()) >= MOST

    @property
    def busbw_gbs(self) -> Array:
        """Measured bus bandwidth in GB/s, one value per size."""
        return self._gbs(self.curve.time_us)

    @property
    def floor_gbs(self) -> Array:
        """The least bus bandwidth that passes in GB/s, one value per size."""
        return self._gbs(self.high_us)

    @property
    def beyond_links(self) -> Mask:
        """The sizes whose time exceeds what the links alone need by a larger factor than in any healthy run, as a mask
        [size]."""
        return _beyond_links(self.curve, self.links_us)

    @property
    def passes(self) -> bool:
        """Whether no size fails."""
        return not any(verdict.fails for verdict in self.verdicts)

    def left_open(self, which: Mask) -> "JudgedCurve":
        """The curve in which the sizes of the mask are not judged; a time faster than the links allow still fails."""
        verdicts = (
            SizeVerdict.not_judged if open_ and verdict is not SizeVerdict.fast else verdict
            for verdict, open_ in zip(self.verdicts, which.tolist(), strict=True)
        )
        return replace(self, verdicts=tuple(verdicts))

    def _gbs(self, time_us: Array) -> Array:
        kind = self.curve.kind
        known = ~np.isnan(time_us)
        gbs = bus_gbs(kind.request.collective, self.curve.bytes, np.where(known, time_us, 1.0), kind.shape.ranks)
        return np.where(known, gbs, np.nan)


def start_us(curve: Curve, expected: Expected) -> float | None:
    """How much later than expected a curve's calls start, us, at least 0; None if no size shows it. No verdict uses it.

    The delay is the median over sizes below 1 MiB or, if there are no such sizes, over sizes up to 4 MiB. The result is
    limited to the most that a way of launching adds to calls, because the fabric does not cause such delays.
    """
    extra = curve.time_us - expected.time_us
    for below, most_us in ((HOST_BYTES, MOST_START_US), (2**22 + 1, MOST_FIRST_US)):
        small = (curve.bytes < below) & ~np.isnan(extra)
        if small.any():
            typical: float = median(extra[small].tolist())
            return min(max(typical, 0.0), most_us)
    return None


def start_allowed_us(sizes: SizeArray) -> Array:
    """How much launching may add to calls, us, one value per size. This allowance is the same in every run, so that no
    row excuses another.
    """
    return np.where(sizes < HOST_BYTES, MOST_START_US, np.where(sizes <= FIRST_BYTES, MOST_FIRST_US, 0.0))


def _beyond_links(curve: Curve, links_us: Array) -> Mask:
    kind = curve.kind
    if kind.shape.nodes > 1 and not isinstance(kind.request, Exchange):
        return np.zeros(len(curve.bytes), np.bool_)  # steps between many nodes take longer than the data on the links
    longest_us = BEYOND_LINKS * links_us + start_allowed_us(curve.bytes)
    return np.asarray((curve.bytes >= BEYOND_BYTES) & (links_us > 0) & (curve.time_us > longest_us))


def judge(curve: Curve, expected: Expected, least_us: Array) -> JudgedCurve:
    """Judges each size of a curve. ``least_us``: the time per size that the links alone need, us.

    Each size has three limits that do not depend on the other sizes. A size above the first limit is slow. Three of
    four successive sizes that are above the second limit fail. A size above the third limit fails by itself, and so
    does one that takes 50 times what the links alone need, whatever is expected. The two largest fail if both are slow,
    and so do the slow sizes below 64 KiB if they are more than half. So a slower row never makes a verdict better, nor
    does leaving out a row that is not slow.
    """
    allowed = start_allowed_us(curve.bytes)
    high_us = expected.time_us * expected.high + allowed
    known = ~np.isnan(expected.time_us)
    with np.errstate(invalid="ignore"):
        slow = known & (curve.time_us > high_us)
        in_a_row = slow & (curve.time_us > expected.time_us * expected.row + allowed)
        alone = known & (curve.time_us > expected.time_us * expected.far + allowed)
        repeated = np.minimum(REPEATED * expected.far, MOST_REPEATED)
        alone |= known & (curve.worst_us > expected.time_us * np.maximum(repeated, expected.far) + allowed)
    with np.errstate(invalid="ignore"):
        by_runs = np.zeros(len(known), np.bool_) if expected.runs is None else expected.runs > 0
        late = np.where(by_runs, 0.0, allowed)
        unsure = decisive(curve.bytes) & (curve.time_us > expected.time_us * expected.sure + late)
    fails = alone | _together(curve.bytes, slow, known, in_a_row) | _beyond_links(curve, least_us)
    verdicts = []
    for at, time_us in enumerate(curve.time_us.tolist()):
        verdict = SizeVerdict.passed
        if time_us < least_us[at]:
            verdict = SizeVerdict.fast
        elif fails[at]:
            verdict = SizeVerdict.slow
        elif not known[at] or ((expected.open[at] or unsure[at]) and not slow[at]):
            verdict = SizeVerdict.not_judged
        elif slow[at]:
            verdict = SizeVerdict.isolated
        elif time_us * expected.high[at] < expected.time_us[at]:
            verdict = SizeVerdict.faster
        elif time_us > expected.time_us[at] * expected.high[at]:
            verdict = SizeVerdict.host_bound
        verdicts.append(verdict)
    start = start_us(curve, expected)
    return JudgedCurve(curve, expected, expected.time_us / expected.high, high_us, tuple(verdicts), start, least_us)


def decisive(sizes: SizeArray) -> Mask:
    """The deciding sizes, as a mask: those from 256 MiB on; if there are no such sizes, those from 1 MiB on; else all.

    Times of smaller sizes depend on the host.
    """
    for least in (BANDWIDTH_BYTES, HOST_BYTES):
        if (large := sizes >= least).any():
            return np.asarray(large)
    return np.ones(len(sizes), np.bool_)


def _together(sizes: SizeArray, slow: Mask, known: Mask, in_a_row: Mask) -> Mask:
    """The slow sizes that fail together, as a mask. ``in_a_row``: the sizes that are slow enough for the rule of three
    in four.
    """
    fails = np.zeros(len(sizes), np.bool_)
    at = np.flatnonzero(known)
    largest = at[-2:]
    if len(largest) and slow[largest].all() and (sizes[largest[-1]] >= HOST_BYTES or slow[at].all()):
        fails[largest] = True
    if len(at) and slow[at].all():
        fails[at] = True
    for first in range(len(at)):
        window = at[first : first + WINDOW]
        if in_a_row[window].sum() >= IN_A_ROW:
            fails[window] |= in_a_row[window]
    small = at[sizes[at] < LATENCY_BYTES]
    if len(small) and 2 * slow[small].sum() > len(small) and len(small) >= IN_A_ROW:
        fails[small] |= slow[small]
    return fails


def problems(judged: Sequence[JudgedCurve]) -> Iterator[tuple[JudgedCurve, Problem]]:
    """Yields each curve whose times are all off by one factor, with the likely mistake."""
    for each in judged:
        curve, request = each.curve, each.curve.kind.request
        factor = plausible.common_factor(curve.time_us / each.expected.time_us, curve.bytes.astype(float))
        if factor is not None and not _may_be_so(factor, each.expected):
            bus = float(bus_factor(request.collective, curve.kind.shape.ranks))
            text = (
                f"{request.title}: all sizes from {human_bytes(int(curve.bytes[0]))} to "
                f"{human_bytes(int(curve.bytes[-1]))} take {factor:.3g} times what is expected, the smallest as the "
                f"largest, which no fault does; {plausible.likely(factor, bus)}"
            )
            yield each, Problem(Kind.scaled, tuple(line for lines in curve.lines for line in lines), text)


def _may_be_so(factor: float, expected: Expected) -> bool:
    """Whether the expected times of most sizes are too uncertain for such a factor to mean anything."""
    within = expected.open & (max(factor, 1 / factor) <= expected.high)
    return float(within.mean()) > MOST


@dataclass(frozen=True, slots=True)
class Floor:
    """The limit that a result has to meet at one size: the longest time and the lowest bus bandwidth, with the expected
    values.

    Up to 4 MiB the longest time includes an allowance for the way of launching. ``measured``: whether the calibration
    has measured times of the pick's algorithm and protocol for this collective.
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
    """Yields the floors of calls of ``sizes`` (NCCL's nBytes) on the communicator of the expectation's scenario.

    CannotBeJudged if the only reference times were measured with another number of NVLinks.
    """
    scenario = expectation.scenario
    shape = ConfiguredShape(scenario.nodes, scenario.gpus())
    if expectation.has_other_links(shape):
        why = "" if expectation.other_links is None else words(expectation.other_links)
        raise CannotBeJudged(f"{why}: give {option('calibration')} of a healthy machine of this kind")
    nbytes = np.array(sizes, np.uint64)
    for request in requests:
        expected = expectation.times(CurveKind(shape, request), nbytes)
        most_us = expected.time_us * expected.high + np.where(nbytes <= FIRST_BYTES, MOST_FIRST_US, 0.0)
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
                time=expected.whose[at],
                measured=bool(expected.measured[at]),
            )

"""Calibrated times beside NCCL's own: which calibration answers for a scenario, and what it predicts for picks.

An answer names its calibration and what it extrapolates over, or says why there are no calibrated times. Calibrations
never change NCCL's picks.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.frames import Column, Framed, arrays_of
from tuner.base.names import ALGO_PROTOS, AlgoProto, Buffers
from tuner.base.nouns import Choice, TimeInterval
from tuner.base.numerics import SizeArray
from tuner.base.records import json_form
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.scenario import Scenario
from tuner.times.timemodel import features, predict
from tuner.times.timemodel.features import Array, Features
from tuner.times.timemodel.intervals import CarriedOver
from tuner.times.timemodel.predict import TimeModel
from tuner.times.timemodel.sites import SiteCall

DIGITS = 6  # of times in records; calibrations have five


@dataclass(frozen=True, slots=True)
class TimesWanted:
    """Which calibrated times are wanted: by ``calibration`` (name or file), or by the calibration that fits the
    machine.

    ``beside_nccl``: show calibrated times beside NCCL's own, and only NCCL's if no calibration fits; if False, a
    calibration is required.
    """

    beside_nccl: bool
    calibration: str | None = None


@dataclass(frozen=True, slots=True)
class NoCalibration:
    """Reason why an answer has no calibrated times."""

    reason: str


@dataclass(frozen=True, slots=True)
class CalibratedEstimate:
    """The calibrated time of a call. ``measured``: whether the call's algorithm and protocol were measured for its
    collective.

    ``widths`` says how much each extrapolation widens the interval. Its keys are the kind of extrapolation and the
    target (release, number of nodes and so on); its values are squares of half a width, in the time's logarithm.
    ``combination`` is the calibration's name with the ids of collective, algorithm and protocol; ``call`` encodes
    everything else that the time depends on. ``site_call`` is for calls between nodes: from it follows which part of
    the error two calls on the same site have in common.
    """

    time: TimeInterval = field(metadata=json_form(merged=True))
    measured: bool
    widths: Mapping[tuple[CarriedOver, object], float] = field(metadata=json_form(omitted=True), repr=False)
    combination: tuple[str, int, int] = field(metadata=json_form(omitted=True), repr=False)
    call: bytes = field(metadata=json_form(omitted=True), repr=False)
    site_call: SiteCall | None = field(metadata=json_form(omitted=True), repr=False)


@dataclass(frozen=True, slots=True)
class CalibrationUsed:
    """The calibration that answered, why it was chosen, and how its calls were launched. ``name`` is None if no
    calibration answers; ``reason`` then says why.

    ``carried_over`` lists the extrapolations that any of the calls need. ``not_measured`` lists combinations that were
    never measured for the collective, so that their times are extrapolated.
    """

    name: str | None
    reason: str
    launch: str | None = None
    carried_over: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()


Answering: TypeAlias = TimeModel | NoCalibration


def answering(
    wanted: TimesWanted, scenario: Scenario, selection: Selection, buffers: Buffers = Buffers.plain
) -> Answering:
    """The calibration that answers for the scenario's communicator, or the reason why no calibration does.

    BadInput if the calibration is unknown, or if none answers although one is required. BadCalibration if a file is not
    a calibration.
    """
    reason = _not_measured(selection, buffers)
    if reason is None and wanted.calibration is not None:
        return _model(scenario, selection, wanted.calibration)
    if reason is None:
        try:
            return _model(scenario, selection, None)
        except BadInput as error:
            reason = str(error)
    if not wanted.beside_nccl:
        raise BadInput(reason)
    return NoCalibration(reason)


def estimates(model: TimeModel, request: Request, picks: Picks) -> list[CalibratedEstimate]:
    """The calibrated times of the ``picks``, one per size."""
    by_place: dict[int, CalibratedEstimate] = {}
    for where, calls in features.by_combination(model.selection, request, picks):
        by_place |= zip(where.tolist(), _alike(model, request, calls, calls.algo_proto), strict=True)
    return [by_place[at] for at in range(len(picks.bytes))]


def _alike(model: TimeModel, request: Request, calls: Features, number: int) -> Iterator[CalibratedEstimate]:
    """Estimates of calls with one algorithm and protocol."""
    times = model.times(request, calls)
    between = model.selection.communicator.nodes > 1
    widths: dict[tuple[CarriedOver, object], Array]
    site_calls: list[SiteCall | None]
    if between:
        widths = {(kind, None): np.zeros(len(calls)) for kind in times.carried_over}
        widths[CarriedOver.sizes, None] = np.log(times.high_us / times.time_us) ** 2
        site_calls = [*model.calibration.process.calls(calls)]
    else:
        least = model.half_widths_of(calls, ()) ** 2
        widths = {
            (kind, _to(kind, model)): least
            if kind is CarriedOver.sizes
            else model.half_widths_of(calls, [kind]) ** 2 - least
            for kind in times.carried_over
        }
        site_calls = [None] * len(calls)
    # What NCCL believes of a call is no part of what it takes.
    names = [each.name for each in fields(calls) if not each.name.startswith("nccl_")]
    own = np.column_stack([calls.of_each(name).astype(np.float64) for name in names])
    combination = model.calibration.name, int(request.collective), number
    for at in range(len(calls)):
        yield CalibratedEstimate(
            TimeInterval(
                _rounded(times.time_us[at]), _rounded(times.low_us[at]), _rounded(times.high_us[at]), times.why(at)
            ),
            bool(times.measured[at]),
            {kind: float(squares[at]) for kind, squares in widths.items()},
            combination,
            own[at].tobytes(),
            site_calls[at],
        )


def _to(kind: CarriedOver, model: TimeModel) -> object:
    """The target of an extrapolation, such as a release or machine; two calls with the same target share its error."""
    communicator = model.selection.communicator
    if kind is CarriedOver.release:
        return communicator.release.name
    if kind is CarriedOver.gpus:
        return communicator.local_ranks
    return model.reason if kind is CarriedOver.machine else None


def of_algo_proto(
    model: TimeModel, request: Request, sizes: Sequence[int], algo_proto: AlgoProto
) -> list[CalibratedEstimate]:
    """Estimates, one per size, of calls with a forced algorithm and protocol. ``sizes`` are NCCL's nBytes."""
    nbytes = np.array(sizes, np.uint64)
    channels, threads = model.selection.launched(request, nbytes, algo_proto)
    algorithm, protocol = (np.full(nbytes.shape, number, np.int8) for number in algo_proto)
    nccl_us = model.selection.combination_us(request, nbytes, algo_proto)
    return estimates(model, request, Picks(nbytes, algorithm, protocol, nccl_us, channels, threads))


def of_combinations(
    model: TimeModel, request: Request, sizes: Sequence[int], names: Iterable[str]
) -> dict[str, list[CalibratedEstimate]]:
    """Estimates of calls with each of several forced combinations, by the combination's name (``Ring/LL``)."""
    numbers = {f"{algorithm.name}/{protocol.name}": (algorithm, protocol) for algorithm, protocol in ALGO_PROTOS}
    return {name: of_algo_proto(model, request, sizes, numbers[name]) for name in names}


def of_launches(
    model: TimeModel, request: Request, sizes: Sequence[int], launches: Sequence[Choice], nccl_us: Sequence[float]
) -> list[CalibratedEstimate]:
    """The calibrated times of calls whose algorithm, protocol, channels and threads are given by ``launches``, one per
    size. ``sizes`` are NCCL's nBytes, ``nccl_us`` are NCCL's predictions.
    """
    if not launches:
        return []
    return estimates(
        model,
        request,
        Picks(
            np.array(sizes, np.uint64),
            np.array([each.algo_proto[0] for each in launches], np.int8),
            np.array([each.algo_proto[1] for each in launches], np.int8),
            np.array(nccl_us, np.float32),
            np.array([each.channels for each in launches]),
            np.array([each.threads for each in launches]),
        ),
    )


def used(answers: Answering, named_estimates: Iterable[tuple[str, CalibratedEstimate]] = ()) -> CalibrationUsed:
    """The calibration that answered, with the extrapolations that the estimates need. Each estimate is paired with the
    name of its combination, such as ``Ring/LL``.
    """
    if isinstance(answers, NoCalibration):
        return CalibrationUsed(None, answers.reason)
    several = list(named_estimates)
    return CalibrationUsed(
        answers.calibration.name,
        answers.reason,
        answers.calibration.launch,
        tuple(
            dict.fromkeys(
                kind.value for _, each in several for kind, _ in each.widths if kind is not CarriedOver.combination
            )
        ),
        tuple(dict.fromkeys(name for name, each in several if not each.measured)),
    )


def merged(several: Sequence[CalibrationUsed]) -> CalibrationUsed:
    """Merges records of calls that the same calibration answers into one record with all their extrapolations. If no
    calibration answers, the result has the reason, which is the same for all calls.
    """
    carried = dict.fromkeys(kind for each in several for kind in each.carried_over)
    never = dict.fromkeys(name for each in several for name in each.not_measured)
    return replace(several[0], carried_over=tuple(carried), not_measured=tuple(never))


def together(times: Iterable[TimeInterval]) -> TimeInterval:
    """Time of the calls made one after the other. The calibration's error is the same for all calls, so the lower
    bounds are summed, and so are the upper bounds.
    """
    several = list(times)
    return TimeInterval(
        sum(each.time_us for each in several),
        sum(each.low_us for each in several),
        sum(each.high_us for each in several),
    )


def _model(scenario: Scenario, selection: Selection, calibration: str | None) -> TimeModel:
    """The time model of a scenario. If its hardware differs from the machine's, times are extrapolated as to another
    machine.
    """
    machine = None if scenario.others else scenario.site
    chosen = predict.choose(selection.communicator, machine, calibration)
    if scenario.hardware:
        changed = f" before {', '.join(f'{key}={value}' for key, value in scenario.hardware.items())}"
        chosen = replace(chosen, same_machine=False, adapters_gbs=0.0, reason=chosen.reason + changed)
    else:
        chosen = predict.with_instance_type(chosen, selection.communicator.nodes, machine)
    return TimeModel(chosen, selection)


def _not_measured(selection: Selection, buffers: Buffers) -> str | None:
    """Why there are no measured times of such calls on any machine; None if there are such times."""
    if buffers is not Buffers.plain:
        return f"no calibrated times of {buffers.name} buffers: only plain buffers were measured"
    if not selection.communicator.nodes_are_alike:
        return "no calibrated times for nodes that differ: none were measured"
    return None


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


@dataclass(frozen=True, slots=True)
class CalibratedRatio:
    """A calibrated time divided by another, with bounds. ``measured``: whether both combinations were measured for the
    collective.

    ``extrapolated`` says which side is extrapolated, and over what; empty if neither is.
    """

    ratio: float
    low: float
    high: float
    measured: bool
    extrapolated: str = ""

    @property
    def may_be_none(self) -> bool:
        """Whether the time may be unchanged: the ratio 1 lies between the bounds."""
        return self.low < 1 < self.high


@dataclass(frozen=True, slots=True)
class CalibratedDifference:
    """Time of the calls after a change minus the time before it, in us, and as a share of the time before."""

    difference_us: float
    difference_low_us: float
    difference_high_us: float
    difference: float
    difference_low: float
    difference_high: float


def ratio(before: CalibratedEstimate, after: CalibratedEstimate) -> CalibratedRatio:
    """The time after a change divided by the time before it, with bounds.

    Both times share a part of the calibration's error, but the size of this part is not known. So the ratio's interval
    is as wide as both intervals together, in logarithms, with three exceptions. If the call is the same on both sides,
    the ratio is exactly 1. If both sides run the same combination on one node, the error of an extrapolation to the
    same target (such as a machine that was not measured) cancels. The bounds then hold for 89 to 99 % of such pairs in
    public measurements of other machines (DGX H100 by B200's calibration, B200 by H100's). If both calls run between
    nodes of the same site, the covariance of the two calls' errors says how much of them cancels.
    """
    middle, low, high = (float(f"{value:.6g}") for value in _bounds(before, after))
    return CalibratedRatio(middle, low, high, before.measured and after.measured, _extrapolated(before, after))


def _extrapolated(before: CalibratedEstimate, after: CalibratedEstimate) -> str:
    old, new = before.time.extrapolated, after.time.extrapolated
    if old == new:
        return f"both: {old}" if old else ""
    return "; ".join(f"{side}: {over}" for side, over in (("before", old), ("after", new)) if over)


def difference(pairs: Iterable[tuple[CalibratedEstimate, CalibratedEstimate, float]]) -> CalibratedDifference:
    """Difference of the total time of calls made one after the other. Each element of ``pairs`` is the time of a call
    before the change, its time after it, and the number of such calls.
    """
    before_us = before_low_us = before_high_us = us = low_us = high_us = 0.0
    for before, after, calls in pairs:
        old = before.time.times(calls)
        middle, low, high = _bounds(before, after)
        # Where one takes least or most beside the other, it is the other that takes most or least.
        slowest_us, fastest_us = (old.high_us, old.low_us) if low < high else (old.time_us, old.time_us)
        before_us, before_high_us = before_us + old.time_us, before_high_us + slowest_us
        before_low_us += fastest_us
        us += (middle - 1) * old.time_us
        low_us += (low - 1) * slowest_us
        high_us += (high - 1) * fastest_us
    parts = [_share(us, before_us), _share(low_us, before_high_us), _share(high_us, before_low_us)]
    return CalibratedDifference(us, low_us, high_us, *parts)


def _bounds(before: CalibratedEstimate, after: CalibratedEstimate) -> tuple[float, float, float]:
    """The ratio with its lower and upper bound."""
    if _is_same_call(before, after):  # whatever NCCL believes of it
        return 1.0, 1.0, 1.0
    middle, width = after.time.time_us / before.time.time_us, _width(before, after)
    return middle, middle * math.exp(-width), middle * math.exp(width)


def _is_same_call(before: CalibratedEstimate, after: CalibratedEstimate) -> bool:
    return before.combination == after.combination and before.call == after.call


def _width(before: CalibratedEstimate, after: CalibratedEstimate) -> float:
    """Half the width of the interval, in the ratio's logarithm."""
    if _is_same_call(before, after):
        return 0.0
    if before.site_call is not None and after.site_call is not None:
        half = before.site_call.half_of_ratio(after.site_call)
        if half is not None:
            return half
    alike = before.combination == after.combination
    common: set[tuple[CarriedOver, object]] = set()
    if alike and before.site_call is None and after.site_call is None:
        common = {kind for kind in before.widths if kind in after.widths and kind[0] is not CarriedOver.sizes}
    return sum(
        math.sqrt(sum(square for kind, square in each.widths.items() if kind not in common)) for each in (before, after)
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CalibratedCalls(Framed):
    """Times of NCCL's picks by a calibration, one element per size, in us with 90 % intervals, float64.

    ``bytes`` are NCCL's nBytes, ``algorithm`` and ``protocol`` the picks, which no calibration changes. ``measured``:
    whether that combination was measured for the collective; if not, the time is an extrapolation. ``calibration``
    names the calibration that answered and says why it was chosen; ``launch`` is how its calls were launched, and
    ``carried_over`` lists the extrapolations.
    """

    bytes: SizeArray
    algorithm: NDArray[np.int8]
    protocol: NDArray[np.int8]
    time_us: Array
    low_us: Array
    high_us: Array
    measured: NDArray[np.bool_]
    calibration: str
    launch: str
    carried_over: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.bytes)} sizes by {self.calibration}>"

    def columns(self) -> dict[str, Column]:
        """One row per size: bytes, algorithm, protocol, time_us, low_us, high_us, measured."""
        return arrays_of(self, "bytes", "algorithm", "protocol", "time_us", "low_us", "high_us", "measured")


def calls(
    scenario: Scenario, selection: Selection, request: Request, sizes: ArrayLike, calibration: str | None
) -> CalibratedCalls:
    """Times of the picks of ``sizes``, by the calibration with this name or file, or by the one that fits the machine.

    NoAlgorithm if nothing can run, BadInput if no calibration answers, BadCalibration if a file is not a calibration.
    """
    model = answering(TimesWanted(False, calibration), scenario, selection, request.buffers)
    assert isinstance(model, TimeModel)  # as NCCL's own are not wanted beside
    picks = selection.pick(request, sizes)
    times = model.of_picks(request, picks)
    return CalibratedCalls(
        picks.bytes,
        picks.algorithm,
        picks.protocol,
        times.time_us,
        times.low_us,
        times.high_us,
        times.measured,
        model.reason,
        model.calibration.launch,
        tuple(kind.value for kind in times.carried_over),
    )

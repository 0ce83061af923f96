"""Calibrated times beside NCCL's own: which calibration answers for a scenario, and what it says of picks.

Whoever shows them says which calibration they are of, what was carried over, and where there are none why not. Picks
are NCCL's in any case.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeAlias

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.names import ALGO_PROTOS, AlgoProto, Algorithm, Buffers, Protocol
from tuner.base.records import json_form
from tuner.emulator.pick import Pick
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
    """Calibrated times are wanted: of one ``calibration`` by name or file, or of the one that fits the machine.

    ``beside_nccl``: beside NCCL's own, which stand alone where no calibration fits; else they have to be there.
    """

    beside_nccl: bool
    calibration: str | None = None


@dataclass(frozen=True, slots=True)
class NoCalibration:
    """Why an answer has no calibrated times."""

    reason: str


@dataclass(frozen=True, slots=True)
class CalibratedTime:
    """A calibrated time of a call or of several, in us, with its 90 % interval.

    ``extrapolated``: over what, in words; empty where it is inside of what was measured.
    """

    time_us: float
    low_us: float
    high_us: float
    extrapolated: str = ""

    def times(self, calls: float) -> "CalibratedTime":
        """Of so many calls, one after the other: errors are common to them, so the bounds grow alike."""
        return CalibratedTime(self.time_us * calls, self.low_us * calls, self.high_us * calls, self.extrapolated)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The calibrated time of a call. ``measured``: whether its combination was measured for its collective.

    ``widths`` are what its interval is made of: squares of half the interval around the time's logarithm, by what is
    carried over and to which release, number of nodes and so on. ``combination`` is the calibration's name with the
    numbers of collective, algorithm and protocol; ``call`` are the bytes of all else that its time depends on.
    ``site_call``, between nodes, is what it has in common with other calls of the site.
    """

    time: CalibratedTime = field(metadata=json_form(merged=True))
    measured: bool
    widths: Mapping[tuple[CarriedOver, object], float] = field(metadata=json_form(omitted=True), repr=False)
    combination: tuple[str, int, int] = field(metadata=json_form(omitted=True), repr=False)
    call: bytes = field(metadata=json_form(omitted=True), repr=False)
    site_call: SiteCall | None = field(metadata=json_form(omitted=True), repr=False)


@dataclass(frozen=True, slots=True)
class CalibrationUsed:
    """Which calibration answered and why that one, and how its calls were launched; without a name: why none did.

    ``carried_over`` is what measured times were carried over to for any of the calls, besides ``not_measured``, the
    combinations among them that were never measured for the collective, so that their times are extrapolated.
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
    """What answers for the scenario's communicator.

    Errors: BadInput where nothing does and NCCL's times are not wanted beside, or for an unknown calibration;
    BadCalibration for a file that is none.
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


def estimates(model: TimeModel, request: Request, picks: Picks) -> list[Estimate]:
    """Of what is launched for each size, [size]."""
    calls = features.of_picks(model.selection, request, picks)
    by_place: dict[int, Estimate] = {}
    for number in np.unique(calls.algo_proto).tolist():
        where = np.flatnonzero(calls.algo_proto == number)
        by_place |= zip(where.tolist(), _alike(model, request, calls[where], number), strict=True)
    return [by_place[at] for at in range(len(calls))]


def _alike(model: TimeModel, request: Request, calls: Features, number: int) -> Iterator[Estimate]:
    """Of calls with one algorithm and protocol."""
    times = model.times(request, calls)
    between = model.selection.communicator.nodes > 1
    widths: dict[tuple[CarriedOver, object], Array]
    site_calls: list[SiteCall | None]
    if between:
        widths = {(kind, None): np.zeros(len(calls)) for kind in times.carried_over}
        widths[CarriedOver.sizes, None] = np.log(times.high_us / times.time_us) ** 2
        site_calls = [*model.calibration.process.calls(calls, dict(model.calibration.parameters))]
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
    own = np.column_stack([getattr(calls, name).astype(np.float64) for name in names])
    combination = model.calibration.name, int(request.collective), number
    for at in range(len(calls)):
        yield Estimate(
            CalibratedTime(
                _rounded(times.time_us[at]), _rounded(times.low_us[at]), _rounded(times.high_us[at]), times.why(at)
            ),
            bool(times.measured[at]),
            {kind: float(squares[at]) for kind, squares in widths.items()},
            combination,
            own[at].tobytes(),
            site_calls[at],
        )


def _to(kind: CarriedOver, model: TimeModel) -> object:
    """What it is carried over to: errors of two calls are one where that is the same."""
    communicator = model.selection.communicator
    if kind is CarriedOver.release:
        return communicator.release.name
    if kind is CarriedOver.gpus:
        return communicator.local_ranks
    return model.reason if kind is CarriedOver.machine else None


def of_algo_proto(model: TimeModel, request: Request, sizes: Sequence[int], algo_proto: AlgoProto) -> list[Estimate]:
    """Of calls that an algorithm and protocol are forced on, [size]. ``sizes`` are NCCL's nBytes."""
    nbytes = np.array(sizes, np.uint64)
    channels, threads = model.selection.launched(request, nbytes, algo_proto)
    algorithm, protocol = (np.full(nbytes.shape, number, np.int8) for number in algo_proto)
    nccl_us = model.selection.combination_us(request, nbytes, algo_proto)
    return estimates(model, request, Picks(nbytes, algorithm, protocol, nccl_us, channels, threads))


def of_combinations(
    model: TimeModel, request: Request, sizes: Sequence[int], names: Iterable[str]
) -> dict[str, list[Estimate]]:
    """The same of several by name, ``Ring/LL``."""
    numbers = {f"{algorithm.name}/{protocol.name}": (algorithm, protocol) for algorithm, protocol in ALGO_PROTOS}
    return {name: of_algo_proto(model, request, sizes, numbers[name]) for name in names}


def of_launches(model: TimeModel, request: Request, sizes: Sequence[int], launches: Sequence[Pick]) -> list[Estimate]:
    """Of calls with these algorithms, protocols, channels and threads, [size]. ``sizes`` are NCCL's nBytes."""
    if not launches:
        return []
    return estimates(
        model,
        request,
        Picks(
            np.array(sizes, np.uint64),
            np.array([Algorithm[each.algorithm] for each in launches], np.int8),
            np.array([Protocol[each.protocol] for each in launches], np.int8),
            np.array([each.time_us for each in launches], np.float32),
            np.array([each.channels for each in launches]),
            np.array([each.threads for each in launches]),
        ),
    )


def used(answers: Answering, named_estimates: Iterable[tuple[str, Estimate]] = ()) -> CalibrationUsed:
    """Which calibration answered, with what the estimates carry over, each with the name of its combination."""
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
    """Several answers of one calibration as one, or of the one reason why there is none."""
    carried = dict.fromkeys(kind for each in several for kind in each.carried_over)
    never = dict.fromkeys(name for each in several for name in each.not_measured)
    return replace(several[0], carried_over=tuple(carried), not_measured=tuple(never))


def together(times: Iterable[CalibratedTime]) -> CalibratedTime:
    """One after the other. What a calibration is wrong by it is wrong by in all calls, so bounds are added."""
    several = list(times)
    return CalibratedTime(
        sum(each.time_us for each in several),
        sum(each.low_us for each in several),
        sum(each.high_us for each in several),
    )


def _model(scenario: Scenario, selection: Selection, calibration: str | None) -> TimeModel:
    """With other hardware than the machine's own, what was measured of it is carried over as to another machine."""
    machine = None if scenario.others else scenario.site
    chosen = predict.choose(selection.communicator, machine, calibration)
    changed = f" before {', '.join(f'{key}={value}' for key, value in (scenario.hardware or {}).items())}"
    return TimeModel(
        chosen.calibration,
        selection,
        same_machine=chosen.same_machine and not scenario.hardware,
        reason=chosen.reason + (changed if scenario.hardware else ""),
    )


def _not_measured(selection: Selection, buffers: Buffers) -> str | None:
    """What was measured of no machine."""
    if buffers is not Buffers.plain:
        return f"no calibrated times of {buffers.name} buffers: plain ones only were measured"
    if not selection.communicator.nodes_are_alike:
        return "no calibrated times where nodes differ: none were measured"
    return None


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")

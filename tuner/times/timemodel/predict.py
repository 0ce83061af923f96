"""Calibrated times: which calibration answers for a communicator, and what it says of calls."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner import release
from tuner.base.errors import BadInput
from tuner.base.frames import Column, Framed
from tuner.base.names import AlgoProto, Algorithm
from tuner.base.numerics import SizeArray
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.machine import catalogue
from tuner.times.timemodel import calibration as calibrations
from tuner.times.timemodel import features, point_to_point
from tuner.times.timemodel.calibration import Calibration
from tuner.times.timemodel.features import Array, Features
from tuner.times.timemodel.form import Form
from tuner.times.timemodel.intervals import BELIEVED_SCATTER, CarriedOver, Place, Regime
from tuner.times.timemodel.point_to_point import Exchanges

# What the paths of a ring within a node are where GPUs talk over NVLink. Others have no calibration.
NVLINK = ("NVL", "NVB")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CalibratedTimes(Framed):
    """Times of calls in us with 90 % intervals, an element a call; measured data are behind them, not NCCL's model.

    ``measured``: whether the call's algorithm and protocol were measured for its collective; where not, the interval is
    wide and the time is an extrapolation. ``carried_over``: what was carried over, of all calls together.
    """

    time_us: Array
    low_us: Array
    high_us: Array
    measured: NDArray[np.bool_]
    carried_over: tuple[CarriedOver, ...]

    def columns(self) -> dict[str, Column]:
        """A row a call."""
        return {
            "time_us": self.time_us,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "measured": self.measured,
        }


class TimeModel:
    """A calibration that answers for one communicator. ``reason``: why this one, in words for people."""

    def __init__(self, calibration: Calibration, selection: Selection, *, same_machine: bool, reason: str) -> None:
        self.calibration = calibration
        self.selection = selection
        self.reason = reason
        self.same_machine = same_machine
        self._form = Form(calibration.parameters)
        self._certainty = calibration.certainty(same_machine=same_machine)

    def of_picks(self, request: Request, picks: Picks) -> CalibratedTimes:
        """Of the calls that NCCL picks for, [size]."""
        shape = len(picks.bytes)
        time_us, low_us, high_us = np.empty((3, shape))
        measured = np.empty(shape, np.bool_)
        carried: dict[CarriedOver, None] = {}
        for where, calls in features.by_combination(self.selection, request, picks):
            part = self.times(request, calls)
            time_us[where], low_us[where], high_us[where] = part.time_us, part.low_us, part.high_us
            measured[where] = part.measured
            carried.update(dict.fromkeys(part.carried_over))
        return CalibratedTimes(time_us, low_us, high_us, measured, tuple(carried))

    def of_algo_proto(self, request: Request, sizes: ArrayLike, algo_proto: AlgoProto) -> CalibratedTimes:
        """Of calls that an algorithm and protocol are forced on. ``sizes`` are NCCL's nBytes, [size]."""
        nbytes: SizeArray = np.atleast_1d(np.asarray(sizes)).astype(np.uint64)
        return self.times(request, features.of_algo_proto(self.selection, request, nbytes, algo_proto))

    def of_candidates(self, request: Request, sizes: ArrayLike) -> dict[AlgoProto, CalibratedTimes]:
        """Of each algorithm and protocol that the call may use, in NCCL's order."""
        candidates: Sequence[AlgoProto] = self.selection.candidates(request)
        return {each: self.of_algo_proto(request, sizes, each) for each in candidates}

    def times(self, request: Request, calls: Features) -> CalibratedTimes:
        """Of calls of one kind on this communicator. BadInput for registered buffers, which were not measured."""
        if request.buffers:
            raise BadInput(f"calibrated times: plain buffers only were measured, not {request.buffers.name} ones")
        log_us = np.log(self._form.times_us(calls)) + self.calibration.surface.log_factors(calls)
        half, measured = np.empty(len(calls)), np.zeros(len(calls), np.bool_)
        carried: dict[CarriedOver, None] = {}
        combinations = calls.algo_proto
        for number in np.unique(combinations).tolist():
            place, where = self._place(request, number), combinations == number
            half[where] = self._certainty.half_widths(calls if where.all() else calls[where], place)
            measured[where] = self.calibration.has_measured(request.collective, number)
            carried.update(dict.fromkeys(self._certainty.carried_over(place)))
        times = np.exp(log_us), np.exp(log_us - half), np.exp(log_us + half)
        return CalibratedTimes(*times, measured, tuple(carried))

    def half_widths_of(self, calls: Features, carried: Iterable[CarriedOver]) -> Array:
        """Half the interval around the logarithm of each call, [call], where just that is carried over beside sizes."""
        return self._certainty.half_widths_of(calls, carried)

    def all_to_all(self, sizes: ArrayLike) -> CalibratedTimes:
        """Of AllToAll, whose ranks send ``sizes`` bytes in all, [size]. BadInput where no such call was measured."""
        nbytes: SizeArray = np.atleast_1d(np.asarray(sizes)).astype(np.uint64)
        communicator = self.selection.communicator
        return self.exchanges(point_to_point.of_communicator(communicator, nbytes))

    def exchanges(self, calls: Exchanges) -> CalibratedTimes:
        """The same of calls on communicators of this kind. BadInput where no such call was measured."""
        return exchange_times(self.calibration, calls, same_machine=self.same_machine)

    def _place(self, request: Request, algo_proto: int) -> Place:
        communicator = self.selection.communicator
        name, local, nodes = communicator.release.name, communicator.local_ranks, communicator.nodes
        return Place(name, request.collective, algo_proto, local, nodes)


def exchange_times(calibration: Calibration, calls: Exchanges, *, same_machine: bool) -> CalibratedTimes:
    """Times of AllToAll by a calibration. BadInput where it has none of such calls."""
    exchange = calibration.exchange
    if exchange is None:
        raise BadInput(f"no measured times of AllToAll in the calibration {calibration.name}")
    factors, kinds = exchange.factors, [CarriedOver.sizes]
    several = any(nodes > 1 for nodes, _ in exchange.scope)
    measured = (calls.nodes == 1) | several
    known = np.array([pair in exchange.scope for pair in zip(calls.nodes, calls.ranks / calls.nodes, strict=True)])
    square = factors[CarriedOver.sizes] ** 2 + np.where(known, 0.0, factors[CarriedOver.gpus]) ** 2
    if not same_machine:
        square += factors[CarriedOver.machine] ** 2
        kinds.append(CarriedOver.machine)
    # What several nodes add is not in units of the scatter: nothing like it was measured.
    first_nodes = calibration.factors[CarriedOver.first_nodes] * BELIEVED_SCATTER[Regime.network_simple]
    half = np.hypot(exchange.scatter * np.sqrt(square), np.where(measured, 0.0, first_nodes))
    if not measured.all():
        kinds.append(CarriedOver.first_nodes)
    time_us = point_to_point.times_us(exchange.parameters, calls)
    return CalibratedTimes(time_us, time_us * np.exp(-half), time_us * np.exp(half), measured, tuple(kinds))


@dataclass(frozen=True, slots=True)
class Choice:
    """A calibration, whether it is the machine's own, and why this one in words for people."""

    calibration: Calibration
    same_machine: bool
    reason: str


def of_communicator(selection: Selection, machine: str | None, calibration: str | None = None) -> TimeModel:
    """The model for a communicator of ``machine``: that of a ``calibration`` by name or file, or the one that fits.

    Errors: those of :func:`choose`.
    """
    chosen = choose(selection.communicator, machine, calibration)
    return TimeModel(chosen.calibration, selection, same_machine=chosen.same_machine, reason=chosen.reason)


def choose(communicator: Communicator, machine: str | None, calibration: str | None = None) -> Choice:
    """The calibration by name or file; without, the machine's own, else that of another with such GPUs.

    ``machine``: its name in the catalogue, or that of a topology (:func:`tuner.machine.skeleton.name_of`).
    Errors: BadInput where there is none, or where GPUs of a node are not joined by NVLink, or a host is several nodes;
    BadCalibration for a file that is none.
    """
    if communicator.shares_gpus:
        raise BadInput("no calibrated times where ranks share a GPU: none were measured; valid: one rank per GPU")
    if calibration is not None:
        named = calibrations.load(calibration)
        return Choice(named, named.machine == machine, f"{named.name}, as asked for")
    if communicator.splits_hosts:
        raise BadInput(
            "no calibrated times where NCCL takes a host for several nodes: none were measured; valid: `calibration` "
            "with a file fitted to this machine"
        )
    _check_nvlink(communicator)
    gpu = catalogue.load(machine).gpu if machine in catalogue.names() else ""
    # By the newest release: an older one takes GPUs that it does not know for those of the generation before.
    generation = release.load(release.names()[-1]).generation(communicator.min_comp_cap)
    alike = [each for each in map(calibrations.load, calibrations.names()) if each.generation == generation]
    if not alike:
        raise BadInput(
            f"no calibration for {generation.capitalize()} GPUs; valid: `calibration` with a file of one's own"
        )

    def distance(each: Calibration) -> tuple[bool, bool, bool, bool, int]:
        several = communicator.nodes > 1 and not any(place.nodes > 1 for place in each.scope)
        gpus = communicator.max_local_ranks not in {place.gpus_per_node for place in each.scope}
        rows = sum(file.rows for file in each.measured)
        # Networks differ by site: another machine of as many GPUs and a believed network comes before another network.
        return each.machine != machine, gpus, each.gpu != gpu, several, -rows

    nearest = min(alike, key=distance)
    same = nearest.machine == machine
    reason = "this machine's own" if same else f"of another machine with {generation.capitalize()} GPUs"
    return Choice(nearest, same, f"{nearest.name}, {reason}")


def _check_nvlink(communicator: Communicator) -> None:
    path = communicator.graphs[Algorithm.Ring].type_intra
    if communicator.max_local_ranks > 1 and path not in NVLINK:
        raise BadInput(
            f"no calibrated times where GPUs of a node are joined by {path}: shipped ones were measured over NVLink; "
            "valid: `calibration` with a file fitted to this machine"
        )

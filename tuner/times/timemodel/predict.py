"""Calibrated times: selects the calibration for a communicator, and predicts the times of calls with it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.frames import Column, Framed, arrays_of
from tuner.base.names import ALGO_PROTOS, AlgoProto, Algorithm, Collective
from tuner.base.numerics import SizeArray, distinct
from tuner.base.spelling import option
from tuner.emulator.communicator import Comm
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.machine import catalogue
from tuner.times.timemodel import calibration as calibrations
from tuner.times.timemodel import features, point_to_point
from tuner.times.timemodel.calibration import Calibration
from tuner.times.timemodel.features import PROTOCOLS, Array, Features, FixedFeatures, Numbers, log, log2, most
from tuner.times.timemodel.intervals import COVERED_SDS, EXTRAPOLATED, CarriedOver, Place
from tuner.times.timemodel.point_to_point import Exchanges

# The path types of a ring within a node whose GPUs use NVLink. Other nodes have no calibration.
NVLINK = ("NVL", "NVB")
_NO_GPU = 10**9  # a compute capability that no GPU has, for generations that a release does not know
# Distance in minor releases from those of a site's rows from which NCCL chooses and launches so differently that times
# are extrapolated: rows of 2.23 are 2 to 7 times slower than 2.26 and later for 64 KiB to 1 MiB over Slingshot.
FAR_MINORS = 3
SITE_EXCHANGES_SD = 0.5  # for AllToAll between nodes at a site that nobody has measured


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CalibratedTimes(Framed):
    """Times of calls in us with 90 % intervals, one element per call; they rest on measured data, not on NCCL's model.

    ``measured``: whether the call's algorithm and protocol were measured for its collective; if not, the interval is
    wide. ``carried_over``: the kinds of extrapolation, for all calls together. ``extrapolations`` are texts that say
    how a call lies outside of what was measured; the first text is empty, for calls that lie within it.
    ``extrapolated`` has the index of each call's text, [call].
    """

    time_us: Array
    low_us: Array
    high_us: Array
    measured: NDArray[np.bool_]
    carried_over: tuple[CarriedOver, ...]
    extrapolated: NDArray[np.int64]
    extrapolations: tuple[str, ...] = ("",)

    def why(self, at: int) -> str:
        """A text that says why the time of call ``at`` is an extrapolation; empty if the call is within what was
        measured."""
        return self.extrapolations[int(self.extrapolated[at])]

    def columns(self) -> dict[str, Column]:
        """One row per call."""
        extrapolated = np.array(self.extrapolations)[self.extrapolated]
        return {**arrays_of(self, "time_us", "low_us", "high_us", "measured"), "extrapolated": extrapolated}


def joined_times(parts: Sequence[tuple[NDArray[np.intp], CalibratedTimes]], length: int) -> CalibratedTimes:
    """The times of ``length`` calls, joined from parts.

    A part has the indices of its calls, [call], and their times in us.
    """
    time_us, low_us, high_us = np.empty((3, length))
    measured, extrapolated = np.empty(length, np.bool_), np.zeros(length, np.int64)
    carried: dict[CarriedOver, None] = {}
    texts = {"": 0}
    for where, part in parts:
        time_us[where], low_us[where], high_us[where] = part.time_us, part.low_us, part.high_us
        measured[where] = part.measured
        numbers = np.array([texts.setdefault(text, len(texts)) for text in part.extrapolations])
        extrapolated[where] = numbers[part.extrapolated]
        carried.update(dict.fromkeys(part.carried_over))
    return CalibratedTimes(time_us, low_us, high_us, measured, tuple(carried), extrapolated, tuple(texts))


def times_at(
    calibration: Calibration, calls: Features, place: Place, *, same_machine: bool, adapters_gbs: float = 0.0
) -> CalibratedTimes:
    """The times that a calibration predicts for calls of one collective, algorithm and protocol at ``place``.

    ``adapters_gbs``: bandwidth of all adapters of a node together; 0 if not known.
    """
    if place.nodes > 1:
        return _between_nodes(calibration, calls, place, adapters_gbs, same_machine=same_machine)
    certainty = calibration.certainty(same_machine=same_machine)
    log_us = log(calibration.form.times_us(calls)) + calibration.surface.log_factors(calls)
    octaves_beyond = certainty.octaves_beyond(calls)
    half = certainty.half_widths(calls, place, octaves_beyond)
    carried = certainty.carried_over(place)
    measured = (place.collective, place.algo_proto) in calibration.measured_kinds
    return _times((log_us, log_us - half, log_us + half), carried, octaves_beyond > 0, measured)


def _times(
    logs: tuple[Numbers, Numbers, Numbers], carried: tuple[CarriedOver, ...], beyond: Numbers, measured: bool
) -> CalibratedTimes:
    """Makes the answer from ``logs``, the logarithms of times in us and of their bounds, [call]. ``beyond`` marks calls
    outside of the measured sizes."""
    texts = _extrapolations(carried)
    inside = 1 if texts[1] else 0
    if isinstance(beyond, np.ndarray):
        number, any_beyond = np.where(beyond, 2, inside), bool(beyond.any())
        measured_each, (time_us, low_us, high_us) = np.full(len(beyond), measured), map(np.exp, logs)
    else:
        number, any_beyond = np.array([2 if beyond else inside]), bool(beyond)
        measured_each, (time_us, low_us, high_us) = np.array([measured]), np.exp(np.array(logs))[:, None]
    carried = (*carried, CarriedOver.sizes_beyond) if any_beyond else carried
    return CalibratedTimes(time_us, low_us, high_us, measured_each, carried, number, texts)


@cache
def _extrapolations(carried: tuple[CarriedOver, ...]) -> tuple[str, str, str]:
    """Texts about extrapolations: an empty one, one for calls inside the measured sizes, and one for calls outside of
    them."""
    always = [kind.value for kind in carried if kind in EXTRAPOLATED]
    return "", ", ".join(always), ", ".join([*always, CarriedOver.sizes_beyond.value])


def _between_nodes(
    calibration: Calibration, calls: Features, place: Place, adapters_gbs: float, *, same_machine: bool
) -> CalibratedTimes:
    """Times from the site's rows or, without rows, from what sites have in common; never faster than the adapters
    allow.
    """
    another_release = _other_release(calibration, place.nccl)
    log_us, half = calibration.process.corrected(calls, another_release=another_release is not None)
    low = log_us - half
    if adapters_gbs:
        link = log(between_bytes(place.collective, calls.bytes, place.nodes) / (adapters_gbs * 1e3))
        log_us, low = most(log_us, link), most(low, link)
    key = place.collective, place.algo_proto
    carried: list[CarriedOver] = [] if same_machine else [CarriedOver.machine]
    if another_release is not None:
        carried.append(another_release)
    rows, beyond = calibration.between, calls.bytes < 0
    if rows is None:
        carried.append(CarriedOver.site)
    elif key not in rows.log2_sizes:
        carried.append(CarriedOver.site_combination)
    else:
        if (*key, place.gpus_per_node, place.nodes) not in rows.kinds:
            carried.append(CarriedOver.nodes)
        first, last = rows.log2_sizes[key]
        log2_bytes = log2(calls.bytes)
        beyond = (log2_bytes < first - 1.01) | (log2_bytes > last + 1.01)
    measured = rows is not None and key in rows.log2_sizes
    return _times((log_us, low, log_us + half), tuple(carried), beyond, measured)


def _other_release(calibration: Calibration, nccl: str) -> CarriedOver | None:
    """Whether no row of the site is from this release, and whether those of the nearest release are far from it."""
    if calibration.between is None or nccl in calibration.between_releases:
        return None
    minor = int(nccl.split(".")[1])
    apart = min((abs(int(each.split(".")[1]) - minor) for each in calibration.between_releases), default=0)
    return CarriedOver.site_release if apart >= FAR_MINORS else CarriedOver.release


def between_bytes(collective: int, nbytes: Numbers, nodes: int) -> Numbers:
    """Bytes that all adapters of one node together have to send or to receive at least, [call]."""
    parts = collective in (Collective.AllGather, Collective.ReduceScatter)
    return nbytes * ((nodes - 1) / nodes if parts else 1.0)


@dataclass(frozen=True, slots=True)
class CalibrationChoice:
    """A calibration, whether it is the machine's own, and the reason why it was chosen.

    ``adapters_gbs``: total bandwidth of a node's adapters; 0 if not known.
    """

    calibration: Calibration
    same_machine: bool
    reason: str
    adapters_gbs: float = 0.0


class TimeModel:
    """A chosen calibration that answers for one communicator."""

    def __init__(self, chosen: CalibrationChoice, selection: Selection) -> None:
        self.chosen = chosen
        self.calibration = chosen.calibration
        self.reason = chosen.reason
        self.same_machine = chosen.same_machine
        self.selection = selection
        self._kinds: dict[tuple[Request, int], tuple[FixedFeatures, Place]] = {}
        self._certainty = chosen.calibration.certainty(same_machine=self.same_machine)

    def of_picks(self, request: Request, picks: Picks) -> CalibratedTimes:
        """Times of the calls of ``picks``, [size]."""
        if len(picks.bytes) == 1:
            return self._of_one(request, picks)
        by_combination = features.by_combination(self.selection, request, picks)
        parts = [(where, self.times(request, calls)) for where, calls in by_combination]
        return joined_times(parts, len(picks.bytes))

    def _of_one(self, request: Request, picks: Picks) -> CalibratedTimes:
        """Times of one call: numbers instead of arrays cost a fifth."""
        number = int(picks.algorithm[0]) * PROTOCOLS + int(picks.protocol[0])
        if (known := self._kinds.get((request, number))) is None:
            _check_buffers(request)
            kind = FixedFeatures(self.selection, request, ALGO_PROTOS[number])
            known = self._kinds[request, number] = kind, self._place(request, number)
        kind, place = known
        nccl_us = (
            picks.time_us if place.nodes == 1 else self.selection.combination_us(request, picks.bytes, kind.algo_proto)
        )
        numbers = (float(each[0]) for each in (picks.bytes, picks.channels, picks.threads, nccl_us))
        return self._times_at(kind.calls(*numbers), place)

    def of_algo_proto(self, request: Request, sizes: ArrayLike, algo_proto: AlgoProto) -> CalibratedTimes:
        """Times of calls with a forced algorithm and protocol. ``sizes`` are NCCL's nBytes, [size]."""
        nbytes: SizeArray = np.atleast_1d(np.asarray(sizes)).astype(np.uint64)
        return self.times(request, features.of_algo_proto(self.selection, request, nbytes, algo_proto))

    def of_candidates(self, request: Request, sizes: ArrayLike) -> dict[AlgoProto, CalibratedTimes]:
        """Times of each algorithm and protocol that the call may use, in NCCL's order."""
        candidates: Sequence[AlgoProto] = self.selection.candidates(request)
        return {each: self.of_algo_proto(request, sizes, each) for each in candidates}

    def times(self, request: Request, calls: Features) -> CalibratedTimes:
        """Times of calls of one kind on this communicator. BadInput for registered buffers, which were not measured."""
        _check_buffers(request)
        combinations = calls.algo_proto
        if not isinstance(combinations, np.ndarray):
            return self._times_at(calls, self._place(request, combinations))
        parts = []
        for number in distinct(combinations):
            where = np.flatnonzero(combinations == number)
            parts.append((where, self._times_at(calls[where], self._place(request, number))))
        return joined_times(parts, len(calls))

    def _times_at(self, calls: Features, place: Place) -> CalibratedTimes:
        adapters_gbs = self.chosen.adapters_gbs
        return times_at(self.calibration, calls, place, same_machine=self.same_machine, adapters_gbs=adapters_gbs)

    def half_widths_of(self, calls: Features, carried: Iterable[CarriedOver]) -> Array:
        """Half the interval around the logarithm of each call's time in us on one node, [call].

        The calls are assumed to need only the extrapolations ``carried`` and that to other sizes.
        """
        return self._certainty.half_widths_of(calls, carried)

    def all_to_all(self, sizes: ArrayLike) -> CalibratedTimes:
        """Times of AllToAll by ``sizes``, bytes that a rank sends in all, [size].

        BadInput if the calibration has no times for such calls.
        """
        nbytes: SizeArray = np.atleast_1d(np.asarray(sizes)).astype(np.uint64)
        communicator = self.selection.communicator
        return self.exchanges(point_to_point.of_communicator(communicator, nbytes))

    def exchanges(self, calls: Exchanges) -> CalibratedTimes:
        """Times of AllToAll on communicators of this kind. BadInput if the calibration has no times for such calls."""
        return exchange_times(self.calibration, calls, same_machine=self.same_machine)

    def depends_on_release(self) -> str:
        """What the times of calls with given features depend on besides the number of ranks and nodes: on one node the
        release, between nodes whether the site was measured with it."""
        communicator = self.selection.communicator
        name = communicator.release.name
        return name if communicator.nodes == 1 else _other_release(self.calibration, name) or ""

    def _place(self, request: Request, algo_proto: int) -> Place:
        communicator = self.selection.communicator
        name, local, nodes = communicator.release.name, communicator.local_ranks, communicator.nodes
        return Place(name, request.collective, algo_proto, local, nodes)


def _check_buffers(request: Request) -> None:
    if request.buffers:
        raise BadInput(
            f"calibrated times only hold for plain buffers, which were measured, not for {request.buffers.name} ones"
        )


def exchange_times(calibration: Calibration, calls: Exchanges, *, same_machine: bool) -> CalibratedTimes:
    """Times of AllToAll by a calibration. BadInput if the calibration has no times for such calls."""
    exchange = calibration.exchange
    if exchange is None:
        raise BadInput(f"the calibration {calibration.name} has no measured times of AllToAll")
    factors, kinds = exchange.factors, [CarriedOver.sizes]
    several = bool(calibration.site) and any(nodes > 1 for nodes, _ in exchange.scope)
    measured = (calls.nodes == 1) | several
    known = np.array([pair in exchange.scope for pair in zip(calls.nodes, calls.ranks / calls.nodes, strict=True)])
    square = factors[CarriedOver.sizes] ** 2 + np.where(known, 0.0, factors[CarriedOver.gpus]) ** 2
    if not same_machine:
        square += factors[CarriedOver.machine] ** 2
        kinds.append(CarriedOver.machine)
    # What a site adds is not in units of the scatter.
    half = np.hypot(exchange.scatter * np.sqrt(square), np.where(measured, 0.0, COVERED_SDS * SITE_EXCHANGES_SD))
    if not measured.all():
        kinds.append(CarriedOver.site)
    texts = ("", CarriedOver.gpus.value, CarriedOver.site.value)
    extrapolated = np.where(~measured, 2, np.where(known, 0, 1))
    time_us = point_to_point.times_us(exchange.parameters, calls)
    bounds = time_us * np.exp(-half), time_us * np.exp(half)
    return CalibratedTimes(time_us, *bounds, measured, tuple(kinds), extrapolated, texts)


def of_communicator(
    selection: Selection, machine: str | None, calibration: str | None = None, *, with_instance: bool = False
) -> TimeModel:
    """The model for a communicator of ``machine``: that of a ``calibration`` by name or file, or the one that fits.

    ``with_instance``: adds rows as :func:`with_instance_type` does. BadInput if no calibration fits, BadCalibration if
    a file is not one.
    """
    chosen = choose(selection.communicator, machine, calibration)
    if with_instance:
        chosen = with_instance_type(chosen, selection.communicator.nodes, machine)
    return TimeModel(chosen, selection)


def choose(communicator: Comm, machine: str | None, calibration: str | None = None) -> CalibrationChoice:
    """The calibration with this name or file; for None the machine's own, else that of another machine with such GPUs.

    ``machine``: the machine's name in the catalogue, or the name of a topology
    (:func:`tuner.machine.skeleton.name_of`). BadInput if no calibration fits, if ranks share a GPU, if GPUs of a node
    are not connected by NVLink, or if NCCL treats a host as several nodes. BadCalibration if a file is not a
    calibration.
    """
    if communicator.shares_gpus:
        raise BadInput(
            "no calibrated times exist if ranks share a GPU, because none were measured: use one rank per GPU"
        )
    if calibration is not None:
        named = calibrations.load(calibration)
        return CalibrationChoice(named, named.machine == machine, f"{named.name}, as asked for", adapters_gbs(machine))
    if communicator.splits_hosts:
        raise BadInput(
            "no calibrated times exist if NCCL treats a host as several nodes, because none were measured: give "
            f"{option('calibration')} with a file fitted to this machine"
        )
    _check_nvlink(communicator)
    gpu = catalogue.load(machine).gpu if machine in catalogue.names() else ""
    # A release treats GPUs that it does not know like the generation before; then the newest release is asked.
    knows_all = max(communicator.release.generations.values()) < _NO_GPU
    asked = communicator.release if knows_all else release.load(release.names()[-1])
    generation = asked.generation(communicator.min_comp_cap)
    alike = calibrations.of_generation(generation)
    if not alike:
        raise BadInput(
            f"no calibration exists for {generation.capitalize()} GPUs: give {option('calibration')} with a file of "
            "your own"
        )

    # A site's calibration answers if it is named, or if the machine of the catalogue is that site.
    alike = [each for each in alike if not each.site or each.site == each.machine == machine]

    def distance(each: Calibration) -> tuple[bool, bool, bool, int]:
        gpus = communicator.max_local_ranks not in {place.gpus_per_node for place in each.scope}
        rows = sum(file.rows for file in each.measured)
        return each.machine != machine, each.gpu != gpu, gpus, -rows

    nearest = min(alike, key=distance)
    same = nearest.machine == machine
    if same:
        reason = "this machine's own"
    elif gpu and gpu == nearest.gpu:
        reason = f"of another machine with {gpu} GPUs"
    else:
        reason = f"of another machine with {generation.capitalize()} GPUs"
        reason += f", {nearest.gpu}; no {gpu} was measured" if gpu else ""
    return CalibrationChoice(nearest, same, f"{nearest.name}, {reason}", adapters_gbs(machine))


def with_instance_type(
    chosen: CalibrationChoice, nodes: int, machine: str | None, without: str = ""
) -> CalibrationChoice:
    """The choice, with times between nodes that were measured on other clusters of ``machine``, if there are any.

    If ``chosen`` is itself the calibration of an instance type, its rows are used as such times. ``without`` is the
    name of a table that is judged; if the instance type's calibration was made from it, the choice stays as it is.
    """
    asked, own = chosen.calibration, chosen.calibration
    if nodes == 1:
        return chosen
    if asked.instances:
        name, own = asked.name, calibrations.load(asked.base)
    else:
        name = own.instance_type or calibrations.of_instance(machine) or ""
    if not name or name not in calibrations.names():
        return chosen
    of_type = calibrations.load(name)
    tables = {each.name for each in of_type.measured}
    known = {without} | ({each.name for each in own.measured} if own.between is not None else set())
    if of_type.parameters != own.parameters or known & tables:
        return chosen
    runs = "another cluster" if len(tables) == 1 else f"{len(tables)} runs of other clusters"
    reason = chosen.reason if asked.instances else f"{chosen.reason}, with {runs} of {name}"
    return replace(chosen, calibration=replace(own, type_rows=of_type.between), reason=reason)


def adapters_gbs(machine: str | None) -> float:
    """The bandwidth of all adapters of a catalogue machine's node, GB/s; 0 if it is not known, and for domains."""
    if machine not in catalogue.names():
        return 0.0
    there = catalogue.load(machine)
    return 0.0 if there.trays else sum(net.speed_mbps for net in there.topology.nets) / 8000


def _check_nvlink(communicator: Comm) -> None:
    path = communicator.graphs[Algorithm.Ring].type_intra
    if communicator.max_local_ranks > 1 and path not in NVLINK:
        raise BadInput(
            f"no calibrated times exist if the GPUs of a node are joined by {path}, because shipped ones were measured "
            f"over NVLink: give {option('calibration')} with a file fitted to this machine"
        )

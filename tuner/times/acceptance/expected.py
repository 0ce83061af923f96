"""The times that calls should take: from public runs, a calibration, or else NCCL's own model with its known error."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError
from tuner.base.findings import Finding, Severity, words
from tuner.base.names import ALGO_PROTOS, Algorithm
from tuner.base.numerics import SizeArray
from tuner.base.spelling import option, spelled
from tuner.emulator.build import build
from tuner.emulator.selection import Picks, Selection
from tuner.machine import catalogue
from tuner.machine.topology.records import Topology
from tuner.scenario import Scenario
from tuner.times.acceptance import public_runs
from tuner.times.acceptance.curves import Curve, CurveKind, Exchange
from tuner.times.acceptance.faults import Fault, faulty
from tuner.times.acceptance.limits import ClassNearness, TimeLimits
from tuner.times.acceptance.public_runs import (
    ComparedCurve,
    MachineClass,
    Network,
    PublicCurve,
    RankedRun,
)
from tuner.times.costmodels.operations import CostOperation
from tuner.times.placement import ConfiguredShape, of_trays
from tuner.times.timemodel import calibration as calibrations
from tuner.times.timemodel import predict
from tuner.times.timemodel.calibration import Calibration
from tuner.times.timemodel.features import Array
from tuner.times.timemodel.predict import TimeModel

Mask: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]

# How far public measurements lie from NCCL's own time: natural logarithms of measured over NCCL's time, between which
# 90 % of the rows of tables/measured lie (machines weighted equally). They are for calls below 1 MiB, below 64 MiB and
# above, on one node and on several. benchmarks/accept.py prints them.
NCCL_ERROR = {
    False: ((-0.17, 0.88), (-0.10, 0.68), (0.03, 0.52)),
    True: ((-0.04, 1.82), (0.00, 1.65), (-0.28, 0.64)),
}
ERROR_BYTES = (2**20, 2**26)
# If NCCL's search finds no way through a node, NCCL assumes 0.1 GB/s per channel. Source: ncclTopoCompute,
# src/graph/search.cc, v2.28.9-1.
_NO_WAY_GBS = 0.2
_NO_WAY = (
    "NCCL's search finds no way through this node and assumes 0.1 GB/s, by which no time is too slow; valid: "
    "{option:calibration} with a file that 'nccl-tuner fit calibration' makes of a healthy machine's times"
)
# AllToAll between nodes is in no frozen split; its intervals are half again as wide, like those of anything that was
# never held out.
_NEVER_HELD_OUT = 1.5
# How far the same call is off on another day of the same cluster: natural logarithms that hold in 90 of 100 cases,
# below 1 MiB, above, and for each power of two to the next size of the reference.
REFERENCE_BYTES = 2**20
REFERENCE_SMALL, REFERENCE_LARGE, REFERENCE_OCTAVE = 0.15, 0.06, 0.15
_USED = 0.9  # share of all adapters' rate that a ring uses if nothing else limits it
_LATENCIES = ("net_ll_hop_us", "net_simple_hop_us", "tree_hop_us", "nvls_tree_hop_us", "pat_hop_us")


class Whose(StrEnum):
    """The source of the expected times."""

    public = "public runs"
    nearest = "nearest public runs"
    calibrated = "calibrated"
    nccl = "NCCL's model"
    reference = "a reference run"
    nothing = "nothing"


# Half of a band, as a natural logarithm. It joins the 90 % intervals of single times with the differences between
# healthy machines of one kind, and is widened so that 95 % of healthy machines pass with all sizes of a curve
# (benchmarks/accept.py).
BETWEEN_MACHINES = 0.04
WIDENED = 1.2
WIDEST = 1.3  # a band that ends further than this factor from the expected time judges nothing inside of it,
FAR_OUT = 1.5  # and a time fails by it only if it is this many half bands away
ALONE = 4.0  # a single size fails by itself if it takes this many times the band's end


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """The expected results, one element per size: the time in us, half of its 90 % interval as a natural logarithm, and
    NCCL's pick.

    ``picks`` is None for AllToAll and SendRecv, for which NCCL picks nothing. ``measured`` is True if public runs
    decide or the calibration has times of the pick's algorithm and protocol, and False for NCCL's model. ``whose``:
    where the time comes from.

    ``sure``, ``high`` and ``far`` are factors over the time: up to ``sure`` a size is healthy, above ``high`` it is
    slow. The two largest sizes fail if both are slow. Above ``row`` a size fails together with two others near it,
    above ``far`` by itself. ``open``: whether a size gets no verdict if its time is below ``high``.
    """

    time_us: Array
    log_half: Array
    picks: Picks | None
    measured: Mask
    whose: tuple[Whose, ...]
    sure: Array
    high: Array
    row: Array
    far: Array
    open: Mask
    runs: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None  # number of public runs that decide

    @staticmethod
    def by_intervals(time_us: Array, log_half: Array, picks: Picks | None, measured: Mask, whose: Whose) -> "Expected":
        """Expected times whose limits follow from their intervals."""
        half: Array = WIDENED * np.hypot(log_half, BETWEEN_MACHINES)
        wide = half > np.log(WIDEST)
        high = np.exp(np.where(wide, FAR_OUT * half, half))
        whose_each = (whose,) * len(time_us)
        return Expected(time_us, log_half, picks, measured, whose_each, high, high, high, ALONE * high, wide)

    def pick_names(self) -> list[str]:
        """Algorithm and protocol per size, as in ``Ring/LL``; ``-`` if NCCL picks nothing."""
        if self.picks is None:
            return ["-"] * len(self.time_us)
        pairs = (ALGO_PROTOS[number] for number in self.picks.combinations.tolist())
        return [f"{algorithm.name}/{protocol.name}" for algorithm, protocol in pairs]


class Expectation:
    """Computes expected times on a machine, healthy or with a fault. ``scenario`` describes the machine and release.

    ``calibration``: a name or a file; None takes the machine's own or its generation's. ``network``: the kind of
    network between nodes; None infers it from the adapters' names. BadInput if nodes differ, or if there is no such
    calibration.
    """

    def __init__(self, scenario: Scenario, calibration: str | None = None, network: Network | None = None) -> None:
        scenario.check_gpu_for_each_rank("accept")
        if scenario.others:
            raise BadInput(
                f"no single time is expected for nodes that differ: give {option('machine')} or {option('topology')} "
                f"with {option('nodes')}"
            )
        if calibration is not None:
            calibrations.load(calibration)
        self.scenario = scenario
        self._asked = calibration
        self.network = network or expected_network(scenario)
        self._healthy: dict[ConfiguredShape, Selection] = {}
        self.judged_tables: frozenset[str] = frozenset()  # shipped tables, which are not compared with themselves
        self.of_site: str | None = None  # name of the calibration of the site that the files name
        self._times: dict[tuple[CurveKind, bytes], Expected] = {}
        self._by_model: dict[object, Expected] = {}
        self._models: dict[ConfiguredShape, TimeModel | None] = {}
        self._faulty: dict[tuple[ConfiguredShape, Fault], Selection] = {}
        self._of_releases: dict[tuple[str, ConfiguredShape], Selection] = {}
        self.reasons: dict[str, None] = {}  # the reasons for these calibrations, or for none
        self.other_links: Finding | None = None  # says that the times were measured with other links

    def selection(self, shape: ConfiguredShape) -> Selection:
        """The healthy communicator."""
        if shape not in self._healthy:
            self._healthy[shape] = Selection(self._scenario(shape).communicator())
        return self._healthy[shape]

    def times(self, kind: CurveKind, sizes: SizeArray, fault: Fault | None = None) -> Expected:
        """Expected times of ``sizes`` (NCCL's nBytes). BadInput for sends and receives if there are no times to expect.

        Within a node a calibration comes first if it was measured within a node, and public runs fill what it leaves
        open. Between nodes public runs come first. A calibration that the user names is used alone.
        """
        if fault is None:
            key = kind, sizes.tobytes()
            if key not in self._times:
                self._times[key] = self._healthy_times(kind, sizes)
            return self._times[key]
        healthy = self.times(kind, sizes)
        if all(whose is Whose.calibrated or whose is Whose.nccl for whose in healthy.whose):
            return self._modelled(kind, sizes, fault)
        ratio = self._modelled(kind, sizes, fault).time_us / self._modelled(kind, sizes).time_us
        return replace(healthy, time_us=healthy.time_us * ratio)

    def _healthy_times(self, kind: CurveKind, sizes: SizeArray) -> Expected:
        modelled, why = None, None
        try:
            modelled = self._modelled(kind, sizes)
        except BadInput as error:
            if self._asked is not None or not isinstance(kind.request, Exchange):
                raise
            why = error
        if self._asked is not None and modelled is not None:
            return modelled
        if modelled is not None and kind.shape.nodes == 1:
            modelled = self._carried_on(kind, sizes, modelled)
        known = modelled is not None and not (modelled.open | ~modelled.measured).any() and not public_runs.own()
        if kind.shape.nodes == 1 and known and not self.has_other_links(kind.shape):
            assert modelled is not None
            return modelled
        joined = self._by_public_runs(kind, sizes, modelled)
        if joined is None and why is not None:
            raise why
        assert joined is not None or modelled is not None
        return joined if joined is not None else modelled  # type: ignore[return-value]

    def _carried_on(self, kind: CurveKind, sizes: SizeArray, modelled: Expected) -> Expected:
        """Expects the bandwidth of the largest measured size at larger sizes in a node: links are no slower there."""
        beyond = modelled.open & (sizes >= public_runs.SATURATED_BYTES)
        if not beyond.any():
            return modelled
        below = np.array([public_runs.SATURATED_BYTES << more for more in range(4)], np.uint64)
        there = self._modelled(kind, below)
        inside = np.flatnonzero(~there.open & there.measured)
        if not len(inside):
            return modelled
        last = inside[-1]
        beyond &= sizes > below[last]
        time_us = there.time_us[last] * sizes.astype(np.float64) / float(below[last])
        return replace(
            modelled,
            time_us=np.where(beyond, time_us, modelled.time_us),
            log_half=np.where(beyond, there.log_half[last], modelled.log_half),
            sure=np.where(beyond, there.sure[last], modelled.sure),
            high=np.where(beyond, there.high[last], modelled.high),
            row=np.where(beyond, there.row[last], modelled.row),
            far=np.where(beyond, there.far[last], modelled.far),
            open=modelled.open & ~beyond,
            measured=modelled.measured | beyond,
        )

    def compared(self, kind: CurveKind, sizes: SizeArray) -> ComparedCurve:
        """The calls in the form that is compared with public runs: class, shape, and the time that the links allow, one
        value per size, us.
        """
        selection = self.selection(kind.shape)
        own = self.scenario.resolve().own
        domains, gpus = kind.shape.nodes, kind.shape.gpus_per_node
        if own.trays is not None:
            domains = selection.communicator.nodes
            gpus = kind.shape.ranks // max(domains, 1)
        settings = {**(self.scenario.environment or {}), **dict(kind.shape.settings)}
        nvls = settings.get("NCCL_NVLS_ENABLE") != "0"
        machine = public_runs.class_of(selection.communicator, own.topology, gpus, self.network, nvls=nvls)
        if 0 < machine.node_gbs < _USED * public_runs.nominal_gbs(own.topology) and own.trays is None:
            # The search of older releases may not find what the links carry, so the class is that of the machine.
            newest = replace(self._scenario(kind.shape), nccl=release.names()[-1], fitted_constants=None)
            with suppress(TunerError):
                machine = public_runs.class_of(newest.communicator(), own.topology, gpus, self.network, nvls=nvls)
        forced = f"{settings.get('NCCL_ALGO', '')}/{settings.get('NCCL_PROTO', '')}".removesuffix("/")
        if isinstance(kind.request, Exchange):
            model_us = _links_us(kind.request, sizes, domains, gpus, machine)
        else:
            model_us = selection.pick(kind.request, sizes).time_us.astype(np.float64)
        return ComparedCurve(machine, domains, gpus, kind.request.collective.name, forced, sizes, model_us)

    def _by_public_runs(self, kind: CurveKind, sizes: SizeArray, modelled: Expected | None) -> Expected | None:
        """The times of public runs at sizes for which there are enough runs, and modelled times at the others. Within a
        node, modelled times take precedence.
        """
        compared = self.compared(kind, sizes)
        kept = public_runs.matching(compared, public_runs.own(), ClassNearness.same_class)
        if not kept and compared.nodes == 1 and modelled is not None and not self.has_other_links(kind.shape):
            return by_public_runs(compared, self.curves(), modelled, modelled.open | ~modelled.measured)
        return by_public_runs(compared, self.curves(), modelled)

    def ranked(self, curve: Curve) -> RankedRun | None:
        """How a curve ranks among the healthy runs of its class; None if the class has fewer than three."""
        compared = self.compared(curve.kind, curve.bytes)
        return public_runs.ranked(compared, curve.time_us, self.curves())

    def curves(self) -> tuple[PublicCurve, ...]:
        """The public runs to compare with, without the runs that are being judged."""
        every = (*public_runs.shipped(), *public_runs.own())
        return tuple(each for each in every if each.table not in self.judged_tables) if self.judged_tables else every

    def _modelled(self, kind: CurveKind, sizes: SizeArray, fault: Fault | None = None) -> Expected:
        """The times per size according to a calibration, or else to NCCL's model with its known error. They are the
        same in place and out of place.
        """
        key = kind.shape, kind.request, sizes.tobytes(), fault
        if key not in self._by_model:
            self._by_model[key] = self._by_model_of(kind, sizes, fault)
        return self._by_model[key]

    def _by_model_of(self, kind: CurveKind, sizes: SizeArray, fault: Fault | None) -> Expected:
        selection = self.selection(kind.shape) if fault is None else self._with_fault(kind.shape, fault)
        model = self._model(kind.shape)
        if model is not None and fault is not None:
            slower = _with_slower_hops(model.calibration, fault.hop)
            model = TimeModel(replace(model.chosen, calibration=slower, adapters_gbs=0.0), selection)
        if isinstance(kind.request, Exchange):
            return _of_exchange(model, kind.request, sizes)
        picks = selection.pick(kind.request, sizes)
        if model is None:
            return _by_nccl(picks, several=selection.communicator.nodes > 1)
        calibrated = model.of_picks(kind.request, picks)
        half = np.log(calibrated.high_us / calibrated.time_us)
        # An extrapolation is not trusted more than NCCL's own model.
        guess = _by_nccl(picks, several=selection.communicator.nodes > 1)
        at_most = np.log(guess.time_us / calibrated.time_us) + guess.log_half
        if selection.communicator.nodes == 1:
            half = np.where(calibrated.measured, half, np.maximum(half, at_most))
        return Expected.by_intervals(calibrated.time_us, half, picks, calibrated.measured, Whose.calibrated)

    def picked_otherwise(self, kind: CurveKind, sizes: SizeArray) -> Mask:
        """Per size, whether another NCCL release picks differently on this machine. ``sizes``: bytes (nBytes)."""
        otherwise = np.zeros(len(sizes), np.bool_)
        if isinstance(kind.request, Exchange):
            return otherwise
        own = self.selection(kind.shape).pick(kind.request, sizes).combinations
        for nccl in self.scenario.releases:
            with suppress(TunerError):  # a release that does not know such a setting has not run it
                if (nccl, kind.shape) not in self._of_releases:
                    there = replace(self._scenario(kind.shape), nccl=nccl).communicator()
                    self._of_releases[nccl, kind.shape] = Selection(there)
                otherwise |= self._of_releases[nccl, kind.shape].pick(kind.request, sizes).combinations != own
        return otherwise

    def has_other_links(self, shape: ConfiguredShape) -> bool:
        """Whether the calibration was measured on GPUs with another number of NVLinks (H100 18, H800 8), so that it
        judges nothing here. False for a calibration that the user names.
        """
        model = self._model(shape)
        if model is None or model.same_machine or self._asked is not None or shape.nodes * shape.gpus_per_node == 1:
            return False
        measured_at = model.calibration.machine
        if measured_at not in catalogue.names():
            return False
        named = self.scenario.machine  # only its own links count, whatever was changed
        node = catalogue.load(named).topology if named else self.scenario.resolve().own.topology
        own, there = _nvlinks(node), _nvlinks(catalogue.load(measured_at).topology)
        if own == there:
            return False
        self.other_links = Finding(
            "accept.other_links", Severity.NOTE, {"own": own, "there": there, "machine": measured_at}
        )
        self.reasons[words(self.other_links)] = None
        return True

    def _model(self, shape: ConfiguredShape) -> TimeModel | None:
        if shape not in self._models:
            self._models[shape] = self._found_model(shape)
        return self._models[shape]

    def _found_model(self, shape: ConfiguredShape) -> TimeModel | None:
        try:
            model = predict.of_communicator(self.selection(shape), self.scenario.site, self._asked or self.of_site)
        except BadInput as error:
            if self._asked is not None:
                raise
            self.reasons[f"NCCL's own model with its known error: {error}"] = None
            ring = self.selection(shape).communicator.graphs[Algorithm.Ring]
            if ring.channels * ring.bw_intra_gbs < _NO_WAY_GBS:
                self.reasons[spelled(_NO_WAY)] = None
            return None
        launch = model.calibration.launch
        self.reasons[f"calibrated, by the calibration {model.reason}; measured with {launch}"] = None
        return model

    def _scenario(self, shape: ConfiguredShape) -> Scenario:
        environment = {**(self.scenario.environment or {}), **dict(shape.settings)}
        nodes, gpus = shape.nodes, shape.gpus_per_node
        own = self.scenario.resolve().own
        if own.trays is None:
            return replace(self.scenario, nodes=nodes, gpus_per_node=gpus, environment=environment)
        return replace(self.scenario, environment=environment, **of_trays(nodes, gpus, own.gpus, own.trays))

    def _with_fault(self, shape: ConfiguredShape, fault: Fault) -> Selection:
        if (shape, fault) not in self._faulty:
            resolved = self._scenario(shape).resolve()
            healthy = self.selection(shape).communicator
            several = healthy.nodes > 1
            nodes = [
                (faulty(node.for_emulator(several), node.for_emulator(False), fault, several), count)
                for node, count in resolved.nodes
            ]
            communicator = build(resolved.release, nodes, healthy.environment)
            self._faulty[shape, fault] = Selection(communicator)
        return self._faulty[shape, fault]


def expected_network(scenario: Scenario) -> Network:
    """The kind of network, inferred from the settings and the names of adapters."""
    settings = scenario.environment or {}
    if settings.get("NCCL_NET", "").lower() == "socket":
        return Network.sockets
    return public_runs.network_of_names(scenario.resolve().own.topology)


def _nvlinks(node: Topology) -> int:
    """The most NVLinks that a GPU of the node has."""
    return max(sum(link.count for link in gpu.nvlinks) for gpu in node.gpus)


class ReferenceRun(Expectation):
    """Expects the times of an earlier run of the same cluster. With a fault, these times are multiplied by the ratio of
    the modelled times with the fault to those without it.
    """

    def __init__(self, scenario: Scenario, calibration: str | None, curves: Sequence[Curve]) -> None:
        super().__init__(scenario, calibration)
        self._curves = {curve.kind: curve for curve in curves}
        self.reasons["those of the reference run"] = None

    def has_other_links(self, shape: ConfiguredShape) -> bool:
        """False, because the run was measured on the links that are judged."""
        return False

    def picked_otherwise(self, kind: CurveKind, sizes: SizeArray) -> Mask:
        """False for every size: the same cluster is expected to take the same times again with any release. ``sizes``:
        bytes.
        """
        return np.zeros(len(sizes), np.bool_)

    def times(self, kind: CurveKind, sizes: SizeArray, fault: Fault | None = None) -> Expected:
        """Expected times of ``sizes`` (NCCL's nBytes). BadInput if the reference run has no times of such calls."""
        curve = self._curves.get(kind)
        if curve is None:
            raise BadInput(
                f"the reference run has no time of {kind.request.title} on {kind.shape.nodes} x "
                f"{kind.shape.gpus_per_node} GPUs"
            )
        log_bytes = np.log(sizes.astype(np.float64))
        known = np.log(curve.bytes.astype(np.float64))
        time_us = np.exp(np.interp(log_bytes, known, np.log(curve.time_us)))
        away = np.abs(np.subtract.outer(log_bytes, known)).min(axis=1) / np.log(2)
        half = np.where(sizes < REFERENCE_BYTES, REFERENCE_SMALL, REFERENCE_LARGE) + REFERENCE_OCTAVE * away
        if fault is not None:
            healthy, faulty_times = self._modelled(kind, sizes), self._modelled(kind, sizes, fault)
            time_us = time_us * faulty_times.time_us / healthy.time_us
        measured = np.ones(len(sizes), np.bool_)
        half = np.asarray(half, np.float64)
        return Expected.by_intervals(time_us, half, None, measured, Whose.reference)


def by_public_runs(
    compared: ComparedCurve,
    curves: Sequence[PublicCurve],
    modelled: Expected | None = None,
    where: Mask | None = None,
    by: TimeLimits | None = None,
) -> Expected | None:
    """Expected times: from public runs for sizes that have enough runs and are selected by ``where``, else as modelled.

    ``by``: limits to use instead of the shipped ones. Returns None if no size has three runs that are similar enough.
    """
    found = public_runs.typical(compared, curves, by)
    known = found.nearness >= 0
    if where is not None:
        known &= where
    if modelled is not None:  # a calibration inside its scope takes precedence over runs on other networks
        known &= (found.nearness < ClassNearness.any_network) | modelled.open | ~modelled.measured
    if not known.any():
        return None
    old = modelled or nothing(len(compared.bytes))
    whose = tuple(
        was if not use else Whose.public if near == ClassNearness.same_class else Whose.nearest
        for near, use, was in zip(found.nearness.tolist(), known.tolist(), old.whose, strict=True)
    )
    return Expected(
        np.where(known, found.time_us, old.time_us),
        np.where(known, np.log(found.high) / WIDENED, old.log_half),
        old.picks,
        known | old.measured,
        whose,
        np.where(known, found.sure, old.sure),
        np.where(known, found.high, old.high),
        np.where(known, found.row, old.row),
        np.where(known, found.far, old.far),
        ~known & old.open,
        np.where(known, found.runs, 0),
    )


def nothing(count: int) -> Expected:
    """Expectation without a time for any size: NaN throughout."""
    nan, none = np.full(count, np.nan), np.zeros(count, np.bool_)
    return Expected(nan, nan, None, none, (Whose.nothing,) * count, nan, nan, nan, nan, ~none)


def _links_us(request: Exchange, sizes: SizeArray, nodes: int, gpus: int, machine: MachineClass) -> Array:
    """For each size, the time in us that the links alone need for sends and receives (AllToAll, or a ring of
    SendRecv)."""
    nbytes = sizes.astype(np.float64)
    ranks = nodes * gpus
    all_to_all = request.collective is CostOperation.AllToAll
    inside = nbytes * ((ranks - 1) / ranks if all_to_all else 1.0) / (machine.gpu_gbs or np.inf)
    between = np.zeros(len(nbytes))
    if nodes > 1 and machine.node_gbs:
        share = gpus * (nodes - 1) / nodes if all_to_all else gpus
        between = nbytes * share / machine.node_gbs
    return np.asarray(np.maximum(np.maximum(inside, between) / 1000, 1.0), np.float64)


def _of_exchange(model: TimeModel | None, request: Exchange, sizes: SizeArray) -> Expected:
    """Expected times of sends and receives. NCCL does not model them, and calibrations only have AllToAll."""
    name = request.collective.name
    if model is None or request.collective is not CostOperation.AllToAll:
        raise BadInput(f"no time of {name} is known here: no calibration has one, and NCCL's model has none")
    calibrated = model.all_to_all(sizes)
    half = np.log(calibrated.high_us / calibrated.time_us)
    if model.selection.communicator.nodes > 1:
        half *= _NEVER_HELD_OUT
    return Expected.by_intervals(calibrated.time_us, half, None, calibrated.measured, Whose.calibrated)


def _by_nccl(picks: Picks, several: bool) -> Expected:
    """Expected times from NCCL's model, moved to the middle of the range in which measured times lie."""
    errors = np.array(NCCL_ERROR[several])[np.searchsorted(ERROR_BYTES, picks.bytes, side="right")]
    times_us = picks.time_us.astype(np.float64) * np.exp(errors.mean(axis=1))
    half = (errors[:, 1] - errors[:, 0]) / 2
    return Expected.by_intervals(times_us, half, picks, np.zeros(len(times_us), np.bool_), Whose.nccl)


def _with_slower_hops(calibration: Calibration, factor: float) -> Calibration:
    if factor == 1:
        return calibration
    parameters: Mapping[str, float] = calibration.parameters
    slower = {name: parameters[name] * factor for name in _LATENCIES}
    return replace(calibration, parameters={**parameters, **slower})

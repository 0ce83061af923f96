"""Which single fault explains a loss: its shape over sizes and collectives against what each fault would make of it.

Each fault's times come from the emulator and the time model, for the same calls. What a fault leaves unexplained may be
a start that is later for all calls (the host), and an offset that healthy machines have as well.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.acceptance import faults
from tuner.acceptance.curves import Curve, Shape
from tuner.acceptance.expected import Expectation
from tuner.acceptance.faults import Fault, Resource
from tuner.machine.topology import Topology
from tuner.timemodel.features import Array

_SCATTER = {False: 0.05, True: 0.08}  # of single times around a machine's own curve, natural log: one node, several
_STARTS_US = np.concatenate([[0.0], np.geomspace(1, 500, 60)])
_INDEPENDENT = 24  # sizes of one run are not independent: more of them than this count no more
_HUBER = 2.0  # from how many scatters on a difference counts by itself and not by its square
_CLEAR = 3.0  # by how much a cost is less where it explains more than healthy times do
_AS_GOOD = 2.0  # and where another explanation is as good
_PRIORS = dict.fromkeys(Resource, 0.0) | {Resource.p2p: 0.5, Resource.gpu_direct: 0.5}
_SEVERAL = 0.5  # for each adapter or link beyond the first step that is missing


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A fault that explains the loss: what it is, and how far times still are from what it would make of them.

    ``left`` and ``left_if_healthy`` are typical differences of natural logarithms, with this fault and without any.
    """

    resource: Resource
    what: str
    left: float
    left_if_healthy: float


@dataclass(frozen=True, slots=True, eq=False)
class _Explained:
    fault: Fault | None
    cost: float
    left: float


def diagnose(curves: Sequence[Curve], expectation: Expectation, topology: Topology) -> tuple[Diagnosis, ...]:
    """The best explanation of the curves' times, then others that are as good; none where no fault explains them."""
    healthy = _explained(curves, expectation, None)
    found = sorted(
        (_explained(curves, expectation, fault) for fault in _faults(curves, expectation, topology)),
        key=lambda each: each.cost,
    )
    if not found or found[0].cost > healthy.cost - _CLEAR:
        return ()
    best: dict[Resource, _Explained] = {}
    for each in found:
        assert each.fault is not None
        if each.cost < found[0].cost + _AS_GOOD:
            best.setdefault(each.fault.resource, each)
    return tuple(
        Diagnosis(resource, each.fault.what, each.left, healthy.left)
        for resource, each in best.items()
        if each.fault is not None
    )


def _faults(curves: Iterable[Curve], expectation: Expectation, topology: Topology) -> Iterator[Fault]:
    """Those of any of the communicators, each once."""
    shapes = dict.fromkeys(curve.kind.shape for curve in curves)
    communicators = (expectation.selection(shape).communicator for shape in shapes)
    return iter(dict.fromkeys(fault for each in communicators for fault in faults.of_communicator(each, topology)))


def _explained(curves: Sequence[Curve], expectation: Expectation, fault: Fault | None) -> _Explained:
    """How well a fault explains the times, with the start of each communicator's calls and one offset."""
    offs: list[Array] = []
    scatters: list[Array] = []
    halves: list[Array] = []
    for shape, those in _by_shape(curves).items():
        own = _fitting(shape, fault)
        times = [expectation.times(curve.kind, curve.bytes, own) for curve in those]
        measured = np.concatenate([curve.time_us for curve in those])
        modelled = np.concatenate([each.time_us for each in times])
        scatter = np.full(len(measured), _SCATTER[shape.nodes > 1])
        start_us = _start_us(measured, modelled, scatter)
        offs.append(np.log(measured / (modelled + start_us)))
        scatters.append(scatter)
        halves.append(np.concatenate([each.log_half for each in times]))
    off, scatter = np.concatenate(offs), np.concatenate(scatters)
    offset_sd = float(np.median(np.concatenate(halves))) / 1.645
    weight = min(_INDEPENDENT / len(off), 1.0)
    # The offset that healthy machines have: as much of the mean difference as its own spread allows.
    mean = float(np.median(off))
    offset = mean / (1 + float(np.mean(scatter**2)) / (offset_sd**2 * max(len(off) * weight, 1)))
    cost = weight * float(_loss(off - offset, scatter)) * len(off) + offset**2 / (2 * offset_sd**2) + _prior(fault)
    return _Explained(fault, cost, float(np.sqrt(np.median((off - offset) ** 2))))


def _start_us(measured_us: Array, modelled_us: Array, scatter: Array) -> float:
    """How much later calls start than modelled, by what makes the differences least."""
    losses = [_loss(np.log(measured_us / (modelled_us + extra)), scatter) for extra in _STARTS_US]
    return float(_STARTS_US[int(np.argmin(losses))])


def _loss(off: Array, scatter: Array) -> float:
    """The mean of squares, or of plain differences where these are large, in scatters."""
    size = np.abs(off) / scatter
    return float(np.mean(np.where(size < _HUBER, size**2 / 2, _HUBER * (size - _HUBER / 2))))


def _prior(fault: Fault | None) -> float:
    """What speaks against a fault before any time is seen: less common ones, and several at once."""
    if fault is None:
        return 0.0
    return _PRIORS[fault.resource] + _SEVERAL * max(fault.missing - 1, 0)


def _fitting(shape: Shape, fault: Fault | None) -> Fault | None:
    """What of a fault shows on a communicator: nothing between nodes where there is one."""
    if fault is None or shape.nodes > 1:
        return fault
    return replace(fault, inter=1.0, hop=1.0)


def _by_shape(curves: Iterable[Curve]) -> Mapping[Shape, list[Curve]]:
    found: dict[Shape, list[Curve]] = {}
    for curve in curves:
        found.setdefault(curve.kind.shape, []).append(curve)
    return found

"""Explains a loss by a single fault: compares its shape over sizes and collectives with what each fault would cause.

The times that a fault would cause come from the emulator and the time model, for the same calls. What the fault leaves
unexplained may come from a later start of all calls (the host), or from an offset that healthy machines have as well.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import NoAlgorithm
from tuner.machine.topology import Topology
from tuner.times.acceptance import faults
from tuner.times.acceptance.curves import Curve
from tuner.times.acceptance.expected import Expectation
from tuner.times.acceptance.faults import Fault, Resource
from tuner.times.acceptance.judge import LEAST_START_US, MOST_START_US
from tuner.times.placement import ConfiguredShape
from tuner.times.timemodel.features import Array

_STARTS_US = np.concatenate([[0.0], np.geomspace(LEAST_START_US, MOST_START_US, 40)])
_WIDEST = 0.5  # assumed error of extrapolations here
_NOISE = 0.03  # noise of single times, natural logarithm
_COMMON = 0.8  # share of the error of an expected time that all sizes of a healthy machine have in common
_OWN = 0.6  # and share that each size has for itself
_INDEPENDENT = 24  # sizes of one run are not independent; more sizes than this count no more
_HUBER = 2.0  # number of scatters from which a difference counts linearly and not by its square
_CLEAR = 1.0  # by this a cost has to be lower for a fault to explain more than healthy times do
_AS_GOOD = 2.0  # within this, another explanation is as good
_UNEXPLAINED = (0.25, 0.5)  # a fault that explains a loss leaves at most this much of it, or this share
_SEVERAL = 0.5  # penalty for each further part that is missing


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A fault that explains the loss, and how far the measured times are from the times that the fault would cause.

    ``left`` and ``left_if_healthy`` are typical differences between the natural logarithms of measured and expected
    times, with this fault and without any.
    """

    resource: Resource
    what: str
    left: float
    left_if_healthy: float


_Fit = tuple[float, float]  # the cost of an explanation, and the typical difference that it leaves


def diagnose(curves: Sequence[Curve], expectation: Expectation, topology: Topology) -> tuple[Diagnosis, ...]:
    """The best explanation of the curves' times, then others that are as good; empty if no fault explains them."""
    healthy_cost, healthy_left = _explained(curves, expectation, None)
    tried = ((_tried(curves, expectation, fault), fault) for fault in _faults(curves, expectation, topology))
    explained = sorted(((fit, fault) for fit, fault in tried if fit is not None), key=lambda each: each[0][0])
    if not explained:
        return ()
    least_cost, left = explained[0][0]
    if least_cost > healthy_cost - _CLEAR or left > max(_UNEXPLAINED[0], _UNEXPLAINED[1] * healthy_left):
        return ()
    best: dict[Resource, Diagnosis] = {}
    for (cost, left), fault in explained:
        if cost < least_cost + _AS_GOOD:
            best.setdefault(fault.resource, Diagnosis(fault.resource, fault.what, left, healthy_left))
    return tuple(best.values())


def _faults(curves: Iterable[Curve], expectation: Expectation, topology: Topology) -> Iterator[Fault]:
    """The faults that are possible on any of the curves' communicators, each once."""
    shapes = dict.fromkeys(curve.kind.shape for curve in curves)
    communicators = (expectation.selection(shape).communicator for shape in shapes)
    return iter(dict.fromkeys(fault for each in communicators for fault in faults.of_communicator(each, topology)))


def _tried(curves: Sequence[Curve], expectation: Expectation, fault: Fault) -> _Fit | None:
    """Fits a fault to the times. None if NCCL could not have run some of the calls with this fault, such as forced NVLS
    without NVLS."""
    try:
        return _explained(curves, expectation, fault)
    except NoAlgorithm:
        return None


def _explained(curves: Sequence[Curve], expectation: Expectation, fault: Fault | None) -> _Fit:
    """Fits a fault to the times, with one delay of all calls per communicator and one common offset."""
    offs: list[Array] = []
    sds: list[Array] = []
    for shape, those in _by_shape(curves).items():
        times = [expectation.times(curve.kind, curve.bytes, _fitting(shape, fault)) for curve in those]
        measured = np.concatenate([curve.time_us for curve in those])
        modelled = np.concatenate([each.time_us for each in times])
        sd = np.concatenate([np.minimum(each.log_half, _WIDEST) for each in times]) / 1.645
        known = ~np.isnan(modelled)
        measured, modelled, sd = measured[known], modelled[known], sd[known]
        if not known.any():
            continue
        offs.append(np.log(measured / (modelled + _start_us(measured, modelled, _scatter(sd)))))
        sds.append(sd)
    if not offs:
        return math.inf, math.inf
    off, sd = np.concatenate(offs), np.concatenate(sds)
    scatter, shape_of_offset = _scatter(sd), _COMMON * sd
    weight = min(_INDEPENDENT / len(off), 1.0)
    common = _common(off / scatter, shape_of_offset / scatter, weight)
    left = off - common * shape_of_offset
    cost = weight * len(off) * float(_loss(left, scatter)) + common**2 / 2 + _prior(fault)
    return cost, median(np.abs(left).tolist())


def _scatter(sd: Array) -> Array:
    scatter: Array = np.hypot(_NOISE, _OWN * sd)
    return scatter


def _common(off: Array, of_offset: Array, weight: float) -> float:
    """The offset that all times share, in units of its standard deviation, found by robust least squares. ``off`` is in
    units of the scatter.
    """
    common = 0.0
    for _ in range(5):
        size = np.abs(off - common * of_offset)
        weights = weight * np.minimum(_HUBER / np.maximum(size, 1e-9), 1)
        common = float((weights * off * of_offset).sum() / ((weights * of_offset**2).sum() + 1))
    return common


def _start_us(measured_us: Array, modelled_us: Array, scatter: Array) -> float:
    """The delay in us that, added to every modelled time, makes the differences smallest."""
    losses = _loss(np.log(measured_us / (modelled_us + _STARTS_US[:, None])), scatter)
    return float(_STARTS_US[int(np.argmin(losses))])


def _loss(off: Array, scatter: Array) -> Array:
    """Mean Huber loss, over the last axis, of differences in units of the scatter: quadratic for small differences,
    linear for large ones.
    """
    size = np.abs(off) / scatter
    loss: Array = np.mean(np.where(size < _HUBER, size**2 / 2, _HUBER * (size - _HUBER / 2)), axis=-1)
    return loss


def _prior(fault: Fault | None) -> float:
    """The penalty of a fault that does not depend on the times: higher for rare faults, and for several failed
    parts."""
    return 0.0 if fault is None else fault.rare + _SEVERAL * (fault.missing - 1)


def _fitting(shape: ConfiguredShape, fault: Fault | None) -> Fault | None:
    """The fault in the form that it has on a communicator: on one node, without its effects between nodes."""
    if fault is None or shape.nodes > 1:
        return fault
    return replace(fault, inter=1.0, hop=1.0)


def _by_shape(curves: Iterable[Curve]) -> Mapping[ConfiguredShape, list[Curve]]:
    by_shape: dict[ConfiguredShape, list[Curve]] = {}
    for curve in curves:
        by_shape.setdefault(curve.kind.shape, []).append(curve)
    return by_shape

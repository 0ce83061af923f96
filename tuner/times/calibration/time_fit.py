"""Fits the parameters of the time model to measured times and priors."""

from collections.abc import Mapping

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.times.timemodel import intervals
from tuner.times.timemodel.features import Array, Features, Ints, Which
from tuner.times.timemodel.form import PARAMETERS, TimesOfCalls
from tuner.times.timemodel.intervals import BELIEVED_SCATTER, REGIMES, Scatter, Surface, SurfaceCurve

# How far a measured time may lie from the form before it counts less, natural log.
_NODE_SCATTER = 0.03
_NETWORK_SCATTER = 0.08  # between nodes, where sites are compared (tests/scripts/fit_network.py)
_START_LOG_SD = 1.0
_NO_EFFECT = 1e-9
_BELIEVED_ROWS = 10  # weight of the prior for a regime's scatter, in rows
_WIDEST = 2.4  # a parameter may be this many standard deviations from its prior
_PARTS = 5  # the sizes are divided into this many parts, each of which is held out once
_STEPS = 6  # steps of a search that begins near its end
_STEP = float(np.sqrt(np.finfo(np.float64).eps))  # of a derivative
_LEAST_US = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredTimes:
    """Calls and their times in us, one element per call. ``launch``: index of each call's way of launching, from 0."""

    calls: Features
    times_us: Array
    launch: Ints

    def __len__(self) -> int:
        return len(self.times_us)

    def __getitem__(self, which: Which) -> "MeasuredTimes":
        return MeasuredTimes(self.calls[which], self.times_us[which], self.launch[which])


@dataclass(frozen=True, slots=True, eq=False)
class TimeFit:
    """Result of a fit. ``start_factors``: start_us of each way of launching over start_us of the first. ``left``: the
    number of rows less the number of parameters, which limits how many values the surface's curves have.
    """

    parameters: Mapping[str, float]
    start_factors: Array
    surface: Surface
    left: int


def fit(measured: MeasuredTimes, beliefs: Mapping[str, float], begin: Mapping[str, float] | None = None) -> TimeFit:
    """The parameters that fit the times and priors best, and the surface of the differences that they leave.

    ``beliefs``: the priors' medians by name; ``begin``: parameters near the result, if known. The fit minimises
    softened absolute differences of logarithms.
    """
    times = TimesOfCalls(measured.calls)
    names = _reached(times, beliefs)
    believed = np.log([beliefs[name] for name in names])
    widths = np.array([PARAMETERS[name].log_sd for name in names])
    scatter = np.where(measured.calls.nodes > 1, _NETWORK_SCATTER, _NODE_SCATTER)
    log_times = np.log(measured.times_us)
    launches = int(measured.launch.max()) + 1

    def parts(vector: Array) -> tuple[dict[str, float], Array]:
        values = dict(beliefs)
        values.update(zip(names, np.exp(vector[: len(names)]).tolist(), strict=True))
        return values, np.exp(np.concatenate([[0.0], vector[len(names) :]]))

    def differences(vector: Array) -> Array:
        values, starts = parts(vector)
        return log_times - np.log(_started_us(values, starts, measured, times))

    def residuals(vector: Array) -> Array:
        off = softened(differences(vector) / scatter)
        return np.concatenate([off, (vector[: len(names)] - believed) / widths, vector[len(names) :] / _START_LOG_SD])

    widths_of_all = np.concatenate([widths, np.full(launches - 1, _START_LOG_SD)])

    def slope(vector: Array) -> Array:
        """Derivatives of the residuals, [residual, parameter]: forward differences, or backward ones at an upper
        bound."""
        steps = _STEP * np.maximum(1.0, np.abs(vector)) * np.where(vector < 0, -1, 1)
        beside = np.where(vector + steps > highest, vector - steps, vector + steps)
        (values, starts), (values_beside, starts_beside) = parts(vector), parts(beside)
        each_us = times.times_us_each_changed(values, {name: values_beside[name] for name in names})
        start_us = np.array([(values_beside if name == "start_us" else values)["start_us"] for name in names])
        each_us += start_us[:, None] * (starts[measured.launch] - 1)
        of_starts = np.where(np.eye(launches, dtype=np.bool_)[1:], starts_beside, starts)[:, measured.launch]
        started_us = np.vstack([each_us, times.times_us(values) + values["start_us"] * (of_starts - 1)])
        risen = softened((log_times - np.log(np.maximum(started_us, _LEAST_US))) / scatter)
        risen -= softened(differences(vector) / scatter)
        return np.vstack([(risen / (beside - vector)[:, None]).T, np.diag(1 / widths_of_all)])

    first = np.log([(begin or beliefs)[name] for name in names])
    steps = _STEPS if begin else None
    # A parameter further away than this no longer means what its name says.
    most = np.concatenate([_WIDEST * widths, np.full(launches - 1, np.inf)])
    middle = np.concatenate([believed, np.zeros(launches - 1)])
    highest = middle + most
    first = np.clip(first, believed - _WIDEST * widths * 0.99, believed + _WIDEST * widths * 0.99)
    from scipy.optimize import least_squares  # takes long to load

    settled = least_squares(
        residuals,
        np.concatenate([first, np.zeros(launches - 1)]),
        jac=slope,
        bounds=(middle - most, highest),
        max_nfev=steps,
    ).x
    values, starts = parts(settled)
    left = len(measured) - len(settled)
    return TimeFit(values, starts, intervals.learnt(measured.calls, differences(settled), left), left)


def uncertainty(
    measured: MeasuredTimes, fitted: TimeFit, beliefs: Mapping[str, float]
) -> tuple[Scatter, list[SurfaceCurve]]:
    """Errors of fits to four fifths of the sizes, each on the sizes that its fit has not seen.

    Returns the errors by regime, then the errors near each call in units of its regime's error.

    With few rows, the errors on other machines count as well.
    """
    sizes = np.searchsorted(np.unique(measured.calls.bytes), measured.calls.bytes)
    off = np.full(len(measured), np.nan)
    for part in range(_PARTS):
        held = sizes % _PARTS == part
        if held.any() and not held.all():
            again = fit(measured[~held], beliefs, fitted.parameters)
            off[held] = np.abs(np.log(measured.times_us[held] / _predicted_us(again, measured[held])))
    known = np.flatnonzero(np.isfinite(off))
    calls, off = measured.calls[known], off[known]
    scatter = _scatter(calls, off)
    usual = np.array([scatter[regime] for regime in REGIMES])[intervals.regimes(calls)]
    left = fitted.left - sum(len(each.values) for each in fitted.surface.curves)
    return scatter, intervals.spread(calls, off / usual, left)


def _predicted_us(fitted: TimeFit, measured: MeasuredTimes) -> Array:
    """Predicted times in us, one per call; a way of launching that was not fitted gets the start of the first way."""
    missing = max(int(measured.launch.max()) + 1 - len(fitted.start_factors), 0)
    starts = np.concatenate([fitted.start_factors, np.ones(missing)])
    times_us = _started_us(fitted.parameters, starts, measured, TimesOfCalls(measured.calls))
    return np.asarray(times_us * np.exp(fitted.surface.log_factors(measured.calls)))


def _started_us(
    parameters: Mapping[str, float], start_factors: Array, measured: MeasuredTimes, times: TimesOfCalls
) -> Array:
    """Modelled times in us, one per call, with the start of the call's way of launching. ``times`` is for the same
    calls.
    """
    more = parameters["start_us"] * (start_factors[measured.launch] - 1)
    times_us: Array = np.maximum(times.times_us(parameters) + more, _LEAST_US)
    return times_us


def softened(off: Array) -> Array:
    """Softens differences, numbers [row] in units of the expected one: small ones stay, large ones grow like square
    roots.
    """
    soft: Array = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))
    return soft


def _scatter(calls: Features, off: Array) -> Scatter:
    """Mean absolute difference of logarithms by regime."""
    regimes = intervals.regimes(calls)
    return {
        regime: float(
            (off[regimes == at].sum() + _BELIEVED_ROWS * BELIEVED_SCATTER[regime])
            / (np.count_nonzero(regimes == at) + _BELIEVED_ROWS)
        )
        for at, regime in enumerate(REGIMES)
    }


def _reached(times: TimesOfCalls, values: Mapping[str, float]) -> list[str]:
    """Names of the parameters on which any of the times depends."""
    times_us = times.times_us(values)
    return [
        name
        for name in PARAMETERS
        if np.abs(times.times_us({**values, name: values[name] * 1.1}) / times_us - 1).max() > _NO_EFFECT
    ]

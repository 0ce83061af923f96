"""Parameters of the time model from measured times: beliefs and measurements weighed against each other."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from tuner.timemodel import intervals, surface
from tuner.timemodel.features import Array, Features, Ints, Which
from tuner.timemodel.form import Form
from tuner.timemodel.intervals import REGIMES, Regime, Scatter
from tuner.timemodel.parameters import PARAMETERS
from tuner.timemodel.surface import Surface

# How far a measured time may lie from the form before it counts less, natural log.
_NODE_SCATTER = 0.03
_NETWORK_SCATTER = 0.08
_START_LOG_SD = 1.0
_NO_EFFECT = 1e-9
# The scatter of a machine of which little is measured, and how many rows that belief is worth.
_BELIEVED_SCATTER = {
    Regime.node_low_latency: 0.025,
    Regime.node_simple: 0.035,
    Regime.node_nvls: 0.05,
    Regime.network_low_latency: 0.12,
    Regime.network_simple: 0.07,
}
_BELIEVED_ROWS = 10


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Calls and what they took in us, [call]. ``launch``: which way of launching each belongs to, from 0 on."""

    calls: Features
    times_us: Array
    launch: Ints

    def __len__(self) -> int:
        return len(self.times_us)

    def __getitem__(self, which: Which) -> "Measured":
        return Measured(self.calls[which], self.times_us[which], self.launch[which])


@dataclass(frozen=True, slots=True, eq=False)
class TimeFit:
    """``start_factors``: how start_us of each way of launching stands to that of the first."""

    parameters: Mapping[str, float]
    start_factors: Array
    surface: Surface
    scatter: Scatter


def fit(measured: Measured, beliefs: Mapping[str, float]) -> TimeFit:
    """The parameters that explain the times best, beliefs counted; and the surface of what is left.

    ``beliefs``: medians by name. Loss: soft absolute differences of logarithms.
    """
    names = _reached(measured.calls, beliefs)
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
        return log_times - np.log(started_us(values, starts, measured))

    def residuals(vector: Array) -> Array:
        off = softened(differences(vector) / scatter)
        return np.concatenate([off, (vector[: len(names)] - believed) / widths, vector[len(names) :] / _START_LOG_SD])

    settled = least_squares(residuals, np.concatenate([believed, np.zeros(launches - 1)])).x
    values, starts = parts(settled)
    off = differences(settled)
    return TimeFit(values, starts, surface.learnt(measured.calls, off), _scatter(measured.calls, off))


def started_us(parameters: Mapping[str, float], start_factors: Array, measured: Measured) -> Array:
    """The form's times in us, [call], with the start of each call's way of launching."""
    more = parameters["start_us"] * (start_factors[measured.launch] - 1)
    return np.maximum(Form(parameters).times_us(measured.calls) + more, 1e-3)


def softened(off: Array) -> Array:
    """Differences as numbers in units of what is expected, [row]: small ones stay, large ones count as their roots."""
    soft: Array = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))
    return soft


def _scatter(calls: Features, off: Array) -> Scatter:
    """Mean absolute logarithms by regime, a few rows weighed against what other machines show."""
    regimes = intervals.regimes(calls)
    return {
        regime: float(
            (np.abs(off[regimes == at]).sum() + _BELIEVED_ROWS * _BELIEVED_SCATTER[regime])
            / (np.count_nonzero(regimes == at) + _BELIEVED_ROWS)
        )
        for at, regime in enumerate(REGIMES)
    }


def _reached(calls: Features, values: Mapping[str, float]) -> list[str]:
    """The parameters that any of the times depends on."""
    times_us = Form(values).times_us(calls)
    return [
        name
        for name in PARAMETERS
        if np.abs(Form({**values, name: values[name] * 1.1}).times_us(calls) / times_us - 1).max() > _NO_EFFECT
    ]

"""Simpler means to predict times, for comparison: each is fitted to the same rows and predicts the same others.

Shapes: each answers with times in us, [row], NaN where it has no answer.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np

from tuner.base.names import Collective
from tuner.times.calibration.measured_calls import MeasuredCalls
from tuner.times.timemodel.features import Array, Ints

Baseline = Callable[[MeasuredCalls, MeasuredCalls], Array]


def nccl(_: MeasuredCalls, test: MeasuredCalls) -> Array:
    """NCCL's own model."""
    return test.nccl_us


def scaled(fit: MeasuredCalls, test: MeasuredCalls) -> Array:
    """NCCL's own model, times one factor."""
    times: Array = test.nccl_us * np.exp(np.median(np.log(fit.measured.times_us / fit.nccl_us)))
    return times


def alpha_beta(fit: MeasuredCalls, test: MeasuredCalls) -> Array:
    """A time for each step and for each byte that a rank sends, for each collective, algorithm and protocol."""
    times: Array
    times, known, asked = np.full(len(test), np.nan), _combinations(fit), _combinations(test)
    for combination in np.unique(asked).tolist():
        rows, which = known == combination, asked == combination
        if rows.any():
            measured_us = fit.measured.times_us[rows]
            terms = _steps_and_bytes(fit)[rows] / measured_us[:, None]
            from scipy.optimize import nnls  # slow to load

            factors, _ = nnls(terms, np.ones(len(measured_us)))
            times[which] = _steps_and_bytes(test)[which] @ factors
    times = np.maximum(times, 1e-3)
    return times


def interpolated(fit: MeasuredCalls, test: MeasuredCalls) -> Array:
    """Between the measured sizes of the same collective, type, GPUs and nodes, in logarithms."""
    curves, times = _curves(fit), np.full(len(test), np.nan)
    for key, places in _places(test).items():
        if key in curves:
            sizes, log_us = curves[key]
            times[places] = np.exp(np.interp(np.log(test.measured.calls.bytes[places]), sizes, log_us))
    return times


def carried(fit: MeasuredCalls, test: MeasuredCalls) -> Array:
    """The measured time of the same call, whatever else has changed."""
    curves, times = _curves(fit), np.full(len(test), np.nan)
    for key, places in _places(test).items():
        if key in curves:
            sizes, log_us = curves[key]
            log_bytes = np.log(test.measured.calls.bytes[places])
            at = np.clip(np.searchsorted(sizes, log_bytes - 1e-9), 0, len(sizes) - 1)
            times[places] = np.where(np.abs(sizes[at] - log_bytes) < 1e-6, np.exp(log_us[at]), np.nan)
    return times


def boosted(fit: MeasuredCalls, test: MeasuredCalls) -> Array:
    """Gradient-boosted trees on what the form knows; NaN where scikit-learn is not installed."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError:
        return np.full(len(test), np.nan)
    trees = HistGradientBoostingRegressor(max_iter=300, learning_rate=0.05, min_samples_leaf=5, random_state=0)
    trees.fit(_columns(fit), np.log(fit.measured.times_us / fit.nccl_us))
    times: Array = test.nccl_us * np.exp(trees.predict(_columns(test)))
    return times


BASELINES: Mapping[str, Baseline] = {
    "NCCL's model": nccl,
    "one factor": scaled,
    "alpha-beta": alpha_beta,
    "interpolation": interpolated,
    "old times": carried,
    "boosting": boosted,
}


def _combinations(calls: MeasuredCalls) -> Ints:
    features = calls.measured.calls
    return features.collective * 1000 + features.algo_proto


def _steps_and_bytes(calls: MeasuredCalls) -> Array:
    features = calls.measured.calls
    steps = (features.ranks - 1) * np.where(features.collective == Collective.AllReduce, 2, 1)
    return np.stack([np.ones(len(steps)), steps, steps * features.bytes / features.ranks], axis=1)


def _columns(calls: MeasuredCalls) -> Array:
    each = calls.measured.calls
    return np.stack(
        [
            np.log(each.bytes),
            np.log(calls.nccl_us),
            each.collective,
            each.algo_proto,
            each.ranks,
            each.nodes,
            each.channels,
            each.byte_reduced,
        ],
        axis=1,
    )


def _places(calls: MeasuredCalls) -> dict[tuple[int, ...], Ints]:
    each = calls.measured.calls
    columns = (each.collective, calls.dtype, calls.gpus_per_node, each.nodes.astype(np.int64))
    keys, inverse = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return {tuple(key.tolist()): np.flatnonzero(inverse.ravel() == at) for at, key in enumerate(keys.T)}


def _curves(calls: MeasuredCalls) -> dict[tuple[int, ...], tuple[Array, Array]]:
    """Logarithms of sizes, rising, and of the median time at each."""
    curves = {}
    for key, places in _places(calls).items():
        by_size: dict[float, list[float]] = defaultdict(list)
        log_bytes, log_us = np.log(calls.measured.calls.bytes[places]), np.log(calls.measured.times_us[places])
        for size, time in zip(log_bytes.tolist(), log_us.tolist(), strict=True):
            by_size[size].append(time)
        sizes = sorted(by_size)
        curves[key] = np.array(sizes), np.array([np.median(by_size[size]) for size in sizes])
    return curves

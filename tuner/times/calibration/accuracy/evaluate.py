"""Runs the frozen splits: fits to the rows that are kept and measures how well the fit predicts the held-out rows.

Shapes: times are arrays in us with one element per call, [call].
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.names import Collective
from tuner.times.calibration.accuracy import splits
from tuner.times.calibration.accuracy.splits import Split
from tuner.times.calibration.calibrate import of_calls
from tuner.times.calibration.measured_calls import MeasuredCalls
from tuner.times.timemodel import predict
from tuner.times.timemodel.calibration import Calibration
from tuner.times.timemodel.features import Array, Ints
from tuner.times.timemodel.intervals import BEYOND, COVERED, ON_ONE_NODE, WITH_FACTOR, CarriedOver, Factors, Place
from tuner.times.timemodel.predict import CalibratedTimes
from tuner.times.timemodel.sites import MANY_ROWS

_NEVER_TRIED = 1.5  # width for what was never held out, relative to the widest interval that was
# Share of times between nodes that intervals cover: the times of one table are off together, and some tables more than
# others
COVERED_BETWEEN = 0.93


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The errors of the predictions of one split: ``off`` has, per row, the absolute logarithm of predicted over
    measured time.

    ``scatter``: the fit's scatter near each row. ``unit``: the number that the factor of the split's kind of
    extrapolation multiplies. Between nodes, with many rows of a site, ``scatter`` is half the interval for another day
    or release, and ``unit`` is the scatter of similar calls before widening.
    """

    kind: CarriedOver
    split: Split
    machine: str
    off: Array
    scatter: Array
    unit: Array


def learn(scores: Iterable[Scores]) -> Factors:
    """Learns a factor for each kind of extrapolation: a conformal quantile of errors, splits weighted equally.

    For the extrapolation to other sizes, the quantile is of the errors themselves. For every other kind, it is of the
    part of the errors that other sizes do not explain, as squares of independent errors add up.
    """
    everything = list(scores)
    between = [_beside(each, 1.0) for each in everything if each.kind is CarriedOver.nodes]
    known = _tried(each for each in everything if each.kind is not CarriedOver.nodes)
    never = {
        beyond: max(value for kind, value in known.items() if (kind in BEYOND) == beyond) * _NEVER_TRIED
        for beyond in (False, True)
    }
    factors = {kind: known.get(kind, never[kind in BEYOND]) for kind in ON_ONE_NODE}
    return {**factors, CarriedOver.nodes: _quantile(between, COVERED_BETWEEN)}


def learn_scaled(scores: Iterable[Scores]) -> Factors:
    """Learns the factors for calls where the errors of all kinds of extrapolation are in units of the scatter."""
    known = _tried(scores)
    never = max(known.values()) * _NEVER_TRIED
    return {kind: known.get(kind, never) for kind in ON_ONE_NODE}


def _tried(scores: Iterable[Scores]) -> Factors:
    by_kind: dict[CarriedOver, list[Scores]] = defaultdict(list)
    for each in scores:
        by_kind[each.kind].append(each)
    sizes = _quantile([each.off / each.scatter for each in by_kind.pop(CarriedOver.sizes)])
    others = {kind: _quantile([_beside(each, sizes) for each in its]) for kind, its in by_kind.items()}
    return {**others, CarriedOver.sizes: sizes}


def _beside(scores: Scores, scatters: float) -> Array:
    """The number of units, per row, that the errors need in addition to ``scatters`` times the scatter."""
    more: Array = np.sqrt(np.maximum(scores.off**2 - (scatters * scores.scatter) ** 2, 0.0)) / scores.unit
    return more


def _quantile(off: list[Array], covered: float = COVERED) -> float:
    together = np.concatenate(off)
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in off])
    order = np.argsort(together)
    reached = np.cumsum(weights[order]) / weights.sum() * len(together) / (len(together) + 1)
    place = min(int(np.searchsorted(reached, covered)), len(together) - 1)
    return float(together[order[place]])


Baseline = Callable[[MeasuredCalls, MeasuredCalls], Array]


def nccl(_: MeasuredCalls, test: MeasuredCalls) -> Array:
    """Predicts by NCCL's own model."""
    return test.nccl_us


def scaled(fit: MeasuredCalls, test: MeasuredCalls) -> Array:
    """Predicts by NCCL's own model, times one factor."""
    times: Array = test.nccl_us * np.exp(np.median(np.log(fit.measured.times_us / fit.nccl_us)))
    return times


def alpha_beta(fit: MeasuredCalls, test: MeasuredCalls) -> Array:
    """Predicts by a time per step and per byte that a rank sends, for each collective, algorithm and protocol."""
    times: Array
    times, known, asked = np.full(len(test), np.nan), _combinations(fit), _combinations(test)
    for combination in np.unique(asked).tolist():
        rows, which = known == combination, asked == combination
        if rows.any():
            measured_us = fit.measured.times_us[rows]
            terms = _steps_and_bytes(fit)[rows] / measured_us[:, None]
            from scipy.optimize import nnls  # takes long to load

            factors, _ = nnls(terms, np.ones(len(measured_us)))
            times[which] = _steps_and_bytes(test)[which] @ factors
    times = np.maximum(times, 1e-3)
    return times


def interpolated(fit: MeasuredCalls, test: MeasuredCalls) -> Array:
    """Predicts by interpolation between measured sizes of the same collective, type, GPUs and nodes, in logarithms."""
    return _by_curves(fit, test, np.interp)


def carried(fit: MeasuredCalls, test: MeasuredCalls) -> Array:
    """Predicts the time that was measured for the same call, even if other conditions differ."""

    def measured(log_bytes: Array, sizes: Array, log_us: Array) -> Array:
        at = np.clip(np.searchsorted(sizes, log_bytes - 1e-9), 0, len(sizes) - 1)
        return np.where(np.abs(sizes[at] - log_bytes) < 1e-6, log_us[at], np.nan)

    return _by_curves(fit, test, measured)


def _by_curves(fit: MeasuredCalls, test: MeasuredCalls, log_us_at: Callable[[Array, Array, Array], Array]) -> Array:
    """Predicts by the curve of the same kind of call, NaN without one. ``log_us_at`` gets the logarithms of the sizes
    to predict, then those of the curve's sizes and times."""
    curves, times = _curves(fit), np.full(len(test), np.nan)
    for key, places in _places(test).items():
        if key in curves:
            times[places] = np.exp(log_us_at(np.log(test.measured.calls.bytes[places]), *curves[key]))
    return times


def boosted(fit: MeasuredCalls, test: MeasuredCalls) -> Array:
    """Predicts by gradient-boosted trees on the form's features; NaN where scikit-learn is not installed."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError:
        return np.full(len(test), np.nan)
    trees = HistGradientBoostingRegressor(max_iter=150, learning_rate=0.1, min_samples_leaf=5, random_state=0)
    with _one_thread():  # limits its own threads, which are loaded only now
        trees.fit(_columns(fit), np.log(fit.measured.times_us / fit.nccl_us))
        predicted = trees.predict(_columns(test))
    times: Array = test.nccl_us * np.exp(predicted)
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
    combinations: Ints = features.collective * 1000 + features.algo_proto
    return combinations


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
    """Logarithms of the sizes, ascending, and of the median time at each size, by kind of call."""
    curves = {}
    for key, places in _places(calls).items():
        by_size: dict[float, list[float]] = defaultdict(list)
        log_bytes, log_us = np.log(calls.measured.calls.bytes[places]), np.log(calls.measured.times_us[places])
        for size, time in zip(log_bytes.tolist(), log_us.tolist(), strict=True):
            by_size[size].append(time)
        sizes = sorted(by_size)
        curves[key] = np.array(sizes), np.array([np.median(by_size[size]) for size in sizes])
    return curves


MODEL = "time model"
FEWEST_ROWS = 8  # fewer rows say nothing about a kind by themselves


@dataclass(frozen=True, slots=True)
class SplitResult:
    """One split: mean absolute errors by model (None if one has no answer), and what the intervals cover.

    ``group`` names the splits with which this one is averaged: the kind, and whether several nodes were predicted.
    """

    split: Split
    group: str
    rows: int
    errors: Mapping[str, float | None]
    coverage: float
    half_width: float


@dataclass(frozen=True, slots=True, eq=False)
class _Predicted:
    """A split, predicted by a calibration that is made from the rows to fit to; its interval factors are not known
    yet.
    """

    split: Split
    fit: MeasuredCalls
    test: MeasuredCalls
    calibration: Calibration
    log_us: Array

    @property
    def off(self) -> Array:
        times: Array = np.abs(self.log_us - np.log(self.test.measured.times_us))
        return times

    @property
    def same_machine(self) -> bool:
        return self.split.kind != CarriedOver.machine.name


def run(progress: Callable[[int, int], None] | None = None) -> tuple[tuple[SplitResult, ...], Factors]:
    """Runs all splits; also returns the factors learnt from the errors on all machines.

    The intervals of a split come from the errors on other machines.
    """
    predicted, everything = [], splits.splits()
    with _one_thread():
        for done, split in enumerate(everything, 1):
            predicted.append(_predict(split))
            if progress:
                progress(done, len(everything))
        scores = [score for each in predicted if (score := _scores(each)) is not None]
        results = tuple(_result(each, learn(of_others(scores, each.split))) for each in predicted)
    return results, learn(scores)


def _one_thread() -> AbstractContextManager[object]:
    """Limits the linear algebra and tree libraries to one thread, if threadpoolctl (part of scikit-learn) is installed.

    With matrices and trees this small, threads that wait for each other are several times slower than one.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    import_module("scipy.linalg")  # a library that is not loaded yet would not be limited
    limited: AbstractContextManager[object] = threadpool_limits(1)
    return limited


def error_of(split: Split) -> tuple[float, int]:
    """The mean absolute error of the time model on a split, as a share, and the number of predicted rows."""
    predicted = _predict(split)
    test = predicted.test
    return mean_absolute_error(np.exp(predicted.log_us), test.measured.times_us), len(test)


def of_others(scores: Sequence[Scores], split: Split) -> list[Scores]:
    """The scores of other machines than the split's. For kinds of extrapolation that no other machine tried, adds the
    scores of the same machine's other splits.
    """
    others = [score for score in scores if score.machine != split.machine]
    tried = {score.kind for score in others}
    own = [score for score in scores if score.kind not in tried and score.split != split]
    return [*others, *own]


def predicted_times(calibration: Calibration, test: MeasuredCalls, *, same_machine: bool) -> CalibratedTimes:
    """The times that a calibration predicts, one per row, with the start time of its first way of launching."""
    calls = test.measured.calls
    of_places: dict[Place, list[int]] = defaultdict(list)
    for at, place in enumerate(test.places()):
        of_places[place].append(at)
    adapters_gbs = predict.adapters_gbs(test.machine)
    parts = []
    for place, rows in of_places.items():
        where = np.array(rows)
        times = predict.times_at(calibration, calls[where], place, same_machine=same_machine, adapters_gbs=adapters_gbs)
        parts.append((where, times))
    return predict.joined_times(parts, len(test))


def _predict(split: Split) -> _Predicted:
    fit, test = splits.halves(split)
    calibration = of_calls(fit, dict.fromkeys(WITH_FACTOR, 0.0))
    times = predicted_times(calibration, test, same_machine=True)
    return _Predicted(split, fit, test, calibration, np.log(times.time_us))


def _scores(predicted: _Predicted) -> Scores | None:
    """The errors from which factors are learnt; None for times between nodes that are predicted from few rows of the
    site or none.
    """
    if predicted.split.is_between_nodes:
        return _scores_between(predicted)
    kind, test = CarriedOver[predicted.split.kind], predicted.test
    certainty = predicted.calibration.certainty(same_machine=predicted.same_machine)
    calls, places = test.measured.calls, test.places()
    scatter, unit = certainty.unit(CarriedOver.sizes, calls), certainty.unit(kind, calls)
    carried = {place: set(certainty.carried_over(place)) - {CarriedOver.sizes, kind} for place in places}
    # The rows whose errors only show this kind of extrapolation.
    alone = np.array([not carried[place] for place in places])
    if kind is not CarriedOver.sizes_beyond:
        alone &= certainty.octaves_beyond(calls) == 0
    if np.count_nonzero(alone) < FEWEST_ROWS:
        alone[:] = True
    # In a split with both, rows between nodes are treated separately.
    alone &= (unit > 0) & (calls.nodes == 1)
    split = predicted.split
    return Scores(kind, split, split.machine, predicted.off[alone], scatter[alone], unit[alone])


def _scores_between(predicted: _Predicted) -> Scores | None:
    rows, split = predicted.calibration.between, predicted.split
    if rows is None or len(rows) < MANY_ROWS:
        return None
    test, process = predicted.test, predicted.calibration.process
    calls = test.measured.calls
    alike = process.has_measured(calls.collective, calls.algo_proto)
    if not alike.any():
        return None
    another_release = not {place.nccl for place in test.places()} & {*predicted.calibration.between_releases}
    apart, rest = (np.sqrt(each) for each in process.squares(calls, another_release=another_release))
    return Scores(CarriedOver.nodes, split, split.machine, predicted.off[alike], apart[alike], rest[alike])


def _result(predicted: _Predicted, learnt: Factors) -> SplitResult:
    test = predicted.test
    said = predicted_times(replace(predicted.calibration, factors=learnt), test, same_machine=predicted.same_machine)
    errors = {name: _mean_error(baseline(predicted.fit, test), test) for name, baseline in BASELINES.items()}
    times_us = test.measured.times_us
    return SplitResult(
        split=predicted.split,
        group=_group(predicted.split, test),
        rows=len(test),
        errors={MODEL: _mean_error(said.time_us, test), **errors},
        coverage=coverage(said, times_us),
        half_width=half_width(said),
    )


def _group(split: Split, test: MeasuredCalls) -> str:
    about_nodes = "nodes" in split.kind
    return split.kind if about_nodes or (test.measured.calls.nodes == 1).all() else f"{split.kind}, several nodes"


def _mean_error(times_us: Array, test: MeasuredCalls) -> float | None:
    known = np.isfinite(times_us)
    if known.mean() < 0.99:
        return None
    return mean_absolute_error(times_us[known], test.measured.times_us[known])


def mean_absolute_error(predicted_us: Array, measured_us: Array) -> float:
    """The mean of abs(predicted / measured - 1). Both arrays have one time in us per row."""
    return float(np.abs(predicted_us / measured_us - 1).mean())


def summary(results: Sequence[SplitResult]) -> dict[str, dict[str, float | None]]:
    """Mean errors by group of splits and by model; every split has the same weight. None if a model has no answer."""
    mean_errors: dict[str, dict[str, float | None]] = {}
    for group in dict.fromkeys(each.group for each in results):
        own = [each for each in results if each.group == group]
        mean_errors[group] = {}
        for model in own[0].errors:
            values = [value for each in own if (value := each.errors[model]) is not None]
            mean_errors[group][model] = float(np.mean(values)) if len(values) == len(own) else None
    return mean_errors


def coverage(said: CalibratedTimes, measured_us: Array) -> float:
    """The share of measured times, one per row, that are within their intervals."""
    return float(((said.low_us <= measured_us) & (measured_us <= said.high_us)).mean())


def half_width(said: CalibratedTimes) -> float:
    """Half of the intervals, as a share of the times: the mean over rows."""
    return float(((said.high_us - said.low_us) / said.time_us).mean() / 2)


@dataclass(frozen=True, slots=True)
class SplitsAccuracy:
    """Results of all splits. ``summary``: mean errors by group of splits and by model, as shares; None if a model has
    no answer.
    """

    splits: tuple[SplitResult, ...]
    summary: Mapping[str, Mapping[str, float | None]]
    factors: Factors


def of_splits(progress: Callable[[int, int], None] | None = None) -> SplitsAccuracy:
    """Runs the splits; ``progress`` is called with the number of finished splits and the number of all splits."""
    results, factors = run(progress)
    return SplitsAccuracy(results, summary(results), factors)

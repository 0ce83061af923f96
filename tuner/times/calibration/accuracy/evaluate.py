"""Runs the frozen splits: fit to what is kept, predict what is held out, say how far off and how well covered."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.times.calibration import time_fit
from tuner.times.calibration.accuracy import splits
from tuner.times.calibration.accuracy.baselines import BASELINES
from tuner.times.calibration.accuracy.splits import Halves, Split
from tuner.times.calibration.accuracy.widths import Scores, learn
from tuner.times.calibration.measured_calls import MeasuredCalls
from tuner.times.calibration.time_fit import TimeFit, Uncertainty
from tuner.times.timemodel.calibration import Calibration
from tuner.times.timemodel.features import Array
from tuner.times.timemodel.form import Form
from tuner.times.timemodel.intervals import CarriedOver, Certainty, Factors, Place
from tuner.times.timemodel.parameters import believed

MODEL = "time model"
FEWEST_ROWS = 8  # fewer say nothing of a kind alone


@dataclass(frozen=True, slots=True)
class SplitResult:
    """One split: mean absolute errors by model (None where one has no answer), and what the intervals cover.

    ``group``: what it is counted with; its kind, and whether several nodes were predicted.
    """

    split: Split
    group: str
    rows: int
    errors: Mapping[str, float | None]
    coverage: float
    half_width: float


@dataclass(frozen=True, slots=True, eq=False)
class _Predicted:
    split: Split
    halves: Halves
    fitted: TimeFit
    times_us: Array
    uncertainty: Uncertainty

    @property
    def places(self) -> list[Place]:
        return self.halves.test.places()

    @property
    def off(self) -> Array:
        times: Array = np.abs(np.log(self.times_us / self.halves.test.measured.times_us))
        return times


def run(progress: Callable[[int, int], None] | None = None) -> tuple[tuple[SplitResult, ...], Factors]:
    """All splits, and the half-widths that their errors say, all machines together.

    The intervals of a split go by the errors on other machines.
    """
    predicted, everything = [], splits.splits()
    for done, split in enumerate(everything, 1):
        predicted.append(_predict(split))
        if progress:
            progress(done, len(everything))
    scores = [_scores(each) for each in predicted]
    results = tuple(_result(each, learn(of_others(scores, each.split))) for each in predicted)
    return results, learn(scores)


def error_of(split: Split) -> tuple[float, int]:
    """The mean absolute error of the time model on a split, as a share, and the rows that are predicted."""
    both = splits.halves(split)
    fitted = time_fit.fit(both.fit.measured, believed(both.fit.generation))
    return mean_absolute_error(predicted_us(fitted, both.test), both.test.measured.times_us), len(both.test)


def of_others(scores: Sequence[Scores], split: Split) -> list[Scores]:
    """The scores of other machines; of what only this one was tried for, those of its other splits."""
    others = [score for score in scores if score.machine != split.machine]
    tried = {score.kind for score in others}
    own = [score for score in scores if score.kind not in tried and score.split != split]
    return [*others, *own]


def predicted_us(fitted: TimeFit | Calibration, test: MeasuredCalls) -> Array:
    """Times by a fit or a calibration in us, [row], with the start of its first way of launching."""
    calls = test.measured.calls
    times: Array = Form(fitted.parameters).times_us(calls) * np.exp(fitted.surface.log_factors(calls))
    return times


def _predict(split: Split) -> _Predicted:
    both = splits.halves(split)
    beliefs = believed(both.fit.generation)
    fitted = time_fit.fit(both.fit.measured, beliefs)
    uncertainty = time_fit.uncertainty(both.fit.measured, fitted, beliefs)
    return _Predicted(split, both, fitted, predicted_us(fitted, both.test), uncertainty)


def _scores(predicted: _Predicted) -> Scores:
    kind, calls = _kind(predicted), predicted.halves.test.measured.calls
    certainty = _certainty(predicted, {})
    scatter, unit = certainty.unit(CarriedOver.sizes, calls), certainty.unit(kind, calls)
    carried = {place: set(certainty.carried_over(place)) - {CarriedOver.sizes, kind} for place in predicted.places}
    # Rows whose errors say something of this kind alone.
    alone = np.array([not carried[place] for place in predicted.places])
    if np.count_nonzero(alone) < FEWEST_ROWS:
        alone[:] = True
    split = predicted.split
    return Scores(kind, split, split.machine, predicted.off[alone], scatter[alone], unit[alone])


def _kind(predicted: _Predicted) -> CarriedOver:
    """What the split carries over; another collective is another thing between nodes."""
    kind = splits.carried_over(predicted.split)
    between = (predicted.halves.test.measured.calls.nodes > 1).all()
    return CarriedOver.network_collective if kind is CarriedOver.collective and between else kind


def _certainty(predicted: _Predicted, factors: Factors) -> Certainty:
    known, same_machine = predicted.uncertainty, predicted.split.kind != CarriedOver.machine.name
    return Certainty(predicted.halves.fit.scope(), known.scatter, known.spread, factors, same_machine)


def _result(predicted: _Predicted, learnt: Factors) -> SplitResult:
    test = predicted.halves.test
    half = half_widths(test, _certainty(predicted, learnt))
    errors = {name: _mean_error(baseline(predicted.halves.fit, test), test) for name, baseline in BASELINES.items()}
    return SplitResult(
        split=predicted.split,
        group=_group(predicted.split, test),
        rows=len(test),
        errors={MODEL: _mean_error(predicted.times_us, test), **errors},
        coverage=float((predicted.off <= half).mean()),
        half_width=float(np.sinh(half).mean()),
    )


def half_widths(test: MeasuredCalls, certainty: Certainty) -> Array:
    """Half the interval around each row's logarithm, [row]; numbers without a unit."""
    calls, half = test.measured.calls, np.empty(len(test))
    of_places: dict[Place, list[int]] = defaultdict(list)
    for at, place in enumerate(test.places()):
        of_places[place].append(at)
    for place, rows in of_places.items():
        half[rows] = certainty.half_widths(calls[np.array(rows)], place)
    return half


def _group(split: Split, test: MeasuredCalls) -> str:
    about_nodes = "nodes" in split.kind
    return split.kind if about_nodes or (test.measured.calls.nodes == 1).all() else f"{split.kind}, several nodes"


def _mean_error(times_us: Array, test: MeasuredCalls) -> float | None:
    known = np.isfinite(times_us)
    if known.mean() < 0.99:
        return None
    return mean_absolute_error(times_us[known], test.measured.times_us[known])


def mean_absolute_error(predicted_us: Array, measured_us: Array) -> float:
    """The mean of abs(predicted / measured - 1) over times in us, [row]."""
    return float(np.abs(predicted_us / measured_us - 1).mean())


def summary(results: Sequence[SplitResult]) -> dict[str, dict[str, float | None]]:
    """Mean errors by group of splits and model, splits counted alike; None where a model has no answer."""
    mean_errors: dict[str, dict[str, float | None]] = {}
    for group in dict.fromkeys(each.group for each in results):
        own = [each for each in results if each.group == group]
        mean_errors[group] = {}
        for model in own[0].errors:
            values = [value for each in own if (value := each.errors[model]) is not None]
            mean_errors[group][model] = float(np.mean(values)) if len(values) == len(own) else None
    return mean_errors

"""Runs the frozen splits: fit to what is kept, predict what is held out, say how far off and how well covered."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.times.calibration.accuracy import splits
from tuner.times.calibration.accuracy.baselines import BASELINES
from tuner.times.calibration.accuracy.splits import Halves, Split
from tuner.times.calibration.accuracy.widths import Scores, learn
from tuner.times.calibration.calibrate import of_calls
from tuner.times.calibration.measured_calls import MeasuredCalls
from tuner.times.timemodel import predict
from tuner.times.timemodel.calibration import Calibration
from tuner.times.timemodel.features import Array
from tuner.times.timemodel.intervals import ON_ONE_NODE, CarriedOver, Factors, Place
from tuner.times.timemodel.predict import CalibratedTimes

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
    """A split predicted by a calibration of what it keeps, whose factors are not known yet."""

    split: Split
    halves: Halves
    calibration: Calibration
    log_us: Array

    @property
    def off(self) -> Array:
        times: Array = np.abs(self.log_us - np.log(self.halves.test.measured.times_us))
        return times

    @property
    def same_machine(self) -> bool:
        return self.split.kind != CarriedOver.machine.name


def run(progress: Callable[[int, int], None] | None = None) -> tuple[tuple[SplitResult, ...], Factors]:
    """All splits, and the factors that the errors of those on one node say, all machines together.

    The intervals of a split go by the errors on other machines.
    """
    predicted, everything = [], splits.splits()
    for done, split in enumerate(everything, 1):
        predicted.append(_predict(split))
        if progress:
            progress(done, len(everything))
    scores = [_scores(each) for each in predicted if not each.split.is_between_nodes]
    results = tuple(_result(each, learn(of_others(scores, each.split))) for each in predicted)
    return results, learn(scores)


def error_of(split: Split) -> tuple[float, int]:
    """The mean absolute error of the time model on a split, as a share, and the rows that are predicted."""
    predicted = _predict(split)
    test = predicted.halves.test
    return mean_absolute_error(np.exp(predicted.log_us), test.measured.times_us), len(test)


def of_others(scores: Sequence[Scores], split: Split) -> list[Scores]:
    """The scores of other machines; of what only this one was tried for, those of its other splits."""
    others = [score for score in scores if score.machine != split.machine]
    tried = {score.kind for score in others}
    own = [score for score in scores if score.kind not in tried and score.split != split]
    return [*others, *own]


def predicted_times(calibration: Calibration, test: MeasuredCalls, *, same_machine: bool) -> CalibratedTimes:
    """Times of rows by a calibration, [row], with the start of its first way of launching."""
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
    both = splits.halves(split)
    calibration = of_calls(both.fit, dict.fromkeys(ON_ONE_NODE, 0.0))
    times = predicted_times(calibration, both.test, same_machine=True)
    return _Predicted(split, both, calibration, np.log(times.time_us))


def _scores(predicted: _Predicted) -> Scores:
    kind, test = CarriedOver[predicted.split.kind], predicted.halves.test
    certainty = predicted.calibration.certainty(same_machine=predicted.same_machine)
    calls, places = test.measured.calls, test.places()
    scatter, unit = certainty.unit(CarriedOver.sizes, calls), certainty.unit(kind, calls)
    carried = {place: set(certainty.carried_over(place)) - {CarriedOver.sizes, kind} for place in places}
    # Rows whose errors say something of this kind alone.
    alone = np.array([not carried[place] for place in places])
    if kind is not CarriedOver.sizes_beyond:
        alone &= certainty.octaves_beyond(calls) == 0
    if np.count_nonzero(alone) < FEWEST_ROWS:
        alone[:] = True
    # Of a split with both, those between nodes are another thing.
    alone &= (unit > 0) & (calls.nodes == 1)
    split = predicted.split
    return Scores(kind, split, split.machine, predicted.off[alone], scatter[alone], unit[alone])


def _result(predicted: _Predicted, learnt: Factors) -> SplitResult:
    test = predicted.halves.test
    said = predicted_times(replace(predicted.calibration, factors=learnt), test, same_machine=predicted.same_machine)
    errors = {name: _mean_error(baseline(predicted.halves.fit, test), test) for name, baseline in BASELINES.items()}
    times_us = test.measured.times_us
    return SplitResult(
        split=predicted.split,
        group=_group(predicted.split, test),
        rows=len(test),
        errors={MODEL: _mean_error(said.time_us, test), **errors},
        coverage=float(((said.low_us <= times_us) & (times_us <= said.high_us)).mean()),
        half_width=float(((said.high_us - said.low_us) / said.time_us).mean() / 2),
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

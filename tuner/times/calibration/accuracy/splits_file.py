"""The results of all frozen splits as one record, and the figures that are kept of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tuner.times.calibration.accuracy import evaluate
from tuner.times.calibration.accuracy.evaluate import SplitResult
from tuner.times.timemodel.intervals import Factors


@dataclass(frozen=True, slots=True)
class SplitsAccuracy:
    """``summary``: mean errors by kind of split and model, as shares; None where a model has no answer."""

    splits: tuple[SplitResult, ...]
    summary: Mapping[str, Mapping[str, float | None]]
    factors: Factors


def of_splits(progress: Callable[[int, int], None] | None = None) -> SplitsAccuracy:
    """Runs them; ``progress`` is told how many of how many are done."""
    results, factors = evaluate.run(progress)
    return SplitsAccuracy(results, evaluate.summary(results), factors)

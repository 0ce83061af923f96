"""What a launched collective takes: the planted truth of the simulated backend, by what was really launched."""

import os

import numpy as np

from tuner.measure.double.settings import DoubleSettings
from tuner.measure.records.samples import Combination, Point
from tuner.measure.simulated.truth import Truth, draw

STARTED = "TUNER_DOUBLE_STARTED"  # how often processes of this double were started before: later ones have other noise
_TRUTH_STREAM, _NOISE_STREAM = 0, 1


class Planted:
    """The same in every process of a double: it depends on the settings, and the noise on which start it is."""

    def __init__(self, settings: DoubleSettings) -> None:
        communicator = settings.scenario.communicator()
        drawn = draw(communicator.release, np.random.default_rng([settings.seed, _TRUTH_STREAM]))
        self.truth = Truth(communicator, drawn if settings.planted else {})
        self._settings = settings
        self._started = int(os.environ.get(STARTED, "0"))

    def time_us(self, point: Point, launched: Combination, number: int) -> float:
        """Of the collective with this ``number`` in the communicator's order.

        ValueError for what the emulator says that it cannot run.
        """
        cost = self.truth.costs(point).get(launched.algo_proto)
        if cost is None:
            raise ValueError(f"{launched} was launched for {point}, which the emulator says cannot run")
        true_us = cost.time_us(launched.channels)
        stream = [self._settings.seed, _NOISE_STREAM, number, *([self._started] if self._started else [])]
        return float(true_us * np.exp(np.random.default_rng(stream).normal(0, self._settings.noise)))

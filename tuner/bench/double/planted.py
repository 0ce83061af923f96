"""What a launched collective takes: the planted truth of the simulated backend, by what was really launched."""

import os
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tuner.bench.double.environment import STARTED
from tuner.bench.double.settings import DoubleSettings
from tuner.bench.simulated.truth import Truth, draw
from tuner.scenario import Scenario
from tuner.times.records.run_elsewhere import usable
from tuner.times.records.samples import Combination, Point

_TRUTH_STREAM, _NOISE_STREAM = 0, 1


class Planted:
    """The same in every process of a double: it depends on the settings, and the noise on which start it is."""

    def __init__(self, settings: DoubleSettings) -> None:
        self._settings = settings
        self._started = int(os.environ.get(STARTED, "0"))
        self._truths: dict[int, Truth] = {}  # by the ranks of communicators

    def truth(self, ranks: int, environment: Mapping[str, str] | None = None) -> Truth:
        """Of a communicator of so many ranks, which NCCL initialised with these variables (None: the scenario's)."""
        if ranks not in self._truths:
            scenario, seed = _of_ranks(self._settings.scenario, ranks), self._settings.seed
            if environment is not None:
                scenario = usable(replace(scenario, environment=dict(environment)), None)
            communicator = scenario.communicator()
            drawn = draw(communicator.release, np.random.default_rng([seed, _TRUTH_STREAM]))
            self._truths[ranks] = Truth(communicator, drawn if self._settings.planted else {})
        return self._truths[ranks]

    def time_us(self, point: Point, launched: Combination, ranks: int, number: int) -> float:
        """Of the collective with this ``number`` in the order of a communicator of so many ranks.

        ValueError for what the emulator says that it cannot run.
        """
        own = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
        cost = self.truth(ranks, own).costs(point).get(launched.algo_proto)
        if cost is None:
            raise ValueError(f"{launched} was launched for {point}, which the emulator says cannot run")
        true_us = cost.time_us(launched.channels)
        stream = [self._settings.seed, _NOISE_STREAM, number, *([self._started] if self._started else [])]
        return float(true_us * np.exp(np.random.default_rng(stream).normal(0, self._settings.noise)))


def _of_ranks(scenario: Scenario, ranks: int) -> Scenario:
    """As many ranks on each GPU, else as many GPUs of each node."""
    per_node = ranks // scenario.nodes
    if per_node < scenario.gpus():
        return replace(scenario, gpus_per_node=per_node, ranks_per_gpu=None)
    sharing = per_node // scenario.gpus()
    return replace(scenario, ranks_per_gpu=sharing if sharing > 1 else scenario.ranks_per_gpu and 1)

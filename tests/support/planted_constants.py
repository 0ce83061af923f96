"""Files of measurements of a machine whose constants are known: the emulator with others, seen through noise."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuner import release
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator import fitted_constants
from tuner.emulator.build import with_release
from tuner.emulator.fitted_constants import FittedConstants
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.records.header import Header
from tuner.times.records.samples import Combination, Point, SampleBlock, Writer

SIZES = tuple(1 << power for power in range(3, 31))
ALL = tuple(Collective)


def true_us(
    scenario: Scenario, change: Mapping[str, Any], collective: Collective, sizes: Sequence[int]
) -> dict[Any, Any]:
    """By combination, the times of all sizes; only of combinations that the model has a time for."""
    communicator = scenario.communicator()
    nccl = fitted_constants.apply(release.load(scenario.nccl), FittedConstants(scenario.nccl, change, {}))
    selection = Selection(with_release(communicator, nccl))
    request = Request(collective, DataType.float32, Op.sum)
    times_us = selection.cost_table(request, sizes)
    out = selection.excluded(request)
    return {
        algo_proto: times_us[:, algo_proto[0], algo_proto[1]].astype(float)
        for algo_proto in ALGO_PROTOS
        if algo_proto not in out
    }


def blocks(
    scenario: Scenario,
    change: Mapping[str, Any],
    *,
    seed: int = 1,
    collectives: Iterable[Collective] = ALL,
    sizes: Sequence[int] = SIZES,
    repeats: int = 20,
    sigma: float = 0.02,
    spikes: float = 0.02,
) -> list[SampleBlock]:
    """Lognormal noise, and now and then a run that takes up to five times as long."""
    rng = np.random.default_rng(seed)
    made = []
    for collective in collectives:
        for (algorithm, protocol), times_us in true_us(scenario, change, collective, sizes).items():
            for nbytes, time_us in zip(sizes, times_us, strict=True):
                runs = time_us * np.exp(rng.normal(0, sigma, repeats))
                runs *= np.where(rng.random(repeats) < spikes, rng.uniform(1.5, 5, repeats), 1)
                requested = Combination(Algorithm(algorithm), Protocol(protocol))
                made.append(SampleBlock(Point(collective, nbytes), requested, requested, tuple(runs.tolist())))
    return made


def write(path: Path, scenario: Scenario, what: Iterable[SampleBlock]) -> Path:
    with Writer(path, Header(scenario=scenario)) as file:
        for block in what:
            file.add(block)
    return path

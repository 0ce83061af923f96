"""Floors: the least bus bandwidths that pass, for a gate that knows sizes and numbers and nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.emulator.request import Request
from tuner.times.acceptance.curves import Kind, Shape
from tuner.times.acceptance.expected import Expectation, Whose
from tuner.times.acceptance.judge import FIRST_BYTES, MOST_FIRST_US, band
from tuner.times.costmodels.bandwidth import bus_gbs


@dataclass(frozen=True, slots=True)
class Floor:
    """The floor of a size: expected time and bus bandwidth, and the longest time and least bandwidth that pass.

    Up to 4 MiB the time allows for the way of launching. ``measured``: whether the calibration has measured times of
    the pick's algorithm and protocol for this collective.
    """

    collective: str
    dtype: str
    nodes: int
    gpus_per_node: int
    bytes: int
    pick: str
    expected_us: float
    most_us: float
    expected_busbw_gbs: float
    floor_gbs: float
    time: Whose
    measured: bool


def floors(expectation: Expectation, requests: Sequence[Request], sizes: Sequence[int]) -> Iterator[Floor]:
    """The floors of calls of ``sizes``, NCCL's nBytes, on the communicator of the expectation's scenario."""
    scenario = expectation.scenario
    shape = Shape(scenario.nodes, scenario.gpus())
    nbytes = np.array(sizes, np.uint64)
    for request in requests:
        expected = expectation.times(Kind(shape, request), nbytes)
        start_us = np.where(nbytes <= FIRST_BYTES, MOST_FIRST_US, 0.0)
        most_us = expected.time_us * np.exp(band(expected)) + start_us
        both = [bus_gbs(request.collective, nbytes, times, shape.ranks) for times in (expected.time_us, most_us)]
        for at, name in enumerate(expected.pick_names()):
            yield Floor(
                collective=request.collective.name,
                dtype=request.dtype.name,
                nodes=shape.nodes,
                gpus_per_node=shape.gpus_per_node,
                bytes=int(nbytes[at]),
                pick=name,
                expected_us=float(expected.time_us[at]),
                most_us=float(most_us[at]),
                expected_busbw_gbs=float(both[0][at]),
                floor_gbs=float(both[1][at]),
                time=expected.whose,
                measured=bool(expected.measured[at]),
            )

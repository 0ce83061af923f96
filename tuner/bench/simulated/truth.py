"""A planted truth: what the calls of a communicator take where other constants hold than those of NCCL's model."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import ALGO_PROTOS, AlgoProto
from tuner.base.numerics import f32
from tuner.emulator import fitted_constants
from tuner.emulator.build import with_release
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request, Sizes
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import Call
from tuner.emulator.selection import Selection
from tuner.release import Release
from tuner.release.convert import plain
from tuner.times.records.samples import Combination, Point

# The bandwidth's part of the time grows by this power of own over used channels: half of them, 1.62 times.
CHANNELS_POWER = 0.7
NO_TIME_US = 3.6e9  # an hour: some releases say so, or more, of what their model has no time for, to have it come last
_GRID = tuple(1 << power for power in range(3, 31))
_SHARE = 0.35  # of the constants that a draw changes
_FACTORS = (0.5, 2.0)
_EFFICIENCIES = (0.5, 1.25)


def draw(nccl: Release, rng: np.random.Generator) -> dict[str, Any]:
    """A change of some of the release's constants, as :func:`tuner.emulator.fitted_constants.changed` takes it.

    About a third of latencies and caps by a factor of 0.5 to 2 (log-uniform), of bandwidths by 0.5 to 1.25, and some of
    the tree's corrections and of the ring's plateau.
    """
    latencies = plain(nccl.base_latency_us)
    change: dict[str, Any] = {
        "base_latency_us": _scaled_rows(latencies, rng),
        "hw_latency_us": {where: _scaled_rows(rows, rng) for where, rows in plain(nccl.hw_latency_us).items()},
        "cap_gbs": {
            name: {row: [value * factor for value in values] for row, values in rows.items()}
            for name, rows in nccl.cap_gbs.items()
            if (factor := _factor(rng)) is not None
        },
        "tree_correction": {
            protocol: [value**factor for value in values]
            for protocol, values in plain(nccl.tree_correction).items()
            if (factor := _factor(rng)) is not None
        },
        "efficiency": {
            algorithm: shares
            for algorithm, row in latencies.items()
            if (shares := {protocol: share for protocol in row if (share := _factor(rng, _EFFICIENCIES)) is not None})
        },
    }
    factor = _factor(rng)
    if factor is not None:
        change["ring_plateau"] = {
            generation: max(1.0, value * factor) for generation, value in nccl.ring_plateau.factors.items()
        }
    return {name: rows for name, rows in change.items() if rows}


def _scaled_rows(rows: Mapping[str, Mapping[str, float]], rng: np.random.Generator) -> dict[str, dict[str, float]]:
    scaled = {
        algorithm: {
            protocol: value * factor
            for protocol, value in row.items()
            if (factor := _factor(rng)) is not None and value > 0
        }
        for algorithm, row in rows.items()
    }
    return {algorithm: row for algorithm, row in scaled.items() if row}


def _factor(rng: np.random.Generator, between: tuple[float, float] = _FACTORS) -> float | None:
    """A factor for one constant, None where it stays; always takes as many random numbers."""
    chance, where = rng.random(2)
    return math.exp(math.log(between[0]) + where * math.log(between[1] / between[0])) if chance < _SHARE else None


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one cell at one size: the parts of its time, and the channels NCCL gives it of its own."""

    latency_us: float
    transfer_us: float
    channels: int

    def time_us(self, channels: int) -> float:
        """With so many channels; 0, or more than NCCL's own, are NCCL's own."""
        used = min(channels or self.channels, self.channels)
        slower: float = (self.channels / used) ** CHANNELS_POWER
        return self.latency_us + self.transfer_us * slower


class Truth:
    """Times of every combination on ``communicator`` if ``change`` were the truth about its release's constants."""

    def __init__(self, communicator: Communicator, change: Mapping[str, Any]) -> None:
        nccl = communicator.release
        self.change = dict(change)
        self._selection = Selection(with_release(communicator, fitted_constants.changed(nccl, change)))
        self._costs: dict[Request, dict[int, dict[AlgoProto, Cost]]] = {}

    def costs(self, point: Point) -> dict[AlgoProto, Cost]:
        """What NCCL can run at this point."""
        known = self._costs.setdefault(point.request, {})
        if point.bytes not in known:
            unit = point.unit_bytes(self._selection.communicator.ranks)
            sizes = sorted({point.bytes, *(size for size in _GRID if size % unit == 0)} - known.keys())
            known.update(zip(sizes, self._compute(point.request, sizes), strict=True))
        return known[point.bytes]

    def time_us(self, point: Point, combination: Combination) -> float:
        """The planted time of a combination, us."""
        return self.costs(point)[combination.algo_proto].time_us(combination.channels)

    def _compute(self, request: Request, sizes: Sequence[int]) -> list[dict[AlgoProto, Cost]]:
        communicator, tables = self._selection.communicator, self._selection.tables
        nbytes = np.array(sizes, np.uint64)
        table_us = self._selection.cost_table(request, nbytes)
        excluded = self._selection.excluded(request)
        by_size: list[dict[AlgoProto, Cost]] = [{} for _ in sizes]
        for algo_proto in ALGO_PROTOS:
            if algo_proto in excluded:
                continue
            total_us: NDArray[np.float32] = table_us[:, algo_proto[0], algo_proto[1]]
            start_us = tables.latency_us[(request.collective, *algo_proto)]
            call = Call(communicator, request, algo_proto)
            latency_us = timing.time_us(start_us, f32(np.inf), call, Sizes(nbytes))
            channels, _ = communicator.rules.launch(call, tables, nbytes)
            for row, costs in enumerate(by_size):
                if 0 < total_us[row] < NO_TIME_US:
                    transfer_us = float(total_us[row]) - float(latency_us[row])
                    costs[algo_proto] = Cost(float(latency_us[row]), transfer_us, max(1, int(channels[row])))
        return by_size

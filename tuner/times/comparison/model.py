"""What the emulator says of the communicator that was measured."""

import numpy as np
from numpy.typing import NDArray

from tuner.base.errors import NoAlgorithm
from tuner.base.names import ALGO_PROTOS, AlgoProto, Algorithm, Protocol
from tuner.emulator.selection import Selection
from tuner.times.records.header import scenario_of
from tuner.times.records.samples import Combination, Measurements, Point

WORD = 4  # bytes; sizes are whole numbers of these


class Model:
    """What the emulator says of the communicator that was measured."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._picks: dict[Point, Combination | None] = {}

    def pick(self, point: Point) -> Combination | None:
        """None where NCCL has no algorithm for it."""
        if point not in self._picks:
            try:
                picks = self.selection.pick(point.request, [point.bytes])
            except NoAlgorithm:
                self._picks[point] = None
            else:
                algo_proto = Algorithm(picks.algorithm[0]), Protocol(picks.protocol[0])
                self._picks[point] = Combination(*algo_proto, int(picks.channels[0]))
        return self._picks[point]

    def times_us(self, point: Point) -> dict[AlgoProto, float]:
        """The predicted time in us of every combination that NCCL does not ignore."""
        (table_us,) = self.selection.cost_table(point.request, [point.bytes])
        return {algo_proto: float(table_us[algo_proto]) for algo_proto in ALGO_PROTOS if table_us[algo_proto] > 0}

    def changes(self, kind: Point, low: int, high: int) -> list[int]:
        """First sizes of another pick in (low, high], exact to a word."""
        sizes = np.unique(np.append(np.geomspace(low, high, 512).astype(np.int64) // WORD * WORD, [low, high]))
        algo_protos = self._cells(kind, sizes)
        changes = []
        for index in np.flatnonzero(algo_protos[1:] != algo_protos[:-1]):
            below, above = int(sizes[index]), int(sizes[index + 1])
            while (between := (below + above) // 2 // WORD * WORD) > below:
                same = self._cells(kind, np.array([between]))[0] == algo_protos[index]
                below, above = (between, above) if same else (below, between)
            changes.append(above)
        return changes

    def _cells(self, kind: Point, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.selection.pick(kind.request, sizes).combinations


def model_of(measurements: Measurements) -> Model | None:
    """The emulator for a file's header; None where the header has no communicator that can be emulated."""
    header = measurements.header
    return None if header.scenario is None else Model(Selection(scenario_of(header).communicator()))

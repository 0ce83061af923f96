"""What the pictures show, as ``--json`` has it: numbers that are none are null."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.answers.choices import Choices
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.base.numerics import shortest
from tuner.base.records import json_form
from tuner.bench.series import Series
from tuner.emulator.request import Request
from tuner.scenario import Scenario
from tuner.scenario.description import ConstantsUsed


@dataclass(frozen=True, slots=True)
class PicturedCall:
    """The calls of a picture, of all its sizes."""

    collective: Collective
    dtype: DataType
    op: Op
    buffers: Buffers

    @classmethod
    def of(cls, request: Request) -> "PicturedCall":
        return cls(request.collective, request.dtype, request.op, request.buffers)


@dataclass(frozen=True, slots=True)
class PicturedMachine:
    """Where they run; the number of nodes is the picture's."""

    constants: ConstantsUsed = field(metadata=json_form(merged=True))
    machine: str
    gpus_per_node: int
    environment: Mapping[str, str]

    @classmethod
    def of(cls, scenario: Scenario) -> "PicturedMachine":
        return cls(scenario.constants, scenario.name, scenario.gpus(), scenario.environment or {})


@dataclass(frozen=True, slots=True)
class PicturedRow:
    """Picks on one number of nodes, [bytes]; None where NCCL finds nothing to run."""

    algorithm: list[str | None]
    protocol: list[str | None]
    channels: list[int]
    threads: list[int]
    time_us: list[float | None]

    @classmethod
    def of(cls, picks: Choices, row: int) -> "PicturedRow":
        return cls(
            [Algorithm(one).name if one >= 0 else None for one in picks.algorithm[row].tolist()],
            [Protocol(one).name if one >= 0 else None for one in picks.protocol[row].tolist()],
            picks.channels[row].tolist(),
            picks.threads[row].tolist(),
            known(picks.time_us[row]),
        )


@dataclass(frozen=True, slots=True)
class PicturedPicks:
    """Picks by number of nodes and size, [nodes][bytes], as :class:`PicturedRow`."""

    algorithm: list[list[str | None]]
    protocol: list[list[str | None]]
    channels: list[list[int]]
    threads: list[list[int]]
    time_us: list[list[float | None]]

    @classmethod
    def of(cls, picks: Choices) -> "PicturedPicks":
        rows = [PicturedRow.of(picks, row) for row in range(len(picks.nodes))]
        return cls(
            [row.algorithm for row in rows],
            [row.protocol for row in rows],
            [row.channels for row in rows],
            [row.threads for row in rows],
            [row.time_us for row in rows],
        )


@dataclass(frozen=True, slots=True)
class PicturedMap:
    """``plot map``."""

    call: PicturedCall = field(metadata=json_form(merged=True))
    machine: PicturedMachine = field(metadata=json_form(merged=True))
    nodes: tuple[int, ...]
    bytes: NDArray[np.uint64]
    picks: PicturedPicks = field(metadata=json_form(merged=True))


@dataclass(frozen=True, slots=True)
class PicturedSide:
    """One side of ``plot diff``."""

    machine: PicturedMachine = field(metadata=json_form(merged=True))
    picks: PicturedPicks = field(metadata=json_form(merged=True))


@dataclass(frozen=True, slots=True)
class PicturedChange:
    """``plot diff``: ``changed`` and the ``ratio`` of times, after to before, are [nodes][bytes]."""

    call: PicturedCall = field(metadata=json_form(merged=True))
    nodes: list[int]
    bytes: NDArray[np.uint64]
    before: PicturedSide
    after: PicturedSide
    changed: NDArray[np.bool_]
    ratio: list[list[float | None]]


@dataclass(frozen=True, slots=True)
class PicturedCurves:
    """``plot curves``: times by combination, [bytes]; ``bus_factor`` makes bus bandwidths of them."""

    call: PicturedCall = field(metadata=json_form(merged=True))
    machine: PicturedMachine = field(metadata=json_form(merged=True))
    nodes: int
    ranks: int
    bytes: NDArray[np.uint64]
    bus_factor: float
    pick: PicturedRow
    time_us: Mapping[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class PicturedSeries:
    """Measured times of a combination with their bounds, and predicted ones, [bytes]; channels None: NCCL's own."""

    algorithm: Algorithm
    protocol: Protocol
    channels: int | None
    bytes: NDArray[np.int64]
    measured_us: list[float | None]
    low_us: list[float | None]
    high_us: list[float | None]
    predicted_us: list[float | None]

    @classmethod
    def of(cls, one: Series) -> "PicturedSeries":
        times = (known(values) for values in (one.measured_us, one.low_us, one.high_us, one.predicted_us))
        combination = one.combination
        return cls(combination.algorithm, combination.protocol, combination.channels or None, one.bytes, *times)


@dataclass(frozen=True, slots=True)
class PicturedMeasurements:
    """``plot measured``, of one kind of call."""

    collective: Collective
    dtype: DataType
    op: Op
    in_place: bool
    graph: bool
    machine: PicturedMachine = field(metadata=json_form(merged=True))
    nodes: int
    ranks: int
    series: tuple[PicturedSeries, ...]


def known(values: NDArray[Any]) -> list[float | None]:
    """None for what is not a number."""
    return [shortest(value) if np.isfinite(value) else None for value in values]

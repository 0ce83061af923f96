"""What a double and its processes send each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.base.errors import TunerError
from tuner.measure.records.header import Header
from tuner.measure.records.samples import Combination, Point


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to the start."""

    header: Header
    release: str
    ranks: int


@dataclass(frozen=True, slots=True)
class Request:
    """A method of tuner.measure.backend.Backend, to be called."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What it returned, or the error it raised; ``launched`` counts what libnccl launched in this process meanwhile."""

    result: Any = None
    error: TunerError | None = None
    launched: Mapping[tuple[Point, Combination], int] = field(default_factory=dict)

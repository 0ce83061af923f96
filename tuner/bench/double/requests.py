"""What the processes of a double answer, besides what any process that measures does."""

from collections.abc import Mapping
from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.bench.exchange import Answer
from tuner.times.records.header import Header
from tuner.times.records.samples import Combination, Point


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to the start."""

    header: Header
    release: str
    ranks: int


@dataclass(frozen=True, slots=True)
class CountedAnswer(Answer):
    """``launched`` counts what libnccl launched in this process meanwhile."""

    launched: Mapping[tuple[Point, Combination], int] = field(default_factory=dict)

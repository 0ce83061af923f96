"""The five nouns that answers are made of: a call, a choice, a shape, a time with its interval, a span.

A record holds them as fields with ``json_form(merged=True)``, so that JSON has their keys among the record's own, or is
a subclass of one. Arrays of choices are columns of these names, whose rows are the records.
"""

from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.base.names import AlgoProto, Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.base.records import json_form
from tuner.base.view import column, shown


@dataclass(frozen=True, slots=True)
class Call:
    """A collective of ``bytes`` (NCCL's nBytes) on a type with an operation; ``buffers``: how they are registered."""

    collective: Collective
    dtype: DataType
    op: Op
    bytes: int
    buffers: Buffers = field(default=Buffers.plain, kw_only=True, metadata=json_form(omitted=True))


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs a call: an algorithm and protocol on channels of ``threads``.

    ``bypass`` names the symmetric kernel or the copy engines that take a call instead; its channels are then blocks.
    Where nothing can run, all three are None, and channels and threads are 0.
    """

    algorithm: Algorithm | None = field(metadata=column())
    protocol: Protocol | None = field(metadata=column())
    channels: int = field(metadata=column("channels"))
    threads: int = field(metadata=column("threads", spare=2))
    bypass: str | None = field(default=None, kw_only=True, metadata={**json_form(optional=True), **column()})

    @property
    def algo_proto(self) -> AlgoProto:
        """Algorithm and protocol of a call that does not bypass them."""
        assert self.algorithm is not None
        assert self.protocol is not None
        return self.algorithm, self.protocol

    @property
    @shown("pick", key="")
    def name(self) -> str:
        """Algorithm and protocol, ``Ring/LL``, or the name of what bypasses them; ``-`` for nothing."""
        if self.algorithm is None or self.protocol is None:
            return self.bypass or "-"
        return f"{self.algorithm.name}/{self.protocol.name}"


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes with the same number of GPUs each."""

    nodes: int
    gpus_per_node: int

    @property
    def ranks(self) -> int:
        """Number of GPUs, each with one rank."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """A time in us with the bounds of its 90 % interval.

    ``extrapolated`` says, in words, what the time is extrapolated over; empty within what was measured.
    """

    time_us: float = field(metadata=column("us", digits=2))
    low_us: float = field(metadata=column("from us", digits=2))
    high_us: float = field(metadata=column("to us", digits=2))
    extrapolated: str = ""

    def times(self, calls: float) -> "TimeInterval":
        """Time of this many calls, one after the other; their errors are common, so bounds grow in proportion."""
        return TimeInterval(self.time_us * calls, self.low_us * calls, self.high_us * calls, self.extrapolated)


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from ``low`` to ``high``, both included; without a ``high`` all from ``low`` on.

    A record that contains a span names its two keys in JSON: ``json_form(merged="{}_bytes")`` gives from_bytes and
    to_bytes.
    """

    low: int = field(default=0, metadata=json_form("from"))
    high: int | None = field(default=None, metadata=json_form("to"))

    def __contains__(self, number: int) -> bool:
        return self.low <= number and (self.high is None or number <= self.high)

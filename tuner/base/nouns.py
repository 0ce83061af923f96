"""The five nouns of which answers are composed: a call, a choice, a shape, a time with its interval, a span.

Other records use these nouns in one of two ways. A record may have a noun as a field with ``json_form(merged=True)``,
so that JSON has the noun's keys among the record's own; or it is a subclass of the noun. If there are arrays of
choices, their columns have the names of the noun's fields.
"""

from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.base.names import AlgoProto, Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.base.records import json_form
from tuner.base.view import column, shown


@dataclass(frozen=True, slots=True)
class Call:
    """A collective of ``bytes`` (NCCL's nBytes) with a data type and an operation; ``buffers``: how they are
    registered.
    """

    collective: Collective
    dtype: DataType
    op: Op
    bytes: int
    buffers: Buffers = field(default=Buffers.plain, kw_only=True, metadata=json_form(omitted=True))


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs a call: an algorithm and protocol on a number of channels with ``threads`` threads each.

    ``bypass`` names the symmetric kernel or the copy engines that execute a call instead; ``channels`` is then the
    number of blocks. If nothing can run, algorithm, protocol and bypass are None, and channels and threads are 0.
    """

    algorithm: Algorithm | None = field(metadata=column())
    protocol: Protocol | None = field(metadata=column())
    channels: int = field(metadata=column("channels"))
    threads: int = field(metadata=column("threads", spare=2))
    bypass: str | None = field(default=None, kw_only=True, metadata={**json_form(optional=True), **column()})

    @property
    def algo_proto(self) -> AlgoProto:
        """The algorithm and protocol of a call that does not bypass them."""
        assert self.algorithm is not None
        assert self.protocol is not None
        return self.algorithm, self.protocol

    @property
    @shown("pick", key="")
    def name(self) -> str:
        """The algorithm and protocol, such as ``Ring/LL``, or the name of what bypasses them; ``-`` if nothing can
        run."""
        if self.algorithm is None or self.protocol is None:
            return self.bypass or "-"
        return f"{self.algorithm.name}/{self.protocol.name}"


@dataclass(frozen=True, slots=True)
class Shape:
    """A number of nodes with the same number of GPUs each."""

    nodes: int
    gpus_per_node: int

    @property
    def ranks(self) -> int:
        """The number of GPUs; each has one rank."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """A time in us with the bounds of its 90 % interval.

    ``extrapolated`` is a text that names the quantities over which the time is extrapolated; it is empty within the
    measured range.
    """

    time_us: float = field(metadata=column("us", digits=2))
    low_us: float = field(metadata=column("from us", digits=2))
    high_us: float = field(metadata=column("to us", digits=2))
    extrapolated: str = ""

    def times(self, calls: float) -> "TimeInterval":
        """The time of ``calls`` calls made one after the other. All calls have the same error, so the bounds are
        multiplied, too.
        """
        return TimeInterval(self.time_us * calls, self.low_us * calls, self.high_us * calls, self.extrapolated)


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from ``low`` to ``high``, both included; if ``high`` is None, all from ``low`` on.

    A record that contains a span says how JSON names the two ends: with ``json_form(merged="{}_bytes")``, from_bytes
    and to_bytes.
    """

    low: int = field(default=0, metadata=json_form("from"))
    high: int | None = field(default=None, metadata=json_form("to"))

    def __contains__(self, number: int) -> bool:
        return self.low <= number and (self.high is None or number <= self.high)

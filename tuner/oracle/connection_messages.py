"""What the oracle and its child processes send each other of connections. It imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.oracle.layouts import Member


@dataclass(frozen=True, slots=True)
class AdapterOffsets:
    """What connections to adapters are made with."""

    use_gdr: int
    use_net_pxn: int
    topology: int
    graphs: int
    adapter_of: int
    check: int
    trees: Mapping[int, tuple[Member, Member]]  # of channels, by algorithm: the parent and the children of a rank


@dataclass(frozen=True, slots=True)
class RingOffsets:
    """Where a channel's neighbours on the ring are, and the flags of the connections to them."""

    adapters: AdapterOffsets | None  # None up to 2.23, where nothing depends on them
    channels: int
    channel_bytes: int
    prev: int
    next: int
    peers: int
    send: int
    receive: int
    flags: int


@dataclass(frozen=True, slots=True)
class ReadConnections:
    """Asks what NCCL noted of every rank's connections; ``ring`` of a release that notes it of the network."""

    ring: RingOffsets
    channels: int  # where a communicator has their number


@dataclass(frozen=True, slots=True)
class RankConnections:
    """Of one rank: ``useGdr`` and ``useNetPXN``, and its ring's flags, those to the next and from the previous rank."""

    direct: bool
    relayed: bool
    flags: tuple[tuple[int, int], ...]  # by channel


@dataclass(frozen=True, slots=True)
class Connections:
    """Of every rank."""

    ranks: tuple[RankConnections, ...]

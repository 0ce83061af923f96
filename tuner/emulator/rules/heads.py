"""What a rank's place in its node is, as far as chunks and registered buffers go by it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RingWay:
    """A network device that a rank's rings leave or enter the node by."""

    adapter: int  # as graphs number it
    sends: bool  # else it receives
    relayed: bool  # over another GPU of the node (PXN)


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a rank's node, which enter the switch (NVLS) and the network (CollNetDirect), and which it is.

    ``own_*`` are None where it is none. ``ring_ways``: how its rings go to other nodes.
    """

    nvls: int
    own_nvls: int | None
    direct: int
    own_direct: int | None
    direct_depth: int
    ring_ways: frozenset[RingWay] = frozenset()

"""What a rank's place in its node is, as far as chunks and registered buffers go by it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tuner.base.names import Algorithm


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """How a rank goes to other nodes, as far as registered buffers of rings go by it.

    ``relayed`` and ``direct`` are NCCL's ``useNetPXN`` and ``useGdr``, found of all ranks as it connects rings.
    """

    reached: bool  # a ring of the rank leaves or enters its node
    relayed: bool  # something is sent over another GPU of the node (PXN)
    direct: bool  # every adapter reads or writes its GPU's memory (GPUDirect RDMA)


NetworkOf = Callable[[Collection[Algorithm]], NetworkUse]


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a rank's node, which enter the switch (NVLS) and the network (CollNetDirect), and which it is.

    ``own_*`` are None where it is none. ``network`` is asked of rings between nodes on registered buffers, with the
    algorithms that are connected after rings.
    """

    nvls: int
    own_nvls: int | None
    direct: int
    own_direct: int | None
    direct_depth: int
    network: NetworkOf | None = field(default=None, compare=False, repr=False)

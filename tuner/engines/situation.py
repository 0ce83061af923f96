"""What an engine looks at when it decides which implementation carries an AllReduce; the size is a separate
argument."""

from collections.abc import Mapping
from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.base.names import DataType


@dataclass(frozen=True, slots=True)
class Situation:
    """What a rule of an engine may use: the tensor-parallel group, and the tensor that it sums, without its size.

    ``capability`` is the GPUs' compute capability, 90 for 9.0. ``nvlink_everywhere``: every pair of GPUs of a node is
    linked by NVLink, directly or through switches. ``peer_access``: every pair of GPUs of a node can map the other's
    memory. ``multicast``: the GPUs of a node can allocate multicast memory. ``one_domain``: all nodes are in one NVLink
    domain. ``graph``: the call is captured in a CUDA graph. ``hidden_size`` is the number of columns of the tensor,
    None if it is not known. ``switches`` are the values of the engine's environment variables and arguments, by name.
    ``without`` names implementations that a log says are off, for a reason that no condition covers. ``drafts`` is the
    number of draft tokens per sequence.
    """

    capability: int
    ranks: int
    nodes: int
    dtype: DataType
    nvlink_everywhere: bool
    peer_access: bool
    multicast: bool
    one_domain: bool = False
    graph: bool = True
    hidden_size: int | None = None
    switches: Mapping[str, object] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    drafts: int = 0

    @property
    def capability_text(self) -> str:
        """The compute capability as the engines' tables spell it: ``9.0``."""
        return f"{self.capability // 10}.{self.capability % 10}"

    @property
    def group_multicast(self) -> bool:
        """Whether memory that all ranks of the group share can be multicast."""
        return self.multicast and (self.nodes == 1 or self.one_domain)

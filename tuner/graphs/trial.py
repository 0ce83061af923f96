"""A graph while it is searched: what is asked of its channels, and those laid so far."""

from dataclasses import dataclass, field, replace

from tuner.base.names import Pattern


@dataclass(slots=True)
class Trial:
    """What NCCL keeps of a graph, ``struct ncclTopoGraph``; bandwidths are per channel, types numbers."""

    pattern: Pattern
    in_network: bool  # of CollNet
    min_channels: int
    max_channels: int
    cross_nic: int = 0
    same_channels: bool = True
    bw_intra: float = 0.0
    bw_inter: float = 0.0
    latency_us: float = 0.0
    type_intra: int = 0
    type_inter: int = 0
    channels: int = 0
    hops: int = 0
    intra: list[list[int]] = field(default_factory=list)  # numbers of GPUs, by channel and step
    inter: list[list[int]] = field(default_factory=list)  # ids of the first and last adapter, by channel

    def copied(self) -> "Trial":
        """The same, sharing nothing."""
        return replace(self, intra=[list(row) for row in self.intra], inter=[list(row) for row in self.inter])

    def take(self, other: "Trial") -> None:
        """Becomes a copy of another."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))
        self.intra = [list(row) for row in other.intra]
        self.inter = [list(row) for row in other.inter]

    @property
    def is_tree(self) -> bool:
        """Whether it is a tree of any kind."""
        return self.pattern in (Pattern.BalancedTree, Pattern.SplitTree, Pattern.Tree)

    @property
    def heads_only(self) -> bool:
        """Whether only the GPUs at which channels enter are looked for."""
        return self.pattern in (Pattern.NVLS, Pattern.CollNetDirect)

"""What each rank of a communicator knows of its channels: its neighbours, and the adapters towards other nodes.

The fields are those of ``struct ncclChannel`` (src/include/device.h); where NCCL has -1 for nobody, it is None here.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Adapter:
    """How a rank reaches other nodes on a channel."""

    net: int  # the network device, by the number that NCCL's network gives it on that node
    relay: int  # the rank that hands it what is sent: the sender, or another of its node (PXN)
    id: int = field(default=0, compare=False)  # as graphs number it: with the host of a NVLink domain


@dataclass(frozen=True, slots=True)
class Tree:
    """A rank's place in a tree."""

    parent: int | None
    children: tuple[int, ...]

    @property
    def peers(self) -> tuple[int, ...]:
        """Whom the rank talks to."""
        return self.children if self.parent is None else (*self.children, self.parent)


@dataclass(frozen=True, slots=True)
class CollNetDirect:
    """A rank's place in CollNet direct: each head of a node reduces a part of the data inside the network."""

    head: int | None  # which of the heads the rank is
    up: tuple[int, ...]  # the other heads
    down: tuple[int, ...]  # of a head: the other ranks of the node
    heads: int  # of the node
    shift: int  # the head that the rank sends to first


@dataclass(frozen=True, slots=True)
class NvlsChannel:
    """A rank's place on one channel of NVLS, and in the tree between nodes of NVLSTree."""

    head: int | None  # which of the heads the rank is
    heads: int  # of the node; a rank may be several of them
    tree: Tree  # of the heads that are each other's peers; nobody's for a rank that is none
    adapter: Adapter | None


@dataclass(frozen=True, slots=True)
class RankChannel:
    """One channel of ring, tree and CollNet as a rank has it.

    Adapters are there where the rank has a neighbour on another node.
    """

    previous: int
    next: int
    ring_adapter: Adapter | None
    tree: Tree
    tree_adapter: Adapter | None
    chain: Tree | None  # of CollNet; its parent is None where the network is; None without CollNet
    direct: CollNetDirect | None  # None without CollNet


@dataclass(frozen=True, slots=True)
class RankView:
    """What one rank knows of its channels."""

    channels: tuple[RankChannel, ...]
    nvls: tuple[NvlsChannel, ...]  # the channels of NVLS, whose number is its own; empty without NVLS
    pat_peers: tuple[int, ...]  # the ranks that PAT sends to and receives from in all channels; empty without PAT


@dataclass(frozen=True, slots=True)
class Connected:
    """The channels of all ranks."""

    node_of_rank: tuple[int, ...]
    ranks: tuple[RankView, ...]

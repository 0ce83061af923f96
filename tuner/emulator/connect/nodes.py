"""The graphs of each kind of node in terms of the node's ranks, as every rank sends them to all (ncclTopoPreset)."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cached_property

from tuner.base.dataclass import dataclass
from tuner.base.names import Pattern
from tuner.graphs.system import HOST_BIT
from tuner.machine.graphs import EMPTY, OF_ALGORITHM, OrderedGraph


@contextmanager
def keeping_all() -> Iterator[None]:
    """Pauses the garbage collector, which would visit many long-lived records again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class ChannelAdapter:
    """Adapter by which a rank reaches other nodes on a channel."""

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
        """Ranks that the rank talks to."""
        return self.children if self.parent is None else (*self.children, self.parent)


@dataclass(frozen=True, slots=True)
class CollNetDirect:
    """A rank's place in CollNetDirect: each head of a node reduces a part of the data inside the network."""

    head: int | None  # which of the heads the rank is
    up: tuple[int, ...]  # the other heads
    down: tuple[int, ...]  # of a head: the other ranks of the node
    heads: int  # of the node
    shift: int  # the head that the rank sends to first


@dataclass(frozen=True, slots=True)
class NvlsChannel:
    """A rank's place on one channel of NVLS, and in NVLSTree's tree between nodes."""

    head: int | None  # which of the heads the rank is
    heads: int  # of the node; a rank may be several of them
    tree: Tree  # of the heads that are each other's peers; nobody's for a rank that is none
    adapter: ChannelAdapter | None


@dataclass(frozen=True, slots=True)
class RankChannel:
    """A rank's place on one channel of ring, tree and CollNet.

    An adapter is set if the rank has a neighbour on another node.
    """

    previous: int
    next: int
    ring_adapter: ChannelAdapter | None
    tree: Tree
    tree_adapter: ChannelAdapter | None
    chain: Tree | None  # of CollNet; its parent is None if the network is; None without CollNet
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


NOT_SEARCHED = OrderedGraph(EMPTY, ())


@dataclass(frozen=True, eq=False)
class NodeKind:
    """Equal nodes that follow each other: what NCCL's search found on one of them."""

    nodes: int
    graphs: Mapping[str, OrderedGraph]  # by name
    relays: tuple[tuple[int, int, int], ...]  # a rank of the node, the device it sends to, and over whom (PXN)
    domain_ranks: int = 0  # of the NVLink domain that the node is a part of; 0: it is none

    @cached_property
    def ranks(self) -> int:
        """Ranks of a node."""
        return len(self.orders("ring")[0])

    @cached_property
    def relay_of(self) -> Mapping[tuple[int, int], int]:
        """The relay ranks, by rank of the node and network device."""
        return {(rank, net): over for rank, net, over in self.relays}

    def adapter(self, rank: int, net: int, ranks: Sequence[int]) -> ChannelAdapter:
        """Adapter by which a local rank reaches the device that graphs call ``net``.

        ``ranks`` are the ranks of the node of this local rank.
        """
        on_its_host = net & (1 << HOST_BIT) - 1 if net > 0 else net
        return ChannelAdapter(on_its_host, ranks[self.relay_of.get((rank, net), rank)], net)

    @property
    def cross_nic(self) -> int:
        """NCCL's crossNic: whether the ring's channels enter and leave by different adapters."""
        return self.graphs["ring"].graph.cross_nic

    @property
    def tree_pattern(self) -> Pattern | None:
        """The tree graph's pattern: it says which ranks of a channel talk to other nodes."""
        return self.graphs["tree"].graph.pattern

    def orders(self, name: str) -> tuple[tuple[int, ...], ...]:
        """The local ranks of each channel, in the order of the graph; for NVLS only the head."""
        return self._of_graph[name][0]

    def adapters(self, name: str) -> tuple[tuple[int, int], ...]:
        """The network devices at both ends of each channel; empty if there is only one node."""
        return self._of_graph[name][1]

    @cached_property
    def _of_graph(self) -> Mapping[str, tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...]]]:
        return {name: (tuple(self._ranks_of(name)), tuple(self._ends_of(name))) for name in set(OF_ALGORITHM.values())}

    def _ranks_of(self, name: str) -> Iterator[tuple[int, ...]]:
        for order in self._orders(name):
            yield tuple(map(self._rank, _of_kind(order, "gpu")))

    def _ends_of(self, name: str) -> Iterator[tuple[int, int]]:
        for order in self._orders(name):
            nets = tuple(map(_number, _of_kind(order, "net")))
            if nets:
                yield nets[0], nets[-1]

    def _orders(self, name: str) -> Sequence[Sequence[str]]:
        return self.graphs.get(name, NOT_SEARCHED).orders

    @cached_property
    def _devices(self) -> Sequence[int]:
        return sorted(map(_of_device, _of_kind(self._orders("ring")[0], "gpu")))

    def _rank(self, device: str) -> int:
        return self._devices.index(_of_device(device))


def _of_kind(order: Sequence[str], kind: str) -> Iterator[str]:
    return (device for device in order if device.startswith(f"{kind}:"))


def _of_device(gpu: str) -> int:
    """The number that orders the ranks of a node: the GPU's number or, if ranks share GPUs, the rank on the host."""
    _, shared, rank = gpu.partition("/")
    return int(rank) if shared else _number(gpu)


def _number(device: str) -> int:
    return int(device.partition(":")[2].partition("/")[0])


@dataclass(frozen=True)
class Nodes:
    """All nodes of a communicator, in the order of ranks."""

    kinds: tuple[NodeKind, ...]
    ranks_of: tuple[Sequence[int], ...]  # of each node, by rank of the node: the rank of all

    @cached_property
    def kind(self) -> tuple[NodeKind, ...]:
        """The kind of each node."""
        return tuple(kind for kind in self.kinds for _ in range(kind.nodes))

    def __len__(self) -> int:
        return len(self.kind)

    def of_kind(self, own: int) -> range:
        """The nodes of a kind."""
        start = sum(kind.nodes for kind in self.kinds[:own])
        return range(start, start + self.kinds[own].nodes)

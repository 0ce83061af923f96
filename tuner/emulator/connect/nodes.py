"""The graphs of each kind of node, expressed by the node's ranks, as every rank sends them to all others
(ncclTopoPreset)."""

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
    """Pauses the garbage collector, which would otherwise visit many long-lived records again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class ChannelAdapter:
    """The adapter by which a rank reaches other nodes on a channel."""

    net: int  # the number that NCCL's network gives the device on that node
    relay: int  # the rank that hands the data to the device: the sender, or another rank of its node (PXN)
    id: int = field(default=0, compare=False)  # the number in graphs, which includes the host in an NVLink domain


@dataclass(frozen=True, slots=True)
class Tree:
    """A rank's place in a tree."""

    parent: int | None
    children: tuple[int, ...]

    @property
    def peers(self) -> tuple[int, ...]:
        """The ranks with which the rank exchanges data."""
        return self.children if self.parent is None else (*self.children, self.parent)


@dataclass(frozen=True, slots=True)
class CollNetDirect:
    """A rank's place in CollNetDirect: each head of a node reduces a part of the data inside the network."""

    head: int | None  # the number of the head that the rank is; None: it is no head
    up: tuple[int, ...]  # the other heads
    down: tuple[int, ...]  # for a head: the other ranks of the node
    heads: int  # number of heads of the node
    shift: int  # the number of the head to which the rank sends first


@dataclass(frozen=True, slots=True)
class NvlsChannel:
    """A rank's place on one channel of NVLS, and in NVLSTree's tree between nodes."""

    head: int | None  # the number of the head that the rank is; None: it is no head
    heads: int  # number of heads of the node; a rank may be several of them
    tree: Tree  # the tree of the heads that are peers of each other; empty for a rank that is no head
    adapter: ChannelAdapter | None


@dataclass(frozen=True, slots=True)
class RankChannel:
    """A rank's place on one channel in the ring, the tree and CollNet.

    An adapter is set if the rank has a neighbour on another node.
    """

    previous: int
    next: int
    ring_adapter: ChannelAdapter | None
    tree: Tree
    tree_adapter: ChannelAdapter | None
    chain: Tree | None  # of CollNet: the parent is None if it is the network; the chain is None without CollNet
    direct: CollNetDirect | None  # None without CollNet


@dataclass(frozen=True, slots=True)
class RankView:
    """What one rank knows about its channels."""

    channels: tuple[RankChannel, ...]
    nvls: tuple[NvlsChannel, ...]  # the channels of NVLS, which have a number of their own; empty without NVLS
    pat_peers: tuple[int, ...]  # the ranks to and from which PAT sends on all channels; empty without PAT


@dataclass(frozen=True, slots=True)
class Connected:
    """The channels of all ranks."""

    node_of_rank: tuple[int, ...]
    ranks: tuple[RankView, ...]


NOT_SEARCHED = OrderedGraph(EMPTY, ())


@dataclass(frozen=True, eq=False)
class NodeKind:
    """Successive equal nodes, with what NCCL's search found on one of them."""

    nodes: int
    graphs: Mapping[str, OrderedGraph]  # by name
    # A rank of the node, the device to which it sends, and the rank over whose GPU it sends (PXN)
    relays: tuple[tuple[int, int, int], ...]
    domain_ranks: int = 0  # number of ranks of the NVLink domain that the node is a part of; 0 if it is part of none

    @cached_property
    def ranks(self) -> int:
        """The number of ranks of a node."""
        return len(self.orders("ring")[0])

    @cached_property
    def relay_of(self) -> Mapping[tuple[int, int], int]:
        """The local rank that relays to a network device for another local rank, by (local rank, network device)."""
        return {(rank, net): over for rank, net, over in self.relays}

    def adapter(self, rank: int, net: int, ranks: Sequence[int]) -> ChannelAdapter:
        """The adapter by which a local rank reaches the device that graphs call ``net``.

        ``ranks`` has the number in the communicator of each local rank of the node.
        """
        on_its_host = net & (1 << HOST_BIT) - 1 if net > 0 else net
        return ChannelAdapter(on_its_host, ranks[self.relay_of.get((rank, net), rank)], net)

    @property
    def cross_nic(self) -> int:
        """NCCL's crossNic: whether the ring's channels enter and leave by different adapters."""
        return self.graphs["ring"].graph.cross_nic

    @property
    def tree_pattern(self) -> Pattern | None:
        """The pattern of the tree graph, which says which ranks of a channel are connected to other nodes."""
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
    ranks_of: tuple[Sequence[int], ...]  # for each node, the ranks of the communicator by local rank

    @cached_property
    def kind(self) -> tuple[NodeKind, ...]:
        """The kind of each node."""
        return tuple(kind for kind in self.kinds for _ in range(kind.nodes))

    def __len__(self) -> int:
        return len(self.kind)

    def of_kind(self, own: int) -> range:
        """The nodes of one kind."""
        start = sum(kind.nodes for kind in self.kinds[:own])
        return range(start, start + self.kinds[own].nodes)

"""The channels of all ranks as NCCL has them in memory, and its own answers which adapters they use."""

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.base.names import Algorithm
from tuner.emulator.connect.nodes import Adapter, CollNetDirect, Connected, NvlsChannel, RankChannel, RankView, Tree
from tuner.oracle import facts
from tuner.oracle.messages import Channels, RankMemory, ReadChannels
from tuner.oracle.symbols import Symbols

MEMBERS = (
    "ring.prev",
    "ring.next",
    "tree.up",
    "tree.down",
    "collnetChain.up",
    "collnetChain.down",
    "collnetDirect.headRank",
    "collnetDirect.nHeads",
    "collnetDirect.up",
    "collnetDirect.down",
    "collnetDirect.shift",
    "nvls.headRank",
    "nvls.nHeads",
    "nvls.treeUp",
    "nvls.treeDown",
)
ADAPTER_OF = "ncclTopoGetNetDev"
GRAPHS = {"ring": Algorithm.Ring, "tree": Algorithm.Tree, "nvls": Algorithm.NVLS}


def request(symbols: Symbols) -> ReadChannels:
    """What the child is asked for."""
    return ReadChannels(
        members={name: symbols.channel.members[name] for name in MEMBERS},
        adapter_of=symbols.functions[ADAPTER_OF][0][0],
        gives_id=any(ADAPTER_OF in name and "PlPi" in name for name in symbols.functions),
        graphs={name: int(algorithm) for name, algorithm in GRAPHS.items()},
        head="nvls.headRank",
        connect_pat=next((address for address, _ in symbols.functions.get("ncclTransportPatConnect", ())), None),
    )


def connected(answer: Channels, most_in_direct: int) -> Connected:
    """What each rank knows; CollNet direct has no more ranks of a node than ``most_in_direct``."""
    local_ranks = facts.of(answer.comms[0], "max_local_ranks")
    collnet = bool(facts.of(answer.comms[0], "collnet"))
    ranks = tuple(
        _Rank(memory, comm, rank, answer.node_of_rank).view(collnet, collnet and local_ranks <= most_in_direct)
        for rank, (memory, comm) in enumerate(zip(answer.ranks, answer.comms, strict=True))
    )
    return Connected(answer.node_of_rank, ranks)


class _Rank:
    def __init__(self, memory: RankMemory, comm: Mapping[str, Any], rank: int, node_of_rank: Sequence[int]) -> None:
        self.memory, self.comm, self.rank, self.node_of_rank = memory, comm, rank, node_of_rank

    def view(self, collnet: bool, direct: bool) -> RankView:
        channels = [self.channel(number, collnet, direct) for number in range(self.comm["nChannels"])]
        return RankView(tuple(channels), tuple(map(self.nvls, range(self.comm["nvlsChannels"]))), self.pat_peers())

    def pat_peers(self) -> tuple[int, ...]:
        everywhere = (1 << self.comm["nChannels"]) - 1
        noted = enumerate(self.memory.pat_channels)
        return tuple(peer for peer, channels in noted if channels == (everywhere, everywhere))

    def channel(self, number: int, collnet: bool, direct: bool) -> RankChannel:
        channel = self.memory.channels[number]
        tree = _tree(channel["tree.up"], channel["tree.down"])
        previous, following = channel["ring.prev"], channel["ring.next"]
        return RankChannel(
            previous=previous,
            next=following,
            ring_adapter=self.adapter("ring", number, (previous, following)),
            tree=tree,
            tree_adapter=self.adapter("tree", number, tree.peers),
            chain=self.chain(channel) if collnet else None,
            direct=_direct(channel) if direct else None,
        )

    def chain(self, channel: Mapping[str, Any]) -> Tree:
        """In CollNet the network has the number after the last rank."""
        up = channel["collnetChain.up"]
        return _tree(-1 if up == len(self.node_of_rank) else up, channel["collnetChain.down"])

    def nvls(self, number: int) -> NvlsChannel:
        channel = self.memory.channels[number]
        tree = _tree(channel["nvls.treeUp"], channel["nvls.treeDown"][1:])  # the first child is the node's own NVSwitch
        head, heads = channel["nvls.headRank"], channel["nvls.nHeads"]
        return NvlsChannel(None if head < 0 else head, heads, tree, self.adapter("nvls", number, tree.peers))

    def adapter(self, graph: str, number: int, peers: Sequence[int]) -> Adapter | None:
        if all(self.node_of_rank[peer] == self.node_of_rank[self.rank] for peer in peers):
            return None
        found = self.memory.adapters[graph][number]
        return None if found is None else Adapter(*found)


def _tree(up: int, down: Sequence[int]) -> Tree:
    return Tree(None if up < 0 else up, tuple(child for child in down if child >= 0))


def _direct(channel: Mapping[str, Any]) -> CollNetDirect:
    head = channel["collnetDirect.headRank"]
    return CollNetDirect(
        head=None if head < 0 else head,
        up=tuple(rank for rank in channel["collnetDirect.up"] if rank >= 0),
        down=tuple(rank for rank in channel["collnetDirect.down"] if rank >= 0),
        heads=channel["collnetDirect.nHeads"],
        shift=channel["collnetDirect.shift"],
    )

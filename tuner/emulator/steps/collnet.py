"""What a rank does in one loop where the network adds: CollNet direct, by heads, and CollNet chain, along a chain.

Source: RunWorkColl of CollNetDirect and CollNetChain, src/device/all_reduce.h, all_gather.h and reduce_scatter.h,
v2.28.9-1.
"""

from collections.abc import Sequence

from tuner.base.names import Collective
from tuner.emulator.connect import CollNetDirect, TreeOrder
from tuner.emulator.launch.records import Work
from tuner.emulator.steps.going import Going, Threads, in_buffer
from tuner.emulator.steps.heads import NodeHeads
from tuner.emulator.steps.records import Fabric, Peer

ADDS, COPIES = (Fabric.network_adds,), (Fabric.network_copies,)
TO_HEADS, FROM_HEADS = 1, 0  # NCCL's connIndex


def along_chain(chain: TreeOrder, rank: int) -> list[Threads]:
    """Up the chain of a node into the network, and down again."""
    up: tuple[Peer, ...] = ADDS if (parent := chain.parents[rank]) is None else (parent,)
    down = chain.children[rank]
    return [
        Threads([Going(0, in_buffer, down, up, adds=bool(down))], TO_HEADS),
        Threads([Going(0, in_buffer, up, down)], FROM_HEADS),
    ]


def by_heads(work: Work, heads: NodeHeads, place: CollNetDirect, rank: int) -> list[Threads]:
    """To the heads of the node, from these into the network, and back."""
    if work.collective is not Collective.AllReduce:
        return _in_rails(work, heads, rank)
    others = [head for head in range(heads.count) if head != heads.own]
    others = [*others[place.shift % max(len(others), 1) :], *others[: place.shift % max(len(others), 1)]]
    ranks = heads.of_nodes[heads.node]
    scatter = Threads([Going(head, in_buffer, (), (ranks[head],)) for head in others], TO_HEADS)
    gather = Threads([Going(head, in_buffer, (ranks[head],), ()) for head in others], FROM_HEADS)
    if heads.own is None:
        return [scatter, gather]
    down = place.down
    return [
        scatter,
        gather,
        Threads([Going(heads.own, in_buffer, down, ADDS, adds=bool(down))], TO_HEADS),
        Threads([Going(heads.own, in_buffer, ADDS, down)], FROM_HEADS),
    ]


def _in_rails(work: Work, heads: NodeHeads, rank: int) -> list[Threads]:
    """AllGather and ReduceScatter, of which each rank is a head."""
    assert heads.own is not None
    behind = [(heads.own + step) % heads.count for step in range(1, heads.count)]
    ranks = heads.of_nodes[heads.node]
    others: Sequence[Peer] = [ranks[head] for head in behind]
    own, piece = heads.of_rail(heads.own, work.count), heads.own_piece(work.count)
    if work.collective is Collective.ReduceScatter:
        return [
            Threads([Going(0, heads.of_rail(head, work.count), (), (ranks[head],)) for head in behind], TO_HEADS),
            Threads([Going(0, own, tuple(others), ADDS, adds=bool(others))], TO_HEADS),
            Threads([Going(0, piece, ADDS, ())], FROM_HEADS),
        ]
    return [
        Threads([Going(0, piece, (), COPIES)], TO_HEADS),
        Threads([Going(0, own, COPIES, tuple(others))], FROM_HEADS),
        Threads([Going(0, heads.of_rail(head, work.count), (ranks[head],), ()) for head in behind], FROM_HEADS),
    ]

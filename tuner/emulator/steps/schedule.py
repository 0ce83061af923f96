"""The schedule of a call: which rank sends which elements to whom, channel by channel, step by step."""

from collections.abc import Iterator, Sequence
from functools import partial

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective
from tuner.emulator.connect import Across, CollNetDirect, TreeOrder
from tuner.emulator.launches import ChannelShare, Work
from tuner.emulator.steps import chunk_step, heads, pat
from tuner.emulator.steps.chunk_step import ChunkStep, Place, Threads, in_buffer, in_part_of
from tuner.emulator.steps.heads import NodeHeads
from tuner.emulator.steps.loops import Loops, loops, loops_of_heads
from tuner.emulator.steps.records import Fabric, Peer, Schedule, Step

BY_SWITCH = (Fabric.switch_adds, Fabric.switch_copies)
BY_NETWORK = (Fabric.network_adds, Fabric.network_copies)
GROUPS_OF_THREADS = {Algorithm.Ring: 2, Algorithm.Tree: 2}  # at most; 4 of others


def schedule(work: Work, across: Across) -> Schedule:
    """The schedule of a collective. BadInput where it has none."""
    several = len(across.ranks_of_nodes) > 1
    fabrics: tuple[Fabric, ...] = ()
    if work.algorithm in (Algorithm.NVLS, Algorithm.NVLSTree):
        fabrics = (*BY_SWITCH, *(BY_NETWORK if several and work.algorithm is Algorithm.NVLS else ()))
    elif work.algorithm in (Algorithm.CollNetDirect, Algorithm.CollNetChain):
        fabrics = BY_NETWORK
    if work.algorithm is Algorithm.PAT and not across.pat_peers:
        raise BadInput("schedule: of PAT with one rank per node; valid: `env` NCCL_ALGO=Ring")
    return Schedule(
        ranks=sum(map(len, across.ranks_of_nodes)),
        channels=work.channels,
        threads=GROUPS_OF_THREADS.get(work.algorithm, 4),
        connections=2 if fabrics == BY_NETWORK else 1,
        element_bytes=work.dtype.size_bytes,
        steps=partial(_steps, work, across),
        fabrics=fabrics,
    )


def _steps(work: Work, across: Across, rank: int) -> Iterator[Step]:
    for share in work.shares:
        if work.algorithm is Algorithm.PAT:
            yield from pat.steps(work, share, rank, sum(map(len, across.ranks_of_nodes)))
        else:
            own_loops, threads = _of_channel(work, across, share, rank)
            yield from chunk_step.steps(work, share, rank, own_loops, threads)


def _of_channel(work: Work, across: Across, share: ChannelShare, rank: int) -> tuple[list[Loops], list[Threads]]:
    """The loops of a channel, and what the rank's threads do in each."""
    channel, ranks = share.channel, sum(map(len, across.ranks_of_nodes))
    if work.algorithm is Algorithm.Tree:
        return list(loops(work, share, ranks)), up_and_down(across.trees[channel], rank)
    if work.algorithm is Algorithm.Ring:
        return list(loops(work, share, ranks)), [around(work, across.rings[channel].ranks, rank)]
    if work.algorithm is Algorithm.CollNetChain:
        chain = across.collnet_chains[channel]
        return list(loops_of_heads(work, share, 1, work.count)), along_chain(chain, rank)
    switched = work.algorithm is not Algorithm.CollNetDirect
    own = heads.of_switch(across, rank) if switched else heads.of_network(across, rank)
    if work.collective is Collective.AllReduce:
        own_loops = list(loops_of_heads(work, share, own.count, work.count))
    else:
        own_loops = list(loops_of_heads(work, share, 1, len(own.of_nodes) * work.count))
    if switched:
        return own_loops, by_switch(work, across, own, channel, rank)
    return own_loops, by_heads(work, own, across.collnet_direct[rank], rank)


# What a rank does in one loop where the network adds: CollNet direct, by heads, and CollNet chain, along a chain.
#
# Source: RunWorkColl of CollNetDirect and CollNetChain, src/device/all_reduce.h, all_gather.h and reduce_scatter.h,
# v2.28.9-1.

NETWORK_ADDS, NETWORK_COPIES = (Fabric.network_adds,), (Fabric.network_copies,)
TO_HEADS, FROM_HEADS = 1, 0  # NCCL's connIndex


def along_chain(chain: TreeOrder, rank: int) -> list[Threads]:
    """Up the chain of a node into the network, and down again."""
    up: tuple[Peer, ...] = NETWORK_ADDS if (parent := chain.parents[rank]) is None else (parent,)
    down = chain.children[rank]
    return [
        Threads([ChunkStep(0, in_buffer, down, up, adds=bool(down))], TO_HEADS),
        Threads([ChunkStep(0, in_buffer, up, down)], FROM_HEADS),
    ]


def by_heads(work: Work, heads: NodeHeads, place: CollNetDirect, rank: int) -> list[Threads]:
    """To the heads of the node, from these into the network, and back."""
    if work.collective is not Collective.AllReduce:
        return _in_rails(work, heads, rank)
    others = [head for head in range(heads.count) if head != heads.own]
    others = [*others[place.shift % max(len(others), 1) :], *others[: place.shift % max(len(others), 1)]]
    ranks = heads.of_nodes[heads.node]
    scatter = Threads([ChunkStep(head, in_buffer, (), (ranks[head],)) for head in others], TO_HEADS)
    gather = Threads([ChunkStep(head, in_buffer, (ranks[head],), ()) for head in others], FROM_HEADS)
    if heads.own is None:
        return [scatter, gather]
    down = place.down
    return [
        scatter,
        gather,
        Threads([ChunkStep(heads.own, in_buffer, down, NETWORK_ADDS, adds=bool(down))], TO_HEADS),
        Threads([ChunkStep(heads.own, in_buffer, NETWORK_ADDS, down)], FROM_HEADS),
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
            Threads([ChunkStep(0, heads.of_rail(head, work.count), (), (ranks[head],)) for head in behind], TO_HEADS),
            Threads([ChunkStep(0, own, tuple(others), NETWORK_ADDS, adds=bool(others))], TO_HEADS),
            Threads([ChunkStep(0, piece, NETWORK_ADDS, ())], FROM_HEADS),
        ]
    return [
        Threads([ChunkStep(0, piece, (), NETWORK_COPIES)], TO_HEADS),
        Threads([ChunkStep(0, own, NETWORK_COPIES, tuple(others))], FROM_HEADS),
        Threads([ChunkStep(0, heads.of_rail(head, work.count), (ranks[head],), ()) for head in behind], FROM_HEADS),
    ]


# What a rank does in one loop along a ring, and up and down a tree.
#
# Source: runRing and runTreeSplit of src/device/all_reduce.h, runRing of reduce_scatter.h, all_gather.h, reduce.h and
# broadcast.h, v2.28.9-1.


def around(work: Work, ring: Sequence[int], rank: int) -> Threads:
    """A rank's steps of one loop along its ring."""
    ranks, place = len(ring), ring.index(rank)
    before, after = (ring[place - 1],), (ring[(place + 1) % ranks],)
    if work.collective is Collective.AllReduce:
        return Threads(_twice_around(ranks, place, before, after))
    if work.collective is Collective.ReduceScatter:
        parts = [in_part_of(ring[place - back], work.count) for back in range(ranks)]
        return Threads(
            [
                ChunkStep(0, parts[1 % ranks], (), after),
                *(ChunkStep(0, parts[back], before, after, adds=True) for back in range(2, ranks)),
                ChunkStep(0, parts[0], before, (), adds=True),
            ]
        )
    if work.collective is Collective.AllGather:
        parts = [in_part_of(ring[place - back], work.count) for back in range(ranks)]
        return Threads(
            [
                ChunkStep(0, parts[0], (), after),
                *(ChunkStep(0, parts[back], before, after) for back in range(1, ranks - 1)),
                ChunkStep(0, parts[ranks - 1], before, ()),
            ]
        )
    if work.collective is Collective.Reduce:  # from the rank behind the root around to it
        first, last, adds = before == (work.root,), rank == work.root, True
    else:
        first, last, adds = rank == work.root, after == (work.root,), False
    return Threads([ChunkStep(0, in_buffer, () if first else before, () if last else after, adds and not first)])


def _twice_around(ranks: int, place: int, before: tuple[int], after: tuple[int]) -> list[ChunkStep]:
    return [
        ChunkStep((place - 1) % ranks, in_buffer, (), after),
        *(ChunkStep((place - back) % ranks, in_buffer, before, after, adds=True) for back in range(2, ranks + 1)),
        *(ChunkStep((place - back) % ranks, in_buffer, before, after) for back in range(1, ranks - 1)),
        ChunkStep((place + 1) % ranks, in_buffer, before, ()),
    ]


def up_and_down(tree: TreeOrder, rank: int) -> list[Threads]:
    """To the parent, and from it; the root sends down again what it has added."""
    parent, children = tree.parents[rank], tree.children[rank]
    up = ChunkStep(0, in_buffer, children, children if parent is None else (parent,), adds=bool(children))
    if parent is None:
        return [Threads([up])]
    return [Threads([up]), Threads([ChunkStep(0, in_buffer, (parent,), children)])]


# What a rank does in one loop where the switch of its node takes part: NVLS, alone, with the network, and with trees.
#
# A rank hands each head's part to the switch, which adds what all ranks of the node hand it when the head asks for it
# (multimem.ld_reduce); what a head hands to the switch (multimem.st) all ranks of its node get, itself among them.
# Source: RunWorkColl of NVLS and NVLSTree, src/device/all_reduce.h, all_gather.h and reduce_scatter.h, v2.28.9-1.

SWITCH_ADDS, SWITCH_COPIES = (Fabric.switch_adds,), (Fabric.switch_copies,)


def by_switch(work: Work, across: Across, heads: NodeHeads, channel: int, rank: int) -> list[Threads]:
    """The steps of a rank's threads in one loop."""
    several = len(across.ranks_of_nodes) > 1
    if work.collective is Collective.AllGather:
        return _all_gather(work, heads, rank, several)
    if work.collective is Collective.ReduceScatter:
        return _reduce_scatter(work, heads, rank, several)
    scatter = Threads([ChunkStep(head, in_buffer, (), SWITCH_ADDS) for head in range(heads.count)])
    gather = Threads([ChunkStep(head, in_buffer, SWITCH_COPIES, ()) for head in range(heads.count)])
    if heads.own is None:
        return [scatter, gather]
    if work.algorithm is Algorithm.NVLSTree:
        tree = across.nvls_trees[channel]
        up: tuple[Peer, ...] = () if (parent := tree.parents[rank]) is None else (parent,)
        down: tuple[Peer, ...] = tree.children[rank]
    else:
        up, down = ((Fabric.network_adds,) if several else ()), ()
    reduce = Threads([ChunkStep(heads.own, in_buffer, (*SWITCH_ADDS, *down), up or (*SWITCH_COPIES, *down))])
    broadcast = Threads([ChunkStep(heads.own, in_buffer, up, (*SWITCH_COPIES, *down))])
    return [scatter, gather, reduce, broadcast] if up else [scatter, gather, reduce]


def _parts(work: Work, heads: NodeHeads, several: bool) -> list[Place]:
    """Where the parts of the heads are, by head."""
    if several:
        return [heads.of_rail(head, work.count) for head in range(heads.count)]
    return [in_part_of(head, work.count) for head in range(heads.count)]  # sic: a head's number is taken for its rank


def _all_gather(work: Work, heads: NodeHeads, rank: int, several: bool) -> list[Threads]:
    parts = _parts(work, heads, several)
    gather = Threads([ChunkStep(0, part, SWITCH_COPIES, ()) for part in parts])
    if heads.own is None:
        return [gather]
    if not several:
        return [gather, Threads([ChunkStep(0, in_part_of(rank, work.count), (), SWITCH_COPIES)])]
    network = (Fabric.network_copies,)
    return [
        gather,
        Threads([ChunkStep(0, heads.own_piece(work.count), (), network)]),
        Threads([ChunkStep(0, parts[heads.own], network, SWITCH_COPIES)]),
    ]


def _reduce_scatter(work: Work, heads: NodeHeads, rank: int, several: bool) -> list[Threads]:
    parts = _parts(work, heads, several)
    scatter = Threads([ChunkStep(0, part, (), SWITCH_ADDS) for part in parts])
    if heads.own is None:
        return [scatter]
    if not several:
        return [scatter, Threads([ChunkStep(0, in_part_of(rank, work.count), SWITCH_ADDS, ())])]
    network = (Fabric.network_adds,)
    return [
        scatter,
        Threads([ChunkStep(0, parts[heads.own], SWITCH_ADDS, network)]),
        Threads([ChunkStep(0, heads.own_piece(work.count), network, ())]),
    ]

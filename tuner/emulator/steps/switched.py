"""What a rank does in one loop where the switch of its node takes part: NVLS, alone, with the network, and with trees.

A rank hands each head's part to the switch, which adds what all ranks of the node hand it when the head asks for it
(multimem.ld_reduce); what a head hands to the switch (multimem.st) all ranks of its node get, itself among them.
Source: RunWorkColl of NVLS and NVLSTree, src/device/all_reduce.h, all_gather.h and reduce_scatter.h, v2.28.9-1.
"""

from tuner.base.names import Algorithm, Collective
from tuner.emulator.connect import Across
from tuner.emulator.launch.records import Work
from tuner.emulator.steps.going import Going, Place, Threads, in_buffer, in_part_of
from tuner.emulator.steps.heads import NodeHeads
from tuner.emulator.steps.records import Fabric, Peer

ADDS, COPIES = (Fabric.switch_adds,), (Fabric.switch_copies,)


def by_switch(work: Work, across: Across, heads: NodeHeads, channel: int, rank: int) -> list[Threads]:
    """The steps of a rank's threads in one loop."""
    several = len(across.ranks_of_nodes) > 1
    if work.collective is Collective.AllGather:
        return _all_gather(work, heads, rank, several)
    if work.collective is Collective.ReduceScatter:
        return _reduce_scatter(work, heads, rank, several)
    scatter = Threads([Going(head, in_buffer, (), ADDS) for head in range(heads.count)])
    gather = Threads([Going(head, in_buffer, COPIES, ()) for head in range(heads.count)])
    if heads.own is None:
        return [scatter, gather]
    if work.algorithm is Algorithm.NVLSTree:
        tree = across.nvls_trees[channel]
        up: tuple[Peer, ...] = () if (parent := tree.parents[rank]) is None else (parent,)
        down: tuple[Peer, ...] = tree.children[rank]
    else:
        up, down = ((Fabric.network_adds,) if several else ()), ()
    reduce = Threads([Going(heads.own, in_buffer, (*ADDS, *down), up or (*COPIES, *down))])
    broadcast = Threads([Going(heads.own, in_buffer, up, (*COPIES, *down))])
    return [scatter, gather, reduce, broadcast] if up else [scatter, gather, reduce]


def _parts(work: Work, heads: NodeHeads, several: bool) -> list[Place]:
    """Where the parts of the heads are, by head."""
    if several:
        return [heads.of_rail(head, work.count) for head in range(heads.count)]
    return [in_part_of(head, work.count) for head in range(heads.count)]  # sic: a head's number is taken for its rank


def _all_gather(work: Work, heads: NodeHeads, rank: int, several: bool) -> list[Threads]:
    parts = _parts(work, heads, several)
    gather = Threads([Going(0, part, COPIES, ()) for part in parts])
    if heads.own is None:
        return [gather]
    if not several:
        return [gather, Threads([Going(0, in_part_of(rank, work.count), (), COPIES)])]
    network = (Fabric.network_copies,)
    return [
        gather,
        Threads([Going(0, heads.own_piece(work.count), (), network)]),
        Threads([Going(0, parts[heads.own], network, COPIES)]),
    ]


def _reduce_scatter(work: Work, heads: NodeHeads, rank: int, several: bool) -> list[Threads]:
    parts = _parts(work, heads, several)
    scatter = Threads([Going(0, part, (), ADDS) for part in parts])
    if heads.own is None:
        return [scatter]
    if not several:
        return [scatter, Threads([Going(0, in_part_of(rank, work.count), ADDS, ())])]
    network = (Fabric.network_adds,)
    return [
        scatter,
        Threads([Going(0, parts[heads.own], ADDS, network)]),
        Threads([Going(0, heads.own_piece(work.count), network, ())]),
    ]

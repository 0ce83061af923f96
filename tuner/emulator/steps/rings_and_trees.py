"""What a rank does in one loop along a ring, and up and down a tree.

Source: runRing and runTreeSplit of src/device/all_reduce.h, runRing of reduce_scatter.h, all_gather.h, reduce.h and
broadcast.h, v2.28.9-1.
"""

from collections.abc import Sequence

from tuner.base.names import Collective
from tuner.emulator.connect import TreeOrder
from tuner.emulator.launch.records import Work
from tuner.emulator.steps.going import Going, Threads, in_buffer, in_part_of


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
                Going(0, parts[1 % ranks], (), after),
                *(Going(0, parts[back], before, after, adds=True) for back in range(2, ranks)),
                Going(0, parts[0], before, (), adds=True),
            ]
        )
    if work.collective is Collective.AllGather:
        parts = [in_part_of(ring[place - back], work.count) for back in range(ranks)]
        return Threads(
            [
                Going(0, parts[0], (), after),
                *(Going(0, parts[back], before, after) for back in range(1, ranks - 1)),
                Going(0, parts[ranks - 1], before, ()),
            ]
        )
    if work.collective is Collective.Reduce:  # from the rank behind the root around to it
        first, last, adds = before == (work.root,), rank == work.root, True
    else:
        first, last, adds = rank == work.root, after == (work.root,), False
    return Threads([Going(0, in_buffer, () if first else before, () if last else after, adds and not first)])


def _twice_around(ranks: int, place: int, before: tuple[int], after: tuple[int]) -> list[Going]:
    return [
        Going((place - 1) % ranks, in_buffer, (), after),
        *(Going((place - back) % ranks, in_buffer, before, after, adds=True) for back in range(2, ranks + 1)),
        *(Going((place - back) % ranks, in_buffer, before, after) for back in range(1, ranks - 1)),
        Going((place + 1) % ranks, in_buffer, before, ()),
    ]


def up_and_down(tree: TreeOrder, rank: int) -> list[Threads]:
    """To the parent, and from it; the root sends down again what it has added."""
    parent, children = tree.parents[rank], tree.children[rank]
    up = Going(0, in_buffer, children, children if parent is None else (parent,), adds=bool(children))
    if parent is None:
        return [Threads([up])]
    return [Threads([up]), Threads([Going(0, in_buffer, (parent,), children)])]

"""The rings and trees of nodes that are alike, without all else that each rank knows of its channels.

They are those of :func:`tuner.emulator.connect.summary.summarize`, but for crossings; of many nodes these alone take
far less.
"""

from collections.abc import Sequence
from itertools import chain, pairwise

from tuner.emulator.communicator import Communicator
from tuner.emulator.connect.binary_trees import double_tree
from tuner.emulator.connect.join import Join
from tuner.emulator.connect.nodes import Nodes
from tuner.emulator.connect.summary import Across, RingOrder, TreeOrder


def rings_and_trees(view: Communicator, nodes: Nodes) -> Across:
    """Of nodes of one kind, whose ranks have this view. ValueError for nodes of several kinds."""
    if len(nodes.kinds) != 1:
        raise ValueError("nodes of several kinds")
    join, first = Join(view, nodes, 0), nodes.ranks_of[0][0]
    rings: dict[int, tuple[int, ...]] = {}
    trees: dict[tuple[int, bool], tuple[tuple[int | None, ...], tuple[tuple[int, ...], ...]]] = {}
    of_rings, of_trees = [], []
    for number, original in enumerate(view.copied_from[: view.channels]):
        at = original % join.count, original >= join.count
        if at[0] not in rings:
            rings[at[0]] = _ring(join, at[0], first)
        if at not in trees:
            trees[at] = _tree(join, *at)
        of_rings.append(RingOrder(number, rings[at[0]], ()))
        of_trees.append(TreeOrder(number, *trees[at], ()))
    return Across(tuple(map(tuple, nodes.ranks_of)), tuple(of_rings), tuple(of_trees), (), (), (), (), ())


def _ring(join: Join, channel: int, first: int) -> tuple[int, ...]:
    of_nodes = (
        [ranks[place] for place in join.ring_order(node, channel)] for node, ranks in enumerate(join.nodes.ranks_of)
    )
    ring = list(chain.from_iterable(of_nodes))
    at = ring.index(first)
    return (*ring[at:], *ring[:at])


def _tree(join: Join, channel: int, second: bool) -> tuple[tuple[int | None, ...], tuple[tuple[int, ...], ...]]:
    """The parent and the children of each rank in one of the channel's two trees."""
    of_all: Sequence[Sequence[int]] = join.nodes.ranks_of
    order, count = join.own.orders("tree")[channel], sum(map(len, of_all))
    parents: list[int | None] = [None] * count
    children: list[tuple[int, ...]] = [()] * count
    ends = [join.tree_ends(node, channel) for node in range(len(of_all))]
    for node, ranks in enumerate(of_all):
        inside = [ranks[place] for place in order]
        for above, below in pairwise(inside):
            parents[below], children[above] = above, (below,)
        place = double_tree(len(of_all), node)[second]
        to_parent, to_first, to_second = ends[node]
        if place.parent is not None:
            parents[to_parent] = ends[place.parent][2 if place.is_second else 1]
        if place.first is not None:
            children[to_first] += (ends[place.first][0],)
        if place.second is not None:
            children[to_second] += (ends[place.second][0],)
    return tuple(parents), tuple(children)

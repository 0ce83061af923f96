"""The double binary tree over nodes: every node is inner in one of both trees and a leaf in the other.

Source: ncclGetBtree and ncclGetDtree, src/graph/trees.cc, v2.28.9-1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Place:
    """A node's place in a binary tree of nodes."""

    parent: int | None
    first: int | None  # child
    second: int | None
    is_second: bool  # of its parent's children


@lru_cache(4096)  # every channel of every rank asks
def double_tree(nodes: int, node: int) -> tuple[Place, Place]:
    """A node's places in both trees: the second is the first mirrored, or moved on by one where nodes are odd."""
    first = binary_tree(nodes, node)
    if nodes % 2:
        return first, _renamed(binary_tree(nodes, (node - 1) % nodes), lambda other: (other + 1) % nodes)
    return first, _renamed(binary_tree(nodes, nodes - 1 - node), lambda other: nodes - 1 - other)


def binary_tree(nodes: int, node: int) -> Place:
    """A node's place in the tree whose leaves are the odd nodes and whose root is node 0, with one child."""
    bit = 1
    while bit < nodes and not bit & node:
        bit <<= 1
    if node == 0:
        return Place(None, None, bit >> 1 if nodes > 1 else None, is_second=False)
    parent = (node ^ bit) | (bit << 1)
    if parent >= nodes:
        parent = node ^ bit
    low = bit >> 1
    if low == 0:
        return Place(parent, None, None, is_second=node >= parent)
    second, step = node + low, low
    while second >= nodes:
        second, step = (node + step, step >> 1) if step else (-1, 0)
    return Place(parent, node - low, None if second < 0 else second, is_second=node >= parent)


def _renamed(place: Place, name: Callable[[int], int]) -> Place:
    parent, first, second = (None if node is None else name(node) for node in (place.parent, place.first, place.second))
    return Place(parent, first, second, place.is_second)

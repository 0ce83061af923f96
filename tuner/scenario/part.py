"""Hosts that fall apart: nodes that NCCL makes of a host's GPUs where only the network joins them.

Source: ncclTopoTrimSystem, src/graph/paths.cc; initTransportsRank, src/init.cc, v2.28.9-1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import TYPE_CHECKING

from tuner.emulator.communicator import Node
from tuner.scenario.domain import ResolvedDomain
from tuner.scenario.node import ResolvedNode, found_graphs

if TYPE_CHECKING:
    from tuner.search import Request


@dataclass(frozen=True, slots=True)
class ResolvedPart:
    """Those of a host's ranks that NCCL takes for a node."""

    host: ResolvedNode
    ranks: tuple[int, ...]  # of the host, in their order
    _nodes: dict[bool, Node] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """What it is, in words."""
        each = "rank" if len(self.ranks) == 1 else "ranks"
        return f"{each} {', '.join(map(str, self.ranks))} of a {self.host.name}"

    def for_search(self, several: bool) -> "Request":
        """The host as the part's first rank searches it, alone or one of several."""
        return replace(self.host.for_search(several), rank=self.ranks[0])

    def for_emulator(self, several: bool) -> Node:
        """The part as the emulator takes it, which is one of several nodes even if its host is alone."""
        if several not in self._nodes:
            graphs, net_gbs = found_graphs(self.for_search(several), self.host.scenario.nccl)
            self._nodes[several] = replace(self.host.of_ranks(self.ranks), graphs=graphs, net_gbs=net_gbs)
        return self._nodes[several]


ResolvedNodes = Sequence[tuple[ResolvedNode | ResolvedDomain | ResolvedPart, int]]  # each with how many follow


def split(nodes: Sequence[tuple[ResolvedNode | ResolvedDomain, int]]) -> ResolvedNodes:
    """Hosts and domains as the nodes that NCCL takes them for, in the order of ranks.

    Errors: those of the search, which says it.
    """
    several = sum(count for _, count in nodes) > 1
    return list(chain.from_iterable(_split(node, count, several) for node, count in nodes))


def _split(node: ResolvedNode | ResolvedDomain, count: int, several: bool) -> ResolvedNodes:
    parts = node.parts(several) if isinstance(node, ResolvedNode) and count else ()
    if len(parts) < 2:
        return [(node, count)]
    of_host = [(ResolvedPart(node, ranks), 1) for ranks in parts]
    return list(chain.from_iterable(repeat(of_host, count)))

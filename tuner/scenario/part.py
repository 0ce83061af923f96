"""Hosts and NVLink domains that fall apart: nodes that NCCL makes of GPUs where only the network joins them.

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
    from tuner.graphs import Request


@dataclass(frozen=True, slots=True)
class ResolvedPart:
    """Ranks of a host or of a NVLink domain that NCCL takes for a node."""

    whole: ResolvedNode | ResolvedDomain
    ranks: tuple[int, ...]  # of the whole, in their order
    _nodes: dict[bool, Node] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """What it is, in words."""
        each = "rank" if len(self.ranks) == 1 else "ranks"
        return f"{each} {', '.join(map(str, self.ranks))} of a {self.whole.name}"

    def for_search(self, several: bool) -> "Request":
        """The whole as the part's first rank searches it, alone or one of several."""
        return replace(self.whole.for_search(several), rank=self.ranks[0])

    def for_emulator(self, several: bool) -> Node:
        """The part as the emulator takes it, which is one of several nodes even if the whole is alone."""
        if several not in self._nodes:
            graphs, net_gbs = found_graphs(self.for_search(several), self.whole.nccl)
            self._nodes[several] = replace(
                self.whole.of_ranks(self.ranks),
                graphs=graphs,
                net_gbs=net_gbs,
                parts_of_whole=len(self.whole.parts(several)),
            )
        return self._nodes[several]


ResolvedNodes = Sequence[tuple[ResolvedNode | ResolvedDomain | ResolvedPart, int]]  # each with how many follow


def split(nodes: Sequence[tuple[ResolvedNode | ResolvedDomain, int]]) -> ResolvedNodes:
    """Hosts and domains as the nodes that NCCL takes them for, in the order of ranks.

    Errors: those of the search, which says it.
    """
    several = sum(count for _, count in nodes) > 1
    return list(chain.from_iterable(_split(node, count, several) for node, count in nodes))


def _split(node: ResolvedNode | ResolvedDomain, count: int, several: bool) -> ResolvedNodes:
    if count and len(parts := node.parts(several)) > 1:
        of_whole = [(ResolvedPart(node, ranks), 1) for ranks in parts]
        return list(chain.from_iterable(repeat(of_whole, count)))
    return [(node, count)]


def ranks_of(nodes: ResolvedNodes, sizes: Sequence[int]) -> tuple[Sequence[int], ...]:
    """The ranks of each node; ``sizes``: how many ranks each of ``nodes`` has."""
    start, end, each = 0, 0, list[Sequence[int]]()
    for (node, count), size in zip(nodes, sizes, strict=True):
        for _ in range(count):
            if not isinstance(node, ResolvedPart):
                each.append(range(end, end + size))
                end += size
                continue
            if 0 in node.ranks:  # the first part of its host or domain
                start, end = end, end + node.whole.size
            each.append(tuple(start + rank for rank in node.ranks))
    return tuple(each)


def what_hosts_are(nodes: ResolvedNodes) -> str | None:
    """What NCCL makes of the hosts that it takes for several nodes, and why, in words; None where there are none."""
    first = {node.whole: node for node, _ in nodes if isinstance(node, ResolvedPart) and 0 in node.ranks}
    if not first:
        return None
    from tuner.graphs.explain import explain

    wholes = sum(count for node, count in nodes if not isinstance(node, ResolvedPart) or 0 in node.ranks)
    several = sum(count for _, count in nodes)
    of = "host" if any(isinstance(whole, ResolvedNode) for whole in first) else "NVLink domain"
    says = [f"NCCL makes {several} nodes of {wholes} {of}{'s' * (wholes > 1)}."]
    for whole, part in first.items():
        explained = explain(part.for_search(wholes > 1), whole.nccl, "ring", with_lifts=False)
        says += [f"{whole.name}: {reason.says}" for reason in explained.reasons if reason.kind == "parts"]
    return " ".join(says)

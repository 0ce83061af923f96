"""NVLink domains: hosts that NVLink joins, which are one node to NCCL (multi-node NVLink, MNNVL)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice, repeat
from typing import TYPE_CHECKING

from tuner.base.errors import BadInput
from tuner.emulator.communicator import Node
from tuner.scenario.node import ResolvedNode, found_graphs

if TYPE_CHECKING:
    from tuner.search import Request

Alike = tuple[ResolvedNode, int]  # a kind of host, and how many of it follow each other


@dataclass(frozen=True, slots=True)
class ResolvedDomain:
    """The hosts of a domain that a communicator uses, in the order of ranks."""

    alike: tuple[Alike, ...]
    _nodes: dict[bool, Node] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """What it is, in words."""
        return "NVLink domain of " + " + ".join(f"{count} x {kind.name}" for kind, count in self.alike)

    @property
    def hosts(self) -> int:
        """How many it has."""
        return sum(count for _, count in self.alike)

    def for_search(self, several: bool) -> "Request":
        """The domain as the search of graphs takes it, alone or one of several. BadInput where settings differ."""
        from tuner.search import Hosts

        first, *others = [replace(kind.for_search(several), hosts=hosts) for kind, hosts in self.alike]
        if any(other.environment != first.environment for other in others):
            raise BadInput("the nccl.conf of these machines differ; valid in one NVLink domain: alike")
        return replace(
            first,
            nvls_off=first.nvls_off or any(other.nvls_off for other in others),
            others=[Hosts(other.topology, other.gpus, other.gpu_of_rank, other.hosts) for other in others],
        )

    def for_emulator(self, several: bool) -> Node:
        """The domain as the emulator takes it, alone or one of several nodes."""
        if several not in self._nodes:
            self._nodes[several] = self._described(several)
        return self._nodes[several]

    def _described(self, several: bool) -> Node:
        hosts = [(kind.without_graphs, count) for kind, count in self.alike]
        every, number = [host for host, _ in hosts], self.hosts
        (first, trays), *others = self.alike
        known = None if others else first.searched_before(several, trays)
        graphs, net_gbs = known or found_graphs(self.for_search(several), first.scenario.nccl)
        gpu_direct = {host.gpu_direct for host in every}
        return replace(
            every[0],
            graphs=graphs,
            net_gbs=net_gbs,
            comp_caps=tuple(chain.from_iterable(host.comp_caps * count for host, count in hosts)),
            has_nvswitch=any(host.has_nvswitch for host in every),
            direct_nvlink=all(host.direct_nvlink and (number == 1 or host.has_nvswitch) for host in every),
            some_nvlink=any(host.some_nvlink or (number > 1 and host.has_nvswitch) for host in every),
            gpu_direct=gpu_direct.pop() if len(gpu_direct) == 1 else None,
            shares_gpus=any(host.shares_gpus for host in every),
            hosts=number,
            fabric=sum(len(host.comp_caps) * count for host, count in hosts) > 1,
        )


def grouped(kinds: Sequence[Alike], sizes: Sequence[int]) -> list[tuple[tuple[Alike, ...], int]]:
    """Hosts as domains of ``sizes`` hosts, in the order of ranks: those of one, and how many such domains follow."""
    hosts = chain.from_iterable(repeat(kind, count) for kind, count in kinds)
    each = [tuple((kind, len(list(alike))) for kind, alike in groupby(islice(hosts, size))) for size in sizes]
    return [(domain, len(list(alike))) for domain, alike in groupby(each)]

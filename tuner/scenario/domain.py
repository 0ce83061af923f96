"""NVLink domains: hosts that NVLink joins, which NCCL treats as one node (multi-node NVLink, MNNVL)."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial
from itertools import accumulate, chain, groupby, repeat
from typing import TYPE_CHECKING

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.spelling import option
from tuner.emulator.communicator import AnyMergesAdapters, Node
from tuner.machine.adapters import PeerLinks
from tuner.machine.graphs import Graphs
from tuner.scenario.node import ResolvedNode, first_ranks, found_graphs, found_parts

if TYPE_CHECKING:
    from tuner.graphs import SearchRequest


Alike = tuple[ResolvedNode, int]  # a kind of host, and the number of such hosts in a row


@dataclass(frozen=True, slots=True)
class ResolvedDomain:
    """The hosts of an NVLink domain that a communicator uses, in the order of ranks."""

    alike: tuple[Alike, ...]
    _nodes: dict[bool, Node] = field(default_factory=dict, compare=False, repr=False)
    _parts: dict[bool, tuple[tuple[int, ...], ...]] = field(default_factory=dict, compare=False, repr=False)
    _peer_links: dict[bool, PeerLinks] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the node."""
        return "NVLink domain of " + " + ".join(
            f"{count} trays of a {kind.name}" if kind.trays else f"{count} x {kind.name}" for kind, count in self.alike
        )

    @property
    def hosts(self) -> int:
        """Number of hosts of the domain."""
        return sum(count for _, count in self.alike)

    def for_search(self, several: bool) -> "SearchRequest":
        """The domain as input for the search of graphs, as the only node or as one of several. BadInput if its hosts
        have different settings."""
        from tuner.graphs import Hosts

        first, *others = [replace(kind.for_search(several), hosts=hosts) for kind, hosts in self.alike]
        if any(other.environment != first.environment for other in others):
            raise BadInput("the nccl.conf files of these machines differ, but have to be equal in one NVLink domain")
        return replace(
            first,
            in_domain=self.size > 1,
            nvls_off=first.nvls_off or any(other.nvls_off for other in others),
            others=[Hosts(other.topology, other.gpus, other.gpu_of_rank, other.hosts) for other in others],
        )

    def for_emulator(self, several: bool) -> Node:
        """The domain as input for the emulator, as the only node or as one of several."""
        if several not in self._nodes:
            self._nodes[several] = self._described(several)
        return self._nodes[several]

    def _described(self, several: bool) -> Node:
        graphs, net_gbs = self._searched_before(several) or found_graphs(self.for_search(several), self.nccl)
        joined = _joined([(kind.without_graphs, count) for kind, count in self.alike])
        return replace(
            joined,
            graphs=graphs,
            net_gbs=net_gbs,
            fabric=self.size > 1,
            links=partial(self._links, several),
            first_ranks=partial(first_ranks, self.for_search, self.nccl, several),
        )

    def _links(self, several: bool) -> PeerLinks:
        from tuner.graphs.graphs import peer_links

        if several not in self._peer_links:  # needed again for every size
            self._peer_links[several] = peer_links(self.for_search(several), self.nccl)
        return self._peer_links[several]

    @property
    def nccl(self) -> str:
        """The name of the release."""
        return self.alike[0][0].scenario.nccl

    @property
    def size(self) -> int:
        """Number of ranks of the domain."""
        return sum(len(kind.gpu_of_rank) * count for kind, count in self.alike)

    def of_ranks(self, ranks: Sequence[int]) -> Node:
        """A node for the emulator that consists of these ranks of the domain, without the graphs and the bandwidth that
        a search would find."""
        each_host = chain.from_iterable(repeat(kind, count) for kind, count in self.alike)
        every = list(each_host)
        first = [0, *accumulate(len(kind.gpu_of_rank) for kind in every)]
        nodes = []
        for kind, start, end in zip(every, first, first[1:], strict=False):
            if own := [rank - start for rank in ranks if start <= rank < end]:
                nodes.append((kind.of_ranks(own), 1))
        return replace(_joined(nodes), fabric=self.size > 1)

    def parts(self, several: bool) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node that NCCL makes of the domain; mostly, it makes only one. ``several`` says whether the
        communicator has other nodes."""
        if several not in self._parts:
            known = several in self._nodes or self._searched_before(several) is not None
            whole = (tuple(range(self.size)),)
            self._parts[several] = whole if known else found_parts(self.for_search(several), self.nccl)
        return self._parts[several]

    def _searched_before(self, several: bool) -> tuple[Graphs, float] | None:
        (first, trays), *others = self.alike
        return None if others else first.searched_before(several, trays)


def _joined(hosts: Sequence[tuple[Node, int]]) -> Node:
    """One node, without graphs, that consists of these hosts; each host comes with its number."""
    every, number = [host for host, _ in hosts], sum(count for _, count in hosts)
    gpu_direct = {host.gpu_direct for host in every}
    return replace(
        every[0],
        comp_caps=tuple(chain.from_iterable(host.comp_caps * count for host, count in hosts)),
        has_nvswitch=any(host.has_nvswitch for host in every),
        direct_nvlink=all(host.direct_nvlink and (number == 1 or host.has_nvswitch) for host in every),
        some_nvlink=any(host.some_nvlink or (number > 1 and host.has_nvswitch) for host in every),
        gpu_direct=gpu_direct.pop() if len(gpu_direct) == 1 else None,
        shares_gpus=any(host.shares_gpus for host in every),
        merges_adapters=AnyMergesAdapters(tuple(every)),
        hosts=number,
    )


def sizes_of_domains(kinds: Sequence[ResolvedNode], hosts: int, described: Sequence[int] | int) -> tuple[int, ...]:
    """The number of hosts of each NVLink domain; ``described`` has one number per domain, or one for all.

    BadInput if the numbers do not add up to all hosts, and for hosts that have no NVLink to other hosts.
    """
    if isinstance(described, int):
        whole, rest = divmod(hosts, described)
        sizes = (described,) * whole + ((rest,) if rest else ())
    else:
        sizes = tuple(described)
    if sum(sizes) != hosts:
        raise BadInput(
            f"NVLink domains of {', '.join(map(str, sizes))} hosts are {sum(sizes)} hosts in all, not {hosts}: give "
            f"sizes that add up to {hosts}, or one number for equal domains"
        )
    ends, before = list(accumulate(sizes)), 0
    for kind in kinds:
        first, before = before, before + kind.hosts
        domains = range(bisect_right(ends, first), bisect_left(ends, before) + 1)
        if any(sizes[domain] > 1 for domain in domains) and not kind.topology.has_nvswitch(kind.gpus):
            raise BadInput(
                f"{option('hosts_per_domain')}: no GPU of {kind.name} has NVLinks to a switch, which could reach other "
                "hosts: use hosts with an NVSwitch, or domains of 1 host"
            )
    return sizes


def grouped(kinds: Sequence[Alike], sizes: Sequence[int]) -> list[tuple[tuple[Alike, ...], int]]:
    """Groups hosts, in the order of ranks, into domains of ``sizes`` hosts. Returns, for each run of equal domains, the
    hosts of one domain and the number of domains in the run.

    Equal domains are grouped in one step, because there may be thousands.
    """
    left, found = deque((kind, count) for kind, count in kinds if count), list[tuple[tuple[Alike, ...], int]]()
    for size, alike in groupby(sizes):
        number = len(list(alike))
        while number:
            (kind, count), taken = left[0], 1
            if count < size:
                domain = _taken(left, size)
            else:
                domain, taken = ((kind, size),), min(number, count // size)
                _taken(left, size * taken)
            if found and found[-1][0] == domain:
                found[-1] = domain, found[-1][1] + taken
            else:
                found.append((domain, taken))
            number -= taken
    return found


def _taken(left: deque[Alike], hosts: int) -> tuple[Alike, ...]:
    """Removes the first ``hosts`` hosts from ``left``, and returns them."""
    taken: list[Alike] = []
    while hosts:
        kind, count = left.popleft()
        some = min(hosts, count)
        if some < count:
            left.appendleft((kind, count - some))
        if taken and taken[-1][0] == kind:
            taken[-1] = kind, taken[-1][1] + some
        else:
            taken.append((kind, some))
        hosts -= some
    return tuple(taken)


@dataclass(frozen=True, slots=True)
class ResolvedPart:
    """A part of a host or NVLink domain that NCCL treats as a separate node."""

    whole: ResolvedNode | ResolvedDomain
    ranks: tuple[int, ...]  # ranks of the host or domain, in order
    _nodes: dict[bool, Node] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the node."""
        each = "rank" if len(self.ranks) == 1 else "ranks"
        return f"{each} {', '.join(map(str, self.ranks))} of a {self.whole.name}"

    def for_search(self, several: bool) -> "SearchRequest":
        """The whole host or domain as input for the search by the part's first rank. ``several``: the communicator has
        other hosts or domains.
        """
        return replace(self.whole.for_search(several), rank=self.ranks[0])

    def for_emulator(self, several: bool) -> Node:
        """The part as input for the emulator, always as one of several nodes, even if there is only this host or
        domain."""
        if several not in self._nodes:
            graphs, net_gbs = found_graphs(self.for_search(several), self.whole.nccl)
            self._nodes[several] = replace(
                self.whole.of_ranks(self.ranks),
                graphs=graphs,
                net_gbs=net_gbs,
                parts_of_whole=len(self.whole.parts(several)),
                links=partial(self._links, several),
                first_ranks=partial(first_ranks, self.for_search, self.whole.nccl, several),
            )
        return self._nodes[several]

    def _links(self, several: bool) -> PeerLinks:
        from tuner.graphs.graphs import peer_links

        return peer_links(self.for_search(several), self.whole.nccl)


# Each with the number of equal nodes in a row
ResolvedNodes = Sequence[tuple[ResolvedNode | ResolvedDomain | ResolvedPart, int]]


def split(nodes: Sequence[tuple[ResolvedNode | ResolvedDomain, int]]) -> ResolvedNodes:
    """Divides hosts and domains into the nodes that NCCL makes of them, in the order of ranks.

    Raises BadTopology, and BadInput for what NCCL refuses.
    """
    several = sum(count for _, count in nodes) > 1
    return list(chain.from_iterable(_split(node, count, several) for node, count in nodes))


def _split(node: ResolvedNode | ResolvedDomain, count: int, several: bool) -> ResolvedNodes:
    if count and len(parts := node.parts(several)) > 1:
        of_whole = [(ResolvedPart(node, ranks), 1) for ranks in parts]
        return list(chain.from_iterable(repeat(of_whole, count)))
    return [(node, count)]


def ranks_of(nodes: ResolvedNodes, sizes: Sequence[int]) -> tuple[Sequence[int], ...]:
    """The ranks of each node; ``sizes`` has the number of ranks of each of ``nodes``."""
    start, end, each = 0, 0, list[Sequence[int]]()
    for (node, count), size in zip(nodes, sizes, strict=True):
        for _ in range(count):
            if not isinstance(node, ResolvedPart):
                each.append(range(end, end + size))
                end += size
                continue
            if 0 in node.ranks:  # the first part of its host or domain has rank 0
                start, end = end, end + node.whole.size
            each.append(tuple(start + rank for rank in node.ranks))
    return tuple(each)


def what_hosts_are(nodes: ResolvedNodes) -> str | None:
    """A sentence on hosts that NCCL divides into several nodes, and why; None if there are no such hosts."""
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

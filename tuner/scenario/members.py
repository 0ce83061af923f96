"""A communicator of some ranks of another one: what is left of each host and NVLink domain.

NCCL makes such a communicator anew, of the hosts and GPUs that its ranks are on (initTransportsRank, src/init.cc,
v2.28.9-1); what it takes over from the whole, where it shares its resources, is in
:mod:`tuner.emulator.rules.split_share`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, groupby, repeat
from typing import TYPE_CHECKING

from tuner.base.errors import BadInput
from tuner.base.ranges import as_ranges
from tuner.machine.topology import Topology, edit
from tuner.machine.topology import read as read_topology
from tuner.scenario.node import ResolvedNode

if TYPE_CHECKING:
    from tuner.scenario.description import Scenario
    from tuner.scenario.resolved import ResolvedScenario

Used = tuple[ResolvedNode, tuple[int, ...]]  # a host, and which of its GPUs have ranks of the communicator


class ResolvedSomeGpus(ResolvedNode):
    """Hosts of which some GPUs are used that are not the first ones."""

    def __init__(self, whole: ResolvedNode, gpus: tuple[int, ...], count: int) -> None:
        super().__init__(_described(whole, None, count))
        self.name = f"{whole.name} (GPUs {as_ranges(gpus)})"
        self._topology_xml = edit.of_gpus(whole.topology_xml, gpus)

    @property
    def topology_xml(self) -> str:
        """That of the host without its other GPUs, which NCCL drops as well (ncclTopoTrimXml, src/graph/xml.cc)."""
        return self._topology_xml

    @cached_property
    def topology(self) -> Topology:
        """The same as records."""
        return read_topology(self.topology_xml)

    def searched_before(self, several: bool, trays: int = 1) -> None:
        """The catalogue has graphs of the first GPUs only."""


def kinds(whole: "ResolvedScenario", ranks: Sequence[int]) -> tuple[ResolvedNode, ...]:
    """The kinds of hosts that these ranks of a scenario are on, in their order, with the GPUs that have one.

    BadInput for a rank that there is none, and for nodes of which only the graphs are known.
    """
    if outside := [rank for rank in ranks if not 0 <= rank < whole.ranks]:
        raise BadInput(f"`ranks`: {outside[0]}; valid: 0 to {whole.ranks - 1}, those of {whole.scenario.title}")
    for kind in whole.kinds:
        if kind.scenario.graphs is not None or kind.scenario.logged is not None:
            raise BadInput("`ranks`: of graphs alone, which are of all GPUs; valid with `machine` or `topology`")
        if kind.shares_gpus:
            raise BadInput("`ranks`: not emulated where ranks share a GPU; valid: `ranks_per_gpu` 1")
    made: dict[Used, ResolvedNode] = {}
    found = list[ResolvedNode]()
    for used, alike in groupby(each for each in used_of_hosts(whole, ranks) if each[1]):
        count = len(list(alike))
        made.setdefault(used, _of_gpus(*used))
        found.append(made[used].with_nodes(count))
    return tuple(found)


def used_of_hosts(whole: "ResolvedScenario", ranks: Sequence[int]) -> Iterator[Used]:
    """Every host with its GPUs that have one of the ranks, which may be none."""
    wanted, first = frozenset(ranks), 0
    for kind in chain.from_iterable(repeat(kind, kind.hosts) for kind in whole.kinds):
        yield kind, tuple(gpu for gpu in range(kind.size) if first + gpu in wanted)
        first += kind.size


def hosts_of_domains(whole: "ResolvedScenario", ranks: Sequence[int]) -> tuple[int, ...]:
    """Number of hosts of each NVLink domain have one of the ranks; empty: there are no domains."""
    used = [bool(gpus) for _, gpus in used_of_hosts(whole, ranks)]
    sizes, first = list[int](), 0
    for hosts in whole.domains:
        sizes.append(sum(used[first : first + hosts]))
        first += hosts
    return tuple(filter(None, sizes))


def _of_gpus(kind: ResolvedNode, gpus: tuple[int, ...]) -> ResolvedNode:
    if gpus == tuple(range(len(gpus))):
        return ResolvedNode(_described(kind, len(gpus), 1))
    return ResolvedSomeGpus(kind, gpus, 1)


def _described(kind: ResolvedNode, gpus: int | None, count: int) -> "Scenario":
    """One host as a scenario of its own, so many times; of a NVLink domain a tray."""
    return replace(kind.scenario, nodes=count, trays=1 if kind.trays else None, gpus_per_node=gpus, members=None)

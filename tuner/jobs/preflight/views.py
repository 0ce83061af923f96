"""One communicator of ranks that were started with different things, as each kind of its ranks sees it.

NCCL gathers the graphs of all ranks and goes on with the weakest; the rest each rank computes with what it has itself.
Source: initTransportsRank, src/init.cc, v2.28.9-1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tuner import release
from tuner.emulator.aws_ofi_nccl import release as aws_release
from tuner.emulator.aws_ofi_nccl.tuner import AwsTuner
from tuner.emulator.build import build
from tuner.emulator.communicator import Communicator, Node
from tuner.emulator.rules import init
from tuner.emulator.selection import Selection
from tuner.jobs.preflight.place import Place
from tuner.machine.graphs import EMPTY
from tuner.release import Release
from tuner.release.environment import Environment
from tuner.release.variables import not_emulated
from tuner.scenario import Scenario
from tuner.scenario.node import ResolvedNode


@dataclass(frozen=True, slots=True)
class Setting:
    """What a rank's choices follow from: its release, variables that reach a choice, node, and decision table.

    ``cloud_tuner`` is release and product of aws-ofi-nccl's tuner, asked where the table decides nothing.
    """

    nccl: str
    environment: tuple[tuple[str, str], ...]
    place: Place
    table: Path | None = None
    cloud_tuner: tuple[str, str | None] | None = None

    @property
    def tuner(self) -> AwsTuner | None:
        """The tuner of that release on that product."""
        return self.cloud_tuner and AwsTuner(aws_release.load(self.cloud_tuner[0]), self.cloud_tuner[1], {})

    @property
    def variables(self) -> dict[str, str]:
        """The variables, and those that the tuner's network plugin sets where they are not set."""
        return {**(self.tuner.settings if self.tuner else {}), **dict(self.environment)}


@dataclass(frozen=True, slots=True)
class Hosts:
    """``count`` hosts in a row whose ranks have these settings, in the order of their first rank."""

    settings: tuple[Setting, ...]
    count: int


class Views:
    """A communicator of these hosts, in the order of ranks. No node is searched twice."""

    def __init__(self, hosts: Iterable[Hosts]) -> None:
        self.hosts = tuple(hosts)
        self._nodes: dict[tuple[Setting, str], Node] = {}

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Each once, in the order of ranks."""
        return tuple(dict.fromkeys(setting for hosts in self.hosts for setting in hosts.settings))

    def selection(self, own: Setting) -> Selection:
        """What the ranks with a setting pick. Errors: as :meth:`of`."""
        files = any(setting.place.topology for hosts in self.hosts for setting in hosts.settings)
        # What a topology file says may change.
        return Selection(self.of(own)) if files else _selection(self.hosts, own)

    def of(self, own: Setting) -> Communicator:
        """The communicator as the ranks with a setting see it.

        Where releases differ, the others are taken for ranks of this one. BadInput for what is not emulated;
        UnknownRelease.
        """
        nccl = release.load(own.nccl)
        first = next(at for at, hosts in enumerate(self.hosts) if own in hosts.settings)
        order = [self.hosts[first], *self.hosts[:first], *self.hosts[first + 1 :]]
        nodes = [(self._node(hosts.settings, own, nccl), hosts.count) for hosts in order]
        searched = frozenset(nccl.environment.search)
        return replace(build(nccl, nodes, Environment(own.variables, searched)), tuner=own.tuner)

    def _node(self, settings: Sequence[Setting], own: Setting, nccl: Release) -> Node:
        """A host as all of its ranks agree on it, beginning with the rank that looks if it is there."""
        own_first = sorted(settings, key=lambda setting: setting != own)
        first, *others = (self._searched(setting, nccl) for setting in own_first)
        if not others:
            return first
        everyone = [first, *others]
        names = dict.fromkeys(name for node in everyone for name in node.graphs)
        graphs = {
            name: init.weakest([node.graphs.get(name, EMPTY) for node in everyone], nccl.paths.types) for name in names
        }
        graphs = {name: graph for name, graph in graphs.items() if graph.channels}
        return replace(first, graphs=graphs, net_gbs=min(node.net_gbs for node in everyone))

    def _searched(self, setting: Setting, nccl: Release) -> Node:
        key = setting, nccl.name
        if key not in self._nodes:
            node = ResolvedNode(node_of(setting, nccl)).for_emulator(sum(hosts.count for hosts in self.hosts) > 1)
            self._nodes[key] = _without_nvls(node, setting)
        return self._nodes[key]


@lru_cache(maxsize=64)
def _selection(hosts: tuple[Hosts, ...], own: Setting) -> Selection:
    """Kept, as differences are judged one by one, and the same hosts come again."""
    return Selection(Views(hosts).of(own))


def node_of(setting: Setting, nccl: Release) -> Scenario:
    """A host of ranks with the setting, as a release that may be another's sees it."""
    place = setting.place
    return Scenario(
        nccl.name,
        nodes=1,
        machine=place.machine,
        topology=place.topology,
        gpus_per_node=place.gpus,
        environment=_known(setting.variables, nccl),
        hardware=dict(place.hardware) or None,
    )


def _known(environment: Mapping[str, str], nccl: Release) -> dict[str, str]:
    """What the release reads: another rank's may know more."""
    unknown = not_emulated(nccl, environment.keys() - set(nccl.environment.search))
    return {name: value for name, value in environment.items() if name not in unknown}


def _without_nvls(node: Node, setting: Setting) -> Node:
    """A rank with NCCL_NVLS_ENABLE=0 finds no such graph, whoever looks."""
    if not init.nvls_switched_off(Environment(dict(setting.environment))):
        return node
    return replace(node, graphs={name: graph for name, graph in node.graphs.items() if name != "nvls"})

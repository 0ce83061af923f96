"""Everything NCCL's init derives before it tunes: ranks, nodes, channels, NVLS, processors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Pattern
from tuner.emulator.rules import collnet, init
from tuner.emulator.rules.collnet import CollNet
from tuner.machine.graphs import COLLNET_GRAPHS, EMPTY, OF_ALGORITHM, Graph, Graphs
from tuner.release import Generation, Release
from tuner.release.environment import Environment

if TYPE_CHECKING:  # it imports all rules, and they import this
    from tuner.emulator.rules.resolved import Rules


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its graphs, its GPUs' compute capabilities (90 for 9.0), its CPU as NCCL spells it, its switches."""

    graphs: Graphs
    comp_caps: tuple[int, ...]
    cpu_arch: str
    cpu_vendor: str | None
    has_nvswitch: bool
    direct_nvlink: bool  # every GPU reaches every other over NVLink without passing a third
    net_gbs: float  # slowest path from a GPU to its own adapter, 0 where there is no adapter
    some_nvlink: bool = False  # a GPU reaches another over NVLink without passing a third
    gpu_direct: bool | None = None  # whether adapters can read and write GPU memory; None where some do or none knows


@dataclass(frozen=True, slots=True, eq=False)
class Communicator:
    """One communicator as the tuning model sees it; ``channels`` is what "coll channels" in NCCL's log says.

    ``coll_channels`` are those without the ones that aggregated operations may add.
    """

    release: Release
    environment: Environment
    ranks: int
    nodes: int
    nodes_are_alike: bool
    local_ranks: int  # of rank 0's node
    min_local_ranks: int
    max_local_ranks: int
    graphs: Mapping[Algorithm, Graph]
    channels: int
    coll_channels: int
    nvls_channels: int
    min_comp_cap: int
    max_comp_cap: int
    cpu_arch: str  # "mixed" where nodes differ, as the vendor
    cpu_vendor: str | None  # None where NCCL knows none: CPUs other than x86
    table_cpu_arch: str  # the processor that the model's tables go by; releases differ in which of a mixture that is
    table_cpu_vendor: str | None
    tree_pattern: Pattern | None
    has_nvswitch: bool  # of rank 0's node
    direct_nvlink: bool  # of rank 0's node, where NCCL may use it: NCCL_P2P_DISABLE and others leave the ring no NVLink
    net_gbs: float  # the least of a node's
    gpu_direct: bool | None  # of rank 0's node, as of a Node
    ctas: tuple[int, int]  # the fewest and the most blocks of a collective
    collnet: CollNet | None
    rules: "Rules" = field(init=False, repr=False)  # those of the release, also of one that takes its place

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", _rules(self.release))

    @property
    def generation(self) -> Generation:
        """The row of the tables by generation."""
        return self.release.generation(self.min_comp_cap)

    @property
    def nvls_heads(self) -> int:
        """GPUs of a node that a NVLS channel begins at."""
        return min(self.graphs[Algorithm.NVLS].channels, self.max_local_ranks)

    @property
    def nvls(self) -> bool:
        """Whether NVLS can be used at all."""
        return self.nvls_channels > 0


def _rules(release: Release) -> "Rules":
    from tuner.emulator.rules import resolved  # the rules are about communicators: they import this module

    return resolved.of(release)


def _heads(graphs: Graphs) -> tuple[tuple[int, ...] | None, ...]:
    """The GPUs at which CollNet's graphs enter the network."""
    return tuple(graphs.get(name, EMPTY).heads for name in COLLNET_GRAPHS)


def build(release: Release, nodes: Sequence[Node], environment: Environment) -> Communicator:
    """The communicator of these nodes as rank 0 sees it, the first GPU of the first node; ``[node] * n`` are n alike.

    Errors: BadInput where the shape is none, or where a variable is set that this release's emulation does not know.
    Source: initTransportsRank (src/init.cc) and ncclTopoPostset (src/graph/connect.cc), v2.28.9-1.
    """
    ranks = sum(len(node.comp_caps) for node in nodes)
    kinds: list[Node] = []  # the first node's kind first
    for node in {id(node): node for node in nodes}.values():
        if node not in kinds:
            kinds.append(node)
    if not kinds:
        raise BadInput("no nodes; valid: 1 or more")
    if ranks < 2:
        raise BadInput("a communicator of one rank has nothing to pick: NCCL copies; valid: two ranks or more")
    _check_environment(release, environment)
    environment = replace(environment, non_numeric_is_default=release.environment.non_numeric_is_default)
    rules = _rules(release)

    searched_graphs = [
        init.searched(kind.graphs, environment) | init.without_channels(release, rules, environment, kind)
        for kind in kinds
    ]
    searched = {
        name: init.weakest([graphs.get(name, EMPTY) for graphs in searched_graphs], release.paths.types)
        for name in set(OF_ALGORITHM.values())
    }
    # Ring and tree run on the same channels: the fewer of both.
    channels = min(searched[name].channels for name in ("tree", "ring"))
    graphs = {algorithm: searched[name] for algorithm, name in OF_ALGORITHM.items()}
    for algorithm in (Algorithm.Tree, Algorithm.Ring, Algorithm.PAT):
        graphs[algorithm] = init.with_channels(graphs[algorithm], channels)

    comp_caps = rules.comp_caps([cap for kind in kinds for cap in kind.comp_caps])
    local_ranks = [len(kind.comp_caps) for kind in kinds]
    net_gbs = min(kind.net_gbs for kind in kinds)
    cpus = [(kind.cpu_arch, kind.cpu_vendor) for kind in kinds]
    cpu_arch, cpu_vendor = rules.cpu(cpus)
    table_cpu_arch, table_cpu_vendor = rules.table_cpu(cpus)
    entries = {(size, _heads(graphs)) for size, graphs in zip(local_ranks, searched_graphs, strict=True)}
    if len(entries) > 1 and collnet.requested(environment):
        raise BadInput("NCCL_COLLNET_ENABLE=1: not emulated where nodes differ in GPUs or heads; valid there: 0")
    network = collnet.set_up(rules, collnet.CollNetFacts(release, environment, len(nodes), max(local_ranks), graphs))
    facts = init.InitFacts(
        release=release,
        rules=rules,
        environment=environment,
        nodes=len(nodes),
        comp_cap=kinds[0].comp_caps[0],
        min_comp_cap=min(comp_caps),
        ring=graphs[Algorithm.Ring],
        nvls=graphs[Algorithm.NVLS],
        own_nvls=searched_graphs[0].get("nvls", EMPTY),
        min_local_ranks=min(local_ranks),
        net_gbs=net_gbs,
        collnet_chain=graphs[Algorithm.CollNetChain] if network else None,
    )
    return Communicator(
        release=release,
        environment=environment,
        ranks=ranks,
        nodes=len(nodes),
        nodes_are_alike=len(kinds) == 1,
        local_ranks=local_ranks[0],
        min_local_ranks=min(local_ranks),
        max_local_ranks=max(local_ranks),
        graphs=graphs,
        channels=init.channels(facts, channels),
        coll_channels=init.coll_channels(facts, channels),
        nvls_channels=init.nvls_channels(facts),
        min_comp_cap=min(comp_caps),
        max_comp_cap=max(comp_caps),
        cpu_arch=cpu_arch,
        cpu_vendor=cpu_vendor,
        table_cpu_arch=table_cpu_arch,
        table_cpu_vendor=table_cpu_vendor,
        tree_pattern=rules.tree_pattern([graphs["tree"].pattern for graphs in searched_graphs]),
        has_nvswitch=kinds[0].has_nvswitch,
        direct_nvlink=kinds[0].direct_nvlink and graphs[Algorithm.Ring].type_intra == "NVL",
        net_gbs=net_gbs,
        gpu_direct=kinds[0].gpu_direct,
        ctas=facts.ctas(),
        collnet=network,
    )


def _check_environment(release: Release, environment: Environment) -> None:
    if unknown := release.unknown_variables(environment.values.keys() - environment.searched):
        if set(unknown) <= set(release.environment.search):
            raise BadInput(
                f"{', '.join(unknown)}: read by the search of graphs, which these were found without; valid with "
                "--topology FILE.xml, or after a change: nccl-tuner whatif, diff --change"
            )
        raise BadInput(
            f"{', '.join(unknown)}: not emulated for NCCL {release.name}; valid: "
            f"{', '.join(release.environment.known)}, "
            f"and {len(release.indifferent_variables)} that reach no choice, such as NCCL_DEBUG"
        )

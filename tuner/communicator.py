"""Everything NCCL's init derives before it tunes: ranks, nodes, channels, NVLS, processors."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner import derive
from tuner.environment import Environment
from tuner.errors import BadInput
from tuner.graphs import EMPTY, OF_ALGORITHM, Graph, Graphs
from tuner.names import Algorithm, Pattern
from tuner.release import Release


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its graphs, its GPUs' compute capabilities (90 for 9.0), its CPU as NCCL spells it, its switches."""

    graphs: Graphs
    comp_caps: tuple[int, ...]
    cpu_arch: str
    cpu_vendor: str | None
    has_nvswitch: bool
    net_gbs: float  # slowest path from a GPU to its own adapter, 0 where there is no adapter


@dataclass(frozen=True, slots=True, eq=False)
class Communicator:
    """One communicator as the tuning model sees it; ``channels`` is what "coll channels" in NCCL's log says.

    ``coll_channels`` are those without the ones that aggregated operations may add.
    """

    release: Release
    environment: Environment
    ranks: int
    nodes: int
    max_local_ranks: int
    graphs: Mapping[Algorithm, Graph]
    channels: int
    coll_channels: int
    nvls_channels: int
    min_comp_cap: int
    max_comp_cap: int
    cpu_arch: str
    cpu_vendor: str | None  # None where NCCL knows none: CPUs other than x86
    has_nvswitch: bool
    net_gbs: float  # as of a node
    ctas: tuple[int, int]  # the fewest and the most blocks of a collective
    collnet: bool

    @property
    def generation(self) -> str:
        """The row of the tables by generation."""
        return self.release.generation(self.min_comp_cap)

    @property
    def tree_pattern(self) -> Pattern | None:
        return self.graphs[Algorithm.Tree].pattern

    @property
    def nvls_heads(self) -> int:
        """GPUs of a node that a NVLS channel begins at."""
        return min(self.graphs[Algorithm.NVLS].channels, self.max_local_ranks)

    @property
    def nvls(self) -> bool:
        return self.nvls_channels > 0


def build(release: Release, node: Node, nodes: int, environment: Environment) -> Communicator:
    """The communicator of ``nodes`` equal nodes.

    Errors: BadInput where the shape is none, or where a variable is set that this release's emulation does not know.
    Source: initTransportsRank (src/init.cc) and ncclTopoPostset (src/graph/connect.cc), v2.28.9-1.
    """
    ranks = nodes * len(node.comp_caps)
    if nodes < 1:
        raise BadInput(f"nodes: {nodes} is not a number of nodes; valid: 1 or more")
    if ranks < 2:
        raise BadInput("a communicator of one rank has nothing to pick: NCCL copies; valid: two ranks or more")
    _check_environment(release, environment)

    searched = derive.searched(node.graphs, environment)
    # Ring and tree run on the same channels: the fewer of both.
    channels = min(searched[name].channels for name in ("tree", "ring"))
    graphs = {algorithm: searched.get(name, EMPTY) for algorithm, name in OF_ALGORITHM.items()}
    for algorithm in (Algorithm.Tree, Algorithm.Ring, Algorithm.PAT):
        graphs[algorithm] = derive.with_channels(graphs[algorithm], channels)

    least, greatest = derive.comp_caps(release, node.comp_caps)
    shape = derive.Shape(
        release, environment, nodes, least, graphs[Algorithm.Ring], graphs[Algorithm.NVLS],
        len(node.comp_caps), node.net_gbs,
    )
    return Communicator(
        release=release,
        environment=environment,
        ranks=ranks,
        nodes=nodes,
        max_local_ranks=len(node.comp_caps),
        graphs=graphs,
        channels=derive.channels(shape, channels),
        coll_channels=derive.coll_channels(shape, channels),
        nvls_channels=derive.nvls_channels(shape),
        min_comp_cap=least,
        max_comp_cap=greatest,
        cpu_arch=node.cpu_arch,
        cpu_vendor=node.cpu_vendor,
        has_nvswitch=node.has_nvswitch,
        net_gbs=node.net_gbs,
        ctas=shape.ctas(),
        collnet=False,
    )


def _check_environment(release: Release, environment: Environment) -> None:
    table = release.table["environment"]
    indifferent = {name for names in table["indifferent"].values() for name in names}
    unknown = sorted(set(environment.values) - {*table["known"], *table["told_buffers"]} - indifferent)
    if unknown:
        raise BadInput(
            f"{', '.join(unknown)}: not emulated for NCCL {release.name}; valid: {', '.join(table['known'])}, "
            f"and {len(indifferent)} that reach no choice, such as NCCL_DEBUG"
        )

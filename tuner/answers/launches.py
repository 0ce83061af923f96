"""A call's launch in full: what its blocks and proxy threads receive, and the ranks that its channels visit."""

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from itertools import groupby

from tuner.answers.picks import PickAnswer
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Buffers
from tuner.base.records import json_form
from tuner.base.spelling import option
from tuner.emulator import full_launch
from tuner.emulator.connect import Across, RingOrder, TreeOrder, summarize
from tuner.emulator.group import Operation, Tuner
from tuner.emulator.launches import Launch
from tuner.emulator.request import COPY_ENGINES, Request
from tuner.emulator.selection import Pick, Selection
from tuner.scenario import Scenario
from tuner.scenario.p2p import heads_of

OPTIONAL = json_form(optional=True)


@dataclass(frozen=True, slots=True)
class NodeRing:
    """The nodes that a channel's ring visits, starting with the rank's own node."""

    channel: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeTree:
    """A channel's tree over nodes: the parent of each node; None for the root."""

    channel: int
    parents: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class LaunchAnswer:
    """A rank's launch and the channels that it uses.

    ``across`` says how the ranks are connected, for the algorithms that run in the launch and the channels that they
    use. It is None if the graphs are from a file, because such a file says nothing about other ranks.
    """

    launch: Launch = field(metadata=json_form(merged=True))
    across: Across | None = field(metadata=json_form(key="channels", optional=True))
    node_rings: tuple[NodeRing, ...] = field(metadata=OPTIONAL)
    node_trees: tuple[NodeTree, ...] = field(metadata=OPTIONAL)
    rank: int = 0


def with_launches(answers: Sequence[PickAnswer], launches: "Launches", kind: Operation) -> list[PickAnswer]:
    """The answers with their launches, for calls of one kind. BadInput if copy engines execute a call, or if its launch
    is not emulated.
    """
    for answer in answers:
        if not isinstance(answer.pick, Pick) and answer.pick.name == COPY_ENGINES.name:
            raise BadInput(
                f"there is no launch to show: copy engines execute {answer.collective.name} of {answer.bytes} bytes, "
                f"and no kernel is launched: use {launches.staying(kind.request)}"
            )
    return [replace(answer, launch=launches.of([replace(kind, bytes=answer.bytes)])) for answer in answers]


class Launches:
    """Computes launches of one rank of a scenario. The channels are connected once for all launches. BadInput if there
    is no such rank.
    """

    def __init__(self, scenario: Scenario, rank: int = 0) -> None:
        self.scenario, self.rank = scenario, rank
        self.selection = Selection(scenario.resolve().view_of(rank))

    def staying(self, request: Request) -> str:
        """The option to give, or the variables to leave out, so that kernels instead of copy engines execute calls of
        this kind.
        """
        if request.buffers is not Buffers.plain:
            return f"{option('buffers')} {Buffers.plain.name}"
        communicator = self.selection.communicator
        variables = communicator.release.environment.symmetric_kernels
        return f"without {', '.join(sorted(communicator.environment.values.keys() & set(variables)))}"

    def of(self, operations: Sequence[Operation], tuner: Tuner | None = None) -> LaunchAnswer:
        """The launch of one call, or of several in one group.

        BadInput for what is not emulated, NoAlgorithm if nothing can run.
        """
        resolved = self.scenario.resolve()
        launch = full_launch.launch(self.selection, operations, lambda: heads_of(resolved, self.rank), tuner)
        try:
            across = _used(summarize(resolved.connected, self.rank), launch)
        except BadInput:
            return LaunchAnswer(launch, None, (), (), self.rank)
        nodes = {rank: node for node, ranks in enumerate(across.ranks_of_nodes) for rank in ranks}
        return LaunchAnswer(
            launch,
            across,
            tuple(_ring_of_nodes(ring, nodes) for ring in across.rings),
            tuple(_tree_of_nodes(tree, nodes) for tree in (*across.trees, *across.nvls_trees)),
            self.rank,
        )


def _used(across: Across, launch: Launch) -> Across:
    """Channels that the works of a launch use."""
    works = [work for kernel in launch.kernels for work in kernel.works]

    def channels(*algorithms: Algorithm) -> set[int]:
        return {channel for work in works if work.algorithm in algorithms for channel in work.channels}

    nvls = channels(Algorithm.NVLS, Algorithm.NVLSTree)
    return replace(
        across,
        rings=tuple(ring for ring in across.rings if ring.channel in channels(Algorithm.Ring)),
        trees=tuple(tree for tree in across.trees if tree.channel in channels(Algorithm.Tree)),
        nvls_heads=across.nvls_heads if nvls else (),
        nvls_trees=tuple(tree for tree in across.nvls_trees if tree.channel in channels(Algorithm.NVLSTree)),
        collnet_chains=tuple(
            tree for tree in across.collnet_chains if tree.channel in channels(Algorithm.CollNetChain)
        ),
        collnet_direct=across.collnet_direct if channels(Algorithm.CollNetDirect) else (),
        pat_peers=across.pat_peers if channels(Algorithm.PAT) else (),
    )


def _ring_of_nodes(ring: RingOrder, nodes: dict[int, int]) -> NodeRing:
    passed = [node for node, _ in groupby(nodes[rank] for rank in ring.ranks)]
    return NodeRing(ring.channel, tuple(passed[:-1] if len(passed) > 1 and passed[-1] == passed[0] else passed))


def _tree_of_nodes(tree: TreeOrder, nodes: dict[int, int]) -> NodeTree:
    parents = dict(_node_parents(tree, nodes))
    return NodeTree(tree.channel, tuple(parents.get(node) for node in range(max(nodes.values()) + 1)))


def _node_parents(tree: TreeOrder, nodes: dict[int, int]) -> Iterator[tuple[int, int]]:
    for rank, parent in enumerate(tree.parents):
        if parent is not None and nodes[parent] != nodes[rank]:
            yield nodes[rank], nodes[parent]

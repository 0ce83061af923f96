"""Whether a communicator reduces inside the network (CollNet), and which GPUs enter the network for it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm
from tuner.base.registry import Registry
from tuner.base.spelling import option
from tuner.emulator import nccl_source as nccl
from tuner.machine.graphs import EMPTY, OF_ALGORITHM, Graph, Graphs
from tuner.release import Release
from tuner.release.environment import Environment

if TYPE_CHECKING:  # that module imports all rules
    from tuner.emulator.communicator import Node
    from tuner.emulator.rules.resolved import Rules


@dataclass(frozen=True, slots=True)
class CollNet:
    """CollNet of a communicator that has it. Heads are the GPUs of a node through which data enters the network."""

    heads: int  # number of heads that are connected
    direct_heads: int  # number of heads of CollNetDirect
    chain_heads_connected: bool


@dataclass(frozen=True, slots=True, eq=False)
class CollNetFacts:
    """The facts that the rules in this module may use."""

    release: Release
    environment: Environment
    on: bool  # CollNet is requested, and the network reduces
    nodes: int
    local_ranks: int  # largest number on a node
    graphs: Mapping[Algorithm, Graph]  # the graphs on which all nodes agree
    own: "Node"  # the node of rank 0
    own_graphs: Graphs

    def heads(self, algorithm: Algorithm) -> frozenset[int]:
        """The GPUs of rank 0's node at which the channels start. NCCL uses only the first ones, as many as the node
        with the fewest has.

        BadInput if only the graphs' numbers are known and another node has fewer.
        """
        name, channels = OF_ALGORITHM[algorithm], self.graphs[algorithm].channels
        own = self.own_graphs.get(name, EMPTY)
        if channels == 0:
            return frozenset()
        if channels == own.channels:
            return frozenset(range(len(self.own.comp_caps)) if own.heads is None else own.heads)
        if self.own.first_ranks is None:
            raise BadInput(
                "NCCL_COLLNET_ENABLE=1 on nodes that differ is only emulated with graphs that the search found: remove "
                f"{option('graphs')}"
            )
        return frozenset(self.own.first_ranks(name)[:channels])


SUPPORT_RULES: Registry[Callable[[CollNetFacts], bool]] = Registry()
HEADS_RULES: Registry[Callable[[CollNetFacts], Algorithm]] = Registry()
DIRECT_HEADS_RULES: Registry[Callable[[CollNetFacts], int]] = Registry()


def requested(environment: Environment) -> bool:
    """Whether NCCL_COLLNET_ENABLE=1 allows CollNet. BadInput for values other than 0 and 1."""
    text = environment.text("NCCL_COLLNET_ENABLE") or "0"
    if text not in ("0", "1"):
        raise BadInput(f"NCCL_COLLNET_ENABLE={text} is read differently by different releases: set 0 or 1")
    return text == "1"


def set_up(rules: "Rules", facts: CollNetFacts) -> CollNet | None:
    """CollNet as NCCL sets it up; None if it is off or not supported here. BadInput if NCCL fails while it sets CollNet
    up."""
    if not facts.on or not all(rule(facts) for rule in rules.collnet):
        return None
    connected = facts.heads(rules.collnet_heads(facts))
    direct_heads = rules.collnet_direct_heads(facts)
    if direct_heads == 0:
        raise BadInput(
            f"NCCL {facts.release.name} finds no channel for CollNetDirect here, divides by their number and ends with "
            "SIGFPE: set NCCL_COLLNET_ENABLE=0"
        )
    return CollNet(
        heads=len(connected),
        direct_heads=direct_heads,
        chain_heads_connected=facts.heads(Algorithm.CollNetChain) <= connected,
    )


@SUPPORT_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.18.1"))
def chain_found(facts: CollNetFacts) -> bool:
    """CollNet needs a graph of CollNetChain."""
    return facts.graphs[Algorithm.CollNetChain].channels > 0


@SUPPORT_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.18.1"))
def enough_nodes(facts: CollNetFacts) -> bool:
    """CollNet needs NCCL_COLLNET_NODE_THRESHOLD nodes, two without it."""
    return facts.nodes >= facts.environment.c_int("NCCL_COLLNET_NODE_THRESHOLD", 2)


@SUPPORT_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.18.1"))
def few_local_ranks(facts: CollNetFacts) -> bool:
    """CollNet allows a limited number of ranks per node."""
    return facts.local_ranks <= facts.release.limits.max_direct_local_ranks


@HEADS_RULES(nccl.COLL_NET_TRY(since="2.18.1"), nccl.COLL_NET_START(since="2.22.3"))
def of_direct(facts: CollNetFacts) -> Algorithm:
    """The heads are those of CollNetDirect's graph."""
    return Algorithm.CollNetDirect


@HEADS_RULES(nccl.COLL_NET_START(since="2.28.3"))
def of_nvls_or_direct(facts: CollNetFacts) -> Algorithm:
    """The heads are those of NVLS's graph or, if there is none, of CollNetDirect's graph."""
    return Algorithm.NVLS if facts.graphs[Algorithm.NVLS].channels else Algorithm.CollNetDirect


@DIRECT_HEADS_RULES(nccl.CONNECT_COLL_NET(since="2.18.3"))
def different_gpus(facts: CollNetFacts) -> int:
    """Each GPU counts as one head, even if several channels start at it."""
    return len(facts.heads(Algorithm.CollNetDirect))


@DIRECT_HEADS_RULES(nccl.CONNECT_COLL_NET(since="2.18.1"))
def one_per_channel(facts: CollNetFacts) -> int:
    """A GPU counts once for each channel that starts at it (sic)."""
    return facts.graphs[Algorithm.CollNetDirect].channels

"""Whether a communicator reduces inside the network (CollNet), and which GPUs enter the network for it.

Source: initTransportsRank (src/init.cc) and ncclCollNetSetup (src/transport/coll_net.cc), v2.28.9-1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm
from tuner.base.registry import Registry
from tuner.machine.graphs import Graph
from tuner.release import Release
from tuner.release.environment import Environment


@dataclass(frozen=True, slots=True)
class CollNet:
    """CollNet of a communicator that has it; heads are the GPUs of a node that enter the network."""

    heads: int  # that are connected
    direct_heads: int  # of CollNetDirect
    chain_heads_connected: bool


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What the rules here may look at."""

    release: Release
    environment: Environment
    nodes: int
    local_ranks: int
    graphs: Mapping[Algorithm, Graph]

    def heads(self, algorithm: Algorithm) -> frozenset[int]:
        """The GPUs at which the channels of a graph start."""
        graph = self.graphs[algorithm]
        if graph.channels == 0:
            return frozenset()
        return frozenset(range(self.local_ranks) if graph.heads is None else graph.heads)


SUPPORT_RULES: Registry[Callable[[Shape], bool]] = Registry()
HEADS_RULES: Registry[Callable[[Shape], Algorithm]] = Registry()
DIRECT_HEADS_RULES: Registry[Callable[[Shape], int]] = Registry()


def asked_for(environment: Environment) -> bool:
    """NCCL_COLLNET_ENABLE=1, which says here that the network can reduce, too. BadInput for values but 0 and 1."""
    text = environment.text("NCCL_COLLNET_ENABLE") or "0"
    if text not in ("0", "1"):
        raise BadInput(f"NCCL_COLLNET_ENABLE={text}: releases read this differently; valid: 0, 1 (the network reduces)")
    return text == "1"


def find(shape: Shape) -> CollNet | None:
    """CollNet as NCCL sets it up where it is asked for; None where there is none."""
    if not asked_for(shape.environment):
        return None
    if not all(SUPPORT_RULES[name](shape) for name in shape.release.rules("collnet")):
        return None
    (rule,) = shape.release.rules("collnet_heads")
    (direct_rule,) = shape.release.rules("collnet_direct_heads")
    connected = shape.heads(HEADS_RULES[rule](shape))
    return CollNet(
        heads=len(connected),
        direct_heads=DIRECT_HEADS_RULES[direct_rule](shape),
        chain_heads_connected=shape.heads(Algorithm.CollNetChain) <= connected,
    )


@SUPPORT_RULES
def chain_found(shape: Shape) -> bool:
    return shape.graphs[Algorithm.CollNetChain].channels > 0


@SUPPORT_RULES
def enough_nodes(shape: Shape) -> bool:
    return shape.nodes >= shape.environment.c_int("NCCL_COLLNET_NODE_THRESHOLD", 2)


@SUPPORT_RULES
def few_local_ranks(shape: Shape) -> bool:
    return shape.local_ranks <= shape.release.limit("max_direct_local_ranks")


@HEADS_RULES
def of_direct(shape: Shape) -> Algorithm:
    return Algorithm.CollNetDirect


@HEADS_RULES
def of_nvls_or_direct(shape: Shape) -> Algorithm:
    return Algorithm.NVLS if shape.graphs[Algorithm.NVLS].channels else Algorithm.CollNetDirect


@DIRECT_HEADS_RULES
def different_gpus(shape: Shape) -> int:
    return len(shape.heads(Algorithm.CollNetDirect))


@DIRECT_HEADS_RULES
def one_per_channel(shape: Shape) -> int:
    """sic: a GPU counts as often as channels start at it."""
    return shape.graphs[Algorithm.CollNetDirect].channels

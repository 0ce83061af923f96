"""Channel counts that NCCL settles at init: small named rules, chosen by the release table.

Source: ncclTopoPostset (src/graph/connect.cc), ncclNvlsInit (src/transport/nvls.cc), envConfigOverride (src/init.cc),
v2.28.9-1.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tuner.environment import Environment
from tuner.graphs import Graph, Graphs
from tuner.release import Release


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What the rules here may look at."""

    release: Release
    environment: Environment
    nodes: int
    min_comp_cap: int
    ring: Graph
    nvls: Graph

    @property
    def max_channels(self) -> int:
        return self.release.limit("max_channels")

    def ctas(self) -> tuple[int, int]:
        """The communicator's minCTAs and maxCTAs after the environment and NCCL's clamping."""
        low, high = self.environment.optional("NCCL_MIN_CTAS"), self.environment.optional("NCCL_MAX_CTAS")
        high = min(high, self.max_channels) if high is not None and high > 0 else self.max_channels
        low = min(low, self.max_channels) if low is not None and low > 0 else 1
        return min(low, high), high


def searched(graphs: Graphs, environment: Environment) -> Graphs:
    """The graphs NCCL searches with these variables: none for NVLS where it is switched off."""
    off = environment.number("NCCL_NVLS_ENABLE", 2) == 0
    return {name: graph for name, graph in graphs.items() if not (off and name == "nvls")}


def with_channels(graph: Graph, channels: int) -> Graph:
    return replace(graph, channels=channels)


def channels(shape: Shape, found: int) -> int:
    """Channels of the communicator from the ``found`` channels of the graphs, by the release's rules in order."""
    count = found
    for name in shape.release.rules("channels"):
        count = CHANNEL_RULES[name](shape, count)
    return count


def nvls_channels(shape: Shape) -> int:
    """Channels NVLS uses; 0 where NCCL has no NVLS on this communicator."""
    (name,) = shape.release.rules("nvls_channels")
    return NVLS_RULES[name](shape)


def duplicate(shape: Shape, count: int) -> int:
    return min(shape.max_channels, 2 * count)


def double_on_fast_hopper_rings(shape: Shape, count: int) -> int:
    """Four compute channels per searched one on Hopper and later, across nodes, where few fast channels were found."""
    fast = shape.min_comp_cap >= 90 and shape.nodes > 1 and shape.ring.bw_intra_gbs > 45.0
    return 2 * count if fast and count < 16 else count


def limit(shape: Shape, count: int) -> int:
    """NCCL_MAX_* first, then NCCL_MIN_*: together they use the first channels and duplicate those."""
    env, most = shape.environment, shape.max_channels
    min_ctas, max_ctas = shape.ctas()
    upper = env.number("NCCL_MAX_NCHANNELS", -2)
    upper = env.number("NCCL_MAX_NRINGS", -2) if upper == -2 else upper
    upper = most if upper == -2 else max(1, min(upper, most))
    lower = env.number("NCCL_MIN_NCHANNELS", -2)
    lower = env.number("NCCL_MIN_NRINGS", -2) if lower == -2 else lower
    lower = 0 if lower == -2 else max(0, min(lower, most))
    return max(min(upper, count, max_ctas), lower, min_ctas)


def by_generation_and_nodes(shape: Shape) -> int:
    """A fixed number by GPU generation, fewer on one Blackwell node; needs a graph, so an NVSwitch."""
    if shape.nvls.channels == 0:
        return 0
    table = shape.release.table["nvls_channels"]
    blackwell = shape.min_comp_cap >= 100
    default = table["hopper"] if not blackwell else table["blackwell" if shape.nodes > 1 else "blackwell_one_node"]
    asked = shape.environment.optional("NCCL_NVLS_NCHANNELS")
    min_ctas, max_ctas = shape.ctas()
    return max(min_ctas, min(max_ctas, asked if asked is not None and asked > 0 else default))


CHANNEL_RULES: dict[str, Callable[[Shape, int], int]] = {
    rule.__name__: rule for rule in (duplicate, double_on_fast_hopper_rings, limit)
}
NVLS_RULES: dict[str, Callable[[Shape], int]] = {rule.__name__: rule for rule in (by_generation_and_nodes,)}

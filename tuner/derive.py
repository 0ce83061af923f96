"""Channel counts that NCCL settles at init: small named rules, chosen by the release table.

Source: ncclTopoPostset (src/graph/connect.cc), ncclNvlsInit (src/transport/nvls.cc), envConfigOverride (src/init.cc),
v2.28.9-1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tuner.environment import Environment
from tuner.graphs import Graph, Graphs
from tuner.registry import Registry
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
    local_ranks: int
    net_gbs: float

    @property
    def max_channels(self) -> int:
        return self.release.limit("max_channels")

    def ctas(self) -> tuple[int, int]:
        """The communicator's minCTAs and maxCTAs after the environment and NCCL's clamping."""
        low, high = self.environment.optional("NCCL_MIN_CTAS"), self.environment.optional("NCCL_MAX_CTAS")
        high = min(high, self.max_channels) if high is not None and high > 0 else self.max_channels
        low = min(low, self.max_channels) if low is not None and low > 0 else 1
        return min(low, high), high


CHANNEL_RULES: Registry[Callable[[Shape, int], int]] = Registry()
NVLS_RULES: Registry[Callable[[Shape], int]] = Registry()
COMP_CAP_RULES: Registry[Callable[[Sequence[int]], Sequence[int]]] = Registry()


def searched(graphs: Graphs, environment: Environment) -> Graphs:
    """The graphs NCCL searches with these variables: none for NVLS or CollNet where it is switched off."""
    off = set() if environment.number("NCCL_NVLS_ENABLE", 2) else {"nvls"}
    off |= set() if environment.number("NCCL_COLLNET_ENABLE", 0) == 1 else {"collnet_chain", "collnet_direct"}
    return {name: graph for name, graph in graphs.items() if name not in off}


def with_channels(graph: Graph, channels: int) -> Graph:
    return replace(graph, channels=channels)


def channels(shape: Shape, found: int) -> int:
    """Channels of the communicator from the ``found`` channels of the graphs, by the release's rules in order."""
    count = found
    for name in shape.release.rules("channels"):
        count = CHANNEL_RULES[name](shape, count)
    return count


def coll_channels(shape: Shape, found: int) -> int:
    """The same before aggregation raises them: releases that keep both launch one operation on these."""
    count = found
    for name in shape.release.rules("channels"):
        count = count if name == raise_to_nvls.__name__ else CHANNEL_RULES[name](shape, count)
    return count


def comp_caps(release: Release, comp_caps: Sequence[int]) -> tuple[int, int]:
    """The least and the greatest compute capability as rank 0 believes them to be."""
    (name,) = release.rules("comp_caps")
    seen = COMP_CAP_RULES[name](comp_caps)
    return min(seen), max(seen)


@COMP_CAP_RULES
def of_all_gpus(comp_caps: Sequence[int]) -> Sequence[int]:
    return comp_caps


@COMP_CAP_RULES
def of_the_own_gpu(comp_caps: Sequence[int]) -> Sequence[int]:
    """sic: a loop over all ranks that looks at its own rank each time."""
    return comp_caps[:1]


def nvls_channels(shape: Shape) -> int:
    """Channels NVLS uses; 0 where NCCL has no NVLS on this communicator."""
    (name,) = shape.release.rules("nvls_channels")
    return NVLS_RULES[name](shape)


@CHANNEL_RULES
def duplicate(shape: Shape, count: int) -> int:
    return min(shape.max_channels, 2 * count)


@CHANNEL_RULES
def double_on_fast_hopper_rings(shape: Shape, count: int) -> int:
    """Four compute channels per searched one on Hopper and later, across nodes, where few fast channels were found."""
    fast = shape.min_comp_cap >= 90 and shape.nodes > 1 and shape.ring.bw_intra_gbs > 45.0
    return 2 * count if fast and count < 16 else count


@CHANNEL_RULES
def double_on_fast_hopper_rings_only(shape: Shape, count: int) -> int:
    return double_on_fast_hopper_rings(shape, count) if shape.min_comp_cap == 90 else count


@CHANNEL_RULES
def double_on_fast_hopper_rings_if_they_fit(shape: Shape, count: int) -> int:
    """Four compute channels per searched one on Hopper, across nodes, as long as there are enough."""
    fast = shape.min_comp_cap == 90 and shape.nodes > 1 and shape.ring.bw_intra_gbs > 45.0
    return 2 * count if fast and 2 * count <= shape.max_channels else count


@CHANNEL_RULES
def raise_to_nvls(shape: Shape, count: int) -> int:
    """Aggregated operations may use as many channels as NVLS has."""
    return max(count, nvls_channels(shape))


@CHANNEL_RULES
def limit(shape: Shape, count: int) -> int:
    """NCCL_MAX_* first, then NCCL_MIN_*: together they use the first channels and duplicate those."""
    env, most = shape.environment, shape.max_channels
    min_ctas, max_ctas = shape.ctas()
    upper = env.number("NCCL_MAX_NCHANNELS", -2)
    upper = env.number("NCCL_MAX_NRINGS", -2) if upper == -2 else upper
    upper = max(1, min(most if upper == -2 else upper, most, _channels_in_kernel_arguments(shape)))
    lower = env.number("NCCL_MIN_NCHANNELS", -2)
    lower = env.number("NCCL_MIN_NRINGS", -2) if lower == -2 else lower
    lower = 0 if lower == -2 else max(0, min(lower, most))
    return max(min(upper, count, max_ctas), lower, min_ctas)


def _channels_in_kernel_arguments(shape: Shape) -> int:
    """Channels whose first batch of work fits the kernel's arguments; too few bytes for any wrap around (sic)."""
    limit, asked = shape.release.limit, shape.environment.number("NCCL_WORK_ARGS_BYTES", 2**63 - 1)
    return min(shape.max_channels, (asked - limit("kernel_args_bytes")) % 2**64 // limit("work_batch_bytes"))


@NVLS_RULES
def by_generation_and_nodes(shape: Shape) -> int:
    """A fixed number by GPU generation, fewer on one Blackwell node; needs a graph, so an NVSwitch."""
    asked = shape.environment.optional("NCCL_NVLS_NCHANNELS")
    blackwell = "blackwell" if shape.nodes > 1 else "blackwell_one_node"
    default = blackwell if shape.min_comp_cap >= 100 else "hopper"
    return _nvls(shape, default, asked if asked is not None and asked > 0 else None)


@NVLS_RULES
def by_generation_or_asked(shape: Shape) -> int:
    asked = shape.environment.number("NCCL_NVLS_NCHANNELS", -2)
    return _nvls(shape, "blackwell" if shape.min_comp_cap >= 100 else "hopper", asked if asked >= 0 else None)


@NVLS_RULES
def sixteen_or_asked(shape: Shape) -> int:
    return _nvls(shape, "hopper", shape.environment.optional("NCCL_NVLS_NCHANNELS"))


@NVLS_RULES
def by_generation_nodes_and_network(shape: Shape) -> int:
    """As :func:`by_generation_and_nodes`, with fewer between three and more Blackwell nodes on fast adapters."""
    table = shape.release.table["nvls_channels"]
    asked = shape.environment.optional("NCCL_NVLS_NCHANNELS")
    if shape.min_comp_cap < 100 or shape.nodes <= 2 or (asked is not None and asked > 0):
        return by_generation_and_nodes(shape)
    fast = shape.net_gbs >= table["fast_net_gbs"]
    all_again = shape.net_gbs >= table["fastest_net_gbs"] and shape.local_ranks > table["fastest_net_few_ranks"]
    return _nvls(shape, "blackwell_fewer" if fast and not all_again else "blackwell", None)


def _nvls(shape: Shape, default: str, asked: int | None) -> int:
    if shape.nvls.channels == 0:
        return 0
    min_ctas, max_ctas = shape.ctas()
    wanted: int = shape.release.table["nvls_channels"][default] if asked is None else asked
    return max(min_ctas, min(max_ctas, wanted))

"""What NCCL decides at init: the numbers of channels, and which hosts are one node. The release's table names the
rules.

A NVLink domain is the GPUs of one clique on one NVLink fabric; NVML reports both to each rank (multi-node NVLink,
MNNVL).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, NcclFails, Remedy
from tuner.base.names import Pattern
from tuner.base.numerics import int32, parse_long
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.machine.graphs import COLLNET_GRAPHS, EMPTY, PLAIN_GRAPHS, WITH_COLLNET, Graph, Graphs
from tuner.release import Release, first_with
from tuner.release.environment import Environment
from tuner.release.schema import given

if TYPE_CHECKING:
    from tuner.emulator.communicator import Comm, Node
    from tuner.emulator.rules.resolved import Rules

Cpu: TypeAlias = tuple[str, str | None]  # architecture and vendor


@dataclass(frozen=True, slots=True, eq=False)
class InitFacts:
    """The facts that the rules in this module may use."""

    release: Release
    rules: "Rules"
    environment: Environment
    nodes: int
    ranks: int
    wholes: int  # 1 if all ranks are in one host or NVLink domain; else the number of nodes
    comp_cap: int  # of the GPU of rank 0
    min_comp_cap: int
    ring: Graph
    nvls: Graph
    own_nvls: Graph  # of the node of rank 0
    min_local_ranks: int
    net_gbs: float
    collnet_chain: Graph | None  # None without CollNet
    # The communicator whose resources this one shares, if it was made from some of that one's ranks
    shared: "Comm | None" = None

    @property
    def max_channels(self) -> int:
        """The largest number of channels of any communicator."""
        return self.release.limits.max_channels

    def ctas(self) -> tuple[int, int]:
        """The communicator's minCTAs and maxCTAs, as the environment and NCCL's limits leave them.

        BadInput if no channel is left.
        """
        low = self.rules.ctas(self.environment, "NCCL_MIN_CTAS", 1)
        high = min(self.rules.ctas(self.environment, "NCCL_MAX_CTAS", self.max_channels), self.max_channels)
        if high < 1:
            raise BadInput(f"NCCL_MAX_CTAS={high} leaves NCCL {self.release.name} without a channel: set 1 or more")
        return min(low, high), high


CTAS_RULES: Registry[Callable[[Environment, str, int], int]] = Registry()
CHANNEL_RULES: Registry[Callable[[InitFacts, int], int]] = Registry()
NVLS_RULES: Registry[Callable[[InitFacts], int]] = Registry()
COMP_CAP_RULES: Registry[Callable[[Sequence[int]], Sequence[int]]] = Registry()
START_RULES: Registry[Callable[[bool], str]] = Registry()
CPU_RULES: Registry[Callable[[Sequence[Cpu]], Cpu]] = Registry()
SHARED_RULES: Registry[Callable[[Sequence[Sequence[int]]], bool]] = Registry()
TREE_PATTERN_RULES: Registry[Callable[[Sequence[Pattern | None]], Pattern | None]] = Registry()


@CTAS_RULES(nccl.ENV_CONFIG_OVERRIDE(since="2.25.1"))
def positive_only(environment: Environment, name: str, default: int) -> int:
    """Numbers of 0 and below count as not set."""
    requested = environment.optional(name)
    return requested if requested is not None and requested > 0 else default


@CTAS_RULES(nccl.ENV_CONFIG_OVERRIDE(since="2.18.1"))
def any_but_least_int(environment: Environment, name: str, default: int) -> int:
    """Every number counts as set, except for the least int, which means not set."""
    requested = environment.optional(name)
    return requested if requested is not None and requested != -(2**31) else default


def searched(graphs: Graphs, environment: Environment, with_collnet: bool) -> dict[str, Graph]:
    """The graphs that NCCL finds with these variables; without those of NVLS or CollNet if that is off."""
    off = {"nvls"} if nvls_switched_off(environment) else set()
    if not with_collnet:
        return {name: graph for name, graph in graphs.items() if name in PLAIN_GRAPHS - off}
    return {
        name: graphs.get(f"{name}{WITH_COLLNET}", graph)
        for name, graph in graphs.items()
        if name in {*PLAIN_GRAPHS, *COLLNET_GRAPHS} - off
    }


def check_heads_of_node(release: Release, heads: int, gpus: int) -> None:
    """NcclFails if there are more NVLS heads than GPUs of a node: ncclNvlsSetup only has room for one head per GPU. The
    search of 2.18.1 finds more on several nodes with many adapters. Source: src/transport/nvls.cc, v2.18.1-1.
    """
    if heads > gpus and not release.search.loop.nvls_heads_limited:
        raise NcclFails(
            f"NCCL {release.name} crashes with {heads} NVLS heads on {gpus} GPUs of a node: it has room for {gpus}; "
            "valid: NCCL_NVLS_ENABLE=0, or a later release"
        ).cured(Remedy("env", "0", "NCCL_NVLS_ENABLE"))


def check_nvls_heads(release: Release, heads: int) -> None:
    """NcclFails if a node has more NVLS heads than NCCL has room for; from 2.25 on NCCL's search limits them.

    Without the limit NCCL writes past inter of struct ncclTopoGraph and past nvlsHeads of struct ncclTopoRanks
    (src/include/graph.h, v2.24.3-1), and 2.21.5 to 2.24.3 end with "malloc(): invalid size" or "free(): corrupted
    unsorted chunks".
    """
    if heads > release.limits.max_channels:
        raise NcclFails(
            f"NCCL {release.name} crashes with NVLS on {heads} GPUs of a node: it has room for "
            f"{release.limits.max_channels}; valid: NCCL_NVLS_ENABLE=0, or a later release"
        ).cured(Remedy("env", "0", "NCCL_NVLS_ENABLE"))


def nvls_switched_off(environment: Environment) -> bool:
    """Whether NCCL_NVLS_ENABLE=0 is set."""
    return environment.number("NCCL_NVLS_ENABLE", 2) == 0


def without_channels(release: Release, rules: "Rules", environment: Environment, kind: "Node") -> dict[str, Graph]:
    """The NVLS graph without channels that NCCL has if a variable makes it search on GPUs that cannot multicast.

    The key is "nvls"; without such a graph the result is empty.

    The graph's path type is the one at which the search starts; latencies of disabled cells depend on it. If
    NCCL_NVLS_ENABLE is neither 0 nor 2, NCCL does not ask the GPUs whether they can multicast.
    """
    start = rules.nvls_search_start  # None if such cells have no latency
    requested = environment.number("NCCL_NVLS_ENABLE", 2) not in (0, 2)
    if (
        start is None
        or not requested
        or "nvls" in kind.graphs
        or len(kind.comp_caps) <= given(release.limits.gpus_without_nvls, "limits.gpus_without_nvls")
    ):
        return {}
    return {"nvls": replace(EMPTY, type_intra=start(kind.some_nvlink))}


@START_RULES(nccl.TOPO_COMPUTE(since="2.18.1"))
def nvlink(some_nvlink: bool) -> str:
    """The search begins at NVLink."""
    return "NVL"


@START_RULES(nccl.TOPO_COMPUTE(since="2.25.1"))
def nearest_path(some_nvlink: bool) -> str:
    """The search begins at the nearest path between any two GPUs: NVL, or SYS for all others (not told apart here)."""
    return "NVL" if some_nvlink else "SYS"


def weakest(graphs: Sequence[Graph], path_types: Sequence[str]) -> Graph:
    """The graph on which ranks or nodes agree.

    Each value is the weakest of all graphs, but pattern and latency are those of the first graph (sic).
    """
    if len(graphs) == 1:
        return graphs[0]
    return replace(
        graphs[0],
        channels=min(graph.channels for graph in graphs),
        same_channels=all(graph.same_channels for graph in graphs),
        bw_intra_gbs=min(graph.bw_intra_gbs for graph in graphs),
        bw_inter_gbs=min(graph.bw_inter_gbs for graph in graphs),
        type_intra=max((graph.type_intra for graph in graphs), key=path_types.index),
        type_inter=max((graph.type_inter for graph in graphs), key=path_types.index),
        cross_nic=max(graph.cross_nic for graph in graphs),
    )


def with_channels(graph: Graph, channels: int) -> Graph:
    """The graph with another number of channels."""
    return replace(graph, channels=channels)


def channels(facts: InitFacts, searched: int) -> int:
    """Channels of the communicator from the ``searched`` channels of the graphs, by the release's rules in order."""
    count = searched
    for rule in facts.rules.channels:
        count = rule(facts, count)
    return shared_channels_with_nvls(facts.shared, count)


def copied_from(facts: InitFacts, searched: int) -> tuple[int, ...]:
    """For each possible channel the number of the channel that it copies; its own number if it copies none.

    If a rule wants more channels than there are, NCCL copies them in order, from the first on, over and over
    (copyChannels). The copies stay even if a later rule wants fewer channels.
    """
    sources, count = list(range(facts.max_channels)), searched
    for rule in facts.rules.channels:
        if rule is limit:
            count = _at_most(facts, count)
        wanted = rule(facts, count)
        for channel in range(count, wanted if rule is not duplicate else 0):
            sources[channel] = sources[channel - count]
        count = wanted
    return tuple(sources)


def coll_channels(facts: InitFacts, searched: int) -> int:
    """Channels before aggregation raises them; releases that keep both numbers launch a single operation on these."""
    count = searched
    for rule in facts.rules.channels:
        count = count if rule in RAISES else rule(facts, count)
    return shared_channels_with_nvls(facts.shared, count)


@COMP_CAP_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.21.5"))
def of_all_gpus(comp_caps: Sequence[int]) -> Sequence[int]:
    """The capabilities of all ranks."""
    return comp_caps


@COMP_CAP_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.18.1"))
def of_own_gpu(comp_caps: Sequence[int]) -> Sequence[int]:
    """Only the first rank's capability (sic): NCCL loops over all ranks, but looks at its own rank each time."""
    return comp_caps[:1]


@CPU_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.22.3"))
def of_all_cpus(cpus: Sequence[Cpu]) -> Cpu:
    """Architecture and vendor of the CPUs of all nodes, each "mixed" if nodes differ."""
    archs, vendors = {arch for arch, _ in cpus}, {vendor for _, vendor in cpus}
    return ("mixed" if len(archs) > 1 else cpus[0][0]), ("mixed" if len(vendors) > 1 else cpus[0][1])


@CPU_RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def of_own_cpu(cpus: Sequence[Cpu]) -> Cpu:
    """Each rank tunes for its own CPU, so that ranks may disagree (sic)."""
    return cpus[0]


@SHARED_RULES(
    nccl.CHECK_MULTI_RANK(since="2.30.3"), nccl.BINARY("NVLS is off where any two ranks share", since="2.31.2")
)
def off_where_ranks_share(gpus_of_ranks: Sequence[Sequence[int]]) -> bool:
    """NVLS is off if any ranks share a GPU.

    NCCL may turn it off only on the nodes of these ranks, but then the graph on which all nodes agree has no NVLS,
    either.
    """
    return any(len(set(gpus)) < len(gpus) for gpus in gpus_of_ranks)


@SHARED_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.30.7"))
def off_if_the_last_two_ranks_share(gpus_of_ranks: Sequence[Sequence[int]]) -> bool:
    """NVLS is off if the last two ranks share a GPU: NCCL's loop over all pairs keeps the last pair's answer (sic)."""
    return off_where_ranks_share([gpus_of_ranks[-1][-2:]])


@TREE_PATTERN_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.26.2"))
def of_all_trees(patterns: Sequence[Pattern | None]) -> Pattern | None:
    """The pattern with the greatest number over all nodes."""
    return max(patterns, key=lambda pattern: pattern or 0)


@TREE_PATTERN_RULES(nccl.TOPO_TUNE_MODEL(since="2.18.3"))
def of_own_tree(patterns: Sequence[Pattern | None]) -> Pattern | None:
    """Pattern of rank 0's node."""
    return patterns[0]


def nvls_channels(facts: InitFacts) -> int:
    """Number of channels that NVLS uses; 0 if NCCL has no NVLS on this communicator."""
    return shared_nvls_channels(facts.shared, facts.rules.nvls_channels(facts))


@CHANNEL_RULES(nccl.TOPO_POSTSET(since="2.18.1"))
def duplicate(facts: InitFacts, count: int) -> int:
    """Each channel of the graphs becomes two."""
    return min(facts.max_channels, 2 * count)


@CHANNEL_RULES(nccl.TOPO_POSTSET(since="2.18.1"))
def half_more_for_collnet(facts: InitFacts, count: int) -> int:
    """Half as many channels more, to saturate NVLink, if several ranks of some node share a slower network."""
    chain = facts.collnet_chain
    slower = chain is not None and chain.bw_intra_gbs > chain.bw_inter_gbs and facts.ranks > facts.nodes
    return min(facts.max_channels, count + count // 2) if slower else count


def fast_on_hopper(facts: InitFacts) -> bool:
    """Whether rings across nodes are faster than 45 GB/s (360 Gb/s adapters), on Hopper and later GPUs."""
    return facts.min_comp_cap >= 90 and facts.nodes > 1 and facts.ring.bw_intra_gbs > 45.0


@CHANNEL_RULES(nccl.TOPO_POSTSET(since="2.25.1"))
def double_on_fast_hopper_rings(facts: InitFacts, count: int) -> int:
    """Four compute channels per searched one on Hopper and later, across nodes, if few fast channels were found."""
    return 2 * count if fast_on_hopper(facts) and count < 16 else count


@CHANNEL_RULES(nccl.TOPO_POSTSET(since="2.20.5"))
def double_on_fast_hopper_rings_only(facts: InitFacts, count: int) -> int:
    """Four compute channels per searched one only on Hopper, across nodes, if few fast channels were found."""
    return double_on_fast_hopper_rings(facts, count) if facts.min_comp_cap == 90 else count


@CHANNEL_RULES(nccl.TOPO_POSTSET(since="2.18.1"))
def double_on_fast_hopper_rings_if_they_fit(facts: InitFacts, count: int) -> int:
    """Four compute channels per searched one on Hopper, across nodes with fast rings, if NCCL has enough channels."""
    fast = facts.min_comp_cap == 90 and fast_on_hopper(facts)
    return 2 * count if fast and 2 * count <= facts.max_channels else count


@CHANNEL_RULES(nccl.TOPO_POSTSET(since="2.21.5"))
def raise_to_nvls(facts: InitFacts, count: int) -> int:
    """Aggregated operations may use the number of channels that NVLS has, if that is larger."""
    return max(count, nvls_channels(facts))


@CHANNEL_RULES(nccl.TOPO_POSTSET(since="2.20.5"))
def raise_to_own_nvls(facts: InitFacts, count: int) -> int:
    """Aggregated operations may use NVLS's number of channels on this node, even if another node has no NVLS (sic).

    Ranks may thus end with different counts. At this point NCCL has not yet dropped an NVLS graph without channels,
    either.
    """
    own = facts.own_nvls
    searched = own.channels > 0 or own.type_intra != EMPTY.type_intra
    return raise_to_nvls(replace(facts, nvls=replace(own, channels=1)), count) if searched else count


RAISES = (raise_to_nvls, raise_to_own_nvls)


@CHANNEL_RULES(nccl.TOPO_POSTSET(since="2.18.1"))
def limit(facts: InitFacts, count: int) -> int:
    """NCCL_MAX_* applies first, then NCCL_MIN_*: with both, NCCL keeps the first channels and duplicates those."""
    env, most = facts.environment, facts.max_channels
    lower = env.number("NCCL_MIN_NCHANNELS", -2)
    lower = env.number("NCCL_MIN_NRINGS", -2) if lower == -2 else lower
    lower = 0 if lower == -2 else max(0, min(int32(lower), most))
    return max(_at_most(facts, count), shared_channels(facts.shared, max(lower, facts.ctas()[0])))


def _at_most(facts: InitFacts, count: int) -> int:
    """``count``, limited by NCCL_MAX_*, the CTAs and the kernel's arguments."""
    env, most = facts.environment, facts.max_channels
    upper = env.number("NCCL_MAX_NCHANNELS", -2)
    upper = env.number("NCCL_MAX_NRINGS", -2) if upper == -2 else upper
    upper = max(1, min(most if upper == -2 else int32(upper), most, _channels_in_kernel_arguments(facts)))
    return shared_channels(facts.shared, min(upper, count, facts.ctas()[1]))


def _channels_in_kernel_arguments(facts: InitFacts) -> int:
    """Channels whose first batch of work fits the kernel's arguments; too few bytes for one wrap around (sic)."""
    limits, requested = facts.release.limits, facts.environment.number("NCCL_WORK_ARGS_BYTES", 2**63 - 1)
    return min(facts.max_channels, (requested - limits.kernel_args_bytes) % 2**64 // limits.work_batch_bytes)


@NVLS_RULES(nccl.NVLS_INIT(since="2.27.3"))
def by_generation_and_nodes(facts: InitFacts) -> int:
    """A fixed number by GPU generation, fewer on one Blackwell host or NVLink domain; needs a graph, so an NVSwitch."""
    return _by_generation(facts, facts.wholes)


@NVLS_RULES(nccl.NVLS_INIT(since="2.25.1"))
def by_generation_or_requested(facts: InitFacts) -> int:
    """NCCL_NVLS_NCHANNELS, or a fixed number by GPU generation."""
    table = facts.release.nvls_channels
    requested = facts.environment.number("NCCL_NVLS_NCHANNELS", -2)
    default = table.blackwell if facts.comp_cap >= 100 else table.hopper
    return _nvls(facts, int32(requested) if requested >= 0 else default)


@NVLS_RULES(nccl.NVLS_INIT(since="2.18.1"))
def sixteen_or_requested(facts: InitFacts) -> int:
    """NCCL_NVLS_NCHANNELS, or 16."""
    requested = facts.environment.optional("NCCL_NVLS_NCHANNELS")
    return _nvls(facts, facts.release.nvls_channels.hopper if requested is None else requested)


@NVLS_RULES(nccl.NVLS_TUNING(since="2.30.3"))
def by_generation_nodes_and_network(facts: InitFacts) -> int:
    """A fixed number by GPU generation; fewer on one Blackwell node, and on three or more nodes with fast adapters."""
    table = facts.release.nvls_channels
    requested = facts.environment.optional("NCCL_NVLS_NCHANNELS")
    fast = facts.net_gbs >= given(table.fast_net_gbs, "nvls_channels.fast_net_gbs")
    if facts.min_comp_cap < 100 or facts.nodes == 1 or not fast or (requested is not None and requested > 0):
        return _by_generation(facts, facts.nodes)
    fastest = facts.net_gbs >= given(table.fastest_net_gbs, "nvls_channels.fastest_net_gbs")
    all_again = facts.nodes == 2 or (
        fastest and facts.min_local_ranks > given(table.fastest_net_few_ranks, "nvls_channels.fastest_net_few_ranks")
    )
    return _nvls(facts, table.blackwell if all_again else given(table.blackwell_fewer, "nvls_channels.blackwell_fewer"))


def _by_generation(facts: InitFacts, nodes: int) -> int:
    table = facts.release.nvls_channels
    requested = facts.environment.optional("NCCL_NVLS_NCHANNELS")
    if facts.release.search.devices.is_rubin(facts.comp_cap):
        several, one = (
            given(table.rubin, "nvls_channels.rubin"),
            given(table.rubin_one_node, "nvls_channels.rubin_one_node"),
        )
    else:
        several, one = table.blackwell, table.blackwell_one_node
    default = (several if nodes > 1 else one) if facts.comp_cap >= 100 else table.hopper
    return _nvls(facts, requested if requested is not None and requested > 0 else default)


def _nvls(facts: InitFacts, wanted: int) -> int:
    """``wanted`` channels, limited to the CTAs; 0 without an NVLS graph."""
    if facts.nvls.channels == 0:
        return 0
    min_ctas, max_ctas = facts.ctas()
    return max(min_ctas, min(max_ctas, wanted))


SHARE_VARIABLES = {"split": "NCCL_COMM_SPLIT_SHARE_RESOURCES", "shrink": "NCCL_COMM_SHRINK_SHARE_RESOURCES"}
UNDEFINED = -(2**31)  # NCCL_CONFIG_UNDEF_INT


def shares_resources(by: str, configured: bool, variables: Mapping[str, str]) -> bool:
    """Whether resources are shared: the variable overrides the configuration, and its values other than 1 mean no."""
    given = variables.get(SHARE_VARIABLES[by])
    number = UNDEFINED if given is None else parse_long(given)
    return configured if number in (None, UNDEFINED) else number == 1


def check_shared(communicator: "Comm") -> None:
    """Raises BadInput if NCCL crashes in NVLS that this communicator shares with the one it was split from.

    The reason is that NCCL sets no chunk size if both communicators have the same number of ranks per node.
    """
    whole, chunk = communicator.shared, communicator.rules.nvls_chunk
    if whole is None or not chunk.unset_where_shared or not whole.nvls or not communicator.nvls:
        return
    if whole.local_ranks == communicator.local_ranks:
        raise NcclFails(
            f"NCCL {communicator.release.name} crashes in NVLS that is shared with the communicator of all ranks, "
            "on as many ranks of a node; valid: NCCL_NVLS_ENABLE=0, or resources of its own"
        ).cured(Remedy("env", "0", "NCCL_NVLS_ENABLE"))


def shared_channels(whole: "Comm | None", count: int) -> int:
    """``count`` channels, but at most as many as ``whole``, the communicator whose resources are shared."""
    return count if whole is None else min(count, whole.channels)


def shared_channels_with_nvls(whole: "Comm | None", count: int) -> int:
    """If ``whole`` has NVLS, ``count`` is limited by :func:`shared_channels` again, because NVLS may have raised it."""
    return shared_channels(whole, count) if whole is not None and whole.nvls else count


def shared_nvls_channels(whole: "Comm | None", count: int) -> int:
    """``count`` channels of NVLS, but at most as many as NVLS has on ``whole``.

    ``whole`` is the communicator whose resources are shared. If it is None or has no NVLS, there is no limit.
    """
    return min(count, whole.nvls_channels) if whole is not None and whole.nvls else count


ENABLE = "NCCL_MNNVL_ENABLE"
CLUSTER, CLIQUE = "NCCL_MNNVL_UUID", "NCCL_MNNVL_CLIQUE_ID"
IF_THERE = 2  # the default of NCCL_MNNVL_ENABLE
MEMORY, IF_DRIVER_HAS = "NCCL_CUMEM_ENABLE", -2
NOT_SET, BY_RACK = -1, -2  # values of NCCL_MNNVL_CLIQUE_ID; with BY_RACK, NCCL asks NVML for the rack


def shares_memory(environment: Environment) -> bool:
    """Whether NCCL shares memory from CUDA's cuMem functions between processes, if the driver has these functions.

    Source: ncclCuMemEnable, src/misc/cudawrap.cc, v2.28.9-1.
    """
    wanted = environment.c_int(MEMORY, IF_DRIVER_HAS)
    return wanted > 0 or wanted == IF_DRIVER_HAS


@dataclass(frozen=True, slots=True)
class DomainHosts:
    """The hosts of a communicator and what joins them.

    ``ready``: NVML says for every rank that its GPU has joined the fabric.
    """

    environment: Environment
    hosts: int
    domains: Sequence[int]  # number of hosts of each domain, in the order of ranks; empty without a fabric
    ready: bool

    @property
    def usable(self) -> bool:
        """Whether NCCL finds the fabric at all: all ranks have to be on it, and it has to be able to share memory over
        it."""
        return bool(self.domains) and self.ready and shares_memory(self.environment)


FabricRule = Callable[[DomainHosts], Sequence[int]]
DOMAIN_RULES: Registry[FabricRule] = Registry()


@DOMAIN_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.18.1"))
def hosts_are_nodes(fabric: DomainHosts) -> Sequence[int]:
    """The release does not know NVLink between hosts."""
    return ()


@DOMAIN_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.20.5"))
def only_the_whole_communicator(fabric: DomainHosts) -> Sequence[int]:
    """One domain of all ranks is tuned as one node while the graphs are those of hosts: BadInput, not emulated."""
    if fabric.usable and fabric.hosts > 1 and len(fabric.domains) == 1:
        raise BadInput(
            "all hosts are one NVLink domain: this release of NCCL tunes it as one node but searches graphs host by "
            "host, which is not emulated: use several domains, or a later release"
        ).cured(Remedy("nccl", first_with(lambda later: later.rules.domains == cliques_or_failure.__name__)))
    return ()


@DOMAIN_RULES(nccl.CHECK_MNNVL(since="2.21.5"))
def cliques_or_failure(fabric: DomainHosts) -> Sequence[int]:
    """Cliques of hosts. BadInput if NCCL fails, as NCCL_MNNVL_ENABLE=1 requires a domain that does not exist."""
    wanted = fabric.environment.c_int(ENABLE, IF_THERE)
    if fabric.hosts > 1 and wanted == 1 and not fabric.usable:
        raise NcclFails(
            f"{ENABLE}=1: NCCL then fails without a NVLink domain: MNNVL is not supported on this system"
        ).cured(Remedy("env", None, ENABLE))
    return fabric.domains if fabric.usable and fabric.hosts > 1 and wanted else ()


@DOMAIN_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.25.1"))
def cliques(fabric: DomainHosts) -> Sequence[int]:
    """Cliques of hosts; on one host only if NCCL_MNNVL_ENABLE=1 asks for a clique."""
    wanted = fabric.environment.c_int(ENABLE, IF_THERE)
    return _joined(fabric) if fabric.usable and (wanted == 1 or (fabric.hosts > 1 and wanted)) else ()


@DOMAIN_RULES(nccl.INIT_TRANSPORTS_RANK(since="2.27.3"))
def cliques_of_peers(fabric: DomainHosts) -> Sequence[int]:
    """Cliques of hosts, but none if peer-to-peer is off, unless NCCL_MNNVL_ENABLE=1."""
    if fabric.environment.c_int(ENABLE, IF_THERE) != 1 and _no_peer_to_peer(fabric.environment):
        return ()
    return cliques(fabric)


def _joined(fabric: DomainHosts) -> Sequence[int]:
    """The number of hosts of each clique: that of a domain, or all hosts if a variable gives all GPUs the same
    cluster."""
    cluster = fabric.environment.number(CLUSTER, NOT_SET)
    clique = fabric.environment.number(CLIQUE, NOT_SET)
    if cluster == NOT_SET:
        return fabric.domains
    if cluster == 0:
        return ()
    if clique == BY_RACK:
        return fabric.domains
    return (sum(fabric.domains),)


def _no_peer_to_peer(environment: Environment) -> bool:
    """Whether a variable switches peer-to-peer off.

    Source: ncclGetUserP2pLevel, src/graph/paths.cc.
    """
    disable, level = environment.text("NCCL_P2P_DISABLE"), environment.text("NCCL_P2P_LEVEL")
    if disable is not None and parse_long(disable) == 1:
        return True
    return level == "LOC" or (level is not None and level[:1].isdigit() and parse_long(level) == 0)

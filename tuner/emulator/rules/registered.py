"""Buffers of connections and of users, and how many channels operations on registered buffers may use.

The release table names the rules of channels, in order; NCCL_CTA_POLICY, which leaves blocks to other kernels, applies
only without a tuner plugin.

Shapes: bounds are arrays of numbers of channels, one per size, [size].
"""

from collections.abc import Callable, Collection
from dataclasses import field
from enum import Enum

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, NcclFails, Remedy
from tuner.base.names import Algorithm, Buffers, Collective, Protocol, Sides, WindowFlag, Windows, flag_words
from tuner.base.numerics import IntArray, f32, int32
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.model import Tables
from tuner.emulator.request import Request
from tuner.emulator.rules import candidate, init, symmetric_variables
from tuner.emulator.rules.call import RuleCall
from tuner.machine.adapters import PeerLinks
from tuner.release import Release, first_with
from tuner.release.environment import Environment


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """How a rank reaches other nodes, as far as this affects registered buffers of rings.

    ``relayed`` and ``direct`` are NCCL's ``useNetPXN`` and ``useGdr``, which it determines from all ranks when it
    connects rings.
    """

    reached: bool  # a ring of the rank leaves or enters its node
    relayed: bool  # some data is sent over another GPU of the node (PXN)
    direct: bool  # every adapter reads and writes its GPU's memory (GPUDirect RDMA)


NetworkOf = Callable[[Collection[Algorithm]], NetworkUse]


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a rank's node, through which data enters the switch (NVLS) and the network (CollNetDirect), and the
    numbers of the heads that the rank itself is.

    ``own_*`` are None for a rank that is no head. ``network`` is computed for rings between nodes on registered
    buffers, with the algorithms that are connected after rings.
    """

    nvls: int
    own_nvls: int | None
    direct: int
    own_direct: int | None
    direct_depth: int
    network: NetworkOf | None = field(default=None, compare=False, repr=False)


RegisteredRule = Callable[[RuleCall, Tables, IntArray], IntArray]
RULES: Registry[RegisteredRule] = Registry()

NVLS = (Algorithm.NVLS, Algorithm.NVLSTree)


def keeps(communicator: Comm, request: Request) -> bool:
    """Whether both buffers are registered, and NCCL keeps the registration."""
    return kept(communicator, request) is Sides.both


def kept(communicator: Comm, request: Request) -> Sides:
    """The buffers (send, receive) that are registered, if NCCL keeps the registration."""
    if not _is_kept(communicator, request):
        return Sides.none
    return request.windows.sides if request.buffers is Buffers.window else Sides.both


def _is_kept(communicator: Comm, request: Request) -> bool:
    if request.buffers is Buffers.plain:
        return False
    unsupported = communicator.release.symmetric.unsupported_windows
    if request.buffers is Buffers.window and unsupported == "plain" and not symmetric_variables.are_made(communicator):
        return False
    as_memory = request.buffers is Buffers.window and communicator.release.symmetric.windows_are_registered
    if as_memory and not init.shares_memory(communicator.environment):
        return False
    if request.buffers is Buffers.graph and communicator.release.registration.captured_buffers == "plain":
        return False
    variable = "NCCL_GRAPH_REGISTER" if request.buffers is Buffers.graph else "NCCL_LOCAL_REGISTER"
    return communicator.environment.number(variable, 1) != 0


def missing(release: Release, buffers: Buffers) -> str | None:
    """A sentence that says that a release does not have such buffers, and which releases do; None if it has them."""
    if buffers is Buffers.plain:
        return None
    if buffers is Buffers.window and release.rules.non_classic_path == "classic_path_only":
        since = first_with(lambda later: later.rules.non_classic_path != "classic_path_only")
        return f"NCCL {release.name} has no symmetric windows; valid: {since} and later"
    if not release.rules.registered and buffers is not Buffers.graph:
        since = first_with(lambda later: bool(later.rules.registered))
        return f"NCCL {release.name} registers no buffers; valid: {since} and later"
    return None


def not_on_nodes(communicator: Comm, buffers: Buffers) -> str | None:
    """Why a collective on such buffers is not emulated here; None if it is emulated.

    It is not emulated if the nodes differ, or if NCCL joins NVLink domains into one.

    A rank's NVLS channels depend on the compute capability of its own GPU, and with one rank per node on its own
    adapter (ncclNvlsRegResourcesQuery, src/transport/nvls.cc, and src/register/coll_reg.cc, v2.28.9-1).
    """
    if buffers is Buffers.window and communicator.nodes > 1 and symmetric_variables.joins_cliques(communicator):
        return f"with {symmetric_variables.CROSS_CLIQUE}"  # copy engines of some releases carry such calls
    if communicator.nodes_are_alike:
        return None
    plain = buffers is Buffers.window and communicator.release.symmetric.unsupported_windows == "plain"
    if plain and not symmetric_variables.are_made(communicator):
        return None
    if communicator.nodes == communicator.ranks:
        return "where nodes of one rank differ"
    generation = communicator.release.generation
    if communicator.nvls and generation(communicator.min_comp_cap) != generation(communicator.max_comp_cap):
        return "where nodes with NVLS differ in their generation of GPUs"
    return None


@RULES(
    nccl.REGISTER_INTRA_NODE_BUFFERS(since="2.20.5"),
    nccl.REGISTER_COLL_BUFFERS(since="2.23.4"),
    nccl.REGISTER_COLL_NVLS_BUFFERS(since="2.24.3"),
)
def few_nvls_channels(call: RuleCall, tables: Tables, bound: IntArray) -> IntArray:
    """The switch reads the user's buffers itself, so few blocks fill it."""
    if not _switch_runs_on_buffers(call):
        return bound
    return np.full_like(
        bound, _within(call.communicator, _nvls_channels(call.communicator, tables, call.request.collective))
    )


@RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.20.5"))
def within_the_nvls_channels(call: RuleCall, tables: Tables, bound: IntArray) -> IntArray:
    """The kernel has no more channels than NVLS."""
    return np.minimum(bound, call.communicator.nvls_channels) if call.algorithm in NVLS else bound


@RULES(nccl.REGISTER_INTRA_NODE_BUFFERS(since="2.19.3"))
def few_of_the_nvls_channels(call: RuleCall, tables: Tables, bound: IntArray) -> IntArray:
    """The switch reads the user's buffers itself: few blocks fill it, and no more than NVLS has channels."""
    if not _switch_runs_on_buffers(call):
        return bound
    few = _nvls_channels(call.communicator, tables, call.request.collective)
    return np.full_like(bound, min(few, call.communicator.nvls_channels))


@RULES(nccl.NVLS_REG_RESOURCES_QUERY(since="2.27.3"))
def few_nvls_channels_by_heads(call: RuleCall, tables: Tables, bound: IntArray) -> IntArray:
    """Few blocks fill the switch, which reads the user's buffers: a number for eight GPUs, more with fewer per node."""
    if not _switch_runs_on_buffers(call):
        return bound
    return np.full_like(bound, nvls_channels_by_heads(call.communicator, tables, call.request.collective))


@RULES(nccl.REGISTER_COLL_BUFFERS(since="2.23.4"), nccl.COLL_REG_REGISTER_BUFFERS(since="2.24.3"))
def cap_17_to_24_channels_at_16(call: RuleCall, tables: Tables, bound: IntArray) -> IntArray:
    """17 to 24 channels become 16 if the GPUs of one node read each other's buffers.

    BadInput if there is no topology that shows it.
    """
    capped = (bound > 16) & (bound <= 24)
    if call.communicator.nodes > 1 or not capped.any() or not peers_take_buffers(call):
        return bound
    return np.where(capped, 16, bound)


@RULES(nccl.COLL_REG_REGISTER_BUFFERS(since="2.24.3"))
def one_for_one_rank_per_node_with_gdr(call: RuleCall, tables: Tables, bound: IntArray) -> IntArray:
    """With one rank per node the adapters send the buffers directly, so one channel can start the transfers."""
    return np.ones_like(bound) if _adapters_take_buffers(call) else bound


@RULES(nccl.COLL_REG_REGISTER_BUFFERS(since="2.30.7"))
def near_adapters_for_one_rank_per_node_with_gdr(call: RuleCall, tables: Tables, bound: IntArray) -> IntArray:
    """With one rank per node, a channel for each adapter near the GPU. BadInput without a topology."""
    if not _adapters_take_buffers(call):
        return bound
    return np.full_like(bound, _within(call.communicator, _links(call).adapters[0][0]))


def switch_takes_buffers(call: RuleCall) -> bool:
    """Whether buffers are registered for NVLS, which then runs on them."""
    return bool(call.rules.registered) and keeps(call.communicator, call.request) and _switch_runs_on_buffers(call)


def _switch_runs_on_buffers(call: RuleCall) -> bool:
    """Whether NVLS runs on the user's buffers: not over NVLink between hosts, nor if a process has several ranks.

    AllGather only receives into these buffers, ReduceScatter only sends from them. Source: nvlsRegSupport, src/init.cc,
    v2.19.3-1; ncclRegisterCollNvlsBuffers, src/register/coll_reg.cc, v2.27.3-1.
    """
    communicator = call.communicator
    read = {Collective.AllGather: Sides.receive, Collective.ReduceScatter: Sides.send}
    if read.get(call.request.collective, Sides.both) not in kept(communicator, call.request):
        return False
    return call.algorithm in NVLS and not communicator.fabric and not communicator.ranks_share_processes


def _adapters_take_buffers(call: RuleCall) -> bool:
    """Whether the ring's adapters read and write the user's buffers (GPUDirect RDMA), with one rank per node."""
    lone = call.communicator.nodes == call.communicator.ranks
    variables = call.communicator.environment
    if lone and variables.number(symmetric_variables.CROSS_CLIQUE, 0) and variables.number("NCCL_MNNVL_ENABLE", 2) == 1:
        raise BadInput(
            f"{symmetric_variables.CROSS_CLIQUE} is not emulated for registered buffers if each rank is a node and "
            "NCCL_MNNVL_ENABLE is 1: use plain buffers"
        )
    moves = call.request.collective in (Collective.AllGather, Collective.Broadcast)
    taken = lone and moves and keeps(call.communicator, call.request)
    return taken and call.algo_proto == (Algorithm.Ring, Protocol.Simple) and _gpu_direct(call)


def _gpu_direct(call: RuleCall) -> bool:
    """Whether every adapter of the ring reads and writes its GPU's memory.

    For an adapter that cannot, NCCL searches from the CPU: its path is then PHB or farther. A P2C path may be either.
    Source: ncclTopoCheckGdr and ncclTopoComputePaths, src/graph/paths.cc, v2.28.9-1.
    """
    communicator = call.communicator
    paths, type_inter = communicator.release.paths, communicator.graphs[Algorithm.Ring].type_inter
    if any(name.startswith("NCCL_NET_GDR_") for name in communicator.environment.values):
        return _all_of_the_ring(call, type_inter)
    if type_inter is None or paths.rank(type_inter) > paths.rank(paths.gpu_direct):
        return False
    if type_inter != "P2C":
        return True
    return _all_of_the_ring(call, type_inter) if communicator.gpu_direct is None else communicator.gpu_direct


def _all_of_the_ring(call: RuleCall, type_inter: str | None) -> bool:
    """Whether all adapters no farther than the ring's farthest read and write GPU memory. BadInput if only some do."""
    rank = call.communicator.release.paths.rank
    direct = {
        adapter.reads and adapter.writes
        for adapter in _links(call).access[0]
        if type_inter is None or rank(adapter.path) <= rank(type_inter)
    }
    if len(direct) > 1:
        raise BadInput(
            "registered buffers with one rank per node are not emulated if only some adapters read GPU memory: use "
            "plain buffers"
        )
    return direct == {True}


def _links(call: RuleCall) -> PeerLinks:
    """The links of the rank's node. BadInput if there is no topology."""
    if call.communicator.links is None:
        raise BadInput(
            "picks on registered buffers depend on links here, which only a topology tells: give a topology, or use "
            "plain buffers"
        )
    return call.communicator.links()


def nvls_channels_by_heads(communicator: Comm, tables: Tables, collective: Collective) -> int:
    """Number of channels that NVLS needs to fill the switch from registered buffers."""
    of_eight_gpus = 8 * _nvls_channels(communicator, tables, collective)
    return _within(communicator, -(-of_eight_gpus // communicator.nvls_heads))


def _nvls_channels(communicator: Comm, tables: Tables, collective: Collective) -> int:
    table = communicator.release.registered_nvls_channels
    row = table.blackwell if communicator.generation == "blackwell" else table.hopper
    if communicator.nodes == 1:
        return row.one_node[collective]
    multicast_gbs = tables.bandwidth_gbs[collective, Algorithm.NVLS, Protocol.Simple]
    fast_scatter = collective is Collective.ReduceScatter and multicast_gbs > f32(table.fast_reduce_scatter_gbs)
    fast_reduce = collective is Collective.AllReduce and communicator.net_gbs >= row.fast_net_gbs
    return (row.nodes_fast if fast_scatter or fast_reduce else row.nodes)[collective]


def _within(communicator: Comm, channels: int) -> int:
    least, most = communicator.ctas
    return max(least, min(most, channels))


def peers_take_buffers(call: RuleCall) -> bool:
    """Whether GPUs of a rank's node read and write each other's buffers. BadInput if there is no topology that
    shows it."""
    communicator, peers = call.communicator, call.communicator.release.registration.peers
    if peers == "never" or communicator.local_ranks == 1 or call.protocol is not Protocol.Simple:
        return False
    # Memory that peers can map was then not allocated in the way in which NCCL shares it
    if not init.shares_memory(communicator.environment):
        return False
    if not _handed_to_peers(call) or communicator.direct_nvlink:
        return _handed_to_peers(call)
    return _links(call).all_peer_to_peer if peers == "direct" else _links(call).all_connected_by_memory


def network_takes_buffers(call: RuleCall, network: Callable[[], NetworkUse] | None) -> bool:
    """Whether adapters access the user's buffers themselves, given how the rank uses the network. BadInput without a
    topology.
    """
    if network is None or call.communicator.nodes == 1 or not may_reach_network(call):
        return False
    used = network()
    return used.reached and used.direct and not used.relayed


def may_reach_network(call: RuleCall) -> bool:
    """Whether adapters would read and write the buffers if they can."""
    network, scales = call.communicator.release.registration.network, call.request.scales
    if network == "never" or not keeps(call.communicator, call.request):
        return False
    if network == "but_averages" and call.request.collective is Collective.AllReduce and scales:
        return False
    return call.algo_proto == (Algorithm.Ring, Protocol.Simple) and _handed_to_peers(call)


def _handed_to_peers(call: RuleCall) -> bool:
    """Whether the algorithm gives the buffers to the peers: trees do, and rings that keep no intermediate results.

    Trees and rings of AllReduce do not in place, where peers would read what is overwritten. Rings between nodes need
    both buffers registered.
    """
    sides = kept(call.communicator, call.request)
    of_rings = Sides.both if call.communicator.nodes > 1 else Sides[call.communicator.release.registration.ring_buffers]
    if call.algorithm is Algorithm.Tree:
        return Sides.receive in sides and not call.request.in_place
    if of_rings not in sides:
        return False
    keeps_parts = call.request.collective in (Collective.Reduce, Collective.ReduceScatter)
    keeps_parts |= call.request.collective is Collective.AllReduce and call.request.in_place
    return call.algorithm is Algorithm.Ring and not keeps_parts


class ZeroCopyPeer(Enum):
    """What a buffer is registered for, with the values of NCCL's ``ncclRegBufferType``."""

    peers = 1
    switch = 2
    network = 4


def takers(call: RuleCall, network: Callable[[], NetworkUse] | None) -> tuple[ZeroCopyPeer, ...]:
    """The peers that access the user's buffers of a call without a copy, given how the rank uses the network. BadInput
    if that is not emulated.

    Source: ncclRegisterCollBuffers and ncclRegisterCollNvlsBuffers, src/register/coll_reg.cc, v2.28.9-1.
    """
    communicator = call.communicator
    if not call.rules.registered or call.request.buffers is Buffers.plain:
        return ()
    if communicator.collnet:
        raise BadInput("full launches with CollNet are only emulated on plain buffers")
    if communicator.nodes > 1 and communicator.environment.number(symmetric_variables.CROSS_CLIQUE, 0):
        raise BadInput(f"full launches with {symmetric_variables.CROSS_CLIQUE} are only emulated on plain buffers")
    found = {
        ZeroCopyPeer.peers: peers_take_buffers(call),
        ZeroCopyPeer.switch: switch_takes_buffers(call),
        ZeroCopyPeer.network: network_takes_buffers(call, network),
    }
    return tuple(taker for taker, takes in found.items() if takes)


VARIABLES = {Protocol.LL: "NCCL_LL_BUFFSIZE", Protocol.LL128: "NCCL_LL128_BUFFSIZE", Protocol.Simple: "NCCL_BUFFSIZE"}
UNSET = -2
LL128_LINE, LL128_DATA = 16, 15  # number of 8-byte words in a line, and number of those that are data
STEPPING = (Collective.AllGather, Collective.ReduceScatter, Collective.AllReduce)


def buffer_bytes(communicator: Comm, protocol: Protocol) -> int:
    """The size of the buffer of a connection. Source: computeBuffSizes, src/init.cc, v2.28.9-1."""
    limits = communicator.release.limits
    requested = int32(communicator.environment.number(VARIABLES[protocol], UNSET))
    if requested != UNSET:
        return requested
    if protocol is Protocol.LL:
        return limits.ll_buffer_bytes
    if protocol is Protocol.LL128:
        return limits.ll128_buffer_bytes
    on_arm = limits.simple_buffer_bytes_on_arm
    return on_arm if on_arm is not None and communicator.cpu_arch == "arm64" else limits.simple_buffer_bytes


def step_bytes(communicator: Comm, protocol: Protocol) -> int:
    """The bytes of one of the steps into which a buffer is divided."""
    return buffer_bytes(communicator, protocol) // communicator.release.limits.buffer_steps


def chunk_and_slice_steps(call: RuleCall) -> tuple[int, int]:
    """The number of steps of a chunk, and of a slice of it. Both numbers are more than one for Ring/Simple if every
    rank has its own part of the data.

    Source: src/include/collectives.h, v2.28.9-1.
    """
    several = call.algo_proto == (Algorithm.Ring, Protocol.Simple) and call.request.collective in STEPPING
    steps = call.limits.buffer_steps
    return (steps // 2, steps // 4) if several else (1, 1)


def grain_bytes(protocol: Protocol, warp_size: int) -> int:
    """The size in bytes of which chunks are multiples. Source: ncclProtoGrainSize, src/include/device.h, v2.28.9-1."""
    if protocol is Protocol.LL:
        return 16
    return warp_size * 8 // LL128_LINE * LL128_DATA * 8 if protocol is Protocol.LL128 else 512


# The kinds of buffers that the calls of a communicator can have: those that the release knows, that NCCL accepts, and
# that are emulated.


def check_buffers_of(communicator: Comm, request: Request) -> None:
    """Raises BadInput for buffers of a call that the release does not have or refuses, or that are not emulated
    here."""
    check_buffers(communicator, request.buffers, request.windows)
    if request.in_place and request.buffers is Buffers.window and request.windows.sides is not Sides.both:
        raise BadInput(
            "a call in place has one buffer, which is in the window or not: use windows both, or a call out of place"
        )


def check_buffers(communicator: Comm, buffers: Buffers, of: Windows) -> None:
    """Raises BadInput for buffers of any call that cannot be used or are not emulated; ``of`` describes its windows."""
    if buffers is Buffers.plain:
        return
    release, values = communicator.release, communicator.environment.values.keys()
    if said := missing(release, buffers):
        raise NcclFails(said).cured(Remedy("buffers", "plain"))
    if not release.rules.registered:
        return  # NCCL 2.18 only registers for CollNet what CUDA graphs capture, and only on request
    reaching = sorted(set(release.environment.registered_buffers) & values - symmetric_variables.EMULATED)
    if (alone := chosen_alone(communicator)) is not None:
        reaching.append(alone)
    if reaching:
        names = ", ".join(reaching)
        said = f"{names}: only emulated on plain buffers, not on {buffers.name} ones"
        raise BadInput(said).cured(Remedy("buffers", "plain"))
    if communicator.collnet and communicator.nodes == communicator.ranks:
        raise BadInput(
            f"{buffers.name} buffers are not emulated with CollNet and one rank per node, where channels depend on "
            "whether the network's plugin takes such buffers: use plain buffers"
        ).cured(Remedy("buffers", "plain"))
    if reason := not_on_nodes(communicator, buffers):
        refused = BadInput(f"{buffers.name} buffers are not emulated {reason}: use plain buffers")
        raise refused.cured(Remedy("buffers", "plain"))
    if buffers is Buffers.window:
        _check_flags(communicator, of.flags)


def chosen_alone(communicator: Comm) -> str | None:
    """The variable that makes NCCL choose for each call of a group by itself, if it is set to do so; else None."""
    name = communicator.release.environment.calls_alone
    return name if name is not None and communicator.environment.number(name, 0) else None


def _check_flags(communicator: Comm, flags: WindowFlag) -> None:
    """BadInput for flags that NCCL refuses.

    Source: ncclCommWindowRegister, src/dev_runtime.cc, as the binary of 2.32.3 has it.
    """
    release = communicator.release
    known = release.symmetric.window_flags
    for flag in flags:
        word = str(flag.name)
        if word not in known:
            since = first_with(lambda later, word=word: word in later.symmetric.window_flags)  # type: ignore[misc]
            raise BadInput(f"NCCL {release.name} has no NCCL_WIN_{word}: use {since} or later")
    if WindowFlag.COLL_SYMMETRIC | WindowFlag.GIN_ONLY in flags:
        raise BadInput(f"NCCL refuses the window flags {flag_words(flags)} together: give one of them")
    if WindowFlag.CFT_COUNTED in flags and symmetric_variables.are_made(communicator):
        raise BadInput(
            "NCCL refuses the window flag cft-counted on communicators that do not support it, and which ones support "
            "it is not known: remove the flag"
        )


class CtaPolicy(Enum):
    """The values of NCCL_CTA_POLICY_*."""

    default = 0
    efficiency = 1
    zero = 2


POLICY_RULES: Registry[Callable[[Environment], CtaPolicy]] = Registry()
CTA_POLICY = "NCCL_CTA_POLICY"


def policy_of(communicator: Comm) -> CtaPolicy:
    """The policy of a communicator."""
    return communicator.rules.cta_policy(communicator.environment)


@POLICY_RULES(nccl.ENV_CONFIG_OVERRIDE(since="2.18.1"))
def unsupported(environment: Environment) -> CtaPolicy:
    """The release knows no policy."""
    return CtaPolicy.default


@POLICY_RULES(nccl.ENV_CONFIG_OVERRIDE(since="2.27.3"))
def efficiency_or_not(environment: Environment) -> CtaPolicy:
    """NCCL_CTA_POLICY=1 is efficiency; all other values are the default."""
    return CtaPolicy.efficiency if environment.c_int(CTA_POLICY, 0) == 1 else CtaPolicy.default


@POLICY_RULES(nccl.ENV_CONFIG_OVERRIDE(since="2.28.3"))
def one_of_three(environment: Environment) -> CtaPolicy:
    """NCCL_CTA_POLICY is 0, 1 or 2; other numbers are the default."""
    number = environment.c_int(CTA_POLICY, 0)
    return CtaPolicy(number) if 0 <= number <= 2 else CtaPolicy.default


@POLICY_RULES(nccl.GET_ENV_CTA_POLICY_ONCE(since="2.29.2"))
def words_or_digit(environment: Environment) -> CtaPolicy:
    """NCCL_CTA_POLICY has policies between bars, of which `zero` wins; of a number only the first digit counts."""
    text = environment.text(CTA_POLICY) or ""
    if text[:1].isdigit():
        return {"1": CtaPolicy.efficiency, "2": CtaPolicy.zero}.get(text[0], CtaPolicy.default)
    words = {word.lower() for word in text.split("|")}
    return next(
        (policy for policy in (CtaPolicy.zero, CtaPolicy.efficiency) if policy.name in words), CtaPolicy.default
    )


def multicast_channels(communicator: Comm, tables: Tables, request: Request) -> int | None:
    """The number of channels that NVLS uses for this call if the policy prefers NVLS; None if the policy changes
    nothing.

    NVLS is preferred to any pick that may use at least this number of channels. BadInput if ranks share a process.
    """
    environment = communicator.environment
    if not keeps(communicator, request) or not request.spreads or communicator.fabric:
        return None
    if policy_of(communicator) is not CtaPolicy.efficiency or {"NCCL_ALGO", "NCCL_PROTO"} & set(environment.values):
        return None
    if candidate.nvls_missing(communicator, request) or (communicator.nodes > 1 and not communicator.collnet):
        return None
    if communicator.ranks_share_processes:
        raise BadInput(
            f"{CTA_POLICY}=efficiency is not emulated for {request.buffers.name} buffers if a process has several "
            "GPUs: use plain buffers"
        )
    return nvls_channels_by_heads(communicator, tables, request.collective)

"""NCCL's variables that affect only symmetric memory: windows, kernels, blocks, copy engines, bulk copies (TMA).

Source: NCCL_PARAM in src/init.cc, src/sym_kernels.cc, src/scheduler/symmetric_sched.cc and src/enqueue.cc, v2.30.7-1.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache, lru_cache
from typing import Any

from tuner.base.errors import BadInput, Remedy
from tuner.base.findings import Finding, Severity
from tuner.base.names import Algorithm, Buffers, Collective, Protocol
from tuner.base.registry import Registry
from tuner.base.spelling import option
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.request import Request
from tuner.emulator.rules import init
from tuner.machine.adapters import plugin_network
from tuner.release.environment import allowed, forced
from tuner.release.schema import given

CTAS, COPIED_OVER, BULK = "NCCL_SYM_CTAS", "NCCL_SYM_CE_THRESHOLD", "NCCL_SYM_TMA_ENABLE"
GIN, RAILS, RAIL_CHUNK = "NCCL_GIN_TYPE", "NCCL_SYM_GIN_KERNELS_ENABLE", "NCCL_SYM_RS_GIN_CHUNK_SIZE"
UNSET, NO_GIN, GDAKI = -1, 0, 3  # values of NCCL_GIN_TYPE
RMA = "NCCL_NUM_RMA_CTX"
LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES = 128, 1 << 30
KERNEL, WITHOUT_WINDOWS = "NCCL_SYM_KERNEL", "NCCL_SYM_NOWIN_ENABLE"
CROSS_CLIQUE = "NCCL_MNNVL_CROSS_CLIQUE"  # with this variable, NVLink may also reach peers of other nodes
WINDOWS, STRIDE = "NCCL_WIN_ENABLE", "NCCL_WIN_STRIDE"
# The allowed distance of the windows of two GPUs affects no choice: if it is too short, registering the windows fails.
# Variables of GIN have no effect in a release without kernels for several nodes.
EMULATED = frozenset({CTAS, COPIED_OVER, BULK, GIN, RMA, RAILS, RAIL_CHUNK, WINDOWS, STRIDE, init.MEMORY})
_UNSIGNED = 2**64

RequestedRule = Callable[[Comm, Collective, str], bool]  # whether a kernel, by NCCL's name, is allowed
REQUESTED_RULES: Registry[RequestedRule] = Registry()


@REQUESTED_RULES(nccl.SYMMETRIC_KERNEL_MASK_USER(since="2.27.3"), nccl.KERNEL_MASK_USER(since="2.28.3"))
def one_kernel_or_all(communicator: Comm, collective: Collective, kernel: str) -> bool:
    """NCCL_SYM_KERNEL is the exact name of the only kernel; `^` allows all, and any other text none."""
    return communicator.environment.text(KERNEL) in (None, "^", kernel)


@REQUESTED_RULES(nccl.COST_MODEL_INIT(since="2.31.2"))
def list_beside_algorithms(communicator: Comm, collective: Collective, kernel: str) -> bool:
    """NCCL_SYM_KERNEL is a list like NCCL_ALGO; if only one of them names a collective, the other allows it nothing."""
    if collective not in requested_collectives(communicator):
        return True
    kernels = kernels_of(communicator.release.symmetric.names)
    rows = _rows(communicator.environment.text(KERNEL) or "", communicator.release.symmetric.names)
    algorithms_too = communicator.environment.text("NCCL_ALGO") or communicator.environment.text(KERNEL)
    return rows[collective][kernels[kernel]] if collective in rows else not algorithms_too


def requested_collectives(communicator: Comm) -> frozenset[Collective]:
    """The collectives for which NCCL_ALGO, NCCL_PROTO or NCCL_SYM_KERNEL, read as lists, names anything."""
    if not communicator.environment.values:
        return frozenset()
    texts = [communicator.environment.text(variable) or "" for variable in ("NCCL_ALGO", "NCCL_PROTO", KERNEL)]
    return _named_in(communicator.release.symmetric.names, *texts) if any(texts) else frozenset()


@lru_cache(64)  # needed again for every size and kernel
def _named_in(names: tuple[str, ...], algorithms: str, protocols: str, kernels: str) -> frozenset[Collective]:
    named = (
        forced(algorithms, "NCCL_ALGO", Algorithm),
        forced(protocols, "NCCL_PROTO", Protocol),
        forced(kernels, KERNEL, kernels_of(names)),
    )
    return frozenset().union(*named)


@lru_cache(64)
def _rows(text: str, names: tuple[str, ...]) -> Mapping[Collective, Mapping[IntEnum, bool]]:
    """Whether the list allows a kernel, by collective and kernel."""
    return allowed(text, KERNEL, kernels_of(names))


@cache
def kernels_of(names: tuple[str, ...]) -> type[IntEnum]:
    """NCCL's symmetric kernels as the elements of a list."""
    enumerated: Any = IntEnum  # mypy only accepts literal lists of names
    kernels: type[IntEnum] = enumerated("SymmetricKernels", names, start=0)
    return kernels


def names_a_kernel(communicator: Comm) -> bool:
    """Whether NCCL_SYM_KERNEL asks for less than all kernels, in releases that do not read it as a list."""
    return communicator.environment.text(KERNEL) not in (None, "^")


def kernels_are_listed(communicator: Comm) -> bool:
    """Whether NCCL_SYM_KERNEL is set, even if it is empty or names other collectives.

    If it is set, kernels carry calls of any size (sic).
    """
    return communicator.environment.text(KERNEL) is not None


def without_windows(communicator: Comm) -> bool:
    """Whether calls on plain buffers may get symmetric kernels."""
    return communicator.environment.number(WITHOUT_WINDOWS, 0) != 0


def windows_enabled(communicator: Comm) -> bool:
    """Whether the communicator has symmetric memory, as far as variables say."""
    return communicator.environment.number(WINDOWS, 1) != 0 and init.shares_memory(communicator.environment)


def requested_blocks(communicator: Comm) -> int | None:
    """The blocks that every kernel gets, whatever the CTAs of the communicator; None if NCCL chooses."""
    blocks = min(communicator.environment.c_int(CTAS, 0), communicator.release.symmetric.max_blocks)
    return blocks if blocks > 0 else None


def gin_is_offered(communicator: Comm) -> bool:
    """Whether the network offers transfers that GPUs start (GIN), of whatever type.

    BadInput if neither NCCL_GIN_TYPE nor the network's adapters show it.
    """
    kind = communicator.environment.number(GIN, UNSET)
    if kind not in (UNSET, NO_GIN, GDAKI) or (kind == UNSET and communicator.offers_gin is None):
        raise _gin_unknown()
    return bool(communicator.offers_gin) if kind == UNSET else kind == GDAKI


def taken_gin(communicator: Comm, in_windows: bool) -> Finding | None:
    """A finding that says what is assumed about GIN if NCCL_GIN_TYPE is not set; None if no choice depends on that.

    For calls in windows it says that GIN is assumed because the adapters offer it; for groups outside of windows, that
    nothing says whether GIN is offered.
    """
    asked = communicator.nodes > 1 and communicator.rules.windows_between_nodes is not None
    if not asked or communicator.environment.number(GIN, UNSET) != UNSET:
        return None
    facts = {"variable": GIN, "without": NO_GIN, "with": GDAKI}
    if in_windows:
        return Finding("emulator.gin_taken", Severity.NOTE, facts) if communicator.offers_gin else None
    unknown = communicator.offers_gin is None and communicator.release.symmetric.rail is not None
    return Finding("emulator.gin_unknown", Severity.NOTE, facts) if unknown else None


class GinUnknown(BadInput):
    """Raised if neither the variable nor the adapters say whether the network offers GIN."""


def _gin_unknown() -> BadInput:
    return GinUnknown(
        "symmetric windows on several nodes: whether the network lets GPUs start transfers (GIN) is not known; "
        f"valid: {GIN}={GDAKI} where it does, whatever the type, {GIN}={NO_GIN} where it does not"
    ).cured(Remedy("env", str(NO_GIN), GIN))


def rails_enabled(communicator: Comm) -> bool:
    """Whether symmetric kernels may use the network."""
    return communicator.environment.number(RAILS, 1) != 0


def rail_chunk_bytes(communicator: Comm, default: int) -> int:
    """The chunk of ReduceScatter between nodes, a power of two."""
    rail = communicator.release.symmetric.rail
    requested = communicator.environment.number(RAIL_CHUNK, -1) if rail and rail.chunk_is_variable else -1
    chunk = max(LEAST_CHUNK_BYTES, min(requested if requested > 0 else default, MOST_CHUNK_BYTES))
    return 1 << (chunk.bit_length() - 1)


def copies_in_bulk(communicator: Comm) -> bool:
    """Whether kernels that copy in bulk may run."""
    default = int(communicator.release.symmetric.copies_in_bulk)
    return communicator.min_comp_cap >= 100 and communicator.environment.number(BULK, default) != 0


def copied_over_elements(communicator: Comm, multicast: bool) -> int | None:
    """The number of elements per rank above which copy engines carry AllGather on Blackwell; None: they never do.

    A negative threshold has no effect, as NCCL compares unsigned numbers.
    """
    table = communicator.release.symmetric
    if table.copied_over_elements is None:
        return None
    if communicator.environment.text(COPIED_OVER):
        return communicator.environment.number(COPIED_OVER, table.copied_over_elements) % _UNSIGNED
    name = "symmetric.copied_over_times_without_multicast"
    more = not multicast and copies_in_bulk(communicator)
    return table.copied_over_elements * (given(table.copied_over_times_without_multicast, name) if more else 1)


BetweenNodesRule = Callable[[Comm], bool]
RULES: Registry[BetweenNodesRule] = Registry()


@RULES(nccl.INIT_TRANSPORTS_RANK(since="2.29.2"))
def if_gpus_start_transfers_to_every_adapter(communicator: Comm) -> bool:
    """As :func:`if_gpus_start_transfers_over_single_adapters`, but only if rings may cross adapters (NCCL_CROSS_NIC).

    BadInput with a network plugin and no NCCL_GIN_TYPE: the plugin brings its own GIN or none
    (ncclNetPluginAssignToComm, src/plugin/net.cc, v2.29.2-1).
    """
    of_plugin = plugin_network(communicator.network, communicator.environment.values) is not None
    if of_plugin and communicator.offers_gin and communicator.environment.number(GIN, UNSET) == UNSET:
        raise _gin_unknown()
    crosses = communicator.environment.number("NCCL_CROSS_NIC", 2) != 0
    return if_gpus_start_transfers_over_single_adapters(communicator) and crosses


@RULES(nccl.INIT_TRANSPORTS_RANK(since="2.29.7"))
def if_gpus_start_transfers_over_single_adapters(communicator: Comm) -> bool:
    """Between nodes a window is made if GPUs can start transfers (GIN) and NCCL merges no adapters."""
    if not gin_is_offered(communicator):
        return False
    return not (communicator.merges_adapters is not None and communicator.merges_adapters())


@RULES(nccl.INIT_TRANSPORTS_RANK(since="2.30.7"))
def if_gpus_start_transfers(communicator: Comm) -> bool:
    """Between nodes a window is made if GPUs can start transfers over the network (GIN)."""
    return gin_is_offered(communicator)


def note_multicast(communicator: Comm, request: Request) -> bool:
    """Whether NCCL determines, when it makes this call's windows, if GPUs can multicast. BadInput as in
    :func:`are_made`.
    """
    if request.buffers is not Buffers.window or not are_made(communicator):
        return False
    return bool(request.symmetric) or communicator.release.symmetric.multicast_is_noted_by == "windows"


def are_made(communicator: Comm) -> bool:
    """Whether NCCL really makes a window when a buffer is registered as one. Raises BadInput.

    If no windows are made, the release's table says how NCCL treats their buffers.
    """
    registered = communicator.release.symmetric.windows_are_registered
    if registered and communicator.environment.number("NCCL_LOCAL_REGISTER", 1) == 0:
        return False
    return supported(communicator)


def joins_cliques(communicator: Comm) -> bool:
    """Whether NVLink reaches peers in other cliques of the fabric, which are nodes of their own (from the binary)."""
    return communicator.fabric and communicator.environment.number(CROSS_CLIQUE, 0) != 0


def supported(communicator: Comm) -> bool:
    """Whether the communicator has symmetric memory. BadInput if it is not known.

    Source: initTransportsRank, symmetricSupport, src/init.cc, and ncclTransportCheckP2pType, src/transport.cc.
    """
    if not windows_enabled(communicator):
        return False
    rule = communicator.rules.windows_between_nodes
    if communicator.nodes > 1 and (rule is None or joins_cliques(communicator) or not rule(communicator)):
        return False
    if communicator.graphs[Algorithm.Ring].type_intra in ("LOC", "NVL") and communicator.direct_nvlink:
        return True
    if communicator.links is None:
        raise BadInput(
            "symmetric windows without NVLink between all GPUs depend on whether GPUs reach each other, which only a "
            f"topology tells: give {option('machine')} or {option('topology')}"
        ).cured(Remedy("buffers", "plain"))
    by_cuda = communicator.release.symmetric.gpus_joined_by == "cuda"
    return communicator.links().cuda_joins_all if by_cuda else communicator.links().all_peer_to_peer

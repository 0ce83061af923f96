"""Whether the windows of a communicator are made, that is, hold symmetric memory: rules by name for several nodes."""

from collections.abc import Callable

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Buffers
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric_variables

BetweenNodesRule = Callable[[Communicator], bool]
RULES: Registry[BetweenNodesRule] = Registry()


@RULES(nccl.INIT_TRANSPORTS_RANK(since="2.29.2"))
def if_gpus_start_transfers_to_every_adapter(communicator: Communicator) -> bool:
    """As over_single_adapters, and where rings may cross from one adapter to another (NCCL_CROSS_NIC)."""
    crosses = communicator.environment.number("NCCL_CROSS_NIC", 2) != 0
    return if_gpus_start_transfers_over_single_adapters(communicator) and crosses


@RULES(nccl.INIT_TRANSPORTS_RANK(since="2.29.7"))
def if_gpus_start_transfers_over_single_adapters(communicator: Communicator) -> bool:
    """Between nodes a window is made where GPUs can start transfers (GIN) and NCCL merges no adapters."""
    if not symmetric_variables.gin_is_offered(communicator):
        return False
    return not (communicator.merges_adapters is not None and communicator.merges_adapters())


@RULES(nccl.INIT_TRANSPORTS_RANK(since="2.30.7"))
def if_gpus_start_transfers(communicator: Communicator) -> bool:
    """Between nodes a window is made where GPUs can start transfers over the network (GIN)."""
    return symmetric_variables.gin_is_offered(communicator)


def note_multicast(communicator: Communicator, request: Request) -> bool:
    """Whether NCCL notes whether its GPUs multicast as it makes the windows of such a call. BadInput as of are_made."""
    if request.buffers is not Buffers.window or not are_made(communicator):
        return False
    return bool(request.symmetric) or communicator.release.symmetric.multicast_is_noted_by == "windows"


def are_made(communicator: Communicator) -> bool:
    """Buffers of windows that are not made are what the release's table says. Errors: those of :func:`supported`."""
    registered = communicator.release.symmetric.windows_are_registered
    if registered and communicator.environment.number("NCCL_LOCAL_REGISTER", 1) == 0:
        return False
    return supported(communicator)


def supported(communicator: Communicator) -> bool:
    """Whether the communicator has symmetric memory. BadInput where it is not known.

    Source: initTransportsRank, symmetricSupport, src/init.cc, and ncclTransportCheckP2pType, src/transport.cc.
    """
    if not symmetric_variables.windows_enabled(communicator):
        return False
    rule = communicator.rules.windows_between_nodes
    if communicator.nodes > 1 and (rule is None or not rule(communicator)):
        return False
    if communicator.graphs[Algorithm.Ring].type_intra in ("LOC", "NVL") and communicator.direct_nvlink:
        return True
    if communicator.links is None:
        raise BadInput(
            "symmetric windows without NVLink between all GPUs: whether they reach each other only a topology tells; "
            "valid: `machine`, `topology`"
        )
    by_cuda = communicator.release.symmetric.gpus_joined_by == "cuda"
    return communicator.links().cuda_joins_all if by_cuda else communicator.links().all_peer_to_peer

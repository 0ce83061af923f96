"""Whether the windows of a communicator are made, that is, hold symmetric memory: rules by name for several nodes."""

from collections.abc import Callable

from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules import symmetric_variables

BetweenNodesRule = Callable[[Communicator], bool]
RULES: Registry[BetweenNodesRule] = Registry()


@RULES(nccl.WINDOW_REGISTER(since="2.29.2"))
def if_gpus_start_transfers(communicator: Communicator) -> bool:
    """Between nodes a window is made where GPUs can start transfers over the network (GIN)."""
    return symmetric_variables.gin_is_offered(communicator)


def are_made(communicator: Communicator) -> bool:
    """Buffers of windows that are not made are what the release's table says. BadInput where it is not known."""
    if not symmetric_variables.windows_enabled(communicator):
        return False
    registered = communicator.release.symmetric.windows_are_registered
    if registered and communicator.environment.number("NCCL_LOCAL_REGISTER", 1) == 0:
        return False
    rule = communicator.rules.windows_between_nodes
    return communicator.nodes == 1 or (rule is not None and rule(communicator))

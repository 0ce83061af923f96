"""Room for the arguments of symmetric kernels, without which NCCL fails: of which calls it is asked for, by name."""

from collections.abc import Callable

from tuner.base.errors import BadInput
from tuner.base.numerics import SizeArray
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric, symmetric_waiting, windows
from tuner.emulator.rules.kernel_arguments import VARIABLE, argument_bytes

RoomRule = Callable[[Communicator, Request, int], bool]
RULES: Registry[RoomRule] = Registry()

WORK_BYTES = 64  # ncclSymkDevWork, src/include/sym_kernels.h, v2.28.9-1
RANGE_BYTES = 4  # ncclSymkChannelWorkRange


def calls_of_a_kernel(communicator: Communicator) -> int:
    """How many calls the arguments of a symmetric kernel on all channels hold."""
    return (argument_bytes(communicator) - _head_bytes(communicator)) // WORK_BYTES


def check(communicator: Communicator, request: Request, sizes: SizeArray) -> None:
    """BadInput for calls at one of whose ``sizes`` (nBytes) NCCL fails, as its variable leaves too little room."""
    rule = communicator.rules.symmetric_arguments
    if rule is None or VARIABLE not in communicator.environment.values or calls_of_a_kernel(communicator) >= 1:
        return
    if any(rule(communicator, request, size) for size in sizes.tolist()):
        raise BadInput(
            f"{VARIABLE}={argument_bytes(communicator)}: too small for a symmetric kernel, without room for which NCCL "
            f"{communicator.release.name} fails at {request.collective.name}, even where it launches none; valid: "
            f"{_head_bytes(communicator) + WORK_BYTES} and more"
        )


def _head_bytes(communicator: Communicator) -> int:
    release = communicator.release
    return release.symmetric.argument_head_bytes + release.limits.max_channels * RANGE_BYTES


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.3"))
def every_call_on_a_node(communicator: Communicator, request: Request, nbytes: int) -> bool:
    """Every call where there is symmetric memory, whatever it is."""
    return windows.supported(communicator)


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.7"))
def calls_on_windows(communicator: Communicator, request: Request, nbytes: int) -> bool:
    """Calls on windows that a symmetric kernel can do."""
    return symmetric.is_set_aside(communicator, request, nbytes)


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.29.2"))
def calls_of_a_kind_with_kernels(communicator: Communicator, request: Request, nbytes: int) -> bool:
    """Calls that a symmetric kernel could do if they were on windows, wherever there is symmetric memory."""
    copied = symmetric.is_copied(communicator, request, nbytes)
    return not copied and symmetric_waiting.waits(communicator, request, nbytes)

"""Calls that NCCL sets aside for symmetric kernels before it chooses algorithms: rules by name."""

from collections.abc import Callable
from dataclasses import replace

from tuner.base.names import Collective, Op
from tuner.base.registry import Registry
from tuner.base.windows import Sides
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric, symmetric_kernels, symmetric_rail, symmetric_variables, windows
from tuner.release.schema import given

RULES: Registry[Callable[[Request], bool]] = Registry()  # kinds of calls


@RULES(nccl.SYMK_IMPLEMENTED(since="2.29.2"))
def gathers_and_sums(request: Request) -> bool:
    """AllGather, and sums of floats of up to 32 bits."""
    summed = request.op is Op.sum and request.dtype in symmetric.REDUCIBLE
    reduced = request.collective in (Collective.AllReduce, Collective.ReduceScatter) and summed
    return reduced or request.collective is Collective.AllGather


@RULES(nccl.SYMK_IMPLEMENTED(since="2.30.3"))
def gathers_sums_and_averages(request: Request) -> bool:
    """AllGather, and sums and averages of floats of up to 32 bits."""
    return gathers_and_sums(replace(request, op=Op.sum) if request.op is Op.avg else request)


def waits(communicator: Communicator, request: Request, nbytes: int) -> bool:
    """Whether a call of nBytes that copy engines do not do waits, on any buffers. BadInput as of symmetric kernels.

    Source: ncclMakeSymmetricTaskList, src/scheduler/symmetric_sched.cc, v2.29.2-1.
    """
    if request.symmetric is Sides.both and windows.are_made(communicator):
        return symmetric.is_set_aside(communicator, request, nbytes)
    rules, enabled = communicator.rules, symmetric_variables.windows_enabled(communicator)
    if not enabled or not given(rules.symmetric_reach, "rules.symmetric_reach")(communicator):
        return False
    if communicator.nodes > 1:
        noted = windows.note_multicast(communicator, request)
        exist = symmetric_rail.exist if noted else symmetric_rail.exist_without_windows
        if not exist(communicator) or not symmetric_rail.may_take(communicator, request.collective, noted):
            return False
    kind_waits = given(rules.symmetric_queue, "rules.symmetric_queue")
    return kind_waits(request) and symmetric_kernels.exists_for(communicator, request, nbytes)

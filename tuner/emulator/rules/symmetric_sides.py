"""Symmetric kernels and copy engines of calls of which not both buffers are in symmetric windows: rules by name."""

from collections.abc import Callable
from dataclasses import replace

from tuner.base.names import Collective, Protocol
from tuner.base.registry import Registry
from tuner.base.windows import Sides
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric_variables

ClassicProtocol = Callable[
    [Request, int], Protocol | None
]  # what the classic path would take for a size; None: nothing
LowLatencyRule = Callable[[Communicator, Request, int, ClassicProtocol], bool]
RULES: Registry[LowLatencyRule] = Registry()  # whether a low-latency kernel is taken

# What kernels that are not of low latency read or write in other ranks' memory; of other collectives both.
REACHED = {Collective.AllGather: Sides.receive, Collective.ReduceScatter: Sides.send}


def are_asked(communicator: Communicator, sides: Sides) -> bool:
    """Whether NCCL looks for symmetric kernels where these are in symmetric windows."""
    return sides is Sides.both or communicator.release.symmetric.windows_of_a_call == "any"


def suffice(communicator: Communicator, request: Request) -> bool:
    """Whether enough of the buffers are in symmetric windows for kernels that are not of low latency.

    Source: ncclSymkPickKernel, src/sym_kernels.cc, v2.29.2-1.
    """
    between_nodes = communicator.nodes > 1 and request.collective is Collective.AllGather
    reached = Sides.both if between_nodes else REACHED.get(request.collective, Sides.both)
    return reached in request.symmetric


def suffice_to_copy(communicator: Communicator, sides: Sides) -> bool:
    """Sides of copy engines. Source: ncclCeAvailable, src/ce_coll.cc, v2.29.2-1, and taskAppend before."""
    return are_asked(communicator, sides) and Sides.receive in sides


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.29.2"))
def if_named_or_asked_and_classic_is_ll(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> bool:
    """NCCL_SYM_KERNEL names a kernel, or the classic path would take LL; without windows NCCL_SYM_NOWIN_ENABLE, too."""
    if symmetric_variables.names_a_kernel(communicator):
        return True
    return _asked(communicator, request) and classic(request, nbytes) is Protocol.LL


@RULES(nccl.TUNING_COMPUTE(since="2.31.2"))
def if_asked_and_classic_without_latency_is_ll(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> bool:
    """The classic path would take LL if no combination had any latency (sic); without windows if asked to, too.

    It is asked for a call of one rank's bytes in whole cells (sic).
    """
    cells_bytes = in_whole_cells(communicator, own_bytes_of(communicator, request, nbytes))
    return _asked(communicator, request) and classic(replace(request, pipelined=0), cells_bytes) is Protocol.LL


def _asked(communicator: Communicator, request: Request) -> bool:
    return request.symmetric is not Sides.none or symmetric_variables.without_windows(communicator)


def own_bytes_of(communicator: Communicator, request: Request, nbytes: int) -> int:
    """The bytes of a call that are one rank's."""
    return nbytes // request.parts(communicator.ranks)


def in_whole_cells(communicator: Communicator, own_bytes: int) -> int:
    """Bytes up to the end of the cell of symmetric kernels that they end in."""
    cell_bytes = communicator.release.symmetric.cell_bytes
    return -(-own_bytes // cell_bytes) * cell_bytes

"""Calls that leave the classic path for symmetric kernels and copy engines, and with which kernel: rules by name.

One call in its group with buffers in windows; outside windows where NCCL is asked to.
"""

from collections.abc import Callable, Sequence

from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Collective, DataType, PeerCall, Protocol
from tuner.base.registry import Registry
from tuner.base.windows import Sides
from tuner.emulator import nccl_source as nccl
from tuner.emulator.call_kind import COPY_ENGINES, NonClassicPath
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import FP8, Request
from tuner.emulator.rules import cta_policy, symmetric_kernels, symmetric_rail, symmetric_variables
from tuner.emulator.rules.symmetric_kernels import KernelChoice, KernelCounts, best, multicast
from tuner.emulator.rules.symmetric_rail import ClassicProtocol, in_whole_cells, own_bytes_of
from tuner.release.schema import given

NonClassicRule = Callable[[Communicator, Request, int, ClassicProtocol], NonClassicPath | None]
RULES: Registry[NonClassicRule] = Registry()
REACH_RULES: Registry[Callable[[Communicator], bool]] = Registry()

REDUCIBLE = (DataType.float32, DataType.float16, DataType.bfloat16, *FP8)


@RULES(nccl.TASK_APPEND(since="2.18.1"))
def classic_path_only(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """The release has no symmetric kernels."""
    return None


@RULES(nccl.PREPARE_TASKS(since="2.27.3"))
def symmetric_by_blocks(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """Every call that a symmetric kernel can do, on all blocks the kernel's model asks for."""
    if not _asked_for(communicator, request) or not _implemented(communicator, request):
        return None
    own_bytes = own_bytes_of(communicator, request, nbytes)
    choice = best(communicator, request, KernelCounts(own_bytes, own_bytes))
    return None if choice is None else _kernel_path(communicator, request, choice, choice.blocks)


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.3"), nccl.TUNING_COMPUTE(since="2.31.2"))
def symmetric_by_cells(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """Every call that a symmetric kernel can do, in cells of a KiB, of which there may be fewer than blocks.

    Copy engines run it where no block is to be used.
    """
    choice = _in_cells(communicator, request, nbytes)
    if choice is None or isinstance(choice, NonClassicPath):
        return choice
    if choice.low_latency and request.symmetric is not Sides.both:
        takes = given(communicator.rules.symmetric_low_latency, "rules.symmetric_low_latency")
        if not takes(communicator, request, nbytes, classic):
            return None
    return _dealt(
        communicator, request, choice, in_whole_cells(communicator, own_bytes_of(communicator, request, nbytes))
    )


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.29.2"))
def symmetric_by_cells_low_latency_if_classic_is_ll(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """As symmetric_by_cells, but a low-latency kernel only where the classic path would take LL, or if it is named.

    Nor where a process has several GPUs, unless it is named.
    """
    choice = _in_cells(communicator, request, nbytes)
    if choice is None or isinstance(choice, NonClassicPath):
        return choice
    unasked = choice.low_latency and not symmetric_variables.names_a_kernel(communicator)
    if unasked and (communicator.ranks_share_processes or classic(request, nbytes) is not Protocol.LL):
        return None
    return symmetric_by_cells(communicator, request, nbytes, classic)


@REACH_RULES(nccl.TOPO_PATH_ALL_DIRECT_NVLINK(since="2.29.2"))
def nvlink_between_gpus(communicator: Communicator) -> bool:
    """NVLink joins all ranks of a node: not where there is one GPU, whose path to itself is nearer (sic)."""
    return communicator.direct_nvlink and communicator.graphs[Algorithm.Ring].type_intra == "NVL"


@REACH_RULES(nccl.TOPO_PATH_ALL_DIRECT_NVLINK(since="2.30.7"))
def nvlink_or_one_gpu(communicator: Communicator) -> bool:
    """NVLink or a GPU that they share joins all ranks."""
    return communicator.direct_nvlink


def _in_cells(communicator: Communicator, request: Request, nbytes: int) -> KernelChoice | NonClassicPath | None:
    if is_copied(communicator, request, nbytes):
        return COPY_ENGINES
    if not _asked_for(communicator, request) or not _implemented(communicator, request):
        return None
    own_bytes = own_bytes_of(communicator, request, nbytes)
    return best(communicator, request, KernelCounts(own_bytes, in_whole_cells(communicator, own_bytes)))


def _asked_for(communicator: Communicator, request: Request) -> bool:
    """Whether NCCL looks for a symmetric kernel: on windows that are made; outside on one node, one GPU per process."""
    if request.symmetric is Sides.none:
        alone = communicator.nodes == 1 and not communicator.ranks_share_processes
        return alone and symmetric_variables.supported(communicator)
    made = symmetric_rail.are_asked(communicator, request.symmetric) and symmetric_variables.are_made(communicator)
    return made and (communicator.nodes == 1 or symmetric_rail.exist_for(communicator, request))


def kernel_of_several(communicator: Communicator, request: Request, sizes: Sequence[int]) -> NonClassicPath | None:
    """What calls of a kind get together, of these nBytes; None where no kernel does several. Not of 2.27.

    Source: ncclSymkPickKernel, src/sym_kernels.cc, and ncclSymmetricTaskScheduler, src/scheduler/symmetric_sched.cc,
    v2.30.7-1.
    """
    if not request.symmetric or not _asked_for(communicator, request):
        return None
    own = [in_whole_cells(communicator, own_bytes_of(communicator, request, nbytes)) for nbytes in sizes]
    choice = best(communicator, request, KernelCounts(max(own), sum(own), len(own)))
    return None if choice is None else _dealt(communicator, request, choice, sum(own))


def is_set_aside(communicator: Communicator, request: Request, nbytes: int) -> bool:
    """Whether a symmetric kernel could do a call in windows that are made. BadInput for links that are not emulated."""
    if not request.symmetric or not _asked_for(communicator, request):
        return False
    return _implemented(communicator, request) and symmetric_kernels.exists_for(communicator, request, nbytes)


def sends_are_copied(communicator: Communicator, function: PeerCall, sides: Sides) -> bool:
    """Whether copy engines do an AllToAll, Gather or Scatter, which NCCL else makes of sends and receives.

    ``sides`` are in symmetric windows. BadInput for links on which windows are not emulated.
    Source: taskAppend, src/enqueue.cc, v2.28.9-1.
    """
    return _wants_no_blocks(communicator) and _may_copy(communicator, function, sides)


def is_copied(communicator: Communicator, request: Request, nbytes: int) -> bool:
    """Whether copy engines do a call, which waits for no other then. Errors: those of :func:`sends_are_copied`."""
    by_cells = communicator.rules.non_classic_path not in (classic_path_only, symmetric_by_blocks)
    gathers = by_cells and request.collective is Collective.AllGather
    if not gathers or not _may_copy(communicator, request.collective, request.symmetric):
        return False
    if _wants_no_blocks(communicator):
        return True
    if communicator.nodes > 1:
        return False
    over = symmetric_variables.copied_over_elements(communicator, multicast(communicator))
    if over is None or communicator.min_comp_cap < 100 or not _reaches(communicator):
        return False
    return own_bytes_of(communicator, request, nbytes) // request.dtype.size_bytes > over


def _wants_no_blocks(communicator: Communicator) -> bool:
    return cta_policy.of(communicator) is cta_policy.Policy.zero


def _may_copy(communicator: Communicator, call: Collective | PeerCall, sides: Sides) -> bool:
    """Whether copy engines can do the call where these buffers are in symmetric windows."""
    if not symmetric_rail.suffice_to_copy(communicator, sides) or not symmetric_variables.are_made(communicator):
        return False
    between = communicator.rules.copies_between_nodes
    if communicator.nodes > 1 and (between is None or not between(communicator, call, sides)):
        return False
    _check_gpus(communicator)
    return True


def _dealt(communicator: Communicator, request: Request, choice: KernelChoice, counted_bytes: int) -> NonClassicPath:
    """On the blocks that get one of the whole cells, which are dealt out evenly."""
    cells = counted_bytes // communicator.release.symmetric.cell_bytes
    return _kernel_path(communicator, request, choice, -(-cells // -(-cells // choice.blocks)))


def _kernel_path(communicator: Communicator, request: Request, choice: KernelChoice, blocks: int) -> NonClassicPath:
    """NoAlgorithm where NCCL picks the kernel for an operation that it was not built for."""
    if request.op.name in communicator.release.symmetric.ops_without_kernels.get(request.collective, ()):
        raise NoAlgorithm(
            f"NCCL {communicator.release.name} picks a symmetric kernel for {request.collective.name} "
            f"{request.op.name} and has none: it launches nothing; valid: plain or registered buffers"
        )
    return NonClassicPath(choice.kernel, blocks, communicator.release.symmetric.threads)


def _implemented(communicator: Communicator, request: Request) -> bool:
    """Whether symmetric kernels exist for the call."""
    if request.collective not in (Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter):
        return False
    if not _reaches(communicator):
        return False
    _check_gpus(communicator)
    if request.collective is Collective.AllGather:
        return True
    return request.op.name in communicator.release.symmetric.ops and request.dtype in REDUCIBLE


def _check_gpus(communicator: Communicator) -> None:
    """BadInput for GPUs of several kinds, of which it is not known what kernels and copy engines do."""
    if communicator.min_comp_cap != communicator.max_comp_cap:
        raise BadInput("symmetric windows on GPUs of several compute capabilities are not emulated; valid: equal GPUs")


def _reaches(communicator: Communicator) -> bool:
    """Whether symmetric kernels reach every rank; up to 2.28 they do where there is symmetric memory."""
    rule = communicator.rules.symmetric_reach
    return rule is None or rule(communicator)


def weighed(communicator: Communicator, request: Request, nbytes: int) -> tuple[KernelChoice, ...]:
    """The symmetric kernels that can do a call of nBytes, in NCCL's order, with their times; whatever takes it then.

    Errors: those of the release's rule.
    """
    rule = communicator.rules.non_classic_path
    if rule is classic_path_only:
        return ()
    if not _asked_for(communicator, request) or not _implemented(communicator, request):
        return ()
    own_bytes = modelled_bytes = own_bytes_of(communicator, request, nbytes)
    if rule is not symmetric_by_blocks:
        modelled_bytes = in_whole_cells(communicator, own_bytes)
    return tuple(symmetric_kernels.weighed(communicator, request, KernelCounts(own_bytes, modelled_bytes)))

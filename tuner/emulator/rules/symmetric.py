"""Rules that say which calls bypass the algorithms for a symmetric kernel or copy engines, and which kernel carries
them.

The rules are for a call that is alone in its group and has buffers in windows, or other buffers if a variable asks for
that. Further rules say which calls fail because the arguments of symmetric kernels do not fit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Collective, DataType, Op, PeerCall, Protocol, Sides
from tuner.base.numerics import SizeArray
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.request import COPY_ENGINES, FP8, NonClassicPath, Request
from tuner.emulator.rules import call_configuration, registered, symmetric_kernels, symmetric_rail, symmetric_variables
from tuner.emulator.rules.schedule.scheduler import VARIABLE, argument_bytes
from tuner.emulator.rules.schedule.task import Chooser, CollectiveTask, Kernels, kind
from tuner.emulator.rules.symmetric_kernels import KernelChoice, KernelCounts, best, multicast
from tuner.emulator.rules.symmetric_rail import ClassicProtocol, in_whole_cells, own_bytes_of
from tuner.release.schema import given

NonClassicRule = Callable[[Comm, Request, int, ClassicProtocol], NonClassicPath | None]
RULES: Registry[NonClassicRule] = Registry()
REACH_RULES: Registry[Callable[[Comm], bool]] = Registry()

REDUCIBLE = (DataType.float32, DataType.float16, DataType.bfloat16, *FP8)


@RULES(nccl.TASK_APPEND(since="2.18.1"))
def classic_path_only(
    communicator: Comm, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """The release has no symmetric kernels."""
    return None


@RULES(nccl.PREPARE_TASKS(since="2.27.3"))
def symmetric_by_blocks(
    communicator: Comm, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """Every call that a symmetric kernel can do, on all blocks for which the kernel's model asks."""
    if not _asked_for(communicator, request) or not _implemented(communicator, request):
        return None
    own_bytes = own_bytes_of(communicator, request, nbytes)
    choice = best(communicator, request, KernelCounts(own_bytes, own_bytes))
    return None if choice is None else _kernel_path(communicator, request, choice, choice.blocks)


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.3"), nccl.TUNING_COMPUTE(since="2.31.2"))
def symmetric_by_cells(
    communicator: Comm, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """Every call that a symmetric kernel can do, in cells of 1 KiB, of which there may be fewer than blocks.

    Copy engines carry the call if no block is to be used. NoAlgorithm if NCCL fails: see :func:`calls_in_windows`.
    """
    choice = _in_cells(communicator, request, nbytes)
    if choice is None and communicator.rules.bypass_first is calls_in_windows:
        _check_found(communicator, is_set_aside(communicator, request, nbytes))
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
    communicator: Comm, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """As :func:`symmetric_by_cells`, but a low-latency kernel runs only if named or if the classic path would use LL.

    If a process has several GPUs, a low-latency kernel runs only if NCCL_SYM_KERNEL names a kernel.
    """
    choice = _in_cells(communicator, request, nbytes)
    if choice is None or isinstance(choice, NonClassicPath):
        return choice
    unasked = choice.low_latency and not symmetric_variables.names_a_kernel(communicator)
    if unasked and (communicator.ranks_share_processes or classic(request, nbytes) is not Protocol.LL):
        return None
    return symmetric_by_cells(communicator, request, nbytes, classic)


@REACH_RULES(nccl.TOPO_PATH_ALL_DIRECT_NVLINK(since="2.29.2"))
def nvlink_between_gpus(communicator: Comm) -> bool:
    """NVLink joins all ranks of a node; false with one rank per node, as a GPU's path to itself is nearer (sic)."""
    several = communicator.local_ranks > 1 and communicator.graphs[Algorithm.Ring].type_intra == "NVL"
    return communicator.direct_nvlink and several


@REACH_RULES(nccl.TOPO_PATH_ALL_DIRECT_NVLINK(since="2.30.7"))
def nvlink_or_one_gpu(communicator: Comm) -> bool:
    """NVLink or a shared GPU joins all ranks."""
    return communicator.direct_nvlink


def _in_cells(communicator: Comm, request: Request, nbytes: int) -> KernelChoice | NonClassicPath | None:
    if is_copied(communicator, request, nbytes):
        return COPY_ENGINES
    if not _asked_for(communicator, request) or not _implemented(communicator, request):
        return None
    own_bytes = own_bytes_of(communicator, request, nbytes)
    return best(communicator, request, KernelCounts(own_bytes, in_whole_cells(communicator, own_bytes)))


def _asked_for(communicator: Comm, request: Request) -> bool:
    """Whether NCCL looks for a symmetric kernel: on windows that are made, or on one node with one GPU per process."""
    if request.symmetric is Sides.none:
        alone = communicator.nodes == 1 and not communicator.ranks_share_processes
        return alone and symmetric_variables.supported(communicator)
    made = symmetric_rail.are_asked(communicator, request.symmetric) and symmetric_variables.are_made(communicator)
    return made and (communicator.nodes == 1 or symmetric_rail.exist_for(communicator, request))


def kernel_of_several(communicator: Comm, request: Request, sizes: Sequence[int]) -> NonClassicPath | None:
    """The kernel that carries several calls of one kind together, with these nBytes; None if no kernel does. Not for
    2.27.

    Source: ncclSymkPickKernel, src/sym_kernels.cc, and ncclSymmetricTaskScheduler, src/scheduler/symmetric_sched.cc,
    v2.30.7-1.
    """
    if not request.symmetric or not _asked_for(communicator, request):
        return None
    own = [in_whole_cells(communicator, own_bytes_of(communicator, request, nbytes)) for nbytes in sizes]
    choice = best(communicator, request, KernelCounts(max(own), sum(own), len(own)))
    return None if choice is None else _dealt(communicator, request, choice, sum(own))


def is_set_aside(communicator: Comm, request: Request, nbytes: int) -> bool:
    """Whether a symmetric kernel could carry a call in windows that are really made. BadInput for links that are not
    emulated."""
    if not request.symmetric or not _asked_for(communicator, request):
        return False
    return _implemented(communicator, request) and symmetric_kernels.exists_for(communicator, request, nbytes)


def sends_are_copied(communicator: Comm, function: PeerCall, sides: Sides) -> bool:
    """Whether copy engines carry an AllToAll, Gather or Scatter, which NCCL otherwise turns into sends and receives.

    ``sides`` are the buffers in symmetric windows. BadInput for links on which windows are not emulated. Source:
    taskAppend, src/enqueue.cc, v2.28.9-1.
    """
    return _wants_no_blocks(communicator) and _may_copy(communicator, function, sides)


def is_copied(communicator: Comm, request: Request, nbytes: int) -> bool:
    """Whether copy engines carry a call, which then waits for no other call. Raises BadInput."""
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


def _wants_no_blocks(communicator: Comm) -> bool:
    return registered.policy_of(communicator) is registered.CtaPolicy.zero


def _may_copy(communicator: Comm, call: Collective | PeerCall, sides: Sides) -> bool:
    """Whether copy engines can carry the call if these buffers are in symmetric windows."""
    if not symmetric_rail.suffice_to_copy(communicator, sides) or not symmetric_variables.are_made(communicator):
        return False
    between = communicator.rules.copies_between_nodes
    if communicator.nodes > 1 and (between is None or not between(communicator, call, sides)):
        return False
    _check_gpus(communicator)
    return True


def _dealt(communicator: Comm, request: Request, choice: KernelChoice, counted_bytes: int) -> NonClassicPath:
    """The kernel, reduced to those blocks that get a cell when whole cells are distributed evenly."""
    cells = counted_bytes // communicator.release.symmetric.cell_bytes
    return _kernel_path(communicator, request, choice, -(-cells // -(-cells // choice.blocks)))


def _kernel_path(communicator: Comm, request: Request, choice: KernelChoice, blocks: int) -> NonClassicPath:
    """The path through the kernel. NoAlgorithm if NCCL picks the kernel for an operation for which it was not built."""
    if request.op.name in communicator.release.symmetric.ops_without_kernels.get(request.collective, ()):
        raise NoAlgorithm(
            f"NCCL {communicator.release.name} picks a symmetric kernel for {request.collective.name} "
            f"{request.op.name} and has none: it launches nothing; valid: plain or registered buffers"
        )
    return NonClassicPath(choice.kernel, blocks, communicator.release.symmetric.threads)


def _implemented(communicator: Comm, request: Request) -> bool:
    """Whether symmetric kernels exist for the call."""
    if request.collective not in (Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter):
        return False
    if not _reaches(communicator):
        return False
    _check_gpus(communicator)
    if request.collective is Collective.AllGather:
        return True
    return request.op.name in communicator.release.symmetric.ops and request.dtype in REDUCIBLE


def _check_gpus(communicator: Comm) -> None:
    """BadInput if GPUs differ and each rank's kernel depends on its own GPU, so that ranks may take different kernels.

    Kernels within a node and kernels that multicast depend on it; all others depend on the least capable of all GPUs.
    Source: queryModel_lsa and queryModel_gin, src/sym_kernels.cc, v2.30.7-1.
    """
    if communicator.min_comp_cap != communicator.max_comp_cap and (communicator.nodes == 1 or communicator.nvls):
        raise BadInput(
            "symmetric windows on GPUs of several compute capabilities, within a node or with NVLS, are not emulated, "
            "because ranks may take different kernels there: use equal GPUs"
        )


def _reaches(communicator: Comm) -> bool:
    """Whether symmetric kernels reach every rank; up to 2.28 they do if there is symmetric memory."""
    rule = communicator.rules.symmetric_reach
    return rule is None or rule(communicator)


def weighed(communicator: Comm, request: Request, nbytes: int) -> tuple[KernelChoice, ...]:
    """The symmetric kernels that can do a call of nBytes, in NCCL's order, with their times, whether or not one of them
    does the call in the end.

    BadInput for calls that are not emulated.
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


RoomRule = Callable[[Comm, Request, int], bool]
ARGUMENT_RULES: Registry[RoomRule] = Registry()

WORK_BYTES = 64  # ncclSymkDevWork, src/include/sym_kernels.h, v2.28.9-1
RANGE_BYTES = 4  # ncclSymkChannelWorkRange


def calls_of_a_kernel(communicator: Comm) -> int:
    """Number of calls that the arguments of a symmetric kernel on all channels hold."""
    return (argument_bytes(communicator) - _head_bytes(communicator)) // WORK_BYTES


def check(communicator: Comm, request: Request, sizes: SizeArray) -> None:
    """Raises BadInput if NCCL fails the call at one of these ``sizes`` (nBytes), because a variable leaves too little
    room."""
    rule = communicator.rules.symmetric_arguments
    if rule is None or VARIABLE not in communicator.environment.values or calls_of_a_kernel(communicator) >= 1:
        return
    if any(rule(communicator, request, size) for size in sizes.tolist()):
        raise BadInput(
            f"NCCL {communicator.release.name} fails at {request.collective.name} with "
            f"{VARIABLE}={argument_bytes(communicator)}, even if it launches no symmetric kernel, because that leaves "
            f"no room for one: set {_head_bytes(communicator) + WORK_BYTES} or more"
        )


def _head_bytes(communicator: Comm) -> int:
    release = communicator.release
    return release.symmetric.argument_head_bytes + release.limits.max_channels * RANGE_BYTES


@ARGUMENT_RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.3"))
def every_call_on_a_node(communicator: Comm, request: Request, nbytes: int) -> bool:
    """Every call of any kind, if there is symmetric memory."""
    return symmetric_variables.supported(communicator)


@ARGUMENT_RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.7"))
def calls_on_windows(communicator: Comm, request: Request, nbytes: int) -> bool:
    """Calls on windows that a symmetric kernel can do."""
    return is_set_aside(communicator, request, nbytes)


@ARGUMENT_RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.29.2"))
def calls_of_a_kind_with_kernels(communicator: Comm, request: Request, nbytes: int) -> bool:
    """Every call that a symmetric kernel could carry if its buffers were in symmetric windows."""
    copied = is_copied(communicator, request, nbytes)
    return not copied and waits(communicator, request, nbytes)


WAITING_RULES: Registry[Callable[[Request], bool]] = Registry()  # for kinds of calls


@WAITING_RULES(nccl.SYMK_IMPLEMENTED(since="2.29.2"))
def gathers_and_sums(request: Request) -> bool:
    """AllGather, and sums of floats of up to 32 bits."""
    summed = request.op is Op.sum and request.dtype in REDUCIBLE
    reduced = request.collective in (Collective.AllReduce, Collective.ReduceScatter) and summed
    return reduced or request.collective is Collective.AllGather


@WAITING_RULES(nccl.SYMK_IMPLEMENTED(since="2.30.3"))
def gathers_sums_and_averages(request: Request) -> bool:
    """AllGather, and sums and averages of floats of up to 32 bits."""
    return gathers_and_sums(replace(request, op=Op.sum) if request.op is Op.avg else request)


def waits(communicator: Comm, request: Request, nbytes: int) -> bool:
    """Whether a call, on any buffers, waits for a symmetric kernel if copy engines do not carry it. Raises BadInput.

    A call that selects its algorithm does not wait. Source: ncclMakeSymmetricTaskList,
    src/scheduler/symmetric_sched.cc, v2.29.2-1; what a selection does was read from the binary.
    """
    if call_configuration.selected(communicator, request) is not None:
        return False
    if request.symmetric is Sides.both and symmetric_variables.are_made(communicator):
        return is_set_aside(communicator, request, nbytes)
    rules, enabled = communicator.rules, symmetric_variables.windows_enabled(communicator)
    if not enabled or not given(rules.symmetric_reach, "rules.symmetric_reach")(communicator):
        return False
    if communicator.nodes > 1:
        noted = symmetric_variables.note_multicast(communicator, request)
        exist = symmetric_rail.exist if noted else symmetric_rail.exist_without_windows
        if not exist(communicator) or not symmetric_rail.may_take(communicator, request.collective, noted):
            return False
    kind_waits = given(rules.symmetric_queue, "rules.symmetric_queue")
    return kind_waits(request) and symmetric_kernels.exists_for(communicator, request, nbytes)


Aside = tuple[Kernels, list[CollectiveTask]]  # kernels that come first, and the tasks that are left for algorithms
BypassRule = Callable[[Chooser, list[CollectiveTask]], Aside]
BYPASSING_RULES: Registry[BypassRule] = Registry()


@BYPASSING_RULES(nccl.PREPARE_TASKS(since="2.27.3"))
def only_a_call_alone(chooser: Chooser, ordered: list[CollectiveTask]) -> Aside:
    """A call that is the only one of its group may get a symmetric kernel; several calls never do."""
    alone = len(ordered) == 1 and not chooser.beside_messages
    return _parted(chooser, [ordered], []) if alone else ([], ordered)


@BYPASSING_RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.3"))
def calls_in_windows(chooser: Chooser, ordered: list[CollectiveTask]) -> Aside:
    """Calls in windows that a symmetric kernel could carry are set aside, by kind, smallest first.

    NoAlgorithm if no kernel carries them: NCCL fails in that case. If only low-latency kernels are left, no kernel
    carries several calls. A low-latency kernel also refuses a call whose bytes are too many for it after they are
    rounded up to whole cells (sic); NCCL sets the call aside before it rounds.
    """
    communicator = chooser.communicator
    copied, ordered = _copied(communicator, ordered)
    waiting = [each for each in ordered if is_set_aside(communicator, each.request, each.nbytes)]
    kernels, back = _parted(chooser, _full_kernels(communicator, waiting), _others(ordered, waiting))
    _check_found(communicator, len(back) > len(ordered) - len(waiting))
    return copied + kernels, back


def _check_found(communicator: Comm, missing: bool) -> None:
    """NoAlgorithm if a kernel is ``missing`` for calls that NCCL set aside."""
    if missing:
        raise NoAlgorithm(
            f"NCCL {communicator.release.name} finds no symmetric kernel for calls that it set aside, and fails; "
            "valid: each in a group of its own, and other sizes"
        )


@BYPASSING_RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.29.2"))
def calls_on_any_buffers(chooser: Chooser, ordered: list[CollectiveTask]) -> Aside:
    """Calls that a symmetric kernel could carry in windows are set aside, by kind, smallest first.

    NCCL does this without checking whether the calls are in windows. It then puts back calls that need windows and lack
    them, and calls that no kernel carries together. These come after the other calls and with the smallest first (sic),
    although the other calls are sorted with the largest first.
    """
    communicator = chooser.communicator
    copied, ordered = _copied(communicator, ordered)
    waiting = [each for each in ordered if waits(communicator, each.request, each.nbytes)]
    kernels, back = _parted(chooser, _full_kernels(communicator, waiting), _others(ordered, waiting))
    return copied + kernels, back


def _copied(communicator: Comm, ordered: list[CollectiveTask]) -> Aside:
    """Calls that copy engines carry, in the order of the calls. Source: taskAppend, src/enqueue.cc, v2.30.7-1."""
    copied = [each for each in ordered if is_copied(communicator, each.request, each.nbytes)]
    for task in copied:
        task.path = COPY_ENGINES
    return [[task] for task in sorted(copied, key=lambda task: task.place)], _others(ordered, copied)


def _others(tasks: Sequence[CollectiveTask], without: Sequence[CollectiveTask]) -> list[CollectiveTask]:
    places = {task.place for task in without}
    return [task for task in tasks if task.place not in places]


def _full_kernels(communicator: Comm, waiting: Sequence[CollectiveTask]) -> Iterator[list[CollectiveTask]]:
    """Groups of calls of one kind, smallest first; each group has as many calls as fit into the arguments of a kernel
    on all channels.

    BadInput if not even one fits: NCCL checks that for every call that it sets aside, whatever carries the call later.
    """
    kinds: dict[object, list[CollectiveTask]] = {}
    for task in waiting:
        check(communicator, task.request, np.array([task.nbytes], np.uint64))
        kinds.setdefault(kind(communicator, task.request), []).insert(0, task)
    most = calls_of_a_kernel(communicator)
    for same in kinds.values():
        for start in range(0, len(same), most):
            yield same[start : start + most]


def _parted(
    chooser: Chooser,
    together: Iterator[list[CollectiveTask]] | Sequence[list[CollectiveTask]],
    rest: list[CollectiveTask],
) -> Aside:
    """The calls that get a symmetric kernel, and the other calls followed by those that get none."""
    kernels: Kernels = []
    for tasks in together:
        path = chooser.path_of(tasks)
        if path is None:
            rest += tasks
            continue
        kernels.append(tasks)
        for task in tasks:
            task.path = path
    return kernels, rest

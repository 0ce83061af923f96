"""Room for the arguments of symmetric kernels, without which NCCL fails: of which calls it is asked for, by name."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Collective, Op
from tuner.base.numerics import SizeArray
from tuner.base.registry import Registry
from tuner.base.windows import Sides
from tuner.emulator import nccl_source as nccl
from tuner.emulator.call_kind import COPY_ENGINES
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric, symmetric_kernels, symmetric_rail, symmetric_variables
from tuner.emulator.rules.schedule.scheduler import VARIABLE, argument_bytes
from tuner.emulator.rules.schedule.task import Chooser, CollectiveTask, Kernels, kind
from tuner.release.schema import given

RoomRule = Callable[[Communicator, Request, int], bool]
ARGUMENT_RULES: Registry[RoomRule] = Registry()

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


@ARGUMENT_RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.3"))
def every_call_on_a_node(communicator: Communicator, request: Request, nbytes: int) -> bool:
    """Every call where there is symmetric memory, whatever it is."""
    return symmetric_variables.supported(communicator)


@ARGUMENT_RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.7"))
def calls_on_windows(communicator: Communicator, request: Request, nbytes: int) -> bool:
    """Calls on windows that a symmetric kernel can do."""
    return symmetric.is_set_aside(communicator, request, nbytes)


@ARGUMENT_RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.29.2"))
def calls_of_a_kind_with_kernels(communicator: Communicator, request: Request, nbytes: int) -> bool:
    """Calls that a symmetric kernel could do if they were on windows, wherever there is symmetric memory."""
    copied = symmetric.is_copied(communicator, request, nbytes)
    return not copied and waits(communicator, request, nbytes)


WAITING_RULES: Registry[Callable[[Request], bool]] = Registry()  # kinds of calls


@WAITING_RULES(nccl.SYMK_IMPLEMENTED(since="2.29.2"))
def gathers_and_sums(request: Request) -> bool:
    """AllGather, and sums of floats of up to 32 bits."""
    summed = request.op is Op.sum and request.dtype in symmetric.REDUCIBLE
    reduced = request.collective in (Collective.AllReduce, Collective.ReduceScatter) and summed
    return reduced or request.collective is Collective.AllGather


@WAITING_RULES(nccl.SYMK_IMPLEMENTED(since="2.30.3"))
def gathers_sums_and_averages(request: Request) -> bool:
    """AllGather, and sums and averages of floats of up to 32 bits."""
    return gathers_and_sums(replace(request, op=Op.sum) if request.op is Op.avg else request)


def waits(communicator: Communicator, request: Request, nbytes: int) -> bool:
    """Whether a call of nBytes that copy engines do not do waits, on any buffers. BadInput as of symmetric kernels.

    Source: ncclMakeSymmetricTaskList, src/scheduler/symmetric_sched.cc, v2.29.2-1.
    """
    if request.symmetric is Sides.both and symmetric_variables.are_made(communicator):
        return symmetric.is_set_aside(communicator, request, nbytes)
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


Aside = tuple[Kernels, list[CollectiveTask]]  # kernels that come first, and what is left for algorithms
BypassRule = Callable[[Chooser, list[CollectiveTask]], Aside]
BYPASSING_RULES: Registry[BypassRule] = Registry()


@BYPASSING_RULES(nccl.PREPARE_TASKS(since="2.27.3"))
def only_a_call_alone(chooser: Chooser, ordered: list[CollectiveTask]) -> Aside:
    """A call that is alone in its group may get a symmetric kernel, several never do."""
    alone = len(ordered) == 1 and not chooser.beside_messages
    return _parted(chooser, [ordered], []) if alone else ([], ordered)


@BYPASSING_RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.3"))
def calls_in_windows(chooser: Chooser, ordered: list[CollectiveTask]) -> Aside:
    """Calls in windows that a symmetric kernel could do, by kind, smallest first. NoAlgorithm where none does several.

    NCCL then fails.
    """
    communicator = chooser.communicator
    copied, ordered = _copied(communicator, ordered)
    waiting = [each for each in ordered if symmetric.is_set_aside(communicator, each.request, each.nbytes)]
    kernels, back = _parted(chooser, _full_kernels(communicator, waiting), _others(ordered, waiting))
    if len(back) > len(ordered) - len(waiting):
        raise NoAlgorithm(
            f"NCCL {communicator.release.name} finds no symmetric kernel for several calls at once, and fails; valid: "
            "each in a group of its own"
        )
    return copied + kernels, back


@BYPASSING_RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.29.2"))
def calls_on_any_buffers(chooser: Chooser, ordered: list[CollectiveTask]) -> Aside:
    """Calls that a symmetric kernel could do in windows, by kind, smallest first; it does not ask for windows yet.

    Where it needs them, or none does several, they come back behind the rest, smallest first. sic: smallest first here
    is largest first where tasks are put together.
    """
    communicator = chooser.communicator
    copied, ordered = _copied(communicator, ordered)
    waiting = [each for each in ordered if waits(communicator, each.request, each.nbytes)]
    kernels, back = _parted(chooser, _full_kernels(communicator, waiting), _others(ordered, waiting))
    return copied + kernels, back


def _copied(communicator: Communicator, ordered: list[CollectiveTask]) -> Aside:
    """What copy engines do, in the order of the calls. Source: taskAppend, src/enqueue.cc, v2.30.7-1."""
    copied = [each for each in ordered if symmetric.is_copied(communicator, each.request, each.nbytes)]
    for task in copied:
        task.path = COPY_ENGINES
    return [[task] for task in sorted(copied, key=lambda task: task.place)], _others(ordered, copied)


def _others(tasks: Sequence[CollectiveTask], without: Sequence[CollectiveTask]) -> list[CollectiveTask]:
    places = {task.place for task in without}
    return [task for task in tasks if task.place not in places]


def _full_kernels(communicator: Communicator, waiting: Sequence[CollectiveTask]) -> Iterator[list[CollectiveTask]]:
    """Calls of a kind, smallest first, as many as the arguments of a kernel on all channels hold.

    BadInput where they do not hold one: NCCL asks that of every call that is set aside, whatever becomes of it.
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
    """Those that get a symmetric kernel, and behind the rest those that get none."""
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

"""What a group sets aside before NCCL chooses algorithms: calls for copy engines and for symmetric kernels.

Copy engines come first, one call after the other, then symmetric kernels, each of as many calls of a kind as its
arguments hold, then all other calls.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tuner.base.errors import NoAlgorithm
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.call_kind import COPY_ENGINES
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules import symmetric, symmetric_arguments
from tuner.emulator.rules.schedule.task import Chooser, Kernels, Task, kind
from tuner.emulator.rules.symmetric_waiting import waits

Aside = tuple[Kernels, list[Task]]  # kernels that come first, and what is left for algorithms
BypassRule = Callable[[Chooser, list[Task]], Aside]
RULES: Registry[BypassRule] = Registry()


@RULES(nccl.PREPARE_TASKS(since="2.27.3"))
def only_a_call_alone(chooser: Chooser, ordered: list[Task]) -> Aside:
    """A call that is alone in its group may get a symmetric kernel, several never do."""
    alone = len(ordered) == 1 and not chooser.beside_messages
    return _parted(chooser, [ordered], []) if alone else ([], ordered)


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.3"))
def calls_in_windows(chooser: Chooser, ordered: list[Task]) -> Aside:
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


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.29.2"))
def calls_on_any_buffers(chooser: Chooser, ordered: list[Task]) -> Aside:
    """Calls that a symmetric kernel could do in windows, by kind, smallest first; it does not ask for windows yet.

    Where it needs them, or none does several, they come back behind the rest, smallest first. sic: smallest first here
    is largest first where tasks are put together.
    """
    communicator = chooser.communicator
    copied, ordered = _copied(communicator, ordered)
    waiting = [each for each in ordered if waits(communicator, each.request, each.nbytes)]
    kernels, back = _parted(chooser, _full_kernels(communicator, waiting), _others(ordered, waiting))
    return copied + kernels, back


def _copied(communicator: Communicator, ordered: list[Task]) -> Aside:
    """What copy engines do, in the order of the calls. Source: taskAppend, src/enqueue.cc, v2.30.7-1."""
    copied = [each for each in ordered if symmetric.is_copied(communicator, each.request, each.nbytes)]
    for task in copied:
        task.path = COPY_ENGINES
    return [[task] for task in sorted(copied, key=lambda task: task.place)], _others(ordered, copied)


def _others(tasks: Sequence[Task], without: Sequence[Task]) -> list[Task]:
    places = {task.place for task in without}
    return [task for task in tasks if task.place not in places]


def _full_kernels(communicator: Communicator, waiting: Sequence[Task]) -> Iterator[list[Task]]:
    """Calls of a kind, smallest first, as many as the arguments of a kernel on all channels hold.

    BadInput where they do not hold one: NCCL asks that of every call that is set aside, whatever becomes of it.
    """
    kinds: dict[object, list[Task]] = {}
    for task in waiting:
        symmetric_arguments.check(communicator, task.request, np.array([task.nbytes], np.uint64))
        kinds.setdefault(kind(communicator, task.request), []).insert(0, task)
    most = symmetric_arguments.calls_of_a_kernel(communicator)
    for same in kinds.values():
        for start in range(0, len(same), most):
            yield same[start : start + most]


def _parted(chooser: Chooser, together: Iterator[list[Task]] | Sequence[list[Task]], rest: list[Task]) -> Aside:
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

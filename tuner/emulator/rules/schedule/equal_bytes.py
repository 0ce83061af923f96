"""The scheduler that gives every channel as many bytes."""

from collections.abc import Callable

from tuner.base.numerics import ceil_div
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules.launch import elements_at_once
from tuner.emulator.rules.schedule.least_loaded import least_loaded
from tuner.emulator.rules.schedule.scheduler import RULES, Scheduler
from tuner.emulator.rules.schedule.task import Chooser, Kernels, Task, in_graph, kind, neighbours
from tuner.emulator.rules.schedule.works import Works
from tuner.release.schema import given

ESTIMATE_RULES: Registry[Callable[[Task], int]] = Registry()


@ESTIMATE_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.21.5"))
def own_bytes(task: Task) -> int:
    """The task's own bytes."""
    return task.work_bytes


@ESTIMATE_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.20.5"))
def bytes_together(task: Task) -> int:
    """sic: of all that were chosen together, ranks included."""
    return task.together_bytes


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.20.5"))
class EqualBytes(Scheduler):
    """Sorted by kind and size, chosen together by kind, and cut so that every channel gets as many bytes.

    Then come those that the network takes part in, each on all its channels, and last those whose channels a tuner
    plugin named, on the least loaded ones.
    """

    kernel = Works

    def __call__(self, chooser: Chooser, tasks: list[Task]) -> Kernels:
        communicator = chooser.communicator

        # Sorted greatest first; of equal ones the last comes first.
        def size_of_kind(task: Task) -> tuple[int, ...]:
            return *kind(communicator, task.request), task.elements, task.place

        ordered = sorted(tasks, key=size_of_kind, reverse=True)
        usable = 1
        for together in neighbours(communicator, ordered):
            chooser.choose(together)
            for task in together:
                chooser.bind(task)
                like_nvls = task.call(communicator).like_nvls
                usable = max(usable, communicator.nvls_channels if like_nvls else communicator.coll_channels)
        usable = min(usable, sum(task.bound for task in ordered))
        estimated = given(communicator.rules.work_estimate, "rules.work_estimate")

        network = {task.place for task in ordered if task.call(communicator).like_collnet}
        ordered.sort(key=lambda task: 1 if task.place in network else 2 * task.tuned)
        kernels, captured = Kernels(), in_graph(tasks)
        while ordered:
            kernel = Works(communicator, captured)
            total = sum(task.work_bytes for task in ordered if not task.tuned and task.place not in network)
            align = given(communicator.release.limits.part_alignment_bytes, "limits.part_alignment_bytes")
            most = ceil_div(ceil_div(total, usable), align) * align
            loads = [0] * usable
            for task in ordered:
                whole = task.tuned or task.place in network
                task.chunk_channels = task.bound if whole else ceil_div(estimated(task) * usable, total)
                if not kernel.fits(task.chunk_channels):
                    break
                if task.place in network:
                    _share(task, loads)
                elif task.tuned:
                    _spread(communicator, task, loads)
                else:
                    _fill(communicator, task, loads, most)
                kernel.add(task)
            kernels.append(kernel.tasks())
            ordered = ordered[len(kernels[-1]) :]
        return kernels


def _fill(communicator: Communicator, task: Task, loads: list[int], most: int) -> None:
    """Fills channels up to ``most`` bytes one after the other, in whole multiples of what a block moves at once."""
    size = task.request.device_dtype.size_bytes
    at_once = elements_at_once(task.call(communicator), task.threads)
    left, counts = task.elements, []
    for channel, load in enumerate(loads):
        if load >= most:
            continue
        if left == 0:
            break
        wanted = ceil_div(min(most - load, left * size), size)
        part = min(ceil_div(wanted, at_once) * at_once, left)
        left -= part
        loads[channel] += part * size
        counts.append((channel, part))
    task.deal(counts)


def _share(task: Task, loads: list[int]) -> None:
    """All channels of its bound go over all of it together."""
    channels = range(min(task.bound, len(loads)))
    task.share(channels)
    for channel in channels:
        loads[channel] += ceil_div(task.elements, len(channels)) * task.request.device_dtype.size_bytes


def _spread(communicator: Communicator, task: Task, loads: list[int]) -> None:
    """Even parts, in whole multiples of what a block moves at once, on the least loaded channels."""
    at_once = elements_at_once(task.call(communicator), task.threads)
    part = ceil_div(ceil_div(task.elements, min(task.bound, len(loads))), at_once) * at_once
    left, task.chunk_channels, counts = task.elements, ceil_div(task.elements, part), []
    for channel in least_loaded(loads, task.chunk_channels, len(loads)):
        counts.append((channel, min(part, left)))
        loads[channel] += min(part, left) * task.request.device_dtype.size_bytes
        left -= part
    task.deal(counts)

"""Calls of a group on channels: those with the least load, or the same number of bytes on each."""

from collections.abc import Callable, Sequence

from tuner.base.names import Algorithm
from tuner.base.numerics import as_size_t, ceil_div
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules.candidate import collnet_missing
from tuner.emulator.rules.launch import elements_at_once
from tuner.emulator.rules.schedule.scheduler import RULES, Scheduler, Works
from tuner.emulator.rules.schedule.task import Chooser, CollectiveTask, Kernels, between, in_graph, kind, neighbours
from tuner.release.schema import given

TOTAL_RULES: Registry[Callable[[CollectiveTask], int]] = Registry()
SHARE_RULES: Registry[Callable[[Communicator, bool], int]] = Registry()


@TOTAL_RULES(nccl.TASK_APPEND(since="2.18.3"))
def whole_bytes(task: CollectiveTask) -> int:
    """nBytes of the task."""
    return task.nbytes


@TOTAL_RULES(nccl.TASK_APPEND(since="2.18.1"))
def bytes_per_rank(task: CollectiveTask) -> int:
    """Bytes of the count, per rank where every rank has its own."""
    return task.work_bytes


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.18.1"))
class LeastLoaded(Scheduler):
    """Neighbours of one kind are chosen together, each gets channels by its size: the least loaded."""

    kernel = Works

    def __call__(self, chooser: Chooser, tasks: list[CollectiveTask]) -> Kernels:
        communicator = chooser.communicator
        total = sum(map(given(communicator.rules.group_bytes, "rules.group_bytes"), tasks))
        kernels, captured = Kernels(), in_graph(tasks)
        waiting = list(tasks)
        while waiting:
            kernel = Works(communicator, captured)
            loads = [0] * communicator.release.limits.max_channels
            per_channel = {network: _bytes_per_channel(communicator, total, network) for network in (False, True)}
            for together in neighbours(communicator, waiting):
                network = collnet_missing(communicator, together[0].request) is None
                _choose_together(chooser, together, per_channel[network])
                for task in together:
                    if not kernel.fits(task.unregistered_bound):
                        break
                    most = _channels_to_choose_from(communicator, task, together)
                    task.share(least_loaded(loads, task.bound, most))
                    kernel.add(task)
                    for channel in task.channels:
                        loads[channel] += task.nbytes // len(task.channels)
                    total = (total - task.nbytes) % 2**64  # a size_t, which more may be taken from than was put in
                else:
                    continue
                break
            kernels.append(kernel.tasks())
            waiting = waiting[len(kernels[-1]) :]
        return kernels


@SHARE_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.19.3"))
def two_mib_per_rank(communicator: Communicator, network: bool) -> int:
    """2 MiB a rank, of 16 ranks at most; 256 KiB where the network can do the call."""
    limits = communicator.release.limits
    if network:
        return given(
            limits.aggregated_bytes_per_channel_with_collnet, "limits.aggregated_bytes_per_channel_with_collnet"
        )
    most = min(given(limits.aggregated_ranks, "limits.aggregated_ranks"), communicator.ranks)
    return given(limits.aggregated_bytes_per_channel_and_rank, "limits.aggregated_bytes_per_channel_and_rank") * most


@SHARE_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.18.1"))
def unlimited(communicator: Communicator, network: bool) -> int:
    """sic: NCCL_AGG_CHANNEL_SIZE is -2 where unset, and that is kept as a size_t."""
    return as_size_t(-2)


def _bytes_per_channel(communicator: Communicator, total: int, network: bool) -> int:
    """The most a channel is given, halved while that leaves channels without work; the product wraps.

    ``network``: whether CollNet can do the call, be it picked or not.
    """
    each = given(communicator.rules.channel_bytes, "rules.channel_bytes")(communicator, network)
    least = given(
        communicator.release.limits.min_aggregated_bytes_per_channel, "limits.min_aggregated_bytes_per_channel"
    )
    while total < as_size_t(each * communicator.coll_channels) and each > least:
        each //= 2
    return each


def _choose_together(chooser: Chooser, together: list[CollectiveTask], per_channel: int) -> None:
    if len(together) == 1:
        chooser.choose(together)
        return
    most = chooser.communicator.coll_channels
    others = together[1:]  # sic
    wanted = sum(between(1, ceil_div(task.work_bytes, per_channel), most) for task in others)
    preset = min(most, wanted)
    chooser.choose(together, ceil_div(wanted, preset), preset)
    like_nvls = together[0].call(chooser.communicator).like_nvls
    for task in together:
        limit = chooser.communicator.nvls_channels if like_nvls else most
        task.bound = task.unregistered_bound = between(1, ceil_div(task.nbytes, per_channel), limit)
        chooser.register(task)


def _channels_to_choose_from(communicator: Communicator, task: CollectiveTask, together: list[CollectiveTask]) -> int:
    """sic: a NVLSTree on its own chooses from the other algorithms' channels."""
    alone_in_tree = len(together) == 1 and task.algo_proto[0] is Algorithm.NVLSTree
    like_nvls = task.call(communicator).like_nvls and not alone_in_tree
    return communicator.nvls_channels if like_nvls else communicator.coll_channels


def least_loaded(loads: Sequence[int], wanted: int, most: int) -> list[int]:
    """The ``wanted`` channels with the least load; a later channel replaces the first of the most loaded so far."""
    least = list(range(wanted))
    for channel in range(wanted, most):
        heaviest = max(range(wanted), key=lambda i: loads[least[i]])
        if loads[channel] < loads[least[heaviest]]:
            least[heaviest] = channel
    return least


ESTIMATE_RULES: Registry[Callable[[CollectiveTask], int]] = Registry()


@ESTIMATE_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.21.5"))
def own_bytes(task: CollectiveTask) -> int:
    """The task's own bytes."""
    return task.work_bytes


@ESTIMATE_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.20.5"))
def bytes_together(task: CollectiveTask) -> int:
    """sic: of all that were chosen together, ranks included."""
    return task.together_bytes


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.20.5"))
class EqualBytes(Scheduler):
    """Sorted by kind and size, chosen together by kind, and cut so that every channel gets as many bytes.

    Then come those that the network takes part in, each on all its channels, and last those whose channels a tuner
    plugin named, on the least loaded ones.
    """

    kernel = Works

    def __call__(self, chooser: Chooser, tasks: list[CollectiveTask]) -> Kernels:
        communicator = chooser.communicator

        # Sorted greatest first; of equal ones the last comes first.
        def size_of_kind(task: CollectiveTask) -> tuple[int, ...]:
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


def _fill(communicator: Communicator, task: CollectiveTask, loads: list[int], most: int) -> None:
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


def _share(task: CollectiveTask, loads: list[int]) -> None:
    """All channels of its bound go over all of it together."""
    channels = range(min(task.bound, len(loads)))
    task.share(channels)
    for channel in channels:
        loads[channel] += ceil_div(task.elements, len(channels)) * task.request.device_dtype.size_bytes


def _spread(communicator: Communicator, task: CollectiveTask, loads: list[int]) -> None:
    """Even parts, in whole multiples of what a block moves at once, on the least loaded channels."""
    at_once = elements_at_once(task.call(communicator), task.threads)
    part = ceil_div(ceil_div(task.elements, min(task.bound, len(loads))), at_once) * at_once
    left, task.chunk_channels, counts = task.elements, ceil_div(task.elements, part), []
    for channel in least_loaded(loads, task.chunk_channels, len(loads)):
        counts.append((channel, min(part, left)))
        loads[channel] += min(part, left) * task.request.device_dtype.size_bytes
        left -= part
    task.deal(counts)

"""Schedulers: they take tasks in the order of the calls, and return kernels in the order of their launch.

Each scheduler asks a ``Chooser`` for the algorithm, protocol and threads of the tasks for which NCCL chooses together.
The newest scheduler distributes cells of traffic; older ones use the channels with the least load, or give each channel
the same number of bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective
from tuner.base.numerics import as_size_t, ceil_div
from tuner.base.registry import Registry, Variant
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.request import NonClassicPath
from tuner.emulator.rules import registered
from tuner.emulator.rules.candidate import collnet_missing
from tuner.emulator.rules.launch import ChannelPosition, TrafficCells, bound_ctas, cells_of, elements_at_once
from tuner.emulator.rules.schedule.task import (
    Chooser,
    CollectiveTask,
    Kernels,
    between,
    function,
    in_graph,
    kind,
    neighbours,
)
from tuner.release.schema import given

BATCH_BYTES = 16  # ncclDevWorkBatch
ARGUMENT_HEAD_BYTES = 32  # ncclDevKernelArgs
REGISTERED_BYTES = 192  # difference between the sizes of ncclDevWorkCollReg and ncclDevWorkColl
GRAPH_BYTES = 1 << 30  # bytes of works of a kernel in a CUDA graph, which are in separate memory


class Batches:
    """A kernel from 2.22 on. It has batches of works for each channel, in the kernel's arguments or in half of a ring
    buffer."""

    VARIABLES = frozenset({"NCCL_WORK_FIFO_BYTES", "NCCL_WORK_ARGS_BYTES"})
    TOO_SMALL = "NCCL_WORK_FIFO_BYTES, NCCL_WORK_ARGS_BYTES: too small for one collective; NCCL never returns"

    def __init__(self, communicator: Comm, captured: bool = False) -> None:
        self.communicator = communicator
        limits, number = communicator.release.limits, communicator.environment.number
        unset = limits.work_fifo_bytes
        in_domain = limits.work_fifo_bytes_of_blackwell_domain
        if in_domain is not None and communicator.fabric and communicator.generation == "blackwell":
            unset = in_domain if number("NCCL_WORK_FIFO_BYTES", -1) == -1 else unset
        ring = number("NCCL_WORK_FIFO_BYTES", unset) % 2**32  # uint32_t
        ring = limits.work_fifo_bytes if ring & (ring - 1) else min(ring, 1 << 30)
        self.argument_bytes = argument_bytes(communicator) - ARGUMENT_HEAD_BYTES
        self.ring_bytes = GRAPH_BYTES if captured else ring // 2
        self.work_bytes = limits.work_bytes
        self.batches = self.filled_bytes = 0
        self.tasks: list[CollectiveTask] = []
        self._tails: dict[int, tuple[object, int]] = {}  # function and bytes of a channel's last batch

    @classmethod
    def of(cls, communicator: Comm, tasks: Sequence[CollectiveTask]) -> "Batches":
        """A kernel that contains these tasks."""
        kernel = cls(communicator, in_graph(tasks))
        for task in tasks:
            kernel.add(task)
        return kernel

    def in_ring(self, batches: int, work_bytes: int) -> int:
        """The bytes of works that a kernel stores in the ring; 0 if everything fits into the kernel's arguments."""
        return work_bytes if batches * BATCH_BYTES + work_bytes > self.argument_bytes else 0

    def check_ring(self, work_bytes: int) -> None:
        """Raises BadInput if the kernels of a group put more works into the ring than fit, so that NCCL waits forever.

        Source: waitWorkFifoAvailable and ncclLaunchFinish, src/enqueue.cc, v2.28.9-1.
        """
        if self.communicator.release.limits.work_fifo_holds_group and work_bytes > 2 * self.ring_bytes:
            raise BadInput(
                f"NCCL never returns from a group with {work_bytes} bytes of work records if NCCL_WORK_FIFO_BYTES is "
                f"{2 * self.ring_bytes}: split the group, or set a larger NCCL_WORK_FIFO_BYTES"
            )

    def estimate(self, waiting: Sequence[CollectiveTask]) -> int:
        """The number of tasks that NCCL expects to fit, if four works share a batch."""
        work_bytes = 0
        for planned, task in enumerate(waiting):
            work_bytes += self._bytes_of(task)
            if not self.holds(ceil_div(planned, 4), work_bytes):
                return planned
        return len(waiting)

    def fits(self, channels: int, task: CollectiveTask | None = None) -> bool:
        """Whether there is room for one more task on this many channels; without ``task`` for one on plain buffers."""
        own_bytes = self.work_bytes if task is None else self._bytes_of(task)
        return self.holds(self.batches + channels, self.filled_bytes + own_bytes)

    def holds(self, batches: int, work_bytes: int) -> bool:
        """Whether there is room for this many batches and bytes of works."""
        left = self.argument_bytes - batches * BATCH_BYTES
        return work_bytes <= left or (left >= 0 and work_bytes <= self.ring_bytes)

    def add(self, task: CollectiveTask) -> None:
        """Adds a task: a channel's batch holds works of one function and size, up to 1024 bytes.

        NCCL also extends a batch whose works are more than 64 apart, but the works of a channel are neighbours.
        """
        own_bytes, most_bytes = self._bytes_of(task), self.communicator.release.limits.batch_bytes
        runs = function(self.communicator, task), own_bytes
        for channel in task.channels:
            same, filled = self._tails.get(channel, (None, 0))
            if same != runs or filled + own_bytes > most_bytes:
                self.batches += 1
                filled = 0
            self._tails[channel] = runs, filled + own_bytes
        self.filled_bytes += own_bytes
        self.tasks.append(task)

    def _bytes_of(self, task: CollectiveTask) -> int:
        """Bytes of a task's work; more if the switch uses the user's buffers, whose addresses it then holds."""
        switched = registered.switch_takes_buffers(task.call(self.communicator))
        return self.work_bytes + (REGISTERED_BYTES if switched else 0)


REGISTERED_ELEMENTS = 2  # NCCL_MAX_WORK_ELEMENTS_REG, src/include/device.h
ANY_NUMBER = 2**31 - 1  # number of works of a kernel in a CUDA graph, which are in separate memory


class Works:
    """A kernel up to 2.21. Each channel has a queue of works with up to nine elements each; half a ring holds all of
    them."""

    VARIABLES = frozenset({"NCCL_WORK_FIFO_DEPTH"})
    TOO_SMALL = "NCCL_WORK_FIFO_DEPTH: too small for one collective; valid: powers of two from 128"

    def __init__(self, communicator: Comm, captured: bool = False) -> None:
        self.communicator = communicator
        default = given(communicator.release.limits.work_fifo_depth, "limits.work_fifo_depth")
        depth = communicator.environment.c_int("NCCL_WORK_FIFO_DEPTH", default)
        if depth & (depth - 1):
            depth = default
        self.left = ANY_NUMBER if captured else depth // 2
        self._tails: dict[int, tuple[object, int]] = {}
        self._tasks: list[CollectiveTask] = []

    def fits(self, channels: int) -> bool:
        """Whether there is room for one more task on this many channels."""
        return self.left >= channels

    def add(self, task: CollectiveTask) -> None:
        """Adds a task.

        A channel's work holds elements with one function and thread count; only two if the switch uses the user's
        buffers.
        """
        runs = function(self.communicator, task), task.threads
        switched = registered.switch_takes_buffers(task.call(self.communicator))
        most = REGISTERED_ELEMENTS if switched else self.communicator.release.limits.colls_per_batch
        for channel in task.channels:
            tail, elements = self._tails.get(channel, (None, most))
            full = tail != runs or elements == most
            self.left -= full
            self._tails[channel] = (runs, 1 if full else elements + 1)
        self._tasks.append(task)

    def tasks(self) -> list[CollectiveTask]:
        """The tasks that the kernel contains. BadInput if not even one fits."""
        if not self._tasks:
            raise BadInput(self.TOO_SMALL)
        return self._tasks


VARIABLE, MOST_BYTES = "NCCL_WORK_ARGS_BYTES", 4096  # ncclMaxKernelArgsSize


def argument_bytes(communicator: Comm) -> int:
    """Bytes that the arguments of a kernel may have."""
    return min(as_size_t(communicator.environment.number(VARIABLE, MOST_BYTES)), MOST_BYTES)


class Scheduler(Variant, ABC):
    """One way of scheduling; ``kernel`` is the class of its kernels."""

    kernel: ClassVar[type[Works | Batches]]

    @abstractmethod
    def __call__(self, chooser: Chooser, tasks: list[CollectiveTask]) -> Kernels:
        """The kernels of these tasks, whose channels are filled in."""


RULES: Registry[Scheduler] = Registry()


def check_alone(communicator: Comm, channels: int) -> None:
    """Raises BadInput if no kernel can contain an operation on this many channels, because variables make kernels too
    small."""
    kernel = communicator.rules.schedule.kernel
    if limits_kernels(communicator) and not kernel(communicator).fits(channels):
        raise BadInput(kernel.TOO_SMALL)


def limits_kernels(communicator: Comm) -> bool:
    """Whether variables are set that may leave a kernel too little room for an operation."""
    return not communicator.rules.schedule.kernel.VARIABLES.isdisjoint(communicator.environment.values)


ORDER_RULES: Registry[Callable[[Comm, list[CollectiveTask]], list[CollectiveTask]]] = Registry()
COUNTED_TRAFFIC_RULES: Registry[Callable[[int, int], int]] = Registry()
NOT_DONE = "does not do it (sic)"


@ORDER_RULES(nccl.TASK_COLL_SORTER_INSERT(since="2.22.3"))
def by_traffic(_communicator: Comm, tasks: list[CollectiveTask]) -> list[CollectiveTask]:
    """The largest traffic first, roughly: four bins per power of two, and within a bin the last call first."""
    return sorted(tasks, key=lambda task: (_bin(task.traffic_bytes), task.place), reverse=True)


@ORDER_RULES(nccl.PREPARE_TASKS(since="2.29.2"), nccl.PREPARE_TASKS_MOVED(since="2.31.2"))
def by_traffic_broadcasts_last(communicator: Comm, tasks: list[CollectiveTask]) -> list[CollectiveTask]:
    """Order of :func:`by_traffic`, but broadcasts count as called after all others, as they wait in a queue of their
    own.

    All broadcasts have the same root here. With NCCL_ALLGATHERV_ENABLE=0, broadcasts do not wait.
    """
    if communicator.environment.number("NCCL_ALLGATHERV_ENABLE", 1) == 0:
        return by_traffic(communicator, tasks)

    def late(task: CollectiveTask) -> tuple[int, bool, int]:
        waits = task.request.collective is Collective.Broadcast and task.request.configuration is None
        return _bin(task.traffic_bytes), waits, task.place

    return sorted(tasks, key=late, reverse=True)


def _bin(traffic_bytes: int) -> int:
    """The bin of a traffic, 1 KiB to 1 GiB: a float with two bits after the leading one.

    Source: u32fpEncode, src/include/bitops.h.
    """
    units = min(traffic_bytes, 1 << 30) >> 10
    log2 = max(units, 1).bit_length() - 1
    if log2 < 2:
        return units & 3
    return (log2 - 1) << 2 | (units >> (log2 - 2) & 3)


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.22.3"))
class Cells(Scheduler):
    """Tasks of one kind whose traffic differs by less than a factor of four are chosen together, then distributed in
    cells.
    """

    kernel = Batches

    def __call__(self, chooser: Chooser, tasks: list[CollectiveTask]) -> Kernels:
        communicator = chooser.communicator
        captured, aside = in_graph(tasks), communicator.rules.bypass_first
        ordered = communicator.rules.task_order(communicator, tasks)
        first, ordered = ([], ordered) if aside is None else aside(chooser, ordered)
        kinds: dict[object, list[CollectiveTask]] = {}
        for task in ordered:  # kinds in the order of their largest task, and in each kind the smallest task first
            kinds.setdefault(kind(communicator, task.request), []).insert(0, task)
        pipelined = ceil_div(len(ordered), communicator.channels)
        for same in kinds.values():
            for together in _within_four_times(same):
                chooser.choose(together, pipelined)
        chosen = [task for same in kinds.values() for task in same]
        waiting = sorted(chosen, key=lambda task: _constraints(communicator, task))
        kernels: Kernels = []
        while waiting:
            kernels.append(_dealt_kernel(communicator, waiting, captured))
            waiting = waiting[len(kernels[-1]) :]
        filled = [Batches.of(communicator, kernel) for kernel in kernels]
        if not captured:
            Batches(communicator).check_ring(sum(each.in_ring(each.batches, each.filled_bytes) for each in filled))
        return first + kernels


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN_MOVED(since="2.31.2"))
class CellsWithinCtas(Cells):
    """As :class:`Cells`, with the fewest and the most blocks of a collective as limits of every bound."""

    def __call__(self, chooser: Chooser, tasks: list[CollectiveTask]) -> Kernels:
        return super().__call__(_WithinCtas(chooser), tasks)


class _WithinCtas:
    """A chooser whose bounds stay within the communicator's CTAs."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self.communicator, self.beside_messages = chooser.communicator, chooser.beside_messages

    def choose(self, tasks: Sequence[CollectiveTask], pipelined: int = 1, preset_channels: int = 0) -> None:
        self._chooser.choose(tasks, pipelined, preset_channels)
        for task in tasks:
            least, most = bound_ctas(task.call(self.communicator))
            task.bound = min(max(least, task.bound), most)

    def bind(self, task: CollectiveTask) -> None:
        self._chooser.bind(task)

    def register(self, task: CollectiveTask) -> None:
        self._chooser.register(task)

    def path_of(self, tasks: Sequence[CollectiveTask]) -> NonClassicPath | None:
        return self._chooser.path_of(tasks)


def _within_four_times(tasks: list[CollectiveTask]) -> Iterator[list[CollectiveTask]]:
    """Runs of tasks with less than four times the traffic of their first one; a configured call is a run of its own."""
    while tasks:
        least = tasks[0].traffic_bytes
        ends = (i for i, task in enumerate(tasks) if task.traffic_bytes >= 4 * least or (i and _parts(tasks, i)))
        end = next(ends, len(tasks))
        yield tasks[:end]
        tasks = tasks[end:]


def _parts(tasks: Sequence[CollectiveTask], place: int) -> bool:
    """Whether a task and the one before it stay apart because one of them has a configuration of its own."""
    return any(task.request.configuration and task.request.configuration.alone for task in tasks[place - 1 : place + 1])


@COUNTED_TRAFFIC_RULES(
    nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.23.4"), nccl.SCHEDULE_COLL_TASKS_TO_PLAN_MOVED(since="2.31.2")
)
def at_least_the_minimum_each(traffic: int, least: int) -> int:
    """A task counts with at least the least traffic of a channel."""
    return max(traffic, least)


@COUNTED_TRAFFIC_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.22.3"))
def unchanged(traffic: int, least: int) -> int:
    """A task counts with its own traffic."""
    return traffic


def _constraints(communicator: Comm, task: CollectiveTask) -> tuple[bool, bool]:
    """Sort key of tasks before they are distributed: whether the network takes part, and NVLS's channels are used."""
    call = task.call(communicator)
    return call.like_collnet, call.like_nvls


def _dealt_kernel(communicator: Comm, waiting: list[CollectiveTask], captured: bool) -> list[CollectiveTask]:
    """The tasks that one kernel's arguments hold, each with its channels."""
    rules, batches = communicator.rules, Batches(communicator, captured)
    estimated = batches.estimate(waiting)
    together = next((i for i in range(1, estimated) if _parts(waiting, i)), estimated)
    planned = [(task, cells_of(task.call(communicator))) for task in waiting[:together]]
    per_channel = _per_channel(communicator, planned)
    before, place = None, ChannelPosition()
    for task, cells in planned:
        collnet, nvls = constraints = _constraints(communicator, task)
        if constraints != before:
            before, place = constraints, ChannelPosition()
        if collnet:
            task.share(range(task.bound))
        else:
            # after a task whose first channel was full, the next one began on the last channel but one
            if place.channel >= cells.channels:
                raise BadInput(
                    f"NCCL {communicator.release.name} gives {task.request.collective.name} of {task.nbytes} bytes to "
                    f"no channel, and {NOT_DONE}: put fewer calls in the group"
                )
            shares, place = rules.channel_split.in_group(cells, task.work_bytes, per_channel[nvls], place)
            size_bytes = task.request.device_dtype.size_bytes
            task.deal((channel, share_bytes // size_bytes) for channel, share_bytes in shares.items())
        if not batches.fits(len(task.parts), task):
            break
        batches.add(task)
    if not batches.tasks:
        raise BadInput(Batches.TOO_SMALL)
    return batches.tasks


def _per_channel(communicator: Comm, planned: Sequence[tuple[CollectiveTask, TrafficCells]]) -> dict[bool, int]:
    """The traffic that every channel should get, for channels of NVLS and for the others, without tasks in which the
    network takes part."""
    rules, shares = communicator.rules, {}
    for nvls in (False, True):
        here = [(task, cells) for task, cells in planned if _constraints(communicator, task) == (False, nvls)]
        if not here:
            continue
        _, cells = here[0]
        traffic = sum(rules.counted_traffic(task.work_bytes * each.per_byte, each.least) for task, each in here)
        bound = min(sum(task.bound for task, _ in here), cells.channels)
        even = np.array([traffic // bound], np.uint64)
        shares[nvls] = int(rules.traffic_per_channel(even, cells.least, cells.align_bytes)[0])
    return shares


TOTAL_RULES: Registry[Callable[[CollectiveTask], int]] = Registry()
SHARE_RULES: Registry[Callable[[Comm, bool], int]] = Registry()


@TOTAL_RULES(nccl.TASK_APPEND(since="2.18.3"))
def whole_bytes(task: CollectiveTask) -> int:
    """nBytes of the task."""
    return task.nbytes


@TOTAL_RULES(nccl.TASK_APPEND(since="2.18.1"))
def bytes_per_rank(task: CollectiveTask) -> int:
    """The bytes of the data; per rank, if every rank has its own."""
    return task.work_bytes


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.18.1"))
class LeastLoaded(Scheduler):
    """Consecutive tasks of one kind are chosen together; each gets, by its size, some of the least loaded channels."""

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
                    total = (total - task.nbytes) % 2**64  # a size_t, from which more may be subtracted than was added
                else:
                    continue
                break
            kernels.append(kernel.tasks())
            waiting = waiting[len(kernels[-1]) :]
        return kernels


@SHARE_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.19.3"))
def two_mib_per_rank(communicator: Comm, network: bool) -> int:
    """2 MiB per rank, for at most 16 ranks; 256 KiB if the network can do the call."""
    limits = communicator.release.limits
    if network:
        return given(
            limits.aggregated_bytes_per_channel_with_collnet, "limits.aggregated_bytes_per_channel_with_collnet"
        )
    most = min(given(limits.aggregated_ranks, "limits.aggregated_ranks"), communicator.ranks)
    return given(limits.aggregated_bytes_per_channel_and_rank, "limits.aggregated_bytes_per_channel_and_rank") * most


@SHARE_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.18.1"))
def unlimited(communicator: Comm, network: bool) -> int:
    """No limit (sic): an unset NCCL_AGG_CHANNEL_SIZE is -2, which NCCL keeps as a size_t."""
    return as_size_t(-2)


def _bytes_per_channel(communicator: Comm, total: int, network: bool) -> int:
    """The largest number of bytes for a channel, which is halved as long as some channels would have no work; the
    product may wrap around.

    ``network``: whether CollNet can do the call, picked or not.
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


def _channels_to_choose_from(communicator: Comm, task: CollectiveTask, together: list[CollectiveTask]) -> int:
    """Number of channels to choose from; a NVLSTree on its own chooses from the other algorithms' channels (sic)."""
    alone_in_tree = len(together) == 1 and task.algo_proto[0] is Algorithm.NVLSTree
    like_nvls = task.call(communicator).like_nvls and not alone_in_tree
    return communicator.nvls_channels if like_nvls else communicator.coll_channels


def least_loaded(loads: Sequence[int], wanted: int, most: int) -> list[int]:
    """The ``wanted`` channels with the least load.

    The list begins with the first ``wanted`` channels. Each later channel replaces the most loaded channel of the list
    (of several, the first), if its own load is smaller.
    """
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
    """The sum over all tasks that were chosen together, and over all ranks (sic)."""
    return task.together_bytes


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.20.5"))
class EqualBytes(Scheduler):
    """Tasks are chosen together by kind, in order of size, and cut so that all channels get the same number of bytes.

    Then come tasks in which the network takes part, each on all its channels, and last tasks whose channels a tuner
    plugin named, on the least loaded channels.
    """

    kernel = Works

    def __call__(self, chooser: Chooser, tasks: list[CollectiveTask]) -> Kernels:
        communicator = chooser.communicator

        # sorted with the largest first; of equal ones, the last comes first
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


def _fill(communicator: Comm, task: CollectiveTask, loads: list[int], most: int) -> None:
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
    """All channels of the task's bound work on all of it together."""
    channels = range(min(task.bound, len(loads)))
    task.share(channels)
    for channel in channels:
        loads[channel] += ceil_div(task.elements, len(channels)) * task.request.device_dtype.size_bytes


def _spread(communicator: Comm, task: CollectiveTask, loads: list[int]) -> None:
    """Gives the least loaded channels even parts, in whole multiples of what a block moves at once."""
    at_once = elements_at_once(task.call(communicator), task.threads)
    part = ceil_div(ceil_div(task.elements, min(task.bound, len(loads))), at_once) * at_once
    left, task.chunk_channels, counts = task.elements, ceil_div(task.elements, part), []
    for channel in least_loaded(loads, task.chunk_channels, len(loads)):
        counts.append((channel, min(part, left)))
        loads[channel] += min(part, left) * task.request.device_dtype.size_bytes
        left -= part
    task.deal(counts)

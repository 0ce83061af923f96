"""The scheduler that deals out cells of traffic."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.base.numerics import ceil_div
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.call_kind import NonClassicPath
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules.launch import ChannelPosition, TrafficCells, cells_of, ctas
from tuner.emulator.rules.schedule.scheduler import RULES, Batches, Scheduler
from tuner.emulator.rules.schedule.task import Chooser, CollectiveTask, Kernels, between, in_graph, kind

ORDER_RULES: Registry[Callable[[Communicator, list[CollectiveTask]], list[CollectiveTask]]] = Registry()
COUNTED_TRAFFIC_RULES: Registry[Callable[[int, int], int]] = Registry()
NOT_DONE = "does not do it (sic)"


@ORDER_RULES(nccl.TASK_COLL_SORTER_INSERT(since="2.22.3"))
def by_traffic(_communicator: Communicator, tasks: list[CollectiveTask]) -> list[CollectiveTask]:
    """The largest traffic first, roughly: four bins to a power of two, in a bin the last call first."""
    return sorted(tasks, key=lambda task: (_bin(task.traffic_bytes), task.place), reverse=True)


@ORDER_RULES(nccl.PREPARE_TASKS(since="2.29.2"), nccl.PREPARE_TASKS_MOVED(since="2.31.2"))
def by_traffic_broadcasts_last(communicator: Communicator, tasks: list[CollectiveTask]) -> list[CollectiveTask]:
    """As :func:`by_traffic`, but broadcasts count as called after all others: they wait in a queue of their own.

    All broadcasts have the same root here. They do not wait with NCCL_ALLGATHERV_ENABLE=0.
    """
    if communicator.environment.number("NCCL_ALLGATHERV_ENABLE", 1) == 0:
        return by_traffic(communicator, tasks)

    def late(task: CollectiveTask) -> tuple[int, bool, int]:
        return _bin(task.traffic_bytes), task.request.collective is Collective.Broadcast, task.place

    return sorted(tasks, key=late, reverse=True)


def _bin(traffic_bytes: int) -> int:
    """1 KiB to 1 GiB as a float of two bits after the leading one. Source: u32fpEncode, src/include/bitops.h."""
    units = min(traffic_bytes, 1 << 30) >> 10
    log2 = max(units, 1).bit_length() - 1
    if log2 < 2:
        return units & 3
    return (log2 - 1) << 2 | (units >> (log2 - 2) & 3)


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.22.3"))
class Cells(Scheduler):
    """Chosen together where kinds agree and traffic differs by less than four, then dealt out in cells of traffic."""

    kernel = Batches

    def __call__(self, chooser: Chooser, tasks: list[CollectiveTask]) -> Kernels:
        communicator = chooser.communicator
        captured, aside = in_graph(tasks), communicator.rules.bypass_first
        ordered = communicator.rules.task_order(communicator, tasks)
        first, ordered = ([], ordered) if aside is None else aside(chooser, ordered)
        kinds: dict[object, list[CollectiveTask]] = {}
        for task in ordered:  # kinds in the order of their largest, in each the smallest first
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
    """As :class:`Cells`; the fewest and the most blocks of a collective hold for every bound."""

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
            low, high = ctas(self.communicator, task.request)
            task.bound = between(low, task.bound, high)

    def bind(self, task: CollectiveTask) -> None:
        self._chooser.bind(task)

    def register(self, task: CollectiveTask) -> None:
        self._chooser.register(task)

    def path_of(self, tasks: Sequence[CollectiveTask]) -> NonClassicPath | None:
        return self._chooser.path_of(tasks)


def _within_four_times(tasks: list[CollectiveTask]) -> Iterator[list[CollectiveTask]]:
    """Runs in which all have less than four times the traffic of the first."""
    while tasks:
        end = next((i for i, task in enumerate(tasks) if task.traffic_bytes >= 4 * tasks[0].traffic_bytes), len(tasks))
        yield tasks[:end]
        tasks = tasks[end:]


@COUNTED_TRAFFIC_RULES(
    nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.23.4"), nccl.SCHEDULE_COLL_TASKS_TO_PLAN_MOVED(since="2.31.2")
)
def at_least_the_minimum_each(traffic: int, least: int) -> int:
    """A task counts with the least traffic of a channel at least."""
    return max(traffic, least)


@COUNTED_TRAFFIC_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.22.3"))
def unchanged(traffic: int, least: int) -> int:
    """A task counts with its own traffic."""
    return traffic


def _constraints(communicator: Communicator, task: CollectiveTask) -> tuple[bool, bool]:
    """What tasks are put together by before they are dealt out: by the network's part, then by NVLS's channels."""
    call = task.call(communicator)
    return call.like_collnet, call.like_nvls


def _dealt_kernel(communicator: Communicator, waiting: list[CollectiveTask], captured: bool) -> list[CollectiveTask]:
    """As many tasks as one kernel's arguments hold, each with its channels."""
    rules, batches = communicator.rules, Batches(communicator, captured)
    planned = [(task, cells_of(task.call(communicator))) for task in waiting[: batches.estimate(waiting)]]
    per_channel = _per_channel(communicator, planned)
    before, place = None, ChannelPosition()
    for task, cells in planned:
        collnet, nvls = constraints = _constraints(communicator, task)
        if constraints != before:
            before, place = constraints, ChannelPosition()
        if collnet:
            task.share(range(task.bound))
        else:
            if place.channel >= cells.channels:  # after one whose first channel was full, it began on the last but one
                raise BadInput(
                    f"NCCL {communicator.release.name} deals {task.request.collective.name} of {task.nbytes} bytes out "
                    f"to no channel, and {NOT_DONE}; valid: a group of fewer calls"
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


def _per_channel(communicator: Communicator, planned: Sequence[tuple[CollectiveTask, TrafficCells]]) -> dict[bool, int]:
    """The traffic that every channel should get: of those of NVLS, and of the others, without the network's part."""
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

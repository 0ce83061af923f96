"""How the collectives of one group are put together, dealt out to channels and split into kernels.

A scheduler takes the tasks in the order of the calls and returns the kernels in the order of their launch. It asks a
``Chooser`` for the algorithm, protocol and threads of the tasks that NCCL looks at together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Protocol as Interface

import numpy as np

from tuner.cfloat import as_size_t, ceil_div
from tuner.communicator import Communicator
from tuner.errors import BadInput
from tuner.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.registry import Registry
from tuner.rules import launch
from tuner.rules.launch import Cell
from tuner.rules.request import FP8, Request

UNSIGNED = {DataType.int8: DataType.uint8, DataType.int32: DataType.uint32, DataType.int64: DataType.uint64}
SYMMETRIC_TYPES = (DataType.float32, DataType.float16, DataType.bfloat16, *FP8)
# Space in a kernel's arguments.  src/include/device.h, v2.28.9-1
BATCH_BYTES = 16  # ncclDevWorkBatch
ARGUMENT_BYTES = 4096  # ncclMaxKernelArgsSize
ARGUMENT_HEAD_BYTES = 32  # ncclDevKernelArgs


@dataclass(slots=True, eq=False)
class Task:
    """One collective on its way through a scheduler; what is decided about it is filled in on the way."""

    place: int  # among the calls
    request: Request
    nbytes: int
    ranks: int
    cell: Cell = (Algorithm.Ring, Protocol.Simple)
    threads: int = 0
    bound: int = 0  # the most channels
    together_bytes: int = 0  # nBytes of all that were chosen together
    channels: list[int] = field(default_factory=list)

    @property
    def work_bytes(self) -> int:
        """Bytes of the count, per rank where every rank has its own."""
        return self.nbytes // (self.ranks if self.request.spreads else 1)

    @property
    def traffic_bytes(self) -> int:
        return self.work_bytes * self.request.traffic_per_byte(self.ranks)

    @property
    def elements(self) -> int:
        return self.work_bytes // self.request.device_dtype.size_bytes


class Chooser(Interface):
    """What a scheduler needs to know."""

    communicator: Communicator

    def choose(self, tasks: Sequence[Task], pipelined: int = 1, preset_channels: int = 0) -> None:
        """Fills in what tasks chosen together get: cell, threads, bound, together_bytes."""

    def bound(self, cell: Cell, nbytes: int) -> int:
        """The most channels of one collective of this size."""


Kernels = list[list[Task]]
ScheduleRule = Callable[[Chooser, list[Task]], Kernels]
OrderRule = Callable[[list[Task]], list[Task]]
RULES: Registry[ScheduleRule] = Registry()
ORDER_RULES: Registry[OrderRule] = Registry()
DEVICE_OP_RULES: Registry[Callable[[Op], Op]] = Registry()
FUNCTION_RULES: Registry[Callable[[Task, Op], DataType]] = Registry()
TOTAL_RULES: Registry[Callable[[Task], int]] = Registry()
SHARE_RULES: Registry[Callable[[Communicator], int]] = Registry()
ESTIMATE_RULES: Registry[Callable[[Task], int]] = Registry()
Dealt = tuple[list[int], int, int]  # channels, and the next channel with the traffic it already has
DealRule = Callable[[Task, int, int, int, int, int, int], Dealt]
DEAL_RULES: Registry[DealRule] = Registry()
SYMMETRIC_RULES: Registry[Callable[[Request], bool]] = Registry()
COUNTED_TRAFFIC_RULES: Registry[Callable[[int, int], int]] = Registry()


def _rule(communicator: Communicator, kind: str) -> str:
    (name,) = communicator.release.rules(kind)
    return name


# --- what counts as the same ---


@DEVICE_OP_RULES
def minimum_is_maximum(op: Op) -> Op:
    """The device's operation: minimum and maximum are one, told apart by an argument."""
    return Op.max if op is Op.min else op


@DEVICE_OP_RULES
def each_operation(op: Op) -> Op:
    return op


def device_op(communicator: Communicator, request: Request) -> Op:
    name = _rule(communicator, "device_op")
    return Op.sum if request.moves_only else DEVICE_OP_RULES[name](request.op)


def kind(communicator: Communicator, request: Request) -> tuple[Collective, DataType, Op]:
    """Collectives of one kind may be looked at together."""
    return request.collective, request.device_dtype, device_op(communicator, request)


@FUNCTION_RULES
def of_each_type(task: Task, op: Op) -> DataType:
    return task.request.device_dtype


@FUNCTION_RULES
def of_unsigned_types(task: Task, op: Op) -> DataType:
    """Sums and products do not care about the sign; minimum and maximum are told to, but not in the switch."""
    dtype = task.request.device_dtype
    indifferent = op in (Op.sum, Op.prod) or (op is Op.max and task.cell[0] not in launch.NVLS)
    return UNSIGNED.get(dtype, dtype) if indifferent and not task.request.moves_only else dtype


@FUNCTION_RULES
def of_unsigned_types_and_averages(task: Task, op: Op) -> DataType:
    dtype = task.request.device_dtype
    return UNSIGNED.get(dtype, dtype) if op is Op.avg else of_unsigned_types(task, op)


def function(communicator: Communicator, task: Task) -> tuple[object, ...]:
    """The device function that runs a task. Source: src/device/generate.py, v2.28.9-1, equivalent_primary."""
    op = device_op(communicator, task.request)
    dtype = FUNCTION_RULES[_rule(communicator, "function")](task, op)
    return task.request.collective, op, dtype, task.cell


# --- up to 2.19: the least loaded channels ---


@TOTAL_RULES
def whole_bytes(task: Task) -> int:
    return task.nbytes


@TOTAL_RULES
def bytes_per_rank(task: Task) -> int:
    return task.work_bytes


@RULES
def least_loaded(chooser: Chooser, tasks: list[Task]) -> Kernels:
    """Neighbours of one kind are chosen together, each gets channels by its size: those with the fewest bytes so far.

    Source: scheduleCollTasksToPlan and addCollToPlan, src/enqueue.cc, v2.18.3-1.
    """
    communicator = chooser.communicator
    total = sum(map(TOTAL_RULES[_rule(communicator, "total")], tasks))
    kernels: Kernels = []
    waiting = list(tasks)
    while waiting:
        kernel = _Works(communicator)
        loads = [0] * communicator.release.limit("max_channels")
        per_channel = _bytes_per_channel(communicator, total)
        for together in _neighbours(communicator, waiting):
            _choose_neighbours(chooser, together, per_channel)
            for task in together:
                if not kernel.fits(task.bound):
                    break
                task.channels = _least_loaded(loads, task.bound, _channels_to_choose_from(communicator, task, together))
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


@SHARE_RULES
def two_mib_per_rank(communicator: Communicator) -> int:
    limit = communicator.release.limit
    return limit("aggregated_bytes_per_channel_and_rank") * min(limit("aggregated_ranks"), communicator.ranks)


@SHARE_RULES
def endless(communicator: Communicator) -> int:
    """sic: NCCL_AGG_CHANNEL_SIZE is -2 where unset, and that is kept as a size_t."""
    return as_size_t(-2)


def _bytes_per_channel(communicator: Communicator, total: int) -> int:
    """The most a channel is given, halved while that leaves channels without work; the product wraps."""
    each = SHARE_RULES[_rule(communicator, "share")](communicator)
    least = communicator.release.limit("min_aggregated_bytes_per_channel")
    while total < as_size_t(each * communicator.coll_channels) and each > least:
        each //= 2
    return each


def _neighbours(communicator: Communicator, tasks: Iterable[Task]) -> Iterator[list[Task]]:
    for _, together in groupby(tasks, lambda task: kind(communicator, task.request)):
        yield list(together)


def _choose_neighbours(chooser: Chooser, together: list[Task], per_channel: int) -> None:
    if len(together) == 1:
        chooser.choose(together)
        return
    most = chooser.communicator.coll_channels
    others = together[1:]  # sic
    wanted = sum(_between(1, ceil_div(task.work_bytes, per_channel), most) for task in others)
    preset = min(most, wanted)
    chooser.choose(together, ceil_div(wanted, preset), preset)
    like_nvls = launch.like_nvls(chooser.communicator, together[0].cell)
    for task in together:
        limit = chooser.communicator.nvls_channels if like_nvls else most
        task.bound = _between(1, ceil_div(task.nbytes, per_channel), limit)


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))


def _channels_to_choose_from(communicator: Communicator, task: Task, together: list[Task]) -> int:
    """sic: a NVLSTree on its own chooses from the other algorithms' channels."""
    alone_in_tree = len(together) == 1 and task.cell[0] is Algorithm.NVLSTree
    like_nvls = launch.like_nvls(communicator, task.cell) and not alone_in_tree
    return communicator.nvls_channels if like_nvls else communicator.coll_channels


def _least_loaded(loads: Sequence[int], wanted: int, most: int) -> list[int]:
    """The ``wanted`` channels with the least load; a later channel replaces the first of the most loaded so far."""
    least = list(range(wanted))
    for channel in range(wanted, most):
        heaviest = max(range(wanted), key=lambda i: loads[least[i]])
        if loads[channel] < loads[least[heaviest]]:
            least[heaviest] = channel
    return sorted(least)


class _Works:
    """A kernel up to 2.21: works of up to nine elements in a queue of each channel, as many as half a ring holds."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        depth = communicator.environment.number("NCCL_WORK_FIFO_DEPTH", communicator.release.limit("work_fifo_depth"))
        if depth & (depth - 1):
            depth = communicator.release.limit("work_fifo_depth")
        self.left = depth // 2
        self._tails: dict[int, tuple[object, int]] = {}
        self._tasks: list[Task] = []

    def fits(self, channels: int) -> bool:
        return self.left >= channels

    def add(self, task: Task) -> None:
        runs = function(self.communicator, task), task.threads
        most = self.communicator.release.limit("colls_per_batch")
        for channel in task.channels:
            tail, elements = self._tails.get(channel, (None, most))
            full = tail != runs or elements == most
            self.left -= full
            self._tails[channel] = (runs, 1 if full else elements + 1)
        self._tasks.append(task)

    def tasks(self) -> list[Task]:
        if not self._tasks:
            raise BadInput("NCCL_WORK_FIFO_DEPTH: too small for one collective; valid: powers of two from 128")
        return self._tasks


# --- 2.20 and 2.21: equal bytes ---


@ESTIMATE_RULES
def own_bytes(task: Task) -> int:
    return task.work_bytes


@ESTIMATE_RULES
def bytes_together(task: Task) -> int:
    """sic: of all that were chosen together, ranks included."""
    return task.together_bytes


@RULES
def equal_bytes(chooser: Chooser, tasks: list[Task]) -> Kernels:
    """Sorted by kind and size, chosen together by kind, and cut so that every channel gets as many bytes.

    Source: taskAppend, scheduleCollTasksToPlan and addCBDCollToPlan, src/enqueue.cc, v2.21.5-1.
    """
    communicator = chooser.communicator
    # Sorted greatest first; of equal ones the last comes first.
    ordered = sorted(tasks[::-1], key=lambda task: (*kind(communicator, task.request), task.elements), reverse=True)
    usable = 1
    for together in _neighbours(communicator, ordered):
        chooser.choose(together)
        for task in together:
            task.bound = chooser.bound(task.cell, task.nbytes)
            like_nvls = launch.like_nvls(communicator, task.cell)
            usable = max(usable, communicator.nvls_channels if like_nvls else communicator.coll_channels)
    usable = min(usable, sum(task.bound for task in ordered))
    estimated = ESTIMATE_RULES[_rule(communicator, "work_estimate")]

    kernels: Kernels = []
    while ordered:
        kernel = _Works(communicator)
        total = sum(task.work_bytes for task in ordered)
        align = communicator.release.limit("part_alignment_bytes")
        most = ceil_div(ceil_div(total, usable), align) * align
        loads = [0] * usable
        for task in ordered:
            if not kernel.fits(ceil_div(estimated(task) * usable, total)):
                break
            task.channels = _filled(communicator, task, loads, most)
            kernel.add(task)
        kernels.append(kernel.tasks())
        ordered = ordered[len(kernels[-1]) :]
    return kernels


def _filled(communicator: Communicator, task: Task, loads: list[int], most: int) -> list[int]:
    """Fills channels up to ``most`` bytes one after the other, in whole multiples of what a block moves at once."""
    size = task.request.device_dtype.size_bytes
    at_once = launch.elements_at_once(communicator, task.request, task.cell, task.threads)
    left, channels = task.elements, []
    for channel, load in enumerate(loads):
        if load >= most:
            continue
        if left == 0:
            break
        wanted = ceil_div(min(most - load, left * size), size)
        part = min(ceil_div(wanted, at_once) * at_once, left)
        left -= part
        loads[channel] += part * size
        channels.append(channel)
    return channels


# --- 2.22 and later: cells of traffic ---


@ORDER_RULES
def by_traffic(tasks: list[Task]) -> list[Task]:
    """The largest traffic first, roughly: four bins to a power of two, in a bin the last call first.

    Source: ncclTaskCollSorterInsert, src/include/comm.h, v2.28.9-1.
    """
    return sorted(tasks[::-1], key=lambda task: _bin(task.traffic_bytes), reverse=True)


@ORDER_RULES
def by_traffic_broadcasts_last(tasks: list[Task]) -> list[Task]:
    """As :func:`by_traffic`, but broadcasts count as called after all others: they wait in a queue of their own.

    Source: ncclPrepareTasks, src/enqueue.cc, v2.29.2-1; all broadcasts have the same root here.
    """
    return by_traffic(sorted(tasks, key=lambda task: task.request.collective is Collective.Broadcast))


def _bin(traffic_bytes: int) -> int:
    """1 KiB to 1 GiB as a float of two bits after the leading one. Source: u32fpEncode, src/include/bitops.h."""
    units = min(traffic_bytes, 1 << 30) >> 10
    log2 = max(units, 1).bit_length() - 1
    if log2 < 2:
        return units & 3
    return (log2 - 1) << 2 | (units >> (log2 - 2) & 3)


@SYMMETRIC_RULES
def gathers_and_sums(request: Request) -> bool:
    """AllGather, and sums of floats of up to 32 bits."""
    summed = request.op is Op.sum and request.dtype in SYMMETRIC_TYPES
    reduced = request.collective in (Collective.AllReduce, Collective.ReduceScatter) and summed
    return reduced or request.collective is Collective.AllGather


@SYMMETRIC_RULES
def gathers_sums_and_averages(request: Request) -> bool:
    return gathers_and_sums(replace(request, op=Op.sum) if request.op is Op.avg else request)


def _symmetric_last(communicator: Communicator, ordered: list[Task]) -> list[Task]:
    """What a symmetric kernel could do is set aside by kind, and comes back behind the rest, smallest first.

    It comes back as no buffer is registered. sic: smallest first here is largest first where tasks are put together.
    Source: ncclMakeSymmetricTaskList, src/scheduler/symmetric_sched.cc, v2.29.2-1.
    """
    names = communicator.release.rules("symmetric")
    if not names or communicator.nodes > 1 or not communicator.direct_nvlink:
        return ordered
    most = communicator.release.limit("symmetric_bytes")
    aside = [task for task in ordered if SYMMETRIC_RULES[names[0]](task.request) and task.nbytes < most]
    kinds: dict[object, list[Task]] = {}
    for task in aside:
        kinds.setdefault(kind(communicator, task.request), []).insert(0, task)
    places = {task.place for task in aside}
    return [task for task in ordered if task.place not in places] + [task for same in kinds.values() for task in same]


@RULES
def cells(chooser: Chooser, tasks: list[Task]) -> Kernels:
    """Chosen together where kinds agree and traffic differs by less than four, then dealt out in cells of traffic.

    Source: ncclPrepareTasks and scheduleCollTasksToPlan, src/enqueue.cc, v2.28.9-1.
    """
    communicator = chooser.communicator
    ordered = ORDER_RULES[_rule(communicator, "order")](tasks)
    ordered = _symmetric_last(communicator, ordered)
    kinds: dict[object, list[Task]] = {}
    for task in ordered:  # kinds in the order of their largest, in each the smallest first
        kinds.setdefault(kind(communicator, task.request), []).insert(0, task)
    pipelined = ceil_div(len(tasks), communicator.channels)
    for same in kinds.values():
        for together in _within_four_times(same):
            chooser.choose(together, pipelined)
    chosen = [task for same in kinds.values() for task in same]
    waiting = sorted(chosen, key=lambda task: launch.like_nvls(communicator, task.cell))
    kernels: Kernels = []
    while waiting:
        kernels.append(_dealt_kernel(communicator, waiting))
        waiting = waiting[len(kernels[-1]) :]
    return kernels


@RULES
def cells_within_ctas(chooser: Chooser, tasks: list[Task]) -> Kernels:
    """As :func:`cells`; the fewest and the most blocks of a collective hold for every bound.

    Source: src/enqueue/enqueue.cc, v2.31.2-1.
    """
    return cells(_WithinCtas(chooser), tasks)


class _WithinCtas:
    """A chooser whose bounds stay within the communicator's CTAs."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self.communicator = chooser.communicator

    def choose(self, tasks: Sequence[Task], pipelined: int = 1, preset_channels: int = 0) -> None:
        self._chooser.choose(tasks, pipelined, preset_channels)
        low, high = self.communicator.ctas
        for task in tasks:
            task.bound = _between(low, task.bound, high)

    def bound(self, cell: Cell, nbytes: int) -> int:
        return self._chooser.bound(cell, nbytes)


def _within_four_times(tasks: list[Task]) -> Iterator[list[Task]]:
    """Runs in which all have less than four times the traffic of the first."""
    while tasks:
        end = next((i for i, task in enumerate(tasks) if task.traffic_bytes >= 4 * tasks[0].traffic_bytes), len(tasks))
        yield tasks[:end]
        tasks = tasks[end:]


@COUNTED_TRAFFIC_RULES
def at_least_the_least(traffic: int, least: int) -> int:
    return max(traffic, least)


@COUNTED_TRAFFIC_RULES
def as_it_is(traffic: int, least: int) -> int:
    return traffic


def _dealt_kernel(communicator: Communicator, waiting: list[Task]) -> list[Task]:
    """As many tasks as one kernel's arguments hold, each with its channels."""
    batches = _Batches(communicator)
    planned = batches.estimate(waiting)
    limit = communicator.release.limit
    least, align = limit("min_traffic_per_channel_bytes"), limit("cell_alignment_bytes")
    counted = COUNTED_TRAFFIC_RULES[_rule(communicator, "counted_traffic")]
    most = {False: communicator.channels, True: communicator.nvls_channels}
    traffic, bound = {False: 0, True: 0}, {False: 0, True: 0}
    for task in waiting[:planned]:
        nvls = launch.like_nvls(communicator, task.cell)
        traffic[nvls] += counted(task.traffic_bytes * _ll_factor(communicator, task), least)
        bound[nvls] = min(bound[nvls] + task.bound, most[nvls])
    share = launch.TRAFFIC_RULES[_rule(communicator, "traffic_per_channel")]
    deal = DEAL_RULES[_rule(communicator, "deal")]
    nvls_before, per_channel, channel, loaded = None, 0, 0, 0
    for task in waiting[:planned]:
        nvls = launch.like_nvls(communicator, task.cell)
        if nvls != nvls_before:
            even = np.array([traffic[nvls] // bound[nvls]], np.uint64)
            nvls_before, per_channel, channel, loaded = nvls, int(share(even, least, align)[0]), 0, 0
        per_byte = task.request.traffic_per_byte(communicator.ranks) * _ll_factor(communicator, task)
        channels, channel, loaded = deal(task, per_byte, per_channel, most[nvls], least, channel, loaded)
        if not batches.fits(len(channels)):
            break
        task.channels = channels
        batches.add(task)
    if not batches.tasks:
        raise BadInput("NCCL_WORK_FIFO_BYTES, NCCL_WORK_ARGS_BYTES: too small for one collective; NCCL never returns")
    return batches.tasks


def _ll_factor(communicator: Communicator, task: Task) -> int:
    return communicator.release.limit("ll_traffic") if task.cell[1] is Protocol.LL else 1


@DEAL_RULES
def cells_of_the_least_traffic(
    task: Task, per_byte: int, per_channel: int, most: int, least: int, channel: int, loaded: int
) -> Dealt:
    """Cells of the least traffic, the first channel filled up to its share."""
    cell_bytes = ceil_div(ceil_div(least, per_byte), 16) * 16
    count, traffic = ceil_div(task.work_bytes, cell_bytes), cell_bytes * per_byte
    low = ceil_div(per_channel - loaded, traffic)
    used, channel, low, high = _cut(count, traffic, low, per_channel, most, channel)
    return _next(used, channel, low * traffic, high * traffic, 0, loaded, per_channel, most)


@DEAL_RULES
def cells_of_16_bytes(
    task: Task, per_byte: int, per_channel: int, most: int, least: int, channel: int, loaded: int
) -> Dealt:
    """The smallest cells, the first channel given whole cells only; the last cell counts as it is, not whole."""
    count, traffic = ceil_div(task.work_bytes, 16), 16 * per_byte
    low = (per_channel - loaded) // traffic
    used, channel, low, high = _cut(count, traffic, low, per_channel, most, channel)
    missing = (count * 16 - task.work_bytes) * per_byte
    return _next(used, channel, low * traffic, high * traffic, missing, loaded, per_channel, most)


def _cut(count: int, traffic: int, low: int, per_channel: int, most: int, channel: int) -> tuple[int, int, int, int]:
    """How many channels ``count`` cells get, the first channel, and the cells of the first and of the last."""
    each = min(count, ceil_div(per_channel, traffic))
    low = count if channel + 1 == most else min(count, low)
    middle, high = divmod(count - low, each)
    if channel + (low != 0) + middle + (high != 0) > most:  # what does not fit is spread over the rest
        middle = most - channel - 2
        each, rest = divmod(count - low, middle + 1)
        high = each + rest
    if high == 0 and middle != 0:
        high, middle = each, middle - 1
    if low == 0:  # the first channel is skipped
        channel += 1
        low, high, middle = (high, 0, 0) if middle == 0 else (each, high, middle - 1)
    return (low != 0) + middle + (high != 0), channel, low, high


def _next(
    used: int, first: int, low: int, high: int, missing: int, loaded: int, per_channel: int, most: int
) -> Dealt:
    """The channels, and where the next collective begins; ``low`` and ``high``: traffic of the first and the last."""
    channels = list(range(first, first + used))
    loaded = high - missing if high else loaded + low - missing
    if loaded >= per_channel and channels[-1] + 1 != most:
        return channels, channels[-1] + 1, 0
    return channels, channels[-1], loaded


class _Batches:
    """A kernel from 2.22 on: batches of works by channel, in the kernel's arguments or half of a ring of bytes."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        limit, number = communicator.release.limit, communicator.environment.number
        arguments = min(as_size_t(number("NCCL_WORK_ARGS_BYTES", ARGUMENT_BYTES)), ARGUMENT_BYTES)
        ring = number("NCCL_WORK_FIFO_BYTES", limit("work_fifo_bytes"))
        ring = limit("work_fifo_bytes") if ring & (ring - 1) else min(ring, 1 << 30)
        self.argument_bytes, self.ring_bytes = arguments - ARGUMENT_HEAD_BYTES, ring // 2
        self.work_bytes = limit("work_bytes")
        self.batches = 0
        self.tasks: list[Task] = []
        self._tails: dict[int, tuple[object, int, int]] = {}  # function, where the batch starts, bytes in it

    def estimate(self, waiting: Sequence[Task]) -> int:
        """How many tasks NCCL expects to fit, counting four to a batch."""
        for planned in range(len(waiting)):
            if not self._holds(ceil_div(planned, 4), (planned + 1) * self.work_bytes):
                return planned
        return len(waiting)

    def fits(self, channels: int) -> bool:
        return self._holds(self.batches + channels, (len(self.tasks) + 1) * self.work_bytes)

    def _holds(self, batches: int, work_bytes: int) -> bool:
        left = self.argument_bytes - batches * BATCH_BYTES
        return work_bytes <= left or (left >= 0 and work_bytes <= self.ring_bytes)

    def add(self, task: Task) -> None:
        """A channel's batch takes works of one function, 1024 bytes of them, and reaches 64 works far."""
        offset, runs = len(self.tasks) * self.work_bytes, function(self.communicator, task)
        most_bytes = self.communicator.release.limit("batch_bytes")
        for channel in task.channels:
            same, start, filled = self._tails.get(channel, (None, 0, 0))
            new = same != runs or filled + self.work_bytes > most_bytes
            far = offset - start > 63 * self.work_bytes
            if new or far:
                self.batches += 1
                start = offset
            self._tails[channel] = runs, start, self.work_bytes + (0 if new else filled)
        self.tasks.append(task)

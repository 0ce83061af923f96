"""One collective of a group on its way through a scheduler, and which collectives NCCL puts together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from itertools import groupby
from typing import Protocol as Interface

from tuner.base.dataclass import dataclass
from tuner.base.names import AlgoProto, Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.rules.bounds import NVLS
from tuner.emulator.rules.call import RuleCall

UNSIGNED = {DataType.int8: DataType.uint8, DataType.int32: DataType.uint32, DataType.int64: DataType.uint64}


@dataclass(frozen=True, slots=True)
class ChannelPart:
    """One channel's part of a task: ``count`` elements of the device type from ``offset`` on.

    If all channels work on the whole count together, ``count`` and ``offset`` describe the whole.
    """

    channel: int
    offset: int
    count: int


@dataclass(slots=True, eq=False)
class CollectiveTask:
    """A collective on its way through a scheduler, which fills in what it decides."""

    place: int  # index of the call
    request: Request
    nbytes: int
    ranks: int
    algo_proto: AlgoProto = (Algorithm.Ring, Protocol.Simple)
    threads: int = 0
    bound: int = 0  # largest number of channels
    tuned: bool = False  # whether a tuner plugin named its channels
    together_bytes: int = 0  # nBytes of all tasks that were chosen together
    unregistered_bound: int = 0  # largest number of channels if no buffers were registered
    path: NonClassicPath | None = None  # what carries it instead of an algorithm
    together_tuned: int = 0  # the number of channels that a tuner plugin named for all of them; 0 for none
    # Number of channels for which its chunks are computed, if chunks are shared by all channels
    chunk_channels: int = 0
    parts: list[ChannelPart] = field(default_factory=list)  # by the index of the channel within the task

    @property
    def channels(self) -> list[int]:
        """The channels that have a part, in ascending order."""
        return sorted(part.channel for part in self.parts)

    def deal(self, counts: Iterable[tuple[int, int]]) -> None:
        """Gives each channel its count of elements, one after the other."""
        self.parts, offset = [], 0
        for channel, count in counts:
            self.parts.append(ChannelPart(channel, offset, count))
            offset += count

    def share(self, channels: Iterable[int]) -> None:
        """Gives the whole task to these channels together."""
        self.parts = [ChannelPart(channel, 0, self.elements) for channel in channels]

    @property
    def work_bytes(self) -> int:
        """The bytes of the data; per rank, if every rank has its own part."""
        return self.nbytes // self.request.parts(self.ranks)

    @property
    def traffic_bytes(self) -> int:
        """Bytes that the task moves over a channel, as NCCL counts them."""
        return self.work_bytes * self.request.traffic_per_byte(self.ranks)

    def call(self, communicator: Comm) -> RuleCall:
        """The call of only this task, with its algorithm and protocol."""
        return RuleCall(communicator, self.request, self.algo_proto)

    @property
    def elements(self) -> int:
        """The count in elements of the device type."""
        return self.work_bytes // self.request.device_dtype.size_bytes


class Chooser(Interface):
    """The interface of what answers a scheduler's questions."""

    communicator: Comm
    beside_messages: bool  # whether the group also has sends and receives

    def choose(self, tasks: Sequence[CollectiveTask], pipelined: int = 1, preset_channels: int = 0) -> None:
        """Makes one choice for these tasks together, and fills in what each of them gets: cell, threads, bound,
        together_bytes."""

    def bind(self, task: CollectiveTask) -> None:
        """Fills in the largest number of channels of one chosen task, by its own size, and whether a tuner plugin named
        it."""

    def register(self, task: CollectiveTask) -> None:
        """Reduces the most channels of one chosen task to what its registered buffers allow."""

    def path_of(self, tasks: Sequence[CollectiveTask]) -> NonClassicPath | None:
        """What carries these calls of one kind instead of an algorithm; None if an algorithm does."""


Kernels = list[list[CollectiveTask]]
DEVICE_OP_RULES: Registry[Callable[[Op], Op]] = Registry()
FUNCTION_RULES: Registry[Callable[[CollectiveTask, Op], DataType]] = Registry()


@DEVICE_OP_RULES(nccl.HOST_TO_DEV_RED_OP(since="2.19.3"), nccl.HOST_TO_DEV_RED_OP_MOVED(since="2.31.2"))
def minimum_is_maximum(op: Op) -> Op:
    """Minimum and maximum are the same operation of the device, with an argument that says which of them is meant."""
    return Op.max if op is Op.min else op


@DEVICE_OP_RULES(nccl.HOST_TO_DEV_RED_OP(since="2.18.1"))
def each_operation(op: Op) -> Op:
    """Each operation is an operation of the device."""
    return op


def device_op(communicator: Comm, request: Request) -> Op:
    """The operation that the device performs."""
    return Op.sum if request.moves_only else communicator.rules.device_op(request.op)


def kind(communicator: Comm, request: Request) -> tuple[Collective, DataType, Op]:
    """The kind of a collective. NCCL may choose for collectives of one kind together."""
    return request.collective, request.device_dtype, device_op(communicator, request)


@FUNCTION_RULES(nccl.FUNC_INDEX(since="2.18.1"))
def of_each_type(task: CollectiveTask, op: Op) -> DataType:
    """Each data type has its own device function."""
    return task.request.device_dtype


@FUNCTION_RULES(nccl.EQUIVALENT_PRIMARY(since="2.19.3"))
def of_unsigned_types(task: CollectiveTask, op: Op) -> DataType:
    """Sums and products ignore the sign; minimum and maximum have an argument for it, except in the switch."""
    dtype = task.request.device_dtype
    indifferent = op in (Op.sum, Op.prod) or (op is Op.max and task.algo_proto[0] not in NVLS)
    return UNSIGNED.get(dtype, dtype) if indifferent and not task.request.moves_only else dtype


@FUNCTION_RULES(nccl.EQUIVALENT_PRIMARY(since="2.24.3"))
def of_unsigned_types_and_averages(task: CollectiveTask, op: Op) -> DataType:
    """Sums, products and averages ignore the sign; so do minimum and maximum, except in the switch."""
    dtype = task.request.device_dtype
    return UNSIGNED.get(dtype, dtype) if op is Op.avg else of_unsigned_types(task, op)


def function(communicator: Comm, task: CollectiveTask) -> tuple[object, ...]:
    """The device function that runs a task. Source: src/device/generate.py, v2.28.9-1, equivalent_primary."""
    op = device_op(communicator, task.request)
    dtype = communicator.rules.function(task, op)
    return task.request.collective, op, dtype, task.algo_proto


def neighbours(communicator: Comm, tasks: Iterable[CollectiveTask]) -> Iterator[list[CollectiveTask]]:
    """The tasks in groups: successive tasks of the same kind form a group."""
    for _, together in groupby(tasks, lambda task: kind(communicator, task.request)):
        yield list(together)


def in_graph(tasks: Iterable[CollectiveTask]) -> bool:
    """Whether the group is captured into a CUDA graph."""
    return any(task.request.buffers is Buffers.graph for task in tasks)


def between(low: int, value: int, high: int) -> int:
    """``value``, limited to ``low`` and ``high``."""
    return max(low, min(value, high))

"""What every scheduler is: tasks in the order of the calls go in, kernels in the order of their launch come out.

It asks a ``Chooser`` for the algorithm, protocol and threads of the tasks that NCCL looks at together.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tuner.base.errors import BadInput
from tuner.base.numerics import as_size_t, ceil_div
from tuner.base.registry import Registry, Variant
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules import registered
from tuner.emulator.rules.schedule.task import Chooser, CollectiveTask, Kernels, function, in_graph
from tuner.release.schema import given

BATCH_BYTES = 16  # ncclDevWorkBatch
ARGUMENT_HEAD_BYTES = 32  # ncclDevKernelArgs
REGISTERED_BYTES = 192  # by which ncclDevWorkCollReg is larger than ncclDevWorkColl
GRAPH_BYTES = 1 << 30  # of works of a kernel in a CUDA graph, which are in memory of their own


class Batches:
    """A kernel from 2.22 on: batches of works by channel, in the kernel's arguments or half of a ring of bytes."""

    VARIABLES = frozenset({"NCCL_WORK_FIFO_BYTES", "NCCL_WORK_ARGS_BYTES"})
    TOO_SMALL = "NCCL_WORK_FIFO_BYTES, NCCL_WORK_ARGS_BYTES: too small for one collective; NCCL never returns"

    def __init__(self, communicator: Communicator, captured: bool = False) -> None:
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
    def of(cls, communicator: Communicator, tasks: Sequence[CollectiveTask]) -> "Batches":
        """A kernel with these tasks."""
        kernel = cls(communicator, in_graph(tasks))
        for task in tasks:
            kernel.add(task)
        return kernel

    def in_ring(self, batches: int, work_bytes: int) -> int:
        """The bytes of works that a kernel has in the ring, which are none where its arguments hold all."""
        return work_bytes if batches * BATCH_BYTES + work_bytes > self.argument_bytes else 0

    def check_ring(self, work_bytes: int) -> None:
        """BadInput where a group's kernels have more works in the ring than it holds, and NCCL waits in vain.

        Source: waitWorkFifoAvailable and ncclLaunchFinish, src/enqueue.cc, v2.28.9-1.
        """
        if self.communicator.release.limits.work_fifo_holds_group and work_bytes > 2 * self.ring_bytes:
            raise BadInput(
                f"a group with {work_bytes} bytes of works and a NCCL_WORK_FIFO_BYTES of {2 * self.ring_bytes}: NCCL "
                "never returns; valid: several groups, or a larger NCCL_WORK_FIFO_BYTES"
            )

    def estimate(self, waiting: Sequence[CollectiveTask]) -> int:
        """How many tasks NCCL expects to fit, counting four to a batch."""
        work_bytes = 0
        for planned, task in enumerate(waiting):
            work_bytes += self._bytes_of(task)
            if not self.holds(ceil_div(planned, 4), work_bytes):
                return planned
        return len(waiting)

    def fits(self, channels: int, task: CollectiveTask | None = None) -> bool:
        """Whether one more task, or one on plain buffers, has room on so many channels."""
        own_bytes = self.work_bytes if task is None else self._bytes_of(task)
        return self.holds(self.batches + channels, self.filled_bytes + own_bytes)

    def holds(self, batches: int, work_bytes: int) -> bool:
        """Whether there is room for so many batches and bytes of works."""
        left = self.argument_bytes - batches * BATCH_BYTES
        return work_bytes <= left or (left >= 0 and work_bytes <= self.ring_bytes)

    def add(self, task: CollectiveTask) -> None:
        """A channel's batch takes works of one function and kind, 1024 bytes of them.

        NCCL extends a batch that would have to reach more than 64 works far, but those of a channel are neighbours.
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
        """Of the work of a task: the switch has to know where the buffers are that it takes."""
        switched = registered.switch_takes_buffers(task.call(self.communicator))
        return self.work_bytes + (REGISTERED_BYTES if switched else 0)


REGISTERED_ELEMENTS = 2  # NCCL_MAX_WORK_ELEMENTS_REG, src/include/device.h
ANY_NUMBER = 2**31 - 1  # of works of a kernel in a CUDA graph, which are in memory of their own


class Works:
    """A kernel up to 2.21: works of up to nine elements in a queue of each channel, as many as half a ring holds."""

    VARIABLES = frozenset({"NCCL_WORK_FIFO_DEPTH"})
    TOO_SMALL = "NCCL_WORK_FIFO_DEPTH: too small for one collective; valid: powers of two from 128"

    def __init__(self, communicator: Communicator, captured: bool = False) -> None:
        self.communicator = communicator
        default = given(communicator.release.limits.work_fifo_depth, "limits.work_fifo_depth")
        depth = communicator.environment.c_int("NCCL_WORK_FIFO_DEPTH", default)
        if depth & (depth - 1):
            depth = default
        self.left = ANY_NUMBER if captured else depth // 2
        self._tails: dict[int, tuple[object, int]] = {}
        self._tasks: list[CollectiveTask] = []

    def fits(self, channels: int) -> bool:
        """Whether one more task on so many channels has room."""
        return self.left >= channels

    def add(self, task: CollectiveTask) -> None:
        """A work of a channel takes elements of one function and as many threads; few where the switch has buffers."""
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
        """What the kernel holds; BadInput where not even one task had room."""
        if not self._tasks:
            raise BadInput(self.TOO_SMALL)
        return self._tasks


VARIABLE, MOST_BYTES = "NCCL_WORK_ARGS_BYTES", 4096  # ncclMaxKernelArgsSize


def argument_bytes(communicator: Communicator) -> int:
    """Bytes that the arguments of a kernel may have."""
    return min(as_size_t(communicator.environment.number(VARIABLE, MOST_BYTES)), MOST_BYTES)


class Scheduler(Variant, ABC):
    """One way of scheduling; ``kernel`` is what its kernels hold."""

    kernel: ClassVar[type[Works | Batches]]

    @abstractmethod
    def __call__(self, chooser: Chooser, tasks: list[CollectiveTask]) -> Kernels:
        """The kernels of these tasks, in which their channels are filled in."""


RULES: Registry[Scheduler] = Registry()


def check_alone(communicator: Communicator, channels: int) -> None:
    """BadInput where no kernel holds an operation on so many channels, as the environment has made it too small."""
    kernel = communicator.rules.schedule.kernel
    if kernel.VARIABLES & set(communicator.environment.values) and not kernel(communicator).fits(channels):
        raise BadInput(kernel.TOO_SMALL)

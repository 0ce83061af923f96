"""What one kernel holds in the releases whose schedulers fill works of several collectives.

Source: appendWorkElemColl and ncclLaunchPrepare, src/enqueue.cc, v2.21.5-1.
"""

from tuner.base.errors import BadInput
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules import registered
from tuner.emulator.rules.schedule.task import Task, function
from tuner.release.schema import given

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
        self._tasks: list[Task] = []

    def fits(self, channels: int) -> bool:
        """Whether one more task on so many channels has room."""
        return self.left >= channels

    def add(self, task: Task) -> None:
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

    def tasks(self) -> list[Task]:
        """What the kernel holds; BadInput where not even one task had room."""
        if not self._tasks:
            raise BadInput(self.TOO_SMALL)
        return self._tasks

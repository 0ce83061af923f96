"""What every scheduler is: tasks in the order of the calls go in, kernels in the order of their launch come out.

It asks a ``Chooser`` for the algorithm, protocol and threads of the tasks that NCCL looks at together.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from tuner.base.errors import BadInput
from tuner.base.registry import Registry, Variant
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules.schedule.batches import Batches
from tuner.emulator.rules.schedule.task import Chooser, Kernels, Task
from tuner.emulator.rules.schedule.works import Works


class Scheduler(Variant, ABC):
    """One way of scheduling; ``kernel`` is what its kernels hold."""

    kernel: ClassVar[type[Works | Batches]]

    @abstractmethod
    def __call__(self, chooser: Chooser, tasks: list[Task]) -> Kernels:
        """The kernels of these tasks, in which their channels are filled in."""


RULES: Registry[Scheduler] = Registry()


def check_alone(communicator: Communicator, channels: int) -> None:
    """BadInput where no kernel holds an operation on so many channels, as the environment has made it too small."""
    kernel = communicator.rules.schedule.kernel
    if kernel.VARIABLES & set(communicator.environment.values) and not kernel(communicator).fits(channels):
        raise BadInput(kernel.TOO_SMALL)

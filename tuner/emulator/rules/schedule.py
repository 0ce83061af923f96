"""How the collectives of one group are put together, dealt out to channels and split into kernels.

A scheduler takes the tasks in the order of the calls and returns the kernels in the order of their launch. It asks a
``Chooser`` for the algorithm, protocol and threads of the tasks that NCCL looks at together.
"""

from collections.abc import Callable

from tuner.base.errors import BadInput
from tuner.base.registry import Registry
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules.batches import Batches
from tuner.emulator.rules.cells import cells, cells_within_ctas
from tuner.emulator.rules.equal_bytes import equal_bytes
from tuner.emulator.rules.least_loaded import least_loaded
from tuner.emulator.rules.task import Chooser, Kernels, Task
from tuner.emulator.rules.works import Works

RULES: Registry[Callable[[Chooser, list[Task]], Kernels]] = Registry()
HELD_IN: dict[str, type[Works | Batches]] = {}
for scheduler, kernel in ((least_loaded, Works), (equal_bytes, Works), (cells, Batches), (cells_within_ctas, Batches)):
    RULES(scheduler)
    HELD_IN[scheduler.__name__] = kernel


def check_alone(communicator: Communicator, channels: int) -> None:
    """BadInput where no kernel holds an operation on so many channels, as the environment has made it too small."""
    (rule,) = communicator.release.rules("schedule")
    kernel = HELD_IN[rule]
    if kernel.VARIABLES & set(communicator.environment.values) and not kernel(communicator).fits(channels):
        raise BadInput(kernel.TOO_SMALL)

"""How the collectives of one group are put together, dealt out to channels and split into kernels.

A scheduler takes the tasks in the order of the calls and returns the kernels in the order of their launch. It asks a
``Chooser`` for the algorithm, protocol and threads of the tasks that NCCL looks at together.
"""

from collections.abc import Callable

from tuner.registry import Registry
from tuner.rules.cells import cells, cells_within_ctas
from tuner.rules.equal_bytes import equal_bytes
from tuner.rules.least_loaded import least_loaded
from tuner.rules.task import Chooser, Kernels, Task

RULES: Registry[Callable[[Chooser, list[Task]], Kernels]] = Registry()
for scheduler in (least_loaded, equal_bytes, cells, cells_within_ctas):
    RULES(scheduler)

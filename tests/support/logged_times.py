"""Times of symmetric kernels as NCCL 2.31.2 logs them, which no other release does; one kernel after the other."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric
from tuner.emulator.rules.symmetric_variables import KERNEL
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

LOGS_TIMES = "2.31.2"
IN_SECONDS = "AllGather_RailRing_LsaSTMC"  # sic: six decimals of its time, which NCCL keeps in seconds, say nothing
Logged = tuple[str, int]  # a time in us as text, and CTAs
_BEST = re.compile(
    r"Best tuning \{ .*?timeUs = ([\d.]+),.*?symKernelId = (\w+),.*?nChannels = (-?\d+),"
)  # with CTAs counted


def differing(
    scenario: Scenario, request: Request, sizes: Sequence[int]
) -> tuple[Counter[str], list[tuple[str, int, Logged, Logged]]]:
    """How many times were compared by kernel; and those that differ: kernel, size, emulated and logged (time, CTAs).

    Each kernel that can do the calls is made the only one. A time is compared in the six decimals that NCCL prints.
    """
    communicator = scenario.communicator()
    weighed = {size: {each.kernel: each for each in symmetric.weighed(communicator, request, size)} for size in sizes}
    compared, found = Counter[str](), list[tuple[str, int, Logged, Logged]]()
    for name in sorted({kernel for kernels in weighed.values() for kernel in kernels} - {IN_SECONDS}):
        asked = [size for size in sizes if name in weighed[size]]
        forced = replace(scenario, environment={**(scenario.environment or {}), KERNEL: name})
        alone = forced.communicator()
        expected = [
            (f"{np.float32(each.score):.6f}", each.blocks)
            for size in asked
            for each in symmetric.weighed(alone, request, size)
            if each.kernel == name
        ]
        with Oracle(forced.resolve().oracle_configuration_to_launch()) as oracle:
            begun = len(oracle.log_lines())
            oracle.launch_on_any_path(request, asked)
            lines = oracle.log_lines()[begun:]
        logged = [(match[1], int(match[3])) for line in lines if (match := _BEST.search(line)) and match[2] == name]
        assert len(logged) == len(asked) == len(expected)
        compared[name] += len(asked)
        both = zip(asked, expected, logged, strict=True)
        found += [(name, size, ours, theirs) for size, ours, theirs in both if ours != theirs]
    return compared, found

"""What NCCL picks as more GPUs of each node are used: ranges of GPU counts with one answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tuner.answers.choices import NOTHING, picks
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Protocol
from tuner.base.numerics import shortest
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.scenario import Scenario


@dataclass(frozen=True, slots=True)
class GpuRange:
    """GPUs per node with one answer, both ends among them; ``bytes`` are nBytes, times NCCL's own.

    Where NCCL has nothing to run ``algorithm``, ``protocol`` and the times are None.
    """

    collective: str
    bytes: int
    from_gpus_per_node: int
    to_gpus_per_node: int
    algorithm: str | None
    protocol: str | None
    channels: int
    threads: int
    time_us_from: float | None
    time_us_to: float | None


def over_gpus(scenario: Scenario, requests: Sequence[Request], sizes: Sequence[int]) -> tuple[GpuRange, ...]:
    """The answers on the first GPUs of each node, from the fewest that NCCL has something to pick for to all.

    Each number has graphs of its own, as NCCL searches them on those GPUs. Errors: BadInput for what the emulator
    refuses.
    """
    if scenario.others:
        raise BadInput("where nodes differ there is no number of GPUs to change; valid: nodes that are alike")
    each = [scenario.with_gpus(gpus) for gpus in range(1, scenario.gpus() + 1)]
    selections = [Selection(one.communicator()) for one in each if one.ranks > 1]
    first = scenario.gpus() - len(selections) + 1
    ranges: list[GpuRange] = []
    for request in requests:
        answers = [picks(selection, request, np.array(sizes, np.uint64)) for selection in selections]
        for at, size in enumerate(sizes):
            rows = [_row(answer, at) for answer in answers]
            for label, alike in groupby(enumerate(rows, start=first), key=lambda pair: pair[1][:4]):
                ranges.append(_range(request, size, label, [(gpus, row[4]) for gpus, row in alike]))
    return tuple(ranges)


Label = tuple[int, int, int, int]  # algorithm, protocol, channels, threads


def _row(answer: Picks, at: int) -> tuple[int, int, int, int, np.float32]:
    label = (int(getattr(answer, name)[at]) for name in ("algorithm", "protocol", "channels", "threads"))
    algorithm, protocol, channels, threads = label
    return algorithm, protocol, channels, threads, answer.time_us[at]


def _range(request: Request, size: int, label: Label, alike: Sequence[tuple[int, np.float32]]) -> GpuRange:
    algorithm, protocol, channels, threads = label
    nothing = algorithm == NOTHING
    (first, before_us), (last, after_us) = alike[0], alike[-1]
    return GpuRange(
        request.collective.name,
        size,
        first,
        last,
        None if nothing else Algorithm(algorithm).name,
        None if nothing else Protocol(protocol).name,
        channels,
        threads,
        None if nothing else shortest(before_us),
        None if nothing else shortest(after_us),
    )

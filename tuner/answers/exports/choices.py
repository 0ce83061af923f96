"""Sizes and what NCCL picks for them, for code of frameworks: one JSON object of a communicator."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.base.names import Algorithm, Protocol
from tuner.base.numerics import shortest
from tuner.emulator.ranges import launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL picks for nBytes from one size to another; ``time_us`` is NCCL's prediction at both ends."""

    from_bytes: int
    to_bytes: int
    algorithm: str
    protocol: str
    channels: int
    threads: int
    time_us: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Choices:
    """Of one communicator, by collective; ``times`` says whose times they are."""

    communicator: str
    nccl: str
    ranks: int
    nodes: int
    dtype: str
    op: str
    times: str
    collectives: dict[str, list[Choice]]


def choices(scenario: Scenario, requests: Sequence[Request], low: int | None, high: int) -> Choices:
    """The ranges of sizes that follow each other without a gap. Errors: those of the ranges."""
    selection = Selection(scenario.communicator())
    first = requests[0]
    return Choices(
        communicator=scenario.heading,
        nccl=selection.communicator.release.name,
        ranks=selection.communicator.ranks,
        nodes=selection.communicator.nodes,
        dtype=first.dtype.name,
        op=first.op.name,
        times="predicted by NCCL's own model, in us",
        collectives={request.collective.name: _of(selection, request, low, high) for request in requests},
    )


def _of(selection: Selection, request: Request, low: int | None, high: int) -> list[Choice]:
    ranges = launches(selection, request, low, high)
    ends = [selection.pick(request, sizes).time_us for sizes in (ranges.from_bytes, ranges.to_bytes)]
    return [
        Choice(
            int(ranges.from_bytes[row]),
            int(ranges.to_bytes[row]),
            Algorithm(ranges.algorithm[row]).name,
            Protocol(ranges.protocol[row]).name,
            int(ranges.channels[row]),
            int(ranges.threads[row]),
            (shortest(ends[0][row]), shortest(ends[1][row])),
        )
        for row in range(len(ranges.from_bytes))
    ]

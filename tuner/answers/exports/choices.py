"""Sizes and what NCCL picks for them, for code of frameworks: one JSON object of a communicator."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.answers.bypassing import picks_of
from tuner.base.names import Buffers
from tuner.base.records import json_form
from tuner.emulator.ranges import answers, launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL picks for nBytes from one size to another; ``time_us`` is NCCL's prediction at both ends.

    Where ``bypass_kernel`` names what takes the call instead of an algorithm, ``channels`` are its blocks, and times
    are by NCCL's model of symmetric kernels; copy engines have none.
    """

    from_bytes: int
    to_bytes: int
    algorithm: str | None
    protocol: str | None
    channels: int
    threads: int
    time_us: tuple[float | None, float | None]
    bypass_kernel: str | None = field(default=None, metadata=json_form("leaves_for", optional=True))


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
    buffers: str | None = field(default=None, metadata=json_form(optional=True))  # of all calls; None: plain
    in_place: bool | None = field(default=None, metadata=json_form(optional=True))  # where it may matter


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
        buffers=None if first.buffers is Buffers.plain else first.buffers.name,
        in_place=None if first.buffers is Buffers.plain else first.in_place,
    )


def _of(selection: Selection, request: Request, low: int | None, high: int) -> list[Choice]:
    bypassing = selection.may_leave_classic_path(request)
    found = (answers if bypassing else launches)(selection, request, low, high)
    first, last = (picks_of(selection, request, sizes) for sizes in (found.from_bytes, found.to_bytes))
    return [
        Choice(
            each.from_bytes,
            each.to_bytes,
            None if each.algorithm is None else each.algorithm.name,
            None if each.protocol is None else each.protocol.name,
            each.channels,
            each.threads,
            (begin.time_us, end.time_us),
            each.bypass_kernel,
        )
        for each, begin, end in zip(found.records(request), first, last, strict=True)
    ]

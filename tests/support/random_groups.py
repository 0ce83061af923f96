"""Groups of calls for the tests, the same ones every time."""

import random
from collections.abc import Iterator, Sequence

from tuner.base.names import SYMMETRIC, Buffers, Collective, DataType, Op, Windows
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.conformance.check import reachable
from tuner.release import Release

BEFORE_FP8 = tuple(DataType)[:10]  # fp8 is not in every release, and not for every GPU


def kinds(
    types: Sequence[DataType] = BEFORE_FP8,
    ops: Sequence[Op] = tuple(Op),
    buffers: Buffers = Buffers.plain,
    in_place: bool = False,
    windows: Windows = SYMMETRIC,
) -> list[Request]:
    """Every kind of call, an AllGather or Broadcast only once per type."""
    return [
        Request(collective, dtype, op, buffers=buffers, in_place=in_place, windows=windows)
        for dtype in types
        for op in ops
        for collective in Collective
        if op is Op.sum or not Request(collective, dtype, op).moves_only
    ]


F32_SUM = kinds((DataType.float32,), (Op.sum,))
ALL = kinds()


def random_groups(
    selection: Selection,
    count: int,
    most: int = 40,
    seed: int = 2026,
    on: tuple[Buffers, bool] = (Buffers.plain, False),
    windows: Windows = SYMMETRIC,
) -> Iterator[list[Operation]]:
    """Groups of 2 to ``most`` calls: one kind or many, sizes equal, alike, or from bytes to gigabytes.

    ``on``: which buffers all have, and whether they are in place; ``windows``: what those in windows are like.
    """
    ranks, generator = selection.communicator.ranks, random.Random(seed)
    limit, fp8 = selection.communicator.release.limits.data_types, selection.communicator.min_comp_cap >= 90
    every = kinds(tuple(DataType)[:limit] if fp8 else BEFORE_FP8, buffers=on[0], in_place=on[1], windows=windows)
    sums = kinds((DataType.float32,), (Op.sum,), *on, windows)
    for number in range(count):
        among = [kind for kind in (sums, every, [generator.choice(every)])[number % 3] if selection.usable(kind)]
        if not among:
            continue
        middle = 2 ** generator.uniform(8, 28)
        spread = (0.0, 0.3, 3.0, 20.0)[number % 4]  # in powers of two to either side
        yield [
            Operation(kind, reachable(kind, ranks, int(min(middle * 2 ** generator.uniform(-spread, spread), 2**33))))
            for kind in generator.choices(among, k=generator.randint(2, most))
        ]


def rings_of_works(release: Release) -> bool:
    """Whether a kernel holds works (up to 2.21), not bytes."""
    return "NCCL_WORK_FIFO_DEPTH" in release.environment.known

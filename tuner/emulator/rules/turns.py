"""Where the channels of one operation may turn: sizes between which they only rise or only fall with the size.

A rule goes by the name of the launch rule, or of the rule that deals cells, whose arithmetic it knows. It takes the
bound and the threads of the operation, constant from ``low`` to ``high``, and gives sizes of which those between
``low`` and ``high`` count. Source: as of the rules of the same names.
"""

from collections.abc import Callable

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.names import AlgoProto, Protocol
from tuner.base.numerics import SizeArray, ceil_div
from tuner.base.registry import Registry
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.rules import launch

MOST = 1 << 18  # multiples to look at
TurnRule = Callable[[Communicator, Request, AlgoProto, int, int, int, int], SizeArray]
RULES: Registry[TurnRule] = Registry()
CELL_RULES: Registry[Callable[[int, int, int], int]] = Registry()
NONE = np.zeros(0, np.uint64)


@RULES
def shrink_only(
    communicator: Communicator, request: Request, algo_proto: AlgoProto, bound: int, threads: int, low: int, high: int
) -> SizeArray:
    """The bound alone never turns."""
    return NONE


@RULES
def shrink_then_bytes(
    communicator: Communicator, request: Request, algo_proto: AlgoProto, bound: int, threads: int, low: int, high: int
) -> SizeArray:
    """Channels rise while the parts stay as they are, and fall where the parts grow by what a block moves at once.

    Parts of as many such moves as there are channels, or more, leave no channel out.
    """
    if bound == 1 or launch.like_collnet(communicator, algo_proto):
        return NONE
    align = communicator.release.limit("part_alignment_bytes")
    at_once = int(launch.elements_at_once(communicator, request, algo_proto, threads)) * request.device_dtype.size_bytes
    part_bytes = at_once if at_once % align == 0 else align
    settled = bound * bound * (at_once + align)
    end = min(high, request.parts(communicator.ranks) * settled)
    return _multiples(communicator, request, bound * part_bytes, low, end)


@RULES
def shrink_then_cells(
    communicator: Communicator, request: Request, algo_proto: AlgoProto, bound: int, threads: int, low: int, high: int
) -> SizeArray:
    """Every further cell may take a channel, until each channel has twice as many cells as there are channels.

    Where NCCL has more channels than the operation may use, one more takes what is left over just before or just after
    the cells come out even, however large the size.
    """
    if launch.like_collnet(communicator, algo_proto):
        return NONE
    limit = communicator.release.limit
    most = communicator.nvls_channels if launch.like_nvls(communicator, algo_proto) else communicator.channels
    per_byte = request.traffic_per_byte(communicator.ranks) * (
        limit("ll_traffic") if algo_proto[1] is Protocol.LL else 1
    )
    (deal,) = communicator.release.rules("deal")
    cell_bytes = CELL_RULES[deal](limit("min_traffic_per_channel_bytes"), per_byte, limit("cell_alignment_bytes"))
    settled = request.parts(communicator.ranks) * cell_bytes * 2 * (bound + 1) ** 2
    near = _multiples(communicator, request, cell_bytes, low, min(high, settled))
    if bound >= most:
        return near
    even = _multiples(communicator, request, cell_bytes * bound, max(low, settled), high)
    cell_before = even - np.minimum(even, np.uint64(request.parts(communicator.ranks) * cell_bytes))
    return np.concatenate([near, cell_before, even])


@RULES
def shrink_within_ctas_then_cells(
    communicator: Communicator, request: Request, algo_proto: AlgoProto, bound: int, threads: int, low: int, high: int
) -> SizeArray:
    """The same within the fewest and the most blocks."""
    least, most = launch.ctas(communicator, request)
    return shrink_then_cells(communicator, request, algo_proto, max(least, min(bound, most)), threads, low, high)


@CELL_RULES
def cells_of_the_least_traffic(least: int, per_byte: int, align: int) -> int:
    return int(ceil_div(ceil_div(least, per_byte), align) * align)


@CELL_RULES
def cells_of_16_bytes(least: int, per_byte: int, align: int) -> int:
    return align


def _multiples(communicator: Communicator, request: Request, step: int, low: int, high: int) -> SizeArray:
    """The sizes whose count is a multiple of ``step`` bytes, and the next count."""
    parts = request.parts(communicator.ranks)
    first, last = low // (step * parts), high // (step * parts) + 2  # the cell before the next one counts as well
    if last - first > MOST:
        raise BadInput(
            f"{request.collective.name} may change its channels every {step * parts} bytes up to {high}, too often to "
            f"look at; valid: sizes to {(first + MOST - 1) * step * parts - 1}"
        )
    sizes = np.arange(first, last, dtype=np.uint64) * np.uint64(step * parts)
    return np.concatenate([sizes, sizes + np.uint64(parts)])

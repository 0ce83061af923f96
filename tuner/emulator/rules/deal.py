"""How cells of traffic are dealt out to channels, one collective after the other.

A rule takes a task with its traffic per byte, the traffic every channel should get, how many channels there are, the
least traffic of a channel, and where the collective before ended: its channel and the traffic already on it.
"""

from collections.abc import Callable

from tuner.base.numerics import ceil_div
from tuner.base.registry import Registry
from tuner.emulator.rules.task import Task

Dealt = tuple[list[int], int, int]  # channels, and the next channel with the traffic it already has
DealRule = Callable[[Task, int, int, int, int, int, int], Dealt]
RULES: Registry[DealRule] = Registry()


@RULES
def cells_of_the_least_traffic(
    task: Task, per_byte: int, per_channel: int, most: int, least: int, channel: int, loaded: int
) -> Dealt:
    """Cells of the least traffic, the first channel filled up to its share."""
    cell_bytes = ceil_div(ceil_div(least, per_byte), 16) * 16
    count, traffic = ceil_div(task.work_bytes, cell_bytes), cell_bytes * per_byte
    low = ceil_div(per_channel - loaded, traffic)
    used, channel, low, high = _cut(count, traffic, low, per_channel, most, channel)
    return _next(used, channel, low * traffic, high * traffic, 0, loaded, per_channel, most)


@RULES
def cells_of_16_bytes(
    task: Task, per_byte: int, per_channel: int, most: int, least: int, channel: int, loaded: int
) -> Dealt:
    """The smallest cells, the first channel given whole cells only; the last cell counts as it is, not whole."""
    count, traffic = ceil_div(task.work_bytes, 16), 16 * per_byte
    low = (per_channel - loaded) // traffic
    used, channel, low, high = _cut(count, traffic, low, per_channel, most, channel)
    missing = (count * 16 - task.work_bytes) * per_byte
    return _next(used, channel, low * traffic, high * traffic, missing, loaded, per_channel, most)


def _cut(count: int, traffic: int, low: int, per_channel: int, most: int, channel: int) -> tuple[int, int, int, int]:
    """How many channels ``count`` cells get, the first channel, and the cells of the first and of the last."""
    each = min(count, ceil_div(per_channel, traffic))
    low = count if channel + 1 == most else min(count, low)
    middle, high = divmod(count - low, each)
    if channel + (low != 0) + middle + (high != 0) > most:  # what does not fit is spread over the rest
        middle = most - channel - 2
        each, rest = divmod(count - low, middle + 1)
        high = each + rest
    if high == 0 and middle != 0:
        high, middle = each, middle - 1
    if low == 0:  # the first channel is skipped
        channel += 1
        low, high, middle = (high, 0, 0) if middle == 0 else (each, high, middle - 1)
    return (low != 0) + middle + (high != 0), channel, low, high


def _next(used: int, first: int, low: int, high: int, missing: int, loaded: int, per_channel: int, most: int) -> Dealt:
    """The channels, and where the next collective begins; ``low`` and ``high``: traffic of the first and the last."""
    channels = list(range(first, first + used))
    loaded = high - missing if high else loaded + low - missing
    if loaded >= per_channel and channels[-1] + 1 != most:
        return channels, channels[-1] + 1, 0
    return channels, channels[-1], loaded

"""How cells of traffic are dealt out to channels: one operation alone, or one after the other in a group."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tuner.base.numerics import IntArray, SizeArray, ceil_div
from tuner.base.registry import Registry, Variant
from tuner.emulator import nccl_source as nccl


@dataclass(frozen=True, slots=True)
class TrafficCells:
    """What cells are made of: traffic of a byte, the most channels, the least traffic of a channel, alignment."""

    per_byte: int
    channels: int
    least: int
    align_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where the next operation begins: a channel, and the traffic that is on it already."""

    channel: int = 0
    loaded: int = 0


class ChannelSplit(Variant, ABC):
    """Cuts bytes into cells and deals these out evenly."""

    @abstractmethod
    def cell_bytes(self, cells: TrafficCells) -> int:
        """Bytes of a cell."""

    @abstractmethod
    def __call__(self, cells: TrafficCells, count_bytes: SizeArray, per_channel: SizeArray) -> IntArray:
        """Channels that get work of an operation alone, whose channels are to get ``per_channel`` traffic each."""

    @abstractmethod
    def _first(self, left: int, traffic: int) -> int:
        """TrafficCells that the channel gets whose share has so much traffic left."""

    @abstractmethod
    def _missing_bytes(self, cells: TrafficCells, bytes_: int) -> int:
        """What of the last cell does not count as traffic."""

    def in_group(
        self, cells: TrafficCells, bytes_: int, per_channel: int, place: Place
    ) -> tuple[dict[int, int], Place]:
        """The bytes that each channel gets of the next operation of a group, and where the one after it begins."""
        cell_bytes, most = self.cell_bytes(cells), cells.channels
        count, traffic = ceil_div(bytes_, cell_bytes), cell_bytes * cells.per_byte
        low = self._first(per_channel - place.loaded, traffic)
        each = min(count, ceil_div(per_channel, traffic))
        skipped, dealt = _cut(count, each, low, most - place.channel)
        first = place.channel + skipped
        shares = {channel: cell_bytes * own for channel, own in enumerate(dealt, start=first)}
        last = first + len(dealt) - 1
        shares[last] -= count * cell_bytes - bytes_  # the last cell may not be full
        missing = self._missing_bytes(cells, bytes_) * cells.per_byte
        before = place.loaded if len(dealt) == 1 else 0
        loaded = before + dealt[-1] * traffic - missing
        if loaded >= per_channel and last + 1 != most:
            return shares, Place(last + 1, 0)
        return shares, Place(last, loaded)


RULES: Registry[ChannelSplit] = Registry()


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.23.4"), nccl.SCHEDULE_COLL_TASKS_TO_PLAN_MOVED(since="2.31.2"))
class CellsOfTheLeastTraffic(ChannelSplit):
    """Channels used when cells of the least traffic are dealt out, each channel up to its share and not less."""

    def cell_bytes(self, cells: TrafficCells) -> int:
        return int(ceil_div(ceil_div(cells.least, cells.per_byte), cells.align_bytes) * cells.align_bytes)

    def __call__(self, cells: TrafficCells, count_bytes: SizeArray, per_channel: SizeArray) -> IntArray:
        cell_bytes = self.cell_bytes(cells)
        count = ceil_div(count_bytes, cell_bytes)
        first = np.minimum(count, ceil_div(per_channel, cell_bytes * cells.per_byte))
        used = 1 + ceil_div(count - first, first)
        # What would need more channels than there are is spread over all of them.
        dealt: IntArray = np.minimum(used, np.uint64(cells.channels)).astype(np.int64)
        return dealt

    def _first(self, left: int, traffic: int) -> int:
        return int(ceil_div(left, traffic))

    def _missing_bytes(self, cells: TrafficCells, bytes_: int) -> int:
        return 0


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.22.3"))
class CellsOf16Bytes(ChannelSplit):
    """Channels used when cells of 16 bytes are dealt out; the first takes whole ones only, and none where none fits."""

    def cell_bytes(self, cells: TrafficCells) -> int:
        return cells.align_bytes

    def __call__(self, cells: TrafficCells, count_bytes: SizeArray, per_channel: SizeArray) -> IntArray:
        if cells.channels == 1:
            return np.ones(count_bytes.shape, np.int64)
        count, traffic = ceil_div(count_bytes, cells.align_bytes), cells.align_bytes * cells.per_byte
        share = np.minimum(count, ceil_div(per_channel, traffic))
        first = np.minimum(count, per_channel // np.uint64(traffic))
        started = (first != 0).astype(np.int64)
        used = started + ceil_div(count - first, share).astype(np.int64)
        dealt: IntArray = np.where(used > cells.channels, cells.channels - 1 + started, used)
        return dealt

    def _first(self, left: int, traffic: int) -> int:
        return left // traffic

    def _missing_bytes(self, cells: TrafficCells, bytes_: int) -> int:
        return int(ceil_div(bytes_, cells.align_bytes) * cells.align_bytes - bytes_)


def _cut(count: int, each: int, low: int, left: int) -> tuple[bool, list[int]]:
    """How ``left`` channels share ``count`` cells, ``each`` in the middle and ``low`` in the first.

    Whether the first is skipped, and the cells of those that get any.
    """
    low = count if left == 1 else min(count, low)
    middle, high = divmod(count - low, each)
    if (low != 0) + middle + (high != 0) > left:  # what does not fit is spread over the rest
        middle = left - 2
        each, rest = divmod(count - low, middle + 1)
        high = each + rest
    if high == 0 and middle != 0:
        high, middle = each, middle - 1
    skipped = low == 0
    if skipped:
        low, high, middle = (high, 0, 0) if middle == 0 else (each, high, middle - 1)
    return skipped, [low] * (low != 0) + [each] * middle + [high] * (high != 0)


TRAFFIC_RULES: Registry[Callable[[SizeArray, int, int], SizeArray]] = Registry()


@TRAFFIC_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.22.3"))
def at_least_the_minimum(per_channel: SizeArray, least: int, align_bytes: int) -> SizeArray:
    """The traffic of a channel, bytes [size], or the least where that is more."""
    return np.maximum(per_channel, np.uint64(least))


@TRAFFIC_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.29.2"), nccl.SCHEDULE_COLL_TASKS_TO_PLAN_MOVED(since="2.31.2"))
def rounded_up(per_channel: SizeArray, least: int, align_bytes: int) -> SizeArray:
    """The traffic of a channel, bytes [size], rounded up to the alignment."""
    rounded: SizeArray = ceil_div(per_channel, align_bytes) * np.uint64(align_bytes)
    return rounded

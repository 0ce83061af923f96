"""Computes the launched grid of one operation from its largest number of channels (its bound), and the sizes at which
the channels may change.

Shapes: sizes are arrays of nBytes; channels and threads are arrays of integers with one element per size, [size].
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from tuner.base import trace
from tuner.base.dataclass import dataclass
from tuner.base.errors import TooManyRanges
from tuner.base.names import Collective, Protocol
from tuner.base.numerics import IntArray, SizeArray, ceil_div
from tuner.base.registry import Registry, Variant
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.model import Tables
from tuner.emulator.request import Request
from tuner.emulator.rules import call_configuration
from tuner.emulator.rules.bounds import block_threads, bounds, of_registered
from tuner.emulator.rules.call import RuleCall
from tuner.release.schema import given


@dataclass(frozen=True, slots=True)
class TrafficCells:
    """How calls are cut into cells: the traffic of a byte, the most channels, the least traffic of a channel, and the
    alignment."""

    per_byte: int
    channels: int
    least: int
    align_bytes: int


@dataclass(frozen=True, slots=True)
class ChannelPosition:
    """Where the next operation begins: the channel, and the traffic that is already on it."""

    channel: int = 0
    loaded: int = 0


class ChannelSplit(Variant, ABC):
    """Cuts bytes into cells and distributes the cells evenly over channels."""

    @abstractmethod
    def cell_bytes(self, cells: TrafficCells) -> int:
        """The bytes of a cell."""

    @abstractmethod
    def __call__(self, cells: TrafficCells, count_bytes: SizeArray, per_channel: SizeArray) -> IntArray:
        """The number of channels that get work from one operation, if each should get ``per_channel`` traffic."""

    @abstractmethod
    def _first(self, left: int, traffic: int) -> int:
        """The cells for a channel that has this much traffic left of its share."""

    @abstractmethod
    def _missing_bytes(self, cells: TrafficCells, bytes_: int) -> int:
        """The bytes of the last cell that do not count as traffic, because the cell is not full."""

    def in_group(
        self, cells: TrafficCells, bytes_: int, per_channel: int, place: ChannelPosition
    ) -> tuple[dict[int, int], ChannelPosition]:
        """The bytes that each channel gets from the next operation of a group, and where the operation after that
        begins."""
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
            return shares, ChannelPosition(last + 1, 0)
        return shares, ChannelPosition(last, loaded)


SPLIT_RULES: Registry[ChannelSplit] = Registry()


@SPLIT_RULES.variant(
    nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.23.4"), nccl.SCHEDULE_COLL_TASKS_TO_PLAN_MOVED(since="2.31.2")
)
class CellsOfTheLeastTraffic(ChannelSplit):
    """Channels used when cells of the least traffic are distributed; each channel gets its share at least."""

    def cell_bytes(self, cells: TrafficCells) -> int:
        return int(ceil_div(ceil_div(cells.least, cells.per_byte), cells.align_bytes) * cells.align_bytes)

    def __call__(self, cells: TrafficCells, count_bytes: SizeArray, per_channel: SizeArray) -> IntArray:
        cell_bytes = self.cell_bytes(cells)
        count = ceil_div(count_bytes, cell_bytes)
        first = np.minimum(count, ceil_div(per_channel, cell_bytes * cells.per_byte))
        used = 1 + ceil_div(count - first, first)
        # If more channels would be needed than exist, the cells are spread over all of them.
        dealt: IntArray = np.minimum(used, np.uint64(cells.channels)).astype(np.int64)
        return dealt

    def _first(self, left: int, traffic: int) -> int:
        return int(ceil_div(left, traffic))

    def _missing_bytes(self, cells: TrafficCells, bytes_: int) -> int:
        return 0


@SPLIT_RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.22.3"))
class CellsOf16Bytes(ChannelSplit):
    """Channels used when cells of 16 bytes are distributed; the first channel gets only whole cells, perhaps none."""

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

    Returns whether the first channel is skipped, and the cells of the channels that get any.
    """
    low = count if left == 1 else min(count, low)
    middle, high = divmod(count - low, each)
    if (low != 0) + middle + (high != 0) > left:  # cells that do not fit are spread over the rest
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
    """The traffic of a channel in bytes, [size], but at least ``least``."""
    return np.maximum(per_channel, np.uint64(least))


@TRAFFIC_RULES(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.29.2"), nccl.SCHEDULE_COLL_TASKS_TO_PLAN_MOVED(since="2.31.2"))
def rounded_up(per_channel: SizeArray, least: int, align_bytes: int) -> SizeArray:
    """The traffic of a channel in bytes, [size], rounded up to the alignment."""
    rounded: SizeArray = ceil_div(per_channel, align_bytes) * np.uint64(align_bytes)
    return rounded


MOST = 1 << 18  # most multiples that are looked at
NONE = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Piece:
    """Sizes from ``low`` to ``high`` for which an operation has one bound on its channels and one number of threads."""

    bound: int
    threads: int
    low: int
    high: int


class LaunchRule(Variant, ABC):
    """A rule that computes the channels of one operation from its size in bytes."""

    def __call__(self, call: RuleCall, tables: Tables, nbytes: SizeArray) -> tuple[IntArray, IntArray]:
        """Channels and threads of each size."""
        bound, threads = bounds(call, tables, nbytes)
        return self._used(call, nbytes, bound, threads), threads

    def tuned(self, call: RuleCall, tables: Tables, nbytes: SizeArray, named: int) -> tuple[IntArray, IntArray]:
        """The channels and threads of each size, if a tuner names this many channels."""
        bound, threads = self.tuned_bounds(call, tables, nbytes, named)
        return self._used(call, nbytes, bound, threads), threads

    def tuned_bounds(self, call: RuleCall, tables: Tables, nbytes: SizeArray, named: int) -> tuple[IntArray, IntArray]:
        """The largest number of channels of each size if a tuner names ``named``, and the threads of a block; both are
        arrays [size]."""
        own, _ = bounds(call, tables, nbytes)
        left = int(of_registered(call, tables, np.array([named], np.int64))[0])
        bound = np.array([call.rules.tuned_channels(each, left) for each in own.tolist()], np.int64)
        return bound, block_threads(call, tables, nbytes, named)

    def looks_at(self, communicator: Comm) -> Hashable:
        """Facts of a communicator on which this rule depends but not every rule does; None if there are none."""
        return None

    @abstractmethod
    def _used(self, call: RuleCall, nbytes: SizeArray, bound: IntArray, threads: IntArray) -> IntArray:
        """The channels of the bound that get work, [size]; all arguments but ``call`` are [size]."""

    @abstractmethod
    def turning(self, call: RuleCall, piece: Piece) -> SizeArray:
        """Sizes in bytes between which the number of channels only rises or only falls.

        Only sizes within the piece count.
        """


RULES: Registry[LaunchRule] = Registry()


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN(since="2.22.3"))
class ShrinkThenCells(LaunchRule):
    """Channels and threads by size: a bound that shrinks with the size, then cells distributed over the channels."""

    def _used(self, call: RuleCall, nbytes: SizeArray, bound: IntArray, threads: IntArray) -> IntArray:
        return _dealt_channels(call, nbytes, bound)

    def turning(self, call: RuleCall, piece: Piece) -> SizeArray:
        """Each further cell may use one more channel, until every channel has twice as many cells as there are
        channels.

        If NCCL has more channels than the operation may use, one more channel gets the rest just before and just after
        the cells come out even, however large the size.
        """
        if call.like_collnet:
            return NONE
        cells, parts = cells_of(call), call.request.parts(call.communicator.ranks)
        cell_bytes = call.rules.channel_split.cell_bytes(cells)
        settled = parts * cell_bytes * 2 * (piece.bound + 1) ** 2
        near = _multiples(call, cell_bytes, piece.low, min(piece.high, settled))
        if piece.bound >= cells.channels:
            return near
        even = _multiples(call, cell_bytes * piece.bound, max(piece.low, settled), piece.high)
        cell_before = even - np.minimum(even, np.uint64(parts * cell_bytes))
        return np.concatenate([near, cell_before, even])


@RULES.variant(nccl.SCHEDULE_COLL_TASKS_TO_PLAN_MOVED(since="2.31.2"))
class ShrinkWithinCtasThenCells(ShrinkThenCells):
    """The fewest and the most blocks of a collective limit the bound, before cells are distributed."""

    def looks_at(self, communicator: Comm) -> Hashable:
        """The fewest and the most blocks of a collective."""
        return communicator.ctas

    def _used(self, call: RuleCall, nbytes: SizeArray, bound: IntArray, threads: IntArray) -> IntArray:
        least, most = bound_ctas(call)
        within = np.minimum(np.maximum(bound, least), most)
        trace.step("channels", "", self, bound, within)
        return _dealt_channels(call, nbytes, within)

    def turning(self, call: RuleCall, piece: Piece) -> SizeArray:
        """Sizes in bytes as in :class:`ShrinkThenCells`, for the bound within the fewest and the most blocks."""
        least, most = bound_ctas(call)
        return super().turning(call, replace(piece, bound=min(max(least, piece.bound), most)))


@RULES.variant(nccl.ADD_CBD_COLL_TO_PLAN(since="2.20.5"))
class ShrinkThenBytes(LaunchRule):
    """Bytes are cut into equal parts, one per channel of the bound, each rounded up to what a block moves at once."""

    def tuned_bounds(self, call: RuleCall, tables: Tables, nbytes: SizeArray, named: int) -> tuple[IntArray, IntArray]:
        """Bounds and threads as in :class:`LaunchRule`; no bound exceeds the number of channels (or of NVLS's)."""
        bound, threads = super().tuned_bounds(call, tables, nbytes, named)
        most = call.communicator.nvls_channels if call.like_nvls else call.communicator.coll_channels
        return np.minimum(bound, most), threads

    def _used(self, call: RuleCall, nbytes: SizeArray, bound: IntArray, threads: IntArray) -> IntArray:
        if call.like_collnet:
            return bound
        align_bytes, type_bytes = (
            given(call.limits.part_alignment_bytes, "limits.part_alignment_bytes"),
            call.request.device_dtype.size_bytes,
        )
        work_bytes = nbytes // np.uint64(call.request.parts(call.communicator.ranks))
        part_bytes = ceil_div(ceil_div(work_bytes, bound.astype(np.uint64)), align_bytes)
        part_bytes *= np.uint64(align_bytes)
        elements = np.asarray(elements_at_once(call, threads)).astype(np.uint64)
        part = ceil_div(ceil_div(part_bytes, np.uint64(type_bytes)), elements) * elements
        # A size of less than one element per rank, which no call has, gives no rank a part
        part = np.maximum(part, np.uint64(1))
        channels: IntArray = ceil_div(work_bytes // np.uint64(type_bytes), part).astype(np.int64)
        trace.step("channels", "", self, bound, channels)
        return channels

    def turning(self, call: RuleCall, piece: Piece) -> SizeArray:
        """Sizes in bytes at which the parts of the channels may grow.

        Between these sizes the parts keep their size, and the number of channels rises. It falls where the parts grow
        by what a block moves at once.

        If a part consists of at least as many such moves as there are channels, every channel of the bound has work.
        """
        if piece.bound == 1 or call.like_collnet:
            return NONE
        align_bytes = given(call.limits.part_alignment_bytes, "limits.part_alignment_bytes")
        at_once = int(elements_at_once(call, piece.threads)) * call.request.device_dtype.size_bytes
        part_bytes = at_once if at_once % align_bytes == 0 else align_bytes
        settled = piece.bound * piece.bound * (at_once + align_bytes)
        end = min(piece.high, call.request.parts(call.communicator.ranks) * settled)
        return _multiples(call, piece.bound * part_bytes, piece.low, end)


@RULES.variant(nccl.ADD_COLL_TO_PLAN(since="2.18.1"))
class ShrinkOnly(LaunchRule):
    """All channels of the bound."""

    def _used(self, call: RuleCall, nbytes: SizeArray, bound: IntArray, threads: IntArray) -> IntArray:
        return bound

    def turning(self, call: RuleCall, piece: Piece) -> SizeArray:
        """Returns no sizes in bytes: all channels of the bound are used, and it does not change within a piece."""
        return NONE


def elements_at_once(call: RuleCall, threads: Any) -> Any:
    """Elements that a block of this many threads (an int or an array of them) moves at once."""
    limits, type_bytes = call.limits, call.request.device_dtype.size_bytes
    if call.protocol is Protocol.Simple:
        return given(limits.simple_alignment_bytes, "limits.simple_alignment_bytes") // type_bytes
    if call.protocol is Protocol.LL128:
        return (
            given(limits.ll128_alignment_bytes_per_warp, "limits.ll128_alignment_bytes_per_warp")
            // type_bytes
            * (threads // limits.warp_size)
        )
    return given(limits.ll_alignment_bytes_per_thread, "limits.ll_alignment_bytes_per_thread") // type_bytes * threads


def ctas(communicator: Comm, request: Request) -> tuple[int, int]:
    """The fewest and the most blocks of a call, for which NCCL reads the environment again.

    NCCL does not read it again for a Broadcast without a configuration, which waits in a queue of its own (sic).
    """
    if request.collective is Collective.Broadcast and request.configuration is None:
        return communicator.ctas
    return call_configuration.ctas(communicator, request)


def bound_ctas(call: RuleCall) -> tuple[int, int]:
    """The lowest and the highest number of channels that a call's bound may have; if the highest is below the lowest,
    the highest applies.

    For calls on NVLS's channels NCCL reads the number of these channels from the environment again, and uses no more
    than that. It does so even if the number is below the fewest CTAs, although init raised NVLS's channels to the
    fewest CTAs. Source: scheduleCollTasksToPlan, src/enqueue/enqueue.cc, v2.31.2-1.
    """
    least, most = ctas(call.communicator, call.request)
    if call.like_nvls and (of_nvls := call_configuration.nvls_ctas(call.communicator, call.request)) is not None:
        most = min(most, of_nvls)
    return least, most


def cells_of(call: RuleCall) -> TrafficCells:
    """How the bytes of a call are cut into cells."""
    communicator, limits = call.communicator, call.limits
    most = communicator.nvls_channels if call.like_nvls else communicator.channels
    return TrafficCells(call.traffic_per_byte, most, limits.min_traffic_per_channel_bytes, limits.cell_alignment_bytes)


def _dealt_channels(call: RuleCall, nbytes: SizeArray, bound: IntArray) -> IntArray:
    """The number of channels that get work: the buffer is cut into cells with a minimum traffic, which are distributed
    evenly.

    Operations in which the network takes part use every channel of their bound.
    """
    if call.like_collnet:
        return bound
    cells = cells_of(call)
    # NCCL computes all of this in size_t, which is unsigned.
    count_bytes = np.maximum(nbytes // np.uint64(call.request.parts(call.communicator.ranks)), np.uint64(1))
    traffic = np.maximum(count_bytes * np.uint64(cells.per_byte), np.uint64(cells.least))
    even = traffic // np.minimum(bound, cells.channels).astype(np.uint64)
    per_channel = call.rules.traffic_per_channel(even, cells.least, cells.align_bytes)
    channels = call.rules.channel_split(cells, count_bytes, per_channel)
    trace.step("channels", "", call.rules.channel_split, bound, channels)
    return channels


def _multiples(call: RuleCall, step: int, low: int, high: int) -> SizeArray:
    """The sizes whose count is a multiple of ``step`` bytes, and the sizes with the next larger count."""
    parts = call.request.parts(call.communicator.ranks)
    first, last = low // (step * parts), high // (step * parts) + 2  # the cell before the next one counts, too
    if last - first > MOST:
        followed = (first + MOST - 1) * step * parts - 1
        raise TooManyRanges(
            f"{call.request.collective.name} may change its channels every {step * parts} bytes up to {high}, too "
            f"often to look at; valid: sizes to {followed}",
            followed,
        )
    sizes = np.arange(first, last, dtype=np.uint64) * np.uint64(step * parts)
    return np.concatenate([sizes, sizes + np.uint64(parts)])

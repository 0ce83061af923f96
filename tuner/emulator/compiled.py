"""A communicator's answers to one kind of call as a table of size ranges, in which a pick is looked up.

Algorithm, protocol, channels and threads of NCCL's pick change at some sizes, to the byte
(:mod:`tuner.emulator.ranges`), and are constant in between. The time is latency plus bytes over bandwidth; the model's
corrections change both at known sizes (:func:`tuner.emulator.ranges.breaks`). The ranges are cut at all these sizes,
and each range has the latency and the bandwidth of its pick. From these the time is computed in float32 and in NCCL's
order of operations, so that it equals the model's, bit for bit. If that is impossible (the latency changes within the
range, a penalty applies, or NCCL_CTA_POLICY moved the pick), the model (:class:`Selection`) answers for the range, or
instead of the whole table.

The lookup is compiled C (csrc/picks/lookup.c). A wheel for any platform has no compiled code; there NumPy does the
lookup.
"""

import ctypes
from bisect import bisect_right
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import TunerError
from tuner.base.names import ALGO_PROTOS, AlgoProto, Protocol
from tuner.base.numerics import SizeArray, ceil_div, f32
from tuner.emulator import ranges
from tuner.emulator.communicator import Comm
from tuner.emulator.ranges import followed
from tuner.emulator.request import MessageSizes, Request
from tuner.emulator.rules import registered
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.selection import Picks, Selection

LIBRARY = Path(__file__).parents[1] / "_native" / "libnccl_tuner_picks.so"
# The cost of a call of the model, of each of its sizes, and of making a table. A table is made when it would already
# have paid off.
MODEL_CALL_US, MODEL_SIZE_US, TABLE_US = 300.0, 0.2, 10_000.0
FRACTION_BITS = 5  # PICK_FRACTION_BITS of csrc/picks/lookup.h
ROW = np.dtype(
    {
        "names": ["bytes_per_us", "latency_us", "channels", "threads", "algorithm", "protocol"],
        "formats": [np.float32, np.float32, np.uint16, np.uint16, np.int8, np.int8],
        "offsets": [0, 4, 8, 10, 12, 13],
        "itemsize": 16,
    }
)


def with_clear_padding(rows: NDArray[Any], of: np.dtype[Any]) -> NDArray[Any]:
    """A copy of ``rows``, a structured array [row], whose padding bytes are zero.

    NumPy itself copies only the fields; files would contain whatever was in memory between them.
    """
    copied = np.zeros(len(rows), of)
    for name in of.names or ():
        copied[name] = rows[name]
    return copied


class _Table(ctypes.Structure):
    """``struct pick_table`` of csrc/picks."""

    _fields_ = (
        ("from_bytes", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("buckets", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """The pick of one range, as scalars and arrays of one element."""

    bytes_per_us: np.float32
    latency_us: np.float32
    algorithm: NDArray[np.int8]
    protocol: NDArray[np.int8]
    launch: tuple[NDArray[np.int64], NDArray[np.int64]]  # channels and threads

    @classmethod
    def of(cls, row: Any) -> "_Row | None":
        if not row["channels"]:
            return None
        types = {"algorithm": np.int8, "protocol": np.int8, "channels": np.int64, "threads": np.int64}
        arrays = [np.array([row[name]], dtype) for name, dtype in types.items()]
        for array in arrays:
            array.flags.writeable = False
        algorithm, protocol, channels, threads = arrays
        return cls(row["bytes_per_us"], row["latency_us"], algorithm, protocol, (channels, threads))


class PickTable:
    """Size ranges without gaps; each range has its pick and the constants of its time.

    ``from_bytes`` uint64 [range + 1]: the first sizes of the ranges, then the first size beyond them. ``rows`` [range]
    of the type ``ROW``: bytes_per_us and latency_us (float32, in us), channels, threads of a block, and NCCL's ids of
    algorithm and protocol. A row has 0 channels if the range's time is not of the form latency plus bytes over
    bandwidth.
    """

    def __init__(self, from_bytes: SizeArray, rows: NDArray[Any]) -> None:
        self.from_bytes, self.rows = np.ascontiguousarray(from_bytes, np.uint64), with_clear_padding(rows, ROW)
        self._starts: list[int] = self.from_bytes.tolist()
        self._library = _library()
        if self._library is not None:
            self._buckets = _buckets(self.from_bytes)
            arrays = self.from_bytes, self.rows, self._buckets
            self._table = _Table(*(array.ctypes.data for array in arrays), len(self.rows))

    def time_us(self, nbytes: int) -> np.float32 | None:
        """The time of one size, us; None if the table does not answer it."""
        row = self._row_of(nbytes)
        return None if row is None else f32(nbytes) / row.bytes_per_us + row.latency_us

    def pick(self, nbytes: int) -> tuple[Any, ...] | None:
        """The pick of one size: the arrays of :class:`Picks`, one element each; None if the table has no answer.

        Sizes of one range share the same arrays, which are read-only.
        """
        row = self._row_of(nbytes)
        if row is None:
            return None
        size = np.empty(1, np.uint64)
        size[0] = nbytes
        return (
            size,
            row.algorithm,
            row.protocol,
            np.array([f32(nbytes) / row.bytes_per_us + row.latency_us]),
            *row.launch,
        )

    def _row_of(self, nbytes: int) -> "_Row | None":
        at = bisect_right(self._starts, nbytes) - 1
        return self._each[at] if 0 <= at < len(self._each) else None

    @cached_property
    def _each(self) -> "list[_Row | None]":
        return [_Row.of(row) for row in self.rows]

    def look_up(self, sizes: SizeArray) -> tuple[Picks, int]:
        """Looks up the picks of ``sizes``, an array of uint64 above 0. Returns also how many of these sizes the table
        does not answer; they have 0 channels."""
        if self._library is None:
            return self._by_numpy(sizes)
        count, sizes = len(sizes), np.ascontiguousarray(sizes)
        algorithm, protocol = np.empty(count, np.int8), np.empty(count, np.int8)
        time_us = np.empty(count, np.float32)
        channels, threads = np.empty(count, np.uint16), np.empty(count, np.uint16)
        addresses = (array.ctypes.data for array in (algorithm, protocol, time_us, channels, threads))
        unanswered = self._library.nccl_tuner_pick(ctypes.byref(self._table), sizes.ctypes.data, count, *addresses)
        return Picks(sizes, algorithm, protocol, time_us, channels, threads), unanswered

    def _by_numpy(self, sizes: SizeArray) -> tuple[Picks, int]:
        at = np.searchsorted(self.from_bytes, sizes, side="right") - 1
        outside = (at < 0) | (at >= len(self.rows))
        at[outside] = 0
        rows = self.rows
        time_us = sizes.astype(np.float32)
        time_us /= rows["bytes_per_us"].take(at)
        time_us += rows["latency_us"].take(at)
        channels = rows["channels"].take(at)
        channels[outside] = 0
        found = rows["algorithm"].take(at), rows["protocol"].take(at), time_us, channels, rows["threads"].take(at)
        return Picks(sizes, *found), int(np.count_nonzero(channels == 0))


class CompiledSelection(Selection):
    """A selection that looks up picks in a table, once it was asked often enough to justify making the table."""

    def __init__(self, communicator: Comm) -> None:
        super().__init__(communicator)
        self._pick_tables: dict[Request, PickTable | None] = {}
        self._asked_us: dict[Request, float] = {}

    def pick_table(self, request: Request) -> PickTable | None:
        """The lookup table for the request's calls, which is made now if necessary; None if only the model can
        answer."""
        if request not in self._pick_tables:
            self._pick_tables[request] = None  # while the table is made, the model answers
            self._pick_tables[request] = pick_table(self, request)
        return self._pick_tables[request]

    def known_table(self, request: Request) -> PickTable | None:
        """The lookup table for the request's calls if it was made already, else None."""
        return self._pick_tables.get(request)

    def _classic_pick(self, request: Request, nbytes: SizeArray) -> Picks:
        table = self._table_that_pays(request, len(nbytes))
        if table is None:
            return self.model_pick(request, nbytes)
        found, unanswered = table.look_up(nbytes)
        if unanswered:
            left = found.channels == 0
            by_model = self.model_pick(request, nbytes[left])
            for array, computed in zip(found.stored[1:], by_model.stored[1:], strict=True):
                array[left] = computed
        return found

    def _table_that_pays(self, request: Request, count: int) -> PickTable | None:
        if request not in self._pick_tables:
            asked_us = self._asked_us.get(request, 0.0) + MODEL_CALL_US + MODEL_SIZE_US * count
            self._asked_us[request] = asked_us
            if asked_us < TABLE_US:
                return None
        return self.pick_table(request)


def pick_table(selection: Selection, request: Request, *, with_launches: bool = True) -> PickTable | None:
    """Makes the lookup table for one kind of call, up to 1 TiB, or less if channels change at too many sizes.

    If ``with_launches`` is false, a range ends only where algorithm or protocol changes, and every row says 1 channel
    and 0 threads instead of the real numbers. That keeps the table small even if channels change with every chunk, as
    for a broadcast in 2.22.3.

    None if these calls may bypass the algorithms, if NCCL_CTA_POLICY may move picks, if a tuner's answers may change
    from byte to byte, or if no range is left.
    """
    communicator = selection.communicator
    if selection.may_leave_classic_path(request):
        return None
    if communicator.tuner is not None and communicator.tuner.may_flicker(communicator, request):
        return None
    try:
        if registered.multicast_channels(communicator, selection.tables_of(request.collective), request) is not None:
            return None
        if with_launches:
            found = followed(selection, request, 1, ranges.FOLLOWED_BYTES)
        else:
            found = ranges.combinations(selection, request, 1)
    except TunerError:
        return None
    corrections = np.unique(np.array(ranges.breaks(selection), np.uint64))
    last = np.uint64(found.to_bytes[-1])
    starts = np.union1d(found.from_bytes, corrections[(corrections > found.from_bytes[0]) & (corrections <= last)])
    ends = np.append(starts[1:] - np.uint64(1), last)
    of_range = np.searchsorted(found.from_bytes, starts, side="right") - 1
    rows = np.zeros(len(starts), ROW)
    for name in ("algorithm", "protocol", "channels", "threads"):
        rows[name] = getattr(found, name)[of_range]
    if not with_launches:
        rows["channels"], rows["threads"] = 1, 0
    cells = rows["algorithm"].astype(np.int64) * len(Protocol) + rows["protocol"]
    for cell in np.unique(cells).tolist():
        here = np.flatnonzero(cells == cell)
        _fill_times(
            selection, RuleCall(communicator, request, ALGO_PROTOS[cell]), (rows, here, starts[here], ends[here])
        )
    table = PickTable(np.append(starts, last + np.uint64(1)), rows)
    return table if _is_the_model(selection, request, table, with_launches) else None


def cell_table(selection: Selection, request: Request, cell: AlgoProto) -> PickTable:
    """A lookup table of one candidate's times for a kind of call, at sizes at which it is picked and at all others.

    The table ends at ``FOLLOWED_BYTES``.

    Every row says 0 threads and 1 channel, or 0 channels if the table cannot give the time: NCCL ignores the cell, or
    its time is not latency plus bytes over bandwidth.
    """
    limits = [1, *ranges.breaks(selection), ranges.FOLLOWED_BYTES + 1]
    edges = np.unique(np.clip(np.array(limits, np.uint64), 1, limits[-1]))
    starts, ends = edges[:-1], edges[1:] - np.uint64(1)
    rows = np.zeros(len(starts), ROW)
    rows["algorithm"], rows["protocol"], rows["channels"] = *cell, 1
    every = np.arange(len(starts))
    _fill_times(selection, RuleCall(selection.communicator, request, cell), (rows, every, starts, ends))
    sizes = np.concatenate([starts, starts + (ends - starts) // np.uint64(2), ends])
    times_us = sizes.astype(np.float32) / np.tile(rows["bytes_per_us"], 3) + np.tile(rows["latency_us"], 3)
    other = (times_us != selection.cost_table(request, sizes)[:, *cell]).reshape(3, -1).any(axis=0)
    rows["channels"][other] = 0
    kept = [0, *(np.flatnonzero(rows[1:] != rows[:-1]) + 1).tolist()]
    return PickTable(np.append(starts[kept], edges[-1]), rows[kept])


def _fill_times(
    selection: Selection, call: RuleCall, of_cell: tuple[NDArray[Any], NDArray[np.int64], SizeArray, SizeArray]
) -> None:
    """Fills in the latency and bandwidth of the ranges of one cell. A range within which they change gets 0 channels.

    A range for which NCCL has no time also gets 0 channels: up to 2.21, a tuner may name a cell that NCCL ignores.
    """
    rows, here, starts, ends = of_cell
    if call.algo_proto in selection.excluded(call.request):
        rows["channels"][here] = 0
        return
    latency_us, bandwidth_gbs = selection.model_of(call)
    sizes = np.concatenate([starts, starts + (ends - starts) // np.uint64(2), ends])
    corrected = timing.corrected(latency_us, bandwidth_gbs, call, MessageSizes(sizes))
    latency, bandwidth = (np.broadcast_to(np.asarray(each, f32), sizes.shape).reshape(3, -1) for each in corrected)
    rows["latency_us"][here] = latency[0] * f32(ceil_div(call.request.pipelined, timing.per_batch(call)))
    rows["bytes_per_us"][here] = f32(1000) * bandwidth[0]
    times = np.ones(1, np.float32)
    penalised = timing.penalised(times, call)[0] != times[0]
    changes = (latency != latency[0]).any(axis=0) | (bandwidth != bandwidth[0]).any(axis=0) | penalised
    rows["channels"][here[changes]] = 0


def _is_the_model(selection: Selection, request: Request, table: PickTable, with_launches: bool) -> bool:
    """Whether the table equals the model, bit for bit, at the first, the middle and the last size of its ranges."""
    starts, ends = table.from_bytes[:-1], table.from_bytes[1:] - np.uint64(1)
    sizes = np.concatenate([starts, starts + (ends - starts) // np.uint64(2), ends])
    (looked, _), picks = table.look_up(sizes), selection.model_pick(request, sizes)
    there = looked.channels > 0
    return all(
        np.array_equal(getattr(looked, name)[there], getattr(picks, name)[there])
        for name in ("algorithm", "protocol", "time_us", *(("channels", "threads") if with_launches else ()))
    )


def _buckets(from_bytes: SizeArray) -> NDArray[np.uint32]:
    """The index of the range that contains the first size of each bucket.

    As in C, a bucket is one of 32 equal parts of a power of two.
    """
    parts = 1 << FRACTION_BITS
    firsts = [(parts + part << high) >> FRACTION_BITS for high in range(64) for part in range(parts)]
    at = np.searchsorted(from_bytes, np.array(firsts, np.uint64), side="right").astype(np.int64) - 1
    return np.clip(at, 0, len(from_bytes) - 2).astype(np.uint32)


@cache
def _library() -> Any:
    """The compiled library csrc/picks; None if it was not built."""
    try:
        library: Any = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None
    address, count = ctypes.c_void_p, ctypes.c_size_t
    library.nccl_tuner_pick.restype = count
    library.nccl_tuner_pick.argtypes = (address, address, count, address, address, address, address, address)
    return library

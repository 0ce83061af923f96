"""At which sizes ranks would choose differently, to the byte."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.base import breakpoints
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import SizeArray
from tuner.emulator.ranges import FOLLOWED_BYTES, Ranges, launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.plugin.asked import opened
from tuner.plugin.formats import convert

NOTHING = (-1, -1, 0, 0)  # NCCL fails the call
UNSAID = 0  # threads
Labels = Callable[[SizeArray], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class RankPick:
    """What the ranks of one setting run; ``threads`` of a block where ranks part by them, too, else None.

    Channels that a decision table sets are an upper bound, which NCCL may deal out otherwise.
    """

    algorithm: Algorithm
    protocol: Protocol
    channels: int
    threads: int | None

    @property
    def name(self) -> str:
        """Algorithm, protocol and channels: ``Ring/LL x8``."""
        return f"{self.algorithm.name}/{self.protocol.name} x{self.channels}"


@dataclass(frozen=True, slots=True)
class Parting:
    """Sizes (nBytes), both ends among them, at which not all run the same; ``picks`` in the order of the settings.

    None where NCCL fails the call on these ranks.
    """

    collective: Collective
    from_bytes: int
    to_bytes: int
    picks: tuple[RankPick | None, ...]


@dataclass(frozen=True, slots=True)
class Asking:
    """What ranks of one setting choose by; ``table`` is the decision table that their plugin reads."""

    selection: Selection
    table: Path | None = None


def partings(
    ranks: Sequence[Asking], request: Request, low: int | None = None, high: int = FOLLOWED_BYTES
) -> list[Parting]:
    """The ranges of sizes at which the settings' ranks part, ascending. Sizes are from one element to ``high``.

    Threads count for releases whose blocks divide their data by them. Neighbours with the same picks are one range.
    Errors: those of :func:`tuner.emulator.ranges.launches`, BadTable.
    """
    if not any(asking.selection.usable(request) for asking in ranks):
        return []
    first = low or request.unit_bytes(ranks[0].selection.communicator.ranks)
    with ExitStack() as stack:
        sides = [_side(asking, request, first, high, stack) for asking in ranks]
        starts = np.unique(np.concatenate([_starts(side, first, high) for side in sides]))
        labelled = np.stack([side(starts) for side in sides], axis=1)  # [size][setting][label]
    threads_count = any(asking.selection.communicator.release.ranks.threads_divide_data for asking in ranks)
    if not threads_count or any(asking.table for asking in ranks):  # the plugin does not say them
        labelled[:, :, 3] = UNSAID
    differ = (labelled != labelled[:, :1]).any(axis=(1, 2))
    begins = np.append(True, (labelled[1:] != labelled[:-1]).any(axis=(1, 2)))
    ends = np.append(starts[1:] - np.uint64(1), np.uint64(high))
    made = list[Parting]()
    for at in np.flatnonzero(differ):
        if made and not begins[at] and differ[at - 1]:
            made[-1] = Parting(request.collective, made[-1].from_bytes, int(ends[at]), made[-1].picks)
        else:
            picks = tuple(_pick(label) for label in labelled[at].tolist())
            made.append(Parting(request.collective, int(starts[at]), int(ends[at]), picks))
    return made


@dataclass(frozen=True, slots=True)
class _Side:
    """One setting's labels by size: algorithm, protocol, channels, threads; and where NCCL's own begin."""

    labels: Labels
    own: SizeArray
    followed: bool  # whether other sizes than NCCL's own begin a range

    def __call__(self, sizes: SizeArray) -> NDArray[np.int64]:
        return self.labels(sizes)


def _side(asking: Asking, request: Request, low: int, high: int, stack: ExitStack) -> _Side:
    ranges = ranges_of(asking.selection, request, low, high)

    def own(sizes: SizeArray) -> NDArray[np.int64]:
        labels = np.tile(np.array(NOTHING, np.int64), (len(sizes), 1))
        if ranges is not None:
            at = np.searchsorted(ranges.from_bytes, sizes, side="right").astype(np.int64) - 1
            runs = (at >= 0) & (sizes <= ranges.to_bytes[-1])
            columns = (ranges.algorithm, ranges.protocol, ranges.channels, ranges.threads)
            labels[runs] = np.column_stack([column[at[runs]] for column in columns])
        return labels

    begins = np.array([low], np.uint64) if ranges is None else ranges.from_bytes
    if asking.table is None or ranges is None:
        return _Side(own, begins, followed=False)
    asked = stack.enter_context(opened(asking.table, asking.selection))

    def with_table(sizes: SizeArray) -> NDArray[np.int64]:
        labels, costs_us = own(sizes), asking.selection.cost_table(request, sizes)
        for at, size in enumerate(sizes.tolist()):
            call = asked.call(request, size)
            followed = asking.selection.communicator.tuner is not None and asked.rows(call, costs_us[at]).undecided
            tuned = None if followed else asked.answer(call, costs_us[at])
            if tuned is not None:
                channels = asking.selection.channels(request, size, tuned.algo_proto)
                labels[at] = (*tuned.algo_proto, min(channels, tuned.channels or channels), 0)
        return labels

    return _Side(with_table, np.union1d(begins, _row_ends(asking, low, high)), followed=True)


@lru_cache(maxsize=256)
def ranges_of(selection: Selection, request: Request, low: int | None, high: int) -> Ranges | None:
    """:func:`tuner.emulator.ranges.launches`; None where no algorithm can run. Errors: its others."""
    try:
        return launches(selection, request, low, high)
    except NoAlgorithm:
        return None


def _starts(side: _Side, low: int, high: int) -> SizeArray:
    return breakpoints.find(side, low, high, side.own, steps=0) if side.followed else side.own


def _row_ends(asking: Asking, low: int, high: int) -> SizeArray:
    """Sizes at which rows of the table begin, or are over."""
    assert asking.table is not None
    table, ranks = convert.read(asking.table).table, asking.selection.communicator.ranks
    ends = set[int]()
    for row in (*table.decisions, *table.costs):
        for interval, factor in ((row.bytes, 1), (row.bytes_per_rank, ranks)):
            ends.add(interval.low * factor)
            if interval.high is not None:
                ends.add((interval.high + 1) * factor)
    return np.array(sorted(end for end in ends if low <= end <= high), np.uint64)


def _pick(label: Sequence[int]) -> RankPick | None:
    algorithm, protocol, channels, threads = label
    if algorithm < 0:
        return None
    return RankPick(Algorithm(algorithm), Protocol(protocol), channels, None if threads == UNSAID else threads)

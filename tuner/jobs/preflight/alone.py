"""Effect of one difference by itself: a communicator of ranks alike but for this, against one without it."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.base import breakpoints
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import SizeArray, shortest
from tuner.base.sizes import human_bytes
from tuner.emulator.ranges import FOLLOWED_BYTES, Ranges, launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.jobs.preflight import differences as named
from tuner.jobs.preflight.differences import Reach
from tuner.jobs.preflight.settings import Assembled, HostsAlike, RankSetting, Views
from tuner.plugin.asked import opened
from tuner.plugin.formats import convert

NOTHING = (-1, -1, 0, 0)  # NCCL fails the call
UNSAID = 0  # threads
Labels = Callable[[SizeArray], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class RankPick:
    """Choice of the ranks of one setting; ``threads`` of a block where ranks differ in them, too, else None.

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
class DifferingPicks:
    """Sizes (nBytes), both ends among them, at which not all run the same; ``picks`` in the order of the settings.

    None where NCCL fails the call on these ranks.
    """

    collective: Collective
    from_bytes: int
    to_bytes: int
    picks: tuple[RankPick | None, ...]


@dataclass(frozen=True, slots=True)
class Asking:
    """Selection of ranks of one setting; ``table`` is the decision table that their plugin reads."""

    selection: Selection
    table: Path | None = None


def differing_picks(
    ranks: Sequence[Asking], request: Request, low: int | None = None, high: int = FOLLOWED_BYTES
) -> list[DifferingPicks]:
    """Ranges of sizes at which the ranks choose differently, ascending. Sizes are from one element to ``high``.

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
    made = list[DifferingPicks]()
    for at in np.flatnonzero(differ):
        if made and not begins[at] and differ[at - 1]:
            made[-1] = DifferingPicks(request.collective, made[-1].from_bytes, int(ends[at]), made[-1].picks)
        else:
            picks = tuple(_pick(label) for label in labelled[at].tolist())
            made.append(DifferingPicks(request.collective, int(starts[at]), int(ends[at]), picks))
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


PRICED_BYTES = tuple(1 << power for power in range(10, 34, 2))  # sizes whose times are compared
OF_THE_NODE = frozenset({named.PROCESSOR, named.GPUS, named.ADAPTERS, named.TOPOLOGY, named.RANKS_OF_HOST})
ADAPTER_KEYS = ("nics", "nic-gbps")


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """Sizes that are asked about, in nBytes; ``low`` None: from one element."""

    low: int | None
    high: int


@dataclass(frozen=True, slots=True)
class ChoiceCost:
    """The most that a call takes longer by NCCL's own times, where all ranks choose the same: a ratio of times."""

    collective: Collective
    bytes: int
    ratio: float

    @property
    def in_words(self) -> str:
        """The cost in per cent, and where."""
        per_cent = 100 * (self.ratio - 1)
        where = f"{self.collective.name}, {human_bytes(self.bytes)}"
        return f"what differs costs up to {per_cent:.1f} % by NCCL's times ({where})"


def asking(views: Views) -> list[Asking]:
    """Each setting's ranks as they choose. Errors: those of :meth:`Views.of`."""
    return [Asking(views.selection(setting), setting.table) for setting in views.settings]


def all_differing_picks(views: Views, requests: Iterable[Request], over: SizeBounds) -> list[DifferingPicks]:
    """Sizes at which ranks choose differently. Errors: those of :func:`differing_picks` and :meth:`Views.of`."""
    if len(views.settings) < 2:
        return []
    asked = asking(views)
    return [each for request in requests for each in differing_picks(asked, request, over.low, over.high)]


def reach_of(what: str, assembled: Assembled, requests: Sequence[Request], over: SizeBounds) -> Reach:
    """Reach of a difference by its name, were it the only one. Errors: those of :func:`all_differing_picks`."""
    common = assembled.common
    hosts = [
        HostsAlike(tuple(dict.fromkeys(_only(what, common, each) for each in hosts.settings)), hosts.count)
        for hosts in assembled.hosts
    ]
    views = Views(hosts)
    if views.settings == (common,):
        return Reach.nothing
    if all_differing_picks(views, requests, over):
        return Reach.parts
    return changed(views, common, requests, over)


def changed(views: Views, common: RankSetting, requests: Sequence[Request], over: SizeBounds) -> Reach:
    """Compare choices and times of ranks that choose alike with those of ranks that all have the common setting."""
    here, without = views.selection(views.settings[0]), _all(views, common)
    if any(not _same_choices(here, without, request, over) for request in requests):
        return Reach.alike
    return Reach.speed if cost(views, common, requests) is not None else Reach.nothing


def cost(views: Views, common: RankSetting, requests: Iterable[Request]) -> ChoiceCost | None:
    """The greatest loss beside ranks with the common setting alone; None where no time changes."""
    here, without = views.selection(views.settings[0]), _all(views, common)
    found = []
    for request in requests:
        if here.usable(request) and without.usable(request):
            times_us, before_us = (each.pick(request, PRICED_BYTES).time_us for each in (here, without))
            ratios = times_us / before_us
            at = int(np.argmax(ratios))
            if (ratios != 1).any():
                found.append(ChoiceCost(request.collective, PRICED_BYTES[at], shortest(ratios[at])))
    return max(found, key=lambda each: each.ratio, default=None)


def _all(views: Views, common: RankSetting) -> Selection:
    return Views([HostsAlike((common,), sum(hosts.count for hosts in views.hosts))]).selection(common)


def _same_choices(here: Selection, without: Selection, request: Request, over: SizeBounds) -> bool:
    if here.usable(request) != without.usable(request):
        return False
    ranges = [ranges_of(each, request, over.low, over.high) for each in (here, without)]
    first, second = (
        None if each is None else np.column_stack([each.from_bytes, each.algorithm, each.protocol, each.channels])
        for each in ranges
    )
    if first is None or second is None:
        return True
    return np.array_equal(first, second)


def _only(what: str, common: RankSetting, other: RankSetting) -> RankSetting:
    """The common setting with this of another one's."""
    if what == named.RELEASE:
        return replace(common, nccl=other.nccl)
    if what in (named.TABLE, named.TUNER_PLUGIN):
        return replace(common, table=other.table, cloud_tuner=other.cloud_tuner)
    if what == named.NETWORK_PLUGIN:
        return replace(common, cloud_tuner=other.cloud_tuner)
    if what not in OF_THE_NODE:
        values, given = dict(common.environment), dict(other.environment)
        values.pop(what, None)
        more = {what: given[what]} if what in given else {}
        return replace(common, environment=tuple(sorted({**values, **more}.items())))
    own, theirs = common.place, other.place
    if own.machine is None or own.machine != theirs.machine:
        return replace(common, place=theirs)
    if what == named.RANKS_OF_HOST:
        return replace(common, place=replace(own, gpus=theirs.gpus))
    keys = ("cpu",) if what == named.PROCESSOR else ADAPTER_KEYS if what == named.ADAPTERS else ()
    kept = [(key, value) for key, value in own.hardware if key not in keys]
    taken = [(key, value) for key, value in theirs.hardware if key in keys]
    return replace(common, place=replace(own, hardware=tuple(sorted([*kept, *taken]))))

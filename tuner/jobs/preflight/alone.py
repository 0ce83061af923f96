"""Computes the effect of one difference by itself: compares a communicator whose ranks only have this difference with
one without it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import NoAlgorithm, TooManyRanges
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.base.numerics import SizeArray, shortest
from tuner.base.sizes import human_bytes
from tuner.emulator.ranges import FOLLOWED_BYTES, Ranges, combinations, launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.jobs.preflight import differences as named
from tuner.jobs.preflight.differences import Reach
from tuner.jobs.preflight.settings import Assembled, HostsAlike, RankSetting, Views

NOTHING = (-1, -1, 0, 0)  # NCCL fails the call
UNSAID = 0  # threads


@dataclass(frozen=True, slots=True)
class RankPick:
    """What ranks with one setting choose. ``threads`` is the number of threads per block if ranks also differ in it,
    else None.
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
    """A range of sizes (nBytes, both ends included) at which ranks choose differently; ``picks`` has one pick per
    setting, in the order of the settings.

    A pick is None if the call fails on the ranks with that setting.
    """

    collective: Collective
    from_bytes: int
    to_bytes: int
    picks: tuple[RankPick | None, ...]


def differing_picks(
    ranks: Sequence[Selection], request: Request, low: int | None = None, high: int = FOLLOWED_BYTES
) -> list[DifferingPicks]:
    """Ranges of sizes at which the ranks choose differently, in ascending order, from ``low`` (None: one element) to
    ``high``.

    Threads are compared in releases whose blocks divide their data by them. Neighbouring ranges with the same picks are
    merged. If channels change too often to check each change, such as with a table under NCCL 2.22, channels are only
    compared at sizes at which an algorithm, a protocol or a tuner's answer changes, and at eight sizes per power of
    two. Raises BadInput, NoAlgorithm and BadTable.
    """
    if not any(selection.usable(request) for selection in ranks):
        return []
    first = low or request.unit_bytes(ranks[0].communicator.ranks)
    sides = [ranges_of(selection, request, first, high) for selection in ranks]
    begun = [side.from_bytes for side in sides if side is not None]
    starts = np.unique(np.concatenate([_between(ranks, request, first, high), *begun]))
    labelled = np.stack([_labels(*side, request, starts) for side in zip(ranks, sides, strict=True)], axis=1)
    if not any(selection.communicator.release.ranks.threads_divide_data for selection in ranks):
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


def _between(ranks: Sequence[Selection], request: Request, low: int, high: int) -> SizeArray:
    """Eight sizes per power of two, and the sizes at which a tuner's answer changes."""
    sizes = {round(size) for size in np.geomspace(low, high, 8 * (high // low).bit_length())}
    for selection in ranks:
        if (tuner := selection.communicator.tuner) is not None:
            sizes |= {size for size in tuner.breaks(selection.communicator, request) if low <= size <= high}
    return np.array(sorted({low, *sizes}), np.uint64)


def _labels(selection: Selection, ranges: Ranges | None, request: Request, sizes: SizeArray) -> NDArray[np.int64]:
    """Array [size][4] of algorithm, protocol, channels and threads."""
    labels = np.tile(np.array(NOTHING, np.int64), (len(sizes), 1))
    if ranges is not None:
        runs = (sizes >= ranges.from_bytes[0]) & (sizes <= ranges.to_bytes[-1])
        picks = selection.pick(request, sizes[runs])
        labels[runs] = np.column_stack([picks.algorithm, picks.protocol, picks.channels, picks.threads])
    return labels


@lru_cache(maxsize=256)
def ranges_of(selection: Selection, request: Request, low: int | None, high: int) -> Ranges | None:
    """The ranges of sizes with the same algorithm, protocol, channels and threads.

    If there are too many such ranges, they only distinguish algorithm and protocol. None if no algorithm can run.
    Raises BadInput.
    """
    try:
        return launches(selection, request, low, high)
    except TooManyRanges:
        return combinations(selection, request, low, high)
    except NoAlgorithm:
        return None


def _pick(label: Sequence[int]) -> RankPick | None:
    algorithm, protocol, channels, threads = label
    if algorithm < 0:
        return None
    return RankPick(Algorithm(algorithm), Protocol(protocol), channels, None if threads == UNSAID else threads)


PRICED_BYTES = tuple(1 << power for power in range(10, 34, 2))  # sizes whose times are compared
OF_THE_NODE = frozenset(
    {named.PROCESSOR, named.GPUS, named.ADAPTERS, named.INTERFACES, named.TOPOLOGY, named.RANKS_OF_HOST}
)
ADAPTER_KEYS = ("nics", "nic-gbps", "gpudirect")


@dataclass(frozen=True, slots=True)
class ChoiceCost:
    """The largest slowdown of a call that a difference causes, by NCCL's own times, if all ranks choose the same.

    ``ratio`` is the call's time with the difference divided by its time without it.
    """

    collective: Collective
    bytes: int
    ratio: float

    @property
    def in_words(self) -> str:
        """A sentence on the cost in per cent, and for which call."""
        per_cent = 100 * (self.ratio - 1)
        where = f"{self.collective.name}, {human_bytes(self.bytes)}"
        return f"what differs costs up to {per_cent:.1f} % by NCCL's times ({where})"


def _ends(over: Span) -> tuple[int | None, int]:
    """The first size in nBytes (None: one element), and the last; :data:`FOLLOWED_BYTES` if it has no end."""
    return over.low or None, FOLLOWED_BYTES if over.high is None else over.high


def all_differing_picks(views: Views, requests: Iterable[Request], over: Span) -> list[DifferingPicks]:
    """Ranges of sizes in ``over`` (nBytes; from 0: from one element) at which ranks choose differently. Raises
    BadInput, BadTable and UnknownRelease.
    """
    if len(views.settings) < 2:
        return []
    asked = [views.selection(setting) for setting in views.settings]
    return [each for request in requests for each in differing_picks(asked, request, *_ends(over))]


def reach_of(what: str, assembled: Assembled, requests: Sequence[Request], over: Span) -> Reach:
    """The effect of the named difference if it were the only one. Raises BadInput, BadTable and UnknownRelease."""
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


def changed(views: Views, common: RankSetting, requests: Sequence[Request], over: Span) -> Reach:
    """The effect of differences on ranks that choose the same in spite of them: compares their choices and times with
    those of ranks that all have the common setting."""
    here, without = views.selection(views.settings[0]), _all(views, common)
    if any(not _same_choices(here, without, request, over) for request in requests):
        return Reach.alike
    return Reach.speed if cost(views, common, requests) is not None else Reach.nothing


def cost(views: Views, common: RankSetting, requests: Iterable[Request]) -> ChoiceCost | None:
    """The largest loss compared with ranks that all have the common setting; None if no time changes."""
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


def _same_choices(here: Selection, without: Selection, request: Request, over: Span) -> bool:
    if here.usable(request) != without.usable(request):
        return False
    ranges = [ranges_of(each, request, *_ends(over)) for each in (here, without)]
    first, second = (
        None if each is None else np.column_stack([each.from_bytes, each.algorithm, each.protocol, each.channels])
        for each in ranges
    )
    if first is None or second is None:
        return True
    return np.array_equal(first, second)


def _only(what: str, common: RankSetting, other: RankSetting) -> RankSetting:
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
    keys = ("cpu",) if what == named.PROCESSOR else ADAPTER_KEYS if what in (named.ADAPTERS, named.INTERFACES) else ()
    kept = [(key, value) for key, value in own.hardware if key not in keys]
    taken = [(key, value) for key, value in theirs.hardware if key in keys]
    return replace(common, place=replace(own, hardware=tuple(sorted([*kept, *taken]))))

"""What one difference does by itself: a communicator of ranks that are alike but for this, against one without it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.base.names import Collective
from tuner.base.numerics import shortest
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.jobs.preflight import differences as named
from tuner.jobs.preflight.parting import Asking, Parting, partings, ranges_of
from tuner.jobs.preflight.reach import Reach
from tuner.jobs.preflight.settings import Assembled
from tuner.jobs.preflight.views import Hosts, Setting, Views

PRICED_BYTES = tuple(1 << power for power in range(10, 34, 2))  # sizes whose times are compared
OF_THE_NODE = frozenset({named.PROCESSOR, named.GPUS, named.ADAPTERS, named.TOPOLOGY, named.RANKS_OF_HOST})
ADAPTER_KEYS = ("nics", "nic-gbps")


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes that are asked about, in nBytes; ``low`` None: from one element."""

    low: int | None
    high: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The most that a call takes longer by NCCL's own times, where all ranks choose the same: a ratio of times."""

    collective: Collective
    bytes: int
    ratio: float


def asking(views: Views) -> list[Asking]:
    """Each setting's ranks as they choose. Errors: those of :meth:`Views.of`."""
    return [Asking(views.selection(setting), setting.table) for setting in views.settings]


def parted(views: Views, requests: Iterable[Request], over: Range) -> list[Parting]:
    """Where the settings part, of all requests. Errors: those of :func:`partings` and :meth:`Views.of`."""
    if len(views.settings) < 2:
        return []
    asked = asking(views)
    return [each for request in requests for each in partings(asked, request, over.low, over.high)]


def reach_of(what: str, assembled: Assembled, requests: Sequence[Request], over: Range) -> Reach:
    """What a difference by its name does, were it the only one. Errors: those of :func:`parted`."""
    common = assembled.common
    hosts = [
        Hosts(tuple(dict.fromkeys(_only(what, common, each) for each in hosts.settings)), hosts.count)
        for hosts in assembled.hosts
    ]
    views = Views(hosts)
    if views.settings == (common,):
        return Reach.nothing
    if parted(views, requests, over):
        return Reach.parts
    return changed(views, common, requests, over)


def changed(views: Views, common: Setting, requests: Sequence[Request], over: Range) -> Reach:
    """What the choices and times of ranks that do not part are beside those of ranks with the common setting alone."""
    here, without = views.selection(views.settings[0]), _all(views, common)
    if any(not _same_choices(here, without, request, over) for request in requests):
        return Reach.alike
    return Reach.speed if cost(views, common, requests) is not None else Reach.nothing


def cost(views: Views, common: Setting, requests: Iterable[Request]) -> Cost | None:
    """The greatest loss beside ranks with the common setting alone; None where no time changes."""
    here, without = views.selection(views.settings[0]), _all(views, common)
    found = []
    for request in requests:
        if here.usable(request) and without.usable(request):
            times_us, before_us = (each.pick(request, PRICED_BYTES).time_us for each in (here, without))
            ratios = times_us / before_us
            at = int(np.argmax(ratios))
            if (ratios != 1).any():
                found.append(Cost(request.collective, PRICED_BYTES[at], shortest(ratios[at])))
    return max(found, key=lambda each: each.ratio, default=None)


def _all(views: Views, common: Setting) -> Selection:
    return Views([Hosts((common,), sum(hosts.count for hosts in views.hosts))]).selection(common)


def _same_choices(here: Selection, without: Selection, request: Request, over: Range) -> bool:
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


def _only(what: str, common: Setting, other: Setting) -> Setting:
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

"""Searches that go just as one in vain at another bandwidth did, and need no tries.

NCCL asks for one bandwidth after the other. Where each link, from each amount that a search found it with, has enough
left at one bandwidth just where it has at the other, both searches go the same way. What they compare differs: so the
channels that were laid are compared with the best graph anew. Only where all that is taken is given back exactly.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from tuner.base.numerics import f32
from tuner.graphs.compare import better
from tuner.graphs.load import Looked, given_by, in_thousandths, less_by, taken_by
from tuner.graphs.trial import Trial
from tuner.release.search import Channels

Tables = Sequence[Looked]  # by what is taken of a link; all looked up from one bandwidth on


@dataclass(frozen=True, slots=True)
class InVain:
    """How a search went that found nothing better, and left every link and adapter as it was."""

    gbs: float  # of a channel
    links: tuple[tuple[float, Tables], ...]  # by what was left before
    fewest_hops: dict[int, int]  # by the number of channels laid
    left: int  # tries


class Alike:
    """The searches in vain of one system."""

    def __init__(self, gpus: int, rules: Channels) -> None:
        self.gpus, self.rules = gpus, rules
        self._in_vain: dict[Hashable, list[InVain]] = {}

    def left(self, key: Hashable, trial: Trial, best: Trial, nets: Sequence[float]) -> int | None:
        """The tries that a search leaves, by one that went the same way in vain; None where none is known to have."""
        for known in self._in_vain.get(key, ()):
            if not self._finds(known, trial, best) and _same_way(known, trial, nets):
                return known.left
        return None

    def _finds(self, known: InVain, trial: Trial, best: Trial) -> bool:
        """Whether any of the channels laid is better than the best graph by now."""
        laid = (replace(trial, channels=channels, hops=hops) for channels, hops in known.fewest_hops.items())
        return any(better(each, best, self.gpus, self.rules) for each in laid)

    def remember(
        self,
        key: Hashable,
        trial: Trial,
        looked: Iterable[tuple[float, Looked]],
        fewest_hops: dict[int, int],
        left: int,
    ) -> None:
        """Keeps a search in vain."""
        by_start = groupby(sorted(looked, key=itemgetter(0)), key=itemgetter(0))
        links = tuple((start, tuple(table for _, table in tables)) for start, tables in by_start)
        self._in_vain.setdefault(key, []).append(InVain(trial.bw_intra, links, fewest_hops, left))


def _amounts(gbs: float) -> list[float]:
    """All that a channel may take of a link: its bandwidth, or half of it; with overhead, and of the way back."""
    parts = (gbs, gbs / 2)
    return [amount for part in parts for amount in (part, float(f32(part) * f32(6) / f32(5)), part / 8)]


def _same_way(known: InVain, trial: Trial, nets: Sequence[float]) -> bool:
    laid = max(known.fewest_hops, default=0)
    whole = int(known.gbs), int(trial.bw_inter)
    if not all(_same_adapter(left, whole, laid) for left in set(nets)):
        return False
    amounts = {0.0: 0.0, **dict(zip(_amounts(known.gbs), _amounts(trial.bw_intra), strict=True))}
    return all(_same_link(start, tables, amounts) for start, tables in known.links)


def _same_adapter(left: float, whole: tuple[int, int], laid: int) -> bool:
    """Whether both have enough left for a channel at the same times, after up to so many that were laid."""
    have = left, left
    for _ in range(laid + 1):
        rest = less_by(whole[0])[have[0]], less_by(whole[1])[have[1]]
        exact = all(less_by(-each)[less] == before for each, less, before in zip(whole, rest, have, strict=True))
        if not exact or (have[0] < whole[0]) != (have[1] < whole[1]):
            return False
        have = rest
    return True


def _same_link(start: float, tables: Tables, amounts: dict[float, float]) -> bool:
    """Whether a link refuses at the same times: ``amounts`` are those taken now, by those taken then."""
    if not all(table.gbs in amounts and in_thousandths(amounts[table.gbs]) for table in tables):
        return False
    steps = [(table, given_by(table.gbs), taken_by(now := amounts[table.gbs]), given_by(now)) for table in tables]
    pairs = [(start, start)]
    met = set(pairs)
    while pairs:
        then, now = pairs.pop()
        for looked, back_then, taken, back_now in steps:
            if then not in looked:
                continue
            rest_then, rest_now = looked[then], taken[now]
            if (rest_then is None) != (rest_now is None):
                return False
            if rest_then is None or rest_now is None:
                continue
            if back_then[rest_then] != then or back_now[rest_now] != now:
                return False
            if (rest_then, rest_now) not in met:
                met.add((rest_then, rest_now))
                pairs.append((rest_then, rest_now))
    return True

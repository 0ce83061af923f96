"""Three memories that spare the search what NCCL does again in vain; all of them only count the tries that it costs.

NCCL's search is depth first and limited by a number of tries, so where it stops depends on every try, useless ones too:
a memory must say how many tries a repetition takes, and how it leaves bandwidths, not only that it finds nothing.

* A transposition table (:class:`TranspositionTable`), as in programs that play chess: within one search the same state
  is reached by many orders of the same moves. Its key is all that the rest of the search can depend on.
* :class:`FailedSearches`: whole searches that are asked for again, as NCCL steps through path types that no path has.
* :class:`EquivalentSearches`: whole searches at another bandwidth that go just the same way, as each link has enough
  left at one bandwidth wherever it has at the other.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from tuner.base.names import Pattern
from tuner.base.numerics import f32
from tuner.graphs.load import Load, Looked, given_by, in_thousandths, less_by, taken_by
from tuner.graphs.nets import Nets
from tuner.graphs.system import Kind, System
from tuner.graphs.trial import Recorder, Rejections, Trial, better
from tuner.release.search import Channels

NOWHERE = -1
# After so many looks in searches of a kind, each has to have saved so many tries, or no more are made.
LOOKS, WORTH = 2048, 2


@dataclass(frozen=True, slots=True)
class SearchState:
    """A state of the search: where a channel is gone on from, with what was left, found and tried by then."""

    key: Hashable
    links: tuple[float, ...]
    adapters: tuple[float, ...]
    left: int  # tries
    found: int  # better graphs so far
    channel: int
    repeated: int | None  # how often the order of the channel's GPUs was; None where the key has all that may be
    refused: Rejections | None  # so far, where it is written down


@dataclass(frozen=True, slots=True)
class _DeadEnd:
    """A state from which nothing better is found: the tries that it takes, and what rejected there."""

    tries: int
    latency_us: float
    refused: Rejections | None


class TranspositionTable:
    """States of one search at a time from which channels were laid in vain: what led there another way is not tried.

    What is tried from a state goes by the links and adapters that are left, the GPUs of the channel, and its adapters,
    and by those of the last one where channels alternate; by the order of the channel's GPUs only where the next
    channel repeats it: then a state within the channel is not stored, and one between channels has that order in its
    key. What rejected links on the way is counted once more each time.
    """

    def __init__(self, load: Load, nets: Nets, net_left: list[float]) -> None:
        self.load, self.nets, self.net_left = load, nets, net_left
        self.looks, self.saved = Counter[Hashable](), Counter[Hashable]()  # tries, by the kind of search
        self.trial: Trial
        self.recorder: Recorder | None = None

    def begin(self, trial: Trial) -> None:
        """Empties the table, for another search."""
        self.trial = trial
        self.kind = trial.pattern, trial.cross_nic
        self.repeated = Counter[int]()  # how often the order of a channel's GPUs was, by channel
        self.found = 0  # better graphs
        self._dead_ends: dict[Hashable, _DeadEnd] = {}

    @property
    def worth_it(self) -> bool:
        """Whether looking saves more than it costs."""
        looks = self.looks[self.kind]
        return looks < LOOKS or self.saved[self.kind] > WORTH * looks

    def within_channel(self, at: tuple[int, ...], left: int) -> SearchState:
        """The state of the search at a GPU of the channel that is laid."""
        trial, channel = self.trial, self.trial.channels
        entered, exited = trial.inter[channel]
        first = trial.intra[channel][0] if at[1] else NOWHERE
        has_exited = at[2] < 0 or (trial.pattern is Pattern.BalancedTree and at[1] > 0)
        return self._state((at, first, entered, exited if has_exited else NOWHERE), left, self.repeated[channel])

    def between_channels(self, left: int, repeats: bool) -> SearchState:
        """The state where one channel is done and the next, which may repeat its order of GPUs, is not begun."""
        last = self.trial.channels - 1
        if not repeats:
            return self._state(None, left, None)
        self.repeated[last] += 1  # as it is, or was when the search was there before
        return self._state(tuple(self.trial.intra[last]), left, None)

    def _state(self, of_channel: Hashable, left: int, repeated: int | None) -> SearchState:
        trial, channel = self.trial, self.trial.channels
        last = tuple(trial.inter[channel - 1]) if self.nets.alternates(trial) else None
        links, adapters = tuple(self.load.left), tuple(self.net_left)
        key = of_channel, channel, last, trial.hops, links, adapters
        refused = self.recorder.counts() if self.recorder else None
        return SearchState(key, links, adapters, left, self.found, channel, repeated, refused)

    def tries(self, state: SearchState) -> int | None:
        """Number of tries that it takes to find nothing better from there; None where that is not known."""
        self.looks[self.kind] += 1
        known = self._dead_ends.get(state.key)
        if known is None or known.tries > state.left:
            return None
        self.saved[self.kind] += known.tries
        self.trial.latency_us = known.latency_us  # as the last adapter that was tried leaves it
        if self.recorder and known.refused:
            self.recorder.again(known.refused)
        return known.tries

    def store(self, state: SearchState, left: int) -> None:
        """Stores a state when all was tried from there, in vain, and all is again as it was."""
        repeated = state.repeated is not None and self.repeated[state.channel] != state.repeated
        if left <= 0 or self.found != state.found or repeated:
            return
        if state.links == tuple(self.load.left) and state.adapters == tuple(self.net_left):
            refused = self.recorder.since(state.refused) if self.recorder and state.refused else None
            self._dead_ends[state.key] = _DeadEnd(state.left - left, self.trial.latency_us, refused)

    def better(self) -> None:
        """A better graph was found: all is to be compared with that one from here on."""
        self.found += 1
        self._dead_ends.clear()


NO_TYPE = -1
After = tuple[int, list[float], list[float], int]  # tries left; what is left of links and of adapters; hops


class FailedSearches:
    """Searches of one system that found nothing better, and how each left it: the same one finds nothing again."""

    def __init__(self, system: System) -> None:
        self.system = system
        inside = (Kind.GPU, Kind.NVS)
        self._intra_types = {type_ for kind in inside for type_ in self._types(kind, inside)}
        self._inter_types = {*self._types(Kind.GPU, (Kind.NET,)), *self._types(Kind.NET, (Kind.GPU,))}
        self._after: dict[Hashable, After] = {}

    def _types(self, kind: Kind, to: tuple[Kind, ...]) -> set[int]:
        nodes = self.system.nodes[kind]
        return {path.type for node in nodes for far in to for path in node.paths.get(far, ())}

    def key(self, trial: Trial, best: Trial, links: Sequence[float], nets: Sequence[float]) -> Hashable:
        """All that a search goes by; types that no path has count as the next nearer one that some has."""
        speeds = trial.bw_intra, trial.bw_inter, trial.min_channels, trial.cross_nic
        to_beat = best.pattern, best.cross_nic, best.channels, best.bw_intra, best.bw_inter, best.hops
        return speeds, to_beat, self.key_at_any_gbs(trial, links, nets)

    def key_at_any_gbs(self, trial: Trial, links: Sequence[float], nets: Sequence[float]) -> Hashable:
        """The key but for the bandwidth and the adapters of a channel, and for what is compared with the best."""
        intra = max((type_ for type_ in self._intra_types if type_ <= trial.type_intra), default=NO_TYPE)
        inter = max((type_ for type_ in self._inter_types if type_ <= trial.type_inter), default=NO_TYPE)
        asked = trial.pattern, trial.in_network, trial.max_channels, trial.same_channels
        return asked, intra, inter, trial.hops, tuple(links), tuple(nets)

    def known(self, key: Hashable) -> After | None:
        """How a search ends that was made before; None for a new one."""
        return self._after.get(key)

    def remember(self, key: Hashable, after: After) -> None:
        """Keeps how a search ended."""
        self._after[key] = after


Tables = Sequence[Looked]  # by what is taken of a link; all looked up from one bandwidth on


@dataclass(frozen=True, slots=True)
class FailedSearch:
    """How a search went that found nothing better, and left every link and adapter as it was."""

    gbs: float  # of a channel
    links: tuple[tuple[float, Tables], ...]  # by what was left before
    fewest_hops: dict[int, int]  # by the number of channels laid
    left: int  # tries


class EquivalentSearches:
    """Searches in vain of one system, for those that go just as one of them did at another bandwidth, without tries.

    NCCL asks for one bandwidth after the other. Where each link, from each amount that a search found it with, has
    enough left at one bandwidth just where it has at the other, both searches go the same way. What they compare
    differs: so the channels that were laid are compared with the best graph anew. Only where all that is taken is given
    back exactly.
    """

    def __init__(self, gpus: int, rules: Channels) -> None:
        self.gpus, self.rules = gpus, rules
        self._failed: dict[Hashable, list[FailedSearch]] = {}

    def left(self, key: Hashable, trial: Trial, best: Trial, nets: Sequence[float]) -> int | None:
        """The tries that a search leaves, by one that went the same way in vain; None where none is known to have."""
        for known in self._failed.get(key, ()):
            if not self._finds(known, trial, best) and _same_way(known, trial, nets):
                return known.left
        return None

    def _finds(self, known: FailedSearch, trial: Trial, best: Trial) -> bool:
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
        self._failed.setdefault(key, []).append(FailedSearch(trial.bw_intra, links, fewest_hops, left))


def _amounts(gbs: float) -> list[float]:
    """All that a channel may take of a link: its bandwidth, or half of it; with overhead, and of the way back."""
    parts = (gbs, gbs / 2)
    return [amount for part in parts for amount in (part, float(f32(part) * f32(6) / f32(5)), part / 8)]


def _same_way(known: FailedSearch, trial: Trial, nets: Sequence[float]) -> bool:
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

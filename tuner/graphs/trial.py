"""A graph during its search: what its channels need, and the channels that were laid so far."""

from collections import Counter
from dataclasses import field, replace
from functools import cache
from typing import NamedTuple

from tuner.base.dataclass import dataclass
from tuner.base.names import Pattern
from tuner.base.numerics import f32
from tuner.release.search import ChannelRules


@dataclass(slots=True)
class Trial:
    """NCCL's numbers of a graph, ``struct ncclTopoGraph``; bandwidths are per channel, and types are numbers."""

    pattern: Pattern
    in_network: bool  # whether it is a graph of CollNet
    min_channels: int
    max_channels: int
    cross_nic: int = 0
    same_channels: bool = True
    bw_intra: float = 0.0
    bw_inter: float = 0.0
    latency_us: float = 0.0
    type_intra: int = 0
    type_inter: int = 0
    channels: int = 0
    hops: int = 0
    intra: list[list[int]] = field(default_factory=list)  # numbers of GPUs, by channel and step
    inter: list[list[int]] = field(default_factory=list)  # ids of the first and the last adapter, by channel

    def copied(self) -> "Trial":
        """A copy that shares no list with this graph."""
        return replace(self, intra=[list(row) for row in self.intra], inter=[list(row) for row in self.inter])

    def take(self, other: "Trial") -> None:
        """Copies another graph into this one."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))
        self.intra = [list(row) for row in other.intra]
        self.inter = [list(row) for row in other.inter]

    @property
    def is_tree(self) -> bool:
        """Whether the graph is a tree of any kind."""
        return self.pattern in (Pattern.BalancedTree, Pattern.SplitTree, Pattern.Tree)

    @property
    def heads_only(self) -> bool:
        """Whether the search only looks for the GPUs at which channels enter the node."""
        return self.pattern in (Pattern.NVLS, Pattern.CollNetDirect)


# Whether a graph is better than the best so far.
#
# Source: ncclTopoCompareGraphs, src/graph/search.cc, v2.28.9-1.

HANDICAP = 0.15


def better(trial: Trial, best: Trial, gpus: int, rules: ChannelRules) -> bool:
    """Whether ``trial``, with the channels laid so far, has to replace ``best``."""
    if trial.channels < trial.min_channels:
        return False
    if trial.pattern is Pattern.NVLS and rules.compare_nvls != "bandwidth":
        more = best.channels < trial.channels <= gpus
        by_bandwidth = rules.compare_nvls == "more_channels_or_bandwidth"
        wider = _sum(trial.channels, trial.bw_inter) > _sum(best.channels, best.bw_inter)
        return more or (by_bandwidth and bool(wider))
    own, other = _sum(trial.channels, trial.bw_intra), _sum(best.channels, best.bw_intra)
    if rules.handicap_of_crossing:
        other = other * f32(1.0 - (best.cross_nic - trial.cross_nic) * HANDICAP)
    if own != other:
        return bool(own > other)
    alike = trial.pattern is best.pattern and trial.cross_nic == best.cross_nic
    return alike and trial.hops < best.hops


@cache
def _sum(channels: int, gbs: float) -> f32:
    return f32(channels) * f32(gbs)


class Shortfall(NamedTuple):
    """How much bandwidth a link or an adapter lacked, in GB/s."""

    left_gbs: float
    needed_gbs: float


class Position(NamedTuple):
    """A link or an adapter that rejected a channel, and the number of complete channels at that time."""

    channels: int
    number: int  # number of a link or an adapter


@dataclass(slots=True)
class RejectionLog:
    """Which links, adapters and path types rejected a channel in one search, and how often.

    For links, ``left`` has the bandwidth that was left at the first rejection.
    """

    links: Counter[Position] = field(default_factory=Counter)
    # Adapters that had too little bandwidth for a channel to enter
    adapters: Counter[Position] = field(default_factory=Counter)
    left: dict[Position, Shortfall] = field(default_factory=dict)  # links that had too little bandwidth
    types: Counter[int] = field(default_factory=Counter)  # types of paths that were farther than allowed

    def of_links(self) -> Counter[int]:
        """Number of rejections by each link, by the link's number."""
        sums = Counter[int]()
        for at, times in self.links.items():
            sums[at.number] += times
        return sums


class Rejections(NamedTuple):
    """Numbers of rejections by links and by adapters."""

    links: Counter[Position]
    adapters: Counter[Position]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One search that was made; ``asked`` is what it requested."""

    asked: Trial
    allowed: int  # number of GPUs that might be tried
    left: int  # number of tries left of these
    found: bool  # something better was found
    known: bool  # the search was the same as an earlier one
    best: Trial  # the best graph after the search
    rejections: RejectionLog


class Recorder:
    """Records searches, one after the other."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self._rejections = RejectionLog()
        self._trial: Trial

    def begin(self, trial: Trial) -> None:
        """Begins the record of another search."""
        self._trial, self._rejections = trial, RejectionLog()

    def end(self, best: Trial, tries: tuple[int, int], found: bool, known: bool) -> None:
        """Ends the record of the current search; ``tries`` are the numbers of tries that were allowed and are left."""
        self.attempts.append(Attempt(self._trial.copied(), *tries, found, known, best.copied(), self._rejections))

    def link(self, number: int, left_gbs: float, needed_gbs: float) -> None:
        """Records that a link has too little bandwidth left."""
        at = Position(self._trial.channels, number)
        self._rejections.links[at] += 1
        self._rejections.left.setdefault(at, Shortfall(left_gbs, needed_gbs))

    def adapter(self, number: int) -> None:
        """Records that an adapter has too little bandwidth left for another channel to enter."""
        self._rejections.adapters[Position(self._trial.channels, number)] += 1

    def path(self, type_: int) -> None:
        """Records that a path's type is farther than allowed."""
        self._rejections.types[type_] += 1

    def counts(self) -> Rejections:
        """Numbers of rejections by links and adapters so far."""
        return Rejections(self._rejections.links.copy(), self._rejections.adapters.copy())

    def since(self, before: Rejections) -> Rejections:
        """The rejections since ``before``."""
        return Rejections(self._rejections.links - before.links, self._rejections.adapters - before.adapters)

    def again(self, counts: Rejections) -> None:
        """Adds earlier rejections once more, because the same state was reached again."""
        self._rejections.links.update(counts.links)
        self._rejections.adapters.update(counts.adapters)

"""A graph while it is searched: what is asked of its channels, and those laid so far."""

from dataclasses import dataclass, field, replace
from functools import cache

from tuner.base.names import Pattern
from tuner.base.numerics import f32
from tuner.release.search import Channels


@dataclass(slots=True)
class Trial:
    """What NCCL keeps of a graph, ``struct ncclTopoGraph``; bandwidths are per channel, types numbers."""

    pattern: Pattern
    in_network: bool  # of CollNet
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
    inter: list[list[int]] = field(default_factory=list)  # ids of the first and last adapter, by channel

    def copied(self) -> "Trial":
        """A copy that shares nothing."""
        return replace(self, intra=[list(row) for row in self.intra], inter=[list(row) for row in self.inter])

    def take(self, other: "Trial") -> None:
        """Becomes a copy of another."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))
        self.intra = [list(row) for row in other.intra]
        self.inter = [list(row) for row in other.inter]

    @property
    def is_tree(self) -> bool:
        """Whether it is a tree of any kind."""
        return self.pattern in (Pattern.BalancedTree, Pattern.SplitTree, Pattern.Tree)

    @property
    def heads_only(self) -> bool:
        """Whether only the GPUs at which channels enter are looked for."""
        return self.pattern in (Pattern.NVLS, Pattern.CollNetDirect)


# Whether a graph is better than the best so far.
#
# Source: ncclTopoCompareGraphs, src/graph/search.cc, v2.28.9-1.

HANDICAP = 0.15


def better(trial: Trial, best: Trial, gpus: int, rules: Channels) -> bool:
    """Whether ``trial`` with the channels laid so far is to replace ``best``."""
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

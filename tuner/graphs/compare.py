"""Whether a graph is better than the best so far.

Source: ncclTopoCompareGraphs, src/graph/search.cc, v2.28.9-1.
"""

from functools import cache

from tuner.base.names import Pattern
from tuner.base.numerics import f32
from tuner.graphs.trial import Trial
from tuner.release.search import Channels

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

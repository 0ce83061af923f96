"""Every channel twice, where a channel has much bandwidth.

Source: ncclTopoDupChannels, src/graph/search.cc, v2.28.9-1.
"""

from tuner.base.names import Pattern
from tuner.base.numerics import ceil_div, f32
from tuner.graphs.bounds import HOPPER
from tuner.graphs.trial import Trial

AMPERE = 80


def duplicate(best: Trial, capability: int, by_generation: bool) -> None:
    """Lays every channel twice, with half the bandwidth, where that helps GPUs of this compute capability."""
    if best.channels == 0 or best.pattern is Pattern.NVLS:
        return
    gbs = best.bw_intra
    if by_generation:
        if not ((capability <= AMPERE and gbs >= 25) or (capability <= HOPPER and gbs >= 50)):
            return
    elif gbs < 25 or (capability > AMPERE and gbs < 50 and best.channels > 4):
        return
    channels = min(best.channels * 2, best.max_channels)
    more = channels - best.channels
    best.intra[best.channels :] = [list(row) for row in best.intra[:more]]
    best.inter[best.channels :] = [list(row) for row in best.inter[:more]]
    factor = f32(ceil_div(channels, best.channels))
    best.bw_intra, best.bw_inter = float(f32(best.bw_intra) / factor), float(f32(best.bw_inter) / factor)
    best.channels = channels

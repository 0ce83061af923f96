"""What each channel of a graph takes of every link, as NCCL counts it while it searches.

Source: ncclTopoSearchRecNet, ncclTopoSearchRecGpu, ncclTopoFollowPath, src/graph/search.cc, v2.28.9-1.
"""

from collections.abc import Iterator
from itertools import pairwise

from tuner.base.names import Pattern
from tuner.graphs.explain.runs import Run
from tuner.graphs.routes import Ends, Parts, all_to_all, through_switch
from tuner.graphs.system import Kind
from tuner.graphs.trial import Trial

Loads = dict[int, dict[int, float]]  # by a link's number and the channel's; 1e9 bytes per second


def loads(found: Run) -> Loads:
    """What the channels take."""
    taken: Loads = {}
    load, system, trial = found.loop.channels.load, found.system, found.trial
    for channel in range(trial.channels):
        for (kind, number, to_kind, to), gbs in ways(found, channel):
            start = system.nodes[kind][number]
            path = start.paths.get(to_kind, [])
            if to >= len(path):
                continue
            route = load.route(start, path[to], gbs, 0)
            for step in (*route.steps, *(back for back in route.back if back is not None)):
                of_link = taken.setdefault(step[0], {})
                of_link[channel] = of_link.get(channel, 0.0) + float(step[1].amount)
    return taken


def ways(found: Run, channel: int) -> Iterator[tuple[Ends, float]]:
    """The paths that a channel uses, and how much of each."""
    trial = found.trial
    order, gpus = trial.intra[channel], len(found.system.gpus)
    if found.system.several_nodes:
        yield from _to_network(found, trial, channel)
    if trial.heads_only:
        parts: Parts = through_switch(gpus, order[0]) if trial.pattern is Pattern.NVLS else all_to_all(gpus, order[0])
        yield from ((ends, share * trial.bw_intra) for ends, share in parts)
        return
    for gpu, peer in pairwise(order):
        yield (Kind.GPU, gpu, Kind.GPU, peer), trial.bw_intra
    if trial.pattern is Pattern.Ring and not found.system.several_nodes and gpus > 1:
        yield (Kind.GPU, order[-1], Kind.GPU, order[0]), trial.bw_intra


def _to_network(found: Run, trial: Trial, channel: int) -> Iterator[tuple[Ends, float]]:
    order, numbers = trial.intra[channel], found.loop.channels.nets.number_of
    first, last = (numbers.get(net) for net in trial.inter[channel])
    if first is None or last is None:
        return
    yield (Kind.NET, first, Kind.GPU, order[0]), trial.bw_inter
    if trial.pattern is Pattern.BalancedTree:
        for gpu in order[:2]:
            yield (Kind.GPU, gpu, Kind.NET, last), trial.bw_inter / len(order[:2])
        return
    step = {Pattern.Ring: len(order) - 1, Pattern.SplitTree: min(1, len(order) - 1)}.get(trial.pattern, 0)
    yield (Kind.GPU, order[step], Kind.NET, last), trial.bw_inter

"""Works, rings and trees drawn at random: as small as tests need them, in both forms of sharing a count."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.connect.records import Connected, RankChannel, RankView, Tree
from tuner.emulator.launch.records import ChannelShare, ProxyOperation, Sharing, Work

GRAINS = {Protocol.LL: 16, Protocol.LL128: 1920, Protocol.Simple: 512}  # bytes


@dataclass(frozen=True, slots=True)
class Drawn:
    """A work, and the channels of the ranks that run it."""

    work: Work
    connected: Connected


def numbers(random: Generator, count: int) -> np.ndarray:
    """float32 numbers of many magnitudes, so that nearly every order of additions has bits of its own."""
    signs = random.choice([-1, 1], count)
    return (signs * np.exp(random.uniform(-12, 12, count))).astype(np.float32)


def reducing(random: Generator) -> Drawn:
    """A work of one of the collectives that add."""
    collective = random.choice([Collective.AllReduce, Collective.ReduceScatter, Collective.Reduce])
    return drawn(random, Collective(collective))


def drawn(random: Generator, collective: Collective) -> Drawn:
    """A work of the collective with a ring and a tree on each channel."""
    ranks, channels = int(random.integers(2, 10)), int(random.integers(1, 5))
    protocol = Protocol(int(random.integers(3)))
    tree = collective is Collective.AllReduce and random.random() < 0.5
    sharing = Sharing.turns if random.random() < 0.5 else Sharing.ranges
    count, warps = int(random.integers(1, 30_000)), int(random.integers(3, 17))
    steps = (4, 2) if protocol is Protocol.Simple and not tree and random.random() < 0.7 else (1, 1)
    proxy = ProxyOperation("", 0, *steps, 0, int(random.integers(1, 200)) * 64)
    grain = GRAINS[protocol] // 4
    if sharing is Sharing.ranges:
        shares = _ranges(random, (count, channels, grain), proxy)
    else:  # chunks that are multiples of what the device rounds to, as NCCL's are
        moving = int(random.choice([4, 8, 16]))
        warps = moving + (protocol is Protocol.Simple)  # one more synchronizes
        unit = moving * 32 * (60 if protocol is Protocol.LL128 else 8)
        chunk = int(random.integers(1, 4)) * unit
        last = int(random.integers(1, chunk // grain + 1)) * grain
        last = max(last, -(-(count % (channels * chunk)) // channels))
        shares = [ChannelShare(each, each, 0, count, chunk, last, proxy) for each in range(channels)]
    work = Work(
        place=0,
        collective=collective,
        dtype=DataType.float32,
        op=Op.sum,
        algorithm=Algorithm.Tree if tree else Algorithm.Ring,
        protocol=protocol,
        function=None,
        count=count,
        warps=warps,
        root=int(random.integers(ranks)),
        one_node=True,
        direct=0,
        sharing=sharing,
        shares=tuple(shares),
    )
    return Drawn(work, _connected(random, ranks, channels))


def _ranges(random: Generator, sizes: tuple[int, int, int], proxy: ProxyOperation) -> list[ChannelShare]:
    count, channels, grain = sizes
    cuts = np.sort(random.integers(0, count + 1, channels - 1))
    ends = [0, *map(int, cuts), count]
    chunks = [int(random.integers(1, 6)) * grain for _ in range(channels)]
    return [
        ChannelShare(each, each, ends[each], ends[each + 1] - ends[each], chunks[each], None, proxy)
        for each in range(channels)
    ]


def _connected(random: Generator, ranks: int, channels: int) -> Connected:
    views: list[list[RankChannel]] = [[] for _ in range(ranks)]
    for _ in range(channels):
        ring = [int(rank) for rank in random.permutation(ranks)]
        parents, children = _tree(random, ranks)
        for place, rank in enumerate(ring):
            tree = Tree(parents[rank], tuple(children[rank]))
            here = RankChannel(ring[place - 1], ring[(place + 1) % ranks], None, tree, None, None, None)
            views[rank].append(here)
    return Connected((0,) * ranks, tuple(RankView(tuple(view), (), ()) for view in views))


def _tree(random: Generator, ranks: int) -> tuple[list[int | None], list[list[int]]]:
    """A tree with up to two children at its root and up to three elsewhere, as NCCL's."""
    order = [int(rank) for rank in random.permutation(ranks)]
    parents: list[int | None] = [None] * ranks
    children: list[list[int]] = [[] for _ in range(ranks)]
    for place, rank in enumerate(order[1:], 1):
        free = [each for each in order[:place] if len(children[each]) < (2 if each == order[0] else 3)]
        parent = int(random.choice(free))
        parents[rank] = parent
        children[parent].append(rank)
    return parents, children

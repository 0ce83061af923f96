"""Works, rings and trees drawn at random: as small as tests need them, in both forms of sharing a count."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.connect.nodes import CollNetDirect, Connected, NvlsChannel, RankChannel, RankView, Tree
from tuner.emulator.launches import ChannelShare, ProxyOperation, Sharing, Work

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


def by_fabric(random: Generator, algorithm: Algorithm) -> tuple[Drawn, Collective]:
    """A work in which the switch or the network takes part, of one to four nodes with one to four heads each."""
    of_trees = algorithm in (Algorithm.NVLSTree, Algorithm.CollNetChain)
    collective = Collective.AllReduce
    if not of_trees:
        kinds = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)
        collective = Collective(random.choice([int(each) for each in kinds]))
    nodes = int(random.integers(1 if algorithm is Algorithm.NVLS else 2, 5))
    local = int(random.integers(1 if algorithm is Algorithm.CollNetDirect else 2, 5))
    heads = local
    if collective is Collective.AllReduce and algorithm is not Algorithm.NVLSTree:
        heads = int(random.integers(1, local + 1))
    channels, count = int(random.integers(1, 5)), int(random.integers(1, 3000))
    turns = nodes > 1 and algorithm is not Algorithm.NVLSTree
    proxy = ProxyOperation("", 0, 1, 1, 0, 1 << 20)
    if turns:
        chunk = int(random.integers(1, 20)) * 16
        shares = [ChannelShare(each, each, 0, count, chunk, None, proxy) for each in range(channels)]
    else:
        shares = _ranges(random, (count, channels, 16), proxy)
    work = Work(
        place=0,
        collective=collective,
        dtype=DataType.float32,
        op=Op.sum,
        algorithm=algorithm,
        protocol=Protocol.Simple,
        function=None,
        count=count,
        warps=20,
        root=0,
        one_node=nodes == 1,
        direct=0,
        sharing=Sharing.turns if turns else Sharing.ranges,
        shares=tuple(shares),
        nvls_alignment_bytes=64,
    )
    return Drawn(work, _connected_by_fabric(random, (nodes, local, heads), channels)), collective


def _connected_by_fabric(random: Generator, sizes: tuple[int, int, int], channels: int) -> Connected:
    """Heads of a node are its first ranks for the switch, and any for the network; nodes have trees of their own."""
    nodes, local, heads = sizes
    of_network = [sorted(int(each) for each in random.permutation(local)[:heads]) for _ in range(nodes)]
    if heads == local:
        of_network = [[int(each) for each in random.permutation(local)] for _ in range(nodes)]
    trees = [_tree(random, nodes) for _ in range(channels)]
    chains = [[int(each) for each in random.permutation(local)] for _ in range(channels)]
    views = []
    for rank in range(nodes * local):
        node, own = divmod(rank, local)
        first = node * local
        ranks = [first + head for head in of_network[node]]
        place = CollNetDirect(
            head=ranks.index(rank) if rank in ranks else None,
            up=tuple(head for head in ranks if head != rank),
            down=tuple(first + each for each in range(local) if own != each) if rank in ranks else (),
            heads=heads,
            shift=own % heads,
        )
        of_channels, of_switch = [], []
        for (parents, children), chain in zip(trees, chains, strict=True):
            at = chain.index(own)
            below = (first + chain[at + 1],) if at + 1 < local else ()
            up = Tree(first + chain[at - 1] if at else None, below)
            of_channels.append(RankChannel(rank, rank, None, Tree(None, ()), None, up, place))
            parent = parents[node]
            tree = Tree(None, ())
            if own < heads:
                above = None if parent is None else parent * local + own
                tree = Tree(above, tuple(child * local + own for child in children[node]))
            of_switch.append(NvlsChannel(own if own < heads else None, heads, tree, None))
        views.append(RankView(tuple(of_channels), tuple(of_switch), ()))
    return Connected(tuple(rank // local for rank in range(nodes * local)), tuple(views))

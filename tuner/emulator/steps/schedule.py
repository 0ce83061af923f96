"""The schedule of a call: which rank sends which elements to whom, channel by channel, step by step."""

from collections.abc import Iterator
from functools import partial

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective
from tuner.emulator.connect import Across
from tuner.emulator.launch.records import ChannelShare, Work
from tuner.emulator.steps import collnet, going, heads, pat, rings_and_trees, switched
from tuner.emulator.steps.going import Threads
from tuner.emulator.steps.loops import Loops, loops, loops_of_heads
from tuner.emulator.steps.records import Fabric, Schedule, Step

BY_SWITCH = (Fabric.switch_adds, Fabric.switch_copies)
BY_NETWORK = (Fabric.network_adds, Fabric.network_copies)
GROUPS_OF_THREADS = {Algorithm.Ring: 2, Algorithm.Tree: 2}  # at most; 4 of others


def schedule(work: Work, across: Across) -> Schedule:
    """The schedule of a collective. BadInput where it has none."""
    several = len(across.ranks_of_nodes) > 1
    fabrics: tuple[Fabric, ...] = ()
    if work.algorithm in (Algorithm.NVLS, Algorithm.NVLSTree):
        fabrics = (*BY_SWITCH, *(BY_NETWORK if several and work.algorithm is Algorithm.NVLS else ()))
    elif work.algorithm in (Algorithm.CollNetDirect, Algorithm.CollNetChain):
        fabrics = BY_NETWORK
    if work.algorithm is Algorithm.PAT and not across.pat_peers:
        raise BadInput("schedule: of PAT with one rank per node; valid: `env` NCCL_ALGO=Ring")
    return Schedule(
        ranks=sum(map(len, across.ranks_of_nodes)),
        channels=work.channels,
        threads=GROUPS_OF_THREADS.get(work.algorithm, 4),
        connections=2 if fabrics == BY_NETWORK else 1,
        element_bytes=work.dtype.size_bytes,
        steps=partial(_steps, work, across),
        fabrics=fabrics,
    )


def _steps(work: Work, across: Across, rank: int) -> Iterator[Step]:
    for share in work.shares:
        if work.algorithm is Algorithm.PAT:
            yield from pat.steps(work, share, rank, sum(map(len, across.ranks_of_nodes)))
        else:
            own_loops, threads = _of_channel(work, across, share, rank)
            yield from going.steps(work, share, rank, own_loops, threads)


def _of_channel(work: Work, across: Across, share: ChannelShare, rank: int) -> tuple[list[Loops], list[Threads]]:
    """The loops of a channel, and what the rank's threads do in each."""
    channel, ranks = share.channel, sum(map(len, across.ranks_of_nodes))
    if work.algorithm is Algorithm.Tree:
        return list(loops(work, share, ranks)), rings_and_trees.up_and_down(across.trees[channel], rank)
    if work.algorithm is Algorithm.Ring:
        return list(loops(work, share, ranks)), [rings_and_trees.around(work, across.rings[channel].ranks, rank)]
    if work.algorithm is Algorithm.CollNetChain:
        chain = across.collnet_chains[channel]
        return list(loops_of_heads(work, share, 1, work.count)), collnet.along_chain(chain, rank)
    by_switch = work.algorithm is not Algorithm.CollNetDirect
    own = heads.of_switch(across, rank) if by_switch else heads.of_network(across, rank)
    if work.collective is Collective.AllReduce:
        own_loops = list(loops_of_heads(work, share, own.count, work.count))
    else:
        own_loops = list(loops_of_heads(work, share, 1, len(own.of_nodes) * work.count))
    if by_switch:
        return own_loops, switched.by_switch(work, across, own, channel, rank)
    return own_loops, collnet.by_heads(work, own, across.collnet_direct[rank], rank)

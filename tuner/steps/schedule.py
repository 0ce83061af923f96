"""The schedule of a call: which rank sends which elements to whom, channel by channel, step by step.

Source: runRing and runTreeSplit of src/device/all_reduce.h, runRing of reduce_scatter.h, all_gather.h, reduce.h and
broadcast.h, v2.28.9-1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.connect import Across, TreeOrder
from tuner.emulator.launch.records import ChannelShare, Work
from tuner.steps.loops import loops

# Bytes of numbers in a unit that goes over the wire at once, and that unit's bytes with its flags.
# Source: ncclLLFifoLine, src/include/device.h; WireWordPerSlice, src/device/prims_ll128.h.
SLICE_ALIGNMENT = 16  # elements
LEAST_SLICE = 32  # a slice has at least the 32nd part of what it may have
ON_THE_WIRE = {Protocol.LL: (8, 16), Protocol.LL128: (1920, 2048), Protocol.Simple: (1, 1)}


@dataclass(frozen=True, slots=True)
class Step:
    """What some threads of a rank's block do at once: they wait for what peers send, and send what that makes.

    A peer's message has the same elements of the buffer. Elements are counted from the start of the whole buffer: of
    all ranks' parts, one after the other, for AllGather and ReduceScatter.
    """

    channel: int
    rank: int
    threads: int  # which of the block's threads: 0, or 1 for those that hand results down a tree
    number: int  # of these threads' steps on this channel, from 0
    receive_from: tuple[int, ...]
    send_to: tuple[int, ...]
    first: int  # element
    elements: int  # 0 where the count does not reach so far: then nothing goes over the wire
    adds: bool  # whether what is received is added to the rank's own numbers


@dataclass(frozen=True, slots=True)
class _Going:
    """A step without number and elements: the part of a loop that it moves, and whose part of the buffer that is in."""

    part: int
    owner: int
    receive_from: tuple[int, ...]
    send_to: tuple[int, ...]
    adds: bool = False


def schedule(work: Work, across: Across, rank: int) -> Iterator[Step]:
    """The steps of one rank, by channel and threads, in their order. BadInput where the switch sends."""
    if work.algorithm not in (Algorithm.Ring, Algorithm.Tree):
        raise BadInput(f"schedule: of Ring and Tree, not of {work.algorithm.name}; valid: --env NCCL_ALGO=Ring")
    for share in work.shares:
        if work.algorithm is Algorithm.Tree:
            tree = across.trees[share.channel]
            groups = [_up_tree(tree, rank), *([_down_tree(tree, rank)] if tree.parents[rank] is not None else [])]
        else:
            groups = [_around(work, across.rings[share.channel].ranks, rank)]
        for threads, going in enumerate(groups):
            yield from _numbered(work, share, going, Step(share.channel, rank, threads, 0, (), (), 0, 0, False))


def _numbered(work: Work, share: ChannelShare, going: Sequence[_Going], like: Step) -> Iterator[Step]:
    number = 0
    parts = max(each.part for each in going) + 1
    for each_loops in loops(work, share, parts):  # as many parts as ranks, or one
        chunks = [[array.tolist() for array in each_loops.chunks(part)] for part in range(parts)]
        for loop in range(each_loops.times):
            for each in going:
                first, elements = (array[loop] for array in chunks[each.part])
                for offset, part in slices(work, share, elements):
                    yield replace(
                        like,
                        number=number,
                        receive_from=each.receive_from,
                        send_to=each.send_to,
                        first=first + each.owner * work.count + offset,
                        elements=part,
                        adds=each.adds,
                    )
                    number += 1


def slices(work: Work, share: ChannelShare, elements: int) -> Iterator[tuple[int, int]]:
    """The slices of a chunk, which are sent one by one: offset in the chunk and number of elements.

    One with LL and LL128. Source: genericOp, src/device/prims_simple.h, v2.28.9-1, and the same since 2.18.
    """
    count, each = 1, elements
    if work.protocol is Protocol.Simple:
        count = share.proxy.chunk_steps // share.proxy.slice_steps
        least = share.proxy.step_bytes // work.dtype.size_bytes // LEAST_SLICE
        each = max(-(-elements // (SLICE_ALIGNMENT * count)) * SLICE_ALIGNMENT, least)
    for number in range(count):
        offset = min(number * each, elements)
        yield offset, min(each, elements - offset)


def _around(work: Work, ring: Sequence[int], rank: int) -> list[_Going]:
    """A rank's steps of one loop along its ring."""
    ranks, place = len(ring), ring.index(rank)
    before, after = (ring[place - 1],), (ring[(place + 1) % ranks],)
    if work.collective is Collective.AllReduce:
        return [
            _Going((place - 1) % ranks, 0, (), after),
            *(_Going((place - back) % ranks, 0, before, after, adds=True) for back in range(2, ranks + 1)),
            *(_Going((place - back) % ranks, 0, before, after) for back in range(1, ranks - 1)),
            _Going((place + 1) % ranks, 0, before, ()),
        ]
    if work.collective is Collective.ReduceScatter:
        return [
            _Going(0, ring[place - 1], (), after),
            *(_Going(0, ring[place - back], before, after, adds=True) for back in range(2, ranks)),
            _Going(0, rank, before, (), adds=True),
        ]
    if work.collective is Collective.AllGather:
        return [
            _Going(0, rank, (), after),
            *(_Going(0, ring[place - back], before, after) for back in range(1, ranks - 1)),
            _Going(0, ring[(place + 1) % ranks], before, ()),
        ]
    if work.collective is Collective.Reduce:  # from the rank behind the root around to it
        first, last, adds = before == (work.root,), rank == work.root, True
    else:
        first, last, adds = rank == work.root, after == (work.root,), False
    return [_Going(0, 0, () if first else before, () if last else after, adds and not first)]


def _up_tree(tree: TreeOrder, rank: int) -> list[_Going]:
    """To the parent; the root sends down again what it has added."""
    parent, children = tree.parents[rank], tree.children[rank]
    return [_Going(0, 0, children, children if parent is None else (parent,), adds=bool(children))]


def _down_tree(tree: TreeOrder, rank: int) -> list[_Going]:
    parent = tree.parents[rank]
    return [_Going(0, 0, () if parent is None else (parent,), tree.children[rank])]


def wire_bytes(protocol: Protocol, nbytes: int) -> int:
    """What a message of so many bytes takes on NVLink: LL and LL128 send flags along."""
    unit, on_the_wire = ON_THE_WIRE[protocol]
    return -(-nbytes // unit) * on_the_wire

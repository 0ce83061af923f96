"""The schedule of a call: which rank sends which elements to whom, channel by channel, step by step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.spelling import option
from tuner.emulator.connect import Across, CollNetDirect, TreeOrder
from tuner.emulator.launches import ChannelShare, Work
from tuner.emulator.p2p.records import ExchangeKernel, Transfer, WorkElement
from tuner.emulator.steps import pat
from tuner.emulator.steps.loops import Loops, loops, loops_of_heads
from tuner.emulator.steps.records import InNetwork, Peer, Pieces, Schedule, Step

SLICE_ALIGNMENT = 16  # in elements
LEAST_SLICE = 32  # a slice has at least this fraction of its largest size

Place: TypeAlias = Callable[[int, int], Pieces]  # where elements of a loop's count are in the whole buffer


@dataclass(frozen=True, slots=True)
class ChunkStep:
    """A step that moves one part of each loop; its number and its elements are not known yet."""

    part: int
    place: Place
    receive_from: tuple[Peer, ...]
    send_to: tuple[Peer, ...]
    adds: bool = False


@dataclass(frozen=True, slots=True)
class ThreadGroup:
    """Threads of a block that do the same steps in each loop."""

    going: Sequence[ChunkStep]
    connection: int = 0


def in_buffer(first: int, elements: int) -> Pieces:
    """Where elements that are counted from the start of the whole buffer are in the buffer."""
    return ((first, elements),)


def in_part_of(owner: int, count: int) -> Place:
    """Where elements that are counted from the start of rank ``owner``'s part are in the buffer.

    Each rank's part has ``count`` elements.
    """
    return lambda first, elements: ((first + owner * count, elements),)


def steps(
    work: Work, share: ChannelShare, rank: int, loops: Sequence[Loops], threads: Sequence[ThreadGroup]
) -> Iterator[Step]:
    """The steps of a rank on one channel, by threads."""
    for which, group in enumerate(threads):
        number = 0
        for each_loops in loops:
            chunks = [[array.tolist() for array in each_loops.chunks(part)] for part in range(each_loops.parts)]
            for loop in range(each_loops.times):
                for each in group.going:
                    first, elements = (array[loop] for array in chunks[each.part])
                    for offset, part in slices(work, share, elements):
                        yield Step(
                            channel=share.channel,
                            rank=rank,
                            threads=which,
                            number=number,
                            receive_from=each.receive_from,
                            send_to=each.send_to,
                            pieces=each.place(first + offset, part),
                            adds=each.adds,
                            protocol=work.protocol,
                            connection=group.connection,
                        )
                        number += 1


def slices(work: Work, share: ChannelShare, elements: int) -> Iterator[tuple[int, int]]:
    """The slices of a chunk, which are sent one by one: offset in the chunk and number of elements.

    A chunk is one slice with LL and LL128. Source: genericOp, src/device/prims_simple.h, v2.28.9-1, and the same since
    2.18.
    """
    count, each = 1, elements
    if work.protocol is Protocol.Simple:
        count = share.proxy.chunk_steps // share.proxy.slice_steps
        least = share.proxy.step_bytes // work.dtype.size_bytes // LEAST_SLICE
        each = max(-(-elements // (SLICE_ALIGNMENT * count)) * SLICE_ALIGNMENT, least)
    for number in range(count):
        offset = min(number * each, elements)
        yield offset, min(each, elements - offset)


@dataclass(frozen=True, slots=True)
class NodeHeads:
    """The heads as one rank sees them: ``of_nodes`` are ranks, [node][head]."""

    of_nodes: tuple[tuple[int, ...], ...]
    node: int
    own: int | None  # the number of the head that the rank is

    @property
    def count(self) -> int:
        """Heads of a node."""
        return len(self.of_nodes[0])

    def own_piece(self, count: int) -> Place:
        """Where this node's elements of a rail's chunk are in the buffer; each rank's part has ``count`` elements."""
        return lambda first, elements: tuple(self._of_rail(self.own or 0, count, first, elements, {self.node}))

    def of_rail(self, head: int, count: int) -> Place:
        """Where the elements of a rail's chunk are in the buffer.

        A rail consists of the parts of the heads that have the same number on all nodes, node after node.

        Source: Scatterer of src/device/all_gather.h and reduce_scatter.h, v2.28.9-1.
        """
        nodes = set(range(len(self.of_nodes)))
        return lambda first, elements: tuple(self._of_rail(head, count, first, elements, nodes))

    def _of_rail(self, head: int, count: int, first: int, elements: int, nodes: set[int]) -> Pieces:
        end, found = first + elements, []
        for node in range(first // count, -(-end // count)):
            low, high = max(first, node * count), min(end, (node + 1) * count)
            if node in nodes and low < high:
                found.append((self.of_nodes[node][head] * count + low - node * count, high - low))
        return tuple(found)


def of_switch(across: Across, rank: int) -> NodeHeads:
    """The heads of NVLS. BadInput if nodes differ in their heads, or if there are no heads."""
    return _heads(across, [[ranks[node] for ranks in across.nvls_heads] for node in _nodes(across.nvls_heads)], rank)


def of_network(across: Across, rank: int) -> NodeHeads:
    """The heads of CollNet direct."""
    by_node = []
    for ranks in across.ranks_of_nodes:
        known = {across.collnet_direct[each].head: each for each in ranks}
        by_node.append([known[head] for head in sorted(head for head in known if head is not None)])
    if {place.heads for place in across.collnet_direct} != set(map(len, by_node)):
        by_node = []
    return _heads(across, by_node, rank)


def _nodes(heads: Sequence[Sequence[int]]) -> range:
    return range(min(map(len, heads), default=0))


def _heads(across: Across, by_node: Sequence[Sequence[int]], rank: int) -> NodeHeads:
    counts = {len(heads) for heads in by_node}
    if len(by_node) != len(across.ranks_of_nodes) or len(counts) != 1 or 0 in counts:
        raise BadInput(
            f"no schedule is known for nodes with different numbers of NVLS heads: set {option('env')} NCCL_ALGO=Ring"
        )
    node = next(number for number, ranks in enumerate(across.ranks_of_nodes) if rank in ranks)
    own = by_node[node].index(rank) if rank in by_node[node] else None
    return NodeHeads(tuple(map(tuple, by_node)), node, own)


Kernels = Sequence[ExchangeKernel]
TOGETHER = 8  # number of works of a batch, each with a send and a receive


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a message that is sent on one channel, in bytes."""

    transfer: Transfer
    first: int
    bytes: int
    chunk_bytes: int


def schedule_of_exchanges(kernels_of: Callable[[int], Kernels], ranks: int) -> Schedule:
    """The schedule of one group of sends and receives, from each rank's kernels."""
    channels = {channel for rank in range(ranks) for kernel in kernels_of(rank) for channel in kernel.channels}
    return Schedule(
        ranks=ranks,
        channels=tuple(sorted(channels)),
        threads=2 * TOGETHER,
        connections=1,
        element_bytes=1,
        steps=partial(_exchange_steps, kernels_of),
    )


def _exchange_steps(kernels_of: Callable[[int], Kernels], rank: int) -> Iterator[Step]:
    for launch, kernel in enumerate(kernels_of(rank)):
        for channel, batches in kernel.batches.items():
            for number, batch in enumerate(batches):
                parts = _exchange_parts(kernel, channel, batch)
                for threads, part in enumerate(each for each in parts if each.transfer.peer != rank):
                    protocol = part.transfer.protocol
                    like = Step(channel, rank, threads, 0, (), (), (), False, protocol, kernel=launch, batch=number)
                    yield from _chunks(part, like)


def _exchange_parts(
    kernel: ExchangeKernel, channel: int, batch: tuple[int, ...] | tuple[WorkElement, ...]
) -> Iterator[_Part]:
    for each in batch:
        if isinstance(
            each, WorkElement
        ):  # up to 2.21 a part is a transfer of its own, and chunks of LL include their flags
            transfer = each.transfer
            chunk = transfer.chunk_bytes // (2 if transfer.protocol is Protocol.LL else 1)
            yield _Part(transfer, transfer.offset_bytes, transfer.bytes, chunk)
            continue
        work = kernel.works[each]
        for end in (work.receive, work.send):
            if end is not None and channel in end.channels:
                begin = min(end.channels.index(channel) * end.part_bytes, end.bytes)
                nbytes = min(end.part_bytes, end.bytes - begin)
                yield _Part(end, end.offset_bytes + begin, nbytes, end.chunk_bytes)


def _chunks(part: _Part, like: Step) -> Iterator[Step]:
    peer = (part.transfer.peer,)
    for number, offset in enumerate(range(0, part.bytes, part.chunk_bytes)):
        yield replace(
            like,
            number=number,
            receive_from=() if part.transfer.sends else peer,
            send_to=peer if part.transfer.sends else (),
            pieces=((part.first + offset, min(part.chunk_bytes, part.bytes - offset)),),
        )


BY_SWITCH = (InNetwork.switch_adds, InNetwork.switch_copies)
BY_NETWORK = (InNetwork.network_adds, InNetwork.network_copies)
GROUPS_OF_THREADS = {Algorithm.Ring: 2, Algorithm.Tree: 2}  # at most; other algorithms have 4


def schedule(work: Work, across: Across) -> Schedule:
    """The schedule of a collective. BadInput if the collective has no known schedule."""
    several = len(across.ranks_of_nodes) > 1
    fabrics: tuple[InNetwork, ...] = ()
    if work.algorithm in (Algorithm.NVLS, Algorithm.NVLSTree):
        fabrics = (*BY_SWITCH, *(BY_NETWORK if several and work.algorithm is Algorithm.NVLS else ()))
    elif work.algorithm in (Algorithm.CollNetDirect, Algorithm.CollNetChain):
        fabrics = BY_NETWORK
    if work.algorithm is Algorithm.PAT and not across.pat_peers:
        raise BadInput(f"the schedule of PAT is only known for one rank per node: set {option('env')} NCCL_ALGO=Ring")
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
            yield from steps(work, share, rank, own_loops, threads)


def _of_channel(work: Work, across: Across, share: ChannelShare, rank: int) -> tuple[list[Loops], list[ThreadGroup]]:
    """The loops of a channel, and what the threads of the rank do in each of them."""
    channel, ranks = share.channel, sum(map(len, across.ranks_of_nodes))
    if work.algorithm is Algorithm.Tree:
        return list(loops(work, share, ranks)), up_and_down(across.trees[channel], rank)
    if work.algorithm is Algorithm.Ring:
        return list(loops(work, share, ranks)), [around(work, across.rings[channel].ranks, rank)]
    if work.algorithm is Algorithm.CollNetChain:
        chain = across.collnet_chains[channel]
        return list(loops_of_heads(work, share, 1, work.count)), along_chain(chain, rank)
    switched = work.algorithm is not Algorithm.CollNetDirect
    own = of_switch(across, rank) if switched else of_network(across, rank)
    if work.collective is Collective.AllReduce:
        own_loops = list(loops_of_heads(work, share, own.count, work.count))
    else:
        own_loops = list(loops_of_heads(work, share, 1, len(own.of_nodes) * work.count))
    if switched:
        return own_loops, by_switch(work, across, own, channel, rank)
    return own_loops, by_heads(work, own, across.collnet_direct[rank], rank)


# What a rank does in one loop if the network adds: CollNet direct, by heads, and CollNet chain, along a chain. Source:
# RunWorkColl of CollNetDirect and CollNetChain, src/device/all_reduce.h, all_gather.h and reduce_scatter.h, v2.28.9-1.

NETWORK_ADDS, NETWORK_COPIES = (InNetwork.network_adds,), (InNetwork.network_copies,)
TO_HEADS, FROM_HEADS = 1, 0  # NCCL's connIndex


def along_chain(chain: TreeOrder, rank: int) -> list[ThreadGroup]:
    """A rank's steps up the chain of its node into the network, and down again."""
    up: tuple[Peer, ...] = NETWORK_ADDS if (parent := chain.parents[rank]) is None else (parent,)
    down = chain.children[rank]
    return [
        ThreadGroup([ChunkStep(0, in_buffer, down, up, adds=bool(down))], TO_HEADS),
        ThreadGroup([ChunkStep(0, in_buffer, up, down)], FROM_HEADS),
    ]


def by_heads(work: Work, heads: NodeHeads, place: CollNetDirect, rank: int) -> list[ThreadGroup]:
    """Steps to the heads of the node, from these into the network, and back."""
    if work.collective is not Collective.AllReduce:
        return _in_rails(work, heads, rank)
    others = [head for head in range(heads.count) if head != heads.own]
    others = [*others[place.shift % max(len(others), 1) :], *others[: place.shift % max(len(others), 1)]]
    ranks = heads.of_nodes[heads.node]
    scatter = ThreadGroup([ChunkStep(head, in_buffer, (), (ranks[head],)) for head in others], TO_HEADS)
    gather = ThreadGroup([ChunkStep(head, in_buffer, (ranks[head],), ()) for head in others], FROM_HEADS)
    if heads.own is None:
        return [scatter, gather]
    down = place.down
    return [
        scatter,
        gather,
        ThreadGroup([ChunkStep(heads.own, in_buffer, down, NETWORK_ADDS, adds=bool(down))], TO_HEADS),
        ThreadGroup([ChunkStep(heads.own, in_buffer, NETWORK_ADDS, down)], FROM_HEADS),
    ]


def _in_rails(work: Work, heads: NodeHeads, rank: int) -> list[ThreadGroup]:
    """Steps of AllGather and ReduceScatter, in which each rank is a head."""
    assert heads.own is not None
    behind = [(heads.own + step) % heads.count for step in range(1, heads.count)]
    ranks = heads.of_nodes[heads.node]
    others: Sequence[Peer] = [ranks[head] for head in behind]
    own, piece = heads.of_rail(heads.own, work.count), heads.own_piece(work.count)
    if work.collective is Collective.ReduceScatter:
        return [
            ThreadGroup(
                [ChunkStep(0, heads.of_rail(head, work.count), (), (ranks[head],)) for head in behind], TO_HEADS
            ),
            ThreadGroup([ChunkStep(0, own, tuple(others), NETWORK_ADDS, adds=bool(others))], TO_HEADS),
            ThreadGroup([ChunkStep(0, piece, NETWORK_ADDS, ())], FROM_HEADS),
        ]
    return [
        ThreadGroup([ChunkStep(0, piece, (), NETWORK_COPIES)], TO_HEADS),
        ThreadGroup([ChunkStep(0, own, NETWORK_COPIES, tuple(others))], FROM_HEADS),
        ThreadGroup([ChunkStep(0, heads.of_rail(head, work.count), (ranks[head],), ()) for head in behind], FROM_HEADS),
    ]


# What a rank does in one loop along a ring, or up and down a tree. Source: runRing and runTreeSplit of
# src/device/all_reduce.h, runRing of reduce_scatter.h, all_gather.h, reduce.h and broadcast.h, v2.28.9-1.


def around(work: Work, ring: Sequence[int], rank: int) -> ThreadGroup:
    """A rank's steps of one loop along its ring."""
    ranks, place = len(ring), ring.index(rank)
    before, after = (ring[place - 1],), (ring[(place + 1) % ranks],)
    if work.collective is Collective.AllReduce:
        return ThreadGroup(_twice_around(ranks, place, before, after))
    if work.collective is Collective.ReduceScatter:
        parts = [in_part_of(ring[place - back], work.count) for back in range(ranks)]
        return ThreadGroup(
            [
                ChunkStep(0, parts[1 % ranks], (), after),
                *(ChunkStep(0, parts[back], before, after, adds=True) for back in range(2, ranks)),
                ChunkStep(0, parts[0], before, (), adds=True),
            ]
        )
    if work.collective is Collective.AllGather:
        parts = [in_part_of(ring[place - back], work.count) for back in range(ranks)]
        return ThreadGroup(
            [
                ChunkStep(0, parts[0], (), after),
                *(ChunkStep(0, parts[back], before, after) for back in range(1, ranks - 1)),
                ChunkStep(0, parts[ranks - 1], before, ()),
            ]
        )
    if work.collective is Collective.Reduce:  # from the rank after the root around to the root
        first, last, adds = before == (work.root,), rank == work.root, True
    else:
        first, last, adds = rank == work.root, after == (work.root,), False
    return ThreadGroup([ChunkStep(0, in_buffer, () if first else before, () if last else after, adds and not first)])


def _twice_around(ranks: int, place: int, before: tuple[int], after: tuple[int]) -> list[ChunkStep]:
    return [
        ChunkStep((place - 1) % ranks, in_buffer, (), after),
        *(ChunkStep((place - back) % ranks, in_buffer, before, after, adds=True) for back in range(2, ranks + 1)),
        *(ChunkStep((place - back) % ranks, in_buffer, before, after) for back in range(1, ranks - 1)),
        ChunkStep((place + 1) % ranks, in_buffer, before, ()),
    ]


def up_and_down(tree: TreeOrder, rank: int) -> list[ThreadGroup]:
    """The steps to the parent and from it; the root sends down what it has added."""
    parent, children = tree.parents[rank], tree.children[rank]
    up = ChunkStep(0, in_buffer, children, children if parent is None else (parent,), adds=bool(children))
    if parent is None:
        return [ThreadGroup([up])]
    return [ThreadGroup([up]), ThreadGroup([ChunkStep(0, in_buffer, (parent,), children)])]


# What a rank does in one loop if the switch of its node takes part: NVLS alone, with the network, or with trees. A rank
# gives each head's part to the switch. When a head asks for its part, the switch adds what all ranks of the node have
# given (multimem.ld_reduce). What a head writes to the switch (multimem.st), all ranks of its node get, including the
# head. Source: RunWorkColl of NVLS and NVLSTree, src/device/all_reduce.h, all_gather.h and reduce_scatter.h, v2.28.9-1.

SWITCH_ADDS, SWITCH_COPIES = (InNetwork.switch_adds,), (InNetwork.switch_copies,)


def by_switch(work: Work, across: Across, heads: NodeHeads, channel: int, rank: int) -> list[ThreadGroup]:
    """The steps of a rank's threads in one loop."""
    several = len(across.ranks_of_nodes) > 1
    if work.collective is Collective.AllGather:
        return _all_gather(work, heads, rank, several)
    if work.collective is Collective.ReduceScatter:
        return _reduce_scatter(work, heads, rank, several)
    scatter = ThreadGroup([ChunkStep(head, in_buffer, (), SWITCH_ADDS) for head in range(heads.count)])
    gather = ThreadGroup([ChunkStep(head, in_buffer, SWITCH_COPIES, ()) for head in range(heads.count)])
    if heads.own is None:
        return [scatter, gather]
    if work.algorithm is Algorithm.NVLSTree:
        tree = across.nvls_trees[channel]
        up: tuple[Peer, ...] = () if (parent := tree.parents[rank]) is None else (parent,)
        down: tuple[Peer, ...] = tree.children[rank]
    else:
        up, down = ((InNetwork.network_adds,) if several else ()), ()
    reduce = ThreadGroup([ChunkStep(heads.own, in_buffer, (*SWITCH_ADDS, *down), up or (*SWITCH_COPIES, *down))])
    broadcast = ThreadGroup([ChunkStep(heads.own, in_buffer, up, (*SWITCH_COPIES, *down))])
    return [scatter, gather, reduce, broadcast] if up else [scatter, gather, reduce]


def _parts(work: Work, heads: NodeHeads, several: bool) -> list[Place]:
    if several:
        return [heads.of_rail(head, work.count) for head in range(heads.count)]
    return [in_part_of(head, work.count) for head in range(heads.count)]  # sic: a head's number is used as its rank


def _all_gather(work: Work, heads: NodeHeads, rank: int, several: bool) -> list[ThreadGroup]:
    parts = _parts(work, heads, several)
    gather = ThreadGroup([ChunkStep(0, part, SWITCH_COPIES, ()) for part in parts])
    if heads.own is None:
        return [gather]
    if not several:
        return [gather, ThreadGroup([ChunkStep(0, in_part_of(rank, work.count), (), SWITCH_COPIES)])]
    network = (InNetwork.network_copies,)
    return [
        gather,
        ThreadGroup([ChunkStep(0, heads.own_piece(work.count), (), network)]),
        ThreadGroup([ChunkStep(0, parts[heads.own], network, SWITCH_COPIES)]),
    ]


def _reduce_scatter(work: Work, heads: NodeHeads, rank: int, several: bool) -> list[ThreadGroup]:
    parts = _parts(work, heads, several)
    scatter = ThreadGroup([ChunkStep(0, part, (), SWITCH_ADDS) for part in parts])
    if heads.own is None:
        return [scatter]
    if not several:
        return [scatter, ThreadGroup([ChunkStep(0, in_part_of(rank, work.count), SWITCH_ADDS, ())])]
    network = (InNetwork.network_adds,)
    return [
        scatter,
        ThreadGroup([ChunkStep(0, parts[heads.own], SWITCH_ADDS, network)]),
        ThreadGroup([ChunkStep(0, heads.own_piece(work.count), network, ())]),
    ]

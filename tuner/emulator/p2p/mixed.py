"""Sends and receives in one group with collectives: they follow the collectives, in their last kernel if it has room.

Source: ncclLaunchPrepare, src/enqueue.cc, v2.28.9-1 and v2.21.5-1.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field, replace

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import AlgoProto, Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.base.numerics import ceil_div
from tuner.emulator.group import (
    GroupChoice,
    Operation,
    SelectionChooser,
    broadcasts_together,
    check_roots_are_ranks,
    not_emulated,
    task_of,
)
from tuner.emulator.p2p.plan import ExchangeCall, kernels_of_chunks, kernels_of_rounds, messages
from tuner.emulator.p2p.records import ExchangeKernel, P2pContext, Queues
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.rules import bounds
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.rules.registered import LL128_DATA, LL128_LINE, grain_bytes, step_bytes
from tuner.emulator.rules.schedule.scheduler import Batches, Works
from tuner.emulator.rules.schedule.task import CollectiveTask
from tuner.emulator.selection import Selection

WORK_BYTES = 48  # ncclDevWorkBcast
OF_BATCH = 64  # number of works that a batch can refer to
ALIGNMENT_BYTES = 256  # parts are multiples of this
LEAST_THREADS = OF_BATCH * WORK_BYTES // 16 + 3 * 32  # threads of a block that copies works, and three warps more
STORAGE_BYTES = ((80, 1 << 10), (90, 8 << 10))  # ncclMaxDevWorkBatchBytes, below a compute capability
MOST_STORAGE_BYTES = 16 << 10
WITHOUT = (Algorithm.NVLS, Algorithm.NVLSTree, Algorithm.CollNetDirect, Algorithm.CollNetChain)
GATHER = Request(Collective.AllGather, DataType.int8, Op.sum)


@dataclass(frozen=True, slots=True)
class BroadcastPart:
    """The part of one broadcast on a channel; ``ring_depth`` is the number of hops from the root to this rank."""

    place: int  # index of the call
    ring_depth: int
    bytes: int
    chunk_bytes: int


@dataclass(slots=True)
class BroadcastKernel:
    """One launch: at most one broadcast from each root.

    ``batches`` and ``work_bytes`` are the batches and the bytes of works that the broadcasts occupy in the kernel.
    """

    protocol: Protocol
    threads: int
    operations: tuple[tuple[int, Operation], ...]  # with the index of each call
    parts: dict[int, list[BroadcastPart]] = field(default_factory=dict)  # by channel
    batches: int = 0
    work_bytes: int = 0


def broadcast_kernels(
    selection: Selection, p2p_context: P2pContext, operations: Sequence[tuple[int, Operation]], captured: bool
) -> Iterator[BroadcastKernel]:
    """The kernels of broadcasts; ``operations`` has each broadcast with its index among the group's calls.

    ``captured``: whether a CUDA graph captures the group.

    BadInput if a kernel cannot hold even one broadcast.
    """
    waiting: dict[int, deque[tuple[int, Operation]]] = {root: deque() for root in range(p2p_context.communicator.ranks)}
    for place, operation in operations:
        waiting[operation.root].append((place, operation))
    left, room = len(operations), Batches(p2p_context.communicator, captured)
    while left:
        taken = _first_of_each(room, [queue for queue in waiting.values() if queue])
        left -= len(taken)
        yield _kernel(selection, p2p_context, [queue.popleft() for queue in taken])


def _first_of_each(
    room: Batches, queues: Sequence[deque[tuple[int, Operation]]]
) -> Sequence[deque[tuple[int, Operation]]]:
    communicator = room.communicator
    capability = communicator.min_comp_cap
    storage = next((size for below, size in STORAGE_BYTES if capability < below), MOST_STORAGE_BYTES)
    for count in range(1, len(queues) + 1):
        fits = room.holds(communicator.channels * ceil_div(count, OF_BATCH), count * WORK_BYTES)
        if not fits or count == storage // WORK_BYTES:
            if count == 1:
                raise BadInput(Batches.TOO_SMALL)
            return queues[: count - 1]
    return queues


def _kernel(
    selection: Selection, p2p_context: P2pContext, operations: Sequence[tuple[int, Operation]]
) -> BroadcastKernel:
    communicator = p2p_context.communicator
    largest = max(operation.bytes for _, operation in operations) * communicator.ranks
    algo_proto = _choice(selection, largest)
    found = bounds.bounds(RuleCall(communicator, GATHER, algo_proto), selection.tables, np.array([largest], np.uint64))
    channels, threads = int(found[0][0]), int(found[1][0])
    protocol = algo_proto[1]
    kernel = BroadcastKernel(protocol, max(threads, LEAST_THREADS), tuple(operations))
    chunk = _chunk_bytes(p2p_context, protocol)
    rings = p2p_context.rings()
    for channel in range(channels):
        ring, base = rings[channel], None
        ordered = sorted(operations, key=lambda each: _depth(ring, each[1].root))
        for place, operation in ordered:
            part = ceil_div(operation.bytes, channels)
            low, high = (min(_aligned(end * part), operation.bytes) for end in (channel, channel + 1))
            if low == high:
                continue
            depth = _depth(ring, operation.root)
            kernel.parts.setdefault(channel, []).append(BroadcastPart(place, depth, high - low, chunk))
            here = kernel.work_bytes
            if base is None or here - base > (OF_BATCH - 1) * WORK_BYTES:
                base = here
                kernel.batches += 1
            kernel.work_bytes += WORK_BYTES
    return kernel


def _choice(selection: Selection, nbytes: int) -> AlgoProto:
    """The pick of an AllGather of the same size, without the switch and without reductions in the network."""
    candidates = selection.candidates(GATHER)
    times = selection.times_us(GATHER, nbytes)
    left = [number for number, (algorithm, _) in enumerate(candidates) if algorithm not in WITHOUT]
    best, _ = selection.communicator.rules.pick((times[:, number] for number in left), selection.communicator)
    return candidates[left[int(best[0])]]


def _chunk_bytes(p2p_context: P2pContext, protocol: Protocol) -> int:
    communicator = p2p_context.communicator
    step = step_bytes(communicator, protocol)
    if protocol is Protocol.LL:
        step //= 2
    elif protocol is Protocol.LL128:
        step = step // LL128_LINE * LL128_DATA
    grain = grain_bytes(protocol, communicator.release.limits.warp_size)
    return step // grain * grain


def _depth(ring: Sequence[int], root: int) -> int:
    """The number of hops from a root along the ring to the rank at which ``ring`` begins."""
    return -ring.index(root) % len(ring)


def _aligned(size: int) -> int:
    return int(ceil_div(size, ALIGNMENT_BYTES) * ALIGNMENT_BYTES)


@dataclass(frozen=True, slots=True)
class MixedKernel:
    """One launch: its collectives in NCCL's order, and its sends and receives. One of the two may be missing.

    ``path`` names what runs its collectives if no algorithm does: a symmetric kernel, or copy engines, which launch no
    kernel.
    """

    name: str
    threads: int
    channels: tuple[int, ...]
    tasks: tuple[CollectiveTask, ...]
    exchange: ExchangeKernel | None
    broadcasts: BroadcastKernel | None = None  # the merged broadcasts from several roots
    path: NonClassicPath | None = None


def plan(
    selection: Selection,
    p2p_context: P2pContext,
    operations: Sequence[Operation],
    calls: Sequence[ExchangeCall],
    buffers: Buffers = Buffers.plain,
) -> tuple[list[MixedKernel], list[GroupChoice]]:
    """The kernels of a group of collectives and of sends and receives in the order of their launch, and what NCCL chose
    for the collectives, in NCCL's order; ``buffers``: the kind of all their buffers.

    BadInput for groups that are not emulated.
    """
    communicator = selection.communicator
    requests = [each.request for each in operations]
    if requests and (missing := not_emulated(selection, requests)) is not None:
        raise BadInput(f"groups are not emulated {missing}")
    captured, queues = buffers is Buffers.graph, Queues(messages(p2p_context, calls), p2p_context.order.rank)
    check_roots_are_ranks(communicator, operations)
    together = broadcasts_together(communicator, operations)
    tasks = [
        task_of(place, operation, communicator.ranks)
        for place, operation in enumerate(operations)
        if place not in together
    ]
    chooser = SelectionChooser(selection, None, beside_messages=bool(queues))
    kernels = communicator.rules.schedule(chooser, tasks) if tasks else []
    launches = [_of_tasks(p2p_context, kernel) for kernel in kernels]
    of_several = broadcast_kernels(selection, p2p_context, [(place, operations[place]) for place in together], captured)
    launches += [_of_broadcasts(p2p_context, kernel) for kernel in of_several]
    by_algorithms = [kernel for kernel in launches if kernel.path is None]
    exchanges = list(_exchanges(p2p_context, queues, by_algorithms, captured))
    if by_algorithms and exchanges:
        launches[-1] = _joined(p2p_context, launches[-1], exchanges.pop(0))
    alone = communicator.rules.device_functions.EXCHANGES
    rest = (MixedKernel(alone, each.threads, each.channels, (), each) for each in exchanges)
    return [*launches, *rest], chooser.choices


def _of_tasks(p2p_context: P2pContext, kernel: Sequence[CollectiveTask]) -> MixedKernel:
    communicator, path = p2p_context.communicator, kernel[0].path
    if path is not None:
        return MixedKernel(path.name, path.threads, tuple(range(path.blocks)), tuple(kernel), None, path=path)
    channels = tuple(sorted({channel for task in kernel for channel in task.channels}))
    name = communicator.rules.device_functions.kernel(communicator, kernel)
    return MixedKernel(name, max(task.threads for task in kernel), channels, tuple(kernel), None)


def _of_broadcasts(p2p_context: P2pContext, kernel: BroadcastKernel) -> MixedKernel:
    name = p2p_context.communicator.rules.device_functions.broadcasts_together()
    return MixedKernel(name, kernel.threads, tuple(sorted(kernel.parts)), (), None, kernel)


def _joined(p2p_context: P2pContext, kernel: MixedKernel, exchange: ExchangeKernel) -> MixedKernel:
    """The last kernel of the collectives with those messages that fit. Its block and function change even if none
    fits."""
    functions = p2p_context.communicator.rules.device_functions
    if kernel.broadcasts is not None:
        name = kernel.name if kernel.broadcasts.protocol is Protocol.LL else functions.EXCHANGES
    else:
        name = functions.kernel_with_exchanges(p2p_context.communicator, kernel.tasks)
    channels = tuple(sorted({*kernel.channels, *exchange.channels}))
    threads = max(kernel.threads, exchange.threads)
    return replace(kernel, name=name, threads=threads, channels=channels, exchange=exchange)


def _exchanges(
    p2p_context: P2pContext, queues: Queues, before: Sequence[MixedKernel], captured: bool
) -> Iterator[ExchangeKernel]:
    """The kernels of the messages; the first ones go into the last kernel of the collectives, if there is one."""
    if p2p_context.communicator.release.exchange.planner == "rounds":
        return kernels_of_rounds(p2p_context, queues, captured, [_filled(p2p_context, kernel) for kernel in before])
    works = Works(p2p_context.communicator, captured)
    for task in before[-1].tasks if before else ():
        works.add(task)
    return kernels_of_chunks(p2p_context, queues, captured, works.left)


def _filled(p2p_context: P2pContext, kernel: MixedKernel) -> tuple[int, int]:
    """The number of batches of a kernel of collectives, and the bytes of their works."""
    if kernel.broadcasts is not None:
        return kernel.broadcasts.batches, kernel.broadcasts.work_bytes
    held = Batches.of(p2p_context.communicator, kernel.tasks)
    return held.batches, held.filled_bytes

"""Broadcasts of one group from several roots, which are one call from 2.29.2 on: AllGatherV, in rings.

Source: ncclScheduleBcastTasksToPlan, src/scheduler/allgatherv_sched.cc; ncclPrepareTasks, src/enqueue.cc, v2.29.2-1.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.names import AlgoProto, Algorithm, Collective, DataType, Op, Protocol
from tuner.base.numerics import ceil_div
from tuner.emulator.group import Operation
from tuner.emulator.p2p.records import P2pContext
from tuner.emulator.request import Request
from tuner.emulator.rules import bounds
from tuner.emulator.rules.buffers import LL128_DATA, LL128_LINE, grain_bytes, step_bytes
from tuner.emulator.rules.call import Call
from tuner.emulator.rules.schedule.batches import Batches
from tuner.emulator.selection import Selection

WORK_BYTES = 48  # ncclDevWorkBcast
OF_BATCH = 64  # works that a batch reaches
ALIGNMENT_BYTES = 256  # of parts
LEAST_THREADS = OF_BATCH * WORK_BYTES // 16 + 3 * 32  # which a block copies works with, and three warps more
STORAGE_BYTES = ((80, 1 << 10), (90, 8 << 10))  # ncclMaxDevWorkBatchBytes: below a compute capability
MOST_STORAGE_BYTES = 16 << 10
WITHOUT = (Algorithm.NVLS, Algorithm.NVLSTree, Algorithm.CollNetDirect, Algorithm.CollNetChain)
GATHER = Request(Collective.AllGather, DataType.int8, Op.sum)


@dataclass(frozen=True, slots=True)
class BroadcastPart:
    """A channel's part of one broadcast; ``ring_depth`` is how many ranks of the ring the root is before this one."""

    place: int  # among the calls
    ring_depth: int
    bytes: int
    chunk_bytes: int


@dataclass(slots=True)
class BroadcastKernel:
    """One launch: at most one broadcast of each root. ``batches`` and ``work_bytes`` are what it takes of a kernel."""

    protocol: Protocol
    threads: int
    operations: tuple[tuple[int, Operation], ...]  # by their place among the calls
    parts: dict[int, list[BroadcastPart]] = field(default_factory=dict)  # by channel
    batches: int = 0
    work_bytes: int = 0


def kernels(
    selection: Selection, p2p_context: P2pContext, operations: Sequence[tuple[int, Operation]], captured: bool
) -> Iterator[BroadcastKernel]:
    """The kernels of broadcasts, each with its place among the calls; in a CUDA graph if ``captured``.

    BadInput where a kernel holds not even one.
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
    found = bounds.bounds(Call(communicator, GATHER, algo_proto), selection.tables, np.array([largest], np.uint64))
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
    """What an AllGather of as many bytes would be without the switch and the network's reductions."""
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
    """Number of ranks that a root is before the own rank in a ring, which begins there."""
    return -ring.index(root) % len(ring)


def _aligned(size: int) -> int:
    return int(ceil_div(size, ALIGNMENT_BYTES) * ALIGNMENT_BYTES)

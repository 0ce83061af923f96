"""The steps of sends and receives: each message in parts on channels, each part in chunks.

A block does a batch of messages after the other; in a batch threads of their own do each, and a part is sent chunk by
chunk. What a rank sends itself is copied, and is no step. ``pieces`` are bytes of the rank's own buffers, so that both
ends of a message have others. Source: src/device/sendrecv.h and ncclP2pPartBounds, src/include/device.h, v2.28.9-1;
src/device/sendrecv.h, v2.21.5-1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tuner.base.names import Protocol
from tuner.emulator.p2p.records import Element, ExchangeKernel, Transfer
from tuner.emulator.steps.records import Schedule, Step

Kernels = Sequence[ExchangeKernel]
TOGETHER = 8  # works of a batch, a send and a receive each


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a message goes over a channel, bytes."""

    transfer: Transfer
    first: int
    bytes: int
    chunk_bytes: int


def schedule(kernels_of: Callable[[int], Kernels], ranks: int) -> Schedule:
    """The schedule of one group of sends and receives, whose kernels are known by rank."""
    channels = {channel for rank in range(ranks) for kernel in kernels_of(rank) for channel in kernel.channels}
    return Schedule(
        ranks=ranks,
        channels=tuple(sorted(channels)),
        threads=2 * TOGETHER,
        connections=1,
        element_bytes=1,
        steps=partial(_steps, kernels_of),
    )


def _steps(kernels_of: Callable[[int], Kernels], rank: int) -> Iterator[Step]:
    for launch, kernel in enumerate(kernels_of(rank)):
        for channel, batches in kernel.batches.items():
            for number, batch in enumerate(batches):
                parts = _parts(kernel, channel, batch)
                for threads, part in enumerate(each for each in parts if each.transfer.peer != rank):
                    protocol = part.transfer.protocol
                    like = Step(channel, rank, threads, 0, (), (), (), False, protocol, kernel=launch, batch=number)
                    yield from _chunks(part, like)


def _parts(kernel: ExchangeKernel, channel: int, batch: tuple[int, ...] | tuple[Element, ...]) -> Iterator[_Part]:
    for each in batch:
        if isinstance(
            each, Element
        ):  # up to 2.21 a part is a transfer of its own, and LL's chunks are with their flags
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

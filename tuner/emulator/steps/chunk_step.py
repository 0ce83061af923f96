"""Steps of blocks that go over chunks in loops: what is done with each chunk, turned into numbered steps."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tuner.base.names import Protocol
from tuner.emulator.launches import ChannelShare, Work
from tuner.emulator.steps.loops import Loops
from tuner.emulator.steps.records import Peer, Pieces, Step

SLICE_ALIGNMENT = 16  # elements
LEAST_SLICE = 32  # a slice has at least the 32nd part of what it may have

Place: TypeAlias = Callable[[int, int], Pieces]  # of elements of a loop's count: where they are in the whole buffer


@dataclass(frozen=True, slots=True)
class ChunkStep:
    """What is done with one part of each loop: a step without number and elements."""

    part: int
    place: Place
    receive_from: tuple[Peer, ...]
    send_to: tuple[Peer, ...]
    adds: bool = False


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads of a block that do the same in each loop."""

    going: Sequence[ChunkStep]
    connection: int = 0


def in_buffer(first: int, elements: int) -> Pieces:
    """Elements that are where they are counted."""
    return ((first, elements),)


def in_part_of(owner: int, count: int) -> Place:
    """Elements that are counted from the start of a rank's part, each of ``count`` elements."""
    return lambda first, elements: ((first + owner * count, elements),)


def steps(
    work: Work, share: ChannelShare, rank: int, loops: Sequence[Loops], threads: Sequence[Threads]
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

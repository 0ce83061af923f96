"""PAT, one rank per node: binomial trees of all ranks at once, whose steps of one distance are sent together.

The part of a rank comes from, or goes to, ranks at a distance: those behind it in the order of ranks. One at distance d
hands a part on to the one at d without its lowest bit, 1, 2, 4 ... ranks away, which is the dimension of a connection.
Steps of far distances, multiples of ``apart``, are sent ``together`` in one message.
Source: PatRSAlgorithm and PatAGAlgorithm, src/include/collectives.h; patReduce and patCopy, src/device/prims_simple.h,
v2.28.9-1, and the same from v2.26.2-1 on.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tuner.base.names import Collective
from tuner.emulator.launch.records import ChannelShare, Work
from tuner.emulator.steps import pat_rounds
from tuner.emulator.steps.loops import loops
from tuner.emulator.steps.pat_rounds import Aggregation
from tuner.emulator.steps.records import Peer, Step
from tuner.emulator.steps.terms import Term, of_tree

BUFFER_STEPS = 8  # NCCL_STEPS


def aggregation(work: Work, share: ChannelShare, ranks: int) -> Aggregation:
    """How many far distances go together. Source: the constructors of both classes."""
    together, chunk, channel = 1, share.chunk, share.count
    while chunk // (channel * together) >= 2 and together < ranks // 2:
        together *= 2
    far, depth = together, BUFFER_STEPS
    while depth > 1 and far < ranks // 2:
        depth, far = depth // 2, far * 2
    return Aggregation(ranks, far, together)


def term(work: Work, share: ChannelShare, ranks: int, owner: int) -> Term:
    """How the numbers of a rank's part are added on one channel.

    Each rank begins with its own number and adds what comes in: of near distances the farthest first, then of far ones
    the nearest first, and at a far distance the neighbour's last.
    """
    apart = aggregation(work, share, ranks).apart
    children: list[list[int]] = [[] for _ in range(ranks)]
    for distance in range(ranks):
        lowest = distance & -distance or 1 << (ranks - 1).bit_length()
        bits = [1 << bit for bit in range(lowest.bit_length() - 1)]
        if distance % apart:
            bits.reverse()
        else:
            near = [bit for bit in bits if 1 < bit < apart]
            bits = [*reversed(near), *(bit for bit in bits if bit >= apart), *(bit for bit in bits if bit == 1)]
        children[(owner - distance) % ranks] = [
            (owner - distance - bit) % ranks for bit in bits if distance + bit < ranks
        ]
    return of_tree(children, owner)


@dataclass(slots=True)
class _Message:
    """What is in one, in the order in which it was put there; ``most`` elements go over the wire, unused ones too."""

    pieces: dict[tuple[int, int], None] = field(default_factory=dict)
    most: int = 0

    @property
    def unused(self) -> int:
        """Elements that nobody reads."""
        return max(0, self.most - sum(elements for _, elements in self.pieces))


@dataclass(slots=True)
class _Ends:
    """The messages of one direction, by dimension and number, and by dimension how many were done with."""

    done: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    messages: dict[tuple[int, int], _Message] = field(default_factory=dict)


def steps(work: Work, share: ChannelShare, rank: int, ranks: int) -> Iterator[Step]:
    """The steps of a rank on one channel: one for each message, when it is waited for or sent."""
    reduces = work.collective is Collective.ReduceScatter
    away = 1 if reduces else -1
    for number, (receives, dimension, message) in enumerate(_messages(work, share, rank, ranks)):
        towards = -away if receives else away
        peer: tuple[Peer, ...] = ((rank + towards * (1 << dimension)) % ranks,)
        yield Step(
            channel=share.channel,
            rank=rank,
            threads=0,
            number=number,
            receive_from=peer if receives else (),
            send_to=() if receives else peer,
            pieces=tuple(message.pieces),
            adds=receives and reduces,
            protocol=work.protocol,
            unused=message.unused,
        )


def _messages(work: Work, share: ChannelShare, rank: int, ranks: int) -> list[tuple[bool, int, _Message]]:
    """Whether a message is received, its dimension, and itself, in the order in which they are waited for or sent."""
    how = aggregation(work, share, ranks)
    reduces = work.collective is Collective.ReduceScatter
    received, sent = _Ends(), _Ends()
    order: list[tuple[bool, int, _Message]] = []
    (range_loops,) = loops(work, share, 1)
    for first, elements in zip(*(array.tolist() for array in range_loops.chunks(0)), strict=True):
        for move in pat_rounds.reduce_scatter(how) if reduces else pat_rounds.all_gather(how):
            piece = (rank + move.distance) % ranks * work.count + first, elements
            if move.receive is not None:
                key = move.receive, received.done[move.receive] + (0 if reduces else move.ahead)
                if key not in received.messages:
                    received.messages[key] = _Message()
                    order.append((True, move.receive, received.messages[key]))
                _put(received.messages[key], piece, move.places[0])
                received.done[move.receive] += move.receive_done
            if move.send is not None:
                key = move.send, sent.done[move.send] + (move.ahead if reduces else 0)
                _put(sent.messages.setdefault(key, _Message()), piece, move.places[1])
                if move.send_done:
                    order.append((False, move.send, sent.messages[move.send, sent.done[move.send]]))
                    sent.done[move.send] += 1
    return order


def _put(message: _Message, piece: tuple[int, int], place: int) -> None:
    message.pieces[piece] = None
    message.most = max(message.most, (place + 1) * piece[1])

"""PAT with one rank per node: binomial trees of all ranks at once. Steps of the same distance are sent together.

A rank's part comes from, or goes to, ranks at a distance, counted along the order of ranks. The rank at distance d
passes a part on to the one at d without its lowest bit, 1, 2, 4 ... ranks away; that bit is the dimension of the
connection. Steps of far distances, multiples of ``apart``, are sent ``together`` in one message. Source: PatRSAlgorithm
and PatAGAlgorithm, src/include/collectives.h; patReduce and patCopy, src/device/prims_simple.h, v2.28.9-1, and the same
from v2.26.2-1 on.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.base.names import Collective
from tuner.base.numerics import mirrored
from tuner.emulator.launches import ChannelShare, Work
from tuner.emulator.steps.loops import loops
from tuner.emulator.steps.records import Peer, Step

BUFFER_STEPS = 8  # NCCL_STEPS


# The moves of PAT: for each distance of a part, the dimension by which it comes in and the one by which it leaves.
# Source: getNextOp of PatRSAlgorithm and PatAGAlgorithm, src/include/collectives.h, v2.28.9-1.


@dataclass(frozen=True, slots=True)
class Aggregation:
    """``far`` distances, multiples of ``apart``, go through the same rounds, ``together`` of them per message."""

    ranks: int
    far: int
    together: int

    @property
    def apart(self) -> int:
        """The step between far distances: the number of ranks, rounded up to a power of two, divided by ``far``."""
        return (1 << (self.ranks - 1).bit_length()) // self.far

    def done(self, place: int) -> bool:
        """Whether the piece at this place fills its message."""
        return (place + 1) % self.together == 0

    def places(self, received: int, sent: int) -> tuple[int, int]:
        """The places of the received and the sent piece in the messages that contain them."""
        return received % self.together, sent % self.together


@dataclass(frozen=True, slots=True)
class Move:
    """A piece of the part of the rank ``distance`` further up.

    ``receive`` and ``send``: the dimensions of the piece's connections, None if it has none.

    ``ahead``: the piece is for a message this many after the next one of the connection (in ReduceScatter the sending
    one, in AllGather the receiving one). ``places``: the piece's places in the messages in which it is received and
    sent; what stands before it goes over the wire, too.
    """

    distance: int
    receive: int | None
    send: int | None
    receive_done: bool
    send_done: bool
    ahead: int = 0
    places: tuple[int, int] = (0, 0)


def lowest_bit(distance: int) -> int | None:
    """The dimension in which a part at this distance continues; None at the end."""
    return (distance & -distance).bit_length() - 1 if distance else None


def reduce_scatter(how: Aggregation) -> Iterator[Move]:
    """The moves of a rank for one chunk: near rounds from the farthest to the nearest, then far ones."""
    for near in range(how.apart - 1, 0, -1):
        if near % 2:
            yield from _of_the_first(how, near)
        if near > 1:
            yield from _near(how, near)
    scale = 1
    while scale < how.far:
        yield from _far_neighbours(how, scale)
        yield from _far(how, scale)
        scale *= 2
    yield Move(0, 0, None, True, False, places=how.places(how.far - 1, 0))


def all_gather(how: Aggregation) -> Iterator[Move]:
    """The moves of a rank for one chunk: far rounds from the farthest on, then near ones, parents first."""
    scale = how.far // 2
    while scale:
        yield from _to_far(how, scale)
        scale //= 2
    for near in _descending(0, how.apart // 2):
        yield from _to_near(how, near)
        if near % 2:
            yield from _to_the_last(how, near)


def _descending(distance: int, bit: int) -> Iterator[int]:
    """The distances below ``distance``, the farthest first, each followed by all below it (NCCL's nextAs())."""
    while bit:
        yield distance + bit
        yield from _descending(distance + bit, bit // 2)
        bit //= 2


def _to_far(how: Aggregation, scale: int) -> Iterator[Move]:
    for place in range(how.far // (2 * scale)):
        distance = (2 * place + 1) * scale * how.apart
        if distance < how.ranks:
            dimension = lowest_bit(distance) or 0
            own = distance - (1 << dimension)
            comes = lowest_bit(own)
            ahead = 0 if comes is None else (own >> (comes + 1)) // how.together
            last = (2 * place + 3) * scale * how.apart >= how.ranks
            places = how.places(0 if comes is None else own >> (comes + 1), place)
            yield Move(own, comes, dimension, False, how.done(place) or last, ahead, places)


def _to_near(how: Aggregation, near: int) -> Iterator[Move]:
    dimension = (near & -near).bit_length() - 1
    from_far = near == 1 << dimension  # what goes out came in for a far distance
    for place in range(how.far):
        distance = place * how.apart + near
        own, after = distance - (1 << dimension), distance + how.apart
        goes = distance < how.ranks
        if own >= how.ranks or not (goes or dimension == 0):
            continue
        comes, order, last = lowest_bit(own), place, after - 1 >= how.ranks
        if comes is not None and from_far:
            order = own >> (comes + 1)
            last = (2 * order + 3) << comes >= how.ranks
        received = comes is not None and dimension == 0 and (how.done(order) or last)
        sent = goes and (how.done(place) or after >= how.ranks)
        ahead = 0 if dimension == 0 else order // how.together
        yield Move(own, comes, dimension if goes else None, received, sent, ahead, how.places(order, place))


def _to_the_last(how: Aggregation, near: int) -> Iterator[Move]:
    """The last steps: ranks at an odd distance only receive and forward nothing."""
    for place in range(how.far):
        distance = place * how.apart + near
        if distance < how.ranks:
            done = how.done(place) or distance + how.apart >= how.ranks
            yield Move(distance, 0, None, done, False, places=how.places(place, 0))


def _inverted(place: int, places: int) -> int:
    """The bits of a place, inverted and in reverse order."""
    return mirrored(places - 1 - place, places)


def _of_the_first(how: Aggregation, near: int) -> Iterator[Move]:
    """Ranks at odd distances wait for nothing."""
    for place in range(how.far):
        distance = _inverted(place, how.far) * how.apart + near
        if distance < how.ranks:
            sends = how.done(place) or place == how.far - 1
            yield Move(distance, None, 0, False, sends, places=how.places(place, place))


def _near(how: Aggregation, near: int) -> Iterator[Move]:
    dimension = (near & -near).bit_length() - 1
    to_far = near == 1 << dimension  # what comes in is for a far distance, which is passed on to a separate peer
    ahead = since = 0
    for place in range(how.far):
        distance = _inverted(place, how.far) * how.apart + near
        own = distance - (1 << dimension)
        if to_far and own and _new_peer(place, how.far):
            since, ahead = place, 0
        comes, done = distance < how.ranks, how.done(place) or place == how.far - 1
        if own < how.ranks:
            out = lowest_bit(own)
            sends = out is not None and dimension == 0 and done
            where = how.places(place, place - since)
            yield Move(own, dimension if comes else None, out, comes and done, sends, ahead, where)
        if dimension > 0 and own < how.ranks and how.done(place - since):
            ahead += 1


def _far_neighbours(how: Aggregation, scale: int) -> Iterator[Move]:
    """Ranks at odd multiples of the scale receive their neighbour's data, the last that they wait for, and send."""
    places = how.far // (2 * scale)
    for place in range(places):
        own = (2 * _inverted(place, places) + 1) * scale * how.apart
        if own < how.ranks:
            comes = own + 1 < how.ranks
            received = place + how.far - how.far // scale
            sends = place == places - 1 or how.done(place)
            where = how.places(received, place)
            yield Move(own, 0 if comes else None, lowest_bit(own), comes and how.done(received), sends, 0, where)


def _far(how: Aggregation, scale: int) -> Iterator[Move]:
    places = how.far // (2 * scale)
    ahead = since = 0
    for place in range(places):
        distance = (2 * _inverted(place, places) + 1) * scale * how.apart
        dimension = lowest_bit(distance) or 0
        own, comes = distance - (1 << dimension), distance < how.ranks
        if _new_peer(place, places):
            since, ahead = place, 0
        if own < how.ranks:
            done = comes and (place == places - 1 or how.done(place))
            where = how.places(place, place - since)
            yield Move(own, dimension if comes else None, lowest_bit(own), done, False, ahead, where)
            if how.done(place - since):
                ahead += 1


def _new_peer(place: int, places: int) -> bool:
    """Whether only upper bits of a place are set: 1000, 1100, 1110 or 1111."""
    rest = (place ^ (places - 1)) + 1
    return rest & (rest - 1) == 0


def aggregation(work: Work, share: ChannelShare, ranks: int) -> Aggregation:
    """Number of far distances, and how many of them go into one message. Source: the constructors of both classes."""
    together, chunk, channel = 1, share.chunk, share.count
    while chunk // (channel * together) >= 2 and together < ranks // 2:
        together *= 2
    far, depth = together, BUFFER_STEPS
    while depth > 1 and far < ranks // 2:
        depth, far = depth // 2, far * 2
    return Aggregation(ranks, far, together)


@dataclass(slots=True)
class _Message:
    """The pieces of a message, in the order in which they were added; ``most`` elements go over the wire."""

    pieces: dict[tuple[int, int], None] = field(default_factory=dict)
    most: int = 0

    @property
    def unused(self) -> int:
        """Elements that nobody reads."""
        return max(0, self.most - sum(elements for _, elements in self.pieces))


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
    """For each message, in the order of waiting or sending: whether it is received, its dimension, and the message."""
    how = aggregation(work, share, ranks)
    reduces = work.collective is Collective.ReduceScatter
    # The messages of each direction, by dimension and number, and how many of them are finished, by dimension
    received, sent = dict[tuple[int, int], _Message](), defaultdict[tuple[int, int], _Message](_Message)
    received_done, sent_done = Counter[int](), Counter[int]()
    order: list[tuple[bool, int, _Message]] = []
    (range_loops,) = loops(work, share, 1)
    for first, elements in zip(*(array.tolist() for array in range_loops.chunks(0)), strict=True):
        for move in reduce_scatter(how) if reduces else all_gather(how):
            piece = (rank + move.distance) % ranks * work.count + first, elements
            if move.receive is not None:
                key = move.receive, received_done[move.receive] + (0 if reduces else move.ahead)
                if key not in received:
                    received[key] = _Message()
                    order.append((True, move.receive, received[key]))
                _put(received[key], piece, move.places[0])
                received_done[move.receive] += move.receive_done
            if move.send is not None:
                _put(sent[move.send, sent_done[move.send] + (move.ahead if reduces else 0)], piece, move.places[1])
                if move.send_done:
                    order.append((False, move.send, sent[move.send, sent_done[move.send]]))
                    sent_done[move.send] += 1
    return order


def _put(message: _Message, piece: tuple[int, int], place: int) -> None:
    message.pieces[piece] = None
    message.most = max(message.most, (place + 1) * piece[1])

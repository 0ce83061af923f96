"""Channels and peers of sends and receives, and their messages, transfers and works in kernels.

Source: ncclTopoComputeP2pChannels, src/graph/paths.cc; computeBuffSizes, src/init.cc, v2.28.9-1.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Protocol
from tuner.base.numerics import as_size_t, ceil_div, int32
from tuner.emulator.communicator import Comm
from tuner.emulator.rules.registered import VARIABLES, buffer_bytes, step_bytes
from tuner.emulator.rules.schedule.scheduler import ARGUMENT_HEAD_BYTES, BATCH_BYTES, Batches
from tuner.machine.adapters import PeerLinks

PER_NET_PEER = "NCCL_NCHANNELS_PER_NET_PEER"
PER_CHANNEL_BANDWIDTH = "NCCL_P2P_PER_CHANNEL_NET_BW"
# NCCL divides by an eighth of a chunk, and multiplies it by 32 in an int (addP2pToPlan, src/enqueue.cc, v2.28.9-1).
LEAST_CHUNK_BYTES, LARGEST_CHUNK_BYTES = 8, (1 << 26) - 1
TOGETHER = 8  # NCCL_MAX_DEV_WORK_P2P_PER_BATCH, and half of NCCL_MAX_WORK_ELEMENTS_P2P (src/include/device.h)


@dataclass(frozen=True, slots=True)
class PeerChannels:
    """NCCL's "p2p channels" and "p2p channels per peer", both powers of two, and the steps of the buffers in bytes."""

    channels: int
    per_peer: int
    chunk_bytes: int  # chunk of Simple
    ll_chunk_bytes: int  # chunk of LL in the buffer, of which half is flags
    ll_threshold_bytes: int
    forced_chunk_bytes: int  # NCCL_CHUNK_SIZE; 0 if not set
    ll_over_network: bool


def peer_channels(communicator: Comm, links: Sequence[PeerLinks], shared: PeerChannels | None = None) -> PeerChannels:
    """The point-to-point channels of a communicator.

    ``links`` has an entry for each kind of node, that of rank 0's node first.

    ``shared`` are the channels of the communicator whose resources this one shares. ``NCCL_CHUNK_SIZE`` and the buffer
    sizes act as in NCCL. BadInput for sizes that make NCCL divide by zero or loop forever.
    """
    number, data = communicator.environment.number, communicator.release.exchange
    c_int, most = communicator.environment.c_int, communicator.release.limits.max_channels
    own = links[0]
    first = min(communicator.channels, c_int("NCCL_MAX_P2P_NCHANNELS", most))
    first = max(first, c_int("NCCL_MIN_P2P_NCHANNELS", 1))
    if data.planner == "chunks" and first > most:
        raise BadInput(
            f"NCCL {communicator.release.name} crashes with NCCL_MIN_P2P_NCHANNELS={first}: set it to {most} or less"
        )
    first = first if shared is None else min(first, shared.channels)
    channels, per_peer = _powers_of_two(communicator, links, first)
    chunk = _chunk_bytes(communicator, own)
    return PeerChannels(
        channels=channels,
        per_peer=per_peer,
        chunk_bytes=chunk if shared is None else min(chunk, shared.chunk_bytes),
        ll_chunk_bytes=_checked(step_bytes(communicator, Protocol.LL), f"an eighth of {VARIABLES[Protocol.LL]}"),
        ll_threshold_bytes=number("NCCL_P2P_LL_THRESHOLD", data.ll_threshold_bytes),
        forced_chunk_bytes=_forced_chunk_bytes(communicator),
        ll_over_network=number("NCCL_NET_SHARED_BUFFERS", -2) == 0 or number("NCCL_ALLOC_P2P_NET_LL_BUFFERS", 0) == 1,
    )


def _powers_of_two(communicator: Comm, links: Sequence[PeerLinks], first: int) -> tuple[int, int]:
    data = communicator.release.exchange
    most = _most(communicator)
    channels = min(_power_of_two(first), most)
    if data.least_of == "own_node":
        least = min([first, *_each_peer(communicator, links[:1], first)])
        return channels, min(_power_of_two(least), channels) if data.planner == "rounds" else _power_of_two(least)
    least = min([communicator.release.limits.max_channels, *_each_peer(communicator, links, first)])
    per_peer = _power_of_two(least)
    if communicator.nodes == 1 or _given_per_net_peer(communicator) is not None:
        return channels, min(per_peer, channels)
    peers = communicator.ranks
    if data.max_peers and (said := communicator.environment.c_int("NCCL_P2P_MAX_PEERS", 0)) > 0:
        peers = min(said, peers)
    while per_peer * ceil_div(peers, TOGETHER) > channels and per_peer > 1:
        per_peer //= 2
    return channels, per_peer


def _most(communicator: Comm) -> int:
    """The most channels for which a kernel's arguments have room for one batch each."""
    most = communicator.release.limits.max_channels
    if communicator.release.exchange.planner == "chunks":
        return _power_of_two(most)
    given = communicator.environment.number("NCCL_WORK_ARGS_BYTES", -1)
    most = min(most, as_size_t(given - ARGUMENT_HEAD_BYTES) // BATCH_BYTES)
    if most < 1:
        raise BadInput(Batches.TOO_SMALL)
    return 1 << most.bit_length() - 1


def _each_peer(communicator: Comm, links: Sequence[PeerLinks], first: int) -> Iterator[int]:
    """The number of channels per peer that the links between the GPUs of these nodes, and their adapters, allow."""
    for node in links:
        if node.local_channels is not None:
            yield node.local_channels
        if communicator.nodes == 1:
            continue
        given = _given_per_net_peer(communicator)
        if given is None:
            yield from (_over_network(communicator, adapters, first) for adapters in node.adapters)
        elif given >= 0:
            yield given


def _given_per_net_peer(communicator: Comm) -> int | None:
    """NCCL_NCHANNELS_PER_NET_PEER if it takes effect; a value below 0 limits nothing."""
    given, counts = communicator.environment.optional(PER_NET_PEER), communicator.release.exchange.per_net_peer_counts
    if given is None or (counts == "but_minus_one" and given == -1) or (counts == "from_one" and given < 1):
        return None
    return given


def _over_network(communicator: Comm, adapters: tuple[int, float], first: int) -> int:
    data, count = communicator.release.exchange, adapters[0]
    if data.net_channels == "two":
        return 2
    if data.net_channels == "by_bandwidth":
        per_channel = communicator.environment.number(PER_CHANNEL_BANDWIDTH, int(data.channel_bandwidth_gbs))
        if per_channel == 0:
            raise BadInput(f"{PER_CHANNEL_BANDWIDTH}=0 makes NCCL divide by zero: set it to 1 GB/s or more")
        return max(count, ceil_div(int(adapters[1]), per_channel)) if count else 2
    few_ranks = 2 * communicator.ranks <= first * 4
    return max(count, 2 if few_ranks else 1)


def _chunk_bytes(communicator: Comm, own: PeerLinks) -> int:
    limits, data = communicator.release.limits, communicator.release.exchange
    if communicator.nodes > 1:
        blackwell_on_arm = communicator.cpu_arch == "arm64" and communicator.min_comp_cap >= 100
        times = data.net_chunks_of_arm_blackwell if blackwell_on_arm else 1
        variable, default = "NCCL_P2P_NET_CHUNKSIZE", data.net_chunk_bytes
    elif own.all_nvlink:
        times, variable, default = 1, "NCCL_P2P_NVL_CHUNKSIZE", data.nvlink_chunk_bytes
    else:
        times, variable, default = 1, "NCCL_P2P_PCI_CHUNKSIZE", data.pci_chunk_bytes
    chunk = times * communicator.environment.c_int(variable, default)
    if data.chunk_within_buffer and int32(chunk * limits.buffer_steps) > buffer_bytes(communicator, Protocol.Simple):
        chunk, variable = step_bytes(communicator, Protocol.Simple), f"an eighth of {VARIABLES[Protocol.Simple]}"
    return _checked(chunk, variable)


def _forced_chunk_bytes(communicator: Comm) -> int:
    """The value of NCCL_CHUNK_SIZE; 0 if it is not set."""
    if not (forced := communicator.environment.number("NCCL_CHUNK_SIZE", 0)):
        return 0
    return _checked(forced, "NCCL_CHUNK_SIZE")


def _checked(chunk: int, variable: str) -> int:
    if not LEAST_CHUNK_BYTES <= chunk <= LARGEST_CHUNK_BYTES:
        raise BadInput(
            f"{variable} asks for chunks of {chunk} bytes: valid are {LEAST_CHUNK_BYTES} to {LARGEST_CHUNK_BYTES}"
        )
    return chunk


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()


GROUP_SIZE = "NCCL_P2P_SCHEDULE_GROUP_SIZE"
NOBODY = -1

Ranks = NDArray[np.int64]
Pair = tuple[int | None, int | None]


@dataclass(frozen=True)
class PeerOrder:
    """The order of one rank's peers; ``ranks_of`` are the ranks of each of NCCL's nodes."""

    communicator: Comm
    ranks_of: Sequence[Sequence[int]]
    rank: int

    @cached_property
    def _rounds(self) -> tuple[Ranks, Ranks]:
        """The rank to send to and the rank to receive from in each round, [round] each."""
        match self.communicator.release.exchange.order:
            case "nodes_up_and_down":
                return self._up_and_down()
            case "growing_steps":
                return self._growing_steps()
            case "growing_steps_of_groups":
                return self._of_groups()

    def pair(self, number: int) -> Pair:
        """The rank to send to and the rank to receive from in a round; None if there is no such rank."""
        to, whence = (int(ranks[number]) for ranks in self._rounds)
        return None if to == NOBODY else to, None if whence == NOBODY else whence

    def rounds_with(self, to: Iterable[int], whence: Iterable[int]) -> list[int]:
        """The rounds, in order, that send to one of ``to`` or receive from one of ``whence``."""
        found: list[int] = np.flatnonzero(self._among(0, to) | self._among(1, whence)).tolist()
        return found

    def _among(self, side: int, ranks: Iterable[int]) -> NDArray[np.bool_]:
        wanted = np.zeros(self.communicator.ranks + 1, np.bool_)  # the last element stands for no rank
        wanted[list(ranks)] = True
        wanted[NOBODY] = False
        return wanted[self._rounds[side]]

    @cached_property
    def group_ranks(self) -> int:
        """The number of ranks in a group (NCCL's p2pSchedGroupSize); in some releases these are the ranks of a node.

        BadInput for a size below 1.
        """
        number, data = self.communicator.environment.number, self.communicator.release.exchange
        sizes = self._sizes
        if data.group_ranks == "of_node" or (data.group_ranks == "fixed_across_nodes" and len(sizes) == 1):
            return max(sizes)
        size = number(GROUP_SIZE, TOGETHER)
        if size < 1:
            raise BadInput(f"{GROUP_SIZE}={size}: valid are 1 and more ranks")
        for own in dict.fromkeys(sizes):
            if own % size or own < size:
                size = gcd(size, own)
        return size

    def place(self, rank: int) -> tuple[int, int]:
        """Returns the node of a rank, and the place of the rank among the ranks of that node."""
        nodes, places = self._places
        return int(nodes[rank]), int(places[rank])

    @cached_property
    def most_of_node(self) -> int:
        """The largest number of ranks on a node."""
        return max(self._sizes)

    @cached_property
    def _sizes(self) -> list[int]:
        return list(map(len, self.ranks_of))

    @cached_property
    def _all(self) -> Ranks:
        """The ranks of all nodes, one node after the other."""
        return np.fromiter(chain.from_iterable(self.ranks_of), np.int64, sum(self._sizes))

    @cached_property
    def _places(self) -> tuple[Ranks, Ranks]:
        """The node of each rank, and the rank's place there."""
        sizes = np.array(self._sizes)
        nodes, places = np.empty_like(self._all), np.empty_like(self._all)
        nodes[self._all] = np.repeat(np.arange(len(sizes)), sizes)
        places[self._all] = np.arange(len(self._all)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return nodes, places

    def _up_and_down(self) -> tuple[Ranks, Ranks]:
        """The order by nodes: those at the distances d, -d, n/2 - d and d - n/2, for growing d.

        Source: initTransportsRank, src/init.cc, v2.18.1-1.
        """
        nodes, (node, own), most = len(self.ranks_of), self.place(self.rank), self.most_of_node
        steps = -(-most // TOGETHER) * TOGETHER if most > TOGETHER else 1 << (most - 1).bit_length()
        table = np.full((nodes, steps), NOBODY)
        node_of, place_of = self._places
        table[node_of[self._all], place_of[self._all]] = self._all
        near = np.arange(nodes // 4 + 1)
        four = np.column_stack([near, (nodes - near) % nodes, nodes // 2 - near, (near - nodes // 2) % nodes])
        before = [np.any(four[:, :at] == four[:, at : at + 1], axis=1) for at in range(4)]
        away = four[~np.column_stack(before)]
        return _both(table, (node, own), away, np.arange(steps))

    def _growing_steps(self) -> tuple[Ranks, Ranks]:
        """The order by nodes, then by ranks; by ranks only if nodes differ in size.

        Source: initTransportsRank, src/init.cc, v2.22.3-1.
        """
        if len(set(self._sizes)) > 1:
            everyone = np.arange(self.communicator.ranks)[None]
            return _both(everyone, (0, self.rank), growing(1), growing(self.communicator.ranks))
        table = self._all.reshape(len(self.ranks_of), -1)
        return _both(table, self.place(self.rank), growing(len(table)), growing(table.shape[1]))

    def _of_groups(self) -> tuple[Ranks, Ranks]:
        """The order by groups, and within a group one rank after the other. Source: ncclP2pSchedule, src/init.cc,
        v2.28.9-1."""
        table = self._all.reshape(-1, self.group_ranks)
        ((group, place),) = np.argwhere(table == self.rank).tolist()
        return _both(table, (group, place), growing(len(table)), np.arange(self.group_ranks))


def _both(table: Ranks, own: tuple[int, int], rows: Ranks, columns: Ranks) -> tuple[Ranks, Ranks]:
    """Ranks ``rows`` and ``columns`` away from ``own`` in a table of equal groups, forwards and backwards."""
    (row, column), (height, width) = own, table.shape
    there = table[((row + rows) % height)[:, None], (column + columns) % width]
    back = table[((row - rows) % height)[:, None], (column - columns) % width]
    return there.ravel(), back.ravel()


def growing(count: int) -> Ranks:
    """The numbers 0, 1, 3, 6, 10 ... modulo a power of two, without those from ``count`` on, [step]."""
    power = 1 << (count - 1).bit_length()
    steps = np.arange(power)
    values = steps * (steps + 1) // 2 & (power - 1)
    return values[values < count]


@dataclass(frozen=True, slots=True)
class Message:
    """One send or receive of a rank; ``offset_bytes`` is where its buffer begins. No choice depends on it."""

    peer: int
    bytes: int
    sends: bool
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message as a kernel holds it; up to 2.21 a chunk of a message.

    ``channels`` are in the order of the transfer's parts, which have ``part_bytes`` each, except for the last.
    ``chunk_bytes`` is the number of bytes that go through a buffer at once; from 2.22 on it does not include the flags
    of LL. ``network`` is true if the transfer goes over the network, and false for peer-to-peer and shared memory.
    """

    message: Message
    bytes: int
    offset_bytes: int
    protocol: Protocol
    network: bool
    channels: tuple[int, ...]
    part_bytes: int
    chunk_bytes: int

    @property
    def peer(self) -> int:
        """The other rank of the message."""
        return self.message.peer

    @property
    def sends(self) -> bool:
        """Whether the message is a send."""
        return self.message.sends


@dataclass(frozen=True, slots=True)
class P2pWork:
    """One round's work in a kernel: a transfer out and one in, starting on the same channel."""

    round: int
    send_rank: int
    receive_rank: int
    first_channel: int
    send: Transfer | None
    receive: Transfer | None


@dataclass(frozen=True, slots=True)
class WorkElement:
    """A chunk of a work in releases up to 2.21: its place among the 16 of the work, and the warps that do it."""

    place: int
    transfer: Transfer
    warps: int
    first_warp: int
    groups: int


@dataclass(frozen=True, slots=True)
class ExchangeKernel:
    """One launch of sends and receives.

    ``batches`` lists the batches of each channel, with the channels in the order of their blocks. What is in one batch
    runs together: works, given by their index in ``works``, or the elements of one work.
    """

    threads: int
    works: tuple[P2pWork, ...]
    batches: dict[int, tuple[tuple[int, ...] | tuple[WorkElement, ...], ...]]

    @property
    def channels(self) -> tuple[int, ...]:
        """The channels in ascending order; each has one block."""
        return tuple(sorted(self.batches))

    @property
    def transfers(self) -> Iterator[tuple[Transfer, int | None]]:
        """The transfers, each with its round, in the order of rounds.

        In releases up to 2.21 the transfers are in the order of channels, and have None instead of a round.
        """
        for work in self.works:
            yield from ((each, work.round) for each in (work.receive, work.send) if each is not None)
        elements = (item for batches in self.batches.values() for batch in batches for item in batch)
        yield from ((item.transfer, None) for item in elements if isinstance(item, WorkElement))


# What the plan of sends and receives depends on, apart from the messages.


@dataclass(frozen=True, slots=True)
class P2pContext:
    """A communicator, its channels for sends and receives, and one rank's order of peers."""

    communicator: Comm
    channels: PeerChannels
    order: PeerOrder
    # Pairs of ranks of the own node that only the network joins, by their place on the node
    joined_by_network: frozenset[tuple[int, int]]
    beyond_nodes: frozenset[int]  # ranks of other nodes that shared memory or NVLink joins to the own rank
    rings: Callable[[], Sequence[Sequence[int]]]  # for each channel, the ranks of the ring, beginning with the own rank

    def by_network(self, peer: int) -> bool:
        """Whether the rank reaches ``peer`` only over the network.

        This is so for most peers on other nodes, and for peers of the same node on another socket that has its own
        adapters.
        """
        (own, place), (other, other_place) = (self.order.place(rank) for rank in (self.order.rank, peer))
        if own == other:
            return (place, other_place) in self.joined_by_network
        return peer not in self.beyond_nodes


class Queues:
    """The messages of one rank that are not in a kernel yet: a queue for each peer and direction."""

    def __init__(self, messages: Iterable[Message], rank: int) -> None:
        self._waiting: dict[tuple[int, bool], deque[Message]] = defaultdict(deque)
        self._count = 0
        for message in messages:
            self._waiting[message.peer, message.sends].append(message)
            self._count += 1
        own = [len(self._waiting[rank, sends]) for sends in (True, False)]
        if own[0] != own[1]:
            raise BadInput(
                f"rank {rank} sends itself {own[0]} messages and receives {own[1]} from itself: both numbers have to "
                "be equal"
            )

    def __bool__(self) -> bool:
        return self._count > 0

    def peers(self, sends: bool) -> list[int]:
        """The ranks to which messages go, or from which they come."""
        return [peer for (peer, sent), waiting in self._waiting.items() if sent is sends and waiting]

    def first(self, to: int | None, whence: int | None) -> tuple[Message | None, Message | None]:
        """The next message to one rank, and the next one from another."""
        return self._first(to, True), self._first(whence, False)

    def _first(self, peer: int | None, sends: bool) -> Message | None:
        if peer is None or not (waiting := self._waiting.get((peer, sends))):
            return None
        return waiting[0]

    def take(self, *messages: Message | None) -> None:
        """Removes the first messages of the queues."""
        for message in messages:
            if message is not None:
                self._waiting[message.peer, message.sends].popleft()
                self._count -= 1

"""In which order a rank turns to its peers: rounds of one rank to send to and one to receive from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from tuner.base.errors import BadInput
from tuner.emulator.communicator import Communicator
from tuner.emulator.exchange.peers import TOGETHER

GROUP_SIZE = "NCCL_P2P_SCHEDULE_GROUP_SIZE"


@dataclass(frozen=True)
class Order:
    """The order of one rank's peers; ``ranks_of`` are the ranks of each of NCCL's nodes."""

    communicator: Communicator
    ranks_of: tuple[tuple[int, ...], ...]
    rank: int

    @cached_property
    def pairs(self) -> tuple[tuple[int | None, int | None], ...]:
        """Whom to send to and whom to receive from, round by round; None where there is nobody."""
        match self.communicator.release.exchange.order:
            case "nodes_up_and_down":
                return tuple(self._up_and_down())
            case "growing_steps":
                return tuple(self._growing_steps())
            case "growing_steps_of_groups":
                return tuple(self._of_groups())

    @cached_property
    def group_ranks(self) -> int:
        """How many ranks are a group (NCCL's p2pSchedGroupSize), which is a node's ranks in some releases.

        BadInput for a size that NCCL divides by in vain.
        """
        number, data = self.communicator.environment.number, self.communicator.release.exchange
        sizes = list(map(len, self.ranks_of))
        if data.group_ranks == "of_node" or (data.group_ranks == "fixed_across_nodes" and len(sizes) == 1):
            return max(sizes)
        size = number(GROUP_SIZE, TOGETHER)
        if size < 1:
            raise BadInput(f"{GROUP_SIZE}={size}: valid: 1 rank and more")
        for own in sizes:
            if own % size or own < size:
                size = gcd(size, own)
        return size

    def place(self, rank: int) -> tuple[int, int]:
        """The node of a rank, and which of its ranks it is."""
        return self._places[rank]

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        return {rank: (node, place) for node, ranks in enumerate(self.ranks_of) for place, rank in enumerate(ranks)}

    def _up_and_down(self) -> Iterator[tuple[int | None, int | None]]:
        """Nodes d, -d, n/2 - d and d - n/2 away. Source: initTransportsRank, src/init.cc, v2.18.1-1."""
        nodes, (node, own) = len(self.ranks_of), self.place(self.rank)
        most = max(map(len, self.ranks_of))
        steps = -(-most // TOGETHER) * TOGETHER if most > TOGETHER else 1 << (most - 1).bit_length()
        for near in range(nodes // 4 + 1):
            four = (near, (nodes - near) % nodes, nodes // 2 - near, (nodes - (nodes // 2 - near)) % nodes)
            for delta in dict.fromkeys(four):
                send, receive = self.ranks_of[(node + delta) % nodes], self.ranks_of[(node - delta) % nodes]
                for step in range(steps):
                    yield _at(send, (own + step) % steps), _at(receive, (own - step) % steps)

    def _growing_steps(self) -> Iterator[tuple[int, int]]:
        """By node, then by rank; all ranks at once where nodes differ. Source: as above, v2.22.3-1."""
        ranks_of, (node, own) = self.ranks_of, self.place(self.rank)
        if len(set(map(len, ranks_of))) > 1:
            ranks_of, node, own = (tuple(range(self.communicator.ranks)),), 0, self.rank
        each = len(ranks_of[0])
        for nodes_away in growing(len(ranks_of)):
            send, receive = ranks_of[(node + nodes_away) % len(ranks_of)], ranks_of[node - nodes_away]
            for away in growing(each):
                yield send[(own + away) % each], receive[(own - away) % each]

    def _of_groups(self) -> Iterator[tuple[int, int]]:
        """By group, and in it one rank after the other. Source: ncclP2pSchedule, src/init.cc, v2.28.9-1."""
        size = self.group_ranks
        groups = [ranks[i : i + size] for ranks in self.ranks_of for i in range(0, len(ranks), size)]
        own = next(number for number, ranks in enumerate(groups) if self.rank in ranks)
        place = groups[own].index(self.rank)
        for away in growing(len(groups)):
            send, receive = groups[(own + away) % len(groups)], groups[(own - away) % len(groups)]
            for delta in range(size):
                yield send[(place + delta) % size], receive[(place - delta) % size]


def growing(count: int) -> Iterator[int]:
    """0, 1, 3, 6, 10 ... modulo a power of two, without what is not below ``count``."""
    power, value = 1 << (count - 1).bit_length(), 0
    for step in range(1, power + 1):
        if value < count:
            yield value
        value = (value + step) & (power - 1)


def _at(ranks: Sequence[int], place: int) -> int | None:
    return ranks[place] if place < len(ranks) else None

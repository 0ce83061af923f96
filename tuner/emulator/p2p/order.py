"""In which order a rank turns to its peers: rounds of one rank to send to and one to receive from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tuner.base.errors import BadInput
from tuner.emulator.communicator import Communicator
from tuner.emulator.p2p.peers import TOGETHER

GROUP_SIZE = "NCCL_P2P_SCHEDULE_GROUP_SIZE"
NOBODY = -1

Ranks = NDArray[np.int64]
Pair = tuple[int | None, int | None]


@dataclass(frozen=True)
class Order:
    """The order of one rank's peers; ``ranks_of`` are the ranks of each of NCCL's nodes."""

    communicator: Communicator
    ranks_of: Sequence[Sequence[int]]
    rank: int

    @cached_property
    def _rounds(self) -> tuple[Ranks, Ranks]:
        """Whom to send to and whom to receive from, [round] each."""
        match self.communicator.release.exchange.order:
            case "nodes_up_and_down":
                return self._up_and_down()
            case "growing_steps":
                return self._growing_steps()
            case "growing_steps_of_groups":
                return self._of_groups()

    def pair(self, number: int) -> Pair:
        """Whom to send to and whom to receive from in a round; None where there is nobody."""
        to, whence = (int(ranks[number]) for ranks in self._rounds)
        return None if to == NOBODY else to, None if whence == NOBODY else whence

    def rounds_with(self, to: Iterable[int], whence: Iterable[int]) -> list[int]:
        """The rounds that send to any of these ranks, or receive from any of those, in their order."""
        found: list[int] = np.flatnonzero(self._among(0, to) | self._among(1, whence)).tolist()
        return found

    def _among(self, side: int, ranks: Iterable[int]) -> NDArray[np.bool_]:
        wanted = np.zeros(self.communicator.ranks + 1, np.bool_)  # the last for nobody
        wanted[list(ranks)] = True
        wanted[NOBODY] = False
        return wanted[self._rounds[side]]

    @cached_property
    def group_ranks(self) -> int:
        """Number of ranks that are a group (NCCL's p2pSchedGroupSize), which is a node's ranks in some releases.

        BadInput for a size that NCCL divides by in vain.
        """
        number, data = self.communicator.environment.number, self.communicator.release.exchange
        sizes = self._sizes
        if data.group_ranks == "of_node" or (data.group_ranks == "fixed_across_nodes" and len(sizes) == 1):
            return max(sizes)
        size = number(GROUP_SIZE, TOGETHER)
        if size < 1:
            raise BadInput(f"{GROUP_SIZE}={size}: valid: 1 rank and more")
        for own in dict.fromkeys(sizes):
            if own % size or own < size:
                size = gcd(size, own)
        return size

    def place(self, rank: int) -> tuple[int, int]:
        """The node of a rank, and which of its ranks it is."""
        nodes, places = self._places
        return int(nodes[rank]), int(places[rank])

    @cached_property
    def most_of_node(self) -> int:
        """The ranks of the node that has the most."""
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
        """Node and place of each rank."""
        sizes = np.array(self._sizes)
        nodes, places = np.empty_like(self._all), np.empty_like(self._all)
        nodes[self._all] = np.repeat(np.arange(len(sizes)), sizes)
        places[self._all] = np.arange(len(self._all)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return nodes, places

    def _up_and_down(self) -> tuple[Ranks, Ranks]:
        """Nodes d, -d, n/2 - d and d - n/2 away. Source: initTransportsRank, src/init.cc, v2.18.1-1."""
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
        """Order by node, then by rank; all ranks at once where nodes differ. Source: as above, v2.22.3-1."""
        if len(set(self._sizes)) > 1:
            everyone = np.arange(self.communicator.ranks)[None]
            return _both(everyone, (0, self.rank), growing(1), growing(self.communicator.ranks))
        table = self._all.reshape(len(self.ranks_of), -1)
        return _both(table, self.place(self.rank), growing(len(table)), growing(table.shape[1]))

    def _of_groups(self) -> tuple[Ranks, Ranks]:
        """Order by group, and in it one rank after the other. Source: ncclP2pSchedule, src/init.cc, v2.28.9-1."""
        table = self._all.reshape(-1, self.group_ranks)
        ((group, place),) = np.argwhere(table == self.rank).tolist()
        return _both(table, (group, place), growing(len(table)), np.arange(self.group_ranks))


def _both(table: Ranks, own: tuple[int, int], rows: Ranks, columns: Ranks) -> tuple[Ranks, Ranks]:
    """Ranks of a table of equal groups, so many rows and columns away from the own one, one way and the other."""
    (row, column), (height, width) = own, table.shape
    there = table[((row + rows) % height)[:, None], (column + columns) % width]
    back = table[((row - rows) % height)[:, None], (column - columns) % width]
    return there.ravel(), back.ravel()


def growing(count: int) -> Ranks:
    """0, 1, 3, 6, 10 ... modulo a power of two, without what is not below ``count``: numbers [step]."""
    power = 1 << (count - 1).bit_length()
    steps = np.arange(power)
    values = steps * (steps + 1) // 2 & (power - 1)
    return values[values < count]

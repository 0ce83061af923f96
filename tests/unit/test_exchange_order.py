"""The order of a rank's peers, against NCCL's loops one rank after the other; tests/live/test_exchanges.py asks it."""

from collections.abc import Iterator, Sequence
from itertools import islice

import pytest

from tuner.emulator.p2p.records import Pair, PeerOrder
from tuner.scenario import Scenario

NODES = [[8], [8, 8, 8], [3, 3, 3, 3, 3], [1] * 9, [8, 4, 6], [2, 1, 2, 2, 1, 2, 2]]


def growing(count: int) -> Iterator[int]:
    power, value = 1 << (count - 1).bit_length(), 0
    for step in range(1, power + 1):
        if value < count:
            yield value
        value = (value + step) % power


def up_and_down(ranks_of: Sequence[Sequence[int]], node: int, own: int) -> Iterator[Pair]:
    nodes, most = len(ranks_of), max(map(len, ranks_of))
    steps = -(-most // 8) * 8 if most > 8 else 1 << (most - 1).bit_length()
    for near in range(nodes // 4 + 1):
        for away in dict.fromkeys((near, -near % nodes, nodes // 2 - near, (near - nodes // 2) % nodes)):
            to, whence = ranks_of[(node + away) % nodes], ranks_of[(node - away) % nodes]
            for step in range(steps):
                sends, receives = (own + step) % steps, (own - step) % steps
                yield to[sends] if sends < len(to) else None, whence[receives] if receives < len(whence) else None


def by_table(table: Sequence[Sequence[int]], row: int, column: int, columns: Sequence[int]) -> Iterator[Pair]:
    width = len(table[0])
    for rows in growing(len(table)):
        for away in columns:
            to, whence = table[(row + rows) % len(table)], table[(row - rows) % len(table)]
            yield to[(column + away) % width], whence[(column - away) % width]


def expected(order: PeerOrder) -> Iterator[Pair]:
    ranks_of, (node, own) = order.ranks_of, order.place(order.rank)
    match order.communicator.release.exchange.order:
        case "nodes_up_and_down":
            return up_and_down(ranks_of, node, own)
        case "growing_steps":
            if len(set(map(len, ranks_of))) > 1:
                ranks_of, node, own = [range(order.communicator.ranks)], 0, order.rank
            return by_table(ranks_of, node, own, list(growing(len(ranks_of[0]))))
        case "growing_steps_of_groups":
            size = order.group_ranks
            groups = [ranks[at : at + size] for ranks in ranks_of for at in range(0, len(ranks), size)]
            group = next(number for number, ranks in enumerate(groups) if order.rank in ranks)
            return by_table(groups, group, list(groups[group]).index(order.rank), range(size))


@pytest.mark.parametrize("sizes", NODES, ids=str)
@pytest.mark.parametrize("nccl", ["2.20.5", "2.23.4", "2.28.9"])
def test_rounds_are_those_of_nccls_loops(nccl: str, sizes: list[int]) -> None:
    _, *others = (Scenario(nccl, 1, machine="dgx-h100", gpus_per_node=size) for size in sizes)
    resolved = Scenario(nccl, 1, machine="dgx-h100", gpus_per_node=sizes[0], others=tuple(others)).resolve()
    for rank in range(sum(sizes)):
        order = PeerOrder(resolved.view_of(rank), resolved.ranks_of, rank)
        rounds = list(expected(order))
        assert [order.pair(number) for number in range(len(rounds))] == rounds
        with pytest.raises(IndexError):
            order.pair(len(rounds))
        for peer in islice(range(sum(sizes)), 0, None, 3):
            sends = [number for number, (to, _) in enumerate(rounds) if to == peer]
            either = [number for number, pair in enumerate(rounds) if peer in pair]
            assert order.rounds_with([peer], []) == sends
            assert order.rounds_with([peer], [peer]) == either
    assert order.rounds_with([], []) == []

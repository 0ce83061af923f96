"""How a rank's rings go between nodes, as registered buffers go by it: of channels that nobody searched."""

import pytest

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op
from tuner.emulator import full_launch
from tuner.emulator.connect import ChannelAdapter, Connected, RankChannel, RankView, Tree
from tuner.emulator.connect.network import network_use
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.emulator.rules.registered import Heads, NetworkUse
from tuner.emulator.selection import Selection
from tuner.machine.adapters import AdapterAccess
from tuner.scenario import Scenario

NOBODY = Tree(None, ())
NODE_OF_RANK = (0, 0, 1, 1)  # rings go 0 1 | 2 3 |, so ranks 1 and 3 send, 0 and 2 receive
DIRECT, WRITTEN = AdapterAccess(0, "PIX", True, True), AdapterAccess(0, "PHB", False, True)


def connected(relay: int | None = None, tree_relay: int | None = None) -> Connected:
    """One channel, whose rank 3 sends over ``relay``, and rank 1 in the tree over ``tree_relay``."""

    def view(rank: int) -> RankView:
        peer = (rank + 2) % 4
        ring, tree = ChannelAdapter(0, rank), NOBODY
        if rank == 3 and relay is not None:
            ring = ChannelAdapter(0, relay)
        if tree_relay is not None:
            tree = Tree(peer, ())
        of_tree = ChannelAdapter(1, tree_relay if rank == 1 and tree_relay is not None else rank, 1)
        channel = RankChannel((rank - 1) % 4, (rank + 1) % 4, ring, tree, of_tree, None, None)
        return RankView((channel,), (), ())

    return Connected(NODE_OF_RANK, tuple(map(view, range(4))))


@pytest.mark.parametrize("rank", range(4))
def test_what_one_rank_sends_over_another_gpu_counts_for_all(rank: int) -> None:
    assert network_use(connected(), rank, lambda *_: DIRECT) == NetworkUse(True, False, True)
    assert network_use(connected(relay=2), rank, lambda *_: DIRECT) == NetworkUse(True, True, True)


@pytest.mark.parametrize("rank", range(4))
def test_an_adapter_of_one_rank_that_does_not_reach_its_gpu_counts_for_all(rank: int) -> None:
    def access(sending: int) -> NetworkUse:
        return network_use(connected(), rank, lambda of, _: WRITTEN if of == sending else DIRECT)

    assert not access(3).direct  # it cannot read what rank 3 sends
    assert access(2).direct  # and writes what rank 2 receives


def test_trees_that_are_connected_later_count_for_their_own_rank_alone() -> None:
    trees = connected(tree_relay=0)
    assert not network_use(trees, 1, lambda *_: DIRECT).relayed
    assert network_use(trees, 1, lambda *_: DIRECT, [Algorithm.Tree]).relayed
    assert not network_use(trees, 3, lambda *_: DIRECT, [Algorithm.Tree]).relayed


def test_a_rank_that_only_the_other_ranks_connect_reaches_nobody() -> None:
    alone = Connected((0, 0, 0, 1), connected().ranks)
    assert not network_use(alone, 1, lambda *_: DIRECT).reached


def test_a_group_is_refused_whose_rings_depend_on_what_was_connected_first() -> None:
    variables = {"NCCL_ALGO": "allgather:ring;allreduce:nvlstree", "NCCL_PROTO": "Simple"}
    selection = Selection(Scenario("2.28.9", 2, machine="dgx-h100", environment=variables).resolve().view_of(0))
    rings, trees = (
        Operation(Request(each, DataType.float32, Op.sum, buffers=Buffers.registered), 1 << 28)
        for each in (Collective.AllGather, Collective.AllReduce)
    )
    relayed_by_trees = Heads(8, 0, 1, 0, 1, lambda later: NetworkUse(True, bool(later), True))
    (work,) = full_launch.launch(selection, [rings], lambda: relayed_by_trees).kernels[0].works
    assert "network" in work.registered_for
    with pytest.raises(BadInput, match="in one group with NVLSTree"):
        full_launch.launch(selection, [rings, trees], lambda: relayed_by_trees)

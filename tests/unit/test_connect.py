"""Channels across nodes: the trees of nodes, the copies of channels, and how they are told."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tuner import communicator
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op
from tuner.cli import everything as main
from tuner.emulator import full_launch
from tuner.emulator.connect import ChannelAdapter, Connected, RankChannel, RankView, Tree, summarize
from tuner.emulator.connect.join import binary_tree, double_tree
from tuner.emulator.connect.network import heads_of_rank, network_use
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.emulator.rules.registered import Heads, NetworkUse
from tuner.emulator.selection import Selection
from tuner.machine.adapters import AdapterAccess
from tuner.scenario import Scenario

NCCL = "2.28.9"


def test_the_tree_of_fourteen_nodes_is_as_nccl_draws_it() -> None:
    parents = [binary_tree(14, node).parent for node in range(14)]
    assert parents == [None, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]  # src/graph/trees.cc


@pytest.mark.parametrize("nodes", [*range(1, 40), 64, 65, 1000])
def test_both_trees_reach_every_node_and_agree_about_children(nodes: int) -> None:
    for second in (False, True):
        places = [double_tree(nodes, node)[second] for node in range(nodes)]
        assert sum(place.parent is None for place in places) == 1
        for node, place in enumerate(places):
            assert [places[child].parent for child in (place.first, place.second) if child is not None] == [
                node for child in (place.first, place.second) if child is not None
            ]
            if place.parent is not None:
                parent = places[place.parent]
                assert node == (parent.second if place.is_second else parent.first)


@pytest.mark.parametrize("nodes", [2, 4, 6, 8, 16])
def test_a_node_of_an_even_number_is_inner_in_one_tree_only(nodes: int) -> None:
    for node in range(nodes):
        first, second = double_tree(nodes, node)
        leaves = [place.first is None and place.second is None for place in (first, second)]
        assert leaves.count(True) >= 1


def test_rings_change_rails_in_turn_on_an_even_number_of_nodes_and_not_on_an_odd() -> None:
    def rails(nodes: int) -> list[tuple[int | None, int | None]]:
        across = summarize(Scenario(NCCL, nodes, machine="dgx-h100").resolve().connected)
        return [(crossing.send_net, crossing.receive_net) for crossing in across.rings[0].crossings]

    assert rails(2) == [(1, 1), (0, 0)]
    assert rails(3) == [(1, 1), (0, 0), (1, 0)]  # the last node's ring has no counterpart


def test_a_rank_that_is_several_heads_of_nvls_counts_as_often() -> None:
    """2.19.3 counts channels of the graph, of which this machine begins four at each of two GPUs."""
    for nccl, heads, own in (("2.19.3", 8, 7), ("2.20.5", 2, 1)):
        connected = Scenario(nccl, 2, machine="aws-p5").resolve().connected
        assert {heads_of_rank(connected, rank).nvls for rank in range(16)} == {heads}
        assert heads_of_rank(connected, 1).own_nvls == own


def test_copies_begin_anew_after_the_most_channels_wanted() -> None:
    wanted = {"NCCL_MAX_NCHANNELS": "3", "NCCL_MIN_NCHANNELS": "8"}
    connected = Scenario(NCCL, 2, machine="dgx-h100", environment=wanted).resolve().connected
    for view in connected.ranks:
        rings = [(channel.previous, channel.next) for channel in view.channels]
        assert len(rings) == 8
        assert rings == [rings[number % 3] for number in range(8)]


def test_pxn_is_named() -> None:
    across = communicator("dgx-h100", nodes=2, gpus_per_node=4, nccl=NCCL).channels_across_nodes()
    for ring in across.rings:
        for crossing in ring.crossings:
            assert across.ranks_of_nodes[0 if crossing.sender < 4 else 1].count(crossing.relay) == 1


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_rings_and_trees_hold_every_rank(nodes: int) -> None:
    across = summarize(Scenario(NCCL, nodes, machine="dgx-a100").resolve().connected)
    ranks = set(range(8 * nodes))
    for ring, tree in zip(across.rings, across.trees, strict=True):
        assert set(ring.ranks) == ranks
        assert len(ring.ranks) == len(ranks)
        assert len(ring.crossings) == (nodes if nodes > 1 else 0)
        assert tree.parents.count(None) == 1
        assert sorted(child for children in tree.children for child in children) == sorted(
            rank for rank in ranks if tree.parents[rank] is not None
        )
        assert len(tree.crossings) == 2 * (nodes - 1)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["graphs", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_has_the_graphs_as_before_and_the_channels_beside_them() -> None:
    asked = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", NCCL, "--json")
    before, after = json.loads(run(*asked)), json.loads(run(*asked, "--across"))
    assert {name: after[name] for name in before} == before
    assert {"ring", "tree"} <= before["graphs"].keys()
    assert set(after) - set(before) == {"ranks_of_nodes", "rings", "trees", "nvls_heads", "nvls_trees"}
    assert after["rings"][0]["crossings"][0] == {
        "sender": 1,
        "relay": 1,
        "send_net": 1,
        "receive_net": 1,
        "receiver": 9,
    }


def test_nodes_that_differ_have_channels_though_no_graphs_in_common() -> None:
    answer = json.loads(run("--node", "dgx-h100:8x2", "--node", "dgx-a100:4", "--nccl", NCCL, "--across", "--json"))
    assert [len(ranks) for ranks in answer["ranks_of_nodes"]] == [8, 8, 4]
    assert all(len(ring["ranks"]) == 20 for ring in answer["rings"])


def test_text_has_collnet_and_pat() -> None:
    collnet = run(
        "--machine",
        "dgx-h100",
        "--nodes",
        "2",
        "--nccl",
        NCCL,
        "--across",
        "--collnet",
        "--env",
        "NCCL_COLLNET_ENABLE=1",
    )
    assert "Chains of CollNet" in collnet
    assert "Heads of CollNet direct: 0 1 2 3 4 5 6 7" in collnet
    assert "PAT, in all channels" in run(
        "--machine", "dgx-h100", "--gpus-per-node", "1", "--nodes", "4", "--nccl", NCCL, "--across"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--explain", "ring"], "--across cannot be combined with --dump, --explain or --svg"),
        (["--dump", "graphs.xml"], "--across cannot be combined with --dump, --explain or --svg"),
        (["--env", "NCCL_NET_PLUGIN_REF_COUNT=1"], "NCCL_NET_PLUGIN_REF_COUNT: not emulated"),
    ],
)
def test_what_across_refuses(arguments: list[str], message: str) -> None:
    asked = ["graphs", "--machine", "dgx-h100", "--nodes", "2", "--nccl", NCCL, "--across", *arguments]
    with pytest.raises(BadInput, match=message):
        CliRunner().invoke(main, asked, standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("nccl", "machine", "environment"),
    [
        ("2.18.1", "dgx-a100", {}),
        ("2.28.9", "dgx-h100", {}),
        ("2.28.9", "dgx-h100", {"NCCL_MIN_NCHANNELS": "24"}),
        ("2.32.3", "a100-4x-1nic", {"NCCL_CROSS_NIC": "1"}),
        ("2.30.7", "aws-p5", {"NCCL_CROSS_NIC": "2"}),
        ("2.28.9", "gb200-nvl72", {"NCCL_MNNVL_ENABLE": "0"}),
    ],
)
def test_rings_and_trees_of_nodes_that_are_alike(
    nccl: str, machine: str, environment: dict[str, str], nodes: int
) -> None:
    trays = 2 if machine == "gb200-nvl72" else None
    resolved = Scenario(nccl, nodes, machine=machine, trays=trays, environment=environment).resolve()
    alone, whole = resolved.rings_and_trees, summarize(resolved.connected)
    assert alone.ranks_of_nodes == whole.ranks_of_nodes
    assert alone.rings == tuple(replace(ring, crossings=()) for ring in whole.rings)
    assert alone.trees == tuple(replace(tree, crossings=()) for tree in whole.trees)


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
    with pytest.raises(BadInput, match="one group with NVLSTree"):
        full_launch.launch(selection, [rings, trees], lambda: relayed_by_trees)

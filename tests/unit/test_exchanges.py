"""Sends and receives: channels, chunks, the order of peers, and that every command says of them what pick says."""

from collections.abc import Iterator, Sequence
from itertools import islice

import pytest

from tuner.answers import exchanges
from tuner.answers.exchanges import taken
from tuner.base.errors import BadInput
from tuner.base.names import DataType, PeerCall
from tuner.emulator.p2p.plan import ExchangeCall, plan
from tuner.emulator.p2p.records import Pair, PeerChannels, PeerOrder
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context
from tuner.scenario.resolved import ResolvedScenario

ALL_APART = {"NCCL_P2P_LEVEL": "NVL", "NCCL_SHM_DISABLE": "1"}  # GPUs of a node without NVLinks between them


def channels_of(nccl: str, environment: dict[str, str] | None = None, nodes: int = 2) -> PeerChannels:
    described = Scenario(nccl, nodes, machine="dgx-h100", gpus_per_node=2, environment=environment)
    return p2p_context(described.resolve()).channels


@pytest.mark.parametrize("nccl", ["2.20.5", "2.28.9", "2.30.7"])
@pytest.mark.parametrize(
    ("nodes", "variable", "value"),
    [
        (1, "NCCL_P2P_NVL_CHUNKSIZE", "0"),
        (1, "NCCL_P2P_NVL_CHUNKSIZE", "7"),
        (1, "NCCL_P2P_NVL_CHUNKSIZE", "-1"),
        (2, "NCCL_P2P_NET_CHUNKSIZE", "abc"),
        (2, "NCCL_P2P_NET_CHUNKSIZE", str(1 << 33)),
        (1, "NCCL_CHUNK_SIZE", "-3"),
        (1, "NCCL_CHUNK_SIZE", str(1 << 31)),
        (1, "NCCL_BUFFSIZE", "7"),
        (1, "NCCL_LL_BUFFSIZE", "0"),
    ],
)
def test_chunks_by_which_nccl_cannot_divide_are_refused(nccl: str, nodes: int, variable: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"{variable} asks for chunks of .* bytes: valid are 8 to 67108863"):
        channels_of(nccl, {variable: value}, nodes)


@pytest.mark.parametrize(
    ("nccl", "variable", "value", "valid"),
    [
        ("2.20.5", "NCCL_MIN_P2P_NCHANNELS", "33", "set it to 32 or less"),
        ("2.29.7", "NCCL_P2P_PER_CHANNEL_NET_BW", "0", "set it to 1 GB/s or more"),
        ("2.28.9", "NCCL_WORK_ARGS_BYTES", "33", "too small"),
    ],
)
def test_values_with_which_nccl_crashes_or_waits_are_refused(nccl: str, variable: str, value: str, valid: str) -> None:
    with pytest.raises(BadInput, match=f"{variable}.*{valid}"):
        channels_of(nccl, {variable: value})


@pytest.mark.parametrize("size", ["0", "-3"])
def test_a_group_of_no_ranks_is_refused(size: str) -> None:
    environment = {"NCCL_P2P_SCHEDULE_GROUP_SIZE": size}
    where = p2p_context(Scenario("2.28.9", 2, machine="dgx-h100", gpus_per_node=2, environment=environment).resolve())
    with pytest.raises(BadInput, match="valid are 1 and more ranks"):
        plan(where, [ExchangeCall(PeerCall.Send, DataType.int8, 1 << 20, 3)])


# As libnccl's log says them.
AS_C_READS_THEM = {
    ("2.19.3", "NCCL_NCHANNELS_PER_NET_PEER", "-1"): (8, 8),
    ("2.27.7", "NCCL_NCHANNELS_PER_NET_PEER", "-1"): (8, 2),
    ("2.27.7", "NCCL_NCHANNELS_PER_NET_PEER", "0"): (8, 1),
    ("2.27.7", "NCCL_NCHANNELS_PER_NET_PEER", "-2"): (8, 8),
    ("2.28.9", "NCCL_NCHANNELS_PER_NET_PEER", "0"): (8, 2),
    ("2.28.9", "NCCL_NCHANNELS_PER_NET_PEER", "-2"): (8, 2),
    ("2.28.9", "NCCL_MAX_P2P_NCHANNELS", str(1 << 33)): (1, 1),
    ("2.28.9", "NCCL_WORK_ARGS_BYTES", "-1"): (8, 2),
    ("2.30.7", "NCCL_P2P_MAX_PEERS", "-1"): (8, 4),
}


@pytest.mark.parametrize(("nccl", "variable", "value"), AS_C_READS_THEM)
def test_values_below_what_counts_and_beyond_an_int(nccl: str, variable: str, value: str) -> None:
    channels = channels_of(nccl, {variable: value})
    assert (channels.channels, channels.per_peer) == AS_C_READS_THEM[nccl, variable, value]


def test_a_number_of_more_digits_than_python_reads_is_as_unset() -> None:
    assert channels_of("2.28.9", {"NCCL_MAX_P2P_NCHANNELS": "9" * 5000}) == channels_of("2.28.9")


def test_some_nvlinks_make_chunks_of_nvlink_up_to_2_24() -> None:
    """Where some GPUs have NVLinks and others have none NCCL goes by the nearest pair, later by the farthest."""
    chunks = {
        nccl: p2p_context(Scenario(nccl, 1, machine="dgx-1v", environment=ALL_APART).resolve()).channels.chunk_bytes
        for nccl in ("2.24.3", "2.25.1", "2.28.9")
    }
    assert chunks == {"2.24.3": 1 << 19, "2.25.1": 1 << 17, "2.28.9": 1 << 17}


def test_adapters_count_until_they_have_what_the_gpu_has() -> None:
    """An adapter of 12 GB/s for a GPU of 12 GB/s: one, as libnccl 2.32.3 (``p2pnChannelsPerPeer``); two by one more."""
    channels = p2p_context(Scenario("2.32.3", 2, machine="aws-p5").resolve()).channels
    assert (channels.channels, channels.per_peer) == (64, 1)


def test_a_message_on_one_node_goes_on_more_channels_where_parts_are_larger_than_32_steps() -> None:
    """Blocks of the kernel that libnccl 2.28.9 launches for a send on one node."""
    where = p2p_context(Scenario("2.28.9", 1, machine="dgx-h100").resolve())
    sends = [ExchangeCall(PeerCall.Send, DataType.int8, size, 1) for size in (1 << 26, 1 << 27, 1 << 28)]
    assert [len(kernel.channels) for send in sends for kernel in plan(where, [send])] == [4, 8, 16]


@pytest.mark.parametrize(("given", "per_peer"), [("0", 2), ("1", 1), ("4", 4)])
def test_channels_of_a_peer_over_the_network_are_given_from_one_on(given: str, per_peer: int) -> None:
    """As libnccl 2.28.9 has them; 0 gives none."""
    assert channels_of("2.28.9", {"NCCL_NCHANNELS_PER_NET_PEER": given}).per_peer == per_peer


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


SIZES = (8, 16, 64 << 10, 16 << 20)  # of 16 ranks: less than a byte for each, and more


@pytest.mark.parametrize("function", [PeerCall.AllToAll, PeerCall.Gather, PeerCall.Scatter])
@pytest.mark.parametrize("name", ["2.21.5", "2.27.7", "2.28.9"])
def test_as_many_kernels_and_blocks_as_are_launched(name: str, function: PeerCall) -> None:
    scenario = Scenario(name, 2, machine="dgx-h100")
    where = p2p_context(ResolvedScenario(scenario))
    asked = exchanges.ExchangeQuery(function, SIZES, DataType.int8, rank=0, root=0)
    for answer in exchanges.answers(scenario, asked):
        found = taken(where, function, answer.bytes)
        assert answer.launch is not None
        kernels = answer.launch.kernels
        assert (found.kernels, found.channels) == (len(kernels), max((each.channels for each in kernels), default=0))


def test_nccls_own_functions_launch_nothing_for_no_element() -> None:
    """As libnccl does; sends and receives of no bytes, which people write before 2.28, are launched."""
    before, after = (
        p2p_context(ResolvedScenario(Scenario(name, 2, machine="dgx-h100"))) for name in ("2.27.7", "2.28.9")
    )
    assert taken(before, PeerCall.AllToAll, 8).kernels == 1
    assert taken(after, PeerCall.AllToAll, 8).kernels == 0

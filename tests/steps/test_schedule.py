"""Schedules: what is sent is what an execution of the steps sends, as much as must be moved, and all of it arrives."""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.random import Generator

from tests.support import device_steps, drawn_works, pat_steps, scheduled_numbers
from tests.support.drawn_works import numbers
from tests.support.ordered_calls import added
from tests.support.scheduled_numbers import Run
from tuner.answers.alone import of_exchange
from tuner.answers.exchanges import ExchangeQuery
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Op, PeerCall, Protocol
from tuner.emulator.connect import summarize
from tuner.emulator.launches import ChannelShare, ProxyOperation, Sharing, Work
from tuner.emulator.steps import pat
from tuner.emulator.steps.orders import pat_term
from tuner.emulator.steps.records import InNetwork, Peer, Pieces, Schedule, Step, wire_bytes
from tuner.emulator.steps.schedule import schedule
from tuner.scenario import Scenario

MOVES = {  # how often each element of the count goes over a wire, by number of ranks
    Collective.AllReduce: lambda ranks: 2 * (ranks - 1),
    Collective.ReduceScatter: lambda ranks: ranks * (ranks - 1),
    Collective.AllGather: lambda ranks: ranks * (ranks - 1),
    Collective.Reduce: lambda ranks: ranks - 1,
    Collective.Broadcast: lambda ranks: ranks - 1,
}
OF_ALL = (Collective.AllReduce, Collective.ReduceScatter, Collective.AllGather)
BY_FABRIC = (Algorithm.NVLS, Algorithm.NVLSTree, Algorithm.CollNetDirect, Algorithm.CollNetChain)


def of(drawn: drawn_works.Drawn) -> Schedule:
    return schedule(drawn.work, summarize(drawn.connected))


def all_steps(drawn: drawn_works.Drawn) -> list[Step]:
    return [step for rank in range(len(drawn.connected.ranks)) for step in of(drawn).steps(rank)]


def sent(steps: list[Step]) -> dict[tuple[int, int, Peer], list[int]]:
    """Elements of the messages by channel, sender and receiver, in their order."""
    found: dict[tuple[int, int, Peer], list[int]] = defaultdict(list)
    for step in steps:
        for receiver in step.send_to:
            found[step.channel, step.rank, receiver].append(step.elements)
    return found


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("seed", range(6))
def test_a_schedule_sends_what_the_blocks_send(collective: Collective, seed: int) -> None:
    random = np.random.default_rng(seed)
    drawn = drawn_works.drawn(random, collective)
    ranks, count = len(drawn.connected.ranks), drawn.work.count
    steps = all_steps(drawn)
    whole = count * (ranks if collective is Collective.ReduceScatter else 1)
    inputs = [drawn_works.numbers(random, whole) for _ in range(ranks)]
    _, wires = device_steps.execute(drawn.work, [rank.channels for rank in drawn.connected.ranks], inputs)
    executed: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for *wire, elements in wires.sent:
        executed[wire[0], wire[1], wire[2]].append(elements)
    assert sent(steps) == executed
    assert sum(step.elements * len(step.send_to) for step in steps) == MOVES[collective](ranks) * count


@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("seed", range(6, 9))
def test_what_is_received_is_what_was_sent_from_the_same_elements(collective: Collective, seed: int) -> None:
    drawn = drawn_works.drawn(np.random.default_rng(seed), collective)
    messages: dict[tuple[int, Peer, Peer], list[Pieces]] = defaultdict(list)
    received: dict[tuple[int, Peer, Peer], list[Pieces]] = defaultdict(list)
    for step in all_steps(drawn):
        for receiver in step.send_to:
            messages[step.channel, step.rank, receiver].append(step.pieces)
        for sender in step.receive_from:
            received[step.channel, sender, step.rank].append(step.pieces)
    assert messages == received


@pytest.mark.parametrize("collective", OF_ALL)
@pytest.mark.parametrize("seed", range(9, 13))
def test_every_rank_gets_what_the_collective_gives(collective: Collective, seed: int) -> None:
    random = np.random.default_rng(seed)
    drawn = drawn_works.drawn(random, collective)
    nodes = (tuple(range(len(drawn.connected.ranks))),)
    scheduled_numbers.of_collective(random, of(drawn), collective, drawn.work.count, nodes)


@pytest.mark.parametrize("algorithm", BY_FABRIC)
@pytest.mark.parametrize("seed", range(10))
def test_every_rank_gets_it_by_the_switch_and_the_network(algorithm: Algorithm, seed: int) -> None:
    random = np.random.default_rng([seed, algorithm])
    drawn, collective = drawn_works.by_fabric(random, algorithm)
    across, count = summarize(drawn.connected), drawn.work.count
    found, nodes = schedule(drawn.work, across), across.ranks_of_nodes
    run = scheduled_numbers.of_collective(random, found, collective, count, nodes)
    heads = len(across.nvls_heads) if algorithm in (Algorithm.NVLS, Algorithm.NVLSTree) else 1
    expected = fabric_elements(algorithm, collective, (len(nodes), len(nodes[0]), heads), count)
    assert {peer: run.sent_elements[peer] for peer in InNetwork if peer in run.sent_elements} == expected


def fabric_elements(
    algorithm: Algorithm, collective: Collective, sizes: tuple[int, int, int], count: int
) -> dict[InNetwork, int]:
    """How many elements the switches and the network are handed; sizes: nodes, ranks of each, heads of each."""
    nodes, local, _ = sizes
    ranks, several = nodes * local, nodes > 1
    switch = algorithm in (Algorithm.NVLS, Algorithm.NVLSTree)
    network = not switch or (several and algorithm is Algorithm.NVLS)
    found: dict[InNetwork, int] = {}
    if collective is Collective.AllReduce:
        if switch:  # every rank hands all of it to the switch, and each node's heads hand one copy of all
            found |= {InNetwork.switch_adds: ranks * count, InNetwork.switch_copies: nodes * count}
        if network:
            found[InNetwork.network_adds] = nodes * count
    elif collective is Collective.ReduceScatter:
        if switch:
            found[InNetwork.switch_adds] = ranks * ranks * count
        if network:
            found[InNetwork.network_adds] = nodes * ranks * count
    else:
        if switch:
            found[InNetwork.switch_copies] = nodes * ranks * count
        if network:
            found[InNetwork.network_copies] = ranks * count
    return found


def test_a_node_without_heads_is_refused() -> None:
    drawn = drawn_works.drawn(np.random.default_rng(0), Collective.AllReduce)
    found = schedule(replace(drawn.work, algorithm=Algorithm.NVLS), summarize(drawn.connected))
    with pytest.raises(BadInput, match="no schedule is known for nodes with different numbers of NVLS heads"):
        list(found.steps(0))
    with pytest.raises(BadInput, match="schedule of PAT is only known for one rank per node"):
        schedule(replace(drawn.work, algorithm=Algorithm.PAT), summarize(drawn.connected))


def test_flags_are_counted_on_the_wire() -> None:
    assert [wire_bytes(protocol, 100) for protocol in Protocol] == [208, 2048, 100]


ROOT = 3


def carried_out(asked: ExchangeQuery, scenario: Scenario, size: int) -> tuple[Run, list[np.ndarray]]:
    """The schedule of a call of ``size`` bytes from each rank to each, on bytes (each as a 64-bit number)."""
    found = of_exchange(scenario, asked)
    random = np.random.default_rng(size)
    held = size if asked.function in (PeerCall.Send, PeerCall.Recv) else size * scenario.ranks
    sources = [random.integers(1, 1 << 63, held, np.uint64) for _ in range(scenario.ranks)]
    run = Run(found, sources, [np.zeros(held, np.uint64) for _ in range(scenario.ranks)], ())
    run.to_its_end()
    return run, sources


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 5000, 300_000])
@pytest.mark.parametrize(("nccl", "nodes"), [("2.28.9", 1), ("2.32.3", 2), ("2.18.3", 1), ("2.21.5", 2)])
def test_all_to_all_brings_every_part_to_its_rank(nccl: str, nodes: int, size: int) -> None:
    scenario = Scenario(nccl, nodes, machine="dgx-h100")
    asked = ExchangeQuery(PeerCall.AllToAll, [size * scenario.ranks], DataType.int8, 0, 0)
    run, sources = carried_out(asked, scenario, size)
    for rank, result in enumerate(run.results):
        for sender, source in enumerate(sources):
            expected = source[rank * size : (rank + 1) * size] if sender != rank else 0
            assert np.all(result[sender * size : (sender + 1) * size] == expected)


@pytest.mark.parametrize("function", [PeerCall.Gather, PeerCall.Scatter])
@pytest.mark.parametrize("nccl", ["2.28.9", "2.22.3"])
def test_gather_and_scatter_move_between_the_root_and_all(function: PeerCall, nccl: str) -> None:
    scenario, size = Scenario(nccl, 1, machine="dgx-h100"), 70_000
    asked = ExchangeQuery(function, [size * scenario.ranks], DataType.int8, 0, ROOT)
    run, sources = carried_out(asked, scenario, size)
    for rank in set(range(scenario.ranks)) - {ROOT}:
        part = slice(rank * size, (rank + 1) * size)
        if function is PeerCall.Gather:
            assert np.array_equal(run.results[ROOT][part], sources[rank][:size])
        else:
            assert np.array_equal(run.results[rank][:size], sources[ROOT][part])


def test_a_send_has_two_ends() -> None:
    scenario, size = Scenario("2.28.9", 1, machine="dgx-h100"), 3 << 20
    for function in (PeerCall.Send, PeerCall.Recv):
        asked = ExchangeQuery(function, [size], DataType.int8, 2, 5)
        run, sources = carried_out(asked, scenario, size)
        ends = (2, 5) if function is PeerCall.Send else (5, 2)
        assert np.array_equal(run.results[ends[1]][:size], sources[ends[0]][:size])
        assert run.sent_elements[0] == size
    with pytest.raises(BadInput, match="peer= 2: a send to the rank itself is a copy"):
        of_exchange(scenario, ExchangeQuery(PeerCall.Send, [8], DataType.int8, 2, 2))


KINDS = {Collective.ReduceScatter: pat_steps.ReduceScatter, Collective.AllGather: pat_steps.AllGather}


@dataclass(frozen=True)
class Drawn:
    """One channel of a call."""

    ranks: int
    work: Work

    @property
    def share(self) -> ChannelShare:
        return self.work.shares[0]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.share.chunk, self.share.offset, self.share.offset + self.share.count, self.work.count


def drawn(random: Generator, collective: Collective, whole: bool = False) -> Drawn:
    ranks = int(random.integers(2, 40))
    count = int(random.integers(1, 300))
    low = 0 if whole else int(random.integers(0, count))
    high = count if whole else int(random.integers(low + 1, count + 1))
    chunk = int(random.integers(1, 10)) * 16
    share = ChannelShare(3, 0, low, high - low, chunk, None, ProxyOperation("", 0, 1, 1, 0, 1 << 20))
    kind = collective, DataType.float32, Op.sum, Algorithm.PAT, Protocol.Simple
    work = Work(0, *kind, None, count, 20, 0, False, 0, Sharing.ranges, (share,))
    return Drawn(ranks, work)


@pytest.mark.parametrize("seed", range(25))
def test_each_part_is_added_as_claimed(seed: int) -> None:
    random = np.random.default_rng(seed)
    case = drawn(random, Collective.ReduceScatter)
    count, low, high = case.work.count, case.sizes[1], case.sizes[2]
    inputs = [numbers(random, count * case.ranks) for _ in range(case.ranks)]
    results, _ = pat_steps.execute(pat_steps.ReduceScatter, case.sizes, inputs)
    for owner, result in enumerate(results):
        term = pat_term(case.work, case.share, case.ranks, owner)
        expected = added(term, inputs, slice(owner * count + low, owner * count + high))
        assert result[low:high].tobytes() == expected.tobytes()


@pytest.mark.parametrize("collective", KINDS)
@pytest.mark.parametrize("seed", range(25, 40))
def test_messages_are_those_of_the_device_code(collective: Collective, seed: int) -> None:
    random = np.random.default_rng(seed)
    case = drawn(random, collective)
    reduces = collective is Collective.ReduceScatter
    inputs = [numbers(random, case.work.count * (case.ranks if reduces else 1)) for _ in range(case.ranks)]
    _, wires = pat_steps.execute(KINDS[collective], case.sizes, inputs)
    away = 1 if reduces else -1
    for rank in range(case.ranks):
        sent: dict[object, list[int]] = defaultdict(list)
        received: dict[object, list[int]] = defaultdict(list)
        for step in pat.steps(case.work, case.share, rank, case.ranks):
            for ends, peers in ((sent, step.send_to), (received, step.receive_from)):
                for peer in peers:
                    ends[peer].append(step.elements + step.unused)
        for bit in range((case.ranks - 1).bit_length()):
            to, whence = ((rank + way * away * (1 << bit)) % case.ranks for way in (1, -1))
            assert sent[to] == wires[rank, bit].log
            assert received[whence] == wires[whence, bit].log


@pytest.mark.slow
@pytest.mark.parametrize("collective", KINDS)
@pytest.mark.parametrize("seed", range(40, 50))
def test_every_rank_gets_what_pat_gives(collective: Collective, seed: int) -> None:
    random = np.random.default_rng(seed)
    case = drawn(random, collective, whole=True)
    found = Schedule(case.ranks, (3,), 1, 1, 4, lambda rank: pat.steps(case.work, case.share, rank, case.ranks))
    nodes = tuple((rank,) for rank in range(case.ranks))
    run = scheduled_numbers.of_collective(random, found, collective, case.work.count, nodes)
    assert run.sent_elements[0] == case.ranks * (case.ranks - 1) * case.work.count

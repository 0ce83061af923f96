"""Schedules: what is sent is what an execution of the steps sends, as much as must be moved, and all of it arrives."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from tests.support import device_steps, drawn_works, scheduled_numbers
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.emulator.connect import summarize
from tuner.emulator.steps.records import InNetwork, Peer, Pieces, Schedule, Step, wire_bytes
from tuner.emulator.steps.schedule import schedule

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
    with pytest.raises(BadInput, match="not of nodes that differ in their heads"):
        list(found.steps(0))
    with pytest.raises(BadInput, match="of PAT with one rank per node"):
        schedule(replace(drawn.work, algorithm=Algorithm.PAT), summarize(drawn.connected))


def test_flags_are_counted_on_the_wire() -> None:
    assert [wire_bytes(protocol, 100) for protocol in Protocol] == [208, 2048, 100]
